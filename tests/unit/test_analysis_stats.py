"""Medians, intervals, and what a difference amounts to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labctl.analysis.stats import (
    NOISE_GATE_PERCENT,
    Difference,
    Side,
    difference,
    enough,
    judge,
    summarize,
)

# Whole numbers: shifting and scaling them loses no bit and makes no two values equal.
RUN = st.lists(st.integers(100, 10_000).map(float), min_size=1, max_size=6)
SIDE = st.lists(RUN, min_size=1, max_size=5)


def found(a: Side, b: Side) -> Difference:
    result = difference(a, b)
    assert result is not None
    return result


def with_interval(a: Side, b: Side) -> Difference:
    result = found(a, b)
    assume(result.low is not None)
    return result


def ordered(side: Side) -> list[list[float]]:
    return sorted(sorted(run) for run in side)


def sets(
    rng: np.random.Generator, runs: int, steps: int, shift: float, between: float, within: float
) -> list[list[float]]:
    """Return runs around 100 + shift whose medians and steps vary by the given standard deviations."""
    centres = 100 + shift + between * rng.standard_normal(runs)
    return [list(centre + within * rng.standard_normal(steps)) for centre in centres]


@settings(deadline=None, max_examples=40)
@given(SIDE, SIDE)
def test_swapping_the_sides_changes_the_sign_alone(a: Side, b: Side) -> None:
    assume(ordered(a) != ordered(b))
    there, back = with_interval(a, b), found(b, a)
    assert back.change == -there.change
    assert back.low == pytest.approx(-(there.high or 0), abs=1e-9)
    assert back.high == pytest.approx(-(there.low or 0), abs=1e-9)
    assert back.detectable == pytest.approx(there.detectable)


@settings(deadline=None, max_examples=40)
@given(SIDE, SIDE, st.integers(1, 1000))
def test_shifting_both_sides_changes_no_difference(a: Side, b: Side, by: int) -> None:
    plain = with_interval(a, b)
    moved = found([[x + by for x in run] for run in a], [[x + by for x in run] for run in b])
    assert moved.change == pytest.approx(plain.change)
    assert moved.low == pytest.approx(plain.low)
    assert moved.high == pytest.approx(plain.high)
    assert moved.detectable == pytest.approx(plain.detectable)


@settings(deadline=None, max_examples=40)
@given(SIDE, SIDE, st.integers(1, 64))
def test_scaling_both_sides_scales_seconds_and_no_percent(a: Side, b: Side, by: int) -> None:
    plain = with_interval(a, b)
    scaled = found([[x * by for x in run] for run in a], [[x * by for x in run] for run in b])
    assert scaled.change == pytest.approx(plain.change * by)
    assert scaled.low == pytest.approx((plain.low or 0) * by)
    assert scaled.high == pytest.approx((plain.high or 0) * by)
    assert scaled.percent == pytest.approx(plain.percent)
    assert scaled.percent_low == pytest.approx(plain.percent_low)
    assert scaled.percent_high == pytest.approx(plain.percent_high)
    assert scaled.detectable_percent == pytest.approx(plain.detectable_percent)


@settings(deadline=None, max_examples=40)
@given(SIDE, SIDE, st.randoms(use_true_random=False))
def test_the_order_of_runs_and_steps_does_not_matter(a: Side, b: Side, random: object) -> None:
    def shuffled(side: Side) -> list[list[float]]:
        runs = [list(run) for run in side]
        for run in runs:
            random.shuffle(run)  # type: ignore[attr-defined]
        random.shuffle(runs)  # type: ignore[attr-defined]
        return runs

    assert difference(shuffled(a), shuffled(b)) == difference(a, b)


@settings(deadline=None, max_examples=40)
@given(SIDE, SIDE)
def test_the_interval_holds_the_estimate(a: Side, b: Side) -> None:
    result = with_interval(a, b)
    assert result.low is not None
    assert result.high is not None
    assert result.low <= result.change + 1e-9
    assert result.high >= result.change - 1e-9
    assert result.a.p5 <= result.a.p95
    assert result.detectable is not None
    assert result.detectable >= 0


def test_a_summary_is_of_medians_of_runs() -> None:
    summary = summarize([[1.0, 2.0, 30.0], [4.0], [], [10.0, 12.0]])
    assert summary is not None
    assert (summary.runs, summary.values, summary.median) == (3, 6, 4.0)
    assert summary.spread_percent == pytest.approx(100 * (summary.p95 - summary.p5) / 4)
    assert summarize([[], []]) is None
    assert difference([[1.0]], []) is None
    zero = summarize([[0.0, 0.0]])
    assert zero is not None
    assert zero.spread_percent is None


def test_resampled_medians_are_those_of_a_plain_bootstrap() -> None:
    rng = np.random.default_rng(7)
    for steps in (4, 5):
        side = [list(100 + 10 * rng.standard_normal(steps)) for _ in range(3)]
        result = found([[0.0, 0.0]], side)
        runs = np.array(side)[rng.integers(0, 3, (40_000, 3))]
        places = rng.integers(0, steps, (40_000, 3, steps))
        medians = np.median(np.median(np.take_along_axis(runs, places, axis=2), axis=2), axis=1)
        low, high = np.percentile(medians, (2.5, 97.5))
        stretch = 4.303 / 1.960  # Student's t of 2 degrees of freedom against the normal quantile
        assert result.low == pytest.approx(result.change - stretch * (result.change - low), abs=1.0)
        assert result.high == pytest.approx(
            result.change + stretch * (high - result.change), abs=1.0
        )


@pytest.mark.parametrize(
    ("runs", "steps", "between", "within"),
    [(3, 1, 3, 0), (4, 10, 3, 3)],
)
def test_two_sets_of_one_kind_rarely_differ_and_a_real_change_shows(
    runs: int, steps: int, between: float, within: float
) -> None:
    rng = np.random.default_rng(11)
    tries, wrong, seen = 50, 0, 0
    for _ in range(tries):
        a = sets(rng, runs, steps, 0, between, within)
        same = found(a, sets(rng, runs, steps, 0, between, within))
        wrong += judge(same) in {"slower", "faster"}
        # a change as large as what is said to be detectable
        shift = same.detectable or 0.0
        seen += judge(found(a, sets(rng, runs, steps, shift, between, within))) == "slower"
    assert wrong / tries <= 0.1
    assert seen / tries >= 0.6


def test_a_judgement_needs_enough_and_little_noise() -> None:
    three = [[100.0], [101.0], [102.0]]
    assert judge(found(three, [[200.0], [201.0], [202.0]])) == "slower"
    assert judge(found([[200.0], [201.0], [202.0]], three)) == "faster"
    assert judge(found(three, [[100.5], [101.5], [102.5]])) == "same"
    noisy = found([[50.0], [100.0], [190.0]], [[60.0], [110.0], [200.0]])
    assert (noisy.detectable_percent or 0) > NOISE_GATE_PERCENT
    assert judge(noisy) == "unclear"
    two = found(three[:2], [[200.0], [201.0]])
    assert not enough(two)
    assert judge(two) == "unclear"


def test_single_values_have_no_interval() -> None:
    result = found([[100.0]], [[200.0], [210.0]])
    assert (result.low, result.high, result.detectable) == (None, None, None)
    assert result.percent == pytest.approx(105.0)
    assert judge(result) == "unclear"


def test_steps_of_one_run_say_nothing_of_other_runs() -> None:
    steady = [100.0, 100.5, 99.5, 100.2, 99.8, 100.1]
    twice = [2 * x for x in steady]
    assert judge(found([steady], [twice])) == "unclear"
    assert judge(found([steady] * 2, [twice] * 2)) == "unclear"
    assert judge(found([steady] * 3, [twice] * 3)) == "slower"


def test_a_small_sure_difference_is_none() -> None:
    a = [[100.0 + 0.01 * i] for i in range(5)]
    b = [[101.0 + 0.01 * i] for i in range(5)]
    result = found(a, b)
    assert result.low is not None
    assert result.low > 0
    assert judge(result) == "same"


def test_values_that_are_not_above_zero_have_no_percent() -> None:
    result = found([[0.0], [0.0], [0.0]], [[1.0], [2.0], [3.0]])
    assert (result.percent, result.percent_low, result.detectable_percent) == (None, None, None)
    assert judge(result) == "slower"
