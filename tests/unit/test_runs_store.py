from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.errors import LabBusyError, RecordError, RefusedError
from labctl.runs import owner
from labctl.runs.record import (
    NodeFacts,
    Origin,
    Outcome,
    Owner,
    Parameters,
    RemoteRun,
    RunRecord,
    read_record,
    write_record,
)
from labctl.runs.store import RunStore, is_run_id, owned

PLAIN = RunRecord(
    run_id="",
    lab="x",
    provider="none",
    outcome="ok",
    parameters=Parameters("matpow", False, False, 60.0),
    tasks=2,
    origin=Origin(0.0, 0.0, "b"),
    remote=RemoteRun("tf0", "/d", "u"),
    nodes=(NodeFacts("tf0", 0, "a:1"),),
    labctl_version="0",
    payload_sha256="",
    spec_sha256="",
)


def add(
    store: RunStore, run_id: str, outcome: Outcome = "ok", who: Owner | None = None, at_s: float = 0
) -> Path:
    folder = store.create(run_id)
    origin = Origin(at_s, 0.0, "b")
    write_record(folder, replace(PLAIN, run_id=run_id, outcome=outcome, owner=who, origin=origin))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "lab")


def test_runs_of_one_second_get_directories_of_their_own(store: RunStore) -> None:
    made = {store.create_new(1796048102.9) for _ in range(20)}
    assert len(made) == 20
    assert all(folder.name.startswith("20261130T141502Z-") for folder in made)
    assert all(is_run_id(folder.name) for folder in made)


def test_a_taken_id_is_not_shared(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr("labctl.runs.store.secrets.token_hex", lambda _: next(ids))
    assert store.create_new(0).name.endswith("-aaaaaa")
    assert store.create_new(0).name.endswith("-bbbbbb")
    with pytest.raises(FileExistsError):
        store.create("19700101T000000Z-aaaaaa")


def test_an_unusable_directory_is_listed_and_stops_nothing(store: RunStore) -> None:
    add(store, "20261130T141502Z-000001")
    store.create("20261130T141503Z-000002")
    (add(store, "20261130T141504Z-000003") / "run.json").write_text("{")
    (add(store, "20261130T141504Z-000004") / "run.json").write_text('{"format": 99}')
    (store.root / "not-a-run").mkdir()
    (store.root / "20261130T141505Z-000004").write_text("a file")
    entries = store.entries()
    assert [entry.state for entry in entries] == ["ok", "damaged", "damaged", "too-new"]
    assert entries[1].problem == "empty directory"
    assert "not JSON" in entries[2].problem
    assert store.find("last").run_id == "20261130T141502Z-000001"
    with pytest.raises(RecordError, match="not JSON"):
        store.find("20261130T141504Z-000003")


def test_names_resolve(store: RunStore) -> None:
    with pytest.raises(RecordError, match="no run is stored"):
        store.entry("last")
    add(store, "20261130T141502Z-00aaaa", at_s=2.0)
    add(store, "20261130T141502Z-00bbbb", at_s=1.0)
    assert store.entry("last").run_id == "20261130T141502Z-00aaaa"
    assert store.entry("20261130T141502Z-00bbbb").run_id.endswith("bbbb")
    assert store.entry("20261130T141502Z-00b").run_id.endswith("bbbb")
    with pytest.raises(RecordError, match=r"fits 2 runs: .*00aaaa, .*00bbbb"):
        store.entry("2026")
    for unknown in ("2027", "", "../x", "/"):
        with pytest.raises(RecordError, match="no run"):
            store.entry(unknown)


def test_one_run_is_found_without_reading_the_others(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        add(store, f"20261130T14150{number}Z-00000{number}")
    (store.root / "20261130T141508Z-000008/run.json").write_text("{")
    read: list[str] = []

    def counted(folder: Path) -> RunRecord:
        read.append(folder.name[-1])
        return read_record(folder)

    monkeypatch.setattr("labctl.runs.store.read_record", counted)
    assert store.entry("last").run_id == "20261130T141507Z-000007"
    assert store.entry("20261130T141503Z").run_id == "20261130T141503Z-000003"
    assert read == ["8", "7", "3"]


def test_the_last_of_a_store_that_cannot_be_read_is_its_newest(store: RunStore) -> None:
    for number in range(3):
        store.create(f"20261130T14150{number}Z-00000{number}")
    entry = store.entry("last")
    assert (entry.run_id, entry.problem) == ("20261130T141502Z-000002", "empty directory")


def test_a_dead_owner_means_interrupted(store: RunStore) -> None:
    me = owner.this_process()
    add(store, "20261130T141502Z-000001", "running", me)
    add(store, "20261130T141502Z-000002", "running", replace(me, started=me.started + 1))
    add(store, "20261130T141502Z-000003", "running", replace(me, boot_id="another"))
    add(store, "20261130T141502Z-000004", "running", replace(me, pid=2**22 + 1))
    add(store, "20261130T141502Z-000005", "running", replace(me, host="elsewhere", pid=1))
    add(store, "20261130T141502Z-000006", "running")
    states = ["running", "interrupted", "interrupted", "interrupted", "running", "detached"]
    assert [entry.state for entry in store.entries()] == states


def test_this_process_is_alive_and_known() -> None:
    me = owner.this_process()
    assert (me.pid, me.host) == (os.getpid(), socket.gethostname())
    assert owner.is_alive(me)


def test_only_an_ended_run_is_removed(store: RunStore) -> None:
    running = add(store, "20261130T141502Z-000001", "running", owner.this_process())
    with pytest.raises(RefusedError, match="is running"):
        store.remove("last")
    assert running.is_dir()
    add(store, "20261130T141503Z-000002")
    store.create("20261130T141504Z-000003")
    store.remove("20261130T141503Z")
    store.remove("20261130T141504Z")
    assert [entry.run_id for entry in store.entries()] == ["20261130T141502Z-000001"]
    assert [path.name for path in store.root.iterdir()] == ["20261130T141502Z-000001"]


def test_a_run_that_may_still_go_on_is_removed_only_by_force(store: RunStore) -> None:
    add(store, "20261130T141502Z-000001", "running", None)
    add(store, "20261130T141503Z-000002", "lost", None)
    for run_id in ("20261130T141502Z-000001", "20261130T141503Z-000002"):
        with pytest.raises(RefusedError, match="may still go on"):
            store.remove(run_id)
        store.remove(run_id, force=True)
    assert store.entries() == []


def test_a_run_has_one_owner_at_a_time(store: RunStore) -> None:
    folder = add(store, "20261130T141502Z-000001")
    with owned(folder), pytest.raises(LabBusyError, match="another labctl follows"), owned(folder):
        pytest.fail("two owners")
    with owned(folder):
        pass
