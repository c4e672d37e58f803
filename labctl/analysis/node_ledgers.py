"""What each node did over a run, waiting included. Pure; times as in `ledger`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from labctl.analysis.clock import Clocks
from labctl.analysis.cold_start import split_context
from labctl.analysis.ledger import (
    LABCTL,
    WARM,
    NodeLedger,
    one_after_the_other,
    outside,
    process_spans,
    within,
)
from labctl.analysis.model import StepTrace
from labctl.analysis.server_time import WAITING, server_time
from labctl.analysis.split import task_parts
from labctl.analysis.trace import task_nodes
from labctl.node import wire
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.runs.record import Span

SERVER = "join_server"
_SAME_S = 0.05
# Phases of the client in which the other tasks work for it.
_SHARED = frozenset(
    {
        wire.PHASE_STAGE,
        wire.PHASE_FIRST_STEP,
        wire.PHASE_WARM_STEPS,
        wire.PHASE_TRACED_STEP,
        wire.PHASE_PROBES,
    }
)


def node_ledgers(
    data: RunData,
    phases: Sequence[Span],
    finer: Sequence[Span],
    clocks: Clocks,
    trace: StepTrace | None,
) -> tuple[NodeLedger, ...]:
    """Return one ledger of labctl and of each node; none while the run has no end yet.

    In the warm steps a task does what the traced step says of it, in its proportions. In the client's other phases
    that all tasks share, and without a trace, the row of another node is the client's phase. In the rest of the
    time it works or waits as far as its join server's `usage` events tell; what they do not tell is unexplained.

    Args:
        data: The run.
        phases: The client's phases.
        finer: The same with the first step split.
        clocks: The run's clocks.
        trace: The traced step that stands for the others.
    """
    record = data.record
    wall_s = record.wall_s
    if wall_s is None:
        return ()
    client = record.remote.node
    work = one_after_the_other(within(phases, wall_s))
    own = one_after_the_other(within(record.spans, wall_s))
    ledgers = [_ledger(LABCTL, own, _idle_of_labctl(work), wall_s)]
    tasks = {node: task for task, node in sorted(task_nodes(record).items(), reverse=True)}
    for name in dict.fromkeys([client, *(node.name for node in record.nodes)]):
        started = _server_spans(data, name, clocks)
        mine: Iterable[Span] = ()
        if name == client:
            mine = finer
        elif name in tasks:
            mine = (replace(span, node=name) for span in phases if span.phase in _SHARED)
        shares = [piece for span in mine for piece in _shares(span, trace, tasks.get(name), client)]
        served = one_after_the_other(within(started, wall_s))
        rest = [piece for span in within(shares, wall_s) for piece in outside(span, served)]
        rows = sorted([*served, *one_after_the_other(rest)], key=lambda row: row.start_s)
        if name == client:
            ledger = _ledger(name, rows, _idle(rows, wall_s), wall_s)
        else:
            processes = _processes(data.server_events.get(name, ()))
            told = server_time(data, name, processes, clocks, rows, wall_s)
            ledger = _ledger(name, sorted([*rows, *told], key=lambda row: row.start_s), (), wall_s)
        before = tuple(span for span in started if span.start_s + span.duration_s <= 0)
        ledgers.append(replace(ledger, before=before))
    return tuple(ledgers)


def _ledger(node: str, rows: Sequence[Span], idle: Iterable[Span], wall_s: float) -> NodeLedger:
    """Return a ledger whose node waits in what its rows leave free of `idle`."""
    waiting = [
        Span(WAITING, node, piece.start_s, piece.duration_s, "labctl")
        for span in idle
        for piece in outside(span, rows)
    ]
    filled = tuple(sorted([*rows, *waiting], key=lambda row: row.start_s))
    rest_s = max(0.0, wall_s - math.fsum(row.duration_s for row in filled))
    return NodeLedger(node, filled, wall_s, rest_s)


def _idle_of_labctl(work: Sequence[Span]) -> list[Span]:
    """Return when labctl may be said to wait: from the client's start to its end."""
    if not work:
        return []
    end_s = work[-1].start_s + work[-1].duration_s
    return [Span(WAITING, "", work[0].start_s, end_s - work[0].start_s, "labctl")]


def _idle(rows: Sequence[Span], wall_s: float) -> list[Span]:
    """Return when the client's node may be said to wait: before and after its client."""
    if not rows:
        return [Span(WAITING, "", 0.0, wall_s, "labctl")]
    end_s = rows[-1].start_s + rows[-1].duration_s
    return [
        Span(WAITING, "", 0.0, rows[0].start_s, "labctl"),
        Span(WAITING, "", end_s, wall_s - end_s, "labctl"),
    ]


def _shares(span: Span, trace: StepTrace | None, task: int | None, client: str) -> list[Span]:
    """Return the warm steps in the parts of one task; other phases as they are."""
    traced = trace is not None and any(each.task == task for each in trace.tasks)
    if span.phase != wire.PHASE_WARM_STEPS or trace is None or task is None or not traced:
        return [span]
    parts = task_parts(trace, task, client=span.node == client)
    at_s, pieces = span.start_s, []
    for what, seconds in parts.items():
        length_s = span.duration_s * seconds / trace.duration_s
        if length_s > 0:
            pieces.append(Span(f"{WARM} {what}", span.node, at_s, length_s, "trace"))
            at_s += length_s
    return pieces


def _server_spans(data: RunData, node: str, clocks: Clocks) -> list[Span]:
    """Return the phases of a join server's starts: what it said when asked before the run, and its events since."""
    spans = [
        replace(span, node=node, start_s=clocks.since_origin_s(node, span.start_s))
        for server in data.record.servers_before
        if server.node == node
        for span in server.phases
    ]
    for process in _processes(data.server_events.get(node, ())):
        spans += [
            span
            for span in process_spans(process, node, clocks)
            if all(not _same_phase(span, known) for known in spans)
        ]
    return [
        replace(span, phase=f"{SERVER} {span.phase}", source="join-server")
        for span in sorted(
            split_context(spans, data, clocks, node), key=lambda span: (span.start_s, span.phase)
        )
        if span.duration_s > 0
    ]


def _same_phase(span: Span, known: Span) -> bool:
    return span.phase == known.phase and abs(span.start_s - known.start_s) < _SAME_S


def _processes(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events of each process by itself: a server's first is its `hello`."""
    processes: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event.t_ns):
        if event.kind == wire.HELLO or not processes:
            processes.append([])
        processes[-1].append(event)
    return processes
