"""Times of the steps: the cold one and the warm ones. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.node import wire
from labctl.runs.events import Event


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        index: 0 first.
        kind: `cold` for the process's first, `warm` for later ones; the others of `labctl.node.wire.STEP_KINDS` are
            extra steps, which no statistics count.
        start_s: Unix time of its start on the client's clock, seconds.
        duration_ms: Milliseconds.
    """

    index: int
    kind: str
    start_s: float
    duration_ms: float


@dataclass(frozen=True, slots=True)
class StepStats:
    """What the steps come to; None where there is no such step.

    Attributes:
        cold_ms: The first step, milliseconds.
        warm_median_ms: Median of the warm steps.
        warm_p95_ms: Their 95th percentile, linear between the two nearest ranks.
        n: Number of warm steps.
        warm_p5_ms: Their 5th percentile.
        warm_min_ms: The shortest.
        warm_max_ms: The longest.
    """

    cold_ms: float | None
    warm_median_ms: float | None
    warm_p95_ms: float | None
    n: int
    warm_p5_ms: float | None = None
    warm_min_ms: float | None = None
    warm_max_ms: float | None = None


def steps_of(events: Sequence[Event]) -> list[Step]:
    """Return the steps that the client reported, in order."""
    steps = []
    for event in events:
        duration_ns = event.number("duration_ns")
        index = event.whole("index")
        if event.kind == wire.STEP and duration_ns is not None and index is not None:
            if duration_ns < 0:
                continue
            start_s = event.t_s - duration_ns / 1e9
            steps.append(Step(index, event.text("kind"), start_s, duration_ns / 1e6))
    return steps


def step_stats(steps: Sequence[Step]) -> StepStats:
    """Return the statistics of steps; extra ones are left out."""
    cold = [step.duration_ms for step in steps if step.kind == "cold"]
    warm = sorted(step.duration_ms for step in steps if step.kind == "warm")
    return StepStats(
        cold_ms=cold[0] if cold else None,
        warm_median_ms=percentile(warm, 50) if warm else None,
        warm_p95_ms=percentile(warm, 95) if warm else None,
        n=len(warm),
        warm_p5_ms=percentile(warm, 5) if warm else None,
        warm_min_ms=warm[0] if warm else None,
        warm_max_ms=warm[-1] if warm else None,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between the two nearest ranks (numpy's default).

    Args:
        values: At least one, in any order.
        percent: 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
