"""Locks between labctl processes on this host; the kernel lets go of one when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.errors import LabBusyError
from labctl.providers.base import Report

_POLL_S = 0.2


@contextmanager
def hold(file: Path, what: str, *, wait: Report | None = None) -> Iterator[None]:
    """Hold the lock of a file; the file exists only while the lock is held.

    Args:
        file: The lock's file; its folder is made.
        what: What the holder does, for the message to others.
        wait: None to fail at once when another holds it; else who is waited for is told to it.

    Raises:
        LabBusyError: Another process holds it.
    """
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    told = False
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            if wait is None:
                raise LabBusyError(
                    f"busy: {_holder(file)}",
                    expected="one labctl command at a time on a lab's machines",
                    do="wait for it to end, then try again",
                ) from None
            if not told:
                wait(f"waiting for {_holder(file)}")
                told = True
            time.sleep(_POLL_S)
            continue
        except BaseException:
            os.close(handle)
            raise
        if _is(file, handle):
            break
        os.close(handle)  # its holder removed the file between our open and our lock
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "what": what}).encode())
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(handle)


def _is(file: Path, handle: int) -> bool:
    try:
        there, ours = file.stat(), os.fstat(handle)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _holder(file: Path) -> str:
    try:
        data = json.loads(file.read_text())
        return f"{data['what']} (pid {data['pid']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another labctl command"
