"""Predictions for a lab's own GPUs: from the probe, from GPU runs, against the CPUs, and their score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.breakeven import least_power, wire_bound
from labctl.analysis.constants import Range, RunFacts, facts_of
from labctl.analysis.outlook import look_ahead
from labctl.analysis.predict import Prediction, predict
from labctl.analysis.ptx import find_gpu
from labctl.analysis.score import Plan, alike, foresee, score
from labctl.analysis.work import Work, device_of, work_of
from labctl.errors import RecordError
from labctl.runs.baseline import Baseline, ComputeBaseline, GpuBaseline, LinkBaseline
from tests.unit.gpu_samples import traced_on_gpus
from tests.unit.test_analysis_predict import MATRIX, facts, parameters

GPU = Work(device="gpu")


def gpu_of(node: str, **changed: Any) -> GpuBaseline:
    """A GPU of 4 TFLOP/s at L 1000, copies 8 and 4 GB/s, 40 and 20 GB/s page-locked to and from it."""
    values: dict[str, Any] = {
        "node": node, "index": 0, "name": "Tesla T4", "compute_capability": "7.5", "driver": "12.9",
        "library": "libcublas.so.12", "size": 1000, "wake_s": 1.0, "context_s": 0.3, "libraries_s": 0.1,
        "handle_s": 0.05, "first_product_s": 0.0205, "warm_product_s": 0.0005, "gflops": 4000.0,
        "h2d_bytes_per_s": 8e9, "d2h_bytes_per_s": 4e9, "h2d_pageable_bytes_per_s": 2e9, "at_unix_s": 1e9,
        "launch_s": 1e-5,
    }  # fmt: skip
    return GpuBaseline(**{**values, **changed})


def baseline(*gpus: GpuBaseline) -> Baseline:
    return Baseline(
        boot_ids={"tf0": "a", "tf1": "b"},
        links=(
            LinkBaseline("tf0", "tf1", 8e9, 1e-4, 0, 0.0, "iperf3"),
            LinkBaseline("tf1", "tf0", 8e9, 1e-4, 0, 0.0, "iperf3"),
        ),
        gpus=gpus or (gpu_of("tf0"), gpu_of("tf1")),
    )


def gpu_facts(number: int = 50, **changed: Any) -> RunFacts:
    """A GPU run: 2 TFLOP/s, copies at 2 GB/s, tensors at 500 MB/s."""
    values: dict[str, Any] = {
        "parameters": parameters(device="gpu", soft_placement=False), "gflops": {0: (2000.0,), 1: (2000.0,)},
        "copies": {(task, way): (2000.0,) for task in (0, 1) for way in ("h2d", "d2h")},
        "edges": {(0, 1): ((MATRIX, 0.008),), (1, 0): ((MATRIX, 0.008),)}, "null_s": 0.003,
        "no_fetch_s": 0.026, "warm_s": 0.030, "cold_s": 1.030, "wall_s": 9.0, "fixed_s": 6.0,
    }  # fmt: skip
    return facts(number, **{**values, **changed})


def parts(found: Prediction) -> list[tuple[str, float]]:
    return [(part.what, round(part.seconds.value, 6)) for part in found.parts]


def test_the_probe_gives_products_and_copies_and_cpu_runs_the_rest() -> None:
    found = predict(GPU, [facts()], baseline=baseline())
    # 4 products of 0.5 ms; 4 MB in at 8 GB/s and out at 4 GB/s; wires, overhead and fetch of the CPU run
    assert parts(found) == [
        ("overhead", 0.002),
        ("transfer", 0.004),
        ("compute", 0.002),
        ("copy", 0.0015),
        ("transfer", 0.004),
        ("fetch", 0.003),
    ]
    assert found.warm.value == pytest.approx(0.0165)
    # the far end: pageable memory to the GPU at 2 GB/s; none was measured back
    assert found.warm.high == pytest.approx(0.0165 + 0.004 / 2 - 0.004 / 8)
    assert any("overhead of a step" in note and "CPU runs" in note for note in found.notes)
    sources = {each.name: each.source for each in found.constants}
    assert sources["GPU products on tf1"] == "the probe, Tesla T4"
    assert sources["tensors tf0 to tf1"] == "traced steps"


def test_staged_inputs_are_on_the_gpu_already() -> None:
    known = [facts(), facts(2, parameters=parameters(feed="staged"), stage_s=0.4)]
    found = predict(replace(GPU, feed="staged"), known, baseline=baseline())
    assert found.warm.value == pytest.approx(0.002 + 0.002 + 0.001 + 0.004 + 0.003)


def test_one_process_puts_all_on_one_gpu() -> None:
    found = predict(replace(GPU, placement="one-process"), [facts()], baseline=baseline())
    assert found.warm.value == pytest.approx(0.002 + 2 * (0.002 + 0.0015) + 0.003)
    assert [part.what for part in found.parts] == ["overhead", "compute", "copy", "fetch"]


def test_a_gpu_does_not_hold_up_the_one_inter_op_thread() -> None:
    one = predict(replace(GPU, inter_op=1), [facts()], baseline=baseline())
    assert one.warm == predict(GPU, [facts()], baseline=baseline()).warm
    assert predict(Work(inter_op=1), [facts()]).warm.value > predict(Work(), [facts()]).warm.value


def test_a_run_is_a_cpu_runs_with_the_cold_start_added() -> None:
    cpu = predict(Work(repeat=4), [facts()])
    found = predict(replace(GPU, repeat=4), [facts()], baseline=baseline())
    assert cpu.cold is not None
    assert found.cold is not None
    assert found.cold.value - found.warm.value == pytest.approx(
        cpu.cold.value - cpu.warm.value + 0.05 + 0.02
    )
    assert found.wall is not None
    assert cpu.wall is not None
    # wake, context and libraries of task 0 are in the wall time, not in the first step
    others = 0.07 + 1.0 + 0.3 + 0.1
    steps = (1 + 4 + 3 * 1.1 + 5) * (cpu.warm.value - found.warm.value)
    assert found.wall.value == pytest.approx(cpu.wall.value + others - steps)
    assert [(part.what, part.seconds.value) for part in found.cold_start] == [
        ("wake", 1.0), ("context", 0.3), ("libraries", 0.1), ("handle", 0.05), ("product", pytest.approx(0.02)),
    ]  # fmt: skip
    assert any("no GPU run yet" in note for note in found.notes)


def test_the_slowest_node_stands_in_the_cold_start() -> None:
    both = baseline(gpu_of("tf0", wake_s=0.2), gpu_of("tf1", wake_s=3.0, awake=True))
    found = predict(GPU, [facts()], baseline=both)
    assert found.cold_start[0].seconds == Range(3.0, 0.2, 3.0)
    assert any("awake" in note for note in found.notes)


def test_gpu_runs_replace_probe_and_cpu_runs() -> None:
    found = predict(GPU, [facts(), gpu_facts()], baseline=baseline())
    # 4 products of 1 ms, copies 2 x 2 ms, wires 2 x 8 ms, overhead 3 ms, fetch 4 ms
    assert found.warm.value == pytest.approx(0.003 + 0.008 + 0.004 + 0.004 + 0.008 + 0.004)
    assert found.cold is not None
    assert found.cold.value == pytest.approx(found.warm.value + 1.0)
    assert not any("CPU" in note for note in found.notes)


def test_cpu_predictions_know_nothing_of_gpu_runs() -> None:
    alone = foresee(Work(), [facts()])
    mixed = foresee(Work(), [facts(), gpu_facts()], baseline())
    assert mixed == alone
    assert mixed.cold_start == ()
    with pytest.raises(RecordError):
        foresee(Work(), [gpu_facts()])


def test_a_node_without_figures_is_named_with_what_to_do() -> None:
    with pytest.raises(RecordError) as caught:
        predict(GPU, [facts()], baseline=baseline(gpu_of("tf0")))
    assert caught.value.found == "nothing has measured a GPU of tf1"
    assert caught.value.do == "labctl check --gpu-probe"


def test_the_baseline_alone_is_enough_for_a_step() -> None:
    found = look_ahead(GPU, [], None, baseline())
    assert found.prediction is not None
    assert found.prediction.wall is None
    assert found.prediction.warm.value == pytest.approx(2 * 0.004 + 0.002 + 0.0015)
    assert found.on_cpu is None
    with pytest.raises(RecordError):
        look_ahead(GPU, [], None, None)


def test_runs_keep_the_figures_that_they_were_started_with() -> None:
    found = predict(GPU, [facts(baseline=baseline())])
    assert found.warm.value == pytest.approx(0.0165)
    faster = baseline(gpu_of("tf0", gflops=8000.0), gpu_of("tf1", gflops=8000.0))
    newer = predict(GPU, [facts(baseline=baseline())], baseline=faster)
    assert newer.warm.value == pytest.approx(0.0165 - 0.001)


def test_launching_bounds_small_products() -> None:
    found = predict(replace(GPU, size=10, power=5), [facts()], baseline=baseline())
    (compute,) = (part.seconds for part in found.parts if part.what == "compute")
    assert compute == Range(4e-5, 4e-5, 4e-5)
    assert any("not near L 10" in note for note in found.notes)


def test_the_probes_spread_is_the_range_of_the_products() -> None:
    shaky = [gpu_of(name, warm_low_s=0.0004, warm_high_s=0.001) for name in ("tf0", "tf1")]
    found = predict(GPU, [facts()], baseline=baseline(*shaky))
    (compute,) = (part.seconds for part in found.parts if part.what == "compute")
    assert (compute.low, compute.value, compute.high) == pytest.approx((0.0016, 0.002, 0.004))


def test_the_wire_bound_is_4_p_over_b() -> None:
    slow = baseline(gpu_of("tf0"), gpu_of("tf1", gflops=2000.0))
    found = wire_bound(GPU, [facts()], slow)
    assert (found.gflops, found.mb_per_s) == (2000.0, 1000.0)
    assert found.product == pytest.approx(4 * 2e12 / 1e9)
    assert found.power == 8
    assert wire_bound(replace(GPU, size=3000), [facts()], slow).power == 3


def test_gpus_are_held_against_the_cpus_of_the_lab() -> None:
    found = look_ahead(GPU, [facts()], None, baseline())
    assert found.on_cpu is not None
    assert found.on_cpu == foresee(Work(), [facts()]).warm
    # a CPU product takes 10 ms, a GPU's 0.5 ms and 1.5 ms of copies: from the first product on
    assert found.gpu_least_power == 2
    assert found.gpu_least_power == least_power(GPU, Work(), [facts()], baseline())
    assert found.wire_bound is not None
    assert found.wire_bound.power == 16
    assert found.least_power is not None
    assert found.one_node is not None
    slow = baseline(*(gpu_of(n, gflops=1.0, warm_product_s=2.0) for n in ("tf0", "tf1")))
    assert look_ahead(GPU, [facts()], None, slow).gpu_least_power is None


def test_a_gpu_of_the_table_stands_beside_the_labs_own() -> None:
    v100 = find_gpu("V100")
    with_runs = look_ahead(GPU, [facts()], v100, baseline())
    assert with_runs.on_gpu == look_ahead(Work(), [facts()], v100).on_gpu
    without = look_ahead(GPU, [], v100, baseline())
    assert without.on_gpu is not None
    assert without.on_gpu.step is None


def test_gpu_runs_are_scored_by_gpu_predictions_only() -> None:
    probed = baseline()
    runs = [facts(1), gpu_facts(2, baseline=probed), gpu_facts(3, baseline=probed), facts(4)]
    found = score(runs)
    assert [(each.work.device, each.known) for each in found.runs] == [
        ("gpu", 1),
        ("gpu", 2),
        ("cpu", 1),
    ]
    assert found.left_out == {"no constants before it": 1}
    assert {each.what for each in found.by_parameter} == {"device cpu", "device gpu"}
    # the first one rests on the probe, the second on the run before it
    assert found.runs[0].model_s == pytest.approx(0.0165)
    assert found.runs[1].model_s == pytest.approx(0.031)


def test_a_plan_for_gpus_scores_no_cpu_run() -> None:
    plan = Plan(1_000_000.5, GPU, Range(9.0, 9.0, 9.0), None)
    runs = [facts(0), facts(1), gpu_facts(2, baseline=baseline())]
    assert [each.planned for each in score(runs, [plan]).runs] == [False, True]


def test_runs_of_other_devices_do_not_push_each_other_out() -> None:
    many = [facts(number) for number in range(70)]
    own = gpu_facts(71)
    assert len(alike([own, *many], own)) == 60
    for_gpu = alike([own, *many], own, "gpu")
    assert len(for_gpu) == 61
    assert own in for_gpu


def test_where_tensorflow_chose_the_device_nothing_is_known() -> None:
    soft = parameters(device="gpu", soft_placement=True)
    assert device_of(soft) == ""
    found = score([facts(1), gpu_facts(2, parameters=soft, baseline=baseline())])
    assert found.left_out == {"no constants before it": 1, "soft placement": 1}
    assert predict(GPU, [facts(), gpu_facts(parameters=soft)], baseline=baseline()) == predict(
        GPU, [facts()], baseline=baseline()
    )
    work = work_of(parameters(device="gpu", soft_placement=False), 2)
    assert isinstance(work, Work)
    assert work.device == "gpu"


def test_a_traced_gpu_run_gives_products_and_copies_without_a_probe() -> None:
    known = facts_of(traced_on_gpus())
    assert known is not None
    assert {way: round(sum(rates)) for way, rates in known.copies.items()} == {
        (0, "h2d"): 4000, (1, "h2d"): 4000, (0, "d2h"): 5000, (1, "d2h"): 5000,
    }  # fmt: skip
    work = work_of(known.parameters, 2)
    assert isinstance(work, Work)
    found = predict(work, [replace(known, baseline=None)])
    sources = {each.name: each.source for each in found.constants}
    assert sources["GPU products on tf1"] == "traced GPU steps"
    assert sources["copies from the GPU of tf1"] == "traced GPU steps"
    copied = sum(part.seconds.value for part in found.parts if part.what == "copy")
    assert copied == pytest.approx(0.001 + 0.0008)
    assert found.cold_start == ()


def test_small_copies_say_nothing_of_the_rate() -> None:
    small = traced_on_gpus()
    traces = tuple(
        replace(each, copies=tuple(replace(copy, size_bytes=4) for copy in each.copies))
        for each in small.traces
    )
    known = facts_of(replace(small, traces=traces))
    assert known is not None
    assert known.copies == {}


seconds = st.floats(1e-6, 10)


@given(
    size=st.integers(1, 20_000),
    power=st.integers(1, 1000),
    feed=st.sampled_from(["fed", "staged"]),
    placement=st.sampled_from(["lab", "one-host", "one-process"]),
    tasks=st.integers(1, 4),
    warm_s=seconds,
    rates=st.tuples(*[st.floats(1e6, 1e12)] * 4),
    with_gpu_run=st.booleans(),
)
def test_parts_add_up_and_ranges_hold_the_value(  # type: ignore[no-untyped-def]
    size, power, feed, placement, tasks, warm_s, rates, with_gpu_run
) -> None:
    gpus = [
        gpu_of(
            name, warm_product_s=warm_s, gflops=2e9 / warm_s / 1e9, warm_low_s=warm_s / 2,
            warm_high_s=2 * warm_s, h2d_bytes_per_s=rates[0], h2d_pageable_bytes_per_s=rates[1],
            d2h_bytes_per_s=rates[2], d2h_pageable_bytes_per_s=rates[3],
        )
        for name in ("tf0", "tf1")
    ]  # fmt: skip
    known = [facts(), *([gpu_facts()] if with_gpu_run else [])]
    work = Work(size=size, power=power, feed=feed, placement=placement, tasks=tasks, device="gpu")
    found = predict(work, known, baseline=baseline(*gpus))
    assert sum(part.seconds.value for part in found.parts) == pytest.approx(found.warm.value)
    for each in (found.warm, found.cold, found.wall):
        assert each is None or 0 <= each.low <= each.value * (1 + 1e-9) <= each.high * (1 + 2e-9)
    more = predict(replace(work, power=2 * power), known, baseline=baseline(*gpus))
    assert more.warm.value >= found.warm.value


def test_the_names_come_from_the_measured_nodes_where_no_run_is_known() -> None:
    with_peaks = replace(baseline(), compute=(ComputeBaseline("tf0", 1000, 90.0, 1, "", 0.0),))
    names = {each.name for each in predict(GPU, [], baseline=with_peaks).constants}
    assert {"GPU products on tf0", "GPU products on tf1", "tensors tf0 to tf1"} <= names
