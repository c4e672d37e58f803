"""A traced step: the ops of all tasks and the tensors that went between them, on one time line. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from labctl.analysis.clock import MOST_BELIEVED_S, Clocks
from labctl.analysis.intervals import covered_s, merge
from labctl.analysis.model import Copy, Edge, OpRun, StepTrace, TaskTrace
from labctl.analysis.steps import Step
from labctl.analysis.stepstats import decode
from labctl.analysis.trace_rows import SOURCE_OP, RawCopy, RawEdge, RawOp, tell_apart
from labctl.node import wire
from labctl.runs.data import RunData, TraceFile
from labctl.runs.events import Event
from labctl.runs.record import RunRecord

PRODUCT = "MatMul"
# Ops that only pass things on: no computing.
IDLE_OPS = frozenset(
    {"NoOp", "_Recv", "_Send", "_HostRecv", "_HostSend", "_Arg", "_Retval", "_SINK", SOURCE_OP}
)
# A sender's stamp this soon after the receiver's part began may be the request's own time, which TensorFlow
# puts there when the sender's clock is behind.
_CUT_S = 200e-6
# A rate this far above the measured one cannot be true beside it.
MOST_SHARE = 1.05
_STAMP_OR_BASELINE = (
    "it is above the measured baseline: the sender's stamp is late, or the baseline is too low"
)
_BASELINE = (
    "it is above the measured baseline by the receiver's clock alone: the baseline is too low"
)
_SLACK_S = 1e-3  # stamps this far outside of a step are within what its own start is known to


def task_nodes(record: RunRecord) -> dict[int, str]:
    """Return the node of each task; what runs on one host is all on the client's."""
    if record.parameters.placement in {"one-host", "one-process"}:
        return dict.fromkeys(range(max(1, record.tasks)), record.remote.node)
    return {node.task: node.name for node in record.nodes}


def on_stream(run: OpRun) -> bool:
    """Return whether it is a row of a GPU's stream, whose op has a row of its own."""
    return "/" in run.device


def computes(run: OpRun) -> bool:
    """Return whether a row stands for computing: no passing on, no copy, no waiting for a stream."""
    if "/" in run.device:
        return not run.device.endswith(("/memcpy", "/sync", ">"))
    return run.op not in IDLE_OPS


def busy(runs: Iterable[OpRun]) -> list[tuple[float, float]]:
    """Return the times in which at least one of some ops computes, ordered and disjoint."""
    return merge((run.start_s, run.end_s) for run in runs if computes(run))


def step_traces(
    data: RunData, steps: Sequence[Step], clocks: Clocks
) -> tuple[tuple[StepTrace, ...], list[str]]:
    """Return the traced steps that can be read, in order, and what is wrong with them.

    Args:
        data: The run.
        steps: Its steps.
        clocks: Its clocks.
    """
    traces: list[StepTrace] = []
    problems: list[str] = []
    for file in data.traces:
        reader = _Reader(data, clocks, file)
        trace = reader.trace(steps)
        name = "step stats" if file.index is None else f"step stats of step {file.index}"
        problems += [f"{name}: {each}" for each in reader.problems]
        if trace is not None:
            traces.append(trace)
    doubted = [edge.baseline_share or 0.0 for each in traces for edge in each.edges if edge.doubt]
    if doubted:
        problems.append(
            f"step stats: faster than the measured network, up to {max(doubted):.0%} of it: {len(doubted)} of "
            f"{sum(len(each.edges) for each in traces)} transfers; their senders' stamps or the baseline are wrong"
        )
    return tuple(traces), problems


class _Reader:
    """Reads one traced step and notes what is wrong with it."""

    def __init__(self, data: RunData, clocks: Clocks, file: TraceFile) -> None:
        self._data = data
        self._clocks = clocks
        self._file = file
        self._nodes = task_nodes(data.record)
        self._start_us = 0
        self._at_s = 0.0
        self._offsets: dict[str, tuple[float, float]] = {}
        self._shifts: dict[int, float] = {}  # what moves a task's stamps into the step
        self.problems: list[str] = []

    def trace(self, steps: Sequence[Step]) -> StepTrace | None:
        try:
            rows = tell_apart(decode(self._file.data))
        except ValueError as error:
            self.problems.append(str(error))
            return None
        if rows.lost:
            self.problems.append(
                f"{rows.lost} rows without a task or with impossible times are left out"
            )
        if not rows.ops:
            self.problems.append("they hold no op of a task")
            return None
        duration_s = self._find_window(rows.ops, steps)
        runs = self._place_all(rows.ops, duration_s)
        if not runs:
            self.problems.append("all their times lie outside of the step")
            return None
        by_task: dict[int, list[OpRun]] = {}
        for run in runs:
            by_task.setdefault(run.task, []).append(run)
        began = {task: _began_s(own) for task, own in by_task.items()}
        edges = sorted(
            (self._edge(edge, began, duration_s) for edge in rows.edges),
            key=lambda edge: (edge.arrived_s, edge.target, edge.tensor),
        )
        rounded = sum(1 for edge in rows.edges if edge.rounded)
        if rounded:
            self.problems.append(f"the bytes of {rounded} transfers are TensorFlow's rounded ones")
        size = self._data.record.parameters.size
        working = {task: [run for run in own if computes(run)] for task, own in by_task.items()}
        busy_times = {task: busy(own) for task, own in working.items()}
        products = {task: _products(own, size) for task, own in working.items()}
        queued = {task for task, own in working.items() if _queued_only(own)}
        if queued:
            who = ", ".join(f"task:{task}" for task in sorted(queued))
            self.problems.append(
                f"TensorFlow collected no GPU trace (CUPTI) on {who}: its rows tell when ops were queued, "
                "not when they ran"
            )
        tasks = tuple(
            TaskTrace(
                task=task,
                node=self._node(task),
                began_s=began[task],
                ended_s=max(run.end_s for run in by_task[task]),
                compute_s=covered_s(busy_times[task]),
                op_sum_s=_op_sum_s(working[task]),
                products=products[task][0],
                gflops=products[task][1],
                queued_only=task in queued,
            )
            for task in sorted(by_task)
        )
        last_s = max([run.end_s for run in runs] + [edge.arrived_s for edge in edges])
        return StepTrace(
            index=-1 if self._file.index is None else self._file.index,
            duration_s=duration_s,
            ops=tuple(runs),
            edges=tuple(edges),
            tasks=tasks,
            compute_sum_s=math.fsum(task.compute_s for task in tasks),
            compute_union_s=covered_s(merge(chain.from_iterable(busy_times.values()))),
            dispatch_s=runs[0].start_s,
            fetch_s=max(0.0, duration_s - last_s),
            copies=tuple(self._copies(rows.copies, duration_s)),
        )

    def _copies(self, copies: Sequence[RawCopy], duration_s: float) -> list[Copy]:
        """Return the copies that lie within the step, by start."""
        found = []
        for each in copies:
            start_s, end_s = (
                self._place_s(each.task, stamp) for stamp in (each.start_us, each.end_us)
            )
            if start_s > duration_s or end_s < 0:
                continue
            queued_s = None
            if each.queued_us is not None:
                queued_s = max(0.0, self._place_s(each.task, each.queued_us))
            found.append(
                Copy(
                    kind=each.kind,
                    task=each.task,
                    device=each.device,
                    tensor=each.tensor,
                    size_bytes=each.size_bytes,
                    host_memory=each.host_memory,
                    queued_s=queued_s,
                    start_s=max(start_s, 0.0),
                    end_s=min(end_s, duration_s),
                )
            )
        return sorted(found, key=lambda copy: (copy.start_s, copy.end_s, copy.task, copy.tensor))

    def _find_window(self, ops: dict[int, list[RawOp]], steps: Sequence[Step]) -> float:
        """Set the step's start on the client's clock and return its length, seconds."""
        found = self._window(steps)
        if found is None:
            self.problems.append("no event tells the step's length: it is taken from the stamps")
            start_us = min(op.start_us for own in ops.values() for op in own)
            length_s = max(
                (max(op.end_us for op in own) - min(op.start_us for op in own)) / 1e6
                for own in ops.values()
            )
            found = start_us * 1000, max(length_s, 1e-6)
        self._start_us = round(found[0] / 1000)
        self._at_s = self._clocks.since_origin_s(
            self._data.record.remote.node, self._start_us / 1e6
        )
        return found[1]

    def _window(self, steps: Sequence[Step]) -> tuple[int, float] | None:
        traced = [step for step in steps if step.kind == "traced" and step.duration_ms > 0]
        step = next((each for each in traced if each.index == self._file.index), None)
        only = len(self._data.traces) == 1
        if step is None and only and len(traced) == 1:
            step = traced[0]
        if step is not None:
            return round(step.start_s * 1e9), step.duration_ms / 1e3
        phase = next((each for each in self._data.events if _is_traced_phase(each)), None)
        duration_ns = None if phase is None else phase.whole("duration_ns")
        if only and phase is not None and duration_ns is not None and duration_ns > 0:
            return phase.t_ns - duration_ns, duration_ns / 1e9
        return None

    def _place_all(self, ops: dict[int, list[RawOp]], duration_s: float) -> list[OpRun]:
        runs: list[OpRun] = []
        for task, own in ops.items():
            skew_s = self._skew_s(task)
            first_s = (min(op.start_us for op in own) - self._start_us) / 1e6 - skew_s
            last_s = (max(op.end_us for op in own) - self._start_us) / 1e6 - skew_s
            shift_s = max(0.0, -first_s) or min(0.0, max(duration_s - last_s, -first_s))
            self._shifts[task] = shift_s
            if abs(shift_s) > self._error_s(0, task) + _SLACK_S:
                self.problems.append(
                    f"the times of task:{task} lie {abs(shift_s):.3g} s outside of the step: moved into it"
                )
            move_s = shift_s - skew_s
            for op in own:
                start_s = (op.start_us - self._start_us) / 1e6 + move_s
                end_s = (op.end_us - self._start_us) / 1e6 + move_s
                if start_s <= duration_s and end_s >= 0:
                    start_s, end_s = max(start_s, 0.0), min(end_s, duration_s)
                    runs.append(
                        OpRun(op.task, op.device, op.name, op.op, op.inputs, start_s, end_s)
                    )
        return sorted(runs, key=lambda run: (run.start_s, run.end_s, run.task, run.name))

    def _node(self, task: int) -> str:
        return self._nodes.get(task, self._data.record.remote.node)

    def _offset(self, node: str) -> tuple[float, float]:
        """Return a node's clock minus labctl's at the step, and its bound, seconds; an absurd one is none."""
        if node not in self._offsets:
            found = self._clocks.offset(node, self._at_s)
            self._offsets[node] = found if abs(found[0]) <= MOST_BELIEVED_S else (0.0, math.inf)
        return self._offsets[node]

    def _skew_s(self, task: int) -> float:
        """Return the task's clock minus the client's, seconds."""
        return self._offset(self._node(task))[0] - self._offset(self._data.record.remote.node)[0]

    def _error_s(self, first: int, second: int) -> float:
        """Return the bound of the error between stamps of two tasks, seconds."""
        one, other = self._node(first), self._node(second)
        return 0.0 if one == other else self._offset(one)[1] + self._offset(other)[1]

    def _place_s(self, task: int, unix_us: int) -> float:
        """Return a stamp of a task as seconds after the step's start."""
        shift_s = self._shifts.get(task, 0.0)
        return (unix_us - self._start_us) / 1e6 - self._skew_s(task) + shift_s

    def _edge(self, edge: RawEdge, began: dict[int, float], duration_s: float) -> Edge:
        """Return a transfer on the step's time line.

        The receiver asks when its part of the graph starts: receiving ops have no inputs, and TensorFlow records
        nothing earlier.
        """
        arrived_s = min(max(self._place_s(edge.target, edge.end_us), 0.0), duration_s)
        answered_s = self._place_s(edge.source, edge.start_us)
        asked_s = began.get(edge.target)
        asked_s = None if asked_s is None else min(asked_s, arrived_s)
        clamped = self._is_clamped(edge, asked_s, answered_s, arrived_s)
        answered_s = min(max(answered_s, asked_s or 0.0), arrived_s)
        told = Edge(
            tensor=edge.tensor,
            size_bytes=edge.size_bytes,
            source=edge.source,
            target=edge.target,
            asked_s=asked_s,
            answered_s=answered_s,
            arrived_s=arrived_s,
            waited_s=None if asked_s is None or clamped else answered_s - asked_s,
            clamped=clamped,
            clock_error_s=self._error_s(edge.source, edge.target),
        )
        baseline = self._data.record.baseline
        if baseline is None or told.mb_per_s is None:
            return told
        link = baseline.link(self._node(edge.source), self._node(edge.target))
        if link is None or link.bits_per_s <= 0:
            return told
        share = told.mb_per_s * 8e6 / link.bits_per_s
        doubt = None
        if share > MOST_SHARE:
            least = (told.asked_mb_per_s or 0.0) * 8e6 / link.bits_per_s
            doubt = _BASELINE if least > MOST_SHARE else _STAMP_OR_BASELINE
        return replace(told, baseline_share=share, doubt=doubt)

    def _is_clamped(
        self, edge: RawEdge, asked_s: float | None, answered_s: float, arrived_s: float
    ) -> bool:
        """Return whether the sender's stamp is not to be believed.

        TensorFlow cuts it to the time of the request, or to one microsecond before the arrival, where the two
        clocks differ by more than the answer took.
        """
        if self._node(edge.source) == self._node(edge.target):
            return False
        error_s = self._error_s(edge.source, edge.target)
        moved_s = abs(self._shifts.get(edge.source, 0.0)) + abs(self._shifts.get(edge.target, 0.0))
        if math.isinf(error_s) or moved_s > error_s + _SLACK_S:
            return True
        if edge.end_us - edge.start_us <= 1 or answered_s > arrived_s + error_s:
            return True
        if asked_s is None:
            return False
        behind_s = self._skew_s(edge.target) - self._skew_s(edge.source)
        asked_anew_s = self._place_s(edge.target, edge.start_us) - asked_s
        at_request = asked_anew_s <= _CUT_S and behind_s + min(error_s, _CUT_S) > _CUT_S
        return at_request or answered_s < asked_s - error_s


def _is_traced_phase(event: Event) -> bool:
    return event.kind == wire.PHASE_END and event.text("phase") == wire.PHASE_TRACED_STEP


def _began_s(own: Sequence[OpRun]) -> float:
    source = next((run.start_s for run in own if run.op == SOURCE_OP), None)
    return min(run.start_s for run in own) if source is None else source


def _op_sum_s(working: Sequence[OpRun]) -> float:
    return math.fsum(
        run.end_s - run.start_s for run in working if not run.device.endswith("/stream:all")
    )


def _queued_only(working: Sequence[OpRun]) -> bool:
    """Return whether products were put into a GPU's stream and nothing tells when they ran."""
    on_gpu = any(run.op == PRODUCT and run.device.startswith("GPU:") for run in working)
    return on_gpu and not any(on_stream(run) for run in working)


def _products(working: Sequence[OpRun], size: int | None) -> tuple[dict[str, int], float | None]:
    """Return how many products ran by device, and at how many GFLOP/s.

    A GPU's op row ends when its kernel is queued; the kernel's own row says how long it took.
    """
    products = [run for run in working if run.op == PRODUCT]
    kernels = [run for run in products if on_stream(run)]
    counts = Counter(run.device for run in products if not on_stream(run))
    if _queued_only(working):
        return dict(counts), None
    product_s = covered_s(merge((run.start_s, run.end_s) for run in kernels or products))
    if not size or not counts or product_s <= 0:
        return dict(counts), None
    return dict(counts), 2.0 * size**3 * counts.total() / product_s / 1e9
