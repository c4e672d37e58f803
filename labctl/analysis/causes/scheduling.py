"""Rules on who waits for whom: threads that answer too late, and tasks with unequal work. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    Cause,
    cpus_text,
    matters,
    no_trace,
    part_text,
    time_text,
    untraced,
    warm_s,
)
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.causes.replay import plain_name, saving_s
from labctl.analysis.steps import percentile
from labctl.analysis.trace import busy
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.analysis.model import Edge, OpRun, StepTrace

INTER_OP_STARVED = Cause(
    "inter-op-starved", "step", "One inter-op thread answers only after the products", "A"
)
TASKS_UNBALANCED = Cause(
    "tasks-unbalanced", "step", "The tasks have unequal numbers of products", "C"
)

_ANSWER_WITHIN_S = (
    2e-3  # an answer that follows the sender's last op this closely was held up by it
)
_ANSWER_WITHIN = 0.10  # or within this part of the time that it was waited for
_ROUNDED_S = 50e-6  # stamps of one clock may be off by this much against each other
_BUSY = 0.8  # part of the waiting in which the sender computed


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A tensor that was ready and asked for, and was sent only when its sender's products had ended.

    Attributes:
        edge: Its way.
        ready_s: When it could have been sent: asked for and there.
        last_op: The sender's op that ended right before the answer.
        busy_s: Time between ready and answered in which the sender computed.
    """

    edge: Edge
    ready_s: float
    last_op: OpRun
    busy_s: float

    @property
    def waited_s(self) -> float:
        """Seconds that it was held up."""
        return self.edge.answered_s - self.ready_s


def _inter_op_starved(run: Explained) -> Verdict:
    cause = INTER_OP_STARVED
    if run.data.record.parameters.placement == "one-process":
        return cause.ruled_out("one process: no tensor travels between tasks")
    if run.trace is None:
        return cause.not_measured(*no_trace(run))
    trace = run.trace
    held = all_held_up(trace)
    scale = 1.0 if run.split is None else run.split.scale
    warm = warm_s(run) or trace.duration_s * scale
    seconds = percentile(savings_s(run), 50) * scale
    if held and matters(seconds, warm):
        return _starved(run, trace, held, seconds)
    if trace.edges and all(edge.clamped for edge in trace.edges):
        return cause.not_measured(
            "every answer's stamp lies outside of what its receiver saw: the nodes' clocks differ too much",
            "a time service on every node (labctl check --only clock), then run again",
        )
    if held:
        return cause.ruled_out(f"{part_text(seconds, warm)} of waiting for a thread")
    ready = [edge for edge in trace.edges if not edge.clamped and edge.asked_s is not None]
    if not ready and untraced(run):
        return cause.not_measured(*no_trace(run))
    if not ready:
        return cause.ruled_out("0 tensors travelled between tasks")
    made_s = made_ends_s(trace)
    longest = max(ready, key=lambda edge: edge.answered_s - ready_since_s(edge, made_s))
    waited_s = max(0.0, longest.answered_s - ready_since_s(longest, made_s))
    return cause.ruled_out(
        f"0 of {len(trace.edges)} tensors waited for a thread",
        f"the longest that was ready, {longest.tensor} of task:{longest.source}, was answered after "
        f"{time_text(waited_s)} of {time_text(trace.duration_s)}",
    )


def savings_s(run: Explained) -> list[float]:
    """Return of each traced step how much shorter it would be if held-up tensors were answered at once, seconds.

    Steps whose stats miss a transfer are left out.
    """
    most = 0 if run.trace is None else len(run.trace.edges)
    whole = [trace for trace in run.traces if len(trace.edges) == most]
    return [saving_s(trace, arrivals_s(all_held_up(trace), _cpus(run))) for trace in whole]


def _starved(run: Explained, trace: StepTrace, held: list[HeldUp], seconds: float) -> Verdict:
    worst = max(held, key=lambda each: each.waited_s)
    source, target = worst.edge.source, worst.edge.target
    threads = inter_op_threads(run, source)
    cpus = _cpus(run).get(source)
    evidence = [
        (
            f"task:{target} could have {worst.edge.tensor} from {time_text(worst.ready_s)} on, "
            f"its answer began at {time_text(worst.edge.answered_s)}"
        ),
        f"task:{source}'s {worst.last_op.name} ended at {time_text(worst.last_op.end_s)}, right before",
        f"task:{source} computed for {part_text(worst.busy_s, worst.waited_s)} of that wait",
        f"the tasks computed together for {part_text(trace.overlap_s, trace.compute_sum_s)}",
    ]
    if threads is not None:
        evidence.append(f"task:{source} has {threads} inter-op thread{'' if threads == 1 else 's'}")
    elif cpus is not None:
        evidence.append(
            f"task:{source} has {cpus_text(cpus)} and TensorFlow's default of inter-op threads"
        )
    single = threads == 1 or (threads is None and cpus == 1)
    unknown = threads is None and cpus is None
    feeds = run.data.record.parameters.feed == "fed"
    return INTER_OP_STARVED.found(
        seconds,
        evidence,
        remedy="--inter-op 2" + (" (or --feed staged)" if feeds else ""),
        confidence="high" if single else "medium" if unknown else "low",
        title=f"One inter-op thread on task:{source} holds up what task:{target} waits for",
    )


def all_held_up(trace: StepTrace) -> list[HeldUp]:
    """Return the edges of a traced step that were held up by their senders' ops."""
    made_s = made_ends_s(trace)
    senders = {
        task: _Sender([op for op in trace.ops if op.task == task])
        for task in {edge.source for edge in trace.edges}
    }
    found = [
        _held_up(senders[edge.source], edge, ready_since_s(edge, made_s)) for edge in trace.edges
    ]
    return [each for each in found if each is not None]


class _Sender:
    """A task's ops in orders that answer at once for any moment.

    Args:
        ops: Its ops.
    """

    def __init__(self, ops: Sequence[OpRun]) -> None:
        self._by_end = sorted(ops, key=lambda op: op.end_s)
        self._ends_s = [op.end_s for op in self._by_end]
        by_start = sorted(ops, key=lambda op: op.start_s)
        self._starts_s = [op.start_s for op in by_start]
        self._last_ends_s = list(accumulate((op.end_s for op in by_start), max))
        self._busy = busy(ops)
        self._busy_before_s = list(accumulate((e - b for b, e in self._busy), initial=0.0))

    def last_op(self, after_s: float, until_s: float) -> OpRun | None:
        """Return the op that ended last after a moment and not after another; None if none did."""
        place = bisect_right(self._ends_s, until_s)
        if place == 0 or self._ends_s[place - 1] <= after_s:
            return None
        return self._by_end[bisect_left(self._ends_s, self._ends_s[place - 1])]

    def works_at(self, moment_s: float) -> bool:
        """Return whether an op began before a moment and ended after it."""
        begun = bisect_left(self._starts_s, moment_s)
        return begun > 0 and self._last_ends_s[begun - 1] > moment_s

    def busy_s(self, start_s: float, end_s: float) -> float:
        """Return the time between two moments in which it computed, seconds."""
        return self._busy_until_s(end_s) - self._busy_until_s(start_s)

    def _busy_until_s(self, moment_s: float) -> float:
        place = bisect_right(self._busy, (moment_s, math.inf))
        after_s = max(0.0, self._busy[place - 1][1] - moment_s) if place else 0.0
        return self._busy_before_s[place] - after_s


def _held_up(sender: _Sender, edge: Edge, ready_s: float) -> HeldUp | None:
    """Return how an edge was held up, None if it was not or cannot be told."""
    if edge.clamped or edge.asked_s is None or edge.source == edge.target:
        return None
    answered_s, waited_s = edge.answered_s, edge.answered_s - ready_s
    if waited_s < max(_ANSWER_WITHIN_S / 2, edge.clock_error_s):
        return None
    slack_s = max(_ANSWER_WITHIN_S, _ANSWER_WITHIN * waited_s)
    unsure_s = max(_ROUNDED_S, edge.clock_error_s)
    last_op = sender.last_op(ready_s, answered_s + unsure_s)
    if last_op is None or answered_s - last_op.end_s > slack_s:
        return None
    busy_s = sender.busy_s(ready_s, answered_s)
    # Where the sender goes on with its next product, it is no thread that was waited for.
    if sender.works_at(answered_s + unsure_s) or busy_s < _BUSY * waited_s:
        return None
    return HeldUp(edge, ready_s, last_op, busy_s)


def made_ends_s(trace: StepTrace) -> dict[tuple[int, str], float]:
    """Return when each task had made each tensor, by the op's name, seconds."""
    ends_s: dict[tuple[int, str], float] = {}
    for op in trace.ops:
        key = op.task, plain_name(op.name)
        ends_s[key] = max(op.end_s, ends_s.get(key, 0.0))
    return ends_s


def ready_since_s(edge: Edge, made_s: Mapping[tuple[int, str], float]) -> float:
    """Return when an edge's tensor was made and asked for, seconds; a fed one is there from the start."""
    return max(edge.asked_s or 0.0, made_s.get((edge.source, plain_name(edge.tensor)), 0.0))


def arrivals_s(held: Iterable[HeldUp], cpus: Mapping[int, int]) -> dict[Edge, float]:
    """Return when held-up tensors would arrive if they were answered at once.

    On a sender with one CPU the products go on beside the answer, and each gets half of the time.

    Args:
        held: The tensors.
        cpus: CPUs of each task's node, as far as known.
    """
    return {
        each.edge: each.ready_s + each.edge.wire_s * (2 if cpus.get(each.edge.source) == 1 else 1)
        for each in held
    }


def inter_op_threads(run: Explained, task: int) -> int | None:
    """Return how many inter-op threads a task's server was asked to have, None for TensorFlow's default."""
    parameters = run.data.record.parameters
    if task == 0 or parameters.placement == "one-host":
        return parameters.inter_op
    node = next((each.name for each in run.data.record.nodes if each.task == task), None)
    states = [each for each in run.data.record.servers_before if each.node == node]
    if states and states[0].inter_op is not None:
        return states[0].inter_op
    ready = [each for each in run.data.server_events.get(node or "", ()) if each.kind == wire.READY]
    return ready[-1].whole("inter_op") if ready else None


def _tasks_unbalanced(run: Explained) -> Verdict:
    cause = TASKS_UNBALANCED
    if run.trace is None or untraced(run):
        return cause.not_measured(*no_trace(run))
    counts = {task.task: sum(task.products.values()) for task in run.trace.tasks}
    if len(counts) < 2:
        return cause.ruled_out("one task did all the work that was traced")
    told = ", ".join(f"task:{task} {count}" for task, count in sorted(counts.items()))
    if len(set(counts.values())) == 1:
        return cause.ruled_out(
            f"{next(iter(counts.values()))} products on each of {len(counts)} tasks"
        )
    scale = 1.0 if run.split is None else run.split.scale
    warm = warm_s(run) or run.trace.duration_s * scale
    compute = [task.compute_s * scale for task in run.trace.tasks]
    seconds = max(compute) - sum(compute) / len(compute)
    if not matters(seconds, warm):
        return cause.ruled_out(f"{part_text(seconds, warm)} from equal work", f"products: {told}")
    busiest = max(run.trace.tasks, key=lambda task: task.compute_s)
    return cause.found(
        seconds,
        [
            f"products: {told}",
            f"task:{busiest.task} computes {time_text(max(compute))} of a step",
            f"the tasks' mean is {time_text(sum(compute) / len(compute))}",
        ],
        remedy="give each task the same number of products",
        title=f"task:{busiest.task} has more products than the others",
    )


def _cpus(run: Explained) -> dict[int, int]:
    """Return the CPUs that each task may use, as far as known."""
    record = run.data.record
    known = {node.task: node.cpus for node in record.nodes if node.cpus is not None}
    if record.parameters.placement == "one-host" and 0 in known:
        return dict.fromkeys(range(record.tasks), known[0])
    return known


RULES: tuple[Rule, ...] = (
    INTER_OP_STARVED.rule(_inter_op_starved),
    TASKS_UNBALANCED.rule(_tasks_unbalanced),
)
