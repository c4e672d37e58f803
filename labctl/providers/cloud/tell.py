"""What the cloud has of a lab, in words and as a status. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from labctl.providers.base import LabStatus, MachineStatus
from labctl.providers.cloud import usage
from labctl.providers.cloud.books import State
from labctl.providers.cloud.model import Resource
from labctl.providers.cloud.prices import Prices
from labctl.providers.cloud.usage import Usage
from labctl.providers.identity import node_name
from labctl.runs.record import LabPhase

# The machines' own limit that playbooks/cloud/gcp_create.yml sets, in lab_max_hours.
GCP_LIMIT_TIMES = 2.0
# By so much a node may end before the deadline that is known here: clocks, and the moment of arming.
_EARLY_S = 120.0


def clock(unix_s: float) -> str:
    """Return a time as the user reads it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(resources: Iterable[Resource]) -> str:
    """Return what there is, e.g. `2 machines, 2 disks, 1 network`."""
    counts = Counter[str](each.kind for each in resources)
    order = ("machine", "disk", "address", "network", "subnet", "gateway", "firewall", "key")
    return ", ".join(
        f"{counts[kind]} {_plural(kind, counts[kind])}" for kind in order if counts[kind]
    )


def named(resource: Resource) -> str:
    """Return one thing with its id, e.g. `machine tf0 (i-0abc)`."""
    what = resource.node or resource.name
    extra = f" {what}" if what and what != resource.id else ""
    return f"{resource.kind}{extra} ({resource.id})"


def _plural(kind: str, count: int) -> str:
    if count == 1:
        return kind
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


def status_of(
    state: State,
    prices: Prices,
    now_unix_s: float,
    *,
    phases: tuple[LabPhase, ...] = (),
    unknown: str = "",
    notes: tuple[str, ...] = (),
) -> LabStatus:
    """Return a lab's status from what is known of it."""
    there = {each.node: each for each in usage.machines(state.found)} if state.found else {}
    last = {each.node: each for each in state.usage}
    machines = []
    names = [node_name(index) for index in range(state.wish.nodes)]
    for name in [*names, *(node for node in there if node not in names)]:
        machine, used = there.get(name), last.get(name)
        if machine is None and used is None:
            continue  # never made
        doing = usage.doing_of(machine, state.wish.provider) if machine is not None else "gone"
        machines.append(
            MachineStatus(
                name=name,
                address=_address(state, machine),
                running=doing == "running",
                stopped=doing == "stopped",
                note="" if doing == "running" else _why(state, used, doing),
            )
        )
    rows = usage.spent(state.usage, now_unix_s, lambda each: prices.of_usage(state.wish, each))
    return LabStatus(
        machines=tuple(machines),
        cost=usage.total(rows),
        phases=phases,
        unknown=unknown,
        asked_unix_s=state.found.asked_unix_s if state.found is not None else None,
        usd_per_hour=_per_hour(state, prices),
        deadline_unix_s=state.deadline_unix_s if _running(state) else None,
        notes=(*notes, *_notes(state)),
    )


def deadline(state: State, now_unix_s: float) -> float | None:
    """Return when the last machine that runs ends itself at the latest.

    Each has its deadline from its first boot, and it holds over later ones; what `extend` put off stays so.
    """
    if not state.wish.max_hours:
        return None
    created = [each.created_unix_s for each in state.usage if each.doing != "gone"]
    first = max(created, default=now_unix_s) + state.wish.max_hours * 3600
    return max(first, state.deadline_unix_s or 0.0)


def limits(state: State) -> tuple[str, ...]:
    """Return what ends the machines before the deadline that the nodes' timers have."""
    started = [each.changes[-1].unix_s for each in state.usage if each.doing == "running"]
    if state.wish.provider != "gcp" or not started or not state.wish.max_hours:
        return ()
    ends_s = min(started) + GCP_LIMIT_TIMES * state.wish.max_hours * 3600
    if state.deadline_unix_s is None or state.deadline_unix_s <= ends_s:
        return ()
    text = (
        f"gcp itself removes the first machine at about {clock(ends_s)}, {GCP_LIMIT_TIMES:g} x lab_max_hours "
        "after its start, whatever its timer says: no machine that runs can be given longer"
    )
    return (text,)


def _address(state: State, machine: Resource | None) -> str:
    if machine is None:
        return ""
    if state.wish.ssh_by == "private":
        return machine.private_address
    return machine.public_address or machine.private_address


def _why(state: State, used: Usage | None, doing: usage.Doing) -> str:
    """Return why a machine does not run."""
    billed = ", its disk is billed" if doing == "stopped" else ""
    if doing == "stopped" and state.paused:
        return f"stopped by labctl stop{billed}"
    end_s = used.changes[-1].unix_s if used is not None else None
    limit_s = state.deadline_unix_s
    if end_s is not None and limit_s is not None and end_s >= limit_s - _EARLY_S:
        return f"powered off by its dead-man timer, whose deadline was {clock(limit_s)}{billed}"
    idle = "powered off by its dead-man timer as idle, or " if state.wish.idle_minutes else ""
    spot = "taken back by the cloud, or " if state.wish.spot else ""
    by_hand = "stopped by hand" if doing == "stopped" else "removed by hand"
    return f"{idle}{spot}{by_hand}{billed}"


def _running(state: State) -> bool:
    return any(each.doing == "running" for each in state.usage)


def _per_hour(state: State, prices: Prices) -> float | None:
    total = 0.0
    for each in state.usage:
        running, stopped = prices.of_usage(state.wish, each)
        price = {"running": running, "stopped": stopped}.get(each.doing)
        if each.doing == "gone":
            continue
        if price is None:
            return None
        total += price.usd_per_hour
    return total


def _notes(state: State) -> tuple[str, ...]:
    rest = usage.remaining(state.found) if state.found is not None else []
    if state.forgotten:
        what = counted(rest) or "something"
        return (f"given up by labctl down --force, and {what} may still be billed",)
    others = [each for each in rest if each.billable and each.kind != "machine"]
    if others and state.found is not None and not usage.machines(state.found):
        return (f"no machine is left, but {counted(others)} still billed",)
    return ()
