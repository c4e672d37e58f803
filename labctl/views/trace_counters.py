"""Counters of a trace: what processes, nodes and GPUs used. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from labctl.analysis.gpus import GpuUse, read
from labctl.node import wire
from labctl.runs.events import Event

NODE = "node"

_Figure = Callable[[Event, Event], float | None]

_MOST_RATE = 1e6  # of a percentage or of MB/s: beyond it the counter itself is damaged


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that a counter has from a moment on.

    Attributes:
        whose: `client`, `join-server task:1`, `node` or a GPU.
        figure: What is counted, with its unit.
        unix_s: When, Unix time on the node's clock.
        value: In that unit.
    """

    whose: str
    figure: str
    unix_s: float
    value: float


def readings(events: Sequence[Event], process: str, *, node: bool) -> Iterator[Reading]:
    """Yield the counters of one process, by time within each.

    A rate stands from the reading at its begin to that at its end. A client that has said `bye` uses nothing more;
    a server that says nothing works less than is worth telling.

    Args:
        events: The process's, in order.
        process: What the counters of the process itself are called by.
        node: Yield those of its node, too.
    """
    usage = [event for event in events if event.kind == wire.USAGE]
    ended = events[-1].t_s if events and events[-1].kind == wire.BYE else None
    figures: list[tuple[str, str, _Figure]] = [
        (process, "CPU %", _share("cpu_ns")),
        (process, "waits for a CPU %", _share("wait_ns")),
    ]
    if node:
        figures += [
            (NODE, "CPU busy %", _part("node_busy_ns")),
            (NODE, "CPU stolen %", _part("node_steal_ns")),
            (NODE, "receives MB/s", _rate("rx_bytes")),
            (NODE, "sends MB/s", _rate("tx_bytes")),
        ]
    for whose, name, figure in figures:
        rates = ((one.t_s, figure(one, two)) for one, two in pairwise(usage))
        yield from _told(whose, name, rates, ended if whose == process else None)
    yield from _told(process, "memory MB", ((one.t_s, _memory_mb(one)) for one in usage), ended)
    if node:
        yield from _of_gpus(events, ended)


def _of_gpus(events: Sequence[Event], ended: float | None) -> Iterator[Reading]:
    """Yield what NVML said of each GPU of the process's node; a client that has ended reads no more."""
    told = read("", events)
    uses = () if told is None else told.use
    for index in sorted({use.index for use in uses}):
        own = [use for use in uses if use.index == index]
        for name, figure in _GPU_FIGURES.items():
            last: Reading | None = None
            for last in _told(f"GPU {index}", name, ((u.unix_s, figure(u)) for u in own), None):
                yield last
            if last is not None and ended is not None and ended > last.unix_s:
                yield Reading(last.whose, name, ended, last.value)


def _told(
    whose: str, name: str, values: Iterable[tuple[float, float | None]], ended: float | None
) -> Iterator[Reading]:
    """Yield the values that are known, each later than the one before; 0 once the process has ended."""
    at_s = None
    for unix_s, value in values:
        if value is not None and (at_s is None or unix_s > at_s):
            at_s = unix_s
            yield Reading(whose, name, at_s, round(value, 3))
    if at_s is not None and ended is not None and ended > at_s:
        yield Reading(whose, name, ended, 0.0)


def _memory_mb(event: Event) -> float | None:
    rss_bytes = event.whole("rss_bytes")
    return rss_bytes / 1e6 if rss_bytes is not None and 0 <= rss_bytes < 2**63 else None


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


_GPU_FIGURES: dict[str, Callable[[GpuUse], float | None]] = {
    "busy %": lambda use: use.utilisation_percent,
    "clock MHz": lambda use: use.sm_clock_mhz,
    "memory clock MHz": lambda use: use.memory_clock_mhz,
    "memory MB": lambda use: _scaled(use.memory_used_bytes, 1e-6),
    "power W": lambda use: use.power_w,
    "temperature °C": lambda use: use.temperature_c,
    "held down": lambda use: None if use.throttle is None else float(bool(use.held_down)),
}


def _share(field: str) -> _Figure:
    """Return how to tell a time as percent of the time that passed: 100 is one CPU, or one thread that waits."""

    def figure(earlier: Event, later: Event) -> float | None:
        return _sound(_grown(earlier, later, field), later.mono_ns - earlier.mono_ns, 100.0)

    return figure


def _rate(field: str) -> _Figure:
    """Return how to tell bytes as 10^6 bytes a second."""

    def figure(earlier: Event, later: Event) -> float | None:
        return _sound(_grown(earlier, later, field), later.mono_ns - earlier.mono_ns, 1e3)

    return figure


def _part(field: str) -> _Figure:
    """Return how to tell a CPU time of the node as percent of what its CPUs had."""

    def figure(earlier: Event, later: Event) -> float | None:
        fields = ("node_busy_ns", "node_idle_ns", "node_steal_ns")
        parts = [_grown(earlier, later, each) for each in fields]
        if any(part is None for part in parts):
            return None
        return _sound(_grown(earlier, later, field), sum(part or 0 for part in parts), 100.0)

    return figure


def _grown(earlier: Event, later: Event, field: str) -> int | None:
    """Return by how much a counter grew; None where it was not read, or is of another process."""
    before, after = earlier.whole(field), later.whole(field)
    if before is None or after is None or later.mono_ns <= earlier.mono_ns:
        return None
    return after - before if after >= before else None


def _sound(amount: int | None, of: int, unit: float) -> float | None:
    if amount is None or of <= 0 or abs(amount) > 2**63 or of > 2**63:
        return None
    value = unit * amount / of
    return value if value <= _MOST_RATE else None
