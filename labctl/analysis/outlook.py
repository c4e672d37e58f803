"""A prediction with what stands beside it: one node instead of several, and a GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labctl.analysis import ptx
from labctl.analysis.book import no_constants
from labctl.analysis.breakeven import (
    WireBound,
    gpu_step,
    least_power,
    least_power_on_gpu,
    least_size,
    wire_bound,
)
from labctl.analysis.constants import Range, RunFacts
from labctl.analysis.predict import Prediction
from labctl.analysis.ptx import Gpu, KernelBound
from labctl.analysis.score import alike, foresee
from labctl.analysis.work import Work, device_of
from labctl.errors import RecordError
from labctl.runs.baseline import Baseline


@dataclass(frozen=True, slots=True)
class OnGpu:
    """The same work if its products ran on a GPU: bounds, nothing of it was measured. Seconds.

    Attributes:
        gpu: Which.
        bounds: Of one product, by way to write it.
        library: Of one product by a GEMM library, best and worst.
        step: A warm step, None without the lab's constants.
        least_power: The n from which on that step is shorter than the CPUs', None if it never is or is not known.
    """

    gpu: Gpu
    bounds: tuple[KernelBound, ...]
    library: tuple[float, float]
    step: Range | None
    least_power: int | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What `labctl plan` shows.

    Attributes:
        work: Of what.
        prediction: None where the lab has no constants and only a GPU was asked about.
        why_not: Why there is no prediction, "" if there is one.
        one_node: Warm step of all tasks in one process, seconds; None where that is what is asked for.
        least_power: The n from which on the lab is faster than one node, None if it never is.
        least_size: The L from which on it is.
        product_s: One product on task 0's CPUs, seconds, None if not measured.
        on_gpu: The GPU asked about.
        on_cpu: The warm step on the lab's CPUs, seconds; None where that is what is asked for, or not known.
        gpu_least_power: The n from which on the lab's GPUs are faster than its CPUs; None if they never are, or
            that is not known.
        wire_bound: When products on the lab's GPUs outweigh the wire; None on CPUs and one node.
    """

    work: Work
    prediction: Prediction | None
    why_not: str
    one_node: Range | None
    least_power: int | None
    least_size: int | None
    product_s: float | None
    on_gpu: OnGpu | None
    on_cpu: Range | None = None
    gpu_least_power: int | None = None
    wire_bound: WireBound | None = None


def look_ahead(
    work: Work, facts: Sequence[RunFacts], gpu: Gpu | None, baseline: Baseline | None = None
) -> Outlook:
    """Return what is foreseen of a work, and what other ways to do it would take.

    Args:
        work: The run.
        facts: The lab's runs that ended ok, oldest first.
        gpu: A GPU to hold beside, or None.
        baseline: The lab's own; only predictions for its GPUs look at it.

    Raises:
        RecordError: The lab has no constants, and no GPU was asked about.
    """
    prediction, why_not = None, ""
    known_by_probe = work.device == "gpu" and baseline is not None
    try:
        if not facts and not known_by_probe:
            raise no_constants("anything on the machines as they are")
        prediction = foresee(work, facts, baseline)
    except RecordError as error:
        if gpu is None:
            raise
        why_not = error.found
    known = alike(facts, facts[-1], work.device) if facts else []
    one = replace(work, placement="one-process")
    compares = prediction is not None and work.placement == "lab" and work.tasks > 1
    outlook = Outlook(
        work=work,
        prediction=prediction,
        why_not=why_not,
        one_node=foresee(one, facts, baseline).warm if compares else None,
        least_power=least_power(work, one, known, baseline) if compares else None,
        least_size=least_size(work, one, known, baseline) if compares else None,
        product_s=None if prediction is None else _product_s(prediction),
        on_gpu=None if gpu is None else _on_gpu(work, known if prediction else [], gpu),
    )
    if prediction is None or work.device != "gpu":
        return outlook
    if compares:
        outlook = replace(outlook, wire_bound=wire_bound(work, known, baseline))
    cpu = replace(work, device="cpu")
    try:
        on_cpu = foresee(cpu, facts).warm
        return replace(
            outlook, on_cpu=on_cpu, gpu_least_power=least_power(work, cpu, known, baseline)
        )
    except RecordError:
        return outlook


def _product_s(prediction: Prediction) -> float | None:
    """Return one product on the first task whose rate was used."""
    for each in prediction.constants:
        if each.name.startswith("products on ") and each.range.value > 0:
            return 2 * prediction.work.size**3 / 1e9 / each.range.value
    return None


def _on_gpu(work: Work, known: Sequence[RunFacts], gpu: Gpu) -> OnGpu:
    cpu, step, power = replace(work, device="cpu"), None, None
    if any(device_of(each.parameters) == "cpu" for each in known):
        step, power = gpu_step(cpu, known, gpu), least_power_on_gpu(cpu, known, gpu)
    return OnGpu(gpu, ptx.bounds(gpu, work.size), ptx.library_s(gpu, work.size), step, power)
