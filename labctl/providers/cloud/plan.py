"""What `up` is about to do in a cloud and what it costs, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labctl.providers.cloud.model import PlannedMachine, Price, Validated
from labctl.providers.cloud.prices import Prices
from labctl.providers.cloud.wish import Wish
from labctl.providers.identity import node_name


@dataclass(frozen=True, slots=True)
class CloudPlan:
    """A lab in a cloud, before anything is made of it.

    Attributes:
        wish: What it shall be.
        account: Account or project that pays, "" if nothing is to be made.
        machines: All of its machines, in task order.
        new: Nodes that would be made.
        starting: Nodes that are stopped and would be started.
        usd_per_hour: What all machines cost an hour together while they run; None if a price is unknown.
        stopped_usd_per_hour: What they cost powered off, where that does not remove them; None if unknown.
        is_known: The lab has been begun before.
        changes: Other things that differ from the lab as it stands, each a short phrase.
        unchecked: What could not be looked at.
    """

    wish: Wish
    account: str
    machines: tuple[PlannedMachine, ...]
    new: tuple[str, ...]
    starting: tuple[str, ...]
    usd_per_hour: float | None
    stopped_usd_per_hour: float | None
    is_known: bool
    changes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def costs(self) -> bool:
        """Whether it makes or starts something that is billed, so that the user is asked."""
        return bool(self.new or self.starting)

    @property
    def most_usd(self) -> float | None:
        """What the lab costs at most until the dead-man timer ends it; None without a timer or a price."""
        if self.usd_per_hour is None or not self.wish.max_hours:
            return None
        return self.usd_per_hour * self.wish.max_hours

    @property
    def unpriced(self) -> list[str]:
        """Machine types without a price."""
        return sorted({each.machine_type for each in self.machines if each.price is None})


def make_plan(
    wish: Wish,
    validated: Validated | None,
    *,
    new: Sequence[str],
    starting: Sequence[str],
    is_known: bool,
    changes: Sequence[str],
    prices: Prices,
) -> CloudPlan:
    """Return the plan of a lab.

    Args:
        wish: What it shall be.
        validated: What the cloud says of it, None if it was not asked.
        new: Nodes that would be made.
        starting: Nodes that would be started.
        is_known: The lab has been begun before.
        changes: Other differences.
        prices: The table.
    """
    resolved = {row[0]: row for row in validated.machines} if validated is not None else {}
    machines = []
    stopped: list[Price | None] = []
    for index in range(wish.nodes):
        node, task = node_name(index), wish.task(index)
        row = resolved.get(node)
        machines.append(
            PlannedMachine(
                node=node,
                task=index,
                machine_type=task.machine_type or "",
                gpu=f"{task.gpu_count} x {task.gpu_type}" if task.gpu_count else "",
                disk_gb=task.disk_gb or 0,
                image=row[2] if row else task.image or "",
                zone=row[3] if row else wish.zone,
                spot=bool(task.spot),
                price=prices.running(wish, task, public=wish.ssh_by == "public"),
            )
        )
        stopped.append(prices.stopped(wish, task))
    return CloudPlan(
        wish=wish,
        account=validated.account if validated is not None else "",
        machines=tuple(machines),
        new=tuple(new),
        starting=tuple(starting),
        usd_per_hour=_total([each.price for each in machines]),
        stopped_usd_per_hour=_total(stopped) if wish.provider == "gcp" else 0.0,
        is_known=is_known,
        changes=tuple(changes),
        unchecked=validated.unchecked if validated is not None else (),
    )


def plan_lines(plan: CloudPlan) -> list[str]:
    """Return a plan as text, one screen."""
    wish = plan.wish
    paid = f" · paid by {plan.account}" if plan.account else ""
    lines = [f"lab {wish.lab} · {wish.provider} {wish.region} · owner {wish.owner}{paid}"]
    rows = [
        (
            each.node,
            "make" if each.node in plan.new else "start" if each.node in plan.starting else "there",
            each.machine_type + (" spot" if each.spot else ""),
            each.gpu or "no GPU",
            f"{each.disk_gb} GB",
            each.zone,
            "price unknown" if each.price is None else f"{each.price.usd_per_hour:.3f} USD/h",
            each.image,
        )
        for each in plan.machines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [f"  price      {_price_text(plan)}"]
    lines += [f"  source     {each}" for each in _sources(plan)]
    lines += [f"  timer      {_timer_text(plan)}"]
    network = (
        f"network {wish.network}" if wish.network else f"a network of its own, {wish.subnet_cidr}"
    )
    lines += [
        f"  network    {network}; SSH to {wish.ssh_by} addresses, from {', '.join(wish.admin_cidrs)}"
    ]
    lines += [f"  changes    {each}" for each in plan.changes]
    lines += [f"  unchecked  {each}" for each in plan.unchecked]
    return lines


def plan_dict(plan: CloudPlan) -> dict[str, Any]:
    """Return the object of `labctl up --dry-run --json`."""
    wish = plan.wish
    return {
        "lab": wish.lab,
        "provider": wish.provider,
        "account": plan.account,
        "project": wish.project,
        "region": wish.region,
        "owner": wish.owner,
        "network": wish.network,
        "subnet_cidr": wish.subnet_cidr,
        "ssh_by": wish.ssh_by,
        "admin_cidrs": list(wish.admin_cidrs),
        "machines": [
            {
                "node": each.node,
                "task": each.task,
                "machine_type": each.machine_type,
                "gpu": each.gpu,
                "disk_gb": each.disk_gb,
                "image": each.image,
                "zone": each.zone,
                "spot": each.spot,
                "usd_per_hour": None if each.price is None else each.price.usd_per_hour,
                "price_source": None if each.price is None else each.price.source,
                "price_as_of": None if each.price is None else each.price.as_of,
            }
            for each in plan.machines
        ],
        "new": list(plan.new),
        "starting": list(plan.starting),
        "usd_per_hour": plan.usd_per_hour,
        "max_hours": wish.max_hours,
        "idle_minutes": wish.idle_minutes,
        "most_usd": plan.most_usd,
        "changes": list(plan.changes),
        "unchecked": list(plan.unchecked),
    }


def _price_text(plan: CloudPlan) -> str:
    if plan.usd_per_hour is None:
        return (
            f"unknown: labctl's table has none for {', '.join(plan.unpriced)} in {plan.wish.region}"
        )
    spot = "; spot costs less" if any(each.spot for each in plan.machines) else ""
    return f"{plan.usd_per_hour:.2f} USD/h for all, on demand, disks in it, without tax and traffic{spot}"


def _sources(plan: CloudPlan) -> list[str]:
    found = {
        f"{each.price.source}, of {each.price.as_of}": None
        for each in plan.machines
        if each.price is not None
    }
    return list(found)


def _timer_text(plan: CloudPlan) -> str:
    wish = plan.wish
    limits = [f"{wish.max_hours:g} h"] if wish.max_hours else []
    limits += [f"{wish.idle_minutes:g} min without a run"] if wish.idle_minutes else []
    if not limits:
        return "none: nothing ends these machines but labctl down"
    text = f"each node powers itself off after {' or '.join(limits)}"
    if plan.most_usd is not None:
        text += f": at most {plan.most_usd:.2f} USD until then"
    elif wish.max_hours:
        text += "; what that costs at most is unknown"
    if wish.provider == "gcp":
        rest = plan.stopped_usd_per_hour
        text += ", then its disk is billed" + (f" at {rest:.3f} USD/h for all" if rest else "")
    return text


def _total(prices: Sequence[Price | None]) -> float | None:
    known = [each.usd_per_hour for each in prices if each is not None]
    return sum(known) if len(known) == len(prices) else None
