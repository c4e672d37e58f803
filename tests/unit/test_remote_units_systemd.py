from __future__ import annotations

import dataclasses

import pytest

from labctl.errors import DeadlineError, LabBusyError, RemoteCommandError
from labctl.remote.fake import Call, FakeExecutor, Reply
from labctl.remote.units import UnitSpec, UnitState
from labctl.remote.units_systemd import SystemdUnits, parse_state, run_argv

NAME = "labctl-run.service"
BOOT = "c28bfcd0-d5a4-40aa-8287-0577c76359c5"
SPEC = UnitSpec(
    NAME,
    "labctl run 1",
    ("/bin/echo", "$HOME", "100%", ""),
    {"A": "b $c %d"},
    "/var/lib/labctl/runs/1",
    "labctl",
    90.5,
)


def shown(active: str, **fields: str) -> Reply:
    found = {
        "LoadState": "loaded",
        "ActiveState": active,
        "SubState": "running",
        "Result": "success",
        "Description": "labctl run 1",
        "MainPID": "4711",
        "InvocationID": "ab" * 16,
        "NRestarts": "0",
        "ExecMainStartTimestamp": "Mon 2026-11-30 14:15:02.250000 UTC",
        "BootID": BOOT,
        **fields,
    }
    return Reply("\n".join(f"{key}={value}" for key, value in found.items()).encode())


ABSENT = shown(
    "inactive",
    LoadState="not-found",
    SubState="dead",
    Description=NAME,
    MainPID="0",
    InvocationID="",
    ExecMainStartTimestamp="",
)


class Node:
    """A fake systemd: `states` in turn, and how `systemd-run` ends."""

    def __init__(self, *states: Reply, started: Reply | None = None) -> None:
        self.states = list(states)
        self.started = started or Reply()
        self.executor = FakeExecutor("tf0").on((), self._reply)
        self.units = SystemdUnits(self.executor)

    def _reply(self, call: Call) -> Reply:
        text = " ".join(call.argv)
        if "systemctl show --timestamp" in text:
            return self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if "systemd-run" in text:
            return self.started
        if "journalctl" in text:
            return Reply(b"/bin/echo: No such file or directory\n")
        return Reply()


def test_state_is_parsed_with_microseconds() -> None:
    assert parse_state(shown("active").stdout.decode()) == UnitState(
        "loaded",
        "active",
        "running",
        "success",
        "labctl run 1",
        4711,
        "ab" * 16,
        0,
        1796048102.25,
        BOOT,
    )


def test_state_of_an_unknown_unit_has_no_description() -> None:
    state = parse_state(ABSENT.stdout.decode())
    assert (state.load, state.active, state.description) == ("not-found", "inactive", "")
    assert (state.main_pid, state.started_at_s, state.running) == (0, None, False)


def test_start_escapes_dollars_and_leaves_percent_and_environment() -> None:
    argv = run_argv(SPEC, "labctl")
    assert argv[argv.index("--") + 1 :] == ["/bin/echo", "$$HOME", "100%", ""]
    assert "--setenv=A=b $c %d" in argv
    assert "--property=RuntimeMaxSec=90.500" in argv
    finish = next(each for each in argv if each.startswith("--property=ExecStopPost="))
    assert "$$SERVICE_RESULT" in finish
    assert "$SERVICE_RESULT" not in finish.replace("$$", "")


def test_start_may_read_further_environment_and_write_elsewhere_where_these_exist() -> None:
    plain = run_argv(SPEC, "labctl")
    more = dataclasses.replace(SPEC, environment_file="/etc/x.env", writable=("/var/cache/x",))
    assert set(run_argv(more, "labctl")) - set(plain) == {
        "--property=EnvironmentFile=-/etc/x.env",
        "--property=ReadWritePaths=-/var/cache/x",
    }
    assert not any("EnvironmentFile" in each for each in plain)


def test_start_runs_as_the_login_user_when_none_is_named() -> None:
    node = Node(ABSENT, shown("active"))
    node.executor.on(["id", "-un"], Reply(b"admin\n"))
    spec = UnitSpec(NAME, "x", ("/bin/true",), {}, "/d", None, 5)
    assert node.units.start(spec).running
    call = next(each for each in node.executor.calls if "systemd-run" in each.argv)
    assert "--property=User=admin" in call.argv
    assert call.sudo


def test_running_unit_is_the_lock() -> None:
    node = Node(shown("deactivating"))
    with pytest.raises(LabBusyError, match="labctl run 1 is still running"):
        node.units.start(SPEC)
    assert [each for each in node.executor.calls if each.sudo] == []


def test_lost_race_for_the_name_is_busy_too() -> None:
    said = b"Failed to start transient service unit: Unit labctl-run.service already exists.\n"
    node = Node(ABSENT, shown("active"), started=Reply(stderr=said, returncode=1))
    with pytest.raises(LabBusyError, match="labctl run 1 is still running"):
        node.units.start(SPEC)


def test_program_that_ends_before_systemd_run_looks_was_started() -> None:
    node = Node(ABSENT, shown("failed"), started=Reply(stderr=b"Job failed.\n", returncode=1))
    node.executor.files[f"{SPEC.directory}/exit.json"] = (
        b'{"result": "signal", "exit_code": "killed", "exit_status": "KILL", "ended_at_s": 1.5}'
    )
    assert node.units.start(SPEC).active == "failed"


@pytest.mark.parametrize("status", ["203", "217"])
def test_program_that_cannot_be_started_is_an_error(status: str) -> None:
    node = Node(ABSENT, shown("failed"), started=Reply(stderr=b"Job failed.\n", returncode=1))
    node.executor.files[f"{SPEC.directory}/exit.json"] = (
        f'{{"result": "exit-code", "exit_code": "exited", "exit_status": "{status}", "ended_at_s": 1}}'
    ).encode()
    with pytest.raises(RemoteCommandError, match=r"did not start on tf0: .*No such file"):
        node.units.start(SPEC)


def test_stop_that_takes_too_long_is_an_error() -> None:
    node = Node(shown("deactivating"))
    node.executor.on(["systemctl", "stop"], Reply(takes_s=60))
    with pytest.raises(DeadlineError, match="still has a process 20 s after"):
        node.units.stop(NAME, timeout_s=20)


def test_stop_looks_for_processes_left() -> None:
    node = Node(shown("failed"))
    node.executor.on(
        ["sh", "-c"],
        lambda call: shown("failed") if "show --t" in call.argv[2] else Reply(b"4711\n"),
    )
    with pytest.raises(DeadlineError, match="still has a process"):
        node.units.stop(NAME, timeout_s=0)


def test_restart_that_is_not_ready_in_time_ends_with_the_journal() -> None:
    node = Node(shown("activating"))
    node.executor.on(
        ["sh", "-c", 'systemctl reset-failed -- "$1" 2>/dev/null; exec systemctl restart -- "$1"'],
        Reply(takes_s=60),
    )
    with pytest.raises(RemoteCommandError, match=r"not ready after 20 s\): /bin/echo: No such"):
        node.units.restart("tf-join-server.service", timeout_s=20)
