"""`labctl runs compare A... -- B...` on stored runs, through the only exit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.__main__ import run
from labctl.lab.home import Home
from labctl.runs.record import RunRecord, read_record, write_record
from labctl.runs.select import select
from labctl.runs.store import RunStore

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
Change = Callable[[RunRecord], RunRecord]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("LABCTL_LAB", "drive")
    return RunStore(Home.find().make_local_dir("drive"))


def keep(record: RunRecord) -> RunRecord:
    return record


def put(store: RunStore, number: int, factor: float, side: str, change: Change = keep) -> str:
    """Store a copy of the fixture with warm steps of `factor` times some 100 ms."""
    run_id = f"20261130T16{number:02d}00Z-{number:06x}"
    folder = store.root / run_id
    shutil.copytree(FIXTURE, folder)
    record = read_record(FIXTURE)
    write_record(folder, change(replace(record, run_id=run_id, tags={"side": side})))
    lines = []
    for line in (folder / "events.jsonl").read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "step" and event["kind"] == "warm":
            event["duration_ns"] = round(1e8 * factor * (1 + 0.002 * event["index"]))
        lines.append(json.dumps(event))
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return run_id


def put_side(
    store: RunStore, first: int, factor: float, side: str, change: Change = keep
) -> list[str]:
    return [
        put(store, first + k, factor * (1 + 0.001 * k), side, change if k < 3 else keep)
        for k in range(3)
    ]


def staged(record: RunRecord) -> RunRecord:
    return replace(record, parameters=replace(record.parameters, feed="staged"))


def fed(record: RunRecord) -> RunRecord:
    return replace(record, parameters=replace(record.parameters, feed="fed"))


def other_kernel(record: RunRecord) -> RunRecord:
    first = record.nodes[0]
    first = replace(first, versions={**first.versions, "kernel": "9.9"})
    return replace(record, nodes=(first, *record.nodes[1:]))


def compared(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(["runs", "compare", *argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_two_sets_of_one_kind_exit_0(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = put_side(store, 0, 1.0, "a"), put_side(store, 10, 1.001, "b")
    code, out, err = compared([*a, "--", *b], capsys)
    assert (code, err) == (0, "")
    assert "verdict   the same: warm step" in out
    assert "●" in out
    code, out, _ = compared(["tag:side=a", "--", "tag:side=b", "--json"], capsys)
    told = json.loads(out)
    assert code == 0
    assert (told["a"], told["b"], told["verdict"]) == (a, b, "same")


def test_fed_against_staged_exits_1_when_b_is_slower(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_side(store, 0, 0.7, "staged", staged)
    put_side(store, 10, 1.0, "fed", fed)
    code, out, err = compared(["tag:side=staged", "--", "tag:side=fed"], capsys)
    assert code == 1
    assert "compared: feed staged against fed" in out
    assert "side B is slower than side A by 42" in err
    assert compared(["tag:side=fed", "--", "tag:side=staged"], capsys)[0] == 0


def test_another_kernel_is_refused_and_force_shows_it(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put_side(store, 0, 1.0, "a")
    put_side(store, 10, 1.0, "b", other_kernel)
    code, out, err = compared(["tag:side=a", "--", "tag:side=b"], capsys)
    assert (code, out) == (1, "")
    assert "kernel on tf0 is" in err
    assert "9.9 in B" in err
    assert "--force" in err
    code, out, err = compared(["--force", "tag:side=a", "--", "tag:side=b"], capsys)
    assert (code, err) == (0, "")
    assert "verdict   none" in out
    assert "refused   kernel on tf0" in out
    code, out, _ = compared(["tag:side=a", "--", "tag:side=b", "--json"], capsys)
    assert code == 1
    assert json.loads(out)["differs"][0]["what"] == "kernel on tf0"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["last"], "0 times --"),
        (["last", "--", "last", "--", "last"], "2 times --"),
        (["last", "--"], "side B has no run"),
        (["--", "last"], "side A has no run"),
        (["last", "--", "last"], "is on both sides"),
        (["tag:side", "--", "last"], "is no tag"),
    ],
)
def test_sides_that_cannot_be_meant_exit_2(
    store: RunStore, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, 0, 1.0, "a")
    code, out, err = compared(argv, capsys)
    assert (code, out) == (2, "")
    assert words in err


def test_runs_that_are_not_there_exit_8(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, 0, 1.0, "a")
    for word in ("1999", "tag:side=z"):
        code, _, err = compared(["last", "--", word], capsys)
        assert code == 8, word
        assert "no run" in err


def test_selection_is_by_time_and_each_run_once(store: RunStore) -> None:
    ids = [put(store, k, 1.0, "a") for k in (3, 1, 2)]
    chosen = select(store, ["last", ids[0], "tag:side=a", ids[1][:13]])
    assert [each.run_id for each in chosen] == sorted(ids)
    (store.root / ids[0] / "run.json").write_text("{")
    assert [each.run_id for each in select(store, ["tag:side=a"])] == sorted(ids[1:])
