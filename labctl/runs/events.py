"""Reading `events.jsonl`: each line becomes an Event; a line that cannot be one is counted, not fatal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from labctl.runs.plain import MIB, open_plain
from labctl.runs.record import EVENTS_FILE

_COMMON = frozenset({"event", "t", "mono", "source", "task"})
_MOST_NS = 2**63
_MOST_NUMBER = 1e100  # squares, cubes and products with units stay finite
_MOST_DURATION_NS = 10 * 366 * 86400 * 10**9
_MOST_BYTES = 512 * MIB
_LINE_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Event:
    """One time-stamped fact from a node.

    Attributes:
        kind: One of the kinds of `labctl.node.wire`.
        t_ns: Unix time on the node's clock, nanoseconds.
        mono_ns: The process's monotonic clock, nanoseconds.
        source: `client` or `join-server`.
        task: Task index.
        data: What else the line holds; read it with the methods.
    """

    kind: str
    t_ns: int
    mono_ns: int
    source: str
    task: int
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def t_s(self) -> float:
        """Unix time on the node's clock, seconds."""
        return self.t_ns / 1e9

    def text(self, key: str) -> str:
        """Return a text, "" if it is missing or none."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> float | None:
        """Return a number that can be reckoned with, None if it is missing, none or absurd."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        most = _MOST_DURATION_NS if key == "duration_ns" else _MOST_NUMBER
        return value if abs(value) <= most else None

    def whole(self, key: str) -> int | None:
        """Return a whole number of less than 64 bits, None if it is missing, none or larger."""
        value = self.data.get(key)
        most = _MOST_DURATION_NS if key == "duration_ns" else _MOST_NS - 1
        return value if _is_whole(value) and abs(value) <= most else None

    def flag(self, key: str) -> bool | None:
        """Return a truth value, None if it is missing or none."""
        value = self.data.get(key)
        return value if isinstance(value, bool) else None


def parse_line(line: bytes | str) -> Event | None:
    """Return the event of one line, None if the line is none."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    kind, t, mono = data.get("event"), data.get("t"), data.get("mono")
    source, task = data.get("source"), data.get("task")
    if not (isinstance(kind, str) and isinstance(source, str)):
        return None
    if not (_is_whole(t) and _is_whole(mono) and _is_whole(task)):
        return None
    if max(abs(t), abs(mono), abs(task)) >= _MOST_NS:
        return None
    rest = {key: value for key, value in data.items() if key not in _COMMON}
    return Event(kind, t, mono, source, task, rest)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def parse(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of lines, leaving out those that are none."""
    for line in lines:
        event = parse_line(line)
        if event is not None:
            yield event


def read_events(folder: Path) -> list[Event]:
    """Return the events of a record, [] if it has none."""
    return list(read_file(folder, EVENTS_FILE).events)


@dataclass(frozen=True, slots=True)
class EventFile:
    """A file of events.

    Attributes:
        events: Those that could be read, in order.
        damaged: Whole lines that are no events.
        truncated: The last line has no end and is no event.
    """

    events: tuple[Event, ...] = ()
    damaged: int = 0
    truncated: bool = False


def read_file(folder: Path, name: str) -> EventFile:
    """Return the events of a file below a directory; a file that is not there has none.

    Raises:
        OSError: It is there and cannot be read, or is no plain file.
    """
    events: list[Event] = []
    damaged, truncated = 0, False
    try:
        with open_plain(folder, name, most_bytes=_MOST_BYTES) as file:
            while line := file.readline(_LINE_BYTES):
                event = parse_line(line)
                if event is not None:
                    events.append(event)
                elif not line.endswith(b"\n"):
                    truncated = True
                elif line.strip():
                    damaged += 1
    except FileNotFoundError:
        return EventFile()
    return EventFile(tuple(events), damaged, truncated)


class EventStream:
    """Turns bytes that arrive in pieces into events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return list(parse(lines))
