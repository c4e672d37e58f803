"""From what a record holds to all that can be said of the run. Pure, and never fails for what a record may hold."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.arrange import arranged, baseline_problems
from labctl.analysis.clock import Clocks, clock_problems
from labctl.analysis.cold_start import split_context, split_setup
from labctl.analysis.explained import Explained
from labctl.analysis.ledger import (
    build_ledger,
    client_spans,
    split_first_step,
    split_warm_steps,
)
from labctl.analysis.model import StepTrace, TracingCost
from labctl.analysis.node_ledgers import node_ledgers
from labctl.analysis.split import split_step
from labctl.analysis.steps import Step, StepStats, percentile, step_stats, steps_of
from labctl.analysis.trace import step_traces
from labctl.runs.data import RunData


def explain(data: RunData) -> Explained:
    """Return a run with its analysis; what could not be analysed is in `problems`."""
    clocks = Clocks.of(data.record)
    data, odd = arranged(data, clocks)
    record = data.record
    told = steps_of(data.events)
    steps = tuple(step for step in told if _possible(step, record.wall_s))
    if len(steps) < len(told):
        odd.append(f"steps: {len(told) - len(steps)} are longer than the run and left out")
    stats = step_stats(steps)
    traces, trace_problems = step_traces(data, steps, clocks)
    trace = typical(traces)
    split = None if trace is None else split_step(trace, stats.warm_median_ms)
    phases = client_spans(record, data.events, clocks)
    phases = split_context(phases, data, clocks, record.remote.node)
    finer = split_first_step(phases, data, clocks, stats.warm_median_ms)
    finer = split_setup(finer, data, trace)
    rows = split_warm_steps(finer, steps, split)
    return Explained(
        data=data,
        clocks=clocks.lines(),
        steps=steps,
        stats=stats,
        ledger=build_ledger(record.spans, rows, record.wall_s or 0.0),
        nodes=node_ledgers(data, phases, finer, clocks, trace),
        traces=traces,
        trace=trace,
        split=split,
        tracing=_tracing(steps, stats, traces),
        problems=(
            *data.problems,
            *clock_problems(clocks, record),
            *odd,
            *trace_problems,
            *baseline_problems(record, _reached(traces)),
        ),
    )


def typical(traces: Sequence[StepTrace]) -> StepTrace | None:
    """Return the traced step that stands for the others.

    TensorFlow's step stats sometimes miss a transfer whose record came late; so of those that hold the most
    transfers it is the one of median length.
    """
    most = max((len(trace.edges) for trace in traces), default=0)
    whole = sorted(
        (trace for trace in traces if len(trace.edges) == most), key=lambda each: each.duration_s
    )
    return whole[(len(whole) - 1) // 2] if whole else None


def _possible(step: Step, wall_s: float | None) -> bool:
    return wall_s is None or step.duration_ms / 1e3 <= wall_s


def _reached(traces: Sequence[StepTrace]) -> dict[str, float]:
    """Return the best rate of each node's products, GFLOP/s."""
    best: dict[str, float] = {}
    for task in (task for trace in traces for task in trace.tasks):
        best[task.node] = max(task.gflops or 0.0, best.get(task.node, 0.0))
    return best


def _tracing(
    steps: Sequence[Step], stats: StepStats, traces: Sequence[StepTrace]
) -> TracingCost | None:
    traced = [step.duration_ms for step in steps if step.kind == "traced"]
    traced = traced or [trace.duration_s * 1e3 for trace in traces]
    if not traced or not stats.warm_median_ms:
        return None
    return TracingCost(stats.warm_median_ms, percentile(traced, 50), len(traced))
