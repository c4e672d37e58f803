"""The Trace Event Format, which ui.perfetto.dev opens: rows of bars, arrows between them, and counters.

Events come one after the other as they are asked for, so that a long trace needs no room. Times are kept in
nanoseconds and written in microseconds, the format's unit.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

# Bars that overlap by less are one after the other: two stamps of the same moment that were rounded apart.
_ROUNDING_NS = 1_000
_FIRST_THREAD = 100_000  # beyond the processes' ids; unique in the whole file
_ROWS = 10_000  # of one track, for its place among the others


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a track.

    Attributes:
        name: What it says.
        start_ns: Nanoseconds after the trace's zero.
        end_ns: The same; not before `start_ns`.
        category: For searching and colouring.
        args: What a click shows.
    """

    name: str
    start_ns: int
    end_ns: int
    category: str
    args: dict[str, Any] = field(default_factory=dict)


class Track:
    """Bars with one heading, in as many rows as it takes for none to overlap.

    Args:
        process: Its process's id.
        name: Its heading.
        place: Its place among the process's tracks.
        threads: Gives each row its thread id.
    """

    def __init__(self, process: int, name: str, place: int, threads: Iterator[int]) -> None:
        self._process = process
        self._name = name
        self._place = place
        self._threads = threads
        self._rows: list[int] = []  # their thread ids
        self._ends: list[int] = []  # by row, of the last bar
        self._busy: list[tuple[int, int]] = []  # end and row
        self._free: list[int] = []
        self._latest_ns = -(2**63)

    def put(self, bars: list[Bar]) -> Iterator[Event]:
        """Yield the events of bars that belong in one row, in order; they must not overlap each other."""
        row = self._row(bars[0].start_ns)
        if row == len(self._rows):
            yield from self._new_row(bars[0].start_ns)
        for bar in bars:
            start_ns = max(bar.start_ns, self._ends[row])
            end_ns = max(bar.end_ns, start_ns)
            self._ends[row] = end_ns
            yield {
                "ph": "X",
                "pid": self._process,
                "tid": self._rows[row],
                "ts": start_ns / 1000,
                "dur": (end_ns - start_ns) / 1000,
                "name": bar.name,
                "cat": bar.category,
                "args": bar.args,
            }
        heapq.heappush(self._busy, (self._ends[row], row))

    def mark(self, at_ns: int, name: str, category: str, args: dict[str, Any]) -> Iterator[Event]:
        """Yield the events of a moment, shown in the first row."""
        if not self._rows:
            self._free.append(0)
            yield from self._new_row(-(2**63))
        yield {
            "ph": "i",
            "s": "t",
            "pid": self._process,
            "tid": self._rows[0],
            "ts": at_ns / 1000,
            "name": name,
            "cat": category,
            "args": args,
        }

    def _row(self, start_ns: int) -> int:
        """Return the first row that is free from then on, or the number of a new one."""
        limit_ns = start_ns + _ROUNDING_NS
        count = len(self._rows)
        if start_ns < self._latest_ns:  # out of order: any row may have gone on beyond it
            found = next((row for row in range(count) if self._ends[row] <= limit_ns), count)
            self._free = [row for row in self._free if row != found]
            self._busy = [entry for entry in self._busy if entry[1] != found]
            heapq.heapify(self._free)
            heapq.heapify(self._busy)
            return found
        self._latest_ns = start_ns
        while self._busy and self._busy[0][0] <= limit_ns:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        return heapq.heappop(self._free) if self._free else count

    def _new_row(self, free_from_ns: int) -> Iterator[Event]:
        row, thread = len(self._rows), next(self._threads)
        self._rows.append(thread)
        self._ends.append(free_from_ns)
        name = self._name if row == 0 else f"{self._name} ({row + 1})"
        place = self._place * _ROWS + row
        yield _metadata("thread_name", self._process, thread, {"name": name})
        yield _metadata("thread_sort_index", self._process, thread, {"sort_index": place})


class Process:
    """A group of tracks and counters.

    Args:
        number: Its id, at least 1.
        name: Its heading.
        place: Its place among the others, from the top.
        threads: Gives each row its thread id; shared by all processes.
    """

    def __init__(self, number: int, name: str, place: int, threads: Iterator[int]) -> None:
        self.number = number
        self._name = name
        self._place = place
        self._threads = threads
        self._tracks: dict[str, Track] = {}

    def heading(self) -> Iterator[Event]:
        """Yield the events that name it."""
        yield _metadata("process_name", self.number, 0, {"name": self._name})
        yield _metadata("process_sort_index", self.number, 0, {"sort_index": self._place})

    def track(self, name: str) -> Track:
        """Return the track of that name, a new one below the others if there is none yet."""
        if name not in self._tracks:
            self._tracks[name] = Track(self.number, name, len(self._tracks), self._threads)
        return self._tracks[name]

    def count(self, at_ns: int, name: str, figure: str, value: float) -> Event:
        """Return the event that a counter has a value from then on; Perfetto calls it by name and figure."""
        return {
            "ph": "C",
            "pid": self.number,
            "tid": 0,
            "ts": at_ns / 1000,
            "name": name,
            "args": {figure: value},
        }


def thread_numbers() -> Iterator[int]:
    """Return what gives the threads of one file their ids."""
    return itertools.count(_FIRST_THREAD)


def arrow(number: int, name: str, category: str, tail: Event, head: Event) -> Iterator[Event]:
    """Yield the two events of an arrow from the start of one bar's event to the end of another's.

    Args:
        number: Different for each arrow.
        name: What it says.
        category: For searching.
        tail: The bar where it begins.
        head: The bar where it ends; it must not end before the other begins.
    """
    common = {"cat": category, "name": name, "id": number}
    for phase, bar, at_us in (
        ("s", tail, tail["ts"]),
        ("f", head, max(tail["ts"], head["ts"], _before_end_us(head))),
    ):
        # `bp: e` binds it to the bar around that moment, on either side.
        place = {"pid": bar["pid"], "tid": bar["tid"], "ts": at_us, "bp": "e"}
        yield {"ph": phase, **common, **place}


def whole_ns(seconds: float) -> int:
    """Return seconds as nanoseconds."""
    return round(seconds * 1e9)


def document(head: dict[str, Any], events: Iterator[Event]) -> Iterator[bytes]:
    """Yield the file piece by piece.

    Args:
        head: What `otherData` says of the whole.
        events: In any order.
    """
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    yield f'{{"displayTimeUnit":"ms","otherData":{encode(head)},"traceEvents":[\n'.encode()
    before = b""
    for event in events:
        yield before + encode(event).encode("utf-8", "backslashreplace")
        before = b",\n"
    yield b"\n]}\n"


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold, None for one that it cannot."""
    return value if value is not None and math.isfinite(value) else None


def _before_end_us(bar: Event) -> float:
    end_ns: int = round(bar["ts"] * 1000) + round(bar["dur"] * 1000)
    return (end_ns - 1) / 1000


def _metadata(kind: str, process: int, thread: int, args: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": args}
