"""Logs while they are written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.drive.links import Links
from labctl.drive.live import RunTail, require_followed, server_lines
from labctl.drive.places import JOIN_SERVICE
from labctl.drive.timing import Timeline
from labctl.errors import RecordError
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote.base import Executor
from labctl.remote.clock import CLOCK_ARGV
from labctl.remote.fake import Call, FakeExecutor, FakeUnits, Reply
from labctl.runs import owner
from labctl.runs.record import (
    NodeFacts,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
    read_record,
    write_record,
)
from labctl.runs.store import RunStore

RUN_ID = "19700101T000000Z-3fa9c1"


class SteppedClock:
    """Each sleep does the next thing of a list; a sleep too many is an error."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._steps = list(steps)
        self.now_s = 0.0

    def mono_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._steps.pop(0)()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path)
    folder = store.create(RUN_ID)
    (folder / "logs/tf0").mkdir(parents=True)
    record = RunRecord(
        run_id=RUN_ID,
        lab="x",
        provider="none",
        outcome="running",
        parameters=Parameters("script", False, False, 60.0, script="x.py"),
        tasks=2,
        origin=Origin(0.0, 0.0, "b"),
        remote=RemoteRun("tf0", "/d", "u"),
        nodes=(NodeFacts("tf0", 0, "a:1"),),
        labctl_version="0",
        payload_sha256="",
        spec_sha256="",
        owner=owner.this_process(),
    )
    write_record(folder, record)
    return store


def test_a_followed_run_is_tailed_to_its_end(store: RunStore) -> None:
    folder = store.root / RUN_ID
    stdout, index = folder / "logs/tf0/stdout", folder / "logs/tf0/index.jsonl"

    def append(data: bytes, at_s: float | None) -> None:
        with stdout.open("ab") as file:
            file.write(data)
        if at_s is not None:
            entry = {"file": "stdout", "t": at_s, "offset": stdout.stat().st_size}
            with index.open("a") as lines:
                lines.write(json.dumps(entry) + "\n")

    def end() -> None:
        append(b"three\nrest", None)
        record = replace(read_record(folder), outcome="ok", owner=None, wall_s=9.0)
        write_record(folder, record)

    append(b"one\ntw", 0.25)
    clock = SteppedClock(lambda: append(b"o\n", 1.5), end)
    tail = RunTail(store, store.find("last"), (), clock)
    assert [(line.t_s, line.text) for line in tail.lines()] == [
        (0.25, b"one"),
        (1.5, b"two"),
        (2.0, b"three"),
        (2.0, b"rest"),
    ]


def test_a_run_that_nobody_follows_is_not_waited_for(store: RunStore) -> None:
    folder = store.root / RUN_ID
    require_followed(store.find("last"))
    write_record(folder, replace(read_record(folder), owner=None))
    with pytest.raises(RecordError, match="no labctl follows"):
        require_followed(store.find("last"))


class Opener:
    """Two workers whose clocks differ, with journals that grow from page to page."""

    def __init__(self, pages: dict[str, list[bytes]], offsets_s: dict[str, float]) -> None:
        self._pages = pages
        self._offsets_s = offsets_s
        self.cursors: list[str] = []

    def executor(self, node: Node, lab: Lab) -> Executor:
        assert node in lab.nodes
        machine = FakeExecutor(node.name)
        machine.clock_ns = lambda: 10**9
        there_ns = round(1e9 + self._offsets_s.get(node.name, 0.0) * 1e9)
        machine.on(CLOCK_ARGV, Reply(str(there_ns).encode() + b"\n"))

        def journal(call: Call) -> Reply:
            self.cursors += [word for word in call.argv if word.startswith("--after-cursor")]
            return Reply(self._pages[node.name].pop(0))

        return machine.on(("sh",), journal)

    def units(self, node: Node, executor: Executor, lab: Lab) -> FakeUnits:
        assert node in lab.nodes
        assert isinstance(executor, FakeExecutor)
        units = FakeUnits(executor)
        units.install(JOIN_SERVICE)
        return units


def row(at_s: float, text: str) -> bytes:
    entry = {
        "__REALTIME_TIMESTAMP": str(round(at_s * 1e6)),
        "__CURSOR": f"c{text}",
        "MESSAGE": text,
        "_SYSTEMD_UNIT": JOIN_SERVICE,
    }
    return json.dumps(entry).encode() + b"\n"


def test_journals_of_all_workers_are_interleaved_and_followed() -> None:
    nodes = tuple(
        Node(f"tf{k}", k, f"10.0.0.{k + 2}", 2222, ssh=SshTarget(f"tf{k}")) for k in range(3)
    )
    lab = Lab("unit", nodes, None, "none", Path("/nowhere"))
    pages = {"tf1": [row(5.0, "a") + row(7.0, "c"), row(9.0, "e")], "tf2": [row(106.0, "b"), b""]}
    opener = Opener(pages, {"tf2": 100.0})

    clock = SteppedClock(lambda: None)
    lines = server_lines(
        Links(lab, opener), Timeline(clock), clock, nodes=(), since_s=None, follow=True
    )
    seen = [(round(line.t_s, 3), line.node, line.text) for line in itertools.islice(lines, 4)]
    assert seen == [
        (5.0, "tf1", b"a"),
        (6.0, "tf2", b"b"),
        (7.0, "tf1", b"c"),
        (9.0, "tf1", b"e"),
    ]
    assert "--after-cursor=cc" in opener.cursors
