"""What a rehearsal lab was made with, kept between commands. No path is taken from it, `root` is only compared."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from labctl.providers.identity import LabIdentity, state_dir
from labctl.providers.image import RELEASES, is_image_name

FORMAT = 1
MAX_NODES = 8


@dataclass(frozen=True, slots=True)
class LabState:
    """One lab, as it was asked for. Whether it stands like that, the host itself is asked.

    Attributes:
        lab: Its name.
        root: The root directory it belongs to.
        nodes: Number of machines.
        release: Debian codename.
        image: Name of the image that the machines are cloned from.
        subnet: Its address range.
        memory_bytes: Bound of each machine's memory, None for none.
        cpus_per_node: CPUs of each machine, None for an equal share.
    """

    lab: str
    root: str
    nodes: int
    release: str
    image: str
    subnet: IPv4Network
    memory_bytes: int | None
    cpus_per_node: int | None


def save(file: Path, state: LabState) -> None:
    """Write a lab's state, atomically."""
    data = {"format": FORMAT, **dataclasses.asdict(state), "subnet": str(state.subnet)}
    fresh = file.with_name(file.name + ".new")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(file)


def load(file: Path) -> LabState | None:
    """Return a lab's state, None when there is none or it makes no sense."""
    try:
        data = json.loads(file.read_text())
        if data.pop("format") != FORMAT:
            return None
        figures = (data["nodes"], data["memory_bytes"], data["cpus_per_node"])
        if not all(figure is None or type(figure) is int for figure in figures):
            return None
        parsed = {"image": str(data["image"]), "subnet": IPv4Network(data["subnet"])}
        state = LabState(**{**data, **parsed})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return state if _is_sane(state) else None


def labs_of(root: Path) -> list[str]:
    """Return the names of the labs of a root directory that a state on this host is about, sorted."""
    files = (state_dir() / "labs").glob("*/state.json")
    found = ((file, state) for file in files if (state := load(file)) is not None)
    return sorted(
        state.lab
        for file, state in found
        if state.root == str(root) and LabIdentity.of(root, state.lab).state_file == file
    )


def _is_sane(state: LabState) -> bool:
    bounds = (state.memory_bytes, state.cpus_per_node)
    return (
        1 <= state.nodes <= MAX_NODES
        and state.release in RELEASES.values()
        and is_image_name(state.image)
        and state.subnet.prefixlen == 24
        and all(bound is None or bound > 0 for bound in bounds)
    )
