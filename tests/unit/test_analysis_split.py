"""A warm step in parts: the critical path of a traced one."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.analysis.explain import explain
from labctl.analysis.intervals import covered_s, merge, pieces
from labctl.analysis.model import StepTrace
from labctl.analysis.split import split_step, task_parts
from labctl.runs.data import load
from tests.unit.made_traces import Row, fed_step, op, recv, run_data, source

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
INTERVALS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=12)


def traced(rows: list[Row], duration_ms: float, tasks: int = 2) -> StepTrace:
    trace = explain(run_data(rows, duration_ms=duration_ms, tasks=tasks)).trace
    assert trace is not None
    return trace


def parts(trace: StepTrace) -> list[tuple[str, int | None, int | None, float]]:
    split = split_step(trace, trace.duration_s * 1e3)
    assert split is not None
    assert split.scale == pytest.approx(1)
    assert math.fsum(row.seconds for row in split.rows) == pytest.approx(split.total_s, rel=1e-12)
    return [(row.what, row.task, row.source, round(row.seconds * 1e3, 3)) for row in split.rows]


def test_a_starved_step_waits_for_its_input() -> None:
    assert parts(traced(fed_step(starved=True), 50)) == [
        ("dispatch", None, None, 1.0),
        ("wait", 1, None, 20.1),  # for the answer, then 0.1 ms until the product begins
        ("transfer", 1, 0, 3.0),
        ("compute", 1, None, 20.9),
        ("wait", 0, None, 0.3),
        ("transfer", 0, 1, 2.9),
        ("compute", 0, None, 0.2),
        ("fetch", None, None, 1.6),
    ]


def test_a_step_whose_tasks_overlap_computes() -> None:
    found = {row[:2]: row[3] for row in parts(traced(fed_step(starved=False), 31))}
    assert found["wait", 1] == pytest.approx(1.1)
    assert found["compute", 1] == pytest.approx(20.9)
    assert found["fetch", None] == pytest.approx(1.6)


def test_the_slower_task_is_the_path() -> None:
    rows = [
        recv("p1", 1, 0, 4_000, 5_000),
        source(1, 500),
        op(1, "p1", "MatMul", "x", 600, 3_900),
        source(0, 500),
        op(0, "p0", "MatMul", "x", 600, 9_000),
        op(0, "total", "AddN", "p0, p1_S1", 9_000, 9_100),
    ]
    assert parts(traced(rows, 10)) == [
        ("dispatch", None, None, 0.5),
        ("wait", 0, None, 0.1),
        ("compute", 0, None, 8.5),
        ("fetch", None, None, 0.9),
    ]


def test_an_op_that_is_ready_while_its_task_runs_another_costs_computing() -> None:
    rows = [
        source(0, 0),
        op(0, "a", "MatMul", "x", 0, 4_000),
        op(0, "b", "MatMul", "y", 4_000, 7_000),
        op(0, "c", "AddN", "a", 7_500, 8_000),  # ready at 4.0; the task is busy until 7.0
    ]
    assert parts(traced(rows, 8, tasks=1)) == [
        ("compute", 0, None, 7.5),
        ("wait", 0, None, 0.5),
    ]


def test_a_receiver_that_began_late_is_dispatch() -> None:
    rows = [
        recv("p0", 0, 1, 6_100, 7_000),
        source(0, 100),
        op(0, "p0", "MatMul", "x", 100, 2_000),
        source(1, 6_000),
        op(1, "total", "AddN", "p0_S1", 7_000, 7_200),
    ]
    assert parts(traced(rows, 8)) == [
        ("dispatch", None, None, 6.0),
        ("wait", 1, None, 0.1),
        ("transfer", 1, 0, 0.9),
        ("compute", 1, None, 0.2),
        ("fetch", None, None, 0.8),
    ]


def test_a_transfer_that_the_trace_lost_is_other_not_waiting() -> None:
    # The op that made the result is known by its name, where the fed input came from is not.
    assert parts(traced(fed_step(starved=True)[2:], 50)) == [
        ("dispatch", None, None, 1.0),
        ("other", None, None, 23.1 + 3.2),
        ("compute", 1, None, 20.9),
        ("compute", 0, None, 0.2),
        ("fetch", None, None, 1.6),
    ]


def test_a_cut_stamp_is_other() -> None:
    data = run_data(fed_step(starved=True), duration_ms=50, ahead_us={1: 90_000})
    trace = explain(data).trace
    assert trace is not None
    assert any(edge.clamped for edge in trace.edges)
    assert "other" in [row[0] for row in parts(trace)]


def test_the_parts_of_a_median_step_are_scaled_evenly() -> None:
    trace = traced(fed_step(starved=True), 50)
    split = split_step(trace, 25.0)
    assert split is not None
    assert (split.total_s, split.traced_s, split.scale) == (0.025, 0.05, 0.5)
    assert split.rows[1].seconds == pytest.approx(0.02010 / 2)
    assert split_step(trace, None) is None
    assert split_step(trace, 0.0) is None


def test_what_each_task_does_adds_up_to_the_step() -> None:
    trace = traced(fed_step(starved=True), 50)
    zero, one = task_parts(trace, 0, client=True), task_parts(trace, 1, client=False)
    assert math.fsum(zero.values()) == pytest.approx(0.05)
    assert math.fsum(one.values()) == pytest.approx(0.05)
    assert zero["compute"] == pytest.approx(0.0202)
    assert zero["transfer"] == pytest.approx(0.0059)
    assert (zero["dispatch"], zero["fetch"]) == pytest.approx((0.0009, 0.0016))
    assert (one["dispatch"], one["fetch"]) == (0, 0)


def test_a_cycle_of_inputs_ends() -> None:
    rows = [
        source(0, 0),
        op(0, "a", "MatMul", "b", 1_000, 2_000),
        op(0, "b", "MatMul", "a", 1_000, 2_000),
    ]
    found = parts(traced(rows, 3, tasks=1))
    assert math.fsum(row[3] for row in found) == pytest.approx(3.0)


def test_real_steps() -> None:
    starved = explain(load(RECORDS / "20261130T181113Z-bd03c6")).split
    parallel = explain(load(RECORDS / "20261130T181128Z-7aa9b1")).split
    assert starved is not None
    assert parallel is not None
    waits = [
        next(row.seconds for row in split.rows if (row.what, row.task) == ("wait", 1))
        for split in (starved, parallel)
    ]
    assert waits[0] > 0.3 * starved.total_s
    assert waits[1] < 0.15 * parallel.total_s
    assert starved.total_s == pytest.approx(0.0836380345)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 30_000),
            st.integers(0, 9_000),
            st.lists(st.integers(0, 9), max_size=3),
        ),
        min_size=1,
        max_size=10,
    ),
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 30_000), st.integers(0, 9_000)), max_size=5
    ),
)
def test_every_instant_is_in_one_part(
    ops: list[tuple[int, int, int, list[int]]], edges: list[tuple[int, int, int]]
) -> None:
    rows = [
        op(task, f"o{n}", "MatMul", ", ".join(f"o{i}_S1" if i % 2 else f"o{i}" for i in inputs), at, at + length)
        for n, (task, at, length, inputs) in enumerate(ops)
    ]  # fmt: skip
    rows += [recv(f"o{n}", n % 2, 1 - n % 2, at, at + length + 1) for n, at, length in edges]
    found = parts(traced(rows, 40))
    assert math.fsum(row[3] for row in found) == pytest.approx(40, abs=0.01)
    assert len({row[:3] for row in found}) == len(found)


@settings(deadline=None)
@given(INTERVALS)
def test_merged_intervals_are_ordered_disjoint_and_cover_the_same(
    intervals: list[tuple[float, float]],
) -> None:
    merged = merge(intervals)
    for before, after in itertools.pairwise(merged):
        assert before[0] < before[1] < after[0] < after[1]
    for start, end in intervals:
        if end > start:
            assert any(low <= start and end <= high for low, high in merged)
    assert covered_s(merged) <= math.fsum(max(0.0, end - start) for start, end in intervals) + 1e-9


@settings(deadline=None)
@given(INTERVALS, st.floats(0, 100), st.floats(0, 100))
def test_pieces_make_up_the_interval(
    intervals: list[tuple[float, float]], start: float, end: float
) -> None:
    merged = merge(intervals)
    found = pieces(merged, start, end)
    if end <= start:
        assert found == []
        return
    assert (found[0][0], found[-1][1]) == (start, end)
    for before, after in itertools.pairwise(found):
        assert before[1] == after[0]
        assert before[2] != after[2] or before[2]
    for low, high, covered in found:
        middle = (low + high) / 2
        inside = any(a <= middle <= b for a, b in merged)
        assert inside == covered or low == high
