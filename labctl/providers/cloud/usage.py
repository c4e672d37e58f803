"""How long each machine of a lab ran or was stopped, by the cloud's own stamps, and what that cost.

Pure: what the cloud answered goes in, intervals and sums come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from labctl.providers.cloud.model import Found, Price, Resource
from labctl.providers.cloud.wish import Wish
from labctl.providers.identity import is_node_name, node_index

Doing = Literal["running", "stopped", "gone"]

# EC2's words, then Compute Engine's; one that is being stopped is still billed as it runs.
RUNNING = frozenset({"pending", "running", "stopping", "shutting-down"}) | frozenset(
    {"provisioning", "staging", "repairing", "suspending"}
)
LEAVING = frozenset({"shutting-down", "deleting", "terminating"})
STOPPED = frozenset({"stopped", "suspended"})
GONE = frozenset({"", "deleted"})


@dataclass(frozen=True, slots=True)
class Change:
    """From when on a machine did something.

    Attributes:
        unix_s: When.
        doing: What.
    """

    unix_s: float
    doing: Doing


@dataclass(frozen=True, slots=True)
class Usage:
    """One machine over its life.

    Attributes:
        id: The cloud's id.
        node: Node name.
        machine_type: As the cloud names it.
        gpu_type: "" for none.
        gpu_count: GPUs.
        disk_gb: Boot disk, GB.
        public: It had a public address.
        changes: In the order of time, at least one.
    """

    id: str
    node: str
    machine_type: str
    gpu_type: str
    gpu_count: int
    disk_gb: int
    public: bool
    changes: tuple[Change, ...]

    @property
    def doing(self) -> Doing:
        return self.changes[-1].doing

    @property
    def created_unix_s(self) -> float:
        return self.changes[0].unix_s

    def hours(self, doing: Doing, now_unix_s: float) -> float:
        """Return for how long it did something until now."""
        ends = [*(each.unix_s for each in self.changes[1:]), now_unix_s]
        spans = (
            max(0.0, end - each.unix_s)
            for each, end in zip(self.changes, ends, strict=True)
            if each.doing == doing
        )
        return sum(spans) / 3600


@dataclass(frozen=True, slots=True)
class Spent:
    """What one machine cost.

    Attributes:
        node: Node name.
        id: The cloud's id.
        machine_type: As the cloud names it.
        running_h: Hours that it ran.
        stopped_h: Hours that only its disk was billed.
        usd: What both cost, None where no price is known.
    """

    node: str
    id: str
    machine_type: str
    running_h: float
    stopped_h: float
    usd: float | None


Pricing = Callable[[Usage], tuple[Price | None, Price | None]]
"""Returns what a machine costs an hour while it runs, and while it is stopped."""


def doing_of(machine: Resource, provider: str) -> Doing:
    """Return what a machine is doing; a word that nobody knows counts as running: it may be billed."""
    state = machine.state.lower()
    if state == "terminated":
        return "stopped" if provider == "gcp" else "gone"
    if state in STOPPED:
        return "stopped"
    return "gone" if state in GONE and not machine.billable else "running"


def is_leaving(resource: Resource) -> bool:
    """Say whether a thing is on its way out by itself."""
    return resource.state.lower() in LEAVING


def serving(found: Found) -> list[Resource]:
    """Return the machines that are there to stay, in task order."""
    return [each for each in machines(found) if not is_leaving(each)]


def machines(found: Found) -> list[Resource]:
    """Return the machines that are still there, in task order; of one node, those that are leaving first."""
    there = [
        each
        for each in found.resources
        if each.kind == "machine" and doing_of(each, found.provider) != "gone"
    ]
    return sorted(there, key=_order)


def remaining(found: Found) -> list[Resource]:
    """Return all that is still there: everything but machines that the cloud lists as terminated."""
    return [
        each
        for each in found.resources
        if not (each.kind == "machine" and doing_of(each, found.provider) == "gone")
    ]


def observe(known: Iterable[Usage], found: Found, wish: Wish) -> tuple[Usage, ...]:
    """Return the usage of all machines after another answer of the cloud.

    Its own stamps count; where it gives none, the time of the answer does.

    Args:
        known: Usage until now.
        found: The answer, later than those before.
        wish: What the machines were made as.
    """
    usages = {each.id: each for each in known}
    there = {each.id: each for each in found.resources if each.kind == "machine"}
    for machine in there.values():
        doing = doing_of(machine, found.provider)
        old = usages.get(machine.id)
        if old is None:
            if doing == "gone":
                continue
            old = _first_seen(machine, found, wish)
        usages[machine.id] = _after(old, machine, doing, found.asked_unix_s)
    for each in usages.values():
        if each.id not in there and each.doing != "gone":
            usages[each.id] = _changed(each, "gone", found.asked_unix_s)
    return tuple(sorted(usages.values(), key=lambda each: (each.created_unix_s, each.node)))


def spent(usages: Iterable[Usage], now_unix_s: float, pricing: Pricing) -> list[Spent]:
    """Return what each machine cost until now."""
    rows = []
    for usage in usages:
        running_h = usage.hours("running", now_unix_s)
        stopped_h = usage.hours("stopped", now_unix_s)
        running, stopped = pricing(usage)
        usd: float | None = None
        if running is not None and (stopped is not None or stopped_h == 0):
            disk = stopped.usd_per_hour if stopped is not None else 0.0
            usd = running_h * running.usd_per_hour + stopped_h * disk
        rows.append(Spent(usage.node, usage.id, usage.machine_type, running_h, stopped_h, usd))
    return rows


def total(rows: Iterable[Spent]) -> float | None:
    """Return the sum of all costs; None if one of them is unknown, as a part is no sum."""
    sums = [each.usd for each in rows]
    known = [each for each in sums if each is not None]
    return sum(known) if len(known) == len(sums) else None


def lab_hours(usages: Iterable[Usage], now_unix_s: float) -> float | None:
    """Return the hours from the first machine's creation to the last one's end; None where none ever was."""
    spans = [
        (each.created_unix_s, each.changes[-1].unix_s if each.doing == "gone" else now_unix_s)
        for each in usages
    ]
    if not spans:
        return None
    return max(0.0, max(end for _, end in spans) - min(start for start, _ in spans)) / 3600


def _first_seen(machine: Resource, found: Found, wish: Wish) -> Usage:
    index = node_index(machine.node) if is_node_name(machine.node) else 0
    task = wish.task(index)
    created_s = machine.created_unix_s or found.asked_unix_s
    return Usage(
        id=machine.id,
        node=machine.node or machine.name or machine.id,
        machine_type=machine.machine_type or str(task.machine_type),
        gpu_type=task.gpu_type or "",
        gpu_count=task.gpu_count or 0,
        disk_gb=task.disk_gb or wish.disk_gb,
        public=bool(machine.public_address),
        changes=(Change(min(created_s, found.asked_unix_s), "running"),),
    )


def _after(usage: Usage, machine: Resource, doing: Doing, asked_s: float) -> Usage:
    usage = replace(usage, public=usage.public or bool(machine.public_address))
    if doing == usage.doing:
        return usage
    stamp = {"stopped": machine.stopped_unix_s, "running": machine.created_unix_s}.get(doing)
    if doing == "running" and stamp is not None and stamp <= usage.changes[-1].unix_s:
        stamp = None  # of its making, which a start does not renew in every cloud
    return _changed(usage, doing, min(stamp or asked_s, asked_s))


def _changed(usage: Usage, doing: Doing, unix_s: float) -> Usage:
    """Add a change; one that would lie before the last is as late as the cloud can have meant it: now or never."""
    at_s = max(unix_s, usage.changes[-1].unix_s)
    return replace(usage, changes=(*usage.changes, Change(at_s, doing)))


def _order(machine: Resource) -> tuple[int, bool, str]:
    known = is_node_name(machine.node)
    index = node_index(machine.node) if known else 1_000
    return index, not is_leaving(machine), machine.id
