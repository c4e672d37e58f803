"""A control group for each machine: it bounds the memory and finds every process again.

Works with cgroup v2, v1 and both at once. On v1 a machine has no controllers of its own, so the bound is set
from outside, on the process that runs the machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from labctl.providers.mounts import Mount, mounts

_V1_USED = ("name=systemd", "memory")


def hierarchies(found: Iterable[Mount]) -> tuple[tuple[str, Path], ...]:
    """Return (`v2` | `name=systemd` | `memory`, mount point) of each hierarchy that machines are placed in."""
    used: dict[str, Path] = {}
    for mount in found:
        if mount.fstype == "cgroup2":
            used.setdefault("v2", mount.point)
        elif mount.fstype == "cgroup":
            for option in mount.options.split(","):
                if option in _V1_USED:
                    used.setdefault(option, mount.point)
    return tuple(used.items())


class LabCgroup:
    """The groups `<name>/<node>` of one lab, in every hierarchy.

    Args:
        name: Name of the lab's group.
        found: Hierarchies, default those of this machine.
    """

    def __init__(self, name: str, found: tuple[tuple[str, Path], ...] | None = None) -> None:
        self._name = name
        self._found = hierarchies(mounts()) if found is None else found

    def make(self, node: str, *, memory_bytes: int | None) -> tuple[tuple[Path, ...], bool]:
        """Make a node's groups and set its bound.

        Returns:
            The groups' directories (none where this machine lets nobody make groups), and whether the bound holds.
        """
        made: list[Path] = []
        bound = memory_bytes is None
        for kind, point in self._found:
            folder = point / self._name / node
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            made.append(folder)
            if kind == "v2":
                for parent in (point, point / self._name):
                    _write(parent / "cgroup.subtree_control", "+memory")
            bound = _bound(folder, memory_bytes) or bound
        return tuple(made), bound

    def nodes(self) -> set[str]:
        """Return the names of the nodes that have a group."""
        return {
            entry.name
            for _, point in self._found
            if (point / self._name).is_dir()
            for entry in (point / self._name).iterdir()
            if entry.is_dir()
        }

    def exists(self) -> bool:
        return any((point / self._name).is_dir() for _, point in self._found)

    def pids(self, node: str) -> set[int]:
        """Return the processes of a node, those inside the machine included."""
        found: set[int] = set()
        for _, point in self._found:
            folder = point / self._name / node
            for procs in [folder / "cgroup.procs", *folder.rglob("cgroup.procs")]:
                with suppress(OSError):
                    found |= {int(line) for line in procs.read_text().split()}
        return found - {0}

    def kill(self, node: str, *, timeout_s: float = 30) -> bool:
        """Kill all processes of a node and return whether none is left."""
        deadline = time.monotonic() + timeout_s
        while pids := self.pids(node):
            if time.monotonic() > deadline:
                return False
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        return True

    def remove(self, node: str | None = None, *, timeout_s: float = 15) -> bool:
        """Remove a node's groups, or the whole lab's, and return whether none is left."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = [
                folder
                for _, point in self._found
                if (folder := point / self._name / node if node else point / self._name).is_dir()
            ]
            for folder in left:
                _remove_groups(folder)
            if not any(folder.is_dir() for folder in left):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)


def _bound(folder: Path, memory_bytes: int | None) -> bool:
    """Set or lift a group's memory bound; returns whether this hierarchy has it."""
    v1, v2 = folder / "memory.limit_in_bytes", folder / "memory.max"
    if v2.exists():
        _write(folder / "memory.swap.max", "max" if memory_bytes is None else "0")
        return _write(v2, "max" if memory_bytes is None else str(memory_bytes))
    if v1.exists():
        return _write(v1, "-1" if memory_bytes is None else str(memory_bytes))
    return False


def _write(file: Path, text: str) -> bool:
    try:
        file.write_text(text)
    except OSError:
        return False
    return True


def _remove_groups(folder: Path) -> None:
    for each in [*sorted(folder.rglob("*"), key=lambda path: -len(path.parts)), folder]:
        if each.is_dir():
            with suppress(OSError):
                each.rmdir()
