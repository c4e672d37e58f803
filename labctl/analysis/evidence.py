"""What the runs of the question's experiment measured, as numbers that claims rest on. Pure.

Runs come by label, as `drive/answer.py` made them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from labctl.analysis import stats
from labctl.analysis.explained import Explained
from labctl.analysis.stats import Difference
from labctl.analysis.steps import percentile
from labctl.node import wire
from labctl.runs.events import Event

LISTING = "listing"  # as it stands: n + 1 factors, inputs fed, TensorFlow's default pools
LISTING_FRESH = "listing-fresh"  # the same, join servers started right before
LISTING_TWO = "listing-inter-op-2"
CHAIN = "chain"
RECURSIVE = "recursive"
SQUARING = "squaring"
STAGED = "staged"
SWEEP = {250: "chain-250", 500: "chain-500", 1000: CHAIN, 2000: "chain-2000"}

Verdict = Literal["confirmed", "refuted", "undecided", "needs-gpu", "not-measured"]
By = Literal["question", "answer", "lab"]
Runs = Mapping[str, Sequence[Explained]]


@dataclass(frozen=True, slots=True)
class Number:
    """A measured number.

    Attributes:
        what: What it is.
        value: Median of the runs' medians, or the difference of two such.
        unit: Of value and interval; "" for counts and ratios.
        low: Lower end of the 95 % interval of a difference or ratio, else the 5th percentile; None if there are too
            few samples.
        high: Upper end, or the 95th percentile.
        n: Samples.
        difference: It is a difference or ratio of two sides.
    """

    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    n: int = 1
    difference: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what the experiment says of it.

    Attributes:
        claim: A stable kebab-case id.
        by: Who makes it: the question, its answer, or this lab.
        text: The claim in one sentence.
        verdict: `needs-gpu` where only a GPU can tell.
        why: What decides, one sentence.
        numbers: What was measured.
        facts: What decides without being a number, one line each.
        runs: Ids of the runs that it rests on.
    """

    claim: str
    by: By
    text: str
    verdict: Verdict
    why: str
    numbers: tuple[Number, ...] = ()
    facts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of the question's listing.

    Attributes:
        defect: A stable kebab-case id.
        text: What is wrong, one sentence.
        shown: What in these runs shows it, "" if nothing does.
    """

    defect: str
    text: str
    shown: str


def warm_ms(runs: Sequence[Explained]) -> stats.Side:
    """Return the warm steps of runs, milliseconds."""
    return [[step.duration_ms for step in run.steps if step.kind == "warm"] for run in runs]


def kind_ms(runs: Sequence[Explained], kind: str) -> stats.Side:
    """Return the steps of a kind, milliseconds."""
    return [[step.duration_ms for step in run.steps if step.kind == kind] for run in runs]


def phase_ms(runs: Sequence[Explained], *phases: str) -> stats.Side:
    """Return the sum of a run's phases of the client, one value a run that has all, milliseconds."""
    side = []
    for run in runs:
        found: dict[str, float] = {}
        for event in run.data.events:
            duration_ns = event.number("duration_ns")
            if event.kind == wire.PHASE_END and duration_ns is not None:
                found[event.text("phase")] = duration_ns / 1e6
        side.append(
            [sum(found[each] for each in phases)] if all(p in found for p in phases) else []
        )
    return side


def result_values(runs: Sequence[Explained], key: str, scale: float = 1.0) -> stats.Side:
    """Return a number of the runs' `result` events, multiplied."""
    found = []
    for run in runs:
        event = last(run, wire.RESULT)
        value = None if event is None else event.number(key)
        found.append([] if value is None else [value * scale])
    return found


def product_ms(runs: Sequence[Explained], task: int | None = None) -> stats.Side:
    """Return the time of one product in each traced step, milliseconds, of one task or of all."""
    side = []
    for run in runs:
        flop = 2 * (run.data.record.parameters.size or 0) ** 3
        side.append(
            [
                flop / 1e6 / each.gflops
                for trace in run.traces
                for each in trace.tasks
                if each.gflops and task in {None, each.task}
            ]
        )
    return side


def transfer_ms(runs: Sequence[Explained]) -> stats.Side:
    """Return the wire time of each matrix that travelled in the traced steps, milliseconds."""
    side = []
    for run in runs:
        half = 2 * (run.data.record.parameters.size or 0) ** 2
        side.append(
            [
                edge.wire_s * 1e3
                for trace in run.traces
                for edge in trace.edges
                if not edge.clamped and (edge.size_bytes or 0) >= half and edge.wire_s > 0
            ]
        )
    return side


def last(run: Explained, kind: str) -> Event | None:
    """Return a run's last event of a kind."""
    return next((each for each in reversed(run.data.events) if each.kind == kind), None)


def measured(what: str, unit: str, side: stats.Side) -> Number | None:
    """Return a number of one side, None without a value."""
    found = stats.summarize(side)
    if found is None:
        return None
    if found.values < 2:
        return Number(what, found.median, unit, n=found.values)
    return Number(what, found.median, unit, found.p5, found.p95, found.values)


def changed(what: str, unit: str, found: Difference | None) -> Number | None:
    """Return a difference as a number."""
    if found is None:
        return None
    n = found.a.values + found.b.values
    return Number(what, found.change, unit, found.low, found.high, n, difference=True)


def grown(what: str, a: stats.Side, b: stats.Side) -> Number | None:
    """Return side B / side A as a number: the difference of logarithms, so that both ends stay above 0."""
    found = stats.difference(_logs(a), _logs(b))
    if found is None:
        return None
    low, high = (None if each is None else math.exp(each) for each in (found.low, found.high))
    n = found.a.values + found.b.values
    return Number(what, math.exp(found.change), "x", low, high, n, difference=True)


def _logs(side: stats.Side) -> stats.Side:
    return [[math.log(each) for each in run if each > 0] for run in side]


def ids(*sides: Sequence[Explained]) -> tuple[str, ...]:
    """Return the ids of runs, each once, in order of time."""
    return tuple(sorted({run.data.record.run_id for side in sides for run in side}))


def kept(*numbers: Number | None) -> tuple[Number, ...]:
    """Return the numbers that could be had."""
    return tuple(each for each in numbers if each is not None)


def median(side: stats.Side) -> float | None:
    """Return the median of a side, None without a value."""
    values = [percentile(run, 50) for run in side if run]
    return percentile(values, 50) if values else None
