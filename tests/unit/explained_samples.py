"""Runs made up with whole traced steps: a healthy fed one, a starved one, one that hung. For rules and views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labctl.analysis.explained import Explained
from labctl.analysis.model import Edge, OpRun, StepTrace, TaskTrace
from labctl.analysis.split import split_step
from labctl.node import wire
from labctl.runs.events import Event
from labctl.runs.record import Parameters
from tests.unit.stories import AT_CONTACT, MATPOW, event, phase, run

FED = "_recv_input_1_0"


def traced(
    *,
    answers_at_once: bool = True,
    feed: bool = True,
    products: int = 4,
    product_s: float = 8e-3,
    wire_s: float = 3e-3,
    dispatch_s: float = 1e-3,
    fetch_s: float = 1e-3,
    size_bytes: int = 4_000_000,
    device: str = "CPU:0",
    tasks: int = 2,
    index: int = 11,
    share: float | None = None,
) -> StepTrace:
    """Return a step in which task 0 feeds the others and adds their chains of products up.

    Args:
        answers_at_once: The sender answers for a fed input at once, else only when its own products have ended.
        feed: Inputs are fed; else each task has its own.
        products: Of each task.
        product_s: Seconds of each.
        wire_s: Seconds of each transfer.
        dispatch_s: Before the first op.
        fetch_s: After the last.
        size_bytes: Of each tensor.
        device: Of the products.
        tasks: How many.
        index: Of the step.
        share: Part of the network baseline that each transfer reached.
    """
    ops: list[OpRun] = []
    edges: list[Edge] = []
    own_end_s = dispatch_s + products * product_s
    ends_s = [own_end_s]
    ops += _chain(0, "input_0", 0, products, dispatch_s, product_s, device)
    totals = [_product(0, products)]
    for task in range(1, tasks):
        began_s = dispatch_s
        if feed:
            answered_s = dispatch_s if answers_at_once else own_end_s
            fed = f"_recv_input_{task}_0"
            edges.append(_edge(fed, 0, task, dispatch_s, answered_s, wire_s, size_bytes, share))
            began_s = answered_s + wire_s
        label = f"_recv_input_{task}_0_S1" if feed else f"input_{task}"
        ops += _chain(task, label, task * products, products, began_s, product_s, device)
        result = _product(task, products)
        made_s = began_s + products * product_s
        edges.append(_edge(result, task, 0, dispatch_s, made_s, wire_s, size_bytes, share))
        ends_s.append(made_s + wire_s)
        totals.append(f"{result}_S{task + 2}")
    start_s = max(ends_s)
    ops.append(OpRun(0, "CPU:0", "total", "AddN", tuple(totals), start_s, start_s + 1e-4))
    duration_s = start_s + 1e-4 + fetch_s
    compute_s = products * product_s
    parts = tuple(
        TaskTrace(
            task,
            f"tf{task}",
            dispatch_s,
            max((op.end_s for op in ops if op.task == task), default=dispatch_s),
            compute_s,
            compute_s,
            {device: products},
            2 * (size_bytes / 4) ** 1.5 / product_s / 1e9,
        )
        for task in range(tasks)
    )
    sum_s = tasks * compute_s
    union_s = sum_s if not answers_at_once else compute_s + min(wire_s, compute_s)
    return StepTrace(
        index,
        duration_s,
        tuple(sorted(ops, key=lambda op: op.start_s)),
        tuple(sorted(edges, key=lambda edge: edge.arrived_s)),
        parts,
        sum_s,
        union_s,
        dispatch_s,
        fetch_s,
    )


def explained(
    trace: StepTrace,
    *,
    parameters: Parameters = MATPOW,
    traces: Sequence[StepTrace] | None = None,
    warm_s: float | None = None,
    cold_s: float = 0.3,
    extra: Sequence[Event] = (),
    products: int | None = None,
    **more: Any,
) -> Explained:
    """Return a run that ended well, with a traced step.

    Args:
        trace: The one that stands for the others.
        parameters: Of the run.
        traces: All of them, only that one by default.
        warm_s: Each warm step, the traced step's own length by default.
        cold_s: The first step.
        extra: Further events of the client.
        products: Of the graph, as many as were traced by default.
        more: See `tests.unit.stories.run`.
    """
    warm_s = trace.duration_s if warm_s is None else warm_s
    ran = sum(sum(task.products.values()) for task in trace.tasks)
    events = [
        *phase(wire.PHASE_IMPORT_TENSORFLOW, 1.0, 2.5),
        *phase(wire.PHASE_SERVER, 2.5, 2.51),
        *phase(wire.PHASE_GRAPH, 2.51, 2.55),
        event(wire.PHASE_BEGIN, 2.6, phase=wire.PHASE_FIRST_STEP),
        _step(0, "cold", 2.6 + cold_s, cold_s),
        event(wire.PHASE_END, 2.6 + cold_s, phase=wire.PHASE_FIRST_STEP, duration_ns=_ns(cold_s)),
        *(_step(k, "warm", 2.6 + cold_s + k * warm_s, warm_s) for k in range(1, 11)),
        *extra,
        event(
            wire.RESULT,
            8.0,
            ok=True,
            relative_error=7e-7,
            norm=43.9,
            products=ran if products is None else products,
        ),
        event(wire.BYE, 8.1, exit=0),
    ]
    whole = run(events, ended_at_s=8.2, parameters=parameters, **more)
    return replace(
        whole,
        traces=(trace,) if traces is None else tuple(traces),
        trace=trace,
        split=split_step(trace, whole.stats.warm_median_ms),
    )


def healthy() -> Explained:
    """Return the question's fed step with two inter-op threads."""
    return explained(traced())


def starved() -> Explained:
    """Return the question's fed step with one inter-op thread."""
    return explained(traced(answers_at_once=False), parameters=replace(MATPOW, inter_op=1))


def hung() -> Explained:
    """Return a run that its deadline ended in the first step."""
    return run(AT_CONTACT, outcome="timeout", ended_at_s=68.3, wall_s=69.0)


def extra_steps(kind: str, durations_s: Sequence[float]) -> list[Event]:
    """Return extra steps of a kind, after the warm ones."""
    return [_step(20 + k, kind, 7.0 + k / 100, each_s) for k, each_s in enumerate(durations_s)]


def graph(constant_bytes: int = 0, products: int = 8, size_bytes: int = 1500) -> Event:
    """Return a `graph` event."""
    return event(
        wire.GRAPH,
        2.54,
        nodes=products + 3,
        ops={"MatMul": products, "AddN": 1, "Placeholder": 2},
        bytes=size_bytes,
        constant_bytes=constant_bytes,
        sha256="0" * 64,
    )


def _chain(
    task: int, label: str, first: int, products: int, begin_s: float, each_s: float, device: str
) -> list[OpRun]:
    runs = []
    for k in range(products):
        before = _name(first + k - 1) if k else label
        start_s = begin_s + k * each_s
        runs.append(
            OpRun(
                task, device, _name(first + k), "MatMul", (before, label), start_s, start_s + each_s
            )
        )
    return runs


def _edge(
    tensor: str,
    source: int,
    target: int,
    asked_s: float,
    answered_s: float,
    wire_s: float,
    size_bytes: int,
    share: float | None,
) -> Edge:
    return Edge(
        tensor,
        size_bytes,
        source,
        target,
        asked_s,
        answered_s,
        answered_s + wire_s,
        answered_s - asked_s,
        clamped=False,
        clock_error_s=1e-4,
        baseline_share=share,
    )


def _product(task: int, products: int) -> str:
    return _name((task + 1) * products - 1) if products else f"input_{task}"


def _name(number: int) -> str:
    return f"MatMul_{number}" if number else "MatMul"


def _step(index: int, kind: str, end_s: float, duration_s: float) -> Event:
    return event(wire.STEP, end_s, index=index, kind=kind, total=11, duration_ns=_ns(duration_s))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
