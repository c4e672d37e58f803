"""`labctl plan` on stored runs, through the only exit."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.__main__ import run
from labctl.analysis.constants import figure
from labctl.lab.home import Home
from labctl.runs.lab_files import write_baseline
from labctl.runs.record import read_record, write_record
from labctl.runs.store import RunStore
from labctl.views.plan import figure_text, time_text
from tests.unit.test_predict_gpu import baseline as gpu_baseline

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
FED, STAGED = "20261130T181128Z-7aa9b1", "20261130T181529Z-a52ef3"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("LABCTL_LAB", "foreseen")
    return RunStore(Home.find().make_local_dir("foreseen"))


def put(store: RunStore, name: str, number: int) -> str:
    """Store a copy of a real record under an id of its own, a minute after the one before."""
    run_id = f"20261130T19{number:02d}00Z-{number:06x}"
    shutil.copytree(RECORDS / name, store.root / run_id)
    record = read_record(RECORDS / name)
    origin = replace(record.origin, unix_s=record.origin.unix_s + 60 * number)
    write_record(store.root / run_id, replace(record, run_id=run_id, origin=origin))
    return run_id


def shown(capsys: pytest.CaptureFixture[str], argv: Sequence[str], code: int = 0) -> str:
    assert run(list(argv)) == code
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], argv: Sequence[str]) -> Any:
    return json.loads(shown(capsys, [*argv, "--json"]))


def test_without_a_run_it_says_what_to_do(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan"]) == 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "do        labctl run" in captured.err
    assert not (store.root.parent / "plans.jsonl").exists()


def test_a_prediction_from_real_runs(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [put(store, FED, 1), put(store, STAGED, 2)]
    found = document(capsys, ["plan"])
    prediction = found["prediction"]
    assert found["work"]["size"] == 1000
    assert prediction["runs"] == ids
    warm = prediction["warm"]
    assert 0.02 < warm["low"] <= warm["value"] <= warm["high"] < 1
    parts = sum(part["seconds"]["value"] for part in prediction["parts"])
    assert parts == pytest.approx(warm["value"])
    assert prediction["wall"]["value"] > prediction["cold"]["value"] > warm["value"]
    assert found["one_node"]["value"] > 0
    assert found["least_power"] >= 1
    assert found["on_gpu"] is None


def test_the_terminal_says_what_it_rests_on(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, FED, 1)
    text = shown(capsys, ["plan", "-L", "3000", "-n", "9"])
    assert text.startswith("plan  A^9 + B^9 · L 3000 · chain · fed · lab · 2 tasks")
    for words in (
        "warm step",
        "rests on",
        "GFLOP/s",
        "traced steps",
        "2 nodes",
        "next: labctl run",
    ):
        assert words in text
    assert "measured at L 1000, not near L 3000" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (4e-7, "400 ns"),
        (2.34e-11, "under 1 ns"),
        (-3.2e-6, "-3.2 µs"),
        (0.0301, "30 ms"),
        (0.0041, "4.1 ms"),
        (61.24, "61.2 s"),
    ],
)
def test_no_time_above_nothing_is_shown_as_nothing(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_the_checks_constant_says_of_what_it_is() -> None:
    found = figure("check by float64", "ns/multiply-add", [0.0234, 0.03], "runs")
    assert found is not None
    assert figure_text(found) == (
        "check by float64: 0.0267 ns/multiply-add (0.0234 to 0.03, n 2, runs)"
    )


def test_a_gpu_is_shown_with_and_without_constants(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = document(capsys, ["plan", "--device", "k80"])
    assert bare["prediction"] is None
    assert "measured" in bare["why_not"]
    assert len(bare["on_gpu"]["instructions"]) == 23
    assert bare["on_gpu"]["step"] is None
    put(store, FED, 1)
    whole = document(capsys, ["plan", "--device", "K80"])
    assert whole["on_gpu"]["bounds"] == bare["on_gpu"]["bounds"]
    assert whole["on_gpu"]["step"]["value"] < whole["prediction"]["warm"]["value"]
    text = shown(capsys, ["plan", "--device", "K80"])
    for words in (
        "Tesla K80",
        "naive",
        "blocked",
        "library",
        "CPU here",
        "about 15 s",
        "1 warp/SM",
    ):
        assert words in text


def test_the_labs_own_gpus_are_foreseen_from_the_probe(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--gpu"]) == 8
    assert "labctl run" in capsys.readouterr().err
    put(store, FED, 1)
    assert run(["plan", "--gpu"]) == 8
    assert "do        labctl check --gpu-probe" in capsys.readouterr().err
    write_baseline(store.root.parent, gpu_baseline())
    found = document(capsys, ["plan", "--gpu"])
    assert found["work"]["device"] == "gpu"
    prediction = found["prediction"]
    assert [each["what"] for each in prediction["cold_start"]] == [
        "wake", "context", "libraries", "handle", "product",
    ]  # fmt: skip
    assert {"copy", "compute", "transfer"} <= {each["what"] for each in prediction["parts"]}
    parts = sum(part["seconds"]["value"] for part in prediction["parts"])
    assert parts == pytest.approx(prediction["warm"]["value"])
    assert found["on_cpu"] == document(capsys, ["plan"])["prediction"]["warm"]
    assert found["wire_bound"]["gflops"] == 4000
    assert found["wire_bound"]["power"] >= 1
    text = shown(capsys, ["plan", "--gpu", "--device", "K80"])
    for words in (
        "inter-op 2 · GPU",
        "once, by the probe of the GPUs",
        "wake        the driver, before TensorFlow",
        "GPU products on tf0: 4000 GFLOP/s",
        "on its CPUs",
        "4 P / B, P 4 TFLOP/s",
        "Tesla K80",
        "next: labctl run --gpu -L 1000",
    ):
        assert words in text


def test_a_baseline_alone_lets_gpus_be_foreseen(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    write_baseline(store.root.parent, gpu_baseline())
    found = document(capsys, ["plan", "--gpu"])
    assert found["prediction"]["warm"]["value"] > 0
    assert found["prediction"]["wall"] is None
    assert found["prediction"]["runs"] == []
    assert found["on_cpu"] is None
    assert run(["plan"]) == 8


def test_plans_for_gpus_and_cpus_stay_apart(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, FED, 1)
    write_baseline(store.root.parent, gpu_baseline())
    shown(capsys, ["plan", "--gpu"])
    kept = json.loads((store.root.parent / "plans.jsonl").read_text())
    assert kept["work"]["device"] == "gpu"
    put(store, FED, 99)
    assert [each["planned"] for each in document(capsys, ["plan", "--score"])["runs"]] == [False]


def test_the_list_of_gpus_needs_no_lab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "V100" in shown(capsys, ["plan", "--device", "list"])
    names = [each["name"] for each in document(capsys, ["plan", "--device", "list"])]
    assert names[0] == "C2050"
    assert "H100" in names


@pytest.mark.parametrize(
    "argv",
    [["--device", "VT100"], ["-L", "0"], ["-n", "1001"], ["--tasks", "0"], ["--feed", "constant"],
     ["--algorithm", "magic"], ["--score", "-L", "5"], ["--score", "--device", "K80"], ["--score", "--gpu"]],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(
    store: RunStore, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    put(store, FED, 1)
    assert run(["plan", *argv]) == 2
    assert capsys.readouterr().out == ""


def test_a_plan_is_kept_and_scored_by_a_later_run(
    store: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, FED, 1)
    first = read_record(RECORDS / FED).origin.unix_s
    monkeypatch.setattr("time.time", lambda: first + 90)
    shown(capsys, ["plan"])
    shown(capsys, ["plan", "-L", "77"])
    path = store.root.parent / "plans.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().splitlines()) == 2
    put(store, FED, 2)
    scored = document(capsys, ["plan", "--score"])
    assert [each["planned"] for each in scored["runs"]] == [True]
    assert [each["known"] for each in scored["runs"]] == [1]
    assert {each["what"] for each in scored["overall"]} == {"warm", "cold", "wall"}
    assert "planned" in shown(capsys, ["plan", "--score"])


def test_the_score_counts_what_it_leaves_out(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, FED, 1)
    assert document(capsys, ["plan", "--score"]) == {
        "runs": [], "overall": [], "by_parameter": [], "left_out": {"no constants before it": 1},
    }  # fmt: skip
    assert "left out   1 x no constants before it" in shown(capsys, ["plan", "--score"])


def test_damaged_files_are_passed_over(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, FED, 1)
    put(store, FED, 2)
    broken = store.root / put(store, STAGED, 3)
    (broken / "run.json").write_text("{")
    hollow = store.root / put(store, STAGED, 4)
    (hollow / "events.jsonl").write_text("")
    shutil.rmtree(hollow / "trace")
    (store.root.parent / "plans.jsonl").write_text('nonsense\n[]\n{"format": 9}\n')
    assert run(["plan", "--score"]) == 0
    captured = capsys.readouterr()
    assert "3 lines of" in captured.err
    assert "1 x no warm step" in captured.out
    assert document(capsys, ["plan"])["prediction"]["warm"]["value"] > 0


def test_a_plans_file_that_cannot_be_written_is_said(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, FED, 1)
    (store.root.parent / "plans.jsonl").mkdir()
    assert run(["plan"]) == 3
    assert "cannot be written" in capsys.readouterr().err
