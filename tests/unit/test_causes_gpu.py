"""What a GPU costs by itself: each cause found by its signals, ruled out by their numbers, or not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.causes import device, gpu, startup
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explained import Explained
from labctl.analysis.pairs import pair_for
from labctl.analysis.split import split_step
from labctl.node import wire
from labctl.runs.data import LogLine
from labctl.runs.events import Event
from labctl.runs.gpus import GpuHolder
from labctl.runs.record import Span
from tests.unit.explained_samples import healthy, traced
from tests.unit.gpu_samples import CUDA, GPU, T4, caches, listed, nodes, on_gpu, probe, use
from tests.unit.stories import HEALTHY, MATPOW, event, phase, run

RULES: dict[str, Rule] = {
    rule.cause: rule for family in (gpu, device, startup) for rule in family.RULES
}
JIT = "not built with CUDA kernel binaries compatible with compute capability 10.0"
COMPILES = nodes(cuda=replace(CUDA, compiles=True))


def verdict(cause: str, of: Explained) -> Verdict:
    return RULES[cause].judge(of)


def logged(of: Explained, *lines: str) -> Explained:
    return replace(of, data=replace(of.data, log=tuple(LogLine("tf0", None, x) for x in lines)))


def rows(of: Explained, *more: Span) -> Explained:
    """Return a run with further rows in its ledger."""
    ledger = replace(of.ledger, rows=(*of.ledger.rows, *more))
    return replace(of, ledger=ledger)


# Compilation


def test_a_grown_cache_is_what_was_compiled_and_costs_the_first_step_at_most() -> None:
    found = verdict("ptx-jit", on_gpu(readings=caches(0, 0, 9), cold_s=4.0, nodes=COMPILES))
    assert (found.status, found.confidence) == ("found", "high")
    assert found.seconds == pytest.approx(4.0 - traced().duration_s, abs=1e-3)
    assert found.evidence[0].startswith(
        "the kernel cache of tf0 grew by 9 files, 18.0 MB (before: 0 files"
    )
    assert "the wheel has no code for the GPU of tf0, tf1" in found.evidence
    alone = verdict("ptx-jit", on_gpu(readings=caches(0, 0, 9), cold_s=4.0))
    assert alone.confidence == "medium"


def test_what_the_probe_explains_is_no_compilation() -> None:
    with_probe = on_gpu(readings=caches(0, 0, 9), cold_s=4.0, gpus=[probe()])
    found = verdict("ptx-jit", with_probe)
    assert found.seconds == pytest.approx(4.0 - traced().duration_s - 0.3, abs=1e-3)


def test_a_compilation_in_the_making_of_the_devices_costs_that() -> None:
    early = on_gpu(readings=caches(0, 9, 9), extra=phase(wire.PHASE_SERVER, 2.5, 5.5))
    found = verdict("ptx-jit", early)
    assert found.status == "found"
    assert found.seconds == pytest.approx(3.0, abs=0.02)
    context = verdict("cuda-context", early)
    assert context.status == "ruled_out"
    assert context.evidence[0].endswith("counted in ptx-jit")


def test_a_small_compilation_is_told_and_is_no_cause() -> None:
    said = verdict("ptx-jit", on_gpu(readings=caches(4, 4, 5), cold_s=0.2))
    assert said.status == "ruled_out"
    assert "at most" in said.evidence[0]
    assert "grew by 1 files" in said.evidence[1]


def test_without_growth_and_words_nothing_was_compiled_however_long_the_first_step() -> None:
    said = verdict("ptx-jit", on_gpu(cold_s=8.0))
    assert (said.status, said.seconds) == ("ruled_out", None)
    assert said.evidence[0].startswith(
        "the kernel cache of tf0 grew by 0 files, 0.0 MB (before: 4 files"
    )


def test_a_warning_whose_kernels_came_from_the_cache_is_no_compilation() -> None:
    said = verdict("ptx-jit", logged(on_gpu(cold_s=0.4), JIT))
    assert said.status == "ruled_out"
    assert said.evidence[1] == f"tf0 wrote: {JIT}"


def test_a_long_first_step_that_was_foretold_and_left_nothing_was_not_kept() -> None:
    lost = logged(on_gpu(readings=caches(0, 0, 0), cold_s=9.0), JIT)
    compiled, kept = verdict("ptx-jit", lost), verdict("jit-cache-lost", lost)
    assert (compiled.status, compiled.confidence) == ("found", "medium")
    assert (kept.status, kept.evidence[-1]) == (
        "found",
        "kernels were compiled and nothing was kept",
    )
    assert kept.seconds == pytest.approx(9.0 - traced().duration_s, abs=1e-3)


def test_without_readings_the_wheel_or_the_log_decides() -> None:
    by_wheel = verdict("ptx-jit", on_gpu(readings=[]))
    assert by_wheel.status == "ruled_out"
    assert by_wheel.evidence == ("the wheel has code for the GPUs of 2 nodes: tf0, tf1",)
    old = logged(on_gpu(readings=[], nodes=nodes(cuda=None), trace=traced()), "noise")
    assert verdict("ptx-jit", old).evidence == ("0 of 1 log lines name it",)
    off = [event(wire.HELLO, 0.9, environment={"CUDA_CACHE_DISABLE": "1"})]
    hidden = verdict("ptx-jit", on_gpu(readings=caches(0, 0, 0), extra=off))
    assert hidden.status == "not_measured"
    assert "CUDA_CACHE_DISABLE" in hidden.evidence[0]


def test_a_cache_that_is_switched_off_loses_what_is_compiled() -> None:
    off = [event(wire.HELLO, 0.9, environment={"CUDA_CACHE_DISABLE": "1"})]
    of = on_gpu(readings=caches(0, 0, 0), extra=off, nodes=COMPILES, cold_s=9.0)
    found = verdict("jit-cache-lost", of)
    assert (found.status, found.remedy) == ("found", "unset CUDA_CACHE_DISABLE")
    assert found.evidence[0] == "CUDA_CACHE_DISABLE is set for the client"
    on = [event(wire.HELLO, 0.9, environment={"CUDA_CACHE_DISABLE": "0"})]
    assert verdict("jit-cache-lost", on_gpu(extra=on, nodes=COMPILES)).status == "ruled_out"


def test_a_cache_at_its_bound_drops_kernels() -> None:
    small = nodes(cuda=replace(CUDA, cache_max_bytes=20_000_000))
    found = verdict("jit-cache-lost", on_gpu(readings=caches(8, 8, 10), nodes=small, cold_s=3.0))
    assert found.status == "found"
    assert found.evidence[-1] == "the cache of tf0 holds 20 of at most 20 MB"
    assert (
        verdict("jit-cache-lost", on_gpu(readings=caches(8, 8, 8), nodes=small)).status
        == "ruled_out"
    )


def test_compiling_much_beside_kernels_that_were_there_is_doubtful() -> None:
    again = verdict("jit-cache-lost", on_gpu(readings=caches(4, 4, 9), cold_s=4.0))
    assert (again.status, again.confidence) == ("found", "low")
    first = verdict("jit-cache-lost", on_gpu(readings=caches(0, 0, 9), cold_s=4.0))
    assert first.status == "ruled_out"


def test_the_first_steps_time_is_counted_once() -> None:
    compiled = on_gpu(readings=caches(0, 0, 9), cold_s=4.0)
    assert verdict("first-step-setup", compiled).evidence[0].endswith("counted in ptx-jit")
    plain = on_gpu(cold_s=4.0)
    with_row = rows(plain, Span("cublas_start", "tf0", 2.7, 0.3, "probe"))
    found = verdict("first-step-setup", with_row)
    assert found.seconds == pytest.approx(4.0 - traced().duration_s - 0.3, abs=1e-3)
    assert "300.0 ms are cuBLAS's start by the probe" in found.evidence[0]


# The driver


@pytest.mark.parametrize(("wake_s", "status"), [(1.4, "found"), (0.3, "ruled_out")])
def test_a_driver_that_sleeps_is_found_by_how_long_it_takes_to_wake(
    wake_s: float, status: str
) -> None:
    asleep = nodes(replace(T4, persistence=False, woke_s=None))
    said = verdict("no-persistence", on_gpu(nodes=asleep, wake_s=wake_s))
    assert said.status == status
    if status == "found":
        assert said.seconds == pytest.approx(wake_s)
        assert said.evidence == (
            "persistence mode is off on 1 GPUs of tf0, 1 GPUs of tf1",
            "the driver of tf0 took 1.40 s to answer, 1.40 s for each GPU",
        )
    else:
        assert said.evidence[0] == "the driver woke in 300.0 ms, below 1 s"


def test_the_check_before_the_run_may_have_paid_for_the_wake_up() -> None:
    asleep = nodes(replace(T4, persistence=False, woke_s=2.5))
    found = verdict("no-persistence", on_gpu(nodes=asleep))
    assert found.seconds == pytest.approx(2.5)
    assert "more than a second one on tf1" in found.evidence[-1]


def test_persistence_is_known_from_nvml_too_or_not_at_all() -> None:
    awake = verdict("no-persistence", on_gpu())
    assert awake.evidence == ("persistence mode is on, on all of 2 GPUs",)
    plain = tuple(replace(node, gpus=()) for node in nodes())
    told = on_gpu(nodes=plain, extra=[listed(1.0, persistence=False)], wake_s=1.2)
    assert verdict("no-persistence", told).status == "found"
    unknown = on_gpu(nodes=plain, extra=[listed(1.0, persistence=None)])
    said = verdict("no-persistence", unknown)
    assert said.status == "not_measured"
    assert "nvidia-smi" in said.evidence[1]
    assert verdict("no-persistence", healthy()).evidence[0] == "no GPU was asked for"


def test_a_context_is_priced_by_tensorflows_stamp_beside_the_probe() -> None:
    slow = rows(on_gpu(gpus=[probe()]), Span("gpu_context", "tf0", 3.0, 2.4, "log"))
    found = verdict("cuda-context", slow)
    assert found.seconds == pytest.approx(2.4)
    assert any("TensorFlow's stamp" in line for line in found.evidence)
    assert found.evidence[-1] == "the probe alone took 300.0 ms for driver and context on tf0"
    assert verdict("server-start", slow).status == "ruled_out"
    unstamped = verdict("cuda-context", on_gpu(extra=phase(wire.PHASE_SERVER, 2.6, 5.0)))
    assert any("the whole phase of the server" in line for line in unstamped.evidence)


def test_what_the_devices_take_is_not_the_servers_start_as_well() -> None:
    slow = on_gpu(extra=phase(wire.PHASE_SERVER, 2.6, 5.0))
    assert verdict("cuda-context", slow).status == "found"
    assert verdict("server-start", slow).status == "ruled_out"


# cuBLAS


def test_cublas_costs_its_libraries_and_what_the_probe_measured() -> None:
    found = verdict("cublas-load", on_gpu(libraries_s=1.5, gpus=[probe()]))
    assert (found.status, found.confidence) == ("found", "medium")
    assert found.seconds == pytest.approx(1.8)
    assert "the slowest was libcublas.so.12: 200.0 ms" in found.evidence
    assert found.evidence[-1].endswith("by the probe (an estimate)")
    small = verdict("cublas-load", on_gpu(gpus=[probe()]))
    assert (small.status, small.evidence[0]) == ("ruled_out", "0.55 of 12.00 s (5 %)")


def test_without_the_probe_the_first_product_stays_within_the_first_step() -> None:
    said = verdict("cublas-load", on_gpu())
    assert said.status == "not_measured"
    assert "opening CUDA's libraries took 0.25 of 12.00 s" in said.evidence[0]
    assert "--gpu-probe" in said.evidence[1]
    libraries = verdict("cublas-load", on_gpu(libraries_s=1.4))
    assert libraries.status == "found"
    assert libraries.seconds == pytest.approx(1.4)


# Clocks


def throttled(clock_mhz: float, **more: Any) -> list[Event]:
    held = {"sm_clock_mhz": clock_mhz, "throttle": ["sw-thermal-slowdown"], **more}
    return [use(4.0, temperature_c=88, **held), use(4.5, temperature_c=91, **held)]


def test_a_gpu_that_is_held_down_costs_at_most_its_missing_clock() -> None:
    found = verdict("gpu-throttled", on_gpu(uses=throttled(795)))
    assert (found.status, found.scope, found.confidence) == ("found", "step", "medium")
    assert found.title == "The GPU of tf0 is held down: sw-thermal-slowdown"
    assert found.evidence[0] == (
        "tf0: sw-thermal-slowdown in 2 of 2 readings, clock 795 to 795 MHz, up to 91 °C"
    )
    computes_s = 4 * 8e-3 + 1e-4
    assert found.seconds == pytest.approx(0.5 * computes_s, rel=0.01)
    assert "50% of its highest clock" in found.evidence[1]


def test_clocks_that_are_held_down_a_little_or_by_rest_are_no_cause() -> None:
    little = verdict("gpu-throttled", on_gpu(uses=throttled(1540)))
    assert little.status == "ruled_out"
    assert "at most" in little.evidence[0]
    rest = [use(4.0, sm_clock_mhz=300, throttle=["gpu-idle"])]
    said = verdict("gpu-throttled", on_gpu(uses=rest))
    assert said.evidence == ("nothing held clocks down in 1 readings while steps ran",)


def test_a_workers_clocks_count_as_the_clients() -> None:
    events = [use(at_s, task=1, sm_clock_mhz=600, throttle=["hw-slowdown"]) for at_s in (4.0, 5.0)]
    found = verdict("gpu-throttled", on_gpu(server_events=events))
    assert found.title == "The GPU of tf1 is held down: hw-slowdown"


def test_readings_outside_of_the_steps_say_nothing_of_them() -> None:
    said = verdict("gpu-throttled", on_gpu(uses=[use(1.0, throttle=["hw-slowdown"])]))
    assert said.status == "not_measured"
    assert "no reading of NVML fell into them" in said.evidence[0]
    none = verdict("gpu-throttled", on_gpu(uses=[], extra=[event(wire.GPUS, 1.5, error="NVML: x")]))
    assert none.status == "not_measured"
    assert none.evidence[0].endswith("not in the record: tf0: NVML: x")
    unknown = verdict("gpu-throttled", on_gpu(uses=[use(4.0, throttle=None)]))
    assert unknown.status == "not_measured"


def test_without_a_gpu_trace_a_held_clock_is_bounded_by_the_step() -> None:
    trace = traced(device="GPU:0")
    queued = replace(trace, tasks=tuple(replace(task, queued_only=True) for task in trace.tasks))
    of = on_gpu(trace=queued, uses=throttled(795))
    assert of.split == split_step(queued, of.stats.warm_median_ms)
    found = verdict("gpu-throttled", of)
    assert found.seconds == pytest.approx(0.5 * (of.stats.warm_median_ms or 0) / 1e3)
    assert found.evidence[-1].endswith("of the whole step")


# Company

OTHERS = [{"pid": 77, "memory_bytes": 3 * 10**9}]


def shared(**more: Any) -> Explained:
    return on_gpu(uses=[use(4.0, others=OTHERS), use(4.5, others=OTHERS)], **more)


def test_products_below_the_probes_rate_beside_others_are_slowed_by_them() -> None:
    # The traced products run at 250 GFLOP/s, the probe reached 2000.
    found = verdict("gpu-shared", shared(gpus=[probe()]))
    assert (found.status, found.confidence) == ("found", "medium")
    assert (
        found.evidence[0]
        == "products on tf0 ran at 250 GFLOP/s, 12% of the 2000 that the probe reached"
    )
    assert found.evidence[1] == "process 77 was on GPU 0 of tf0 in 2 of 2 readings, holding 3000 MB"
    fine = verdict("gpu-shared", shared(gpus=[probe(gflops=260.0)]))
    assert fine.status == "ruled_out"
    assert "96% of the 260" in fine.evidence[0]


def test_a_gpu_that_was_busy_before_the_run_used_it_is_shared() -> None:
    busy = verdict("gpu-shared", shared(early=[use(1.5, utilisation_percent=80)]))
    assert (busy.status, busy.seconds) == ("found", None)
    assert busy.evidence[-1] == "the GPU of tf0 was busy for up to 80 % before this run used it"
    idle = verdict("gpu-shared", shared(early=[use(1.5, utilisation_percent=0)]))
    assert (idle.status, idle.confidence) == ("ruled_out", "medium")
    unknown = verdict("gpu-shared", shared())
    assert unknown.status == "not_measured"


def test_a_gpu_of_its_own_is_not_shared() -> None:
    said = verdict("gpu-shared", on_gpu())
    assert said.evidence[0] == "0 processes of others in 2 readings"
    unlisted = verdict("gpu-shared", on_gpu(uses=[use(4.0, others=None)]))
    assert unlisted.status == "not_measured"


# What is not there


def test_memory_that_others_held_is_told_where_the_run_ran_out_of_it() -> None:
    held = nodes(replace(T4, holders=(GpuHolder(99, "python3", 14 * 2**30),)))
    error = event(
        wire.ERROR, 9.0, kind="out-of-memory", message="ResourceExhaustedError: OOM", detail=None
    )
    out = run([*HEALTHY[:8], error], outcome="failed", parameters=GPU, nodes=held)
    found = verdict("gpu-memory-taken", out)
    assert found.status == "found"
    assert found.evidence[1] == "python3 (99) held 14336 MiB of GPU 0 on tf0 before the run"
    beside = verdict("gpu-memory-taken", on_gpu(nodes=held))
    assert beside.evidence[0] == "the run had room beside 2 processes"
    free = verdict("gpu-memory-taken", on_gpu())
    assert free.evidence == ("0 processes held memory of 2 GPUs before the run",)


def unable(*events: Event, log: Sequence[str] = (), **more: Any) -> Explained:
    """Return a GPU run that ended because a task had no GPU device."""
    error = event(
        wire.ERROR, 9.0, kind="no-gpu-device", message="task 0 at 10.0.0.2:2222 has no GPU device", detail=None
    )  # fmt: skip
    more = {"parameters": GPU, **more}
    return run([*HEALTHY[:7], *events, error], outcome="failed", log=log, **more)


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("no-driver", "NVML: NVML Shared Library Not Found"),
        ("no-driver", "NVML: Driver Not Loaded"),
        ("driver-mismatch", "NVML: Driver/library version mismatch"),
    ],
)
def test_nvmls_own_words_name_the_fault(cause: str, error: str) -> None:
    found = verdict(cause, unable(event(wire.GPUS, 3.2, error=error)))
    assert found.status == "found"
    assert found.evidence == (f"NVML on tf0 said: {error}",)


def test_libraries_that_could_not_be_opened_are_named() -> None:
    opened = [{"name": "libcudnn.so.9", "path": None, "duration_ns": 5, "error": "no such file"}]
    found = verdict("cuda-libraries-missing", unable(event(wire.LIBRARIES, 8.1, libraries=opened)))
    assert found.evidence == ("libcudnn.so.9 cannot be opened on tf0",)
    lacking = nodes(cuda=replace(CUDA, missing=("libcublas.so.12",)))
    found = verdict("cuda-libraries-missing", unable(nodes=lacking))
    assert found.evidence[1] == "libcublas.so.12 cannot be opened on tf1"


def test_a_tensorflow_for_cpus_loads_no_libraries_of_cuda() -> None:
    found = verdict(
        "cuda-libraries-missing", unable(nodes=nodes(cuda=replace(CUDA, is_cuda_build=False)))
    )
    assert (found.status, found.confidence) == ("found", "high")
    assert found.evidence == ("TensorFlow on tf0, tf1 is built for CPUs alone",)


def test_a_server_that_made_no_gpu_device_counts_as_its_start() -> None:
    slow = phase(wire.PHASE_SERVER, 2.6, 5.0)
    found = verdict("server-start", on_gpu(trace=traced(), extra=slow))
    assert found.seconds == pytest.approx(2.41)
    made = verdict("server-start", on_gpu(extra=slow))
    assert made.status == "ruled_out"
    assert not any("its devices" in line for line in made.evidence)


def test_a_hidden_gpu_is_known_by_the_clients_own_variable() -> None:
    hello = event(wire.HELLO, 0.5, environment={"CUDA_VISIBLE_DEVICES": "-1"}, driver="580.95.05")
    found = verdict("gpu-hidden", unable(hello))
    assert found.evidence == ("the client had CUDA_VISIBLE_DEVICES=-1",)
    assert found.confidence == "high"


def test_an_index_that_no_gpu_has_hides_all_of_them() -> None:
    hello = event(wire.HELLO, 0.5, environment={"CUDA_VISIBLE_DEVICES": "7"})
    words = "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    of = unable(hello, log=[words], nodes=nodes())
    found = verdict("gpu-hidden", of)
    assert (found.status, found.confidence) == ("found", "high")
    assert found.evidence == (
        "the client had CUDA_VISIBLE_DEVICES=7, and its node has 1, numbered from 0",
    )
    assert verdict("no-driver", of).status == "ruled_out"


def test_libraries_of_a_system_toolkit_are_known_by_what_could_be_opened() -> None:
    plain = tuple(
        replace(node, versions={"tensorflow": "2.21.0", "driver": "580.95.05"}) for node in nodes()
    )
    assert all(node.cuda is not None and node.cuda.missing == () for node in plain)
    assert verdict("cuda-libraries-missing", unable(nodes=plain)).status != "found"


def test_a_gpu_that_is_listed_has_a_driver_whatever_the_kernel_shows() -> None:
    plain = tuple(
        replace(node, versions={"tensorflow": "2.21.0", "cuda": "12.5"}) for node in nodes()
    )
    hello = event(wire.HELLO, 0.5, driver=None)
    said = verdict("no-driver", on_gpu(nodes=plain, extra=[hello], trace=traced()))
    assert said.status == "ruled_out"
    assert said.evidence[0] == "driver 580.95.05 is loaded"


def test_a_healthy_gpu_run_has_no_fault_of_its_gpu_and_every_rule_speaks() -> None:
    of = on_gpu(gpus=[probe(gflops=260.0), probe("tf1", gflops=260.0)])
    said = {each.cause: each for each in judge_all(of)}
    for rule in (*gpu.RULES, *device.RULES):
        found = said[rule.cause]
        assert found.status == "ruled_out", found
        assert any(letter.isdigit() for letter in " ".join(found.evidence)), found


# Pairs


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("ptx-jit", "--env CUDA_CACHE_DISABLE=1 against --env CUDA_CACHE_DISABLE=0"),
        ("jit-cache-lost", "--env CUDA_CACHE_DISABLE=1 against --env CUDA_CACHE_DISABLE=0"),
        ("no-persistence", "wake-up of the driver of fresh processes"),
        ("cuda-context", "making of the GPU device of fresh processes"),
        ("cublas-load", "libraries, handle and first product of fresh processes"),
    ],
)
def test_what_can_be_proved_on_a_gpu_has_a_pair(cause: str, text: str) -> None:
    pair = pair_for(cause, GPU)
    assert not isinstance(pair, str)
    assert pair.text == text
    assert isinstance(pair_for(cause, MATPOW), str)
