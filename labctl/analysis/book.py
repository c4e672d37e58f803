"""What is to be foreseen, and the constants for it, looked up in the facts of earlier runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labctl.analysis.constants import NOTHING, Figure, Range, RunFacts, figure, largest
from labctl.errors import RecordError
from labctl.runs.baseline import Baseline
from labctl.runs.record import Parameters

FAR = 1.5  # a size that differs by more than this factor from what was measured is told
_LEAST = 1e-12  # of a difference that noise turned round
SamplesOf = Callable[[RunFacts], Sequence[float]]


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
        command: It is a command of its own, not part of a batch.
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
    command: bool = True

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


def work_of(parameters: Parameters, tasks: int, *, command: bool = True) -> Work | str:
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
    if (
        not parameters.size
        or not parameters.power
        or min(parameters.size, parameters.power, tasks) < 1
    ):
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
        command=command,
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
        self._notes: dict[str, None] = {}
        self._samples: dict[str, dict[int, list[float]]] = {}
        self._figures: dict[tuple[str, int], Figure | None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be known, one line each."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        self._notes[text] = None

    def keep(self, found: Figure) -> Figure:
        """Keep a figure for the list of what was used, and return it."""
        self.used[found.name] = found
        return found

    def compute(self, work: Work, task: int) -> Range:
        """Return the time of one task's products.

        Raises:
            RecordError: Neither a traced step nor the baseline has their rate.
        """
        if work.products == 0:
            return NOTHING
        if self.product is not None:
            return self.product
        node = self._node(task)
        name = f"products on {node}"
        found = self._nearest(
            name, "GFLOP/s", "traced steps", work.size,
            lambda run: run.gflops.get(task, ()) if _in_lab(run) else (),
        )  # fmt: skip
        found = found or self._from_baseline(
            name,
            "GFLOP/s",
            "numpy's product; TensorFlow's was not measured",
            lambda baseline: None if (peak := baseline.peak(node)) is None else peak.gflops,
        )
        if found is None:
            raise no_constants(f"the rate of products on {node}")
        return self.keep(found).time_of(work.gflop)

    def transfer(self, work: Work, *, out: bool) -> Range:
        """Return the time of one matrix between task 0 and the slowest of the others.

        Raises:
            RecordError: Neither a traced step nor the baseline has the rate.
        """
        found = [self._wire(work, task, out=out) for task in self.others(work)]
        return largest(each.time_of(work.matrix_mb) for each in found)

    def others(self, work: Work) -> list[int]:
        """Return the tasks beside 0 of which there are figures; the lab's last stands for those it has not."""
        machines = len(self.facts[-1].machines) if self.facts else 1
        if work.tasks > machines:
            self.note(f"the lab has {machines} nodes; the others are taken to be like its last one")
        return list(range(1, min(work.tasks, machines))) or [1]

    def overhead(self, work: Work) -> Range:
        """Return the step that computes nothing."""
        found = self._placed(
            "overhead of a step", "s", "null steps", work, None,
            lambda run: () if run.null_s is None else (run.null_s,),
        )  # fmt: skip
        if found is None:
            self.note("the overhead of a step was not measured: it is left out")
            return NOTHING
        return found.range

    def fetch(self, work: Work) -> Range:
        """Return the result's way to Python."""
        if work.fetch == "none":
            return NOTHING

        def samples_of(run: RunFacts) -> Sequence[float]:
            if run.warm_s is None or run.no_fetch_s is None:
                return ()
            return (max((run.warm_s - run.no_fetch_s) / run.matrix_bytes * 1e6, _LEAST),)

        found = self._placed("fetch", "s/MB", "no-fetch steps", work, work.size, samples_of)
        if found is None:
            self.note("the fetch was not measured: it is left out")
            return NOTHING
        return found.range.times(work.matrix_mb)

    def shared(self, work: Work) -> Range | None:
        """Return the products of all tasks on one node as such runs had them, None without any."""
        if self.product is not None or work.placement == "lab":
            return None

        def samples_of(run: RunFacts) -> Sequence[float]:
            its = work_or_like(run)
            rest_s = (run.no_fetch_s or run.warm_s or 0.0) - (run.null_s or 0.0)
            if run.parameters.placement != work.placement or rest_s <= 0:
                return ()
            return (its.tasks * its.gflop / rest_s,)

        name = f"all products, {work.placement}"
        source = f"warm steps of {work.placement} runs"
        found = self._nearest(name, "GFLOP/s", source, work.size, samples_of)
        return None if found is None else self.keep(found).time_of(work.tasks * work.gflop)

    def _wire(self, work: Work, task: int, *, out: bool) -> Figure:
        way = (0, task) if out else (task, 0)
        source, target = (self._node(each) for each in way)
        name = f"tensors {source} to {target}"
        found = self._nearest(
            name, "MB/s", "traced steps", work.size,
            lambda run: _rates(run, way) if _in_lab(run) else (),
        )  # fmt: skip
        found = found or self._from_baseline(
            name,
            "MB/s",
            "the network alone; tensors were not measured",
            lambda baseline: (
                None if (link := baseline.link(source, target)) is None else link.bits_per_s / 8e6
            ),
        )
        if found is None:
            raise no_constants(f"the rate of tensors from {source} to {target}")
        return self.keep(found)

    def _placed(
        self, name: str, unit: str, source: str, work: Work, size: int | None, samples_of: SamplesOf
    ) -> Figure | None:
        """Return a figure of runs of the same placement; of all, with a note, if those have none."""

        def same(run: RunFacts) -> Sequence[float]:
            return samples_of(run) if run.parameters.placement == work.placement else ()

        found = self._nearest(f"{name}, {work.placement}", unit, source, size, same)
        if found is None:
            found = self._nearest(name, unit, source, size, samples_of)
            if found is not None:
                self.note(f"{name}: no run with --placement {work.placement} yet; it is of others")
        return None if found is None else self.keep(found)

    def _nearest(
        self, name: str, unit: str, source: str, size: int | None, samples_of: SamplesOf
    ) -> Figure | None:
        """Return the figure of the runs whose L is nearest to a size by ratio, of all where it does not matter."""
        if name not in self._samples:
            by_size: dict[int, list[float]] = {}
            for run in self.facts:
                samples = samples_of(run)
                if samples and run.size > 0:
                    by_size.setdefault(run.size if size is not None else 0, []).extend(samples)
            self._samples[name] = by_size
        by_size = self._samples[name]
        if not by_size:
            return None
        best = 0 if size is None else min(by_size, key=lambda each: (distance(each, size), each))
        if (name, best) not in self._figures:
            self._figures[name, best] = figure(name, unit, by_size[best], source)
        if size is not None and distance(best, size) > math.log(FAR):
            self.note(f"{name}: measured at L {best}, not near L {size}")
        return self._figures[name, best]

    def _from_baseline(
        self, name: str, unit: str, source: str, value_of: Callable[[Baseline], float | None]
    ) -> Figure | None:
        """Return the newest value that a run's baseline has."""
        for run in reversed(self.facts):
            value = None if run.baseline is None else value_of(run.baseline)
            if value is not None:
                return figure(name, unit, [value], source)
        return None

    def _node(self, task: int) -> str:
        machines = self.facts[-1].machines if self.facts else ()
        return machines[min(task, len(machines) - 1)][0] if machines else f"task:{task}"


def distance(one: int, other: int) -> float:
    """Return how far two sizes are apart: the logarithm of their ratio, 0 or more."""
    return abs(math.log(one / other))


def _in_lab(run: RunFacts) -> bool:
    return run.parameters.placement == "lab"


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
