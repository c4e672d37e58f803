"""`labctl runs` and `labctl logs` on a stored run, through the only exit."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.__main__ import run
from labctl.cli.driving import error_of
from labctl.lab.home import Home
from labctl.runs.record import EXIT_CODES, Failure, Outcome, read_record
from labctl.runs.store import RunStore

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
RUN_ID = FIXTURE.name


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("LABCTL_LAB", "drive")
    store = RunStore(Home.find().make_local_dir("drive"))
    shutil.copytree(FIXTURE, store.root / RUN_ID)
    return store


def test_list_and_show_tell_the_same_run(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.create("20261130T160000Z-000000")
    assert run(["runs", "list", "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)
    assert [(head["run_id"], head["outcome"]) for head in heads] == [
        (RUN_ID, "ok"),
        ("20261130T160000Z-000000", "damaged"),
    ]
    assert run(["runs", "list"]) == 0
    assert "empty directory" in capsys.readouterr().out
    assert run(["runs", "show", "last", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert heads[0].items() <= shown.items()
    assert run(["runs", "show", RUN_ID[:12]]) == 0
    assert capsys.readouterr().out.startswith("lab drive · 2 tasks · A^5 + B^5")


def test_runs_that_are_not_there_are_exit_8(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["runs", "show", "1999"], ["logs", "1999"], ["attach", "1999"], ["cancel", "x"]):
        assert run(argv) == 8, argv
        captured = capsys.readouterr()
        assert "no run" in captured.err
        assert captured.out == ""
    (store.root / RUN_ID / "run.json").write_text('{"format": 99}')
    assert run(["runs", "show", RUN_ID]) == 8
    assert "update labctl" in capsys.readouterr().err


def test_one_record_that_cannot_be_takes_no_other_from_the_list(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (name, value) in enumerate(
        [("tasks", 10**400), ("wall_s", 1e300), ("origin", {"unix_s": 1e300}), ("nodes", [])]
    ):
        folder = store.create(f"20261130T16000{number}Z-00000{number}")
        data = json.loads((FIXTURE / "run.json").read_text())
        kept = {**data[name], **value} if isinstance(value, dict) else value
        (folder / "run.json").write_text(
            json.dumps({**data, "run_id": folder.name, name: kept}), encoding="utf-8"
        )
    os.mkfifo(store.create("20261130T160009Z-000009") / "run.json")
    assert run(["runs", "list", "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)
    assert [head["outcome"] for head in heads] == ["ok", *["damaged"] * 5]
    assert "origin.unix_s" in heads[3]["error"]["message"]
    assert run(["runs", "list"]) == 0
    assert capsys.readouterr().out.count("damaged") == 10
    for head in heads[1:]:
        assert run(["runs", "show", head["run_id"]]) == 8
    assert run(["runs", "show", "last"]) == 0


def test_a_lab_that_is_not_there_is_exit_3(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (["runs", "list"], ["why"], ["runs", "rm", "last", "--yes"], ["trace"]):
        assert run([*argv, "--lab", "nosuch"]) == 3, argv
        captured = capsys.readouterr()
        assert "no lab 'nosuch'" in captured.err
        assert captured.out == ""
    assert run(["runs", "list", "--lab", "loopback"]) == 0
    (Home.find().inventories / "mine").mkdir(parents=True)
    assert run(["runs", "list", "--lab", "mine"]) == 0
    assert not Home.find().local_dir("nosuch").exists()


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
@pytest.mark.parametrize(
    "argv", [["report", "-o"], ["trace", "-o"], ["runs", "export", "last"], ["answer", "--write"]]
)
def test_an_output_takes_the_place_of_nothing_but_a_file(
    argv: list[str],
    kind: str,
    store: RunStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, mine = tmp_path / "out.tar.gz", tmp_path / "mine"
    mine.write_text("mine")
    if kind == "fifo":
        os.mkfifo(there)
    elif kind == "folder":
        there.mkdir()
    else:
        there.symlink_to(mine if kind == "link" else tmp_path / "nowhere")
    before = there.lstat()
    assert run([*argv, str(there)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(there) in captured.err
    assert all(part in captured.err for part in ("\n  expected  ", "\n  do        "))
    assert os.path.samestat(there.lstat(), before)
    assert mine.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.glob("*out*")) == ["out.tar.gz"]


def test_export_and_removal(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run.tar.gz"
    assert run(["runs", "export", "last", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == target.stat().st_size
    assert run(["runs", "export", "last", str(target)]) == 2
    assert run(["runs", "rm", "last"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert store.find("last").run_id == RUN_ID
    assert run(["runs", "rm", "last", RUN_ID, "--yes"]) == 0
    assert store.entries() == []


def test_a_run_that_has_ended_is_only_shown_again(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["attach", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "ok"
    assert run(["cancel", "last"]) == 0
    captured = capsys.readouterr()
    assert "has ended already: ok" in captured.err
    assert read_record(store.root / RUN_ID) == read_record(FIXTURE)


def test_logs_are_filtered_and_machine_readable(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "last", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["node"] for line in lines} == {"tf0", "tf1"}
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    assert run(["logs", "last", "--node", "tf1", "--since", "2026-11-30T15:34:32.7"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert run(["logs", "last", "--node", "tf9"]) == 2
    assert "one of tf0, tf1" in capsys.readouterr().err
    assert run(["logs", "last", "--since", "whenever"]) == 2


@pytest.mark.parametrize(
    "outcome", ["ok", "running", "wrong", "failed", "timeout", "lost", "cancelled"]
)
def test_every_outcome_has_its_exit_code(outcome: Outcome) -> None:
    failure = Failure("x", "it was so", None)
    error = error_of(replace(read_record(FIXTURE), outcome=outcome, failure=failure))
    assert (0 if error is None else error.exit_code) == EXIT_CODES[outcome]
