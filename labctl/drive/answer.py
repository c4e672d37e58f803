"""`labctl answer`: run the question's experiment in its variants, find such a round again, have it analysed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from labctl.analysis.answer import Answer, answer_of
from labctl.analysis.evidence import (
    CHAIN,
    LISTING,
    LISTING_FRESH,
    LISTING_TWO,
    RECURSIVE,
    SQUARING,
    STAGED,
    SWEEP,
)
from labctl.analysis.explain import explain
from labctl.drive.batch import VARIANT_TAG, Variant, run_batch
from labctl.drive.plan import RunOptions
from labctl.errors import RecordError
from labctl.lab.home import Home
from labctl.lab.model import LOOPBACK
from labctl.playbook import load_lab
from labctl.runs.data import load
from labctl.runs.observer import Observer
from labctl.runs.store import LAST, Entry, RunStore

TAG = "answer"


@dataclass(frozen=True, slots=True)
class Batch:
    """Variants that are interleaved with each other.

    Attributes:
        variants: What is run.
        repeats: How often each.
    """

    variants: tuple[Variant, ...]
    repeats: int


def batches(*, quick: bool, fresh: bool = True) -> tuple[Batch, ...]:
    """Return all runs of a round.

    Args:
        quick: Fewer repeats and variants.
        fresh: The lab has join servers that can be restarted.
    """
    listing = RunOptions(size=1000, power=5, algorithm="listing", feed="fed", inter_op="default")
    compared = (
        Variant(LISTING, listing),
        Variant(LISTING_TWO, _matpow("listing")),
        Variant(CHAIN, _matpow("chain")),
        Variant(RECURSIVE, _matpow("recursive")),
        Variant(STAGED, _matpow("chain", feed="staged")),
    )
    squaring = Variant(SQUARING, _matpow("squaring"))
    half = Variant(SWEEP[500], _matpow("chain", size=500))
    if quick:
        return Batch((compared[0], *compared[2:]), 3), Batch((half, squaring), 1)
    once = [Variant(SWEEP[2000], _matpow("chain", size=2000, repeat=5))]
    if fresh:
        once.insert(0, Variant(LISTING_FRESH, RunOptions(
            size=1000, power=5, algorithm="listing", feed="fed", inter_op="default", fresh=True,
        )))  # fmt: skip
    quarter = Variant(SWEEP[250], _matpow("chain", size=250))
    return Batch((*compared, squaring), 3), Batch((quarter, half), 2), Batch(tuple(once), 1)


def run_round(home: Home, lab_name: str, *, quick: bool, unix_s: float, observer: Observer) -> str:
    """Run a round and return its tag. What a failed run cut short is run once more.

    Args:
        home: Where the lab is.
        lab_name: Its name.
        quick: See `batches`.
        unix_s: Now, Unix time.
        observer: Is told of each run's begin.

    Raises:
        LabctlError: A run could not be started, or was cancelled; the records so far are kept.
    """
    lab = load_lab(home, lab_name)
    tag = datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    observer.note(f"round {tag}; what it has run so far: labctl answer --from {tag}")

    def run_all(variants: Sequence[Variant], repeats: int) -> dict[str, list[Entry]]:
        return run_batch(home, lab_name, variants, repeats, {TAG: tag}, observer=observer, lab=lab)

    for batch in batches(quick=quick, fresh=lab.provider != LOOPBACK):
        done = run_all(batch.variants, batch.repeats)
        good = {label: sum(each.state == "ok" for each in runs) for label, runs in done.items()}
        short = [each for each in batch.variants if good[each.label] < batch.repeats]
        if short:
            observer.note(f"once more: {', '.join(each.label for each in short)}")
            run_all(short, batch.repeats - min(good[each.label] for each in short))
    return tag


def find_round(store: RunStore, tag: str) -> tuple[str, dict[str, list[Entry]]]:
    """Return the tag and the runs of a round by label, each in order of time.

    Args:
        store: The lab's runs.
        tag: The round's tag, a unique beginning of it, or `last`.

    Raises:
        RecordError: There is no such round, or several fit.
    """
    rounds: dict[str, list[Entry]] = {}
    for entry in store.entries():
        if entry.record is not None and TAG in entry.record.tags and not entry.record.open:
            rounds.setdefault(entry.record.tags[TAG], []).append(entry)
    fitting = [max(rounds)] if rounds and tag == LAST else [r for r in rounds if r.startswith(tag)]
    if tag in rounds:
        fitting = [tag]
    if len(fitting) != 1:
        known = ", ".join(sorted(rounds)[-5:]) or "none yet"
        raise RecordError(
            f"{tag!r} is no round of runs in {store.root}"
            if not fitting
            else f"{tag!r} fits {len(fitting)} rounds",
            expected=f"the tag of one of them: {known}",
            do="labctl answer runs one",
        )
    by_label: dict[str, list[Entry]] = {}
    for entry in rounds[fitting[0]]:
        by_label.setdefault(entry.readable().tags.get(VARIANT_TAG, ""), []).append(entry)
    return fitting[0], by_label


def read_answer(tag: str, by_label: Mapping[str, Sequence[Entry]]) -> Answer:
    """Return what a round's runs say.

    Args:
        tag: The round's tag.
        by_label: Its runs; at least one.
    """
    return answer_of(
        tag,
        {
            label: [explain(load(entry.path, entry.readable())) for entry in entries]
            for label, entries in by_label.items()
        },
    )


def _matpow(
    algorithm: str, *, size: int = 1000, feed: str = "fed", repeat: int | None = None
) -> RunOptions:
    return RunOptions(
        size=size, power=5, algorithm=algorithm, feed=feed, inter_op="2", repeat=repeat
    )
