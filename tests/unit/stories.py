"""Runs made up for the rules of causes: what a record holds, without the parts that no test speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labctl.analysis.clock import Clocks
from labctl.analysis.cold_start import split_context
from labctl.analysis.explained import Explained
from labctl.analysis.ledger import build_ledger, client_spans
from labctl.analysis.model import ClockLine, SplitRow, StepSplit, StepTrace, TaskTrace
from labctl.analysis.steps import step_stats, steps_of
from labctl.node import wire
from labctl.runs.baseline import Baseline, ComputeBaseline
from labctl.runs.data import LogLine, RunData
from labctl.runs.events import Event
from labctl.runs.record import (
    NodeFacts,
    Origin,
    Outcome,
    Parameters,
    RemoteRun,
    RunRecord,
    ServerState,
    UnitEnded,
)

START_S = 1_796_000_000.0  # of the command, Unix time
SPEC = "5" * 64
TF0 = NodeFacts("tf0", 0, "10.0.0.2:2222", {"tensorflow": "2.21.0"}, 1, "EPYC", "boot-0")
TF1 = NodeFacts("tf1", 1, "10.0.0.3:2222", {"tensorflow": "2.21.0"}, 1, "EPYC", "boot-1")
SERVER = ServerState(
    "tf1", "active", "a" * 32, START_S - 60, "boot-1", spec_sha256=SPEC, process_state="S"
)
MATPOW = Parameters(
    "matpow",
    trace=True,
    fresh=False,
    timeout_s=600.0,
    device="cpu",
    size=1000,
    power=5,
    algorithm="chain",
    feed="fed",
    placement="lab",
    api="session",
    inter_op=2,
    repeat=3,
)


def event(
    kind: str, at_s: float, /, *, source: str = "client", task: int = 0, **data: Any
) -> Event:
    """Return an event some seconds after the command's start; its process's clocks agree."""
    at_ns = round(at_s * 1e9)
    return Event(kind, round(START_S * 1e9) + at_ns, at_ns, source, task, data)


def phase(name: str, begin_s: float, end_s: float | None, *, failed: bool = False) -> list[Event]:
    """Return the events of a phase; one without an end is still open."""
    events = [event(wire.PHASE_BEGIN, begin_s, phase=name)]
    if end_s is not None:
        more: dict[str, Any] = {"failed": True} if failed else {}
        took_ns = round((end_s - begin_s) * 1e9)
        events.append(event(wire.PHASE_END, end_s, phase=name, duration_ns=took_ns, **more))
    return events


def peer(at_s: float, state: str, detail: str = "", address: str = TF1.tf_address) -> Event:
    return event(wire.PEER, at_s, peer_task=1, address=address, state=state, detail=detail)


def steps(begin_s: float, count: int, each_s: float = 0.1) -> list[Event]:
    """Return the cold step and warm ones after it, each as long."""
    return [
        event(
            wire.STEP,
            begin_s + (index + 1) * each_s,
            index=index,
            kind="warm" if index else "cold",
            total=count,
            duration_ns=round(each_s * 1e9),
        )
        for index in range(count)
    ]


HELLO = [
    event(wire.HELLO, 3.0, tensorflow="2.21.0", environment={}),
    *phase(wire.PHASE_PEERS, 3.1, None),
]
# The whole of a healthy run: ten steps of 100 ms each.
HEALTHY = [
    *HELLO,
    peer(3.105, "answers"),
    event(wire.PHASE_END, 3.11, phase=wire.PHASE_PEERS, duration_ns=10_000_000),
    *phase(wire.PHASE_IMPORT_TENSORFLOW, 3.2, 8.2),
    *phase(wire.PHASE_SERVER, 8.2, 8.22),
    event(wire.PHASE_BEGIN, 8.3, phase=wire.PHASE_FIRST_STEP),
    *steps(8.3, 1),
    event(wire.PHASE_END, 8.4, phase=wire.PHASE_FIRST_STEP, duration_ns=100_000_000),
    event(wire.PHASE_BEGIN, 8.4, phase=wire.PHASE_WARM_STEPS),
    *steps(8.3, 11)[1:],
    event(wire.PHASE_END, 9.4, phase=wire.PHASE_WARM_STEPS, duration_ns=1_000_000_000),
    event(wire.RESULT, 9.6, ok=True, products=8),
    event(wire.BYE, 9.7, exit=0),
]
# As far as a run comes whose session never reaches the other task.
AT_CONTACT = [*HEALTHY[:8], event(wire.PHASE_BEGIN, 8.3, phase=wire.PHASE_FIRST_STEP)]


def run(
    events: Iterable[Event] = HEALTHY,
    *,
    outcome: Outcome = "ok",
    ended_at_s: float | None = 9.8,
    parameters: Parameters = MATPOW,
    nodes: tuple[NodeFacts, ...] = (TF0, TF1),
    before: tuple[ServerState, ...] = (SERVER,),
    after: tuple[ServerState, ...] | None = (SERVER,),
    log: Sequence[str] = (),
    server_log: Sequence[str] = (),
    server_events: Sequence[Event] = (),
    gflops: dict[int, float] | None = None,
    peaks: dict[str, float] | None = None,
    computes_s: dict[int, float] | None = None,
    clocks: tuple[ClockLine, ...] = (),
    **record: Any,
) -> Explained:
    """Return a run.

    Args:
        events: The client's.
        outcome: As in the record.
        ended_at_s: End of the client's unit, seconds after the command's start; None if it has none.
        parameters: As in the record.
        nodes: As in the record.
        before: Join servers at the start.
        after: Join servers at the end, None if nobody looked.
        log: The client's stderr.
        server_log: Journal of tf1.
        server_events: Of tf1.
        gflops: Speed of the products in the traced step, by task.
        peaks: Baseline of the nodes, GFLOP/s.
        computes_s: Time that each task computes on the critical path of a warm step.
        clocks: Of the nodes.
        record: More fields of the record.
    """
    ended = (
        None if ended_at_s is None else UnitEnded("success", "exited", "0", START_S + ended_at_s)
    )
    whole = RunRecord(
        run_id="20261130T000000Z-abcdef",
        lab="demo",
        provider="rehearsal",
        outcome=outcome,
        parameters=parameters,
        tasks=len(nodes),
        origin=Origin(START_S, 0.0, "boot"),
        remote=RemoteRun("tf0", "/run", "labctl-run.service"),
        nodes=nodes,
        labctl_version="0",
        payload_sha256="0" * 64,
        spec_sha256=SPEC,
        servers_before=before,
        servers_after=() if after is None else after,
        unit_end=ended,
        wall_s=12.0,
        baseline=None if peaks is None else _baseline(peaks),
    )
    events = tuple(events)
    lines = [LogLine("tf0", None, text) for text in log]
    lines += [LogLine("tf1", None, text) for text in server_log]
    data = RunData(
        Path("/records/run"),
        replace(whole, **record),
        events,
        {"tf1": tuple(server_events)} if server_events else {},
        tuple(lines),
    )
    of_run = Clocks.of(data.record)
    spans = split_context(
        client_spans(data.record, events, of_run), data, of_run, data.record.remote.node
    )
    taken = tuple(steps_of(events))
    trace = None if gflops is None else _trace(gflops)
    rows = tuple(SplitRow("compute", task, None, each) for task, each in (computes_s or {}).items())
    return Explained(
        data=data,
        clocks=clocks,
        steps=taken,
        stats=step_stats(taken),
        ledger=build_ledger((), spans, data.record.wall_s or 0.0),
        nodes=(),
        traces=() if trace is None else (trace,),
        trace=trace,
        split=None if computes_s is None else StepSplit(rows, 0.1, 0.1, 1.0),
        tracing=None,
        problems=(),
    )


def _baseline(peaks: dict[str, float]) -> Baseline:
    found = [ComputeBaseline(node, 1000, peak, 1, "blas", START_S) for node, peak in peaks.items()]
    return Baseline({}, compute=tuple(found))


def _trace(gflops: dict[int, float]) -> StepTrace:
    tasks = tuple(
        TaskTrace(task, f"tf{task}", 0.0, 0.1, 0.1, 0.1, {"CPU:0": 4}, speed)
        for task, speed in gflops.items()
    )
    return StepTrace(12, 0.1, (), (), tasks, 0.2, 0.1, 0.0, 0.0)


def usage(at_s: float, cpu_s: float, wait_s: float, *, task: int = 0, **figures_s: float) -> Event:
    """Return a `usage` event; `busy`, `idle` and `steal` are the node's, all in seconds."""
    node = {f"node_{name}_ns": round(each * 1e9) for name, each in figures_s.items()}
    return event(
        wire.USAGE,
        at_s,
        source="join-server" if task else "client",
        task=task,
        cpu_ns=round(cpu_s * 1e9),
        wait_ns=round(wait_s * 1e9),
        **node,
    )
