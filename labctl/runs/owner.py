"""Which labctl follows a run, and whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from labctl.runs.record import Owner

PROC = Path("/proc")


def boot_id() -> str:
    """Return the id of this machine's boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets and may hold blanks and brackets itself.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def this_process() -> Owner:
    """Return this process as an owner."""
    pid = os.getpid()
    return Owner(pid, start_ticks(pid) or 0, socket.gethostname(), boot_id())


def is_alive(owner: Owner) -> bool:
    """Return whether an owner still runs; one on another machine is taken to be alive."""
    if owner.host != socket.gethostname():
        return True
    return owner.boot_id == boot_id() and start_ticks(owner.pid) == owner.started
