"""Which runs a list of words means."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.errors import RecordError, UsageError
from labctl.runs.store import Entry, RunStore

TAG_PREFIX = "tag:"


def select(store: RunStore, words: Sequence[str]) -> list[Entry]:
    """Return the runs that words mean, oldest first, each once.

    Args:
        store: The lab's runs.
        words: Ids, unique prefixes, `last`, or `tag:key=value` for all readable runs with that tag.

    Raises:
        RecordError: A word fits no run, or a prefix fits several.
        UsageError: A tag without `=`.
    """
    found: dict[str, Entry] = {}
    by_tag = any(word.startswith(TAG_PREFIX) for word in words)
    readable = [entry for entry in store.entries() if entry.record is not None] if by_tag else []
    for word in words:
        if word.startswith(TAG_PREFIX):
            key, equals, value = word.removeprefix(TAG_PREFIX).partition("=")
            if not equals or not key:
                raise UsageError(f"{word!r} is no tag", expected="tag:key=value")
            fitting = [e for e in readable if e.readable().tags.get(key) == value]
            if not fitting:
                raise RecordError(
                    f"no run in {store.root} has the tag {key}={value}",
                    expected="at least one",
                    do="labctl runs list shows the tags",
                )
        else:
            fitting = [store.find(word)]
        found.update((entry.run_id, entry) for entry in fitting)
    return sorted(found.values(), key=lambda entry: entry.run_id)
