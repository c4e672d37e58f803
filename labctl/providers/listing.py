"""The list of labs, and a lab's status, as text and as JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from labctl import console
from labctl.errors import InventoryError, LabctlError
from labctl.lab.home import Home
from labctl.providers import inventory
from labctl.providers.base import LabStatus, State
from labctl.providers.cloud import books, tell
from labctl.providers.cloud.model import CLOUDS
from labctl.providers.rehearsal import RehearsalProvider

_PATIENCE_S = 180.0  # with a cloud, all in all; its playbook has an earlier deadline of its own


@dataclass(frozen=True, slots=True)
class LabRow:
    """One lab in the list.

    Attributes:
        name: Its name.
        provider: What made it; `none` for machines that the user brought; `?` if its inventory cannot be read.
        nodes: Number of machines, None if its inventory cannot be read.
        state: As far as its provider can say.
        active: It is the default of every command.
        cost: USD so far, None if a price is unknown.
        usd_per_hour: What it costs as it is, None if a price is unknown.
        deadline_unix_s: When its dead-man timer ends it at the latest, None without one.
        asked_unix_s: When the cloud last said so, None where none has to be asked.
        notes: What the user should know.
    """

    name: str
    provider: str
    nodes: int | None
    state: State
    active: bool
    cost: float | None
    usd_per_hour: float | None = 0.0
    deadline_unix_s: float | None = None
    asked_unix_s: float | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the row for `labctl labs --json`."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**values, "notes": list(self.notes)}


Status = Callable[[str, str], LabStatus]
"""Returns a lab's status, given its cloud and its name; it raises nothing that labctl expects."""


def lab_rows(home: Home, cloud_status: Status | None = None) -> list[LabRow]:
    """Return all labs that have an inventory, and those that a broken-off or forced command left without, by name.

    Clouds are asked for all their labs at once, in bounded time.

    Args:
        home: Whose labs.
        cloud_status: Asks a cloud; default its provider.
    """
    ask = cloud_status or _asker(home)
    active = home.active()
    in_clouds = {name: books.cloud_of(home, name) or "" for name in books.labs_of(home)}
    asked = {name: _ask(ask, cloud, name) for name, cloud in in_clouds.items()}
    rows = [
        _row(home, name, active=name == active) for name in home.labs() if name not in in_clouds
    ]
    rehearsal = RehearsalProvider(home)
    for name in rehearsal.half_made():
        if name not in in_clouds:
            status = rehearsal.status(name)
            count = len(status.machines)
            rows.append(LabRow(name, rehearsal.name, count, "partly", name == active, status.cost))
    for name, future in asked.items():
        try:
            status = future.result(timeout=_PATIENCE_S)
        except TimeoutError:
            status = _unknown(f"no answer within {_PATIENCE_S:g} s")
        rows.append(_of_status(name, in_clouds[name], status, active=name == active))
    return sorted(rows, key=lambda row: row.name)


def _ask(ask: Status, cloud: str, name: str) -> Future[LabStatus]:
    """Ask a cloud in a thread that holds nobody up: labctl can always leave."""
    future: Future[LabStatus] = Future()

    def work() -> None:
        try:
            future.set_result(ask(cloud, name))
        except BaseException as error:  # noqa: BLE001 whoever waits for the future gets it
            future.set_exception(error)

    threading.Thread(target=work, name=f"labctl-{name}", daemon=True).start()
    return future


def _unknown(why: str) -> LabStatus:
    return LabStatus((), cost=None, usd_per_hour=None, unknown=why)


def lab_lines(rows: list[LabRow], now_unix_s: float) -> list[str]:
    """Return the list as text."""
    if not rows:
        return ["no lab yet: labctl up makes one"]
    paid = any(row.provider in CLOUDS for row in rows)
    table = [("", "lab", "provider", "nodes", "state", "cost", "now", "timer")]
    for row in rows:
        nodes = "?" if row.nodes is None else str(row.nodes)
        mark = "*" if row.active else ""
        cost = _usd(row.cost, "USD")
        rate = _usd(row.usd_per_hour, "USD/h")
        timer = "-" if row.deadline_unix_s is None else tell.clock(row.deadline_unix_s)
        table.append((mark, row.name, row.provider, nodes, row.state, cost, rate, timer))
    columns = range(8 if paid else 6)
    widths = [max(len(row[column]) for row in table) for column in columns]
    lines = [
        "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in table
    ]
    for row in rows:
        lines += [f"{row.name}: {note}" for note in row.notes]
        if row.state == "unknown" and row.asked_unix_s is not None:
            age_s = max(0.0, now_unix_s - row.asked_unix_s)
            lines.append(f"{row.name}: what is listed is {duration(age_s)} old")
    return lines


def duration(seconds: float) -> str:
    """Return a time span in words, e.g. `3 min` or `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def timer_text(deadline_unix_s: float | None, *, armed: bool) -> str:
    """Return what a node's dead-man timer says."""
    if deadline_unix_s is not None:
        return f"powers itself off at {tell.clock(deadline_unix_s)}" + (
            "" if armed else ", but its timer does not run: labctl provision"
        )
    return "no deadline; it powers itself off when idle" if armed else "no timer is armed"


def status_dict(home: Home, lab: str, provider: str, status: LabStatus) -> dict[str, Any]:
    """Return the object of `labctl up --json`, `stop --json` and `start --json`."""
    return {
        "lab": lab,
        "provider": provider,
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
        "cost": status.cost,
        "usd_per_hour": status.usd_per_hour,
        "deadline_unix_s": status.deadline_unix_s,
    }


def print_status(home: Home, lab: str, provider: str, status: LabStatus, *, json: bool) -> None:
    """Print a lab's status after a command on it."""
    if json:
        console.out_json(status_dict(home, lab, provider, status))
        return
    console.say(f"lab {lab} is {status.state}: {home.inventory(lab) / inventory.HOSTS}")
    for line in status_lines(status):
        console.say(line)


def status_lines(status: LabStatus) -> list[str]:
    """Return what a status says beyond its state."""
    lines = [f"{each.name}: {each.note}" for each in status.machines if each.note]
    if status.asked_unix_s is not None:
        lines.append(
            f"cost so far {_usd(status.cost, 'USD')}, now {_usd(status.usd_per_hour, 'USD/h')}"
        )
    if status.deadline_unix_s is not None:
        lines.append(
            f"each node powers itself off at {tell.clock(status.deadline_unix_s)} at the latest; "
            "labctl extend puts that off"
        )
    return [*lines, *status.notes]


def _asker(home: Home) -> Status:
    def ask(cloud: str, lab: str) -> LabStatus:
        from labctl.providers.cloud.provider import CloudProvider

        try:
            return CloudProvider(home, cloud).status(lab)
        except (LabctlError, OSError) as error:
            why = error.found if isinstance(error, LabctlError) else str(error)
            return _unknown(why)

    return ask


def _of_status(name: str, cloud: str, status: LabStatus, *, active: bool) -> LabRow:
    notes = [f"{each.name} {each.note}" for each in status.machines if each.note]
    if status.unknown:
        notes = [f"its state cannot be asked: {status.unknown}"]
    there = [each for each in status.machines if each.running or each.stopped]
    return LabRow(
        name=name,
        provider=cloud,
        nodes=len(there),
        state=status.state,
        active=active,
        cost=status.cost,
        usd_per_hour=status.usd_per_hour,
        deadline_unix_s=status.deadline_unix_s,
        asked_unix_s=status.asked_unix_s,
        notes=(*notes, *status.notes),
    )


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


def _usd(value: float | None, unit: str) -> str:
    return f"{'?' if value is None else f'{value:.2f}'} {unit}"
