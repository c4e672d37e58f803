"""Causes on the side of a node: it gets less CPU than it has, it is slower than the others, its clock jumps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    Cause,
    cpus_text,
    is_matpow,
    matters,
    no_trace,
    part_text,
    phase_s,
    products_ran,
    time_text,
    warm_s,
)
from labctl.analysis.causes.contact import is_open, no_warm_step, node_of, own, workers
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.causes.travel import least_products, least_tensors_s
from labctl.analysis.causes.usage import Use, uses
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.events import Event
    from labctl.runs.record import NodeFacts

CPU_STARVED = Cause("cpu-starved", "step", "A task waits for a CPU while it computes", "B")
SLOW_NODE = Cause("slow-node", "step", "One node computes more slowly than the others", "B")
CLOCK_JUMP = Cause("clock-jump", "once", "A node's clock was set in mid-run", "B")

# What TensorFlow's products reach of their node's peak when nobody is in their way: 0.9 to 1.05 measured.
UNDISTURBED = 0.9
# Below this they were slowed down; without a word on waiting only well below it.
SLOWED = 0.7
SLOWED_ALONE = 0.6
# Share of its work in which a task's threads were ready and had no CPU. Those of a task alone on its CPU wait for
# each other, so that up to half is healthy: by itself the figure says little.
WAITED = 0.3
WAITED_ALONE = 0.75
HEALTHY_WAIT = 0.5  # of the CPUs' time that is left to them
_WAIT_SLACK = 0.05
# Share of the CPUs that went to others, which with WAITED will do where no trace says how fast the products were.
TAKEN = 0.2
WEAKER = 0.75  # of the best node's peak
_LEAST_SIZE_SHARE = 0.5  # a product much smaller than the measured one does not reach that peak

_LIFT = "lift the CPU quota of {node} (cpu.max or cpu.cfs_quota_us of its control group)"

_JUMP_S = 0.05
_SLEW = 1e-3  # twice of what a clock service may bend a clock by, seconds a second


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a task's products were.

    Attributes:
        gflops: Median of the traced steps.
        peak: What its node can do: the larger of its measured peak and of what any node of its make reached in a
            traced step, as a peak that was measured while the node was busy is too low.
    """

    gflops: float
    peak: float

    @property
    def reach(self) -> float:
        """Part of the peak, 0 to 1."""
        return self.gflops / self.peak


def _judge_starved(run: Explained) -> Verdict:
    record = run.data.record
    warm = warm_s(run)
    if record.parameters.placement == "one-host":
        cpus = next((node.cpus for node in record.nodes if node.task == 0), None)
        return CPU_STARVED.ruled_out(
            f"placement one-host: {record.tasks} tasks share {cpus_text(cpus) if cpus else 'its CPUs'} on purpose"
        )
    if warm is None and is_matpow(run):
        return CPU_STARVED.not_measured(*no_warm_step(run))
    used = uses(run)
    speeds = _speeds(run, used)
    tasks = sorted(used.keys() | speeds.keys())
    if not tasks and warm is None:
        return CPU_STARVED.not_measured(
            "no usage events frame the script, or its processes used less than 50 ms"
            + (": it has not come to its end yet" if is_open(run) else ""),
            "a script that runs for some seconds to its end",
        )
    if not tasks:
        return CPU_STARVED.not_measured(
            "neither usage events nor a speed of the products beside one that the node can do",
            "labctl check --compute, then the same run with --trace",
        )
    lines = [_speed_line(run, task, used.get(task), speeds.get(task)) for task in tasks]
    costs = []
    for task in tasks:
        lost = _lost(used.get(task), speeds.get(task))
        if lost is not None:
            costs.append((_cost_s(run, task, warm, lost), task, lost))
    if warm is None:
        whole_s = phase_s(run, wire.PHASE_SCRIPT) or 0.0
        costs = [(used[task].wait_s, task, used[task].lost) for _, task, _ in costs]
    else:
        whole_s = warm
    if not costs or not matters(max(costs)[0], whole_s):
        return CPU_STARVED.ruled_out(*_not_starved(run, costs, lines, used, speeds))
    cost, task, lost = max(costs)
    node = node_of(run, task)
    whose, remedy = _whose_doing(run, node, used.get(task))
    both = task in used and task in speeds
    return CPU_STARVED.found(
        cost if _priced(run) else None,
        [
            lines[tasks.index(task)],
            *_least_line(run),
            *whose,
            *(line for other, line in zip(tasks, lines, strict=True) if other != task),
        ],
        remedy=remedy,
        confidence="high" if both else "medium",
        title=f"task:{task} on {node} has no CPU for {percent(lost)} of the time that it computes",
    )


def _priced(run: Explained) -> bool:
    """Return whether it is known which part of a warm step a task can have lost at all."""
    return warm_s(run) is not None and (run.split is not None or least_products(run) is not None)


def _cost_s(run: Explained, task: int, warm: float | None, lost: float) -> float:
    """Return what a task lost of a warm step, seconds; 0.0 without one.

    Without a split it is no more than what its products at their best and its tensors leave of the step.
    """
    if warm is None:
        return 0.0
    if run.split is not None:
        return _computes_s(run, task, warm) * lost
    rest_s, least = warm - least_tensors_s(run), least_products(run)
    return min(rest_s * lost, rest_s - (least.seconds if least is not None else 0.0))


def _least_line(run: Explained) -> list[str]:
    """Return what a step without a split needs at the least, as evidence."""
    warm, least = warm_s(run), least_products(run)
    if run.split is not None or warm is None or least is None:
        return []
    told = part_text(least.seconds + least_tensors_s(run), warm)
    count = f"{least.products} product{'' if least.products == 1 else 's'} at {least.gflops:.0f} GFLOP/s"
    return [f"a step of {count} and its tensors take {told} at the least"]


def _not_starved(
    run: Explained,
    costs: Sequence[tuple[float, int, float]],
    lines: Sequence[str],
    used: Mapping[int, Use],
    speeds: Mapping[int, Speed],
) -> list[str]:
    """Return what rules it out: each task's figures with the thresholds that they did not reach."""
    tasks = sorted(used.keys() | speeds.keys())
    told = [
        f"{line.replace('; ', ', ')}, {_threshold(used.get(task), speeds.get(task))}"
        for task, line in zip(tasks, lines, strict=True)
    ]
    warm = warm_s(run)
    if not costs or warm is None:
        return told
    cost, task, lost = max(costs)
    whole = part_text(max(0.0, cost), warm)
    first = f"task:{task} lost {percent(lost)} of its compute, {whole} of a step at most, a cause from 15 % on"
    return [first, *_least_line(run), *lines]


def _threshold(use: Use | None, speed: Speed | None) -> str:
    """Return from where on a task's figures say that it is starved."""
    if speed is not None and use is not None:
        return f"starved at {percent(SLOWED)} of the peak or less and {percent(WAITED)} without a CPU or more"
    if speed is not None:
        return f"starved at {percent(SLOWED_ALONE)} of the peak or less"
    if use is None or use.taken is None:
        return f"starved from {percent(WAITED_ALONE)} on"
    return (
        f"starved from {percent(WAITED_ALONE)} on, or from {percent(WAITED)} on where others take "
        f"{percent(TAKEN)} of the CPUs: they took {percent(use.taken)}"
    )


def _lost(use: Use | None, speed: Speed | None) -> float | None:
    """Return the share of its compute time that a task lost for want of a CPU, None if it did not."""
    if speed is not None:
        least = SLOWED_ALONE if use is None else SLOWED
        waited = use is None or use.lost >= WAITED
        return 1 - speed.reach / UNDISTURBED if speed.reach <= least and waited else None
    if use is None:
        return None
    if use.taken is not None and use.taken >= TAKEN and use.lost >= WAITED:
        return use.taken
    return use.lost if use.lost >= WAITED_ALONE else None


def _speeds(run: Explained, used: dict[int, Use]) -> dict[int, Speed]:
    """Return how fast the products ran, and could have run; by task, as far as both are known.

    The other nodes' speeds count only where it is known whether the task had to wait: else it may just be slower.
    """
    baseline, parameters = run.data.record.baseline, run.data.record.parameters
    size = parameters.size
    if parameters.device != "cpu" or size is None:
        return {}
    fastest = _fastest(run)
    found = {}
    for task, each in _traced(run).items():
        measured = None if baseline is None else baseline.peak(node_of(run, task))
        alike = _alike(run, task) if task in used else []
        could = [fastest[other] for other in alike if other in fastest] if len(alike) > 1 else []
        if measured is not None and size >= _LEAST_SIZE_SHARE * measured.size:
            could.append(measured.gflops)
        if could:
            found[task] = Speed(median(each), max(*could, median(each)))
    return found


def _alike(run: Explained, task: int) -> list[int]:
    """Return the tasks on nodes of the same make as a task's own, itself included."""
    kinds = {node.task: (node.cpu_model, node.cpus) for node in run.data.record.nodes}
    own = kinds.get(task, ("", None))
    return [other for other, kind in kinds.items() if kind == own] if all(own) else []


def _traced(run: Explained) -> dict[int, list[float]]:
    """Return the speed of each task's products in the traced steps, GFLOP/s."""
    speeds: dict[int, list[float]] = {}
    for trace in run.traces:
        for each in trace.tasks:
            if each.gflops is not None and each.gflops > 0:
                speeds.setdefault(each.task, []).append(each.gflops)
    return speeds


def _fastest(run: Explained) -> dict[int, float]:
    """Return the best of them, by task."""
    return {task: max(speeds) for task, speeds in _traced(run).items()}


def _computes_s(run: Explained, task: int, warm: float) -> float:
    """Return how long a task computes on the critical path of a warm step; all of it without a trace."""
    if run.split is None:
        return warm
    rows = run.split.rows
    return sum(row.seconds for row in rows if row.what == "compute" and row.task == task)


def _speed_line(run: Explained, task: int, use: Use | None, speed: Speed | None) -> str:
    parts = []
    if speed is not None:
        parts.append(
            f"its products ran at {speed.gflops:.0f} GFLOP/s, {percent(speed.reach)} of the {speed.peak:.0f} "
            "that such a node can do"
        )
    if use is not None:
        waited = part_text(use.wait_s, use.cpu_s + use.wait_s)
        parts.append(f"its threads were ready but without a CPU for {waited} of their time")
    return f"task:{task} on {node_of(run, task)}: {'; '.join(parts)}"


def _whose_doing(run: Explained, node: str, use: Use | None) -> tuple[list[str], str]:
    """Return who takes a node's CPU, as evidence and as remedy."""
    facts = _facts(run, node)
    if facts is not None and facts.cpu_limit is not None and facts.cpu_limit < (facts.cpus or 1):
        limit = f"a control group grants {node} {facts.cpu_limit:g} of {cpus_text(facts.cpus or 1)}"
        return [limit], f"lift the CPU quota of {node}"
    told = None if use is None else _by_the_node(node, use)
    if told is not None:
        return told
    lines = [
        "it could be a CPU quota from outside, other load, or the hypervisor: the node cannot tell"
    ]
    if facts is not None and facts.load_1min is not None:
        on = "" if facts.cpus is None else f" on {cpus_text(facts.cpus)}"
        lines.append(f"load average of {node} before the run: {facts.load_1min:.2f}{on}")
    return lines, f"give {node} CPUs of its own: no quota, no other load"


def _by_the_node(node: str, use: Use) -> tuple[list[str], str] | None:
    """Return who takes a node's CPUs by what they did meanwhile, None if that does not tell."""
    if use.busy_s is None or use.idle_s is None or use.others_s is None:
        return None
    steal_s = use.steal_s or 0.0
    whole_s = use.busy_s + use.idle_s + steal_s
    most = max(steal_s, use.others_s, use.idle_s)
    if most < TAKEN * whole_s:
        return None
    if steal_s == most:
        line = (
            f"the hypervisor gave {part_text(steal_s, whole_s)} of {node}'s CPUs to others (steal)"
        )
        return [line], f"another machine type or host for {node}: its CPUs are shared"
    if use.others_s == most:
        line = f"the CPUs of {node} worked {part_text(most, whole_s)} for other processes"
        explained = 1 - (1 - (use.taken or 0.0)) * (1 - HEALTHY_WAIT)
        if use.lost <= explained + _WAIT_SLACK:
            return [line], f"end the other load on {node} (top shows it there)"
        more = (
            f"that explains {percent(explained)} of waiting at most, not {percent(use.lost)}: "
            "a quota from outside is likely as well"
        )
        return [line, more], f"{_LIFT.format(node=node)}, and end the other load there (top)"
    line = f"the CPUs of {node} stood idle for {part_text(most, whole_s)} meanwhile: a quota from outside"
    return [line], _LIFT.format(node=node)


def percent(share: float) -> str:
    """Return a share for people."""
    return f"{share * 100:.0f} %"


def _facts(run: Explained, node: str) -> NodeFacts | None:
    return next((each for each in run.data.record.nodes if each.name == node), None)


def _judge_slow(run: Explained) -> Verdict:
    record = run.data.record
    warm = warm_s(run)
    if not workers(run):
        return SLOW_NODE.ruled_out("0 other nodes take part")
    if record.parameters.device == "gpu":
        return SLOW_NODE.not_measured("the peaks of the GPUs", "labctl answer measures them")
    if warm is None:
        return SLOW_NODE.not_measured(*no_warm_step(run))
    baseline = record.baseline
    peaks = {node.task: baseline.peak(node.name) if baseline else None for node in record.nodes}
    known = {task: peak for task, peak in peaks.items() if peak is not None and peak.gflops > 0}
    if len(known) < len(peaks):
        missing = ", ".join(node_of(run, task) for task in peaks if task not in known)
        return SLOW_NODE.not_measured(f"the peak of {missing}", "labctl check --compute")
    traced = _fastest(run)
    best_peak = max(peak.gflops for peak in known.values())
    if not known.keys() <= traced.keys():
        return _slow_by_peaks(run, {peak.node: peak.gflops for peak in known.values()})
    best_traced = max(traced.values())
    lines = [
        f"{peak.node}: {peak.gflops:.1f} GFLOP/s by itself on {cpus_text(peak.threads)}, "
        f"{traced[task]:.1f} in the traced steps{_too_low(traced[task], peak.gflops)}"
        for task, peak in known.items()
    ]
    used = uses(run)
    speeds = _speeds(run, used)
    costs = []
    shares = {}
    for task, peak in known.items():
        # A peak that was measured while the node was busy with something else is not believed by itself.
        share = shares[task] = max(peak.gflops / best_peak, traced[task] / best_traced)
        if share < WEAKER and _lost(used.get(task), speeds.get(task)) is None:
            costs.append((_computes_s(run, task, warm) * (1 - share), task, share))
    if not costs or not matters(max(costs)[0], warm):
        slowest = min(shares, key=lambda each: shares[each])
        told = f"{node_of(run, slowest)} has {percent(shares[slowest])} of the best node's speed"
        if costs:
            told += f", which costs {part_text(max(costs)[0], warm)}, a cause from 15 % on"
        elif shares[slowest] < WEAKER:
            told += ", counted in cpu-starved"
        else:
            told += f", slow is below {percent(WEAKER)}"
        return SLOW_NODE.ruled_out(told, *lines)
    cost, task, share = max(costs)
    node = node_of(run, task)
    return SLOW_NODE.found(
        cost,
        lines,
        remedy=f"give {node} the machine type of the others, or less of the work",
        title=f"{node} computes at {percent(share)} of the best node's speed",
    )


def _too_low(traced: float, peak: float) -> str:
    return ": that peak was measured on a busy host" if traced >= 1.005 * peak else ""


def _slow_by_peaks(run: Explained, peaks: dict[str, float]) -> Verdict:
    """Return what the nodes' own peaks say where no traced step tells each one's speed."""
    lines = [f"{node}: {peak:.1f} GFLOP/s by itself" for node, peak in peaks.items()]
    if run.trace is not None and products_ran(run) == 0:
        return SLOW_NODE.ruled_out("0 products ran in the traced step", *lines)
    least = min(peaks.values()) / max(peaks.values())
    if least < WEAKER:
        return SLOW_NODE.not_measured(*no_trace(run))
    return SLOW_NODE.ruled_out(
        f"the weakest node has {percent(least)} of the best one's peak, slow is below {percent(WEAKER)}",
        *lines,
    )


def _judge_clock(run: Explained) -> Verdict:
    absurd = [clock for clock in run.clocks if clock.absurd]
    record = run.data.record
    told = ((record.remote.node, own(run)), *run.data.server_events.items())
    jumps = {node: jump for node, events in told if (jump := _jump_s(events)) is not None}
    lines = [
        f"clock of {clock.node}: {clock.offset_s * 1e3:+.2f} ms ± {clock.error_s * 1e3:.2f} ms to labctl's"
        + ("" if clock.drift_s is None else f", moved {clock.drift_s * 1e3:+.2f} ms in the run")
        for clock in run.clocks
    ]
    leapt = {node: jump for node, jump in jumps.items() if abs(jump) > _JUMP_S}
    if absurd or leapt:
        node = next(iter(leapt), absurd[0].node if absurd else "")
        said = [
            f"clock of {name} leapt by {time_text(jump)} in mid-run" for name, jump in leapt.items()
        ]
        said.extend(
            f"two measurements of {clock.node}'s clock contradict each other beyond their bounds"
            for clock in absurd
        )
        return CLOCK_JUMP.found(
            None,
            [*said, *lines, "times of that node in this run are not to be trusted"],
            remedy=f"on {node}: sudo systemctl restart chrony && chronyc waitsync 10; then run it again",
            title=f"The clock of {node} was set in mid-run",
        )
    if not lines and not jumps:
        return CLOCK_JUMP.not_measured("no clock was measured", "labctl check measures the clocks")
    lines.extend(
        f"clock of {node} went on steadily: off by {time_text(abs(jump))} at most between two events"
        for node, jump in jumps.items()
    )
    return CLOCK_JUMP.ruled_out(*lines)


def _jump_s(events: Iterable[Event]) -> float | None:
    """Return the largest step of a clock against the monotonic one within a process, what a slew may do left out.

    None where there are no two events to compare.
    """
    jumps = []
    for before, now in pairwise(events):
        passed_s = (now.mono_ns - before.mono_ns) / 1e9
        if now.kind == wire.HELLO or before.source != now.source:
            continue  # another process, perhaps of another boot
        step_s = (now.t_ns - before.t_ns) / 1e9 - passed_s
        jumps.append(step_s if abs(step_s) > abs(passed_s) * _SLEW else 0.0)
    return max(jumps, key=abs, default=None)


RULES: tuple[Rule, ...] = (
    CPU_STARVED.rule(_judge_starved),
    SLOW_NODE.rule(_judge_slow),
    CLOCK_JUMP.rule(_judge_clock),
)
