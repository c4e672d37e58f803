"""What a warm step spends on travelling, and how much work pays for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    durations_s,
    is_matpow,
    matters,
    products_asked,
    time_text,
)
from labctl.analysis.causes.contact import workers
from labctl.analysis.steps import percentile

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.analysis.model import Edge, StepTrace

_FED = "_recv_"  # how TensorFlow names a fed input's tensor


def is_fed(edge: Edge) -> bool:
    """Return whether a tensor is a fed input."""
    return edge.tensor.startswith(_FED)


@dataclass(frozen=True, slots=True)
class Travel:
    """What a median warm step spends, seconds, along its critical path.

    Where several steps were traced, a part that travels counts with the least that it took in one of them: a hiccup
    of one step is not paid in each.

    Attributes:
        step_s: The whole step.
        compute_s: Ops.
        feed_s: Fed inputs on their way to their tasks.
        tensors_s: Other tensors between tasks.
        dispatch_s: From the client to the first op.
        fetch_s: The result's way back to Python.
    """

    step_s: float
    compute_s: float
    feed_s: float
    tensors_s: float
    dispatch_s: float
    fetch_s: float

    @property
    def transfer_s(self) -> float:
        """All that travels between tasks."""
        return self.feed_s + self.tensors_s


def travel(run: Explained) -> Travel | None:
    """Return what a warm step spends on travelling; None without a trace."""
    if run.trace is None or run.split is None:
        return None
    parts: dict[str, float] = {}
    feed_s = tensors_s = 0.0
    least_s = _least_wires_s(run)
    for row in run.split.rows:
        parts[row.what] = parts.get(row.what, 0.0) + row.seconds
        if row.what == "transfer":
            fed, other = _wire_shares(run.trace, row.source, row.task, least_s)
            feed_s += row.seconds * fed
            tensors_s += row.seconds * other
    return Travel(
        step_s=run.split.total_s,
        compute_s=parts.get("compute", 0.0),
        feed_s=feed_s,
        tensors_s=tensors_s,
        dispatch_s=parts.get("dispatch", 0.0),
        fetch_s=parts.get("fetch", 0.0) * _least_share(run, run.trace, after_ops_s),
    )


def _wire_shares(
    trace: StepTrace,
    source: int | None,
    target: int | None,
    least_s: Mapping[tuple[str, int, int], float],
) -> tuple[float, float]:
    """Return which parts of the transfers between two tasks are fed inputs and other tensors, by time on the wire.

    Each tensor counts with the least time that it took in a traced step, so both may add up to less than 1.
    """
    edges = [e for e in trace.edges if (e.source, e.target) == (source, target)]
    whole_s = sum(edge.wire_s for edge in edges)
    if whole_s <= 0:
        return 0.0, 1.0
    shares = dict.fromkeys((True, False), 0.0)
    for edge in edges:
        wire_s = least_s.get((edge.tensor, edge.source, edge.target), edge.wire_s)
        shares[is_fed(edge)] += min(wire_s, edge.wire_s) / whole_s
    return shares[True], shares[False]


def _least_wires_s(run: Explained) -> dict[tuple[str, int, int], float]:
    """Return the least time on the wire of each tensor (name, source, target) over the traced steps, seconds."""
    least_s: dict[tuple[str, int, int], float] = {}
    for edge in (edge for trace in run.traces for edge in trace.edges if not edge.clamped):
        key = edge.tensor, edge.source, edge.target
        least_s[key] = min(edge.wire_s, least_s.get(key, edge.wire_s))
    return least_s


def _least_share(run: Explained, trace: StepTrace, of: Callable[[StepTrace], float]) -> float:
    """Return the least that a part took in a traced step, as part of what it took in one of them, 0 to 1."""
    own_s = of(trace)
    return min([of(each) for each in run.traces] + [own_s]) / own_s if own_s > 0 else 1.0


def after_ops_s(trace: StepTrace) -> float:
    """Return the time from the end of a traced step's last op to its own end, seconds."""
    return max(0.0, trace.duration_s - max((op.end_s for op in trace.ops), default=0.0))


def fetch_s(run: Explained, parts: Travel) -> tuple[float, str]:
    """Return what fetching costs in a warm step, seconds, and how that was measured.

    Warm steps against the extra steps that compute the same and bring nothing back decide where their scatter is
    below the difference; else the trace, which sees the way back only as what is left after the last op.
    """
    traced = parts.fetch_s, f"{time_text(parts.fetch_s)} from the last op's end to the step's end"
    with_it, without = durations_s(run, "warm"), durations_s(run, "no_fetch")
    if not with_it or not without:
        return traced
    least = min(with_it) - min(without)
    scatter = sum(percentile(each, 50) - min(each) for each in (with_it, without))
    if scatter > max(least, parts.fetch_s):
        return traced
    rest_s = parts.step_s - parts.compute_s - parts.dispatch_s - parts.transfer_s
    return max(0.0, min(least, rest_s)), (
        f"the fastest step takes {time_text(min(with_it))}, without fetching {time_text(min(without))}"
    )


def fetch_undecided(run: Explained, parts: Travel) -> str | None:
    """Return why warm steps and those that bring nothing back do not decide, None if their medians agree."""
    with_it, without = durations_s(run, "warm"), durations_s(run, "no_fetch")
    if not with_it or not without:
        return None
    medians = percentile(with_it, 50), percentile(without, 50)
    seconds, _ = fetch_s(run, parts)
    if matters(seconds, parts.step_s) or not matters(medians[0] - medians[1], parts.step_s):
        return None
    return (
        f"median steps of {time_text(medians[0])} with fetching and {time_text(medians[1])} without, the fastest "
        f"{time_text(min(with_it))} and {time_text(min(without))}: they scatter too much"
    )


@dataclass(frozen=True, slots=True)
class BreakEven:
    """How much work a task must have for its tensors to pay.

    Attributes:
        work: Products on the busiest remote task times L.
        needed: What that must reach for compute to take as long as the tensors.
        text: Both, with the figures that they come from.
    """

    work: float
    needed: float
    text: str

    @property
    def below(self) -> bool:
        """Whether the tensors take longer than the compute."""
        return self.work < self.needed


def break_even(trace: StepTrace, size: int | None) -> BreakEven | None:
    """Return when a remote task's compute outlasts its tensors, from this run's own rates; None without them.

    A task that forms p products of L x L computes 2 p L^3 / P and moves b bytes at B: it breaks even at
    p L = b P / (2 L^2 B), which is 4 P / B where an input and a result of 4 L^2 bytes each travel.
    """
    remote = {edge.source for edge in trace.edges} | {edge.target for edge in trace.edges}
    tasks = [t for t in trace.tasks if t.task in remote and t.gflops and sum(t.products.values())]
    rated = [e for e in trace.edges if e.mb_per_s is not None and e.size_bytes]
    if size is None or not tasks or not rated:
        return None
    moved = sum(edge.size_bytes or 0 for edge in rated)
    rate = moved / sum(edge.wire_s for edge in rated)
    busiest = max(tasks, key=lambda task: sum(task.products.values()))
    per_task = moved / max(1, len(remote) - 1)
    flops = (busiest.gflops or 0.0) * 1e9
    work = sum(busiest.products.values()) * size
    needed = per_task * flops / (2 * size**2 * rate)
    text = (
        f"products x L is {work}, and {needed:.0f} would break even at {flops / 1e9:.0f} GFLOP/s "
        f"and {rate / 1e6:.0f} MB/s"
    )
    return BreakEven(work, needed, text)


@dataclass(frozen=True, slots=True)
class Least:
    """What a task's products in one step need at the least.

    Attributes:
        seconds: Their time.
        gflops: The best peak that a node of the lab is known to have.
        products: How many a task forms.
    """

    seconds: float
    gflops: float
    products: int


def least_products(run: Explained) -> Least | None:
    """Return what a step's products need at the nodes' best peak; None if their number or no peak is known."""
    record, asked = run.data.record, products_asked(run)
    parameters, baseline = record.parameters, record.baseline
    peak = max((each.gflops for each in baseline.compute), default=0.0) if baseline else 0.0
    known = is_matpow(run) and parameters.device == "cpu" and peak > 0
    if not known or asked is None or parameters.size is None:
        return None
    share = asked // max(1, record.tasks) if workers(run) else asked
    return Least(share * 2 * parameters.size**3 / (peak * 1e9), peak, share)


def least_tensors_s(run: Explained) -> float:
    """Return what a remote task's tensors need in one step at the fastest link's speed; 0.0 if none is known."""
    record = run.data.record
    links = record.baseline.links if record.baseline is not None else ()
    fastest = max((link.bits_per_s for link in links), default=0.0)
    if not workers(run) or record.parameters.size is None or fastest <= 0:
        return 0.0
    matrices = 2 if record.parameters.feed == "fed" else 1
    return matrices * 4 * record.parameters.size**2 * 8 / fastest
