"""Runs on GPUs against the same runs on CPUs: the question's own comparison. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labctl.analysis.compare import Comparison, Measured, RowKey, compare, measure
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

# Rows of such a comparison beside those of every other: the question's own stopwatch.
SECTION = "section under test"
STOPWATCH = "stopwatch"


@dataclass(frozen=True, slots=True)
class Devices:
    """Runs on both devices.

    Attributes:
        pair: Value of the tag `pair` of all of them.
        gpu: Ids of the runs that were asked to compute on GPUs, oldest first.
        cpu: Of the runs on CPUs.
        comparison: The GPU's side (B) seen from the CPU's (A), of runs that ended ok; None if a side has none.
        notes: What a reader should know.
    """

    pair: str
    gpu: tuple[str, ...]
    cpu: tuple[str, ...]
    comparison: Comparison | None
    notes: tuple[str, ...] = ()


def compare_devices(
    pair: str, gpu: Sequence[Explained], cpu: Sequence[Explained], notes: Sequence[str] = ()
) -> Devices:
    """Compare runs on both devices by the rules of every comparison.

    Args:
        pair: Value of their tag `pair`.
        gpu: All runs that were asked to compute on GPUs, oldest first.
        cpu: All runs on CPUs.
        notes: What is known of them beside.
    """
    good = [[run for run in side if run.data.record.outcome == "ok"] for side in (cpu, gpu)]
    told = [_failure(run) for run in (*gpu, *cpu) if run.data.record.outcome != "ok"]
    told += [
        f"no run on {name} ended ok: there is nothing to compare"
        for side, name in zip(good, ("CPUs", "GPUs"), strict=True)
        if not side
    ]
    comparison = None
    if all(good):
        comparison = compare(*([measured(run) for run in side] for side in good))
    return Devices(
        pair=pair,
        gpu=tuple(run.data.record.run_id for run in gpu),
        cpu=tuple(run.data.record.run_id for run in cpu),
        comparison=comparison,
        notes=(*told, *not_on_gpus(good[1]), *notes),
    )


def measured(run: Explained) -> Measured:
    """Return what a run has to be compared, the question's stopwatch included."""
    found = measure(run)
    rows = dict(found.rows)
    for event in run.data.events:
        if event.kind == wire.RESULT:
            for name, key in ((SECTION, "section_us"), (STOPWATCH, "end_to_end_us")):
                if (value := event.number(key)) is not None:
                    rows[RowKey(name)] = (value / 1e6,)
    return replace(found, rows=rows)


def not_on_gpus(runs: Sequence[Explained]) -> list[str]:
    """Return what says that the GPU's side did not compute on GPUs, or that nobody can know; [] where it did."""
    products = [
        (device, number)
        for run in runs
        for trace in run.traces
        for task in trace.tasks
        for device, number in task.products.items()
    ]
    total = sum(number for _, number in products)
    on_cpu = sum(number for device, number in products if "GPU" not in device.upper())
    if on_cpu:
        return [
            f"{on_cpu} of {total} traced products of the GPU's side ran on CPUs: soft placement gave way"
        ]
    soft = any(run.data.record.parameters.soft_placement for run in runs)
    if soft and not total:
        return ["where the GPU's side computed is not measured: soft placement without a trace"]
    return []


def _failure(run: Explained) -> str:
    record = run.data.record
    why = record.failure.message if record.failure is not None else record.outcome
    device = str(record.parameters.device).upper()
    return f"run {record.run_id} on the {device} ended {record.outcome}: {why}"
