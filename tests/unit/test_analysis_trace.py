"""Traced steps: ops and edges of all tasks on one time line."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.analysis.clock import Clocks
from labctl.analysis.explain import explain, typical
from labctl.analysis.model import Edge, StepTrace
from labctl.analysis.stepstats import decode
from labctl.analysis.trace import computes, step_traces
from labctl.analysis.trace_rows import tell_apart
from labctl.runs.data import RunData, TraceFile, load
from labctl.runs.record import ClockSample
from tests.unit.made_traces import (
    MB4,
    START_US,
    Row,
    cpu,
    fed_step,
    op,
    recv,
    run_data,
    source,
    step_stats,
)

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
STARVED = RECORDS / "20261130T181113Z-bd03c6"
PARALLEL = RECORDS / "20261130T181128Z-7aa9b1"
STAGED = RECORDS / "20261130T181529Z-a52ef3"
OLDER = RECORDS / "20261130T153419Z-f99880"


def trace_of(data: RunData) -> StepTrace:
    trace = explain(data).trace
    assert trace is not None
    return trace


def edge_to(trace: StepTrace, task: int) -> Edge:
    return next(edge for edge in trace.edges if edge.target == task)


def test_rows_are_decoded_as_they_were_written() -> None:
    rows = fed_step(starved=False)
    found = decode(step_stats(rows))
    assert [(row.device, row.name, row.label) for row in found] == [
        (row.device, row.name, row.label) for row in rows
    ]
    assert [row.start_us - START_US for row in found] == [row.start_us for row in rows]
    assert [row.end_us - START_US for row in found] == [row.end_us for row in rows]
    assert [row.output_bytes for row in found[:3]] == [MB4, MB4, None]


@pytest.mark.parametrize("data", [b"\xff" * 30, step_stats(fed_step(starved=True))[:-7]])
def test_damaged_step_stats_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(ValueError, match="no step stats"):
        decode(data)


def test_a_fed_step_tells_when_tensors_were_asked_answered_and_there() -> None:
    trace = trace_of(run_data(fed_step(starved=True), duration_ms=50, bits_per_s=16e9))
    assert (trace.index, trace.duration_s) == (11, 0.05)
    fed, result = edge_to(trace, 1), edge_to(trace, 0)
    assert (fed.tensor, fed.source, fed.size_bytes) == ("_recv_input_1_0", 0, MB4)
    assert fed.asked_s == pytest.approx(0.001)  # when task 1's part of the graph began
    assert fed.answered_s == pytest.approx(0.021)
    assert fed.arrived_s == pytest.approx(0.024)
    assert fed.waited_s == pytest.approx(0.020)
    assert fed.wire_s == pytest.approx(0.003)
    assert fed.mb_per_s == pytest.approx(4 / 0.003)
    assert fed.baseline_share == pytest.approx(4e6 * 8 / 0.003 / 16e9)
    assert fed.clock_error_s == pytest.approx(2e-4)
    assert not fed.clamped
    assert result.tensor == "MatMul_3"
    assert result.asked_s == pytest.approx(0.0009)
    assert trace.dispatch_s == pytest.approx(0.0009)
    assert trace.fetch_s == pytest.approx(0.05 - 0.0484)
    assert trace.overlap_s == pytest.approx(0.0, abs=1e-9)


def test_tasks_are_summed_up_apart() -> None:
    trace = trace_of(run_data(fed_step(starved=False), duration_ms=31))
    zero, one = trace.tasks
    assert (zero.task, zero.node, zero.products) == (0, "tf0", {"CPU:0": 2})
    assert zero.compute_s == pytest.approx(0.0202)
    assert zero.op_sum_s == pytest.approx(0.0202)
    assert zero.gflops == pytest.approx(2 * 1e9 * 2 / 0.020 / 1e9)
    assert one.node == "tf1"
    assert (one.began_s, one.ended_s) == pytest.approx((0.001, 0.026))
    assert one.compute_s == pytest.approx(0.0209)
    assert trace.compute_union_s == pytest.approx(0.0252)
    assert trace.overlap_s == pytest.approx(0.0202 + 0.0209 - 0.0252)
    assert {run.op for run in trace.ops} == {"_SOURCE", "MatMul", "AddN"}


def test_a_clock_that_is_a_little_ahead_changes_nothing() -> None:
    plain = trace_of(run_data(fed_step(starved=True), duration_ms=50))
    ahead = trace_of(
        run_data(fed_step(starved=True), duration_ms=50, ahead_us={0: -249_000, 1: -249_950})
    )
    for one, other in zip(plain.edges, ahead.edges, strict=True):
        assert other.answered_s == pytest.approx(one.answered_s, abs=1e-6)
        assert other.arrived_s == pytest.approx(one.arrived_s, abs=1e-6)
        assert not other.clamped
    assert ahead.overlap_s == pytest.approx(plain.overlap_s, abs=1e-6)


@pytest.mark.parametrize("ahead_us", [50_000, -50_000])
def test_stamps_that_tensorflow_cut_are_marked(ahead_us: int) -> None:
    # The sender's stamp lies after the arrival or before the request, by the receiver's clock.
    rows = [
        recv("a", 1, 0, 16_100, 20_000),
        source(1, 900),
        op(1, "a", "MatMul", "x", 1_000, 16_000),
        source(0, 900),
        op(0, "b", "AddN", "a_S3", 20_100, 20_200),
    ]
    edge = edge_to(trace_of(run_data(rows, duration_ms=22, ahead_us={1: ahead_us})), 0)
    assert edge.clamped
    assert (edge.waited_s, edge.mb_per_s, edge.baseline_share) == (None, None, None)
    assert 0.0009 <= edge.answered_s <= edge.arrived_s
    assert not edge_to(trace_of(run_data(rows, duration_ms=22)), 0).clamped


def test_an_answer_at_once_is_believed_where_the_clocks_agree() -> None:
    rows = [recv("a", 1, 0, 1_050, 20_000), source(0, 900), source(1, 900)]
    edge = edge_to(trace_of(run_data(rows, duration_ms=22)), 0)
    assert not edge.clamped
    assert edge.waited_s == pytest.approx(150e-6)


def test_an_answer_outside_of_what_the_receiver_saw_is_marked() -> None:
    rows = [
        recv("a", 1, 0, 25_000, 20_000 + 10_000),
        source(1, 900),
        op(1, "a", "MatMul", "x", 1_000, 16_000),
        source(0, 900),
        op(0, "b", "AddN", "a_S3", 30_100, 30_200),
    ]
    wrong = [
        ClockSample("tf0", 1, 0.0, 1e-4),
        ClockSample(
            "tf1", 1, -0.01, 1e-4
        ),  # said to be behind: its answer would be after the arrival
    ]
    edge = edge_to(trace_of(run_data(rows, duration_ms=40, clock=wrong)), 0)
    assert edge.clamped
    assert edge.answered_s == edge.arrived_s


def test_an_unmeasured_clock_leaves_no_rate_to_believe() -> None:
    data = run_data(
        fed_step(starved=True), duration_ms=50, clock=[ClockSample("tf0", 1, 0.0, 1e-4)]
    )
    explained = explain(data)
    assert explained.trace is not None
    edge = edge_to(explained.trace, 1)
    assert edge.clamped
    assert math.isinf(edge.clock_error_s)
    assert "clock: the offset of tf1 was not measured" in explained.problems


def test_one_host_has_one_clock() -> None:
    data = run_data(
        fed_step(starved=True), duration_ms=50, placement="one-host", ahead_us={0: 5000, 1: 5000}
    )
    trace = trace_of(data)
    assert {task.node for task in trace.tasks} == {"tf0"}
    assert {(edge.clock_error_s, edge.clamped) for edge in trace.edges} == {(0.0, False)}


def test_a_task_far_outside_of_its_step_is_moved_and_told() -> None:
    right = [ClockSample(name, 1, 0.0, 1e-4) for name in ("tf0", "tf1")]
    data = run_data(fed_step(starved=False), duration_ms=31, clock=right, ahead_us={1: 9_000_000})
    explained = explain(data)
    assert any("task:1" in each and "moved into it" in each for each in explained.problems)
    assert explained.trace is not None
    for run in explained.trace.ops:
        assert 0 <= run.start_s <= run.end_s <= 0.031
    assert all(edge.clamped for edge in explained.trace.edges)


@pytest.mark.parametrize("offset_s", [-1e15, 1e12, 1e300])
def test_an_absurd_offset_does_not_lose_a_tasks_rows(offset_s: float) -> None:
    clock = [ClockSample("tf0", 1, 0.0, 1e-4), ClockSample("tf1", 1, offset_s, 1e-4)]
    explained = explain(run_data(fed_step(starved=False), duration_ms=31, clock=clock))
    assert explained.trace is not None
    assert [sum(task.products.values()) for task in explained.trace.tasks] == [2, 2]
    assert all(edge.clamped for edge in explained.trace.edges)
    assert any("clock: tf1 is" in each for each in explained.problems)


def test_a_wild_stamp_does_not_take_the_others_along() -> None:
    wild = op(1, "wild", "MatMul", "x", 5e15, 5e15 + 10)
    before_1970 = op(1, "early", "MatMul", "x", -2 * START_US, -2 * START_US + 1)
    rows = [*fed_step(starved=False), wild, before_1970]
    explained = explain(run_data(rows, duration_ms=31))
    assert explained.trace is not None
    assert explained.trace.overlap_s == pytest.approx(0.0202 + 0.0209 - 0.0252)
    assert any("2 rows" in each for each in explained.problems)


def test_rows_without_a_task_are_counted_and_left_out() -> None:
    rows = [
        *fed_step(starved=False),
        Row("/device:GPU:0/stream:13", "Unknown:Thing", "kernel", 10, 20),
        Row(cpu(0), "RecvTensor", "no way told", 10, 20),
    ]
    explained = explain(run_data(rows, duration_ms=31))
    assert any("2 rows without a task" in each for each in explained.problems)
    assert explained.trace is not None
    assert len(explained.trace.edges) == 2


def test_a_trace_without_any_task_is_a_problem_not_a_trace() -> None:
    rows = [recv("a", 1, 0, 2_000, 3_000)]
    explained = explain(run_data(rows, duration_ms=31, warm_ms=[10]))
    assert (explained.trace, explained.split, explained.traces) == (None, None, ())
    assert explained.problems == ("step stats of step 11: they hold no op of a task",)


def test_devices_without_a_job_are_the_only_process_own() -> None:
    rows = [Row("/device:CPU:0", "m", "m = MatMul(a, b)", 1_000, 2_000)]
    trace = trace_of(run_data(rows, duration_ms=3, placement="one-process", tasks=1))
    (task,) = trace.tasks
    assert (task.task, task.node, task.products) == (0, "tf0", {"CPU:0": 1})


def test_kernels_of_a_gpu_count_as_computing_but_not_as_products() -> None:
    gpu = "/job:local/replica:0/task:0/device:GPU:0"
    rows = [
        source(0, 900),
        op(0, "MatMul", "MatMul", "x, x", 1_000, 1_050, gpu),
        op(0, "MatMul_1", "MatMul", "MatMul, x", 1_060, 1_100, gpu),
        Row("/device:GPU:0/stream:13", "MatMul:MatMul", "sgemm", 1_100, 5_100),
        Row("/device:GPU:0/stream:13", "MatMul_1:MatMul", "sgemm", 5_100, 9_100),
        Row("/device:GPU:0/stream:all", "MatMul:MatMul", "sgemm", 1_100, 5_100),
        Row("/device:GPU:0/stream:all", "MatMul_1:MatMul", "sgemm", 5_100, 9_100),
        Row("/device:GPU:0/stream:14<MemcpyD2H>", "edge_1_MatMul_1", "copy", 9_100, 9_900),
        Row("/device:GPU:0/memcpy", "edge_1_MatMul_1", "copy", 9_100, 9_900),
        Row("/device:GPU:0/sync", "cuStreamSynchronize", "ThreadId 1", 1_100, 9_950),
    ]
    (task,) = trace_of(run_data(rows, duration_ms=12, tasks=1)).tasks
    assert task.products == {"GPU:0": 2}
    assert task.compute_s == pytest.approx(0.0081 - 10e-6)  # ops, then kernels, never the copy
    assert task.op_sum_s == pytest.approx(0.008 + 90e-6)
    assert task.gflops == pytest.approx(2 * 2e9 / 0.008 / 1e9)


def test_any_number_of_tasks() -> None:
    rows = [source(0, 100)]
    for task in (1, 2, 3):
        rows += [
            recv(f"p{task}", task, 0, 10_000 + task, 12_000 + task),
            source(task, 200),
            op(task, f"p{task}", "MatMul", "x", 300, 9_000),
        ]
    rows.append(op(0, "total", "AddN", "p1_S1, p2_S2, p3_S3", 12_100, 12_200))
    trace = trace_of(run_data(rows, duration_ms=13, tasks=4))
    assert [(edge.source, edge.target) for edge in trace.edges] == [(1, 0), (2, 0), (3, 0)]
    assert [task.task for task in trace.tasks] == [0, 1, 2, 3]
    assert trace.overlap_s == pytest.approx(2 * 0.0087)


@settings(deadline=None)
@given(
    st.permutations(range(9)),
    st.integers(-(10**12), 10**12),
    st.floats(-1e6, 1e6, allow_nan=False),
)
def test_edges_do_not_mind_order_or_offsets(order: list[int], ahead: int, other: float) -> None:
    rows = fed_step(starved=True)
    plain = trace_of(run_data(rows, duration_ms=50))
    moved = trace_of(
        run_data(
            [rows[index] for index in order],
            duration_ms=50,
            ahead_us={0: ahead, 1: round(other)},
        )
    )
    assert [edge.tensor for edge in moved.edges] == [edge.tensor for edge in plain.edges]
    for one, two in zip(plain.edges, moved.edges, strict=True):
        assert two.arrived_s == pytest.approx(one.arrived_s, abs=1e-5)
        assert two.clamped or two.answered_s == pytest.approx(one.answered_s, abs=1e-5)
    assert moved.compute_union_s == pytest.approx(plain.compute_union_s, abs=1e-5)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(-60_000, 60_000),
            st.integers(0, 60_000),
            st.sampled_from(["MatMul", "AddN", "NoOp"]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(-60_000, 60_000),
            st.integers(0, 60_000),
        ),
        max_size=6,
    ),
    st.lists(
        st.builds(
            ClockSample,
            node=st.sampled_from(["tf0", "tf1", "tf2"]),
            at_s=st.floats(0, 20),
            offset_s=st.floats(-1e9, 1e9),
            error_s=st.floats(0, 10),
        ),
        max_size=6,
    ),
)
def test_absurd_stamps_and_clocks_stay_within_the_step(
    ops: list[tuple[int, int, int, str]],
    edges: list[tuple[int, int, int, int]],
    clock: list[ClockSample],
) -> None:
    rows = [
        op(task, f"o{number}", kind, f"o{number - 1}", start, start + length)
        for number, (task, start, length, kind) in enumerate(ops)
    ]
    rows += [recv(f"o{b}", a, b, start, start + length) for a, b, start, length in edges]
    explained = explain(run_data(rows, duration_ms=40, warm_ms=[30, 31], clock=clock, tasks=3))
    for trace in explained.traces:
        for run in trace.ops:
            assert 0 <= run.start_s <= run.end_s <= trace.duration_s
        for edge in trace.edges:
            assert 0 <= edge.answered_s <= edge.arrived_s <= trace.duration_s
            assert edge.waited_s is None or 0 <= edge.waited_s <= trace.duration_s
        assert trace.overlap_s >= -1e-9
        assert 0 <= trace.fetch_s <= trace.duration_s
    if explained.split is not None:
        assert math.fsum(row.seconds for row in explained.split.rows) == pytest.approx(
            explained.split.total_s, abs=1e-12
        )
        assert all(row.seconds > 0 for row in explained.split.rows)


def test_the_trace_with_all_its_transfers_stands_for_the_others() -> None:
    def made(length_ms: float, *, whole: bool) -> StepTrace:
        rows = fed_step(starved=False)
        return trace_of(run_data(rows if whole else rows[1:], duration_ms=length_ms))

    traces = [made(31, whole=False), made(90, whole=True), made(33, whole=True)]
    chosen = typical([*traces, made(40, whole=True)])
    assert chosen is not None
    assert (chosen.duration_s, len(chosen.edges)) == (0.04, 2)
    assert typical([]) is None


def test_a_real_starved_step_says_so() -> None:
    explained = explain(load(STARVED))
    assert explained.problems == ()
    assert len(explained.traces) == 3
    trace = explained.trace
    assert trace is not None
    fed, result = edge_to(trace, 1), edge_to(trace, 0)
    own = [run for run in trace.ops if run.task == 0 and run.op == "MatMul"]
    assert fed.answered_s == pytest.approx(own[-1].end_s, abs=2e-3)
    assert trace.overlap_s == pytest.approx(0, abs=1e-3)
    assert (fed.size_bytes, result.size_bytes) == (MB4, MB4)
    assert all(500 < (edge.mb_per_s or 0) < 5000 for edge in trace.edges)


def test_a_real_step_with_two_threads_overlaps() -> None:
    trace = explain(load(PARALLEL)).trace
    assert trace is not None
    assert trace.overlap_s > 0.8 * min(task.compute_s for task in trace.tasks)
    assert edge_to(trace, 1).answered_s < 0.010
    assert [sum(task.products.values()) for task in trace.tasks] == [4, 4]
    assert all(100 < (task.gflops or 0) < 400 for task in trace.tasks)


def test_a_real_staged_step_moves_only_the_result() -> None:
    for record in (STAGED, OLDER):
        trace = explain(load(record)).trace
        assert trace is not None
        assert [edge.tensor for edge in trace.edges] == ["MatMul_7"]


def test_an_older_record_has_its_one_step_between_the_phases_ends() -> None:
    data = load(OLDER)
    assert [file.index for file in data.traces] == [None]
    (trace,) = explain(data).traces
    assert trace.index == -1
    assert trace.duration_s == pytest.approx(0.1441, abs=1e-4)


def test_without_an_event_the_length_is_taken_from_the_stamps() -> None:
    data = run_data(fed_step(starved=True), duration_ms=50)
    explained = explain(replace(data, events=()))
    assert explained.trace is not None
    assert explained.trace.duration_s == pytest.approx(0.0475)
    assert any("no event tells the step's length" in each for each in explained.problems)


def test_a_hundred_thousand_rows_are_told_apart() -> None:
    data = run_data([source(0, 0), source(1, 0)], duration_ms=60)
    block = [
        op(task, f"m{number}", "MatMul", f"m{number - 1}", number, number + 1)
        for task in (0, 1)
        for number in range(500)
    ]
    # Messages that follow each other are one message: two hundred entries of five hundred rows.
    many = data.traces[0].data + step_stats(block) * 100
    data = replace(data, traces=(TraceFile(11, many),))
    traces, problems = step_traces(data, explain(data).steps, Clocks.of(data.record))
    assert problems == []
    assert [sum(task.products.values()) for task in traces[0].tasks] == [50_000, 50_000]
    assert traces[0].overlap_s == pytest.approx(0.0005)


def test_rounded_sizes_are_told() -> None:
    rows = [recv("a", 1, 0, 2_000, 3_000, None), source(0, 0), source(1, 0)]
    explained = explain(run_data(rows, duration_ms=4))
    assert explained.trace is not None
    assert explained.trace.edges[0].size_bytes == pytest.approx(3.8 * 2**20, abs=1)
    assert any("rounded" in each for each in explained.problems)


def test_damaged_and_empty_files_beside_a_good_one() -> None:
    data = run_data(fed_step(starved=True), duration_ms=50)
    more = (TraceFile(12, b"\xff\xff\xff"), TraceFile(13, b""))
    explained = explain(replace(data, traces=(*data.traces, *more)))
    assert len(explained.traces) == 1
    assert len(explained.problems) == 2
    assert explained.problems[0].startswith("step stats of step 12: no step stats")
    assert explained.problems[1] == "step stats of step 13: they hold no op of a task"


def test_telling_apart_keeps_each_task_once() -> None:
    rows = fed_step(starved=True)
    rows = rows[1::2] + rows[::2]
    found = tell_apart(decode(step_stats(rows)))
    assert sorted(found.ops) == [0, 1]
    assert sum(len(own) for own in found.ops.values()) == 7
    assert (len(found.edges), found.lost) == (2, 0)
    trace = trace_of(run_data(rows, duration_ms=50))
    for before, after in itertools.pairwise(trace.ops):
        assert before.start_s <= after.start_s
    assert not any(computes(run) for run in trace.ops if run.op == "_SOURCE")


@pytest.mark.parametrize(
    ("bits_per_s", "doubt"),
    [(16e9, None), (9e9, "stamp is late"), (1e9, "receiver's clock alone")],
)
def test_a_transfer_faster_than_the_link_is_doubted(bits_per_s: float, doubt: str | None) -> None:
    explained = explain(run_data(fed_step(starved=True), duration_ms=50, bits_per_s=bits_per_s))
    assert explained.trace is not None
    fed = edge_to(explained.trace, 1)  # 4 MB in 3 ms, asked for 23 ms before
    assert fed.believed == (doubt is None)
    assert doubt is None or doubt in str(fed.doubt)
    assert fed.mb_per_s == pytest.approx(4 / 0.003)
    told = [each for each in explained.problems if "faster than the measured network" in each]
    assert len(told) == (doubt is not None)
