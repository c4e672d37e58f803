from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from labctl.errors import DeadlineError, LabBusyError, RemoteCommandError
from labctl.remote.journal import read_journal, save_journal
from labctl.remote.ssh import SshExecutor
from labctl.remote.units import UnitEnd, UnitSpec
from labctl.remote.units_systemd import SystemdUnits

if TYPE_CHECKING:
    from labctl.remote.base import Executor, Result
    from tests.conftest import RehearsalLab

NAME = "labctl-test.service"
USER = "labctl"


@dataclass
class Rig:
    executor: Executor
    units: SystemdUnits
    directory: str

    def spec(
        self, *argv: str, env: dict[str, str] | None = None, deadline_s: float = 60
    ) -> UnitSpec:
        return UnitSpec(
            NAME, "labctl run test", argv, env or {}, self.directory, USER, deadline_s, 2.0
        )

    def start(self, *argv: str, env: dict[str, str] | None = None, deadline_s: float = 60) -> None:
        self.units.start(self.spec(*argv, env=env, deadline_s=deadline_s))

    def wait(self) -> UnitEnd:
        give_up = time.monotonic() + 60
        while self.units.state(NAME).running:
            assert time.monotonic() < give_up, self.units.state(NAME)
            time.sleep(0.1)
        end = self.units.end(self.directory)
        assert end is not None
        return end

    def out(self, stream: str = "stdout") -> str:
        return self.executor.read(f"{self.directory}/{stream}").decode()

    def processes(self, pattern: str) -> str:
        listed = self.executor.run(
            ["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"], timeout_s=10
        )
        return "\n".join(line for line in listed.text.splitlines() if pattern in line)


@pytest.fixture
def rig(lab: RehearsalLab) -> Iterator[Rig]:
    executor = lab.open("tf0")
    directory = f"/var/lib/labctl/runs/test-{os.urandom(4).hex()}"
    group = executor.run(["id", "-gn"], timeout_s=10).text
    executor.run(
        ["install", "-d", "-o", USER, "-g", group, "-m", "2750", directory],
        timeout_s=10,
        sudo=True,
    ).check("tf0", "install -d")
    units = SystemdUnits(executor)
    yield Rig(executor, units, directory)
    units.stop(NAME, timeout_s=30)
    executor.run(["systemctl", "reset-failed", NAME], timeout_s=10, sudo=True)
    executor.run(["rm", "-rf", "--", directory], timeout_s=10, sudo=True)
    executor.close()


def test_unit_gets_its_arguments_and_environment_unchanged(rig: Rig) -> None:
    odd = ["a b", "", "$HOME ${PATH} $$", "%n %h", "q\"u'o\\te", "ü\nnew"]
    rig.start(
        "/usr/bin/python3",
        "-c",
        "import os, sys; print([*sys.argv[1:], os.environ['ODD'], os.getcwd()])",
        *odd,
        env={"ODD": "$x %i 'y' \"z\" \\n"},
    )
    end = rig.wait()
    assert (end.result, end.exit_code, end.exit_status) == ("success", "exited", "0")
    assert end.ended_at_s == pytest.approx(time.time(), abs=30)
    assert rig.out().strip() == repr([*odd, "$x %i 'y' \"z\" \\n", rig.directory])
    assert rig.out("stderr") == ""


def test_login_user_reads_the_files_of_the_run(rig: Rig) -> None:
    rig.start("/bin/sh", "-c", "echo out; echo err >&2; echo own > own; id -un")
    rig.wait()
    assert rig.out() == f"out\n{USER}\n"
    assert rig.out("stderr") == "err\n"
    assert rig.out("own") == "own\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", ("exit-code", "exited", "3")),
        ("exit 137", ("exit-code", "exited", "137")),
        ("kill -KILL $$", ("signal", "killed", "KILL")),
        ("kill -TERM $$", ("success", "killed", "TERM")),
        ("ulimit -c 0; kill -SEGV $$", ("signal", "killed", "SEGV")),
    ],
)
def test_end_tells_status_and_signal_apart(
    rig: Rig, script: str, expected: tuple[str, str, str]
) -> None:
    rig.start("/bin/sh", "-c", script)
    end = rig.wait()
    assert (end.result, end.exit_code, end.exit_status) == expected


def test_deadline_is_kept_by_the_node(rig: Rig) -> None:
    rig.start("/bin/sh", "-c", "sleep 4321 & sleep 4321", deadline_s=2)
    end = rig.wait()
    assert (end.result, end.exit_code) == ("timeout", "killed")
    assert rig.processes("sleep 4321") == ""


def test_stop_kills_what_ignores_term_and_leaves_nothing(rig: Rig) -> None:
    rig.start(
        "/bin/sh",
        "-c",
        "trap '' TERM; (trap '' TERM; setsid sleep 4322) & while :; do sleep 1; done",
    )
    assert rig.units.state(NAME).running
    rig.units.stop(NAME, timeout_s=30)
    assert not rig.units.state(NAME).running
    assert rig.processes("sleep 4322") == ""
    end = rig.units.end(rig.directory)
    assert end is not None
    assert (end.exit_code, end.exit_status) == ("killed", "KILL")


def test_stop_past_its_time_is_an_error(rig: Rig) -> None:
    rig.start("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    with pytest.raises(DeadlineError, match="still has a process"):
        rig.units.stop(NAME, timeout_s=0.5)


def test_name_is_the_lock(rig: Rig) -> None:
    rig.start("/bin/sleep", "600")
    with pytest.raises(LabBusyError, match="labctl run test is still running"):
        rig.units.start(rig.spec("/bin/true"))
    rig.units.stop(NAME, timeout_s=30)
    rig.start("/bin/sh", "-c", "exit 9")
    rig.wait()
    assert rig.units.state(NAME).active == "failed"
    rig.start("/bin/sh", "-c", "exit 0")
    assert rig.wait().exit_status == "0"


def test_program_that_is_missing_fails_at_start(rig: Rig) -> None:
    with pytest.raises(RemoteCommandError, match=r"did not start on tf0: .*nowhere"):
        rig.units.start(rig.spec("/nowhere/program"))


def test_state_of_running_unknown_and_installed_units(rig: Rig) -> None:
    before = time.time()
    rig.start("/bin/sleep", "600")
    state = rig.units.state(NAME)
    assert (state.load, state.active, state.sub) == ("loaded", "active", "running")
    assert state.description == "labctl run test"
    assert state.main_pid > 1
    assert len(state.invocation_id) == 32
    assert state.started_at_s == pytest.approx(before, abs=30)
    unknown = rig.units.state("labctl-none.service")
    assert (unknown.load, unknown.active, unknown.description) == ("not-found", "inactive", "")
    assert unknown.started_at_s is None
    assert unknown.boot_id == state.boot_id
    assert rig.units.state("ssh.service").running


def test_proxies_of_the_manager_do_not_reach_the_unit(rig: Rig) -> None:
    manager = ["systemctl", "set-environment", "http_proxy=http://192.0.2.1:1", "GRPC_PROXY=x"]
    rig.executor.run(manager, timeout_s=10, sudo=True).check("tf0", "set-environment")
    try:
        rig.start("/usr/bin/env")
        rig.wait()
    finally:
        rig.executor.run(
            ["systemctl", "unset-environment", "http_proxy", "GRPC_PROXY"], timeout_s=10, sudo=True
        )
    assert "roxy" not in rig.out().lower()


def test_unit_outlives_the_connection(rig: Rig, lab: RehearsalLab) -> None:
    rig.start("/bin/sh", "-c", "sleep 2; echo done")
    rig.executor.close()
    assert rig.wait().result == "success"
    assert rig.out() == "done\n"


def test_restart_of_a_broken_service_says_why(rig: Rig) -> None:
    name = "labctl-test-broken.service"
    unit = "[Service]\nExecStart=/bin/sh -c 'echo the reason; exit 7'\nType=notify\n"
    rig.executor.run(
        ["tee", f"/run/systemd/system/{name}"], input=unit.encode(), timeout_s=10, sudo=True
    )
    rig.executor.run(["systemctl", "daemon-reload"], timeout_s=30, sudo=True)
    try:
        with pytest.raises(RemoteCommandError, match=rf"{name} on tf0 did not .*the reason"):
            rig.units.restart(name, timeout_s=30)
        page = read_journal(rig.executor, name, boot="0")
        assert b"the reason" in [line.message for line in page.lines if line.own]
    finally:
        rig.executor.run(["rm", f"/run/systemd/system/{name}"], timeout_s=10, sudo=True)
        rig.executor.run(["systemctl", "daemon-reload"], timeout_s=30, sudo=True)


def test_journal_is_read_exactly_and_resumed(rig: Rig) -> None:
    marker = os.urandom(4).hex()
    script = (
        f"printf 'first {marker}\\n\\377\\376 raw\\n'; head -c 9000 /dev/zero | tr '\\0' x; echo"
    )
    unit = f"labctl-test-{marker}.service"
    rig.executor.run(
        [
            "systemd-run",
            f"--unit={unit}",
            "--wait",
            "--quiet",
            "/bin/sh",
            "-c",
            script,
        ],
        timeout_s=30,
        sudo=True,
    ).check("tf0", "systemd-run")
    rig.executor.run(["journalctl", "--sync"], timeout_s=30, sudo=True)
    whole = read_journal(rig.executor, unit)
    own = [line for line in whole.lines if line.own]
    assert [line.message for line in own] == [
        f"first {marker}".encode(),
        b"\xff\xfe raw",
        b"x" * 9000,
    ]
    assert abs(own[0].t_ns / 1e9 - time.time()) < 60
    assert own[0].pid > 1
    first = read_journal(rig.executor, unit, limit=2)
    rest = read_journal(rig.executor, unit, since_cursor=first.cursor)
    assert (*first.lines, *rest.lines) == whole.lines
    nothing = read_journal(rig.executor, unit, since_cursor=whole.cursor)
    assert nothing.lines == ()
    assert nothing.cursor == whole.cursor
    path = f"{rig.directory}/journal"
    save_journal(rig.executor, unit, path, output="cat")
    assert b"\xff\xfe raw\n" in rig.executor.read(path)


def test_journal_without_rights_is_an_error(rig: Rig) -> None:
    class Plain(SshExecutor):
        """The node as somebody who may not use sudo sees it."""

        def run(self, argv: Sequence[str], **options: Any) -> Result:
            return super().run(
                ["sudo", "-n", "-u", "nobody", *argv], timeout_s=options["timeout_s"]
            )

    assert isinstance(rig.executor, SshExecutor)
    plain = Plain("tf0", rig.executor._target, known_hosts=rig.executor._known_hosts)
    with pytest.raises(RemoteCommandError, match=r"journal of ssh\.service on tf0 cannot be read"):
        read_journal(plain, "ssh.service")
    plain.close()
