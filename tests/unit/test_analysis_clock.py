"""Clocks of nodes against labctl's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.analysis.clock import Clocks, clock_problems
from labctl.runs.record import ClockSample
from tests.unit.made_traces import ORIGIN_S, run_data

SAMPLES = st.lists(
    st.builds(
        ClockSample,
        node=st.just("tf0"),
        at_s=st.floats(0, 100),
        offset_s=st.floats(-1e9, 1e9),
        error_s=st.floats(0, 10),
    ),
    min_size=1,
    max_size=5,
)


def test_between_two_samples_the_offset_changes_evenly() -> None:
    clocks = Clocks(
        [ClockSample("tf0", 10, 2.0, 0.001), ClockSample("tf0", 20, 2.002, 0.003)], ORIGIN_S
    )
    assert clocks.offset("tf0", 0) == (2.0, 0.001)
    assert clocks.offset("tf0", 15) == pytest.approx((2.001, 0.003))
    assert clocks.offset("tf0", 99) == (2.002, 0.003)
    assert clocks.since_origin_s("tf0", ORIGIN_S + 17.001) == pytest.approx(15.0, abs=1e-6)
    (line,) = clocks.lines()
    assert (line.node, line.samples, line.absurd) == ("tf0", 2, False)
    assert line.drift_s == pytest.approx(0.002)
    assert line.offset_s == pytest.approx(2.001)


def test_one_sample_has_no_drift_and_an_unmeasured_clock_no_bound() -> None:
    clocks = Clocks([ClockSample("tf0", 10, 0.5, 0.001)], ORIGIN_S)
    assert clocks.lines()[0].drift_s is None
    offset_s, error_s = clocks.offset("tf1", 3)
    assert (offset_s, math.isinf(error_s)) == (0.0, True)
    assert clocks.since_origin_s("tf1", ORIGIN_S + 4) == pytest.approx(4)


def test_a_jump_is_found_and_its_size_is_the_error() -> None:
    samples = [ClockSample("tf0", 1, 0.0, 0.001), ClockSample("tf0", 9, 5.0, 0.0001)]
    clocks = Clocks(samples, ORIGIN_S)
    (line,) = clocks.lines()
    assert line.absurd
    assert line.offset_s == 5.0
    assert line.error_s == pytest.approx(5.001)
    data = run_data([], duration_ms=1, clock=samples)
    assert any("tf0 jumped" in each for each in clock_problems(clocks, data.record))


def test_drift_within_what_a_kernel_slews_is_no_jump() -> None:
    clocks = Clocks(
        [ClockSample("tf0", 0, 0.0, 1e-4), ClockSample("tf0", 1000, 0.4, 1e-4)], ORIGIN_S
    )
    assert not clocks.lines()[0].absurd


def test_a_clock_that_is_years_off_is_told() -> None:
    samples = [ClockSample("tf0", at, 3 * 365 * 86400.0, 1e-4) for at in (1, 9)]
    clocks = Clocks(samples, ORIGIN_S)
    assert clocks.lines()[0].absurd
    data = run_data([], duration_ms=1, clock=[*samples, ClockSample("tf1", 1, 0, 0)])
    assert clock_problems(clocks, data.record)[0] == "clock: tf0 is 1095.0 days ahead"
    assert clocks.since_origin_s("tf0", ORIGIN_S + 3 * 365 * 86400 + 5) == pytest.approx(5)


@settings(deadline=None)
@given(SAMPLES, st.floats(0, 100), st.randoms(use_true_random=False))
def test_samples_come_in_any_order_and_offsets_lie_between_them(
    samples: list[ClockSample], at_s: float, random: object
) -> None:
    clocks = Clocks(samples, ORIGIN_S)
    offset_s, error_s = clocks.offset("tf0", at_s)
    known = [each.offset_s for each in samples]
    assert min(known) - 1e-6 <= offset_s <= max(known) + 1e-6
    assert error_s >= min(each.error_s for each in samples)
    assert Clocks(samples[::-1], ORIGIN_S).lines() == clocks.lines()


@settings(deadline=None)
@given(st.floats(-1e5, 1e5), st.floats(-1e-2, 1e-2), st.floats(0, 100), st.floats(-1e6, 1e6))
def test_shifting_a_clock_and_its_samples_alike_changes_nothing(
    offset_s: float, drift_s: float, at_s: float, shift_s: float
) -> None:
    def mapped(more_s: float) -> float:
        samples = [
            ClockSample("tf0", 0, offset_s + more_s, 1e-2),
            ClockSample("tf0", 100, offset_s + drift_s + more_s, 1e-2),
        ]
        node_s = ORIGIN_S + at_s + offset_s + drift_s * at_s / 100 + more_s
        return Clocks(samples, ORIGIN_S).since_origin_s("tf0", node_s)

    assert mapped(0.0) == pytest.approx(at_s, abs=1e-5)
    assert mapped(shift_s) == pytest.approx(mapped(0.0), abs=1e-5)
