"""What every kind of Units keeps to. SystemdUnits has the same tests on machines: tests/e2e."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import DeadlineError, LabBusyError, RemoteCommandError
from labctl.remote.fake import FakeExecutor, FakeUnits
from labctl.remote.local import LocalExecutor
from labctl.remote.units import UnitEnd, Units, UnitSpec
from labctl.remote.units_process import ProcessUnits

NAME = "labctl-run.service"


@dataclass
class Rig:
    units: Units
    directory: str
    folder: Path

    def spec(self, *argv: str, deadline_s: float = 60, stop_timeout_s: float = 1) -> UnitSpec:
        return UnitSpec(
            NAME,
            "labctl run 20261130T141502Z-3fa9c1",
            argv,
            {"GREETING": "good day"},
            self.directory,
            None,
            deadline_s,
            stop_timeout_s,
        )

    def sh(self, script: str, **limits: float) -> None:
        self.units.start(self.spec("/bin/sh", "-c", script, **limits))

    def finish(self, end: UnitEnd | None = None) -> None:
        """Let a fake unit end; a real one ends by itself."""
        if isinstance(self.units, FakeUnits):
            self.units.finish(NAME, end)

    def wait(self) -> UnitEnd:
        give_up = time.monotonic() + 30
        while self.units.state(NAME).running:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        end = self.units.end(self.directory)
        assert end is not None
        return end


@pytest.fixture(params=["fake", "process"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    directory, folder = tmp_path / "run", tmp_path / "units"
    directory.mkdir()
    units: Units
    if request.param == "fake":
        units = FakeUnits(FakeExecutor("node"))
    else:
        units = ProcessUnits(LocalExecutor("node"), str(folder))
    yield Rig(units, str(directory), folder)
    units.stop(NAME, timeout_s=30)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Rig]:
    directory, folder = tmp_path / "run", tmp_path / "units"
    directory.mkdir()
    rig = Rig(ProcessUnits(LocalExecutor("node"), str(folder)), str(directory), folder)
    yield rig
    rig.units.stop(NAME, timeout_s=30)


def alive(pattern: str) -> list[str]:
    listed = subprocess.run(
        ["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True
    )
    return [
        line for line in listed.stdout.splitlines() if pattern in line and not line.startswith("Z")
    ]


def test_unknown_unit_is_not_found(rig: Rig) -> None:
    state = rig.units.state("labctl-none.service")
    assert (state.load, state.active, state.running) == ("not-found", "inactive", False)
    assert (state.main_pid, state.invocation_id, state.started_at_s) == (0, "", None)
    assert state.boot_id
    assert rig.units.end(rig.directory) is None
    rig.units.stop("labctl-none.service", timeout_s=5)


def test_running_unit_is_seen_and_is_the_lock(rig: Rig) -> None:
    started = rig.units.start(rig.spec("/bin/sleep", "600"))
    assert started == rig.units.state(NAME)
    assert (started.load, started.active, started.sub) == ("loaded", "active", "running")
    assert started.main_pid > 0
    assert started.description == "labctl run 20261130T141502Z-3fa9c1"
    assert rig.units.end(rig.directory) is None
    with pytest.raises(LabBusyError, match="20261130T141502Z-3fa9c1 is still running") as caught:
        rig.units.start(rig.spec("/bin/true"))
    assert caught.value.exit_code == 9
    assert rig.units.state(NAME) == started


@pytest.mark.parametrize(
    ("script", "end", "active"),
    [
        ("exit 0", ("success", "exited", "0"), "inactive"),
        ("exit 3", ("exit-code", "exited", "3"), "failed"),
        ("exit 137", ("exit-code", "exited", "137"), "failed"),
        ("kill -KILL $$", ("signal", "killed", "KILL"), "failed"),
        ("kill -TERM $$", ("success", "killed", "TERM"), "inactive"),
    ],
)
def test_end_is_written_down(rig: Rig, script: str, end: tuple[str, str, str], active: str) -> None:
    rig.sh(script)
    rig.finish(UnitEnd(*end, ended_at_s=time.time()))
    found = rig.wait()
    assert (found.result, found.exit_code, found.exit_status) == end
    assert found.ended_at_s == pytest.approx(time.time(), abs=60)
    state = rig.units.state(NAME)
    assert (state.active, state.result, state.main_pid) == (active, end[0], 0)


def test_finished_unit_makes_room_for_the_next(rig: Rig) -> None:
    rig.sh("exit 3")
    rig.finish(UnitEnd("exit-code", "exited", "3", 1.0))
    rig.wait()
    first = rig.units.state(NAME)
    rig.sh("sleep 600")
    second = rig.units.state(NAME)
    assert second.running
    assert second.invocation_id != first.invocation_id
    assert rig.units.end(rig.directory) is None


def test_stop_ends_it_and_is_repeatable(rig: Rig) -> None:
    rig.sh("exec sleep 600")
    rig.units.stop(NAME, timeout_s=20)
    end = rig.wait()
    assert (end.result, end.exit_code, end.exit_status) == ("success", "killed", "TERM")
    rig.units.stop(NAME, timeout_s=20)


def test_stop_that_does_not_succeed_is_an_error(rig: Rig) -> None:
    rig.sh("trap '' TERM; while :; do sleep 1; done", stop_timeout_s=30)
    time.sleep(0.2)  # until the trap is set
    if isinstance(rig.units, FakeUnits):
        rig.units.ignores_stop.add(NAME)
    with pytest.raises(DeadlineError, match=f"{NAME} on node still has a process"):
        rig.units.stop(NAME, timeout_s=0.3)
    if isinstance(rig.units, FakeUnits):
        rig.units.ignores_stop.clear()
    else:
        os.killpg(rig.units.state(NAME).main_pid, signal.SIGKILL)


def test_damaged_exit_file_is_an_error(rig: Rig) -> None:
    if isinstance(rig.units, FakeUnits):
        rig.units.executor.files[f"{rig.directory}/exit.json"] = b'{"result": "succ'
    else:
        Path(rig.directory, "exit.json").write_text('{"result": "succ')
    with pytest.raises(RemoteCommandError, match="does not say how the unit ended"):
        rig.units.end(rig.directory)


def test_process_units_cannot_restart(processes: Rig) -> None:
    with pytest.raises(RemoteCommandError, match="cannot be restarted"):
        processes.units.restart("tf-join-server.service", timeout_s=5)


def test_program_gets_arguments_environment_and_files(
    processes: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://192.0.2.1:3128")
    monkeypatch.setenv("GRPC_PROXY", "http://192.0.2.1:3128")
    code = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['GREETING'],"
        " [k for k in os.environ if 'proxy' in k.lower()], sys.stdin.read()])); sys.stderr.write('e')"
    )
    Path(processes.directory, "stdout").write_text("earlier\n")
    processes.units.start(processes.spec(sys.executable, "-c", code, "a b", "", "$x"))
    processes.wait()
    earlier, said = Path(processes.directory, "stdout").read_text().splitlines()
    assert earlier == "earlier"
    assert json.loads(said) == [["a b", "", "$x"], processes.directory, "good day", [], ""]
    assert Path(processes.directory, "stderr").read_text() == "e"


def test_program_that_is_missing_fails_at_start(processes: Rig) -> None:
    with pytest.raises(RemoteCommandError, match=r"did not start on node: .*No such file"):
        processes.units.start(processes.spec("/nowhere/program"))
    assert not processes.units.state(NAME).running


def test_deadline_ends_every_descendant(processes: Rig) -> None:
    mark = f"8{os.getpid()}"
    processes.sh(f"(trap '' TERM; setsid sh -c 'sleep {mark}; :') & sleep {mark}", deadline_s=1)
    end = processes.wait()
    assert (end.result, end.exit_code, end.exit_status) == ("timeout", "killed", "TERM")
    assert alive(f"sleep {mark}") == []


def test_children_that_outlive_the_program_are_ended(processes: Rig) -> None:
    mark = f"9{os.getpid()}"
    processes.sh(f"sleep {mark} & setsid sleep {mark} & exit 4")
    assert processes.wait().exit_status == "4"
    assert alive(f"sleep {mark}") == []


def test_stop_kills_what_ignores_term(processes: Rig) -> None:
    processes.sh("trap '' TERM; echo ready; while :; do sleep 0.1; done", stop_timeout_s=0.5)
    give_up = time.monotonic() + 20
    while not Path(processes.directory, "stdout").read_text():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    processes.units.stop(NAME, timeout_s=20)
    end = processes.wait()
    assert (end.result, end.exit_code, end.exit_status) == ("timeout", "killed", "KILL")


def test_unit_outlives_its_starter(processes: Rig) -> None:
    starter = (
        "import json, sys\n"
        "from labctl.remote.local import LocalExecutor\n"
        "from labctl.remote.units import UnitSpec\n"
        "from labctl.remote.units_process import ProcessUnits\n"
        "d, f = sys.argv[1:]\n"
        f"spec = UnitSpec('{NAME}', 'x', ('/bin/sh', '-c', 'sleep 1; echo late'), {{}}, d, None, 60)\n"
        "ProcessUnits(LocalExecutor('node'), f).start(spec)\n"
    )
    subprocess.run(
        [sys.executable, "-c", starter, processes.directory, str(processes.folder)],
        check=True,
        timeout=60,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert processes.units.state(NAME).running
    assert processes.wait().result == "success"
    assert Path(processes.directory, "stdout").read_text() == "late\n"


def test_killed_supervisor_takes_the_program_with_it(processes: Rig) -> None:
    mark = f"6{os.getpid()}"
    processes.sh(f"sleep {mark} & exec sleep {mark}")
    record: dict[str, Any] = json.loads((processes.folder / f"{NAME}.json").read_text())
    os.kill(record["supervisor"], signal.SIGKILL)
    give_up = time.monotonic() + 20
    while processes.units.state(NAME).running:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    state = processes.units.state(NAME)
    assert (state.active, state.result) == ("failed", "signal")
    assert processes.units.end(processes.directory) is None
    processes.units.stop(NAME, timeout_s=20)
    assert alive(f"sleep {mark}") == []


def test_unit_of_an_earlier_boot_is_forgotten(processes: Rig) -> None:
    processes.sh("exit 3")
    processes.wait()
    path = processes.folder / f"{NAME}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "boot_id": "of-yesterday", "pid": os.getpid()}))
    assert processes.units.state(NAME).load == "not-found"
