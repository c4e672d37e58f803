"""GPUs on the page, in the trace and in the object that `--json` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.analysis.gpus import node_gpus
from labctl.node import wire
from labctl.runs.record import Span
from labctl.runs.store import Entry
from labctl.views.report.environment import fact_rows
from labctl.views.report.gpu_use import gpu_series
from labctl.views.report.lanes import kind_of
from labctl.views.report.page import render
from labctl.views.report.traced import trace_chart
from labctl.views.run_object import explained_object
from labctl.views.step_lines import edge_lines, split_lines
from labctl.views.trace_counters import readings
from labctl.views.trace_export import TraceExport
from labctl.views.waterfall import group_of
from tests.unit import stories
from tests.unit.gpu_samples import T4, caches, gpu_step, nodes, on_gpu, traced_on_gpus, use
from tests.unit.made_traces import run_data
from tests.unit.stories import event


@pytest.fixture(scope="module")
def traced() -> Explained:
    return traced_on_gpus()


# The page


def test_each_figure_of_a_gpu_has_a_plot_up_to_what_the_device_can_have() -> None:
    of = on_gpu(uses=[use(4.0), use(4.5, throttle=["sw-power-cap"]), use(5.0)])
    series = {each.metric: each for each in gpu_series(of.data)}
    assert list(series) == [
        "gpu_busy", "gpu_clock", "gpu_memory_clock", "gpu_memory", "gpu_power", "gpu_temperature", "gpu_held",
    ]  # fmt: skip
    assert {each.who for each in series.values()} == {"GPU 0, Tesla T4"}
    assert (series["gpu_clock"].top, series["gpu_power"].top) == (1590, 70.0)
    assert series["gpu_memory"].top == pytest.approx(17179.869184)
    assert series["gpu_held"].summary == "sw-power-cap in 1 of 3 readings"
    assert [(s.start_s, s.end_s, s.value) for s in series["gpu_held"].samples] == [
        (3.5, 4.0, 0.0),
        (4.0, 4.5, 100.0),
        (4.5, 5.0, 0.0),
    ]


def test_what_nvml_did_not_say_has_no_plot_and_a_gap_stays_empty() -> None:
    of = on_gpu(uses=[use(4.0, power_w=None, throttle=None), use(9.0, power_w=None, throttle=None)])
    series = {each.metric: each for each in gpu_series(of.data)}
    assert "gpu_power" not in series
    assert "gpu_held" not in series
    assert [(s.start_s, s.end_s) for s in series["gpu_busy"].samples] == [(3.5, 4.0), (8.5, 9.0)]
    assert gpu_series(stories.run().data) == []


def test_facts_of_gpus_stand_beside_each_other_and_differences_are_marked() -> None:
    one, other = nodes()
    other = replace(other, gpus=(replace(T4, name="Tesla P4", compute_capability="6.1"),) * 2)
    of = on_gpu(nodes=(one, other))
    rows = {row.label: row for row in fact_rows(of.data.record, node_gpus(of.data))}
    assert rows["GPU"].values == ("Tesla T4", "2 x Tesla P4")
    assert rows["GPU"].differs
    assert rows["compute capability"].values == ("7.5", "6.1")
    assert rows["persistence mode"].values == ("on", "on")
    assert rows["kernel cache"].values[0] == "/var/cache/labctl: 4 files, 8.00 MB"
    assert rows["CUDA libraries missing"].values == ("none", "none")


def test_a_node_whose_nvml_does_not_answer_says_why() -> None:
    plain = tuple(replace(node, gpus=(), cuda=None) for node in nodes())
    of = stories.run([event(wire.GPUS, 1.0, error="NVML: Driver Not Loaded")], nodes=plain)
    rows = {row.label: row for row in fact_rows(of.data.record, node_gpus(of.data))}
    assert rows["GPU"].values == ("NVML: Driver Not Loaded", "not measured")
    older = {row.label for row in fact_rows(stories.run().data.record)}
    assert not [label for label in older if "GPU" in label]


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("import_nvml", "gpu"),
        ("gpu_wake", "gpu"),
        ("gpu_context", "gpu"),
        ("join_server gpu_libraries", "gpu"),
        ("cublas_start", "gpu"),
        ("setup_and_compile", "cold"),
        ("warm copy task:1", "copy"),
    ],
)
def test_a_gpus_cold_start_has_its_colours(phase: str, kind: str) -> None:
    assert kind_of(phase, "client") == kind


def test_a_gpus_start_is_one_line_on_one_screen() -> None:
    phases = ("import_nvml", "gpu_wake", "gpu_libraries", "gpu_context", "cublas_start")
    assert {group_of(phase) for phase in phases} == {"GPU's start"}
    assert group_of("setup_and_compile") == group_of("list_devices") == "first step"


def test_lanes_tell_queueing_from_running(traced: Explained) -> None:
    assert traced.trace is not None
    chart = trace_chart(traced.trace)
    assert chart is not None
    details = [lane.detail for lane in chart.lanes]
    assert "tf0 GPU:0, queued" in details
    assert "tf0 GPU:0/stream:13" in details
    kinds = {bar.kind for lane in chart.lanes for bar in lane.bars}
    assert {"product", "copy", "wire", "wait"} <= kinds
    bare = explain(run_data(gpu_step(streams=False), duration_ms=19, warm_ms=[19.0]))
    assert bare.trace is not None
    lanes = trace_chart(bare.trace)
    assert lanes is not None
    assert "tf1 GPU:0, queued (no GPU trace)" in [lane.detail for lane in lanes.lanes]


def test_the_page_of_a_gpu_run_holds_copies_plots_and_probe(traced: Explained) -> None:
    text = render(traced, judge_all(traced), "ok")
    assert 'data-copies="4"' in text
    assert "task:1 host → GPU:0" in text
    assert "u-gpu_clock" in text
    assert "What each GPU does by itself" in text
    assert "queueing only" not in text
    record = replace(traced.data.record, baseline=None)
    without = replace(traced, data=replace(traced.data, record=record))
    assert "labctl check --gpu-probe measures them" in render(without, (), "ok")


# One screen


def test_copies_and_queueing_are_told_on_one_screen(traced: Explained) -> None:
    lines = edge_lines(traced)
    assert lines[-4:] == [
        "  task:0 d2h GPU:0  1 copies in 0.800 ms, 4.000 MB at 5000 MB/s",
        "  task:0 h2d GPU:0  1 copies in 1.0 ms, 4.000 MB at 4000 MB/s",
        "  task:1 d2h GPU:0  1 copies in 0.800 ms, 4.000 MB at 5000 MB/s",
        "  task:1 h2d GPU:0  1 copies in 1.0 ms, 4.000 MB at 4000 MB/s",
    ]
    assert any("task:0 computes" in line for line in split_lines(traced))
    bare = explain(run_data(gpu_step(streams=False), duration_ms=19, warm_ms=[19.0]))
    assert any("task:0 queues its ops in 0.270 ms" in line for line in split_lines(bare))


# The trace


def test_copies_are_bars_with_an_arrow_from_where_they_were_queued(traced: Explained) -> None:
    events = list(TraceExport(traced).events())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars = [e for e in events if e["ph"] == "X" and e["cat"] in {"h2d", "d2h"}]
    assert [(names[e["tid"]], e["name"], round(e["dur"])) for e in bars] == [
        ("task:0 h2d GPU:0", "h2d _recv_input_0_0", 1000),
        ("task:1 h2d GPU:0", "h2d _recv_input_1_0", 1000),
        ("task:0 d2h GPU:0", "d2h", 800),
        ("task:1 d2h GPU:0", "d2h", 800),
    ]
    assert bars[0]["args"] == {
        "tensor": "_recv_input_0_0", "size_bytes": 4_000_000, "host_memory": "pinned",
        "copy_ms": 1.0, "mb_per_s": 4000.0,
    }  # fmt: skip
    arrows = [e for e in events if e["ph"] in {"s", "f"} and e["cat"] == "h2d"]
    assert [e["ph"] for e in arrows] == ["s", "f", "s", "f"]
    assert not [e for e in events if e["ph"] == "s" and e["cat"] == "d2h"]  # nothing says when
    assert "task:0 GPU:0/stream:13" in names.values()
    assert not [name for name in names.values() if name.endswith(">")]


def test_counters_of_a_gpu_stand_from_one_reading_to_the_next() -> None:
    told = [
        use(4.0),
        use(4.5, sm_clock_mhz=600, throttle=["hw-slowdown"]),
        event(wire.BYE, 5.0, exit=0),
    ]
    found: dict[str, list[tuple[float, float]]] = {}
    for each in readings(told, "client", node=True):
        assert each.whose == "GPU 0"
        found.setdefault(each.figure, []).append((each.unix_s - stories.START_S, each.value))
    assert set(found) == {
        "busy %", "clock MHz", "memory clock MHz", "memory MB", "power W", "temperature °C", "held down",
    }  # fmt: skip
    clocks = [(round(at_s, 3), value) for at_s, value in found["clock MHz"]]
    assert clocks == [(4.0, 1590), (4.5, 600), (5.0, 600)]
    assert [value for _, value in found["held down"]] == [0.0, 1.0, 1.0]
    assert list(readings(told, "client", node=False)) == []


def test_the_kernel_cache_is_a_mark_of_the_client() -> None:
    of = on_gpu(readings=caches(4, 4, 9))
    marks = [e["name"] for e in TraceExport(of).events() if e["ph"] == "i"]
    assert [name for name in marks if name.startswith("kernel cache")] == [
        "kernel cache: 4 files (begin)",
        "kernel cache: 4 files (server)",
        "kernel cache: 9 files (first_step)",
        "kernel cache: 9 files (end)",
    ]


# --json


def printed(of: Explained) -> dict[str, Any]:
    return explained_object(Entry(of.data.record.run_id, of.data.path, of.data.record), of)


def test_the_object_has_copies_and_says_where_only_queueing_is_known(traced: Explained) -> None:
    found: dict[str, Any] = printed(traced)
    assert found["copies"][0] == {
        "kind": "h2d", "tensor": "_recv_input_0_0", "bytes": 4_000_000, "task": 0, "device": "GPU:0",
        "host_memory": "pinned", "queued_ms": 1.2, "start_ms": 1.5, "duration_ms": 1.0, "mb_per_s": 4000.0,
    }  # fmt: skip
    assert [each["queued_only"] for each in found["tasks_traced"]] == [False, False]
    assert {row["what"] for row in found["split"]} >= {"copy", "compute", "transfer"}
    cpus = printed(stories.run())
    assert cpus["copies"] == []


def test_rows_of_the_cold_start_are_in_the_ledger_that_is_printed() -> None:
    of = on_gpu()
    ledger = replace(
        of.ledger, rows=(*of.ledger.rows, Span("cublas_start", "tf0", 11.0, 0.3, "probe"))
    )
    rows = printed(replace(of, ledger=ledger))["ledger"]
    assert {"phase": "cublas_start", "source": "probe"}.items() <= rows[-1].items()
    assert "gpu_wake" in {row["phase"] for row in rows}
