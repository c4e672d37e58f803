"""What a lab's runs say of its speed: figures with their spread, from which `predict` foresees other runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labctl.analysis.steps import percentile
from labctl.node import wire
from labctl.runs.baseline import Baseline
from labctl.runs.record import Parameters, RunRecord

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

HISTORY_RUNS = 60
_MANY = 10
PHASE_STARTUP = "startup"
# What a command does before its run; runs of a batch share one connection and have none of it.
_COMMAND = frozenset({PHASE_STARTUP, "inventory", "connect"})
# Phases whose length depends on the work; all others are the price of any run.
_VARIABLE = frozenset(
    {
        wire.PHASE_INPUTS,
        wire.PHASE_STAGE,
        wire.PHASE_FIRST_STEP,
        wire.PHASE_WARM_STEPS,
        wire.PHASE_TRACED_STEP,
        wire.PHASE_PROBES,
        wire.PHASE_VERIFY,
    }
)


@dataclass(frozen=True, slots=True)
class Range:
    """A value with the bounds that its samples span; all of one unit, none negative.

    Attributes:
        value: The median.
        low: Lower bound.
        high: Upper bound.
    """

    value: float
    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.value + other.value, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Range:
        """Return it multiplied by a factor of 0 or more."""
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def less(self, other: Range) -> Range:
        """Return the difference, cut at 0."""
        pairs = ((self.value, other.value), (self.low, other.high), (self.high, other.low))
        return Range(*(max(0.0, a - b) for a, b in pairs))


NOTHING = Range(0.0, 0.0, 0.0)


def largest(ranges: Iterable[Range]) -> Range:
    """Return the range of the maximum; 0 of none."""
    found = list(ranges) or [NOTHING]
    return Range(
        max(each.value for each in found),
        max(each.low for each in found),
        max(each.high for each in found),
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured constant.

    Attributes:
        name: What it is, e.g. `products on tf0`.
        unit: Of `range`, e.g. `GFLOP/s`.
        range: Median of the samples; bounds are the extremes, of ten or more samples the 5th and 95th percentile.
        n: Number of samples.
        source: Where they come from.
    """

    name: str
    unit: str
    range: Range
    n: int
    source: str

    def time_of(self, amount: float) -> Range:
        """Return the time of an amount at this rate: amount / rate."""
        rate = self.range
        return Range(amount / rate.value, amount / rate.high, amount / rate.low)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What one run measured, as far as predictions need it. Times in seconds, rates per second.

    Attributes:
        run_id: Of the run.
        at_unix_s: Its start on labctl's clock.
        parameters: What was asked.
        tasks: Matrices: one a node, whatever the placement.
        machines: Name, CPUs and TensorFlow's version of each node: figures of other machines say nothing.
        warm_s: Median warm step, None without one.
        cold_s: First step.
        wall_s: The whole run.
        null_s: Median of the steps that compute nothing, None if there were none.
        no_fetch_s: Median of the steps whose result stays where it is.
        tracing_ratio: Traced step / warm step.
        gflops: By task: one sample a traced step.
        edges: Bytes and wire time of each tensor that travelled, by source and target task.
        copies: Rate in MB/s of each large tensor between memory and GPU, by task and way (`h2d`, `d2h`).
        command_s: Start of labctl, inventory and connection; None in a run of a batch.
        fixed_s: Wall time without that and without the phases that depend on the work.
        inputs_s: Making the inputs.
        stage_s: Bringing them to their tasks, None if they were not staged.
        verify_s: Checking the result.
        checked_by: How.
        baseline: What machines and network can do by themselves.
    """

    run_id: str
    at_unix_s: float
    parameters: Parameters
    tasks: int
    machines: tuple[tuple[str, int | None, str], ...]
    warm_s: float | None
    cold_s: float | None
    wall_s: float | None
    null_s: float | None = None
    no_fetch_s: float | None = None
    tracing_ratio: float | None = None
    gflops: dict[int, tuple[float, ...]] = field(default_factory=dict)
    edges: dict[tuple[int, int], tuple[tuple[int, float], ...]] = field(default_factory=dict)
    copies: dict[tuple[int, str], tuple[float, ...]] = field(default_factory=dict)
    command_s: float | None = None
    fixed_s: float | None = None
    inputs_s: float | None = None
    stage_s: float | None = None
    verify_s: float | None = None
    checked_by: str = ""
    baseline: Baseline | None = None

    @property
    def size(self) -> int:
        """L, 0 for a script."""
        return self.parameters.size or 0

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        return 4 * self.size**2


def facts_of(explained: Explained) -> RunFacts | None:
    """Return what a run says; None for one that did not end ok or computed nothing of labctl's own."""
    record = explained.data.record
    parameters = record.parameters
    if record.outcome != "ok" or parameters.experiment != "matpow" or not record.nodes:
        return None
    if (parameters.size or 0) < 1 or (parameters.power or 0) < 1:
        return None
    rows: dict[str, float] = {}
    for row in explained.ledger.rows:
        rows[row.phase] = rows.get(row.phase, 0.0) + row.duration_s
    wall_s = record.wall_s
    result = next((each for each in explained.data.events if each.kind == wire.RESULT), None)
    return RunFacts(
        run_id=record.run_id,
        at_unix_s=record.origin.unix_s,
        parameters=parameters,
        tasks=len(record.nodes),
        machines=machines_of(record),
        warm_s=_seconds(explained.stats.warm_median_ms),
        cold_s=_seconds(explained.stats.cold_ms),
        wall_s=wall_s,
        null_s=_median_of_kind(explained, "null"),
        no_fetch_s=_median_of_kind(explained, "no_fetch"),
        tracing_ratio=None if explained.tracing is None else explained.tracing.ratio,
        gflops=_gflops(explained),
        edges=_edges(explained),
        copies=_copies(explained, 4 * (parameters.size or 0) ** 2),
        command_s=_sum(rows, _COMMAND) if PHASE_STARTUP in rows else None,
        fixed_s=None if wall_s is None else wall_s - _sum(rows, _VARIABLE | _COMMAND),
        inputs_s=rows.get(wire.PHASE_INPUTS),
        stage_s=rows.get(wire.PHASE_STAGE),
        verify_s=rows.get(wire.PHASE_VERIFY),
        checked_by="" if result is None else result.text("checked_by"),
        baseline=record.baseline,
    )


def machines_of(record: RunRecord) -> tuple[tuple[str, int | None, str], ...]:
    """Return what must be equal for figures of one run to hold for another."""
    return tuple(
        (each.name, each.cpus, each.versions.get("tensorflow", "")) for each in record.nodes
    )


def figure(name: str, unit: str, samples: Sequence[float], source: str) -> Figure | None:
    """Return the figure of samples, None without any that is positive."""
    good = [each for each in samples if math.isfinite(each) and each > 0]
    if not good:
        return None
    many = len(good) >= _MANY
    low, high = (percentile(good, 5), percentile(good, 95)) if many else (min(good), max(good))
    return Figure(name, unit, Range(percentile(good, 50), low, high), len(good), source)


def _sum(rows: dict[str, float], phases: frozenset[str]) -> float:
    return math.fsum(seconds for phase, seconds in rows.items() if phase in phases)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3


def _median_of_kind(explained: Explained, kind: str) -> float | None:
    samples = [each.duration_ms for each in explained.steps if each.kind == kind]
    return percentile(samples, 50) / 1e3 if samples else None


def _gflops(explained: Explained) -> dict[int, tuple[float, ...]]:
    found: dict[int, list[float]] = {}
    for trace in explained.traces:
        for task in trace.tasks:
            if task.gflops is not None:
                found.setdefault(task.task, []).append(task.gflops)
    return {task: tuple(samples) for task, samples in found.items()}


def _edges(explained: Explained) -> dict[tuple[int, int], tuple[tuple[int, float], ...]]:
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for trace in explained.traces:
        for edge in trace.edges:
            if edge.size_bytes and not edge.clamped and edge.wire_s > 0:
                way = (edge.source, edge.target)
                found.setdefault(way, []).append((edge.size_bytes, edge.wire_s))
    return {way: tuple(samples) for way, samples in found.items()}


def _copies(explained: Explained, matrix_bytes: int) -> dict[tuple[int, str], tuple[float, ...]]:
    """Return the rates of copies of at least half a matrix: smaller ones are all latency."""
    found: dict[tuple[int, str], list[float]] = {}
    for trace in explained.traces:
        for copy in trace.copies:
            if copy.mb_per_s is not None and 2 * (copy.size_bytes or 0) >= matrix_bytes:
                found.setdefault((copy.task, copy.kind), []).append(copy.mb_per_s)
    return {way: tuple(samples) for way, samples in found.items()}
