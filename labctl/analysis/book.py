"""What is to be foreseen, and the constants for it, looked up in the facts of earlier runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.constants import (
    NOTHING,
    Figure,
    Range,
    RunFacts,
    far,
    figure,
    largest,
    nearest,
)
from labctl.errors import RecordError
from labctl.runs.record import Parameters


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be foreseen.

    Attributes:
        size: L.
        power: n.
        algorithm: How the power is formed.
        feed: `fed` or `staged`.
        placement: `lab`, `one-host` or `one-process`.
        tasks: Matrices.
        inter_op: Threads of task 0's inter-op pool, None for TensorFlow's default: one a CPU.
        repeat: Warm steps.
        fetch: `sum` or `none`.
        trace: Traced and probe steps follow.
    """

    size: int = 1000
    power: int = 5
    algorithm: str = "chain"
    feed: str = "fed"
    placement: str = "lab"
    tasks: int = 2
    inter_op: int | None = 2
    repeat: int = 10
    fetch: str = "sum"
    trace: bool = True

    @property
    def products(self) -> int:
        """Products that one task forms in a step."""
        if self.algorithm == "listing":
            return self.power
        if self.algorithm == "squaring":
            return self.power.bit_length() + self.power.bit_count() - 2
        return self.power - 1

    @property
    def gflop(self) -> float:
        """2 p L^3 / 10^9, of one task."""
        return 2 * self.products * self.size**3 / 1e9

    @property
    def matrix_mb(self) -> float:
        """Bytes of one matrix / 10^6."""
        return 4 * self.size**2 / 1e6


def work_of(parameters: Parameters, tasks: int) -> Work | str:
    """Return the work of a run, or why the model does not hold for it."""
    if parameters.experiment != "matpow":
        return "script"
    if parameters.device != "cpu":
        return "gpu"
    if parameters.api != "session":
        return str(parameters.api)
    if parameters.feed not in {"fed", "staged"}:
        return f"feed {parameters.feed}"
    if parameters.sum_task not in {None, 0}:
        return "sum on another task"
    if not parameters.size or not parameters.power or min(parameters.size, parameters.power) < 1:
        return "size or power unknown"
    return Work(
        size=parameters.size,
        power=parameters.power,
        algorithm=parameters.algorithm or "chain",
        feed=parameters.feed,
        placement=parameters.placement or "lab",
        tasks=tasks,
        inter_op=parameters.inter_op,
        repeat=parameters.repeat or 0,
        fetch=parameters.fetch or "sum",
        trace=parameters.trace,
    )


class Book:
    """Looks constants up in the runs and keeps which were used.

    Args:
        facts: The runs.
        product: A task's products of one step, if they are not those of the lab's CPUs.
    """

    def __init__(self, facts: Sequence[RunFacts], product: Range | None = None) -> None:
        self.facts = facts
        self.product = product
        self.used: dict[str, Figure] = {}
        self.notes: list[str] = []

    def compute(self, work: Work, task: int) -> Range:
        """Return the time of one task's products."""
        if work.products == 0:
            return NOTHING
        if self.product is not None:
            return self.product
        return self._rate(work, task).time_of(work.gflop)

    def transfer(self, work: Work, *, out: bool) -> Range:
        """Return the time of one matrix between task 0 and the slowest of the others."""
        found = [self._wire(work, task, out=out) for task in self.others(work)]
        return largest(each.time_of(work.matrix_mb) for each in found)

    def others(self, work: Work) -> list[int]:
        """Return the tasks beside 0 of which there are figures; the lab's last stands for those it has not."""
        machines = len(self.facts[-1].machines) if self.facts else 1
        if work.tasks > machines:
            self.notes.append(
                f"the lab has {machines} nodes; the others are taken to be like its last one"
            )
        return list(range(1, min(work.tasks, machines))) or [1]

    def overhead(self, work: Work) -> Range:
        """Return the step that computes nothing."""
        same = [each for each in self._placed(work) if each.null_s is not None]
        found = figure(
            "overhead of a step", "s", [each.null_s or 0.0 for each in same], "null steps"
        )
        if found is None:
            self.notes.append("the overhead of a step was not measured: it is left out")
            return NOTHING
        return self.keep(found).range

    def fetch(self, work: Work) -> Range:
        """Return the result's way to Python."""
        if work.fetch == "none":
            return NOTHING
        near = nearest(
            self._placed(work),
            work.size,
            lambda each: each.no_fetch_s is not None and each.warm_s is not None,
        )
        samples = [
            ((each.warm_s or 0.0) - (each.no_fetch_s or 0.0)) / each.matrix_bytes for each in near
        ]
        if not samples:
            self.notes.append("the fetch was not measured: it is left out")
            return NOTHING
        found = figure(
            "fetch", "s/MB", [max(each * 1e6, 1e-12) for each in samples], "no-fetch steps"
        )
        assert found is not None  # noqa: S101 all samples are positive
        return self.keep(found).range.times(work.matrix_mb)

    def shared(self, work: Work) -> Range | None:
        """Return the products of all tasks on one node as such runs had them, None without any."""
        if self.product is not None or work.placement == "lab":
            return None
        near = nearest(
            [each for each in self.facts if each.parameters.placement == work.placement],
            work.size,
            lambda each: each.warm_s is not None and work_or_like(each).products > 0,
        )
        samples = []
        for each in near:
            its = work_or_like(each)
            rest_s = (each.no_fetch_s or each.warm_s or 0.0) - (each.null_s or 0.0)
            if rest_s > 0:
                samples.append(its.tasks * its.gflop / rest_s)
        name = f"all products, {work.placement}"
        found = figure(name, "GFLOP/s", samples, f"warm steps of {work.placement} runs")
        if found is None:
            return None
        self._tell_far(name, near, work.size)
        return self.keep(found).time_of(work.tasks * work.gflop)

    def _rate(self, work: Work, task: int) -> Figure:
        node = self._node(task)
        name = f"products on {node}"
        lab = [each for each in self.facts if each.parameters.placement == "lab"]
        near = nearest(lab, work.size, lambda each: bool(each.gflops.get(task)))
        samples = [sample for each in near for sample in each.gflops[task]]
        found = figure(name, "GFLOP/s", samples, "traced steps")
        if found is not None:
            self._tell_far(name, near, work.size)
            return self.keep(found)
        peaks = [
            peak.gflops
            for each in self.facts
            if each.baseline is not None and (peak := each.baseline.peak(node)) is not None
        ]
        found = figure(
            name, "GFLOP/s", peaks[-1:], "numpy's product; TensorFlow's was not measured"
        )
        if found is None:
            raise no_constants(f"the rate of products on {node}")
        return self.keep(found)

    def _wire(self, work: Work, task: int, *, out: bool) -> Figure:
        way = (0, task) if out else (task, 0)
        source, target = (self._node(each) for each in way)
        name = f"tensors {source} to {target}"
        lab = [each for each in self.facts if each.parameters.placement == "lab"]
        near = nearest(lab, work.size, lambda each: bool(_rates(each, way)))
        found = figure(
            name, "MB/s", [rate for each in near for rate in _rates(each, way)], "traced steps"
        )
        if found is not None:
            self._tell_far(name, near, work.size)
            return self.keep(found)
        links = [
            link.bits_per_s / 8e6
            for each in self.facts
            if each.baseline is not None
            and (link := each.baseline.link(source, target)) is not None
        ]
        found = figure(name, "MB/s", links[-1:], "the network alone; tensors were not measured")
        if found is None:
            raise no_constants(f"the rate of tensors from {source} to {target}")
        return self.keep(found)

    def _placed(self, work: Work) -> list[RunFacts]:
        """Return the runs of the same placement, all if there is none."""
        same = [each for each in self.facts if each.parameters.placement == work.placement]
        if not same and self.facts:
            self.notes.append(
                f"no run with --placement {work.placement} yet: overheads are those of other runs"
            )
        return same or list(self.facts)

    def _node(self, task: int) -> str:
        machines = self.facts[-1].machines if self.facts else ()
        return machines[min(task, len(machines) - 1)][0] if machines else f"task:{task}"

    def keep(self, found: Figure) -> Figure:
        """Keep a figure for the list of what was used, and return it."""
        self.used[found.name] = found
        return found

    def _tell_far(self, name: str, near: Sequence[RunFacts], size: int) -> None:
        if far(near[0].size, size):
            self.notes.append(f"{name}: measured at L {near[0].size}, not near L {size}")


def _rates(facts: RunFacts, way: tuple[int, int]) -> list[float]:
    """Return MB/s of tensors of at least half a matrix: smaller ones are all latency."""
    return [
        size_bytes / 1e6 / seconds
        for size_bytes, seconds in facts.edges.get(way, ())
        if 2 * size_bytes >= facts.matrix_bytes
    ]


def work_or_like(facts: RunFacts) -> Work:
    """Return the work of a run, as far as the model knows it."""
    work = work_of(facts.parameters, facts.tasks)
    if isinstance(work, Work):
        return work
    return Work(size=facts.size, power=facts.parameters.power or 1, tasks=facts.tasks)


def no_constants(what: str) -> RecordError:
    """Return the error for a lab that has not measured what a prediction needs."""
    return RecordError(
        f"no run of this lab has measured {what}",
        expected="one run with a trace on the machines as they are now",
        do="labctl run",
    )
