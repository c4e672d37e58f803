"""`labctl why` on stored records: by id, by path, damaged, running; through the only exit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.__main__ import run
from labctl.lab.home import Home
from labctl.runs.record import read_record, write_record
from labctl.runs.store import RunStore

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
RUN_ID = FIXTURE.name


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("LABCTL_LAB", "drive")
    store = RunStore(Home.find().make_local_dir("drive"))
    shutil.copytree(FIXTURE, store.root / RUN_ID)
    return store


def test_a_stored_run_is_explained(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("lab drive · 2 tasks · A^5 + B^5")
    assert "1  TensorFlow's import" in text
    assert "costs 5.18 s once" in text
    assert run(["why", RUN_ID[:12], "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert [each["cause"] for each in verdicts if each["status"] == "found"] == ["import"]
    assert all(each["evidence"] for each in verdicts)


def test_a_record_of_another_machine_is_read_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "brought" / RUN_ID
    shutil.copytree(FIXTURE, there)
    assert run(["why", str(there), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["cause"] == "import"
    monkeypatch.chdir(there.parent)
    assert run(["why", f"{RUN_ID}/"]) == 0
    assert RUN_ID in capsys.readouterr().out
    monkeypatch.chdir(there)
    assert run(["why", "."]) == 0
    assert RUN_ID in capsys.readouterr().out


def test_a_word_without_a_slash_means_the_store(
    store: RunStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("last", RUN_ID, "2026"):
        (tmp_path / "here" / name).mkdir(parents=True)
        (tmp_path / "here" / name / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    for command in ("why", "report", "trace"):
        for word in ("last", RUN_ID, "2026"):
            assert run([command, word]) == 0, (command, word, capsys.readouterr().err)
    assert str(store.root.parent / "reports") in capsys.readouterr().out


@pytest.mark.parametrize("command", ["why", "report", "trace"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("gone/", "No such file"),
        ("ring/", "symbolic link"),
        ("plain/", "Not a directory"),
        ("empty/", "holds no run.json"),
        ("./renamed", f"rename the directory to {RUN_ID}"),
        (f"half/{RUN_ID}", "copy it once more"),
        ("x" * 5000 + "/", "too long"),
    ],
)
def test_what_helps_with_a_path_fits_a_path(
    command: str,
    place: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ring").symlink_to("ring")
    Path("plain").write_text("")
    Path("empty").mkdir()
    shutil.copytree(FIXTURE, "renamed")
    Path("half", RUN_ID).mkdir(parents=True)
    Path("half", RUN_ID, "run.json").write_text('{"format": 1')
    assert run([command, place]) == 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert "runs rm" not in captured.err


def test_a_record_that_cannot_be_read_is_exit_8(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["why", "1999"]) == 8
    assert run(["why", str(tmp_path / "nothing")]) == 8
    (store.root / RUN_ID / "run.json").write_text('{"format": 99}')
    assert run(["why", RUN_ID]) == 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "update labctl" in captured.err
    (store.root / RUN_ID / "run.json").write_text('{"format": 1')
    assert run(["why", RUN_ID]) == 8
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        "no events",
        "empty events",
        "half a line",
        "no trace",
        "rubbish in the trace",
        "only run.json",
    ],
)
def test_a_damaged_part_is_named_and_the_rest_is_said(
    store: RunStore, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    folder = store.root / RUN_ID
    events = folder / "events.jsonl"
    if damage == "no events":
        events.unlink()
    elif damage == "empty events":
        events.write_text("")
    elif damage == "half a line":
        events.write_bytes(events.read_bytes()[:-40])
    elif damage == "no trace":
        shutil.rmtree(folder / "trace")
    elif damage == "rubbish in the trace":
        for each in (folder / "trace").iterdir():
            each.write_bytes(b"\xff\x00rubbish")
    else:
        for each in folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            elif each.name != "run.json":
                each.unlink()
    assert run(["why"]) == 0
    captured = capsys.readouterr()
    assert "not measured: " in captured.out
    assert "Traceback" not in captured.out + captured.err
    assert run(["why", "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert {each["status"] for each in verdicts} <= {"found", "ruled_out", "not_measured"}
    if damage in {"no events", "half a line", "rubbish in the trace"}:
        assert "\nrecord     " in captured.out


def test_a_run_that_goes_on_is_explained_so_far(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store.root / RUN_ID
    going = replace(read_record(folder), outcome="running", wall_s=None, unit_end=None, owner=None)
    write_record(folder, going)
    assert run(["why"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("outcome    detached: it goes on without labctl")
    assert lines[-1] == "next: labctl attach last · labctl cancel last"
