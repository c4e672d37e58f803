"""A process on this machine that outlives the command which started it, and is found again in /proc.

A pid goes with its start time, so that a pid used anew by something else is not mistaken for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The shell joins the groups, says its pid and becomes the program: no moment in which the program runs outside
# its groups. It is a child of a shell that ends at once, so nobody has to wait for it.
_START = """
{
    while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs"; shift; done
    shift
    exec setsid "$@"
} < /dev/null > "$LABCTL_DAEMON_LOG" 2>&1 &
echo $!
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running process.

    Attributes:
        pid: Its pid, also its session.
        start_ticks: Its start in clock ticks since boot, from /proc.
    """

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return _start_ticks(self.pid) == self.start_ticks

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process has gone."""
        if not self.alive:
            return
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:  # checked again now that the pid cannot pass to another process
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end and return whether it came."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def start_daemon(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    groups: Sequence[Path] = (),
) -> Daemon:
    """Start a process in a session of its own.

    Args:
        argv: Program and arguments.
        log: File for both output streams, written anew.
        env: The whole environment.
        groups: Control group directories that it is placed in before the program starts.

    Returns:
        The process, which may have ended already; its log says why.
    """
    started = subprocess.run(
        ["/bin/sh", "-c", _START, "sh", *map(str, groups), "--", *argv],
        env={**env, "LABCTL_DAEMON_LOG": str(log)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        timeout=30,
    )
    pid = int(started.stdout)
    ticks = _start_ticks(pid)
    return Daemon(pid, -1 if ticks is None else ticks)


def find_processes(program: str) -> tuple[tuple[Daemon, tuple[str, ...]], ...]:
    """Return the running processes of a program, each with its arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        words = line.rstrip("\0").split("\0")
        ticks = _start_ticks(int(entry.name))
        if ticks is not None and Path(words[0]).name == program:
            found.append((Daemon(int(entry.name), ticks), tuple(words[1:])))
    return tuple(found)


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, None if it does not run (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])
