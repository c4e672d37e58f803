"""What machines, GPUs, disks and addresses cost, from a table in which every figure has its source and date."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labctl.providers.cloud.catalogue import cloud
from labctl.providers.cloud.model import Price
from labctl.providers.cloud.usage import Usage
from labctl.providers.cloud.wish import TaskWish, Wish

TABLE = Path(__file__).with_name("prices.csv")
HOURS_PER_MONTH = 730.0  # both clouds' own convention for prices by the month
UNITS = {"machine": "hour", "gpu": "hour", "disk": "GB-month", "address": "hour"}


@dataclass(frozen=True, slots=True)
class Row:
    """One price.

    Attributes:
        provider: `aws` or `gcp`.
        region: Where it holds.
        kind: `machine` (with the GPUs that it has of itself), `gpu` (one that is attached), `disk` or `address`.
        name: Machine type, GPU type, or "" of disk and address.
        usd: Per hour, of a disk per GB and month.
        source: Where the figure was read.
        as_of: Day of which it is, ISO.
    """

    provider: str
    region: str
    kind: str
    name: str
    usd: float
    source: str
    as_of: str


class Prices:
    """The table.

    Args:
        rows: Its rows.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {(row.provider, row.region, row.kind, row.name): row for row in rows}

    def running(self, wish: Wish, task: TaskWish, *, public: bool) -> Price | None:
        """Return what a machine costs while it runs, with disk and address; None if a part is unknown."""
        machine, gpu = task.machine_type or "", task.gpu_type or ""
        parts = [(self._row(wish, "machine", machine), 1.0)]
        if task.gpu_count and _is_attached(wish.provider, machine):
            parts.append((self._row(wish, "gpu", gpu), float(task.gpu_count)))
        parts.append(self._disk(wish, task))
        if public:
            parts.append((self._row(wish, "address", ""), 1.0))
        return _sum(parts)

    def stopped(self, wish: Wish, task: TaskWish) -> Price | None:
        """Return what a stopped machine costs: its disk."""
        return _sum([self._disk(wish, task)])

    def of_usage(self, wish: Wish, usage: Usage) -> tuple[Price | None, Price | None]:
        """Return what a machine that was used costs while it runs, and while it is stopped."""
        task = TaskWish(
            machine_type=usage.machine_type,
            gpu_type=usage.gpu_type,
            gpu_count=usage.gpu_count,
            disk_gb=usage.disk_gb,
        )
        return self.running(wish, task, public=usage.public), self.stopped(wish, task)

    def _disk(self, wish: Wish, task: TaskWish) -> tuple[Row | None, float]:
        return self._row(wish, "disk", ""), (task.disk_gb or 0) / HOURS_PER_MONTH

    def _row(self, wish: Wish, kind: str, name: str) -> Row | None:
        return self._rows.get((wish.provider, wish.region, kind, name))


@cache
def table() -> Prices:
    """Return labctl's own table."""
    return Prices(read_rows(TABLE))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table; a line that begins with `#` is a remark."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        return [
            Row(
                each["provider"],
                each["region"],
                each["kind"],
                each["name"],
                float(each["usd"]),
                each["source"],
                each["as_of"],
            )
            for each in csv.DictReader(lines)
        ]


def _is_attached(provider: str, machine: str) -> bool:
    prefix = cloud(provider).attaches
    return bool(prefix) and machine.startswith(prefix)


def _sum(parts: list[tuple[Row | None, float]]) -> Price | None:
    usd, rows = 0.0, []
    for row, times in parts:
        if row is None:
            return None
        usd += row.usd * times
        rows.append(row)
    sources = "; ".join(dict.fromkeys(row.source for row in rows))
    return Price(usd, sources, min(row.as_of for row in rows))
