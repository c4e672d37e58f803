"""When two nodes beat one, and when a GPU would: the same model with the work varied. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labctl.analysis.book import Book, Work
from labctl.analysis.constants import Range, RunFacts
from labctl.analysis.predict import step_of
from labctl.analysis.ptx import Gpu

MAX_POWER = 1_000
MAX_SIZE = 23_170
_GPU_SHARES = (0.5, 0.8, 0.2)  # of the peak: middle, best, worst; see `ptx.library_s`


def gpu_step(work: Work, facts: Sequence[RunFacts], gpu: Gpu) -> Range:
    """Return the warm step if every task's products ran on a GPU: a bound, nothing of it was measured.

    The products take 2 p L^3 / (share x peak), 50 % of the peak in the middle, 80 % at best, 20 % at worst. Each
    input and each result crosses PCIe at its peak. Overhead, wires and fetch are the lab's.

    Raises:
        RecordError: As `predict`.
    """
    middle, best, worst = (
        2 * work.products * work.size**3 / (s * gpu.peak_tflops * 1e12) for s in _GPU_SHARES
    )
    copies = 2 if work.feed == "fed" else 1
    host_s = copies * work.matrix_mb / 1e3 / gpu.host_gb_per_s
    book = Book(facts, product=Range(middle + host_s, best + host_s, worst + host_s))
    return step_of(work, book)[1]


def least_power(work: Work, other: Work, facts: Sequence[RunFacts]) -> int | None:
    """Return the smallest n from which on `work` is faster than `other`, None if it never is up to `MAX_POWER`.

    Raises:
        RecordError: As `predict`.
    """

    def wins(power: int) -> bool:
        book = Book(facts)
        mine, theirs = replace(work, power=power), replace(other, power=power)
        return step_of(mine, book)[1].value < step_of(theirs, book)[1].value

    # Squaring has steps up and down in n, so the last n that loses counts, not the first that wins.
    lost = [power for power in range(1, 65) if not wins(power)]
    if not lost or lost[-1] < 64:
        return lost[-1] + 1 if lost else 1
    return next(
        (power for power in (96, 128, 192, 256, 384, 512, 768, MAX_POWER) if wins(power)), None
    )


def least_size(work: Work, other: Work, facts: Sequence[RunFacts]) -> int | None:
    """Return the smallest L from which on `work` is faster than `other`, to 1 %; None if it never is.

    All rates are those at the L nearest to the one in question that was measured.

    Raises:
        RecordError: As `predict`.
    """

    def wins(size: int) -> bool:
        book = Book(facts)
        mine, theirs = replace(work, size=size), replace(other, size=size)
        return step_of(mine, book)[1].value < step_of(theirs, book)[1].value

    sizes = [10]
    while sizes[-1] < MAX_SIZE:
        sizes.append(min(MAX_SIZE, max(sizes[-1] + 1, sizes[-1] * 101 // 100)))
    lost = [size for size in sizes if not wins(size)]
    if not lost:
        return sizes[0]
    return next((size for size in sizes if size > lost[-1]), None)
