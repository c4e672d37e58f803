"""Files of a record, opened only where they are plain: no link is followed, no FIFO or device waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MIB = 1024 * 1024


def open_plain(folder: Path, name: str, *, most_bytes: int | None = None) -> BinaryIO:
    """Open a file below a directory for reading.

    Args:
        folder: The directory; links on the way to it are followed.
        name: The file's path below it; none are followed here.
        most_bytes: The most that it may hold, a multiple of MIB; None for any.

    Raises:
        FileNotFoundError: There is none.
        OSError: It, or a directory before it, is a link, it is no regular file, too large, or may not be read.
    """
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.split("/"):
            there = os.open(part, _FLAGS, dir_fd=here)
            os.close(here)
            here = there
        _check(os.fstat(here), name, most_bytes)
        return os.fdopen(here, "rb")
    except BaseException as error:
        os.close(here)
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link is not followed", name) from error
        raise


def _check(status: os.stat_result, name: str, most_bytes: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", name)
    if most_bytes is not None and status.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it is over {most_bytes // MIB} MiB", name)
