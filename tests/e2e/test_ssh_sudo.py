"""sudo over SSH on real nodes, where the login user is not root."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from labctl.errors import DeadlineError, RemoteCommandError
from labctl.remote.ssh import SshExecutor

if TYPE_CHECKING:
    from labctl.remote.base import Executor
    from tests.conftest import RehearsalLab

PLAIN = "labctl-plain"


@pytest.fixture
def executor(lab: RehearsalLab) -> Iterator[Executor]:
    executor = lab.open("tf1")
    yield executor
    executor.close()


@pytest.fixture
def plain(lab: RehearsalLab, executor: Executor) -> Iterator[SshExecutor]:
    """The same node as a user with the same key and no sudo."""
    home = executor.run(["sh", "-c", "echo ~"], timeout_s=20).text
    script = (
        f"useradd --create-home --shell /bin/sh {PLAIN}; cp -r {home}/.ssh ~{PLAIN}/; "
        f"chown -R {PLAIN}: ~{PLAIN}/.ssh"
    )
    executor.run(["sh", "-c", script], timeout_s=30, sudo=True).check("tf1", "useradd")
    target = lab.lab.node("tf1").ssh
    assert target is not None
    found = SshExecutor(
        "tf1", replace(target, user=PLAIN), known_hosts=[lab.lab.local_dir / "known_hosts"]
    )
    yield found
    found.close()
    executor.run(["userdel", "--remove", "--force", PLAIN], timeout_s=30, sudo=True)


def sleeping(executor: Executor, mark: str) -> bool:
    listed = executor.run(
        ["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"], timeout_s=20
    )
    return f"sleep {mark}" in listed.text


def test_sudo_is_root_with_the_environment_inside(executor: Executor) -> None:
    script = 'id -u; printf "%s" "$ODD"'
    result = executor.run(["sh", "-c", script], timeout_s=20, sudo=True, env={"ODD": "a 'b' $c"})
    assert result.stdout == b"0\na 'b' $c"
    assert executor.run(["id", "-un"], timeout_s=20).text != "root"


def test_exit_status_and_signal_pass_through_sudo(executor: Executor) -> None:
    assert executor.run(["sh", "-c", "exit 1"], timeout_s=20, sudo=True).returncode == 1
    killed = executor.run(["sh", "-c", "kill -KILL $$"], timeout_s=20, sudo=True)
    assert (killed.returncode, killed.signal) == (None, 9)


def test_command_that_only_looks_like_a_refusal_is_a_result(executor: Executor) -> None:
    script = "echo 'sudo: a password is required' >&2; exit 1"
    assert executor.run(["sh", "-c", script], timeout_s=20, sudo=True).returncode == 1


def test_deadline_kills_what_sudo_started(executor: Executor) -> None:
    mark = f"5{time.time_ns() % 10**6}"
    with pytest.raises(DeadlineError, match="and was killed"):
        executor.run(["sh", "-c", f"sleep {mark} & exec sleep {mark}"], timeout_s=2, sudo=True)
    assert not sleeping(executor, mark)


def test_user_without_sudo_is_told_the_line_needed(plain: SshExecutor) -> None:
    assert plain.run(["id", "-un"], timeout_s=20).text == PLAIN
    with pytest.raises(RemoteCommandError, match=f"without a password for user {PLAIN}") as caught:
        plain.run(["true"], timeout_s=20, sudo=True)
    assert f"{PLAIN} ALL=(ALL) NOPASSWD:ALL" in str(caught.value)


def test_file_without_rights_is_refused(plain: SshExecutor) -> None:
    with pytest.raises(RemoteCommandError, match="/etc/shadow on tf1: Permission denied"):
        plain.read("/etc/shadow")
    with pytest.raises(RemoteCommandError, match="/etc/labctl-none on tf1: Permission denied"):
        plain.put(b"x", "/etc/labctl-none")
