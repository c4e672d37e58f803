"""The constants for what is to be foreseen, looked up in the facts of earlier runs and in baselines. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from labctl.analysis.constants import NOTHING, Figure, Range, RunFacts, figure, largest
from labctl.analysis.work import Work, device_of, work_or_like
from labctl.errors import RecordError
from labctl.runs.baseline import Baseline, GpuBaseline

FAR = 1.5  # a size that differs by more than this factor from what was measured is told
_LEAST = 1e-12  # of a difference that noise turned round
SamplesOf = Callable[[RunFacts], Sequence[float]]


class Book:
    """Looks constants up in the runs of one device type and keeps which were used.

    Where no GPU run has measured a constant that does not depend on the device, CPU runs stand in.

    Args:
        facts: The runs, of any device type.
        product: A task's products of one step, if they are not those of the lab's own devices.
        device: `cpu` or `gpu`.
        baseline: The lab's own, which is newer than those of its runs.
    """

    def __init__(
        self,
        facts: Sequence[RunFacts],
        product: Range | None = None,
        *,
        device: str = "cpu",
        baseline: Baseline | None = None,
    ) -> None:
        kinds = [(device_of(each.parameters), each) for each in facts]
        self.own = [each for kind, each in kinds if kind == device]
        self.lent = [each for kind, each in kinds if device == "gpu" and kind == "cpu"]
        self.product = product
        self._device = device
        known = (each.baseline for each in reversed(facts))
        self._baselines = [each for each in (baseline, *known) if each is not None]
        self._names = _names(facts, self._baselines)
        self.used: dict[str, Figure] = {}
        self._notes: dict[str, None] = {}
        self._borrowed: list[str] = []
        self._samples: dict[str, dict[int, list[float]]] = {}
        self._figures: dict[tuple[str, int], Figure | None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be known, one line each."""
        if not self._borrowed:
            return tuple(self._notes)
        return (*self._notes, f"of CPU runs, as no GPU run has them: {', '.join(self._borrowed)}")

    @property
    def facts(self) -> Sequence[RunFacts]:
        """The runs of the device type; those that stand in for them where there are none."""
        return self.own or self.lent

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
        if self._device == "gpu":
            return self._gpu_compute(work, task)
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

    def _gpu_compute(self, work: Work, task: int) -> Range:
        """Return the time of one task's products on its GPU, no less than launching them takes.

        Raises:
            RecordError: Neither a traced GPU run nor the probe has their rate.
        """
        rate = self.keep(self.gpu_rate(work, task))
        gpu = self.gpu(task)
        least_s = work.products * (gpu.launch_s or 0.0) if gpu is not None else 0.0
        return largest((rate.time_of(work.gflop), Range(least_s, least_s, least_s)))

    def gpu_rate(self, work: Work, task: int) -> Figure:
        """Return the rate of products on a task's GPU, GFLOP/s.

        Raises:
            RecordError: Neither a traced GPU run nor the probe has it.
        """
        node = self._node(task)
        name = f"GPU products on {node}"
        found = self._nearest(
            name, "GFLOP/s", "traced GPU steps", work.size,
            lambda run: run.gflops.get(task, ()) if _in_lab(run) else (), lent=False,
        )  # fmt: skip
        if found is not None:
            return found
        gpu = self._gpu_of(task)
        if distance(gpu.size, work.size) > math.log(FAR):
            self.note(f"{name}: measured at L {gpu.size}, not near L {work.size}")
        shares = [
            gpu.warm_product_s / each if each else 1.0 for each in (gpu.warm_high_s, gpu.warm_low_s)
        ]
        span = Range(gpu.gflops, gpu.gflops * min(1.0, *shares), gpu.gflops * max(1.0, *shares))
        return Figure(name, "GFLOP/s", span, 1, f"the probe, {gpu.name}")

    def copies(self, work: Work, task: int) -> Range:
        """Return the time of a task's input, if it is fed, and result between its node's memory and its GPU.

        The probe's page-locked memory is the value, its ordinary memory the far end of the range.

        Raises:
            RecordError: Neither a traced GPU run nor the probe has the rates.
        """
        if self._device != "gpu" or self.product is not None:
            return NOTHING
        total = NOTHING
        for kind, words in (("h2d", "copies to the GPU"), ("d2h", "copies from the GPU")):
            if kind == "d2h" or work.feed == "fed":
                found = self._copy_rate(work, task, kind, f"{words} of {self._node(task)}")
                total = total + self.keep(found).time_of(work.matrix_mb)
        return total

    def _copy_rate(self, work: Work, task: int, kind: str, name: str) -> Figure:
        found = self._nearest(
            name, "MB/s", "traced GPU steps", work.size,
            lambda run: run.copies.get((task, kind), ()) if _in_lab(run) else (), lent=False,
        )  # fmt: skip
        if found is not None:
            return found
        gpu = self._gpu_of(task)
        fast, slow = (
            (gpu.h2d_bytes_per_s, gpu.h2d_pageable_bytes_per_s)
            if kind == "h2d"
            else (gpu.d2h_bytes_per_s, gpu.d2h_pageable_bytes_per_s)
        )
        rates = (fast / 1e6, (slow or fast) / 1e6)
        return Figure(
            name, "MB/s", Range(rates[0], min(rates), max(rates)), 1, f"the probe, {gpu.name}"
        )

    def gpu(self, task: int) -> GpuBaseline | None:
        """Return what the probe measured of a task's GPU, None if it did not."""
        found = (each.gpu(self._node(task)) for each in self._baselines)
        return next((each for each in found if each is not None), None)

    def _gpu_of(self, task: int) -> GpuBaseline:
        gpu = self.gpu(task)
        if gpu is None:
            raise no_gpu_figures(self._node(task))
        return gpu

    def transfer(self, work: Work, *, out: bool) -> Range:
        """Return the time of one matrix between task 0 and the slowest of the others.

        Raises:
            RecordError: Neither a traced step nor the baseline has the rate.
        """
        return largest(each.time_of(work.matrix_mb) for each in self.wires(work, out=out))

    def wires(self, work: Work, *, out: bool) -> list[Figure]:
        """Return the rate of tensors between task 0 and each of the others, MB/s.

        Raises:
            RecordError: As `transfer`.
        """
        return [self._wire(work, task, out=out) for task in self.others(work)]

    def others(self, work: Work) -> list[int]:
        """Return the tasks beside 0 of which there are figures; the lab's last stands for those it has not."""
        machines = len(self._names) or 1
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
        self,
        name: str,
        unit: str,
        source: str,
        size: int | None,
        samples_of: SamplesOf,
        *,
        lent: bool = True,
    ) -> Figure | None:
        """Return the figure of the runs whose L is nearest to a size by ratio, of all where it does not matter."""
        if name not in self._samples:
            found = _by_size(self.own, size, samples_of)
            if not found and lent and (found := _by_size(self.lent, size, samples_of)):
                self._borrowed.append(name)
            self._samples[name] = found
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
        """Return the newest value that a baseline has."""
        values = (value_of(each) for each in self._baselines)
        value = next((each for each in values if each is not None), None)
        return None if value is None else figure(name, unit, [value], source)

    def _node(self, task: int) -> str:
        return self._names[min(task, len(self._names) - 1)] if self._names else f"task:{task}"


def _names(facts: Sequence[RunFacts], baselines: Sequence[Baseline]) -> tuple[str, ...]:
    """Return the nodes in task order: those of the newest run, or those of which there are figures."""
    if facts:
        return tuple(name for name, _, _ in facts[-1].machines)
    return tuple(baselines[0].boot_ids) if baselines else ()


def _by_size(
    runs: Sequence[RunFacts], size: int | None, samples_of: SamplesOf
) -> dict[int, list[float]]:
    """Return samples by the L of their run; all under 0 where it does not matter."""
    found: dict[int, list[float]] = {}
    for run in runs:
        samples = samples_of(run)
        if samples and run.size > 0:
            found.setdefault(run.size if size is not None else 0, []).extend(samples)
    return found


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


def no_constants(what: str) -> RecordError:
    """Return the error for a lab that has not measured what a prediction needs."""
    return RecordError(
        f"no run of this lab has measured {what}",
        expected="one run with a trace on the machines as they are now",
        do="labctl run",
    )


def no_gpu_figures(node: str) -> RecordError:
    """Return the error for a GPU that nothing has measured."""
    return RecordError(
        f"nothing has measured a GPU of {node}",
        expected="the probe's figures of every node, or a traced GPU run on the machines as they are",
        do="labctl check --gpu-probe",
    )
