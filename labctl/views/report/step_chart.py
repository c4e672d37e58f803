"""The steps: every one of them in the table, aggregated to what a screen can show in the chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.explained import Explained
from labctl.analysis.steps import Step, StepStats, percentile
from labctl.views.report.lanes import ticks

MOST_COLUMNS = 480
PAGE_ROWS = 25
_HEIGHT = 100.0  # of the plot, percent
_CUT = 2.5  # times the highest warm step: what the cold one may take before it is cut


@dataclass(frozen=True, slots=True)
class Column:
    """Warm steps that share one place in the chart; one step if there is room for each.

    Attributes:
        left: Place of its middle, percent.
        low: Height of its shortest step, percent from the top.
        high: Height of its longest.
        middle: Height of its median.
        text: What it says on hover.
        alone: It is one step.
    """

    left: float
    low: float
    high: float
    middle: float
    text: str
    alone: bool


@dataclass(frozen=True, slots=True)
class StepChart:
    """Steps by their number.

    Attributes:
        columns: Warm steps.
        cold_top: Height of the cold step, percent from the top; None without one.
        cold_text: What it says on hover.
        cold_left: Its place, percent.
        cut: The cold step is higher than the chart and drawn at its edge.
        median_top: Height of the median's line, None without warm steps.
        p95_top: Height of the 95th percentile's line.
        rows: Ticks of the durations: height in percent from the top, label.
        places: Ticks of the numbers: place in percent, label.
        aggregated: Steps that share a column, at most.
    """

    columns: tuple[Column, ...]
    cold_top: float | None
    cold_text: str
    cold_left: float
    cut: bool
    median_top: float | None
    p95_top: float | None
    rows: tuple[tuple[float, str], ...]
    places: tuple[tuple[float, str], ...]
    aggregated: int


@dataclass(frozen=True, slots=True)
class KindRow:
    """Steps of one kind.

    Attributes:
        kind: Its name.
        n: How many.
        median_ms: Milliseconds.
        p95_ms: Milliseconds.
        low_ms: The shortest.
        high_ms: The longest.
    """

    kind: str
    n: int
    median_ms: float
    p95_ms: float
    low_ms: float
    high_ms: float


def step_chart(steps: Sequence[Step], stats: StepStats) -> StepChart | None:
    """Return the chart of cold and warm steps, None without any; extra steps are not in it."""
    warm = [step for step in steps if step.kind == "warm"]
    cold = next((step for step in steps if step.kind == "cold"), None)
    drawn = [*([cold] if cold else []), *warm]
    if not drawn:
        return None
    top_ms = max((step.duration_ms for step in warm), default=0.0)
    cut = bool(warm) and cold is not None and cold.duration_ms > _CUT * top_ms
    if cold is not None and not cut:
        top_ms = max(top_ms, cold.duration_ms)
    top_ms = 1.12 * top_ms or 1.0
    first, last = drawn[0].index, max(step.index for step in drawn)
    span = max(1, last - first)

    def left(index: float) -> float:
        return 1.5 + 97 * (index - first) / span

    def top(duration_ms: float) -> float:
        return _HEIGHT * (1 - duration_ms / top_ms)

    share = -(-len(warm) // MOST_COLUMNS)
    columns = []
    for at in range(0, len(warm), share or 1):
        group = warm[at : at + share]
        times = [step.duration_ms for step in group]
        ends = group[0].index, group[-1].index
        if len(group) == 1:
            text = f"step {ends[0]}: {times[0]:.3f} ms"
        else:
            text = (
                f"steps {ends[0]} to {ends[1]}: median {percentile(times, 50):.3f} ms, "
                f"{min(times):.3f} to {max(times):.3f} ms"
            )
        columns.append(
            Column(
                left=left(sum(ends) / 2),
                low=top(min(times)),
                high=top(max(times)),
                middle=top(percentile(times, 50)),
                text=text,
                alone=len(group) == 1,
            )
        )
    return StepChart(
        columns=tuple(columns),
        cold_top=None if cold is None else 0.0 if cut else top(cold.duration_ms),
        cold_text="" if cold is None else f"cold step: {cold.duration_ms:.3f} ms",
        cold_left=left(first),
        cut=cut,
        median_top=None if stats.warm_median_ms is None else top(stats.warm_median_ms),
        p95_top=None if stats.warm_p95_ms is None else top(stats.warm_p95_ms),
        rows=tuple((top(value), text) for value, text in ticks(0.0, top_ms, 6)),
        places=tuple(
            (left(value), text)
            for value, text in ticks(float(first), float(max(last, first + 1)), 8)
            if value == int(value)
        ),
        aggregated=share,
    )


def kind_rows(steps: Sequence[Step]) -> list[KindRow]:
    """Return what the steps of each kind come to, in the order in which the kinds occur."""
    times: dict[str, list[float]] = {}
    for step in steps:
        times.setdefault(step.kind, []).append(step.duration_ms)
    return [
        KindRow(
            kind.replace("_", " "),
            len(each),
            percentile(each, 50),
            percentile(each, 95),
            min(each),
            max(each),
        )
        for kind, each in times.items()
    ]


def step_rows(explained: Explained) -> list[tuple[int, str, float, float]]:
    """Return number, kind, start (seconds after the first step's) and duration (ms) of each step."""
    steps = explained.steps
    if not steps:
        return []
    zero_s = steps[0].start_s
    return [
        (step.index, step.kind, round(step.start_s - zero_s, 6), round(step.duration_ms, 6))
        for step in steps
    ]
