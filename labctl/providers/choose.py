"""What the commands `up`, `down` and `labs` decide before and after a provider does the work."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from labctl.errors import ConfigError, InventoryError, UsageError
from labctl.lab.home import Home, check_lab_name
from labctl.lab.model import LOOPBACK
from labctl.providers import inventory
from labctl.providers.base import LabStatus, MachineOptions, Provider, Receipt, State
from labctl.providers.image import parse_release
from labctl.providers.rehearsal import RehearsalProvider
from labctl.providers.state import MAX_NODES

DEFAULT_LAB = "rehearsal"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MIN_MEMORY = 256 * 2**20


def provider(home: Home, name: str) -> Provider:
    """Return a provider by its name.

    Raises:
        ConfigError: This version has none of that name.
    """
    if name == RehearsalProvider.name:
        return RehearsalProvider(home)
    known = name in {"aws", "gcp"}
    raise ConfigError(
        f"--provider {name}: " + ("not yet available in this version" if known else "unknown"),
        expected=RehearsalProvider.name,
        do="labctl up, or make the machines yourself and copy inventory/example",
    )


def lab_to_make(home: Home, lab: str | None) -> str:
    """Return the lab that `up` means: the named one, `LABCTL_LAB`, the active one, else `rehearsal`.

    Raises:
        ConfigError: It is not a lab that can have machines.
    """
    name = check_lab_name(lab or os.environ.get("LABCTL_LAB") or home.active() or DEFAULT_LAB)
    if name == LOOPBACK:
        raise ConfigError(
            f"lab {LOOPBACK} is two processes on this machine and has no machines to make",
            expected="another name",
            do=f"labctl run --lab {LOOPBACK} right away, or labctl up --lab {DEFAULT_LAB}",
        )
    return name


def lab_to_remove(home: Home, lab: str | None) -> str:
    """Return the lab that `down` means: the named one, `LABCTL_LAB`, the active one, the only half-made one.

    Any other complete lab but `rehearsal` is taken only by its name: a second `labctl down` takes no other lab.

    Raises:
        ConfigError: It could be one of several.
    """
    name = lab or os.environ.get("LABCTL_LAB") or home.active()
    if name is not None:
        return check_lab_name(name)
    rehearsal = RehearsalProvider(home)
    found = set(rehearsal.half_made())
    if rehearsal.owns(DEFAULT_LAB):
        found.add(DEFAULT_LAB)
    if len(found) > 1:
        raise ConfigError(
            f"no lab is active, and labctl down could mean {' or '.join(sorted(found))}",
            expected="the lab's name",
            do="labctl down --lab NAME",
        )
    return found.pop() if found else DEFAULT_LAB


def provider_of(home: Home, lab: str) -> Provider:
    """Return the provider that may remove a lab; one that never was is the rehearsal provider's to find absent.

    Raises:
        ConfigError: Its machines were not made by labctl.
    """
    rehearsal = RehearsalProvider(home)
    folder = home.inventory(lab)
    if not rehearsal.owns(lab) and inventory.foreign(folder):
        raise ConfigError(
            f"lab {lab}: labctl did not make its machines and does not remove them",
            expected="a lab of labctl up",
            do=f"ansible-playbook -i {folder} teardown.yml takes from them what provision.yml put there",
        )
    return rehearsal


def machine_options(
    nodes: int | None, release: str | None, memory: str | None, cpus_per_node: int | None
) -> MachineOptions:
    """Return the options of `up`, checked.

    Raises:
        ConfigError: No such release.
        UsageError: A figure is out of its range.
    """
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"--nodes {nodes}", expected=f"1 to {MAX_NODES}", do="labctl up --nodes 2")
    if cpus_per_node is not None and cpus_per_node < 1:
        raise UsageError(f"--cpus-per-node {cpus_per_node}", expected="1 or more")
    return MachineOptions(
        nodes=nodes,
        release=None if release is None else parse_release(release),
        memory_bytes=None if memory is None else parse_size(memory),
        cpus_per_node=cpus_per_node,
    )


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `4G` or `1500M`.

    Raises:
        UsageError: It is not a size, or too small for a machine.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size < _MIN_MEMORY:
        raise UsageError(
            f"--memory {text}", expected="a size of 256M or more", do="labctl up --memory 4G"
        )
    return size


def up_dict(home: Home, lab: str, provider_name: str, status: LabStatus) -> dict[str, Any]:
    """Return the object of `labctl up --json`."""
    return {
        "lab": lab,
        "provider": provider_name,
        "state": status.state,
        "active": home.active() == lab,
        "inventory": str(home.inventory(lab)),
        "nodes": [
            {"name": each.name, "address": each.address, "running": each.running}
            for each in status.machines
        ],
        "phases": [
            {"phase": each.phase, "node": each.node, "duration_s": each.duration_s}
            for each in status.phases
        ],
    }


def receipt_lines(lab: str, receipt: Receipt) -> list[str]:
    """Return the receipt as text."""
    if not (receipt.removed or receipt.left or receipt.forgotten):
        return [f"lab {lab}: nothing is there, nothing was removed"]
    lines = [f"removed    {each}" for each in receipt.removed]
    lines += [f"left       {each}" for each in receipt.left] or ["left       nothing"]
    lines += [f"forgotten  {each}" for each in receipt.forgotten]
    return [*lines, f"cost       {receipt.cost:.2f} USD"]


@dataclass(frozen=True, slots=True)
class LabRow:
    """One lab in the list.

    Attributes:
        name: Its name.
        provider: What made it; `none` for machines that the user brought; `?` if its inventory cannot be read.
        nodes: Number of machines, None if its inventory cannot be read.
        state: As far as its provider can say.
        active: It is the default of every command.
        cost: USD so far.
    """

    name: str
    provider: str
    nodes: int | None
    state: State
    active: bool
    cost: float

    def to_dict(self) -> dict[str, Any]:
        """Return the row for `labctl labs --json`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def lab_rows(home: Home) -> list[LabRow]:
    """Return all labs that have an inventory, and those that a broken-off `up` left without one, by name."""
    active = home.active()
    rows = [_row(home, name, active=name == active) for name in home.labs()]
    rehearsal = RehearsalProvider(home)
    for name in rehearsal.half_made():
        status = rehearsal.status(name)
        count = len(status.machines)
        rows.append(LabRow(name, rehearsal.name, count, "partly", name == active, status.cost))
    return sorted(rows, key=lambda row: row.name)


def _row(home: Home, name: str, *, active: bool) -> LabRow:
    rehearsal = RehearsalProvider(home)
    if inventory.is_ours(home.inventory(name)):
        status = rehearsal.status(name)
        count = len(status.machines)
        return LabRow(name, rehearsal.name, count, status.state, active, status.cost)
    from labctl.playbook import load_lab

    try:
        lab = load_lab(home, name)
    except InventoryError:
        return LabRow(name, "?", None, "unknown", active, 0.0)
    return LabRow(name, lab.provider, len(lab.nodes), "unknown", active, 0.0)


def lab_lines(rows: list[LabRow]) -> list[str]:
    """Return the list as text."""
    if not rows:
        return ["no lab yet: labctl up makes one"]
    table = [("", "lab", "provider", "nodes", "state", "cost")]
    for row in rows:
        nodes = "?" if row.nodes is None else str(row.nodes)
        mark = "*" if row.active else ""
        table.append((mark, row.name, row.provider, nodes, row.state, f"{row.cost:.2f} USD"))
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
