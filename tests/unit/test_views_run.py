"""What people and programs see of a real run, kept in tests/fixtures/records."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from labctl.analysis.steps import steps_of
from labctl.errors import RecordError
from labctl.runs.codec import encode
from labctl.runs.events import read_events
from labctl.runs.record import Failure, write_record
from labctl.runs.store import Entry, RunStore
from labctl.views.run_object import run_head, run_object
from labctl.views.terminal import formula, head_line, run_lines, runs_table

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
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
        "warm_p5": run["step_ms"]["warm_p5"],
        "warm_min": run["step_ms"]["warm_min"],
        "warm_max": run["step_ms"]["warm_max"],
    }
    assert run["exit_code"] == 0
    assert run["error"] is None
    assert json.loads(json.dumps(run, allow_nan=False)) == run
    assert {row["source"] for row in run["ledger"]} == {"labctl", "client", "systemd"}
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
    assert lines[-1].startswith("next: labctl logs last")
    text = "\n".join(lines)
    assert "where 14.2 s went" in text
    assert "import tensorflow  tf0    5.07 s" in text
    assert "unexplained" in text
    assert "cold 276 ms    warm median 155 ms  p95 200 ms  (10)" in text
    assert "section 426 ms    stopwatch 8 069 038 µs" in text
    assert "join server on tf1 started at 15:33:50 UTC, not in this sum" in text
    assert max(len(line) for line in lines) <= 100
    record = entry.readable()
    assert head_line("x", record.parameters, 2, "ID") == (
        "lab x · 2 tasks · A^5 + B^5 · L 1000 · chain · staged · CPU · run ID"
    )


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
