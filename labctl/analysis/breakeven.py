"""When two nodes beat one, and when a GPU would: the same model with the work varied. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.book import Book
from labctl.analysis.constants import Range, RunFacts
from labctl.analysis.predict import step_of
from labctl.analysis.ptx import Gpu
from labctl.analysis.work import Work
from labctl.runs.baseline import Baseline

MAX_POWER = 1_000
MAX_SIZE = 23_170
_POWERS = (*range(1, 65), 96, 128, 192, 256, 384, 512, 768, MAX_POWER)
_GPU_SHARES = (0.5, 0.8, 0.2)  # of the peak: middle, best, worst; see `ptx.library_s`


@dataclass(frozen=True, slots=True)
class WireBound:
    """When a task's products outweigh its matrices on the wire: from n L = 4 P / B on.

    A remote task of a fed step moves 8 L^2 bytes, input and result, and computes 2 n L^3 operations.

    Attributes:
        product: n L at which both take the same time.
        power: The n that reaches it at the L in question.
        gflops: P: the slowest GPU's products, GFLOP/s.
        mb_per_s: B: the slowest tensors, 10^6 bytes/s.
    """

    product: float
    power: int
    gflops: float
    mb_per_s: float


def wire_bound(
    work: Work, facts: Sequence[RunFacts], baseline: Baseline | None = None
) -> WireBound:
    """Return from where on a lab's GPUs are worth its wires, by measured rates.

    Raises:
        RecordError: As `predict`.
    """
    book = Book(facts, device="gpu", baseline=baseline)
    gflops = min(book.gpu_rate(work, task).range.value for task in (0, *book.others(work)))
    wires = [each for out in (True, False) for each in book.wires(work, out=out)]
    mb_per_s = min(each.range.value for each in wires)
    product = 4 * gflops * 1e9 / (mb_per_s * 1e6)
    return WireBound(product, math.ceil(product / work.size), gflops, mb_per_s)


def gpu_step(work: Work, facts: Sequence[RunFacts], gpu: Gpu) -> Range:
    """Return the warm step if every task's products ran on a GPU: a bound, nothing of it was measured.

    The products take 2 p L^3 / (share x peak), 50 % of the peak in the middle, 80 % at best, 20 % at worst. Each
    input and each result crosses PCIe at its peak. Overhead, wires and fetch are the lab's.

    Raises:
        RecordError: As `predict`.
    """
    middle, best, worst = (
        2 * work.products * work.size**3 / (share * gpu.peak_tflops * 1e12) for share in _GPU_SHARES
    )
    copies = 2 if work.feed == "fed" else 1
    host_s = copies * work.matrix_mb / 1e3 / gpu.host_gb_per_s
    book = Book(facts, product=Range(middle + host_s, best + host_s, worst + host_s))
    return step_of(replace(work, device="cpu"), book)[1]


def least_power(
    work: Work, other: Work, facts: Sequence[RunFacts], baseline: Baseline | None = None
) -> int | None:
    """Return the smallest n from which on `work` is faster than `other`, None if it never is up to `MAX_POWER`.

    Raises:
        RecordError: As `predict`.
    """
    mine, theirs = _books(work, other, facts, baseline)
    return _first_after_losses(
        _POWERS,
        lambda power: (
            step_of(replace(work, power=power), mine)[1].value
            < step_of(replace(other, power=power), theirs)[1].value
        ),
    )


def least_power_on_gpu(work: Work, facts: Sequence[RunFacts], gpu: Gpu) -> int | None:
    """Return the smallest n from which on a GPU's step is shorter than the CPUs', None if it never is.

    Raises:
        RecordError: As `predict`.
    """
    book = Book(facts)
    return _first_after_losses(
        _POWERS,
        lambda power: (
            gpu_step(replace(work, power=power), facts, gpu).value
            < step_of(replace(work, power=power), book)[1].value
        ),
    )


def least_size(
    work: Work, other: Work, facts: Sequence[RunFacts], baseline: Baseline | None = None
) -> int | None:
    """Return the smallest L from which on `work` is faster than `other`, to 1 %; None if it never is.

    All rates are those at the L nearest to the one in question that was measured.

    Raises:
        RecordError: As `predict`.
    """
    mine, theirs = _books(work, other, facts, baseline)
    sizes = [10]
    while sizes[-1] < MAX_SIZE:
        sizes.append(min(MAX_SIZE, max(sizes[-1] + 1, sizes[-1] * 101 // 100)))
    return _first_after_losses(
        sizes,
        lambda size: (
            step_of(replace(work, size=size), mine)[1].value
            < step_of(replace(other, size=size), theirs)[1].value
        ),
    )


def _books(
    work: Work, other: Work, facts: Sequence[RunFacts], baseline: Baseline | None
) -> tuple[Book, Book]:
    mine, theirs = (
        Book(facts, device=each.device, baseline=baseline if each.device == "gpu" else None)
        for each in (work, other)
    )
    return mine, theirs


def _first_after_losses(values: Sequence[int], wins: Callable[[int], bool]) -> int | None:
    """Return the value after the last that loses: gains may come and go before, as n goes through powers of 2."""
    last = max((place for place, value in enumerate(values) if not wins(value)), default=-1)
    return values[last + 1] if last + 1 < len(values) else None
