"""Predictions from hand-made runs: the formula by hand, ranges, break-even, and their score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.breakeven import gpu_step, least_power, least_size
from labctl.analysis.constants import Range, RunFacts, figure
from labctl.analysis.predict import predict
from labctl.analysis.ptx import find_gpu
from labctl.analysis.score import Plan, alike, foresee, score
from labctl.analysis.work import Work, work_of
from labctl.errors import RecordError
from labctl.runs.baseline import Baseline, ComputeBaseline, LinkBaseline
from labctl.runs.record import Parameters

MACHINES = (("tf0", 1, "2.21.0"), ("tf1", 1, "2.21.0"))
MATRIX = 4_000_000


def parameters(**changed: Any) -> Parameters:
    values: dict[str, Any] = {
        "experiment": "matpow", "trace": True, "fresh": False, "timeout_s": 600.0, "device": "cpu",
        "size": 1000, "power": 5, "algorithm": "chain", "feed": "fed", "placement": "lab",
        "api": "session", "inter_op": 2, "repeat": 10, "seed": 1, "fetch": "sum", "sum_task": 0,
    }  # fmt: skip
    return Parameters(**{**values, **changed})


def facts(number: int = 1, **changed: Any) -> RunFacts:
    """A lab of 200 GFLOP/s a task (8 GFLOP take 40 ms), 1000 MB/s (4 ms), overhead 2 ms, fetch 3 ms."""
    values: dict[str, Any] = {
        "run_id": f"20261130T1600{number:02}Z-00000{number % 10}",
        "at_unix_s": 1_000_000.0 + number, "parameters": parameters(), "tasks": 2,
        "machines": MACHINES, "warm_s": 0.053, "cold_s": 0.253, "wall_s": 5.0, "null_s": 0.002,
        "no_fetch_s": 0.050, "tracing_ratio": 1.1, "gflops": {0: (200.0,), 1: (200.0,)},
        "edges": {(0, 1): ((MATRIX, 0.004),), (1, 0): ((MATRIX, 0.004),)}, "command_s": 0.5, "fixed_s": 3.0,
        "inputs_s": 0.08, "verify_s": 0.2, "checked_by": "float64",
    }  # fmt: skip
    return RunFacts(**{**values, **changed})


def test_a_fed_step_is_inputs_products_result_and_fetch() -> None:
    found = predict(Work(), [facts()])
    assert found.warm.value == pytest.approx(0.002 + 0.004 + 0.040 + 0.004 + 0.003)
    assert [(part.what, round(part.seconds.value, 6)) for part in found.parts] == [
        ("overhead", 0.002),
        ("transfer", 0.004),
        ("compute", 0.040),
        ("transfer", 0.004),
        ("fetch", 0.003),
    ]
    assert found.cold is not None
    assert found.cold.value == pytest.approx(0.253)
    assert found.runs == ("20261130T160001Z-000001",)
    assert found.notes == ()


def test_a_staged_step_sends_no_input() -> None:
    known = [facts(), facts(2, parameters=parameters(feed="staged"), stage_s=0.4)]
    found = predict(Work(feed="staged"), known)
    assert found.warm.value == pytest.approx(0.002 + 0.040 + 0.004 + 0.003)


def test_one_inter_op_thread_puts_the_tasks_one_after_the_other() -> None:
    starved = predict(Work(inter_op=1), [facts()]).warm.value
    assert starved == pytest.approx(0.002 + 0.040 + 0.004 + 0.040 + 0.004 + 0.003)
    assert predict(Work(inter_op=None), [facts()]).warm.value == pytest.approx(starved)
    two_cpus = tuple((name, 2, version) for name, _, version in MACHINES)
    free = predict(Work(inter_op=None), [facts(machines=two_cpus)]).warm.value
    assert free == pytest.approx(0.053)
    assert predict(Work(inter_op=1, feed="staged"), [facts()]).warm.value < free


def test_a_slow_own_task_decides() -> None:
    found = predict(Work(), [facts(gflops={0: (50.0,), 1: (200.0,)})])
    assert found.warm.value == pytest.approx(0.002 + 0.160 + 0.003)
    assert [part.where for part in found.parts if part.what == "compute"] == ["task:0"]


def test_one_process_does_all_products_itself() -> None:
    found = predict(Work(placement="one-process"), [facts()])
    assert found.warm.value == pytest.approx(0.002 + 0.080 + 0.003)
    assert found.wall is None
    assert any("one-process" in note for note in found.notes)
    own = facts(2, parameters=parameters(placement="one-process"), null_s=0.001, no_fetch_s=0.061,
                warm_s=0.062, gflops={}, edges={})  # fmt: skip
    measured = predict(Work(placement="one-process"), [facts(), own])
    assert measured.warm.value == pytest.approx(0.001 + 0.060 + 0.001)
    assert measured.wall is not None


def test_the_wall_time_adds_up() -> None:
    found = predict(Work(repeat=4), [facts()])
    assert found.wall is not None
    # fixed, cold, 4 warm, inputs, check of the same size, 3 traced steps, 5 probes of two kinds
    expected = 0.5 + 3.0 + 0.253 + 4 * 0.053 + 0.08 + 0.2 + 3 * 1.1 * 0.053 + 5 * (0.050 + 0.002)
    assert found.wall.value == pytest.approx(expected)
    in_batch = predict(Work(repeat=4, command=False), [facts()])
    assert in_batch.wall is not None
    assert in_batch.wall.value == pytest.approx(expected - 0.5)
    plain = predict(Work(repeat=4, trace=False), [facts()])
    assert plain.wall is not None
    assert plain.wall.value < found.wall.value


def test_the_check_is_priced_by_its_multiply_adds() -> None:
    (found,) = (each for each in predict(Work(), [facts()]).constants if "check" in each.name)
    # Two tasks, each 3 bits and 2 set ones of n = 5, L^3 a product.
    assert found.unit == "ns/multiply-add"
    assert found.range.value == pytest.approx(0.2 / (2 * 1000**3 * 5) * 1e9)


def test_three_tasks_share_task_0s_link() -> None:
    three = (*MACHINES, ("tf2", 1, "2.21.0"))
    known = facts(
        machines=three, tasks=3, gflops={0: (200.0,), 1: (200.0,), 2: (100.0,)},
        edges=dict.fromkeys(((0, 1), (1, 0), (0, 2), (2, 0)), ((MATRIX, 0.004),)),
    )  # fmt: skip
    found = predict(Work(tasks=3), [known])
    assert found.warm.value == pytest.approx(0.002 + 2 * 0.004 + 0.080 + 0.004 + 0.003)
    more = predict(Work(tasks=5), [known])
    assert more.warm.value == pytest.approx(0.002 + 4 * 0.004 + 0.080 + 0.004 + 0.003)
    assert any("3 nodes" in note for note in more.notes)


def test_ranges_hold_the_samples_and_past_misses() -> None:
    known = [facts(), facts(2, gflops={0: (160.0, 250.0), 1: (160.0, 250.0)})]
    found = predict(Work(), known)
    assert found.warm.low < found.warm.value < found.warm.high
    assert found.warm.high == pytest.approx(0.002 + 0.004 + 8 / 160 + 0.004 + 0.003)
    assert predict(Work(), known, ratios=(0.5, 1.6)) == found  # two are not enough
    corrected = predict(Work(), known, ratios=(0.5, 1.2, 1.6))
    assert corrected.model_s == pytest.approx(found.warm.value)
    assert corrected.warm.value == pytest.approx(1.2 * found.warm.value)
    assert corrected.warm.low == pytest.approx(0.5 * found.warm.value)
    assert corrected.warm.high == pytest.approx(1.6 * found.warm.value)
    assert sum(part.seconds.value for part in corrected.parts) == pytest.approx(
        corrected.warm.value
    )
    assert corrected.parts[-1].what == "correction"


def test_without_traces_the_baseline_stands_in_and_says_so() -> None:
    baseline = Baseline(
        boot_ids={},
        links=(
            LinkBaseline("tf0", "tf1", 8e9, 1e-4, 0, 0.0, "iperf3"),
            LinkBaseline("tf1", "tf0", 4e9, 1e-4, 0, 0.0, "iperf3"),
        ),
        compute=(
            ComputeBaseline("tf0", 1000, 100.0, 1, "openblas", 0.0),
            ComputeBaseline("tf1", 1000, 80.0, 1, "openblas", 0.0),
        ),
    )
    bare = facts(gflops={}, edges={}, null_s=None, no_fetch_s=None, baseline=baseline)
    found = predict(Work(), [bare])
    assert found.warm.value == pytest.approx(0.004 + 0.100 + 0.008)
    assert {each.source for each in found.constants} >= {
        "numpy's product; TensorFlow's was not measured",
        "the network alone; tensors were not measured",
    }
    assert any("overhead" in note for note in found.notes)
    assert any("fetch" in note for note in found.notes)


@pytest.mark.parametrize("known", [[], [facts(gflops={}, edges={})], [facts(edges={})]])
def test_without_constants_there_is_no_prediction(known: list[RunFacts]) -> None:
    with pytest.raises(RecordError) as error:
        foresee(Work(), known)
    assert error.value.exit_code == 8
    assert error.value.do == "labctl run"


def test_the_nearest_size_is_taken_and_told() -> None:
    known = [
        facts(1, parameters=parameters(size=100), gflops={0: (20.0,), 1: (20.0,)}, edges={}),
        facts(2),
    ]
    assert predict(Work(size=900), known).notes == ()
    small = predict(Work(size=120), known)
    rates = {each.name: each.range.value for each in small.constants}
    assert rates["products on tf0"] == 20.0
    assert rates["tensors tf0 to tf1"] == 1000.0
    assert any(note.startswith("tensors tf0 to tf1: measured at L 1000") for note in small.notes)


def test_small_tensors_say_nothing_of_the_rate() -> None:
    slow = {(0, 1): ((MATRIX, 0.004), (4, 0.001)), (1, 0): ((MATRIX, 0.004),)}
    rates = {each.name: each for each in predict(Work(), [facts(edges=slow)]).constants}
    assert rates["tensors tf0 to tf1"].n == 1


@pytest.mark.parametrize(
    ("algorithm", "power", "products"),
    [("chain", 5, 4), ("recursive", 5, 4), ("listing", 5, 5), ("squaring", 5, 3), ("chain", 1, 0),
     ("squaring", 1, 0), ("squaring", 8, 3), ("squaring", 900, 12)],
)  # fmt: skip
def test_products_of_each_algorithm(algorithm: str, power: int, products: int) -> None:
    assert Work(algorithm=algorithm, power=power).products == products


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"api": "tf2"}, "tf2"), ({"feed": "constant"}, "feed constant"),
     ({"device": "gpu", "soft_placement": True}, "soft placement"),
     ({"sum_task": 1}, "sum on another task"), ({"experiment": "script"}, "script"),
     ({"size": None}, "size or power unknown"), ({"power": 0}, "size or power unknown")],
)  # fmt: skip
def test_what_the_model_does_not_hold_for_is_named(changed: dict[str, Any], why: str) -> None:
    assert work_of(parameters(**changed), 2) == why


def test_two_nodes_beat_one_from_some_n_and_some_l_on() -> None:
    known = [facts()]
    lab, single = Work(), Work(placement="one-process")
    power = least_power(lab, single, known)
    assert power == 2  # 4 + 10 + 4 ms against 20 ms
    assert least_power(single, lab, known) is None
    size = least_size(lab, single, known)
    assert size is not None
    for each, better in ((size, True), (size * 9 // 10, False)):
        mine = predict(replace(lab, size=each), known).warm.value
        theirs = predict(replace(single, size=each), known).warm.value
        assert (mine < theirs) is better
    # 2 x 4 bytes x L^2 / B against 2 p L^3 / G: L = 4 G / (p B), here 200
    assert size == pytest.approx(200, rel=0.02)


def test_a_gpu_takes_the_products_and_leaves_the_wire() -> None:
    gpu = find_gpu("V100")
    assert gpu is not None
    cpu = predict(Work(), [facts()]).warm
    with_gpu = gpu_step(Work(), [facts()], gpu)
    assert with_gpu.low < with_gpu.value < with_gpu.high < cpu.value
    assert with_gpu.low > 0.002 + 0.004 + 0.004 + 0.003


def test_a_figure_needs_a_positive_sample() -> None:
    assert figure("x", "s", [], "runs") is None
    assert figure("x", "s", [0.0, -1.0, float("nan")], "runs") is None
    many = figure("x", "s", [float(each) for each in range(1, 102)], "runs")
    assert many is not None
    assert many.range == Range(51.0, 6.0, 96.0)


def test_runs_are_scored_by_those_before_them_only() -> None:
    later = [facts(number, warm_s=0.053 * factor) for number, factor in ((1, 1), (2, 2), (3, 1))]
    found = score(later)
    assert found.left_out == {"no constants before it": 1}
    assert [each.known for each in found.runs] == [1, 2]
    assert [round(each.ratio, 6) for each in found.runs[:1]] == [2.0]
    warm = next(each for each in found.overall if each.what == "warm")
    assert warm.n == 2
    assert warm.bias_percent <= 0
    assert warm.median_percent > 0
    assert score([*later, facts(4, warm_s=9.9)]).runs[:2] == found.runs


def test_other_machines_do_not_count() -> None:
    bigger = tuple((name, 8, version) for name, _, version in MACHINES)
    known = [facts(1), facts(2, machines=bigger), facts(3)]
    assert [each.run_id[-1] for each in alike(known[:2], known[2])] == ["1"]
    assert score(known[:2]).left_out == {"no constants before it": 2}


def test_what_the_model_does_not_hold_for_is_counted() -> None:
    other = facts(2, parameters=parameters(api="tf2"))
    assert score([facts(1), other]).left_out == {"no constants before it": 1, "tf2": 1}
    assert score([facts(1), facts(2, warm_s=None)]).left_out["no warm step"] == 1


def test_a_plan_scores_the_next_run_of_its_work() -> None:
    planned = Range(0.1, 0.09, 0.11)
    plan = Plan(1_000_001.5, Work(), planned, None)
    late = Plan(1_000_009.0, Work(), Range(9.0, 9.0, 9.0), None)
    other = Plan(1_000_001.5, Work(size=10), Range(9.0, 9.0, 9.0), None)
    found = score([facts(1), facts(2)], [plan, late, other])
    assert [(each.warm, each.planned) for each in found.runs] == [(planned, True)]
    errors = found.overall[0]
    assert errors.bias_percent == pytest.approx(100 * (0.1 - 0.053) / 0.053)
    assert errors.inside_percent == 0


def test_errors_are_told_by_parameter() -> None:
    known = [facts(1), facts(2), facts(3, parameters=parameters(feed="staged")),
             facts(4, parameters=parameters(inter_op=None))]  # fmt: skip
    told = {each.what: each.n for each in score(known).by_parameter}
    assert told == {"feed fed": 2, "feed staged": 1, "inter-op 2": 2, "inter-op default": 1}


rates = st.floats(1, 1e5)


@given(
    size=st.integers(1, 20_000),
    power=st.integers(1, 1000),
    algorithm=st.sampled_from(["chain", "listing", "squaring", "recursive"]),
    feed=st.sampled_from(["fed", "staged"]),
    placement=st.sampled_from(["lab", "one-host", "one-process"]),
    tasks=st.integers(1, 5),
    inter_op=st.sampled_from([None, 1, 2]),
    gflops=st.tuples(rates, rates),
    wire_s=st.floats(1e-6, 10),
)
def test_parts_add_up_and_ranges_hold_the_value(  # type: ignore[no-untyped-def]
    size, power, algorithm, feed, placement, tasks, inter_op, gflops, wire_s
) -> None:
    known = facts(
        gflops={0: gflops, 1: gflops},
        edges={(0, 1): ((MATRIX, wire_s),), (1, 0): ((MATRIX, 0.004),)},
    )
    work = Work(
        size=size, power=power, algorithm=algorithm, feed=feed, placement=placement, tasks=tasks,
        inter_op=inter_op,
    )  # fmt: skip
    found = predict(work, [known])
    assert sum(part.seconds.value for part in found.parts) == pytest.approx(found.warm.value)
    for each in (found.warm, found.cold, found.wall):
        assert each is None or 0 <= each.low <= each.value * (1 + 1e-9) <= each.high * (1 + 2e-9)
    assert found.warm.value > 0
    slower = predict(replace(work, power=2 * power), [known])
    assert slower.warm.value >= found.warm.value
