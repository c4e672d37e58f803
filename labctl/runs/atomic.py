"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


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
