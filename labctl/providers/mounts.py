"""Mounts of this machine, and removal of directories that never crosses one."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import RemoteCommandError
from labctl.providers import host

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo.

    Attributes:
        point: Where it is mounted.
        fstype: File system type, e.g. `overlay`.
        source: Device or name given as the source.
        options: Options of the file system, comma separated.
    """

    point: Path
    fstype: str
    source: str
    options: str


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Return the mounts of a `/proc/self/mountinfo`, in its order (later ones cover earlier ones)."""
    mounts = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if len(fields) > 5 and len(rest) > 2:
            mounts.append(Mount(Path(_plain(fields[4])), rest[0], _plain(rest[1]), rest[2]))
    return tuple(mounts)


def _plain(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def mounts() -> tuple[Mount, ...]:
    """Return the mounts that this process sees."""
    return parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))


def below(folder: Path) -> tuple[Mount, ...]:
    """Return the mounts at or below a folder, the topmost first: the order in which to unmount them."""
    real = folder.resolve()
    return tuple(mount for mount in reversed(mounts()) if mount.point.is_relative_to(real))


def unmount_below(folder: Path, *, lazily: bool = False) -> tuple[Path, ...]:
    """Unmount all at or below a folder and return what is still mounted.

    Args:
        folder: The folder.
        lazily: Detach at once what is still in use.
    """
    for attempt in range(10):
        found = below(folder)
        if not found:
            return ()
        if attempt:
            time.sleep(0.2)
        for mount in found:
            host.try_run(["umount", "--", str(mount.point)])
    if lazily:
        for mount in below(folder):
            host.try_run(["umount", "--lazy", "--", str(mount.point)])
    return tuple(mount.point for mount in below(folder))


def remove_tree(folder: Path, *, within: Path) -> bool:
    """Remove a directory tree and return whether there was one.

    Args:
        folder: The tree; a link in its place is not followed, only removed.
        within: The directory it must be in.

    Raises:
        RemoteCommandError: It is not inside `within`, something is mounted in it, or it cannot be removed.
    """
    if folder == within or not folder.absolute().is_relative_to(within) or ".." in folder.parts:
        raise RemoteCommandError(f"refused to remove {folder}: it is not inside {within}")
    if folder.is_symlink():
        folder.unlink()
        return True
    if not folder.exists():
        return False
    mounted = below(folder)
    if mounted:
        raise RemoteCommandError(
            f"refused to remove {folder}: {mounted[0].point} is still mounted",
            do=f"umount {mounted[0].point}, then labctl down again",
        )
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise RemoteCommandError(f"could not remove {folder}: {error}") from error
    return True
