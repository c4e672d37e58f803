"""A warm step in parts that add up to it: the critical path of a traced step, walked back from its end. Pure.

Each instant of the step is in exactly one part:

- `dispatch`: from the step's start until the path's first task began its part of the graph.
- `compute`: an op on the path runs; or the path's next op is ready and its task runs others.
- `copy`: nothing of the path computes, and a tensor goes between host and GPU of the task that is waited for.
- `transfer`: a tensor on the path is on its way.
- `wait`: a tensor on the path is ready and asked for, but its sender does not answer yet, or an op is ready and
  its task runs none. The task is the one that waits.
- `fetch`: from the last op to the step's end, the result's way back to Python.
- `other`: what the stamps do not tell, e.g. around a transfer whose stamp is not to be believed, or what a GPU did
  whose ops have only the time at which they were queued.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from labctl.analysis.intervals import covered_s, merge, pieces
from labctl.analysis.model import Edge, OpRun, SplitRow, StepSplit, StepTrace
from labctl.analysis.trace import busy, on_stream

DISPATCH, COMPUTE, COPY, TRANSFER, WAIT, FETCH, OTHER = (
    "dispatch",
    "compute",
    "copy",
    "transfer",
    "wait",
    "fetch",
    "other",
)

_RECEIVED = re.compile(
    r"(?:_S|/_)\d+\Z"
)  # what TensorFlow adds to the name of a tensor that it receives
_SLOT = re.compile(r":\d+\Z")
_EARLY_S = 50e-6  # an input may end this much after its reader began, by rounding and skew

Part = tuple[str, int | None, int | None]  # what, task, source


@dataclass(frozen=True, slots=True)
class _Op:
    """An op with the end of its kernels, where a GPU ran them later."""

    run: OpRun
    end_s: float


def split_step(trace: StepTrace, warm_median_ms: float | None) -> StepSplit | None:
    """Return a warm step in parts, in the proportions of a traced one.

    Args:
        trace: The traced step.
        warm_median_ms: Median of the warm steps, milliseconds.

    Returns:
        None without a warm step.
    """
    if not warm_median_ms or warm_median_ms <= 0 or trace.duration_s <= 0:
        return None
    parts = _Path(trace).parts()
    total_s = warm_median_ms / 1e3
    return StepSplit(_scaled(parts, total_s), total_s, trace.duration_s, total_s / trace.duration_s)


def task_parts(trace: StepTrace, task: int, *, client: bool) -> dict[str, float]:
    """Return what one task did in a traced step: parts that add up to it, seconds.

    A task that computes while a tensor travels computes. `dispatch` and `fetch` are the client's.

    Args:
        trace: The traced step.
        task: Task index.
        client: It is the client's.
    """
    own = busy(run for run in trace.ops if run.task == task)
    moving = [
        (edge.answered_s, edge.arrived_s)
        for edge in trace.edges
        if task in {edge.source, edge.target} and not edge.clamped
    ]
    compute_s = covered_s(own)
    copies = [(copy.start_s, copy.end_s) for copy in trace.copies if copy.task == task]
    copy_s = max(0.0, covered_s(merge([*own, *copies])) - compute_s)
    rest_s = max(0.0, trace.duration_s - compute_s - copy_s)
    known_s = compute_s + copy_s
    transfer_s = min(rest_s, max(0.0, covered_s(merge([*own, *copies, *moving])) - known_s))
    rest_s -= transfer_s
    dispatch_s = min(rest_s, trace.dispatch_s) if client else 0.0
    fetch_s = min(rest_s - dispatch_s, trace.fetch_s) if client else 0.0
    return {
        DISPATCH: dispatch_s,
        COMPUTE: compute_s,
        **({COPY: copy_s} if copies else {}),
        TRANSFER: transfer_s,
        WAIT: rest_s - dispatch_s - fetch_s,
        FETCH: fetch_s,
    }


def _scaled(parts: dict[Part, float], total_s: float) -> tuple[SplitRow, ...]:
    scale = total_s / math.fsum(parts.values())
    rows = [
        SplitRow(what, task, source, seconds * scale)
        for (what, task, source), seconds in parts.items()
    ]
    largest = max(range(len(rows)), key=lambda index: rows[index].seconds)
    rest_s = math.fsum(row.seconds for index, row in enumerate(rows) if index != largest)
    rows[largest] = replace(rows[largest], seconds=total_s - rest_s)
    return tuple(rows)


class _Path:
    """Walks the critical path of a traced step back from its end."""

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._began = {task.task: task.began_s for task in trace.tasks}
        self._busy = {
            task.task: busy(run for run in trace.ops if run.task == task.task)
            for task in trace.tasks
        }
        self._copies = {
            task.task: merge(
                (copy.start_s, copy.end_s) for copy in trace.copies if copy.task == task.task
            )
            for task in trace.tasks
        }
        self._queued_only = {task.task for task in trace.tasks if task.queued_only}
        kernels: dict[tuple[int, str], float] = {}
        for run in trace.ops:
            if on_stream(run):
                key = run.task, run.name
                kernels[key] = max(kernels.get(key, 0.0), run.end_s)
        self._ops: dict[tuple[int, str], _Op] = {}
        for run in trace.ops:
            if not on_stream(run):
                key = run.task, run.name
                self._ops[key] = _Op(run, max(run.end_s, kernels.get(key, 0.0)))
        self._by_name: dict[str, list[_Op]] = {}
        for (_, name), op in self._ops.items():
            self._by_name.setdefault(name, []).append(op)
        self._edges: dict[tuple[int, str], Edge] = {
            (edge.target, edge.tensor): edge for edge in trace.edges
        }
        self._parts: list[tuple[Part, float]] = []  # backwards
        self._at_s = trace.duration_s

    def parts(self) -> dict[Part, float]:
        """Return the parts in the order of the path; they add up to the step."""
        last = max(self._ops.values(), key=lambda op: op.end_s, default=None)
        if last is not None:
            self._back_to(last.end_s, FETCH, None)
            self._walk(last)
        self._back_to(0.0, DISPATCH if last is not None else OTHER, None)
        added: dict[Part, float] = {}
        for part, seconds in reversed(self._parts):
            added[part] = added.get(part, 0.0) + seconds
        return added

    def _walk(self, op: _Op | None) -> None:
        seen: set[int] = set()
        while op is not None and id(op) not in seen:
            seen.add(id(op))
            task = op.run.task
            if op.end_s > op.run.end_s:  # it was queued first and ran on its GPU later
                self._through(op.run.start_s, task, WAIT)
            else:
                self._back_to(op.run.start_s, COMPUTE, task)
            before = self._before(op)
            gap = OTHER if self._untold(op) or task in self._queued_only else WAIT
            if before is None:
                self._through(self._began.get(task, 0.0), task, gap)
                return
            if isinstance(before, _Op):
                if before.run.task == task:
                    self._through(before.end_s, task, gap)
                else:
                    self._back_to(before.end_s, OTHER, None)
                op = before
                continue
            self._through(before.arrived_s, task, gap)
            op = self._over(before)

    def _before(self, op: _Op) -> _Op | Edge | None:
        """Return what an op waited for: the latest of its inputs; None for what was there from the start."""
        task, limit_s = op.run.task, op.run.start_s + _EARLY_S
        latest: _Op | Edge | None = None
        latest_s = -math.inf
        for name in op.run.inputs:
            found, ready_s = self._input(task, _SLOT.sub("", name.removeprefix("^")))
            if found is not None and latest_s < ready_s <= limit_s:
                latest, latest_s = found, ready_s
        return latest

    def _input(self, task: int, name: str) -> tuple[_Op | Edge | None, float]:
        """Return what brought an input and when: an op, a transfer, or the op at the start of a lost transfer."""
        op = self._ops.get((task, name))
        if op is not None:
            return op, op.end_s
        tensor = _RECEIVED.sub("", name)
        edge = self._edges.get((task, tensor))
        if edge is not None:
            return edge, edge.arrived_s
        makers = self._by_name.get(tensor, ()) if tensor != name else ()
        return (makers[0], makers[0].end_s) if len(makers) == 1 else (None, math.inf)

    def _untold(self, op: _Op) -> bool:
        """Return whether an op reads a tensor of another task whose transfer the trace does not hold."""
        names = (_SLOT.sub("", name) for name in op.run.inputs)
        return any(
            _RECEIVED.search(name) and self._input(op.run.task, name)[0] is None for name in names
        )

    def _over(self, edge: Edge) -> _Op | None:
        """Go back over a transfer to its sender; return the op that made the tensor, None if it was fed."""
        made_by = self._ops.get((edge.source, edge.tensor))
        ready_s = self._began.get(edge.source, 0.0) if made_by is None else made_by.end_s
        asked_s = edge.asked_s if edge.asked_s is not None else 0.0
        if edge.clamped:
            self._back_to(max(ready_s, asked_s), OTHER, None)
        else:
            self._back_to(edge.answered_s, TRANSFER, edge.target, edge.source)
            gap = OTHER if edge.source in self._queued_only else WAIT
            self._wait_for(edge.source, max(ready_s, asked_s), gap, edge.target)
        if asked_s > ready_s:
            return None  # the receiver's part of the graph began last: all before is dispatch
        return made_by

    def _through(self, to_s: float, task: int, gap: str) -> None:
        """Go back over the time before an op, in which its task computes something else, or does not (`gap`)."""
        start_s = min(max(to_s, 0.0), self._at_s)
        for begin_s, _, covered in reversed(pieces(self._busy.get(task, []), start_s, self._at_s)):
            if covered:
                self._back_to(begin_s, COMPUTE, task)
            else:
                self._wait_for(task, begin_s, gap, task)

    def _wait_for(self, busy_task: int, to_s: float, gap: str, waiting: int) -> None:
        """Go back over the time in which a task waits for another, or itself, which may be copying meanwhile."""
        start_s = min(max(to_s, 0.0), self._at_s)
        for begin_s, _, covered in reversed(
            pieces(self._copies.get(busy_task, []), start_s, self._at_s)
        ):
            if covered:
                self._back_to(begin_s, COPY, busy_task)
            else:
                self._back_to(begin_s, gap, None if gap == OTHER else waiting)

    def _back_to(self, to_s: float, what: str, task: int | None, source: int | None = None) -> None:
        to_s = min(max(to_s, 0.0), self._at_s)
        if to_s < self._at_s:
            self._parts.append(((what, task, source), self._at_s - to_s))
            self._at_s = to_s
