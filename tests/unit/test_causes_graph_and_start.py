"""The graph, what is paid once, devices and numbers: each cause found by its signals, and ruled out without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.causes import device, gpu, graph, numerics, startup
from labctl.analysis.causes.common import part_text
from labctl.analysis.causes.graph import squaring_products
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explained import Explained
from labctl.node import wire
from labctl.runs.data import LogLine
from labctl.runs.events import Event
from labctl.runs.record import FailedCheck, Span
from tests.unit import explained_samples as samples
from tests.unit.explained_samples import explained, healthy, hung, traced
from tests.unit.stories import HEALTHY, MATPOW, SERVER, START_S, TF0, TF1, event, phase, run, steps

RULES: dict[str, Rule] = {
    rule.cause: rule for family in (graph, startup, device, gpu, numerics) for rule in family.RULES
}
GPU = replace(MATPOW, device="gpu")
SCRIPT = replace(
    MATPOW, experiment="script", device=None, size=None, power=None, algorithm=None, feed=None
)


def verdict(cause: str, of: Explained) -> Verdict:
    return RULES[cause].judge(of)


def logged(of: Explained, *lines: str, at_s: float | None = None) -> Explained:
    stamp = None if at_s is None else START_S + at_s
    return replace(of, data=replace(of.data, log=tuple(LogLine("tf0", stamp, x) for x in lines)))


def on_gpu(parameters: Any = GPU, **more: Any) -> Explained:
    """Return a GPU run whose products ran there."""
    return explained(traced(device="GPU:0"), parameters=parameters, **more)


def not_on_gpu(*lines: str, **more: Any) -> Explained:
    """Return a GPU run whose products ran on CPUs."""
    return logged(explained(traced(), parameters=GPU, **more), *lines)


def failed(message: str, kind: str = "unexpected") -> Explained:
    error = event(wire.ERROR, 9.0, kind=kind, message=message, detail=None)
    return run([*HEALTHY[:8], error], outcome="failed")


# The graph


def test_products_that_did_not_run_were_folded() -> None:
    folded = explained(
        traced(products=0, feed=False),
        products=8,
        cold_s=2.6,
        warm_s=0.049,
        extra=[samples.graph(constant_bytes=8_000_000)],
        parameters=replace(MATPOW, feed="constant"),
    )
    found = verdict("constants-folded", folded)
    assert (found.status, found.scope, found.seconds) == ("found", "step", None)
    assert found.evidence[:2] == (
        "the graph has 8 products, 0 ran in the traced step",
        "the graph holds 8.0 MB of constants",
    )
    assert "the first step took 2.60 s, a later one 49.0 ms" in found.evidence[2]
    assert verdict("first-step-setup", folded).evidence[0].endswith("counted in constants-folded")
    said = verdict("constants-folded", healthy())
    assert said.evidence == ("8 of the graph's 8 products ran in the traced step",)
    assert verdict("constants-folded", hung()).status == "not_measured"


def untraced_constants(each_s: float, **ops: int) -> Explained:
    """Return a run without a trace whose graph has eight products of L = 1000, peaks of 100 GFLOP/s."""
    built = replace(
        samples.graph(constant_bytes=8_000_038),
        data={"ops": {"MatMul": 8, "Const": 2, **ops}, "bytes": 8_001_582}
        | {"constant_bytes": 0 if ops else 8_000_038},
    )
    events = [*HEALTHY[:8], built, *steps(8.3, 11, each_s), HEALTHY[-2]]
    return run(events, peaks={"tf0": 90.0, "tf1": 100.0})


def test_without_a_trace_steps_too_short_for_their_products_were_folded() -> None:
    found = verdict("constants-folded", untraced_constants(4e-4))
    assert (found.status, found.seconds, found.confidence) == ("found", None, "medium")
    assert found.evidence[0] == (
        "a warm step takes 0.4 ms; 4 products on a task need 80.0 ms at the nodes' best peak, 100 GFLOP/s"
    )
    first = verdict("first-step-setup", untraced_constants(4e-4)).evidence[0]
    assert first.endswith("counted in constants-folded")
    for of in (untraced_constants(0.1), untraced_constants(4e-4, Placeholder=2)):
        said = verdict("constants-folded", of)
        assert said.status == "ruled_out"
        assert any(char.isdigit() for char in said.evidence[0])


def test_no_part_of_a_time_is_less_than_nothing() -> None:
    assert part_text(-1e-17, 0.1255) == "0.0 of 125.5 ms (0 %)"
    assert part_text(-1e-17, 2.0) == "0.00 of 2.00 s (0 %)"


def test_a_run_that_goes_on_is_not_said_to_have_ended() -> None:
    live = run([], outcome="running", ended_at_s=None, wall_s=None, after=None)
    for each in judge_all(live):
        assert not any("ended before" in line for line in each.evidence), each
    told = {each.cause: each.evidence[0] for each in judge_all(live)}
    assert told["import"] == "the run has not come to its import yet"
    assert told["transfer"] == "the run has not come to a traced step yet"
    assert told["peer-down"] == "the run has not come to its peers' ports yet"
    assert told["server-killed"].endswith(" yet")


def test_a_node_without_a_driver_comes_before_its_missing_libraries() -> None:
    of = not_on_gpu()
    found = [each.cause for each in judge_all(of) if each.status == "found"]
    assert found.index("no-driver") < found.index("cuda-libraries-missing")
    said = verdict("no-driver", of)
    assert said.evidence == ("no NVIDIA driver is loaded on tf0, tf1",)
    driven = tuple(
        replace(node, versions=node.versions | {"driver": "550.54"}) for node in (TF0, TF1)
    )
    assert verdict("no-driver", not_on_gpu(nodes=driven)).status == "ruled_out"
    hello = event(wire.HELLO, 0.5, driver=None)
    told = verdict("no-driver", not_on_gpu(nodes=driven, extra=[hello]))
    assert told.evidence == ("no NVIDIA driver is loaded on tf0",)


def test_a_graph_without_products_folds_none() -> None:
    one_factor = explained(traced(products=0), parameters=replace(MATPOW, power=1))
    assert verdict("constants-folded", one_factor).status == "ruled_out"
    assert verdict("more-products-than-needed", one_factor).status == "ruled_out"


def test_a_graph_too_large() -> None:
    words = "DecodeError: Error parsing message: Wire format was corrupt"
    found = verdict("graph-too-large", failed(words))
    assert (found.status, found.seconds) == ("found", None)
    with_size = explained(traced(), extra=[samples.graph(size_bytes=1500)])
    assert verdict("graph-too-large", with_size).evidence == (
        "the graph has 1.5 kB, of 2 GB at most",
    )
    assert verdict("graph-too-large", hung()).status == "not_measured"


@pytest.mark.parametrize(
    ("factors", "products"), [(1, 0), (2, 1), (5, 3), (6, 3), (16, 4), (50, 7), (400, 10)]
)
def test_squaring(factors: int, products: int) -> None:
    assert squaring_products(factors) == products


def test_more_products_than_needed_costs_the_surplus() -> None:
    long = explained(traced(products=15, product_s=4e-3), parameters=replace(MATPOW, power=16))
    found = verdict("more-products-than-needed", long)
    assert found.status == "found"
    assert found.seconds == pytest.approx((60e-3 + 1e-4) * 11 / 15, rel=1e-6)
    assert found.evidence[0] == "15 products a power, squaring needs 4 for 16 factors"
    assert verdict("more-products-than-needed", healthy()).evidence[0] == (
        "4 products a power, squaring needs 3"
    )
    listing = explained(traced(), parameters=replace(MATPOW, algorithm="listing", power=4))
    assert "4 products" in verdict("more-products-than-needed", listing).evidence[0]
    squaring = explained(traced(), parameters=replace(MATPOW, algorithm="squaring", power=400))
    assert verdict("more-products-than-needed", squaring).status == "ruled_out"
    untraced = replace(long, trace=None, traces=(), split=None)
    assert verdict("more-products-than-needed", untraced).status == "not_measured"
    script = explained(traced(), parameters=SCRIPT)
    assert verdict("more-products-than-needed", script).status == "not_measured"


def test_a_task_without_step_stats_is_not_folded_away() -> None:
    whole = traced()
    one = replace(whole, tasks=whole.tasks[:1])
    lost = explained(one, products=8)
    said = verdict("constants-folded", lost)
    assert said.status == "not_measured"
    assert "step stats of task:1" in said.evidence[0]
    constant = explained(one, products=8, parameters=replace(MATPOW, feed="constant"))
    assert verdict("constants-folded", constant).status == "found"


def test_recursion_is_never_a_cause() -> None:
    recursive = explained(
        traced(), parameters=replace(MATPOW, algorithm="recursive"), extra=[samples.graph()]
    )
    said = verdict("recursion", recursive)
    assert said.status == "ruled_out"
    assert said.evidence[0] == (
        "it ran once, in Python, before the first step; the graph was built in 40.0 ms"
    )
    assert said.evidence[-1] == "the graph is flat: 11 ops, 8 of them products"
    assert "0 calls: chain does not recurse" in verdict("recursion", healthy()).evidence[0]
    assert verdict("recursion", run([])).status == "not_measured"
    assert verdict("recursion", explained(traced(), parameters=SCRIPT)).status == "not_measured"


# What is paid once


def test_import_is_a_tenth_of_the_wall_time_or_no_cause() -> None:
    phases = (Span(wire.PHASE_IMPORT_TENSORFLOW, "tf1", START_S - 60, 8.6, "client"),)
    of = explained(traced(), before=(replace(SERVER, phases=phases),))
    found = verdict("import", of)
    assert found.seconds == pytest.approx(1.5)
    assert found.evidence == (
        "1.50 of 12.00 s (12 %) of the run's wall time, on tf0",
        "the join server on tf1 took 8.60 s for it when it started",
    )
    long = explained(traced(), wall_s=60.0)
    assert verdict("import", long).evidence == ("1.50 of 60.00 s (2 %)",)
    open_phase = run([*phase(wire.PHASE_IMPORT_TENSORFLOW, 1.0, None), event(wire.NOTE, 4.0)])
    assert verdict("import", open_phase).seconds == pytest.approx(8.8)  # to its unit's end
    assert verdict("import", run([])).status == "not_measured"
    assert "script" in verdict("import", run([], parameters=SCRIPT)).evidence[0]


def test_a_run_that_has_not_ended_is_held_against_its_time_so_far() -> None:
    going = run(HEALTHY[:6], outcome="running", wall_s=None, ended_at_s=None)
    found = verdict("import", going)
    assert found.status == "found"
    assert found.evidence[0].startswith("5.00 of 8.20 s")


def test_the_first_step() -> None:
    slow = explained(traced(), cold_s=1.9)
    found = verdict("first-step-setup", logged(slow, "mlir_graph_optimization_pass.cc:4", at_s=3.6))
    assert found.status == "found"
    assert found.seconds == pytest.approx(1.9 - traced().duration_s, abs=1e-6)
    assert found.evidence[1] == "placement and graph optimisation began 1.00 s after its begin"
    assert verdict("first-step-setup", healthy()).status == "ruled_out"
    assert verdict("first-step-setup", hung()).status == "not_measured"
    compiled = logged(slow, "Compiled cluster using XLA!  This line is logged at most once")
    assert verdict("first-step-setup", compiled).evidence[0].endswith("counted in xla-compile")
    xla = verdict("xla-compile", compiled)
    assert (xla.status, xla.confidence) == ("found", "medium")
    assert xla.seconds == found.seconds


def test_xla_is_ruled_out_by_a_log_and_by_nothing_less() -> None:
    assert verdict("xla-compile", logged(healthy(), "a", "b")).evidence == (
        "0 of 2 log lines name XLA's compiler",
    )
    assert verdict("xla-compile", healthy()).status == "not_measured"
    asked = replace(MATPOW, environment=("XLA_FLAGS",))
    assert verdict("xla-compile", explained(traced(), parameters=asked)).status == "not_measured"
    quiet = replace(MATPOW, environment=("TF_CPP_MIN_LOG_LEVEL",))
    hidden = logged(explained(traced(), parameters=quiet), "a")
    assert verdict("xla-compile", hidden).status == "not_measured"


def test_servers_that_stood_are_not_paid_in_the_run() -> None:
    of = explained(traced(), before=(replace(SERVER, startup_s=8.6),))
    said = verdict("server-start", of)
    assert said.status == "ruled_out"
    assert said.evidence == (
        "0.01 of 12.00 s (0 %) of this run",
        "the join server on tf1 took 8.60 s to start, 60 s before this run",
    )
    spans = (Span("restart_servers", "labctl", 1.0, 8.8, "labctl"),)
    fresh = explained(
        traced(), parameters=replace(MATPOW, fresh=True), spans=spans, before=(SERVER,)
    )
    found = verdict("server-start", fresh)
    assert found.seconds == pytest.approx(8.81)
    assert "--fresh" in found.remedy
    children = explained(
        traced(),
        parameters=replace(MATPOW, placement="one-host"),
        extra=phase(wire.PHASE_PEERS, 3.2, 7.8),
    )
    assert verdict("server-start", children).seconds == pytest.approx(4.61)
    assert verdict("server-start", run([], parameters=SCRIPT)).status == "not_measured"
    assert verdict("server-start", run([])).status == "not_measured"
    early = run(phase(wire.PHASE_IMPORT_TENSORFLOW, -90.0, -85.0), ended_at_s=None)
    assert verdict("import", early).evidence[0] == "the import's stamps lie outside of the run"


# Devices


def test_products_elsewhere_than_asked_are_found_by_the_trace() -> None:
    moved = not_on_gpu()
    found = verdict("soft-placement", moved)
    assert (found.status, found.scope, found.seconds) == ("found", "step", None)
    assert found.title == "Products run on a CPU though a GPU was asked for"
    assert found.evidence == (
        "products were asked for on a GPU; 8 on a CPU in the traced step",
        "task:0 on tf0: 4 on CPU:0",
        "task:1 on tf1: 4 on CPU:0",
    )
    said = verdict("soft-placement", healthy())
    assert said.evidence == ("8 of 8 products ran on a CPU, as asked",)
    assert verdict("soft-placement", on_gpu()).status == "ruled_out"
    assert verdict("soft-placement", hung()).status == "not_measured"
    strict = run(parameters=replace(GPU, soft_placement=False))
    assert verdict("soft-placement", strict).evidence == ("0 ops may move: soft placement is off",)
    script = verdict("soft-placement", explained(traced(), parameters=SCRIPT))
    assert script.status == "not_measured"


WORDS = [
    ("cuda-libraries-missing", "Cannot dlopen some GPU libraries. Please make sure"),
    (
        "cuda-libraries-missing",
        "Could not find cuda drivers on your machine, GPU will not be used.",
    ),
    ("driver-mismatch", "kernel version 535.1 does not match DSO version 550.2 -- cannot find"),
    ("no-driver", "failed call to cuInit: CUDA_ERROR_UNKNOWN"),
    (
        "gpu-too-old",
        "Ignoring visible gpu device (K80) the minimum required Cuda capability is 6.0",
    ),
    ("gpu-hidden", "CUDA_VISIBLE_DEVICES is set to -1 - this hides all GPUs from CUDA"),
    ("gpu-memory-taken", "failed to allocate 14G: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (
        "ptx-jit",
        "TensorFlow was not built with CUDA kernel binaries compatible with compute capability",
    ),
    ("cublas-load", "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"),
]


@pytest.mark.parametrize(("cause", "words"), WORDS)
def test_tensorflows_words_on_gpus_count_where_one_was_asked_for(cause: str, words: str) -> None:
    found = verdict(cause, not_on_gpu("noise", words))
    assert found.status == "found"
    assert found.remedy
    assert found.evidence[0] == f"tf0 wrote: {words}"
    on_cpus = verdict(cause, logged(healthy(), words))
    assert on_cpus.status == "not_measured"
    assert on_cpus.evidence[0] == "no GPU was asked for"
    assert verdict(cause, explained(traced(), parameters=SCRIPT)).status == "not_measured"


@pytest.mark.parametrize("rule", [*device.RULES[1:], gpu.RULES[0]], ids=lambda rule: rule.cause)
def test_a_gpu_that_computes_rules_its_absence_out(rule: Any) -> None:
    nodes = tuple(
        replace(node, versions={**node.versions, "cuda": "12.5", "driver": "550.2"})
        for node in (TF0, TF1)
    )
    said = rule.judge(on_gpu(nodes=nodes))
    assert said.status == "ruled_out"
    assert any(letter.isdigit() for letter in said.evidence[0])


def test_what_a_gpu_lacks_is_told_by_the_check_and_the_packages_too() -> None:
    check = FailedCheck(
        "gpu", "tf0", "tf0 has no GPU driver: nvidia-smi: No such file", "a", "give it one"
    )
    skipped = not_on_gpu("noise", failed_checks=(check,))
    found = verdict("no-driver", skipped)
    assert found.evidence == ("labctl check: tf0 has no GPU driver: nvidia-smi: No such file",)
    assert found.remedy == "give it one"
    bare = verdict("cuda-libraries-missing", not_on_gpu("noise"))
    assert (bare.status, bare.confidence) == ("found", "medium")
    assert bare.evidence == ("no CUDA libraries are installed beside TensorFlow on tf0, tf1",)
    assert verdict("driver-mismatch", skipped).status == "ruled_out"
    assert verdict("driver-mismatch", not_on_gpu()).status == "not_measured"
    hidden = replace(GPU, environment=("CUDA_VISIBLE_DEVICES",))
    maybe = verdict("gpu-hidden", logged(explained(traced(), parameters=hidden), "noise"))
    assert (maybe.status, maybe.confidence) == ("found", "low")


@pytest.mark.parametrize(
    ("check", "found", "cause"),
    [
        (
            "cuda-libraries",
            "tf0 cannot open libcudnn.so.9: No such file",
            "cuda-libraries-missing",
        ),
        (
            "gpu-capability",
            "GPU 0 of tf0 has compute capability 3.7, too old for TensorFlow 2.21",
            "gpu-too-old",
        ),
        ("gpu-holders", "python3, pid 77, holds 9 GiB of GPU 0", "gpu-memory-taken"),
    ],
)
def test_a_check_that_failed_names_its_cause(check: str, found: str, cause: str) -> None:
    failed = FailedCheck(check, "tf0", found, "another", "mend it")
    said = verdict(cause, not_on_gpu("noise", failed_checks=(failed,)))
    assert (said.status, said.evidence[0]) == ("found", f"labctl check: {found}")
    assert said.remedy == "mend it"


def test_compilation_is_priced_by_the_first_step() -> None:
    words = "TensorFlow was not built with CUDA kernel binaries; jit-compiled from PTX"
    compiled = logged(on_gpu(cold_s=61.0), words)
    found = verdict("ptx-jit", compiled)
    assert found.seconds == pytest.approx(61.0 - traced().duration_s, abs=1e-3)
    assert verdict("jit-cache-lost", compiled).status == "not_measured"
    off = replace(GPU, environment=("CUDA_CACHE_DISABLE",))
    lost = verdict("jit-cache-lost", logged(on_gpu(off), words))
    assert lost.status == "found"
    assert verdict("jit-cache-lost", on_gpu()).status == "ruled_out"


def test_a_gpus_context_is_the_servers_phase() -> None:
    slow = on_gpu(extra=phase(wire.PHASE_SERVER, 3.2, 6.2))
    assert verdict("cuda-context", slow).seconds == pytest.approx(3.01)
    assert verdict("cuda-context", on_gpu()).status == "ruled_out"
    assert verdict("cuda-context", not_on_gpu()).status == "not_measured"


@pytest.mark.parametrize("cause", ["no-persistence", "gpu-throttled", "gpu-shared", "cublas-load"])
def test_what_no_record_holds_names_its_command(cause: str) -> None:
    said = verdict(cause, on_gpu())
    assert said.status == "not_measured"
    assert "nvidia-smi" in said.evidence[1] or "nsys" in said.evidence[1]


# Numbers


def result(**data: Any) -> list[Event]:
    return [event(wire.RESULT, 9.0, **data)]


def test_overflow() -> None:
    by_kind = failed("float32 cannot hold entries of 1e40", "out-of-range")
    assert verdict("float32-overflow", by_kind).status == "found"
    refused = failed("listing with power 20 and size 1000 overflows float32", "bad-plan")
    assert verdict("float32-overflow", refused).evidence == (
        "the client says: listing with power 20 and size 1000 overflows float32",
    )
    infinite = run(result(ok=False, norm=None, relative_error=None), outcome="wrong")
    assert verdict("float32-overflow", infinite).status == "found"
    said = verdict("float32-overflow", healthy())
    assert said.evidence == ("the result's norm is 43.9, relative error 7.0e-07",)
    assert verdict("float32-overflow", hung()).status == "not_measured"


@pytest.mark.parametrize(
    ("parameters", "error", "ok", "status"),
    [
        (GPU, 8e-4, False, "found"),
        (GPU, 8e-7, True, "ruled_out"),
        (GPU, 0.7, False, "ruled_out"),
        (MATPOW, 8e-4, False, "ruled_out"),
        (GPU, None, False, "not_measured"),
    ],
)
def test_tf32(parameters: Any, error: float | None, ok: bool, status: str) -> None:
    of = run(result(ok=ok, relative_error=error), outcome="wrong", parameters=parameters)
    assert verdict("tf32", of).status == status
