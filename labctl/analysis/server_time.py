"""When a join server worked and when it had nothing to do, as far as its `usage` events tell. Pure.

A server writes `usage` only while it works, with one reading before and one after; so silence of one that is known
to live is idleness. In the interval between two readings it worked as long as its threads ran or were ready to run,
no longer than the interval; the rest is idle, and where within the interval is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from labctl.analysis.clock import Clocks
from labctl.analysis.ledger import is_seam, outside, process_times, within
from labctl.node import wire
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.runs.record import Span

WAITING = "waiting"
WORKING = "working"
SOURCE = "usage"
_SILENT_S = 1.5 * wire.USAGE_PERIOD_S  # no reading for so long: it had nothing to do
_IDLE_SHARE = 0.02  # of a CPU: what reading the counters and answering pings costs
_ALL_SHARE = 0.9
_TICK_S = 0.02  # two of the kernel's, in which it counts CPU time
_TOUCH_S = 2e-6
# No task of another node takes part there.
_ALONE = frozenset({"one-host", "one-process"})


@dataclass(frozen=True, slots=True)
class _Interval:
    """What a process did between two moments.

    Attributes:
        start_s: The first, seconds after the origin.
        end_s: The second.
        cpu_s: CPU time that it used; None if unknown.
        wait_s: Time that its threads were ready without a CPU; None if unknown.
    """

    start_s: float
    end_s: float
    cpu_s: float | None = 0.0
    wait_s: float | None = 0.0

    @property
    def is_idle(self) -> bool:
        return self.cpu_s is not None and self.cpu_s <= _IDLE_SHARE * (self.end_s - self.start_s)


def server_time(
    data: RunData,
    node: str,
    processes: Sequence[Sequence[Event]],
    clocks: Clocks,
    rows: Sequence[Span],
    wall_s: float,
) -> list[Span]:
    """Return rows `working` and `waiting` of a node other than the client's, in what its other rows leave free.

    What is told by no reading, or lies where the server is not known to live, gets no row.

    Args:
        data: The run.
        node: The node.
        processes: Events of each process of its join server, in order.
        clocks: The run's clocks.
        rows: Its other rows, ordered and disjoint.
        wall_s: Length of the run, seconds.
    """
    if data.record.parameters.placement in _ALONE:
        return _pieces(WAITING, node, _Interval(0.0, wall_s), rows, "labctl")
    found = []
    lives, not_yet_s = _lives(data, node, processes, clocks, wall_s)
    if not_yet_s > 0:
        found += _pieces(WAITING, node, _Interval(0.0, not_yet_s), rows, "labctl")
    for process, from_s, to_s in lives:
        readings = [
            (clocks.since_origin_s(node, at_s), event)
            for event, at_s in process_times(process)
            if event.kind == wire.USAGE
        ]
        intervals = _intervals(readings, from_s, to_s)
        if intervals and to_s == wall_s and intervals[-1].end_s < to_s:
            intervals.append(_last_look(data, node, readings[-1], to_s))
        if not readings and _never_worked(data, node, rows, wall_s):
            intervals = [_Interval(from_s, to_s)]
        for each in intervals:
            if each.end_s > from_s and each.start_s < to_s:
                found += _told(each, node, rows)
    return _joined(_disjoint(within(found, wall_s)))


def _lives(
    data: RunData,
    node: str,
    processes: Sequence[Sequence[Event]],
    clocks: Clocks,
    wall_s: float,
) -> tuple[list[tuple[Sequence[Event], float, float]], float]:
    """Return each process with the time in which it is known to live, and how long none was there at first."""
    record = data.record
    before = next((each for each in record.servers_before if each.node == node), None)
    after = next((each for each in record.servers_after if each.node == node), None)
    at_end = after is not None and after.active == "active"
    same = before is not None and after is not None and before.invocation_id == after.invocation_id
    began_s = None
    if before is not None and before.started_at_s is not None:
        began_s = clocks.since_origin_s(node, before.started_at_s)
    lives = []
    for number, process in enumerate(processes or [()]):
        is_last = number == max(0, len(processes) - 1)
        times = [clocks.since_origin_s(node, at_s) for _, at_s in process_times(process)]
        if number == 0 and before is not None and before.active == "active":
            from_s = 0.0 if began_s is None else max(0.0, began_s)
        elif times:
            from_s = times[0]
        else:
            continue
        to_s = times[-1] if times else from_s
        if is_last and at_end and (same or len(processes) > 1 or before is None):
            to_s = wall_s
        if to_s > from_s:
            lives.append((process, from_s, min(to_s, wall_s)))
    return lives, max(0.0, min(began_s or 0.0, wall_s))


def _intervals(
    readings: Sequence[tuple[float, Event]], from_s: float, to_s: float
) -> list[_Interval]:
    """Return what the readings of one process tell, its silence before and after them included."""
    if not readings:
        return []
    told = [
        _Interval(start_s, end_s, _grown_s(one, two, "cpu_ns"), _grown_s(one, two, "wait_ns"))
        for (start_s, one), (end_s, two) in pairwise(readings)
        if end_s > start_s
    ]
    first_s, last_s = readings[0][0], readings[-1][0]
    if first_s - from_s > _SILENT_S:
        told.insert(0, _Interval(from_s, first_s))
    if told and told[-1].is_idle and to_s > last_s:
        told.append(_Interval(last_s, to_s))
    return told


def _last_look(data: RunData, node: str, last: tuple[float, Event], to_s: float) -> _Interval:
    """Return what a server that worked at its last reading did until the look at it after the run."""
    at_s, event = last
    after = next((each for each in data.record.servers_after if each.node == node), None)
    used_ns, waited_ns = event.number("cpu_ns"), event.number("wait_ns")
    if after is None or after.cpu_s is None or used_ns is None:
        return _Interval(at_s, to_s, None)
    cpu_s = after.cpu_s - used_ns / 1e9
    if cpu_s < -_TICK_S:
        return _Interval(at_s, to_s, None)
    wait_s = None
    if after.wait_s is not None and waited_ns is not None:
        wait_s = max(0.0, after.wait_s - waited_ns / 1e9)
    return _Interval(at_s, to_s, max(0.0, cpu_s), wait_s)


def _told(interval: _Interval, node: str, rows: Sequence[Span]) -> list[Span]:
    """Return an interval's rows in what others leave free of it; their work was done in those first."""
    if interval.cpu_s is None:
        return []
    free = _pieces(WAITING, node, interval, rows, SOURCE)
    if interval.is_idle:
        return free
    length_s = interval.end_s - interval.start_s
    free_s = math.fsum(piece.duration_s for piece in free)
    active_s = interval.cpu_s + (interval.wait_s or 0.0)
    left_s = length_s if active_s >= _ALL_SHARE * length_s else active_s - (length_s - free_s)
    told = []
    for piece in free:
        works_s = max(0.0, min(piece.duration_s, left_s))
        left_s -= works_s
        told.append(replace(piece, phase=WORKING, duration_s=works_s))
        if interval.wait_s is not None:
            rest_s = piece.duration_s - works_s
            told.append(replace(piece, start_s=piece.start_s + works_s, duration_s=rest_s))
    return told


def _never_worked(data: RunData, node: str, rows: Sequence[Span], wall_s: float) -> bool:
    """Return whether the two looks at a server that wrote no reading say that it did nothing beside its rows."""
    used_s = [
        state.cpu_s
        for states in (data.record.servers_before, data.record.servers_after)
        for state in states
        if state.node == node and state.cpu_s is not None
    ]
    if len(used_s) != 2:
        return False
    known_s = math.fsum(row.duration_s for row in rows)
    return 0 <= used_s[1] - used_s[0] <= known_s + _IDLE_SHARE * wall_s


def _pieces(
    phase: str, node: str, interval: _Interval, rows: Sequence[Span], source: str
) -> list[Span]:
    length_s = interval.end_s - interval.start_s
    whole = Span(phase, node, interval.start_s, length_s, source)
    return [piece for piece in outside(whole, rows) if not is_seam(piece, whole)]


def _disjoint(spans: Sequence[Span]) -> list[Span]:
    """Return spans by start, what overlaps an earlier one cut off."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start_s, each.duration_s, each.phase)):
        kept += outside(span, kept[-1:])
    return kept


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans with those that follow each other and say the same in one."""
    kept: list[Span] = []
    for span in spans:
        last = kept[-1] if kept else None
        end_s = 0.0 if last is None else last.start_s + last.duration_s
        same = last is not None and (last.phase, last.source) == (span.phase, span.source)
        if last is not None and same and abs(span.start_s - end_s) <= _TOUCH_S:
            length_s = span.start_s + span.duration_s - last.start_s
            kept[-1] = replace(last, duration_s=length_s)
        else:
            kept.append(span)
    return kept


def _grown_s(first: Event, last: Event, key: str) -> float | None:
    """Return by how much a counter grew, seconds; None if it is missing or went back."""
    begin, end = first.number(key), last.number(key)
    return None if begin is None or end is None or end < begin else (end - begin) / 1e9
