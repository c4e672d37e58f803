"""Processes that outlive the command which started them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labctl.remote.daemon import Daemon, find_processes, start_daemon

ENVIRONMENT = {"PATH": os.environ["PATH"], "MARK": "from the environment"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program with a name that nothing else on this machine has."""
    file = tmp_path / f"sleep-{os.getpid()}"
    shutil.copy(shutil.which("sleep") or "", file)
    return file


@pytest.fixture
def daemon(program: Path, tmp_path: Path) -> Iterator[Daemon]:
    started = start_daemon([str(program), "300"], log=tmp_path / "log", env=ENVIRONMENT)
    yield started
    started.signal(signal.SIGKILL)
    assert started.wait(10)


def until_found(program: Path) -> tuple[tuple[Daemon, tuple[str, ...]], ...]:
    deadline = time.monotonic() + 10
    while not (found := find_processes(program.name)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_it_runs_in_a_session_of_its_own_and_is_no_child(daemon: Daemon, program: Path) -> None:
    assert until_found(program) == ((daemon, ("300",)),)
    assert os.getsid(daemon.pid) == daemon.pid
    with pytest.raises(ChildProcessError):
        os.waitpid(daemon.pid, os.WNOHANG)


def test_it_ends_by_a_signal(daemon: Daemon, program: Path) -> None:
    until_found(program)
    assert daemon.alive
    assert not daemon.wait(0.1)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(10)
    assert not daemon.alive
    assert find_processes(program.name) == ()
    daemon.signal(signal.SIGTERM)


def test_a_pid_used_anew_is_not_taken_for_it(daemon: Daemon, program: Path) -> None:
    until_found(program)
    other = dataclasses.replace(daemon, start_ticks=daemon.start_ticks + 1)
    assert not other.alive
    other.signal(signal.SIGKILL)
    assert not daemon.wait(0.2)


def test_both_streams_go_to_the_log_and_groups_are_joined_first(tmp_path: Path) -> None:
    log, group = tmp_path / "log", tmp_path / "group"
    group.mkdir()
    script = f"test -s {group}/cgroup.procs && echo out; echo $MARK >&2; exec sleep 300"
    started = start_daemon(["sh", "-c", script], log=log, env=ENVIRONMENT, groups=(group,))
    deadline = time.monotonic() + 10
    while "environment" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    started.signal(signal.SIGKILL)
    assert log.read_text() == "out\nfrom the environment\n"
    assert started.wait(10)


def test_a_program_that_is_not_there_ends_with_a_word_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = start_daemon(["/nonexistent"], log=log, env=ENVIRONMENT)
    assert started.wait(10)
    assert "/nonexistent" in log.read_text()
