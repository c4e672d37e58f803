"""How busy processes and nodes were: rates between two usage events, and nothing where a figure is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from labctl.analysis.clock import Clocks
from labctl.node import wire
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.views.report.numbers import figure

_MOST_SAMPLES = 300
_ABSURD = 1e15  # of any unit: a figure that no machine reaches is none
_GAP_S = 0.05  # between two samples: a longer one stays empty


@dataclass(frozen=True, slots=True)
class Sample:
    """A mean over an interval.

    Attributes:
        start_s: Its begin, seconds after the run's origin on labctl's clock.
        end_s: Its end.
        value: In the series' unit.
    """

    start_s: float
    end_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of one process over the run.

    Attributes:
        node: Node name.
        who: `client`, `join server` or a GPU.
        metric: Key of `metrics.METRICS`.
        samples: In order; gaps are gaps.
        top: Value at the top of its plot.
        note: What is said of it instead of mean and highest value.
    """

    node: str
    who: str
    metric: str
    samples: tuple[Sample, ...]
    top: float
    note: str = ""

    def path(self, wall_s: float | None) -> str:
        """Return the area below the samples as the data of an SVG path in a box of 1000 by 100.

        Args:
            wall_s: What the box is wide, seconds; None for the end of the last sample.
        """
        wide = 1000 / (wall_s or self.samples[-1].end_s)
        parts: list[str] = []
        last_s: float | None = None
        for each in self.samples:
            left, right = each.start_s * wide, each.end_s * wide
            top = 100 - 100 * min(1.0, max(0.0, each.value) / self.top)
            if last_s is None or each.start_s - last_s > _GAP_S:
                parts.append(f"{'V100' if parts else ''}M{left:.1f} 100")
            parts.append(f"V{top:.1f}H{right:.1f}")
            last_s = each.end_s
        return "".join(parts) + "V100Z"

    @property
    def mean(self) -> float:
        """Mean over the time that the samples cover."""
        total_s = sum(each.end_s - each.start_s for each in self.samples)
        return sum(each.value * (each.end_s - each.start_s) for each in self.samples) / total_s

    @property
    def peak(self) -> float:
        """The highest sample."""
        return max(each.value for each in self.samples)

    @property
    def summary(self) -> str:
        """Mean and highest value, in words."""
        return self.note or f"mean {figure(self.mean)}, highest {figure(self.peak)}"


def usage_series(data: RunData) -> list[Series]:
    """Return the series of the client and of each join server, those with a figure only."""
    client = [e for e in data.events if e.kind == wire.USAGE]
    sources = [(data.record.remote.node, "client", client)]
    sources += [
        (node, "join server", [e for e in events if e.kind == wire.USAGE])
        for node, events in sorted(data.server_events.items())
    ]
    clocks = Clocks.of(data.record)
    found = []
    for node, who, events in sources:
        for metric, rate in _RATES.items():
            samples = coarse(_samples(events, node, clocks, data.record.wall_s, rate))
            if samples:
                top = max(_LEAST_TOP.get(metric, 0.0), *(each.value for each in samples))
                found.append(Series(node, who, metric, samples, top or 1.0))
    return found


def _samples(
    events: Sequence[Event],
    node: str,
    clocks: Clocks,
    wall_s: float | None,
    rate: Callable[[Event, Event], float | None],
) -> Iterable[Sample]:
    """Yield a rate of each two events of one process that follow each other within the run."""
    last_s = wall_s or float("inf")
    for before, after in pairwise(events):
        took_s = (after.mono_ns - before.mono_ns) / 1e9
        if took_s <= 0 or before.task != after.task:
            continue
        end_s = clocks.since_origin_s(node, after.t_s)
        value = rate(before, after)
        if value is not None and value < _ABSURD and end_s > 0 and end_s - took_s < last_s:
            yield Sample(max(0.0, end_s - took_s), min(end_s, last_s), value)


def coarse(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return samples, neighbours averaged by time where there are more than a screen shows."""
    listed = list(samples)
    share = -(-len(listed) // _MOST_SAMPLES)
    if share <= 1:
        return tuple(listed)
    merged = []
    for at in range(0, len(listed), share):
        group = listed[at : at + share]
        total_s = sum(each.end_s - each.start_s for each in group)
        mean = sum(each.value * (each.end_s - each.start_s) for each in group) / total_s
        merged.append(Sample(group[0].start_s, group[-1].end_s, mean))
    return tuple(merged)


def _grown(key: str, before: Event, after: Event) -> float | None:
    """Return by how much a counter grew; None where it is missing or went back (another process)."""
    low, high = before.number(key), after.number(key)
    return None if low is None or high is None or high < low else high - low


def _per_second(key: str, scale: float) -> Callable[[Event, Event], float | None]:
    def rate(before: Event, after: Event) -> float | None:
        grown = _grown(key, before, after)
        took_s = (after.mono_ns - before.mono_ns) / 1e9
        return None if grown is None else grown * scale / took_s

    return rate


def _of_node(key: str) -> Callable[[Event, Event], float | None]:
    def rate(before: Event, after: Event) -> float | None:
        parts = {each: _grown(each, before, after) for each in _NODE_TIMES}
        known = [each for each in parts.values() if each is not None]
        part = parts[key]
        return None if part is None or not sum(known) else 100 * part / sum(known)

    return rate


def _resident(_before: Event, after: Event) -> float | None:
    value = after.number("rss_bytes")
    return None if value is None else value / 1e6


_NODE_TIMES = ("node_busy_ns", "node_idle_ns", "node_steal_ns")
_RATES: dict[str, Callable[[Event, Event], float | None]] = {
    "cpu": _per_second("cpu_ns", 1e-7),
    "cpu_wait": _per_second("wait_ns", 1e-7),
    "node_busy": _of_node("node_busy_ns"),
    "steal": _of_node("node_steal_ns"),
    "rss": _resident,
    "received": _per_second("rx_bytes", 1e-6),
    "sent": _per_second("tx_bytes", 1e-6),
}
_LEAST_TOP = {
    "cpu": 100.0,
    "cpu_wait": 100.0,
    "node_busy": 100.0,
    "steal": 100.0,
    "received": 1.0,
    "sent": 1.0,
}
