"""Where a run's time went: rows that do not overlap and, with the unexplained rest, add up to the wall time.

Pure. All times are seconds after the command's start, on labctl's clock; times of a node's clock are mapped
with the measured offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from labctl.node import wire
from labctl.runs.events import Event
from labctl.runs.record import RunRecord, Span

LABCTL = "labctl"
PHASE_EXIT = "exit"
_SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Ledger:
    """The rows and what they leave over.

    Attributes:
        rows: Ordered by start; no two overlap, whatever their nodes.
        wall_s: From the command's start to its end, seconds.
        unexplained_s: `wall_s` minus the sum of the rows, seconds.
    """

    rows: tuple[Span, ...]
    wall_s: float
    unexplained_s: float


@dataclass(frozen=True, slots=True)
class NodeLedger:
    """What one node did over the run.

    Attributes:
        node: Node name, or `labctl`.
        rows: Ordered by start, none overlap; waiting is a row of its own.
        wall_s: The run's wall time, seconds.
        unexplained_s: `wall_s` minus the sum of the rows, seconds.
    """

    node: str
    rows: tuple[Span, ...]
    wall_s: float
    unexplained_s: float


def build_ledger(own: Sequence[Span], client: Sequence[Span], wall_s: float) -> Ledger:
    """Return the ledger of a run.

    Where labctl waits while the client works, the time is the client's: labctl's rows are cut to what the
    client's leave free.

    Args:
        own: labctl's own phases.
        client: Phases of task 0.
        wall_s: Length of the run, seconds.
    """
    work = _one_after_the_other(_within(client, wall_s))
    rest = [piece for span in _within(own, wall_s) for piece in _outside(span, work)]
    rows = tuple(sorted((*work, *_one_after_the_other(rest)), key=lambda row: row.start_s))
    return Ledger(rows, wall_s, max(0.0, wall_s - sum(row.duration_s for row in rows)))


def client_spans(record: RunRecord, events: Sequence[Event]) -> list[Span]:
    """Return the phases of task 0, from its events and from its unit's end."""
    mine = [event for event in events if event.source == "client" and event.task == 0]
    node = record.remote.node

    def span(phase: str, start_unix_s: float, end_unix_s: float, source: str = "client") -> Span:
        start = record.since_origin_s(node, start_unix_s)
        return Span(phase, node, start, end_unix_s - start_unix_s, source)

    spans: list[Span] = []
    begun: dict[str, float] = {}
    for event in mine:
        phase = event.text("phase")
        if event.kind == wire.PHASE_BEGIN:
            begun[phase] = event.t_s
        elif event.kind == wire.PHASE_END:
            begun.pop(phase, None)
            duration_s = (event.number("duration_ns") or 0.0) / 1e9
            spans.append(span(phase, event.t_s - duration_s, event.t_s))
    hello = next((event for event in mine if event.kind == wire.HELLO), None)
    if hello is not None and all(each.phase != wire.PHASE_INTERPRETER for each in spans):
        started_ns = hello.whole("process_start_t")
        if started_ns is not None:
            spans.append(span(wire.PHASE_INTERPRETER, started_ns / 1e9, hello.t_s))
    ended_s = record.unit_end.ended_at_s if record.unit_end is not None else None
    if mine:
        last_s = max(mine[-1].t_s, ended_s or 0.0)
        spans.extend(span(phase, start_s, last_s) for phase, start_s in begun.items())
        if mine[-1].kind == wire.BYE and ended_s is not None:
            spans.append(span(PHASE_EXIT, mine[-1].t_s, ended_s, "systemd"))
    return spans


def run_ledger(record: RunRecord, events: Sequence[Event]) -> Ledger:
    """Return the ledger of a record; empty and without length while the run has no end yet."""
    return build_ledger(record.spans, client_spans(record, events), record.wall_s or 0.0)


def _within(spans: Iterable[Span], wall_s: float) -> list[Span]:
    """Return the parts of spans between 0 and the wall time."""
    kept = []
    for span in spans:
        start = max(0.0, span.start_s)
        end = min(wall_s, span.start_s + span.duration_s)
        if end - start >= _SHORTEST_S:
            kept.append(replace(span, start_s=start, duration_s=end - start))
    return kept


def _one_after_the_other(spans: Iterable[Span]) -> list[Span]:
    """Return spans by start, each cut to begin at the end of those before it."""
    kept: list[Span] = []
    free_from = 0.0
    for span in sorted(spans, key=lambda each: (each.start_s, -each.duration_s)):
        end = span.start_s + span.duration_s
        start = max(span.start_s, free_from)
        if end - start >= _SHORTEST_S:
            kept.append(replace(span, start_s=start, duration_s=end - start))
            free_from = end
    return kept


def _outside(span: Span, taken: Sequence[Span]) -> list[Span]:
    """Return the pieces of a span that no span of `taken` covers; `taken` is ordered and disjoint."""
    pieces = []
    start, end = span.start_s, span.start_s + span.duration_s
    for each in taken:
        if each.start_s >= end:
            break
        if each.start_s - start >= _SHORTEST_S:
            pieces.append(replace(span, start_s=start, duration_s=each.start_s - start))
        start = max(start, each.start_s + each.duration_s)
    if end - start >= _SHORTEST_S:
        pieces.append(replace(span, start_s=start, duration_s=end - start))
    return pieces
