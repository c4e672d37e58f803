from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.steps import Step, percentile, step_stats, steps_of
from labctl.runs.events import Event


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    assert percentile([4.0], 95) == 4.0
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([30.0, 10.0, 20.0], 50) == 20.0
    assert percentile([float(n) for n in range(1, 11)], 95) == pytest.approx(9.55)
    assert percentile([float(n) for n in range(101)], 95) == 95.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_within_the_values_and_do_not_mind_order(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert min(values) <= found <= max(values)
    assert found == percentile(values[::-1], percent)


def test_cold_and_warm_are_kept_apart() -> None:
    steps = [Step(0, "cold", 0, 512.0), *(Step(n, "warm", 0, 150.0 + n) for n in range(1, 4))]
    stats = step_stats([*steps, Step(4, "traced", 0, 900.0)])
    assert (stats.cold_ms, stats.warm_median_ms, stats.n) == (512.0, 152.0, 3)
    assert stats.warm_p95_ms == pytest.approx(152.9)
    empty = step_stats([])
    assert (empty.cold_ms, empty.warm_median_ms, empty.warm_p95_ms, empty.n) == (
        None,
        None,
        None,
        0,
    )


def test_steps_come_from_step_events_only() -> None:
    events = [
        Event(
            "step",
            5_000_000_000,
            0,
            "client",
            0,
            {"index": 0, "kind": "cold", "duration_ns": 10**9},
        ),
        Event("step", 6_000_000_000, 0, "client", 0, {"index": 1, "kind": "warm"}),
        Event("note", 7_000_000_000, 0, "client", 0, {"index": 2, "duration_ns": 1}),
    ]
    assert steps_of(events) == [Step(0, "cold", 4.0, 1000.0)]
