"""GPUs in what is read of a run: events, step stats, copies, a step's parts, and the cold start's rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.clock import Clocks
from labctl.analysis.cold_start import split_context, split_setup
from labctl.analysis.explain import explain
from labctl.analysis.gpus import node_gpus, read
from labctl.analysis.ledger import build_ledger, client_spans, split_first_step
from labctl.node import wire
from labctl.runs.baseline import Baseline
from labctl.runs.data import LogLine, RunData
from labctl.runs.record import Span
from tests.unit import stories
from tests.unit.gpu_samples import (
    GPU,
    cache,
    caches,
    gpu_step,
    kernel,
    listed,
    memcpy,
    nodes,
    on_gpu,
    probe,
    use,
)
from tests.unit.made_traces import MB4, Row, cpu, fed_step, run_data
from tests.unit.stories import HEALTHY, START_S, event, phase

# Events

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.sampled_from(
    ["index", "pid", "others", "throttle", "utilisation_percent", "memory_bytes", "duration_ns"]
)


@given(
    kind=st.sampled_from([wire.GPUS, wire.GPU_USAGE, wire.KERNEL_CACHE, wire.LIBRARIES]),
    devices=st.lists(st.dictionaries(FIELDS, JSON, max_size=4) | JSON, max_size=3) | JSON,
    data=st.dictionaries(st.sampled_from(["path", "files", "bytes", "when", "error"]), JSON),
)
def test_no_event_of_a_gpu_makes_the_reading_fail(kind: str, devices: Any, data: Any) -> None:
    told = event(kind, 1.0, devices=devices, libraries=devices, **data)
    found = read("tf0", [told])
    for each in () if found is None else found.use:
        figures = (each.utilisation_percent, each.sm_clock_mhz, each.power_w)
        assert all(value is None or 0 <= value <= 1e18 for value in figures)


def test_what_processes_told_is_read_by_node() -> None:
    run = on_gpu(server_events=[listed(-5.0), use(4.1, task=1), cache(-5.0, "begin", 0, 0)])
    one, other = node_gpus(run.data)
    assert (one.node, one.devices[0].name, len(one.use)) == ("tf0", "Tesla T4", 2)
    assert [each.name for each in one.libraries] == ["libcudart.so.12", "libcublas.so.12"]
    assert (other.node, other.use[0].utilisation_percent) == ("tf1", 95)
    assert other.grown is None  # one reading says nothing of growth
    assert node_gpus(stories.run().data) == ()


def test_a_cache_that_grew_says_where() -> None:
    (told,) = node_gpus(on_gpu(readings=caches(4, 4, 9)).data)
    assert told.grown is not None
    assert (told.grown.files, told.grown.size_bytes, told.grown.compiled) == (5, 10_000_000, True)
    early, late = told.grown_in("begin", "server"), told.grown_in("server", "end")
    assert early is not None
    assert late is not None
    assert (early.compiled, late.compiled) == (False, True)
    (unread,) = node_gpus(on_gpu(readings=caches(None, None, None)).data)
    assert unread.grown is None


def test_rest_and_a_set_clock_hold_nothing_down() -> None:
    events = [use(4.0, throttle=["gpu-idle", "applications-clocks-setting", "hw-slowdown"])]
    (told,) = node_gpus(on_gpu(uses=events).data)
    assert told.use[0].held_down == ("hw-slowdown",)


# Step stats


def trace_of(rows: list[Row], **more: Any) -> Any:
    found = explain(run_data(rows, **{"duration_ms": 19, "warm_ms": [19.0, 19.0], **more}))
    assert found.trace is not None
    return found


def test_streams_without_a_task_go_to_the_task_whose_ops_they_ran() -> None:
    trace = trace_of(gpu_step()).trace
    where = {(run.task, run.device) for run in trace.ops if "stream:13" in run.device}
    assert where == {(0, "GPU:0/stream:13"), (1, "GPU:0/stream:13")}
    assert [task.products for task in trace.tasks] == [{"GPU:0": 2}, {"GPU:0": 2}]
    assert not [run for run in trace.ops if run.device.endswith(("/memcpy", "stream:all"))]


def test_a_gpus_rate_is_of_its_kernels_and_not_of_their_queueing() -> None:
    for task in trace_of(gpu_step()).trace.tasks:
        assert task.gflops == pytest.approx(2 * 2e9 / 0.008 / 1e9)
        assert not task.queued_only


def test_copies_are_edges_with_bytes_rate_and_the_time_they_were_queued() -> None:
    copies = trace_of(gpu_step()).trace.copies
    assert [(c.kind, c.task, c.tensor, c.host_memory) for c in copies] == [
        ("h2d", 0, "_recv_input_0_0", "pinned"),
        ("h2d", 1, "_recv_input_1_0", "pinned"),
        ("d2h", 0, "", "pageable"),
        ("d2h", 1, "", "pageable"),
    ]
    first = copies[0]
    assert first.size_bytes == MB4
    assert first.mb_per_s == pytest.approx(4000.0)
    assert first.queued_s == pytest.approx(1.2e-3)
    assert copies[2].queued_s is None


def test_old_labels_and_unknown_sizes_are_read_too() -> None:
    old = Row(
        "/device:GPU:0/memcpy",
        "edge_9_MatMul_1:MEMCPYDtoH",
        "MEMCPYDtoH bytes:1000 x",
        12_000,
        12_500,
    )
    unsized = memcpy("D2H", "edge_9_MatMul_3", 12_600, 12_700, None)
    between = Row("/device:GPU:0/stream:9<MemcpyD2D>", "y", "MemcpyD2D size:5", 12_800, 12_900)
    copies = trace_of([unsized, between, *gpu_step()]).trace.copies
    late = [copy for copy in copies if 0.0118 < copy.start_s < 0.013]
    assert [(c.task, c.tensor, c.size_bytes, c.mb_per_s) for c in late] == [
        (1, "MatMul_3", None, None)
    ]
    (copy,) = trace_of([*gpu_step(streams=False), old]).trace.copies
    assert (copy.kind, copy.task, copy.tensor, copy.size_bytes) == ("d2h", 0, "MatMul_1", 1000)


def test_rows_that_no_op_names_go_with_their_block_or_the_only_gpu() -> None:
    unnamed = memcpy("D2H", "MemcpyD2H", 6_000, 6_500)
    lost = explain(run_data([*fed_step(starved=False), unnamed], duration_ms=31))
    assert lost.trace is not None
    assert lost.trace.copies == ()
    assert any("1 rows without a task" in each for each in lost.problems)
    alone = [
        Row(cpu(0), "_SOURCE", "_SOURCE = NoOp()", 900, 900),
        Row(cpu(0).replace("CPU", "GPU"), "m", "m = MatMul(a, b)", 1_000, 1_050),
        Row(cpu(1), "n", "n = Add(a, b)", 1_000, 2_000),
        unnamed,
    ]
    (copy,) = trace_of(alone).trace.copies
    assert copy.task == 0


def test_without_cupti_a_gpus_rows_are_only_of_queueing() -> None:
    found = trace_of(gpu_step(streams=False))
    assert [task.queued_only for task in found.trace.tasks] == [True, True]
    assert [task.gflops for task in found.trace.tasks] == [None, None]
    assert found.trace.copies == ()
    assert any("no GPU trace (CUPTI) on task:0, task:1" in each for each in found.problems)
    assert found.split is not None
    parts = {row.what: row.seconds for row in found.split.rows}
    assert parts["other"] == pytest.approx(0.01003, abs=1e-3)  # what the GPUs did is not told
    assert math.fsum(row.seconds for row in found.split.rows) == pytest.approx(0.019)


def test_a_steps_path_goes_over_its_copies() -> None:
    found = trace_of(gpu_step())
    assert found.split is not None
    copies = [row for row in found.split.rows if row.what == "copy"]
    assert [(row.task, round(row.seconds * 1e3, 3)) for row in copies] == [(1, 1.8)]
    compute = {row.task: row.seconds for row in found.split.rows if row.what == "compute"}
    assert compute[1] == pytest.approx(8.07e-3, abs=1e-4)
    assert math.fsum(row.seconds for row in found.split.rows) == pytest.approx(0.019)


def test_a_task_on_cpus_has_no_part_of_copies() -> None:
    found = explain(run_data(fed_step(starved=False), duration_ms=31, warm_ms=[31.0]))
    assert found.split is not None
    assert "copy" not in {row.what for row in found.split.rows}


@given(
    starts=st.lists(st.integers(0, 18_000), min_size=1, max_size=6),
    length=st.integers(1, 4_000),
)
def test_parts_add_up_wherever_copies_lie(starts: list[int], length: int) -> None:
    more = [memcpy("H2D", f"edge_1_t{k}", at, at + length) for k, at in enumerate(starts)]
    found = trace_of([*gpu_step(), *more, kernel("MatMul", 100, 200)])
    assert found.split is not None
    assert math.fsum(row.seconds for row in found.split.rows) == pytest.approx(0.019)
    assert all(row.seconds >= -1e-12 for row in found.split.rows)


# The cold start


CREATED = (
    "gpu_device.cc:2040] Created device /job:local/replica:0/task:0/device:GPU:0 with 13764 MB memory:  "
    "-> device: 0, name: Tesla T4, pci bus id: 0000:00:1e.0, compute capability: 7.5"
)


def data_of(*log: tuple[str, float], **more: Any) -> RunData:
    """Return a GPU run whose server phase lasts from 8.2 to 9.9 s, the first step from 10 to 13 s."""
    events = [
        *phase(wire.PHASE_GPU_WAKE, 3.0, 4.5),
        *phase(wire.PHASE_SERVER, 8.2, 9.9),
        *phase(wire.PHASE_FIRST_STEP, 10.0, 13.0),
        *more.pop("extra", ()),
    ]
    of = stories.run(events, **{"parameters": GPU, "nodes": nodes(), **more}).data
    return replace(of, log=tuple(LogLine("tf0", START_S + at_s, text) for text, at_s in log))


def phases_of(data: RunData) -> list[Span]:
    clocks = Clocks.of(data.record)
    spans = client_spans(data.record, data.events, clocks)
    finer = split_first_step(
        split_context(spans, data, clocks, "tf0"), data, clocks, warm_median_ms=100.0
    )
    return split_setup(finer, data, None)


REACHED = (
    ("master.cc: Scanning workers for devices", 10.1),
    ("mlir_graph_optimization_pass.cc", 10.4),
)


def test_the_making_of_devices_ends_at_tensorflows_stamp() -> None:
    rows = {span.phase: span for span in phases_of(data_of((CREATED, 9.6)))}
    context, server = rows["gpu_context"], rows["server"]
    assert context.start_s == pytest.approx(8.2)
    assert context.source == "log"
    assert context.duration_s == pytest.approx(1.4)
    assert server.duration_s == pytest.approx(0.3)
    whole = {span.phase: span for span in phases_of(data_of())}
    assert "gpu_context" not in whole
    assert whole["server"].duration_s == pytest.approx(1.7)


def test_cublas_is_estimated_by_the_probe_and_says_so() -> None:
    baseline = Baseline({}, gpus=(probe("tf0"), probe("tf1", handle_s=0.5)))
    rows = {span.phase: span for span in phases_of(data_of(*REACHED, baseline=baseline))}
    assert rows["cublas_start"].duration_s == pytest.approx(0.7)  # of the slower node
    assert rows["cublas_start"].source == "probe"
    assert rows["graph_setup"].duration_s == pytest.approx(3.0 - 0.4 - 0.1 - 0.7)
    plain = {span.phase for span in phases_of(data_of(*REACHED))}
    assert "cublas_start" not in plain


def test_a_set_up_with_compilation_in_it_says_so() -> None:
    grown = data_of(*REACHED, extra=caches(4, 4, 9))
    assert "setup_and_compile" in {span.phase for span in phases_of(grown)}
    words = data_of(*REACHED, ("this will be jit-compiled from PTX, which", 9.0))
    assert "setup_and_compile" in {span.phase for span in phases_of(words)}
    still = data_of(*REACHED, extra=caches())
    assert "graph_setup" in {span.phase for span in phases_of(still)}


def test_a_run_on_cpus_or_with_soft_placement_is_split_as_before() -> None:
    baseline = Baseline({}, gpus=(probe(),))
    for parameters in (replace(GPU, device="cpu"), replace(GPU, soft_placement=True)):
        rows = phases_of(data_of(*REACHED, baseline=baseline, parameters=parameters))
        assert "cublas_start" not in {span.phase for span in rows}


@given(
    stamp_s=st.floats(8.0, 13.5),
    handle_s=st.floats(0.0, 20.0),
    reached_s=st.floats(9.0, 13.5),
)
def test_rows_add_up_however_the_evidence_lies(
    stamp_s: float, handle_s: float, reached_s: float
) -> None:
    log = (REACHED[0], ("mlir_graph_optimization_pass.cc", reached_s), (CREATED, stamp_s))
    data = data_of(
        *log, baseline=Baseline({}, gpus=(probe(handle_s=handle_s),)), extra=caches(4, 4, 5)
    )
    plain = client_spans(data.record, data.events, Clocks.of(data.record))
    finer = phases_of(data)
    total = math.fsum(span.duration_s for span in plain)
    assert math.fsum(span.duration_s for span in finer) == pytest.approx(total, abs=1e-6)
    ledger = build_ledger((), finer, 20.0)
    assert math.fsum(row.duration_s for row in ledger.rows) == pytest.approx(total, abs=1e-4)


def test_listing_devices_is_the_first_contact_of_a_gpu_run() -> None:
    data = data_of(*REACHED, extra=phase(wire.PHASE_DEVICES, 9.95, 9.99))
    moved = replace(
        data,
        log=(LogLine("tf0", START_S + 9.96, REACHED[0][0]), LogLine("tf0", START_S + 9.98, REACHED[1][0])),
    )  # fmt: skip
    rows = [(span.phase, round(span.duration_s, 3)) for span in phases_of(moved)]
    assert ("connect_peers", 0.03) in rows
    assert ("list_devices", 0.01) in rows
    assert ("graph_setup", 2.9) in rows


def test_a_join_servers_cold_start_is_split_as_the_clients() -> None:
    said = [
        *(replace(each, source="join-server", task=1) for each in phase(wire.PHASE_GPU_WAKE, 0.5, 1.5)),
        *(replace(each, source="join-server", task=1) for each in phase(wire.PHASE_SERVER, 2.0, 3.0)),
    ]  # fmt: skip
    of = stories.run(HEALTHY, server_events=said, parameters=GPU, nodes=nodes()).data
    log = (LogLine("tf1", START_S + 2.75, CREATED.replace("task:0", "task:1")),)
    ledger = next(each for each in explain(replace(of, log=log)).nodes if each.node == "tf1")
    rows = {row.phase: row.duration_s for row in ledger.rows}
    assert rows["join_server gpu_wake"] == pytest.approx(1.0)
    assert rows["join_server gpu_context"] == pytest.approx(0.75)
    assert rows["join_server server"] == pytest.approx(0.25)
    assert math.fsum(row.duration_s for row in ledger.rows) + ledger.unexplained_s == pytest.approx(
        ledger.wall_s
    )
