"""What people and programs see of a real run, kept in tests/fixtures/records."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from labctl.analysis.explain import explain
from labctl.analysis.ledger import Ledger
from labctl.analysis.steps import steps_of
from labctl.errors import RecordError
from labctl.runs.codec import encode
from labctl.runs.events import read_events
from labctl.runs.record import Failure, Span, write_record
from labctl.runs.store import Entry, RunStore
from labctl.views.run_object import run_head, run_object
from labctl.views.step_lines import edge_lines, split_lines
from labctl.views.terminal import formula, head_line, run_lines, runs_table
from labctl.views.waterfall import ledger_lines, node_lines
from tests.unit.made_traces import op, recv, run_data, source

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
FED = FIXTURE.with_name("20261130T181113Z-bd03c6")
CONTRACT = {
    "run_id",
    "outcome",
    "record",
    "tasks",
    "size",
    "power",
    "algorithm",
    "feed",
    "device",
    "relative_error",
    "step_ms",
    "section_ms",
    "end_to_end_us",
    "ledger",
    "unexplained_s",
    "wall_s",
    "exit_code",
    "power_computed",
    "placement",
    "api",
    "inter_op",
    "versions",
    "error",
    "warnings",
}


@pytest.fixture
def store_of_fed(tmp_path: Path) -> RunStore:
    shutil.copytree(FED, tmp_path / "runs" / FED.name)
    return RunStore(tmp_path)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    shutil.copytree(FIXTURE, tmp_path / "runs" / FIXTURE.name)
    return RunStore(tmp_path).find("last")


def test_the_object_has_what_the_contract_names(entry: Entry) -> None:
    run = run_object(entry)
    assert set(run) >= CONTRACT
    assert (run["outcome"], run["tasks"], run["size"], run["power"]) == ("ok", 2, 1000, 5)
    assert run["relative_error"] < 1e-5
    assert run["step_ms"] == {
        "cold": 275.5,
        "warm_median": 155.206,
        "warm_p95": 200.076,
        "n": 10,
        "warm_p5": 129.379,
        "warm_min": 127.235,
        "warm_max": 204.07,
    }
    assert run["exit_code"] == 0
    assert run["error"] is None
    assert json.loads(json.dumps(run, allow_nan=False)) == run
    assert {row["source"] for row in run["ledger"]} == {
        "labctl", "client", "systemd", "log", "steps", "trace",
    }  # fmt: skip
    assert set(run["ledger"][0]) == {"phase", "node", "start_s", "duration_s", "source"}
    explained = sum(row["duration_s"] for row in run["ledger"])
    assert explained + run["unexplained_s"] == pytest.approx(run["wall_s"], abs=1e-6)
    for row, after in pairwise(run["ledger"]):
        assert row["start_s"] + row["duration_s"] <= after["start_s"] + 1e-9
    assert run["unexplained_s"] < 0.1


def test_the_record_is_whole(entry: Entry) -> None:
    record = entry.readable()
    for file in record.files:
        data = (entry.path / file.path).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file.sha256, file.path
    lines = (entry.path / "steps.jsonl").read_text().splitlines()
    steps = steps_of(read_events(entry.path))
    assert [json.loads(line) for line in lines] == [encode(step) for step in steps]


def test_the_screen_has_the_answer_first_and_the_next_command_last(entry: Entry) -> None:
    lines = run_lines(entry)
    assert lines[0] == "result  ok, relative error 6.8e-07 against float64"
    assert lines[-1] == "next: labctl why last · labctl report last · labctl trace last"
    text = "\n".join(lines)
    assert "where 14.2 s went" in text
    assert "import tensorflow      tf0        5.18 s" in text
    assert "unexplained" in text
    assert "join server on tf1 started at 15:33:50 UTC, not in this sum" in text
    assert [line.split()[:3] for line in lines if "at work" in line] == [
        ["labctl", "at", "work"], ["tf0", "at", "work"], ["tf1", "at", "work"],
    ]  # fmt: skip
    assert "a warm step of 155.2 ms:  dispatch 1.5 ms · compute task:1 134.0 ms · " in text
    assert "transfer 1>0 9.5 ms · fetch 8.9 ms" in text
    assert (
        "MatMul_7                  task:1>task:0     4.000      0.8     126.2       135.0" in text
    )
    assert "cold 276 ms    warm median 155.2 ms, p5 129.4, p95 200.1  (10)    traced" in text
    assert "section 426 ms    stopwatch 8 069 038 µs" in text
    assert len(lines) <= 32
    assert max(len(line) for line in lines) <= 100
    record = entry.readable()
    assert head_line("x", record.parameters, 2, "ID") == (
        "lab x · 2 tasks · A^5 + B^5 · L 1000 · chain · staged · CPU · run ID"
    )


def test_the_object_tells_steps_and_transfers(store_of_fed: RunStore) -> None:
    run = run_object(store_of_fed.find("last"))
    assert json.loads(json.dumps(run, allow_nan=False)) == run
    assert run["problems"] == []
    assert sum(row["seconds"] for row in run["split"]) == pytest.approx(
        run["step_ms"]["warm_median"] / 1e3, abs=1e-6
    )
    assert {row["what"] for row in run["split"]} == {
        "dispatch", "wait", "transfer", "compute", "fetch",
    }  # fmt: skip
    fed = next(edge for edge in run["edges"] if edge["target"] == 1)
    assert set(fed) == {
        "tensor", "bytes", "source", "target", "asked_ms", "answered_ms", "arrived_ms", "waited_ms",
        "wire_ms", "mb_per_s", "baseline_percent", "clamped", "believed", "doubt", "clock_error_ms",
    }  # fmt: skip
    assert (fed["tensor"], fed["bytes"], fed["clamped"]) == ("_recv_input_1_0", 4_000_000, False)
    assert fed["waited_ms"] == pytest.approx(fed["answered_ms"] - fed["asked_ms"], abs=0.002)
    assert fed["wire_ms"] == pytest.approx(fed["arrived_ms"] - fed["answered_ms"], abs=0.002)
    assert fed["mb_per_s"] == pytest.approx(4e3 / fed["wire_ms"], rel=1e-3)
    assert [(task["task"], task["node"], task["products"]) for task in run["tasks_traced"]] == [
        (0, "tf0", 4), (1, "tf1", 4),
    ]  # fmt: skip
    assert run["overlap_ms"] < 1
    assert run["tracing"]["n"] == 3
    assert [node["node"] for node in run["nodes"]] == ["labctl", "tf0", "tf1"]
    for node in run["nodes"]:
        total = sum(row["duration_s"] for row in node["rows"])
        assert total + node["unexplained_s"] == pytest.approx(run["wall_s"], abs=1e-6)
        for row, after in pairwise(node["rows"]):
            assert row["start_s"] + row["duration_s"] <= after["start_s"] + 1e-9
    assert all(row["start_s"] < 0 for row in run["nodes"][2]["before"])
    assert [line["node"] for line in run["clock"]] == ["tf0", "tf1"]
    assert set(run["clock"][0]) == {
        "node", "offset_s", "error_s", "drift_s", "samples", "absurd",
    }  # fmt: skip


def test_a_run_without_a_trace_has_empty_parts(entry: Entry) -> None:
    shutil.rmtree(entry.path / "trace")
    run = run_object(entry)
    assert (run["split"], run["edges"], run["tasks_traced"]) == ([], [], [])
    assert (run["overlap_ms"], run["tracing"]) == (None, None)
    assert "warm_steps" in {row["phase"] for row in run["ledger"]}
    assert not any("a warm step of" in line for line in run_lines(entry))


def test_an_infinite_error_is_null(entry: Entry) -> None:
    write_record(entry.path, replace(entry.readable(), clock=()))
    run = run_object(RunStore(entry.path.parents[1]).find("last"))
    assert json.loads(json.dumps(run, allow_nan=False)) == run
    (edge,) = run["edges"]
    assert (edge["clock_error_ms"], edge["clamped"], edge["mb_per_s"]) == (None, True, None)
    lines = run_lines(RunStore(entry.path.parents[1]).find("last"))
    assert any(line.startswith("note    clock: the offset of tf1") for line in lines)
    assert "  ? cut by the difference of two clocks, not to be believed" in lines


def test_the_node_that_waits_is_seen_to_wait(store_of_fed: RunStore) -> None:
    lines = run_lines(store_of_fed.find("last"))
    labctl, tf0, tf1 = (line for line in lines if "at work" in line)
    assert "░" in tf0
    assert "░" in tf1
    assert "░" not in labctl
    assert tf1.endswith("and 2.0 s before the run")
    assert max(len(line) for line in lines) <= 100


def test_an_older_run_is_named_in_what_comes_next(entry: Entry) -> None:
    shutil.copytree(FED, entry.path.parent / FED.name)
    assert run_lines(entry)[-1] == (
        f"next: labctl why {entry.run_id} · labctl report {entry.run_id}"
    )


def test_many_nodes_and_transfers_stay_on_one_screen() -> None:
    rows = [source(task, 100) for task in range(12)]
    rows += [op(task, f"p{task}", "MatMul", "x", 300, 9_000) for task in range(12)]
    rows += [recv(f"p{task}", task, 0, 9_100, 9_900 + task) for task in range(1, 12)]
    data = run_data(rows, duration_ms=12, warm_ms=[11], tasks=12)
    explained = explain(data)
    assert len(node_lines(explained.nodes)) == 8
    assert node_lines(explained.nodes)[-1] == "  and 6 more nodes"
    table = edge_lines(explained)
    assert len(table) == 7
    assert table[-1] == "  and 6 more transfers"
    assert all(len(line) <= 100 for line in [*split_lines(explained), *table])


def test_the_bar_of_a_phase_is_where_it_was() -> None:
    spans = (
        Span("startup", "labctl", 0, 2, "labctl"),
        Span("import_numpy", "tf0", 5, 0.5, "client"),
        Span("import_tensorflow", "tf0", 5.5, 4.5, "client"),
        Span("verify", "tf0", 9.99, 0.01, "client"),
    )
    lines = ledger_lines(Ledger(spans, 10.0, 2.99))
    assert lines == [
        "  reach the lab      labctl     2.00 s  " + "▇" * 8,
        "  import tensorflow  tf0        5.00 s  " + " " * 20 + "▇" * 20,
        "  shorter phases                0.01 s  " + " " * 39 + "▏",
        "  unexplained                   2.99 s",
    ]


def test_a_run_in_progress_has_no_ledger_yet(entry: Entry) -> None:
    record = replace(entry.readable(), outcome="running", wall_s=None, unit_end=None)
    write_record(entry.path, record)
    again = RunStore(entry.path.parents[1]).find("last")
    run = run_object(again)
    assert (run["outcome"], run["ledger"], run["unexplained_s"]) == ("running", [], None)
    assert (
        run_lines(again)[-1] == f"next: labctl attach {entry.run_id} · labctl cancel {entry.run_id}"
    )


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"", []),
        (b"one\n\x1b[2Jtwo", ["  printed", "    one", "    \\x1b[2Jtwo"]),
        (b"x\n" * 12, ["  printed 24 bytes, the end of it", *["    x"] * 10]),
        (b"y" * 5000, ["  printed 5000 bytes, the end of it", "    " + "y" * 4096]),
    ],
)
def test_the_end_of_what_a_script_printed_is_shown(
    entry: Entry, printed: bytes, shown: list[str]
) -> None:
    record = entry.readable()
    parameters = replace(record.parameters, experiment="script", script="x.py")
    write_record(entry.path, replace(record, parameters=parameters))
    (entry.path / "logs/tf0/stdout").write_bytes(printed)
    lines = run_lines(RunStore(entry.path.parents[1]).find("last"))
    after = lines[2 : 2 + len(shown)]
    assert after == shown
    assert lines[2 + len(shown) + bool(shown)].startswith("  where") or not shown


def test_a_failure_is_said_and_its_text_is_harmless(entry: Entry) -> None:
    failure = Failure("script", "no \x1b[31mluck\nsecond line", "try again")
    write_record(entry.path, replace(entry.readable(), outcome="failed", failure=failure))
    again = RunStore(entry.path.parents[1]).find("last")
    assert "failed" in run_lines(again)[0]
    assert "no \\x1b[31mluck" in run_lines(again)[0]
    assert run_head(again)["error"] == {
        "message": failure.message,
        "kind": "script",
        "do": "try again",
    }
    assert run_head(again)["exit_code"] == 5


def test_a_damaged_run_has_a_head_and_no_object(entry: Entry) -> None:
    (entry.path / "run.json").write_text("{")
    (damaged,) = RunStore(entry.path.parents[1]).entries()
    head = run_head(damaged)
    assert (head["run_id"], head["outcome"]) == (FIXTURE.name, "damaged")
    assert head["error"]["kind"] == "damaged"
    assert runs_table([damaged])[1].split()[:2] == [FIXTURE.name, "damaged"]
    with pytest.raises(RecordError):
        run_object(damaged)


def test_the_sum_is_written_for_any_number_of_tasks() -> None:
    assert formula(5, 2) == "A^5 + B^5"
    assert formula(3, 4) == "A^3 + B^3 + C^3 + D^3"
    assert formula(3, 8) == "sum of 8 powers M^3"
