"""A prediction with what stands beside it: one node instead of several, and a GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labctl.analysis import ptx
from labctl.analysis.book import Work, no_constants
from labctl.analysis.breakeven import gpu_step, least_power, least_power_on_gpu, least_size
from labctl.analysis.constants import Range, RunFacts
from labctl.analysis.predict import Prediction
from labctl.analysis.ptx import Gpu, KernelBound
from labctl.analysis.score import alike, foresee
from labctl.errors import RecordError


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
    """

    work: Work
    prediction: Prediction | None
    why_not: str
    one_node: Range | None
    least_power: int | None
    least_size: int | None
    product_s: float | None
    on_gpu: OnGpu | None


def look_ahead(work: Work, facts: Sequence[RunFacts], gpu: Gpu | None) -> Outlook:
    """Return what is foreseen of a work, and what other ways to do it would take.

    Args:
        work: The run.
        facts: The lab's runs that ended ok, oldest first.
        gpu: A GPU to hold beside, or None.

    Raises:
        RecordError: The lab has no constants, and no GPU was asked about.
    """
    prediction, why_not = None, ""
    try:
        if not facts:
            raise no_constants("anything on the machines as they are")
        prediction = foresee(work, facts)
    except RecordError as error:
        if gpu is None:
            raise
        why_not = error.found
    known = alike(facts, facts[-1]) if facts else []
    one = replace(work, placement="one-process")
    compares = prediction is not None and work.placement == "lab" and work.tasks > 1
    return Outlook(
        work=work,
        prediction=prediction,
        why_not=why_not,
        one_node=foresee(one, facts).warm if compares else None,
        least_power=least_power(work, one, known) if compares else None,
        least_size=least_size(work, one, known) if compares else None,
        product_s=None if prediction is None else _product_s(prediction),
        on_gpu=None if gpu is None else _on_gpu(work, known if prediction else [], gpu),
    )


def _product_s(prediction: Prediction) -> float | None:
    """Return one product on the first task whose rate was used."""
    for each in prediction.constants:
        if each.name.startswith("products on ") and each.range.value > 0:
            return 2 * prediction.work.size**3 / 1e9 / each.range.value
    return None


def _on_gpu(work: Work, known: Sequence[RunFacts], gpu: Gpu) -> OnGpu:
    return OnGpu(
        gpu=gpu,
        bounds=ptx.bounds(gpu, work.size),
        library=ptx.library_s(gpu, work.size),
        step=gpu_step(work, known, gpu) if known else None,
        least_power=least_power_on_gpu(work, known, gpu) if known else None,
    )
