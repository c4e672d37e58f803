"""Where a run's time went: rows that do not overlap and, with the unexplained rest, add up to the wall time.

Pure. All times are seconds after the command's start, on labctl's clock; times of a node's clock are mapped
with the measured offsets.

The first step is split where TensorFlow's log tells when it had reached the other tasks. The warm steps are split
in the proportions of traced steps, which are extra ones: the rows `warm …` rest on them (their source is `trace`).
They are laid one after the other inside the phase, so their place within it means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.clock import Clocks
from labctl.analysis.model import StepSplit
from labctl.analysis.steps import Step
from labctl.node import wire
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.runs.record import RunRecord, Span

LABCTL = "labctl"
PHASE_EXIT = "exit"
PHASE_CONNECT = "connect_peers"
PHASE_GRAPH_SETUP = "graph_setup"
PHASE_FIRST_RUN = "first_run"
WARM = "warm"
_SHORTEST_S = 1e-6
_SEAM_S = 1e-3  # between two phases of the client: nobody's
_JUMP_S = 0.05  # wall and monotonic clock of one process may differ by this much over a run
# TensorFlow's log: the session looks for its workers; it has them and goes on to the graph.
_MAY_CONNECT = frozenset({wire.PHASE_DEVICES, wire.PHASE_STAGE, wire.PHASE_FIRST_STEP})
_REACHING, _REACHED = "Scanning workers for devices", "mlir_graph_optimization_pass"


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
        before: Rows of its join server's start that lie before the run: no part of the wall time. Their `start_s`
            is negative.
    """

    node: str
    rows: tuple[Span, ...]
    wall_s: float
    unexplained_s: float
    before: tuple[Span, ...] = ()


def build_ledger(own: Sequence[Span], client: Sequence[Span], wall_s: float) -> Ledger:
    """Return the ledger of a run.

    Where labctl waits while the client works, the time is the client's: labctl's rows are cut to what the
    client's leave free.

    Args:
        own: labctl's own phases.
        client: Phases of task 0.
        wall_s: Length of the run, seconds.
    """
    work = one_after_the_other(within(client, wall_s))
    rest = [
        piece
        for span in within(own, wall_s)
        for piece in outside(span, work)
        if not is_seam(piece, span)
    ]
    rows = tuple(sorted((*work, *one_after_the_other(rest)), key=lambda row: row.start_s))
    return Ledger(rows, wall_s, max(0.0, wall_s - math.fsum(row.duration_s for row in rows)))


def client_spans(record: RunRecord, events: Sequence[Event], clocks: Clocks) -> list[Span]:
    """Return the phases of task 0, from its events and from its unit's end, in any order of the events.

    What lies mostly outside of the run has stamps that cannot be believed and is left out.
    """
    mine = [event for event in events if event.source == "client" and event.task == 0]
    node, wall_s = record.remote.node, record.wall_s
    ended_s = record.unit_end.ended_at_s if record.unit_end is not None else None
    if wall_s is None:
        return process_spans(mine, node, clocks, ended_s)
    if ended_s is not None and clocks.since_origin_s(node, ended_s) > wall_s + _JUMP_S:
        ended_s = None
    spans = process_spans(mine, node, clocks, ended_s)
    return [span for span in spans if _mostly_within(span, wall_s)]


def process_spans(
    events: Sequence[Event], node: str, clocks: Clocks, ended_unix_s: float | None = None
) -> list[Span]:
    """Return the phases that a process reported.

    A phase without an end lasts until the last thing that is known of the process.

    Args:
        events: Its events, in any order.
        node: Where it ran.
        clocks: The run's clocks.
        ended_unix_s: When its unit ended, on the node's clock; None if unknown.
    """
    times = process_times(events)
    spans: list[Span] = []

    def add(phase: str, start_unix_s: float, end_unix_s: float, source: str = "client") -> None:
        start = clocks.since_origin_s(node, start_unix_s)
        spans.append(Span(phase, node, start, max(0.0, end_unix_s - start_unix_s), source))

    begun: dict[str, float] = {}
    for event, t_s in times:
        phase = event.text("phase")
        if event.kind == wire.PHASE_BEGIN:
            begun[phase] = t_s
        elif event.kind == wire.PHASE_END:
            duration_s = max(0.0, (event.number("duration_ns") or 0.0) / 1e9)
            begin_s = begun.pop(phase, None)
            start_s = t_s - duration_s
            add(phase, start_s if begin_s is None else max(begin_s, start_s), t_s)
    hello = next(((event, t_s) for event, t_s in times if event.kind == wire.HELLO), None)
    if hello is not None and all(each.phase != wire.PHASE_INTERPRETER for each in spans):
        started_ns = hello[0].whole("process_start_t")
        if started_ns is not None and abs(started_ns) < 2**63:
            add(wire.PHASE_INTERPRETER, started_ns / 1e9, hello[1])
    if times:
        last, last_s = times[-1]
        known_s = last_s if ended_unix_s is None else max(last_s, ended_unix_s)
        for phase, start_s in begun.items():
            add(phase, start_s, known_s)
        if last.kind == wire.BYE and ended_unix_s is not None:
            add(PHASE_EXIT, last_s, ended_unix_s, "systemd")
    return spans


def split_first_step(
    spans: Sequence[Span], data: RunData, clocks: Clocks, warm_median_ms: float | None
) -> list[Span]:
    """Return phases with the first contact of the tasks and the first step told apart.

    `connect_peers` lasts from the begin of the phase in which the session first works to TensorFlow's line that
    it goes on to the graph; `graph_setup` is what the first step takes above a median warm one: placement,
    optimisation, registration, loading of kernels; `first_run` is that warm step's worth.
    """
    reached_s = _reached_s(data, clocks)
    pieces: list[Span] = []
    for span in spans:
        if span.phase not in _MAY_CONNECT:
            pieces.append(span)
            continue
        start_s, end_s = span.start_s, span.start_s + span.duration_s
        if reached_s is not None and start_s < reached_s < end_s:
            pieces.append(
                replace(span, phase=PHASE_CONNECT, duration_s=reached_s - start_s, source="log")
            )
            start_s = reached_s
        whole = span.phase != wire.PHASE_FIRST_STEP
        if whole or warm_median_ms is None or reached_s is None:
            pieces.append(replace(span, start_s=start_s, duration_s=end_s - start_s))
            continue
        run_s = max(start_s, end_s - warm_median_ms / 1e3)
        pieces += [
            Span(PHASE_GRAPH_SETUP, span.node, start_s, run_s - start_s, "log"),
            Span(PHASE_FIRST_RUN, span.node, run_s, end_s - run_s, "steps"),
        ]
    return pieces


def split_warm_steps(
    spans: Sequence[Span], steps: Sequence[Step], split: StepSplit | None
) -> list[Span]:
    """Return phases with the warm steps told apart; what lies between the steps stays `warm_steps`."""
    steps_s = math.fsum(step.duration_ms for step in steps if step.kind == "warm") / 1e3
    pieces: list[Span] = []
    for span in spans:
        if span.phase != wire.PHASE_WARM_STEPS or split is None or steps_s <= 0:
            pieces.append(span)
            continue
        scale = min(steps_s, span.duration_s) / split.total_s
        at_s, end_s = span.start_s, span.start_s + span.duration_s
        for row in split.rows:
            to_s = min(end_s, at_s + row.seconds * scale)
            name = warm_name(row.what, row.task, row.source)
            pieces.append(Span(name, span.node, at_s, to_s - at_s, "trace"))
            at_s = to_s
        pieces.append(replace(span, start_s=at_s, duration_s=end_s - at_s))
    return pieces


def warm_name(what: str, task: int | None, source: int | None) -> str:
    """Return the phase of a part of the warm steps, e.g. `warm transfer task:0>task:1`."""
    if source is not None:
        return f"{WARM} {what} task:{source}>task:{task}"
    return f"{WARM} {what}" if task is None else f"{WARM} {what} task:{task}"


def within(spans: Iterable[Span], wall_s: float) -> list[Span]:
    """Return the parts of spans between 0 and the wall time."""
    kept = []
    for span in spans:
        start = max(0.0, span.start_s)
        end = min(wall_s, span.start_s + span.duration_s)
        if end - start >= _SHORTEST_S:
            kept.append(replace(span, start_s=start, duration_s=end - start))
    return kept


def is_seam(piece: Span, span: Span) -> bool:
    """Return whether a piece of a span is but a moment between two rows that others have within it."""
    end_s = piece.start_s + piece.duration_s
    between = piece.start_s > span.start_s and end_s < span.start_s + span.duration_s - _SHORTEST_S
    return between and piece.duration_s < _SEAM_S


def _mostly_within(span: Span, wall_s: float) -> bool:
    inside_s = min(wall_s, span.start_s + span.duration_s) - max(0.0, span.start_s)
    return inside_s >= span.duration_s / 2


def one_after_the_other(spans: Iterable[Span]) -> list[Span]:
    """Return spans by start, each cut to begin at the end of those before it."""
    kept: list[Span] = []
    free_from = 0.0
    for span in sorted(spans, key=lambda each: (each.start_s, -each.duration_s, each.phase)):
        end = span.start_s + span.duration_s
        start = max(span.start_s, free_from)
        if end - start >= _SHORTEST_S:
            kept.append(replace(span, start_s=start, duration_s=end - start))
            free_from = end
    return kept


def outside(span: Span, taken: Sequence[Span]) -> list[Span]:
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


def process_times(events: Sequence[Event]) -> list[tuple[Event, float]]:
    """Return events of one process with their times on the node's clock, in order.

    Where the node's clock jumped while the process ran, its monotonic clock tells the distances.
    """
    ordered = sorted(events, key=_order)
    if not ordered:
        return []
    first = min(ordered, key=lambda event: event.mono_ns)
    steady = all(event.mono_ns > 0 for event in ordered)
    jumped = steady and any(
        abs((event.t_ns - first.t_ns) - (event.mono_ns - first.mono_ns)) > _JUMP_S * 1e9
        for event in ordered
    )
    if not jumped:
        return [(event, event.t_s) for event in ordered]
    steadily = sorted(ordered, key=lambda event: (event.mono_ns, *_order(event)))
    return [(event, first.t_s + (event.mono_ns - first.mono_ns) / 1e9) for event in steadily]


def _order(event: Event) -> tuple[int, int, int, str]:
    """Return what events are ordered by; of one moment, an end comes before a begin and `bye` last."""
    rank = {wire.PHASE_END: 0, wire.PHASE_BEGIN: 1, wire.BYE: 3}.get(event.kind, 2)
    return event.t_ns, event.mono_ns, rank, event.text("phase")


def _reached_s(data: RunData, clocks: Clocks) -> float | None:
    """Return when the session had reached its workers, seconds after the origin; None if the log does not say."""
    node = data.record.remote.node
    reaching = False
    for line in data.log:
        if line.node != node or line.unix_s is None:
            continue
        if _REACHING in line.text:
            reaching = True
        elif reaching and _REACHED in line.text:
            return clocks.since_origin_s(node, line.unix_s)
    return None
