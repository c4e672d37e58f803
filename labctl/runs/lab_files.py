"""What is known of a lab beside its inventory: its baseline, and how it was made. Both below `.lab/<lab>/`.

A file that is damaged or of another format is as good as none: it can be measured, or made, again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from labctl.runs import atomic
from labctl.runs.baseline import Baseline
from labctl.runs.codec import decode, encode
from labctl.runs.record import LabPhase

BASELINE_FILE = "baseline.json"
PHASES_FILE = "phases.json"
FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Phases:
    phases: tuple[LabPhase, ...]


def read_baseline(local_dir: Path) -> Baseline | None:
    """Return a lab's baseline, whatever it was measured of; None without one."""
    return _read(local_dir / BASELINE_FILE, Baseline)


def write_baseline(local_dir: Path, baseline: Baseline) -> None:
    """Keep a lab's baseline.

    Raises:
        OSError: It cannot be written.
    """
    _write(local_dir / BASELINE_FILE, baseline)


def forget_baseline(local_dir: Path, *, keep_gpus: bool = False) -> None:
    """Have the baseline measured anew when it is needed next.

    Args:
        local_dir: `.lab/<lab>`.
        keep_gpus: All but the GPUs' own figures.

    Raises:
        OSError: The file cannot be removed or written.
    """
    known = read_baseline(local_dir) if keep_gpus else None
    if known is not None and known.gpus:
        write_baseline(local_dir, Baseline(known.boot_ids, gpus=known.gpus))
    else:
        (local_dir / BASELINE_FILE).unlink(missing_ok=True)


def read_phases(local_dir: Path) -> tuple[LabPhase, ...]:
    """Return how a lab was made, in the order of time; () if that is not known."""
    found = _read(local_dir / PHASES_FILE, _Phases)
    return found.phases if found is not None else ()


def add_phases(
    local_dir: Path, command: str, new: Iterable[LabPhase], nodes: Iterable[str]
) -> None:
    """Keep what a command did for a lab, in place of what it did before.

    Machines that `up` left as they were keep the phases of their making.

    Args:
        local_dir: `.lab/<lab>`.
        command: `up` or `provision`.
        new: Its phases; none leave all as it is.
        nodes: The lab's machines now; phases of others are dropped.

    Raises:
        OSError: They cannot be written.
    """
    phases, machines = tuple(new), frozenset(nodes)
    if not phases:
        return
    kept = [
        each
        for each in read_phases(local_dir)
        if each.command != command or (command == "up" and _stands(each, phases, machines))
    ]
    ordered = sorted((*kept, *phases), key=lambda each: each.started_unix_s)
    _write(local_dir / PHASES_FILE, _Phases(tuple(ordered)))


def _stands(old: LabPhase, new: Sequence[LabPhase], machines: frozenset[str]) -> bool:
    """Say whether a phase of an earlier `up` is still how the lab was made."""
    if old.node == "":
        return all((each.node, each.phase) != ("", old.phase) for each in new)
    return old.node in machines and all(each.node != old.node for each in new)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            return None
        return decode(kind, data, path.name)
    except (OSError, ValueError, RecursionError):
        return None


def _write(path: Path, value: Any) -> None:
    """Write a file for the owner of its directory alone: with sudo, the user who will read it."""
    data = {"format": FORMAT, **encode(value)}
    atomic.write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n", mode=0o600)
    owner = path.parent.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(path, owner.st_uid, owner.st_gid)
