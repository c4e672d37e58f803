"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from labctl.errors import ConfigError, LabctlError, UsageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_output(path: Path) -> None:
    """See that a file may be put where the user asked for one: a rename would replace whatever is there.

    Raises:
        UsageError: What is there is no regular file, or there can be none.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_write(path, error) from error
    if not stat.S_ISREG(mode):
        raise UsageError(
            f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'no regular file')}",
            expected="a new file, or a regular one to replace",
            do="name another file",
        )


def cannot_write(path: Path, error: OSError) -> LabctlError:
    """Return the error for a file that the user asked for and that could not be written."""
    found = f"cannot write {path}: {error.strerror}"
    if error.errno in _FULL:
        return ConfigError(found, expected="room for it", do="make room, or name another file")
    return UsageError(
        found, expected="a file's name in a directory that can be written", do="name another file"
    )


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it into place.

    A reader sees the old content or the new, a killed writer leaves the old.

    Args:
        path: The file.
        data: Its content.
        mode: Its permissions, less those that the umask takes.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text as UTF-8, the same way."""
    write_bytes(path, text.encode(), mode=mode)
