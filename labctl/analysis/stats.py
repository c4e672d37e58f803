"""Medians, spreads, and the difference of two sides with its interval. Pure; the same input gives the same answer.

A side is a sequence of runs, a run a sequence of values: one for what a run has once (its wall time), many for
what it has often (its steps). Values of one run are more alike than those of two, so both levels count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from labctl.analysis.steps import percentile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Side = Sequence[Sequence[float]]
Judgement = Literal["same", "slower", "faster", "unclear"]

SEED = 20170901
RESAMPLES = 2000
RELEVANT_PERCENT = 2.0  # a smaller difference is none, however sure
NOISE_GATE_PERCENT = 25.0  # where no smaller change could be seen, "no difference" means nothing
ENOUGH_RUNS = 3  # a side: the steps of one run say nothing of how runs differ among themselves

# Student's t: degrees of freedom, the quantiles 0.975 and 0.8 (NIST/SEMATECH e-Handbook, section 1.3.6.7.2).
_T = (
    (1, 12.706, 1.376),
    (2, 4.303, 1.061),
    (3, 3.182, 0.978),
    (4, 2.776, 0.941),
    (5, 2.571, 0.920),
    (6, 2.447, 0.906),
    (7, 2.365, 0.896),
    (8, 2.306, 0.889),
    (9, 2.262, 0.883),
    (10, 2.228, 0.879),
    (12, 2.179, 0.873),
    (15, 2.131, 0.866),
    (20, 2.086, 0.860),
    (30, 2.042, 0.854),
    (60, 2.000, 0.848),
    (1000, 1.960, 0.842),
)
_Z = 1.960


@dataclass(frozen=True, slots=True)
class Summary:
    """One side by itself, in the unit of its values.

    Attributes:
        runs: Runs with at least one value.
        values: Values in all of them.
        median: Median of the runs' medians.
        p5: 5th percentile of all values.
        p95: 95th percentile of all values.
    """

    runs: int
    values: int
    median: float
    p5: float
    p95: float

    @property
    def spread_percent(self) -> float | None:
        """From p5 to p95, in percent of the median; None if that is not above 0."""
        return 100 * (self.p95 - self.p5) / self.median if self.median > 0 else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Side B against side A, in the unit of the values. None stands for what the counts do not allow.

    Attributes:
        a: Summary of side A.
        b: Summary of side B.
        change: B's median minus A's.
        low: Lower end of the 95 % interval of `change`.
        high: Upper end.
        percent: `change` in percent of A's median.
        percent_low: `low` in percent of A's median, not below -100: no time is negative.
        percent_high: `high` in percent of A's median.
        detectable: Smallest true change that this noise and these counts would show in four of five tries.
    """

    a: Summary
    b: Summary
    change: float
    low: float | None
    high: float | None
    percent: float | None
    percent_low: float | None
    percent_high: float | None
    detectable: float | None

    @property
    def detectable_percent(self) -> float | None:
        """`detectable` in percent of A's median."""
        if self.detectable is None or self.a.median <= 0:
            return None
        return 100 * self.detectable / self.a.median


def summarize(side: Side) -> Summary | None:
    """Return the summary of a side, None if it has no value."""
    runs = _with_values(side)
    if not runs:
        return None
    pooled = [value for run in runs for value in run]
    return Summary(
        runs=len(runs),
        values=len(pooled),
        median=percentile([percentile(run, 50) for run in runs], 50),
        p5=percentile(pooled, 5),
        p95=percentile(pooled, 95),
    )


def difference(a: Side, b: Side) -> Difference | None:
    """Return what distinguishes side B from side A, None if one has no value.

    The interval is that of a hierarchical bootstrap: runs are drawn anew, then steps within each run drawn (after
    Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, 2013; Davison and Hinkley, Bootstrap Methods,
    1997, 3.8). Percentile intervals of few runs are too narrow; theirs is stretched by t / z with the runs' degrees
    of freedom (Hesterberg, What Teachers Should Know About the Bootstrap, 2015). `detectable` is
    (t_0.975 + t_0.8) x the standard error (NIST/SEMATECH e-Handbook, 7.2.2.2).

    Swapping the sides changes the sign and nothing else; the order of runs and steps does not matter.
    """
    runs_a, runs_b = _with_values(a), _with_values(b)
    summary_a, summary_b = summarize(runs_a), summarize(runs_b)
    if summary_a is None or summary_b is None:
        return None
    change = summary_b.median - summary_a.median
    percent = 100 * change / summary_a.median if summary_a.median > 0 else None
    if min(summary_a.values, summary_b.values) < 2:
        return Difference(summary_a, summary_b, change, None, None, percent, None, None, None)
    draws_a, draws_b = _draws(runs_a, runs_b)
    t_interval, t_power = _student(_freedom(summary_a, summary_b))
    drawn = draws_b - draws_a
    low, high = _interval(drawn, change, t_interval / _Z)
    return Difference(
        a=summary_a,
        b=summary_b,
        change=change,
        low=low,
        high=high,
        percent=percent,
        percent_low=None if percent is None else max(-100.0, 100 * low / summary_a.median),
        percent_high=None if percent is None else 100 * high / summary_a.median,
        detectable=(t_interval + t_power) * float(drawn.std()),
    )


def enough(found: Difference) -> bool:
    """Return whether each side has runs enough for a judgement."""
    return all(side.runs >= ENOUGH_RUNS for side in (found.a, found.b))


def judge(found: Difference) -> Judgement:
    """Return what a difference amounts to, side B seen from side A.

    `slower` and `faster` need an interval without 0 and a difference of `RELEVANT_PERCENT`; `same` needs that a
    change of `NOISE_GATE_PERCENT` would have been seen; all need `ENOUGH_RUNS` runs a side.
    """
    if found.low is None or found.high is None or not enough(found):
        return "unclear"
    large = found.percent is None or abs(found.percent) >= RELEVANT_PERCENT
    if large and found.low > 0:
        return "slower"
    if large and found.high < 0:
        return "faster"
    noise = found.detectable_percent
    return "same" if noise is not None and noise <= NOISE_GATE_PERCENT else "unclear"


def _with_values(side: Side) -> list[tuple[float, ...]]:
    """Return the runs that have values, in an order that depends on the values alone."""
    return sorted(tuple(sorted(run)) for run in side if run)


def _draws(
    a: list[tuple[float, ...]], b: list[tuple[float, ...]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return medians of resampled sides; which of two sides is drawn first depends on the values alone."""
    import numpy as np

    rng = np.random.default_rng(SEED)
    if a <= b:
        first = _resampled(a, rng)
        return first, _resampled(b, rng)
    first = _resampled(b, rng)
    return _resampled(a, rng), first


def _resampled(runs: list[tuple[float, ...]], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return `RESAMPLES` medians of run medians: runs drawn with replacement, then steps within each.

    The median of m values drawn from m sorted ones is drawn at once: the k-th of m uniform numbers is distributed
    as Beta(k, m - k + 1), the next one as the smallest of the m - k that lie above it (David and Nagaraja, Order
    Statistics, 2003, 2.3 and 2.5).
    """
    import numpy as np

    counts = np.array([len(run) for run in runs])
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    values = np.concatenate([np.asarray(run, dtype=np.float64) for run in runs])
    chosen = rng.integers(0, len(runs), (RESAMPLES, len(runs)))
    if len(values) == len(runs):  # one value a run
        alone: NDArray[np.float64] = np.median(values[chosen], axis=1)
        return alone
    m, start = counts[chosen], starts[chosen]
    k = (m + 1) // 2
    lower = rng.beta(k, m - k + 1)
    above = np.maximum(m - k, 1)
    upper = lower + (1 - lower) * (1 - rng.random(m.shape) ** (1 / above))

    def at(place: NDArray[np.float64]) -> NDArray[np.float64]:
        picked: NDArray[np.float64] = values[start + np.minimum((place * m).astype(int), m - 1)]
        return picked

    medians = np.where(m % 2 == 1, at(lower), (at(lower) + at(upper)) / 2)
    drawn: NDArray[np.float64] = np.median(medians, axis=1)
    return drawn


def _interval(drawn: NDArray[np.float64], estimate: float, stretch: float) -> tuple[float, float]:
    import numpy as np

    low, high = (float(each) for each in np.percentile(drawn, (2.5, 97.5)))
    # An estimate outside of what was drawn (skewed, few values) would turn an end round: it stays where it is.
    return (
        min(low, estimate - stretch * (estimate - low)),
        max(high, estimate + stretch * (high - estimate)),
    )


def _freedom(a: Summary, b: Summary) -> int:
    """Return the degrees of freedom: of the runs, or of the steps where both sides are one run."""
    return a.runs + b.runs - 2 or a.values + b.values - 2


def _student(freedom: int) -> tuple[float, float]:
    """Return Student's t at 0.975 and 0.8, of the next smaller tabulated degrees of freedom."""
    row = max((each for each in _T if each[0] <= freedom), key=lambda each: each[0])
    return row[1], row[2]
