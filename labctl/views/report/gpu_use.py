"""How busy GPUs were: what NVML said at each reading, and when it held their clocks down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labctl.analysis.clock import Clocks
from labctl.analysis.gpus import GpuFacts, GpuUse, node_gpus
from labctl.node import wire
from labctl.runs.data import RunData
from labctl.views.report.usage import Sample, Series, coarse

# A reading tells of the time since the one before it, of no more than this.
_LONGEST_S = 2.5 * wire.USAGE_PERIOD_S


def gpu_series(data: RunData) -> list[Series]:
    """Return the series of each GPU of each node, those with a figure only."""
    clocks = Clocks.of(data.record)
    found: list[Series] = []
    for told in node_gpus(data):
        facts = {each.index: each for each in told.devices}
        for index in sorted({use.index for use in told.use}):
            uses = [use for use in told.use if use.index == index]
            device = facts.get(index)
            who = f"GPU {index}{f', {device.name}' if device is not None and device.name else ''}"
            found += _of_device(told.node, who, uses, device, clocks, data.record.wall_s)
    return found


def _of_device(
    node: str,
    who: str,
    uses: Sequence[GpuUse],
    device: GpuFacts | None,
    clocks: Clocks,
    wall_s: float | None,
) -> list[Series]:
    series: list[Series] = []
    for metric, figure in _FIGURES.items():
        samples = coarse(_samples(uses, node, clocks, wall_s, figure))
        if samples:
            top = max([_top(metric, device), *(each.value for each in samples)])
            series.append(Series(node, who, metric, samples, top or 1.0))
    held = coarse(_samples(uses, node, clocks, wall_s, _held_down))
    if held:
        reasons = sorted({reason for use in uses for reason in use.held_down})
        count = sum(1 for use in uses if use.held_down)
        note = f"{', '.join(reasons)} in {count} of {len(uses)} readings" if reasons else "never"
        series.append(Series(node, who, "gpu_held", held, 100.0, note))
    return series


def _samples(
    uses: Sequence[GpuUse],
    node: str,
    clocks: Clocks,
    wall_s: float | None,
    figure: Callable[[GpuUse], float | None],
) -> list[Sample]:
    last_s = wall_s or float("inf")
    samples: list[Sample] = []
    before_s: float | None = None
    for use in sorted(uses, key=lambda each: each.unix_s):
        at_s = clocks.since_origin_s(node, use.unix_s)
        value = figure(use)
        near = before_s is not None and 0 < at_s - before_s <= _LONGEST_S
        start_s = before_s if near and before_s is not None else at_s - wire.USAGE_PERIOD_S
        before_s = at_s
        if value is None or at_s <= 0 or start_s >= last_s:
            continue
        samples.append(Sample(max(0.0, start_s), min(at_s, last_s), value))
    return samples


def _held_down(use: GpuUse) -> float | None:
    return None if use.throttle is None else 100.0 if use.held_down else 0.0


def _megabytes(use: GpuUse) -> float | None:
    return None if use.memory_used_bytes is None else use.memory_used_bytes / 1e6


_FIGURES: dict[str, Callable[[GpuUse], float | None]] = {
    "gpu_busy": lambda use: use.utilisation_percent,
    "gpu_clock": lambda use: use.sm_clock_mhz,
    "gpu_memory_clock": lambda use: use.memory_clock_mhz,
    "gpu_memory": _megabytes,
    "gpu_power": lambda use: use.power_w,
    "gpu_temperature": lambda use: use.temperature_c,
}


def _top(metric: str, device: GpuFacts | None) -> float:
    """Return what a plot reaches to: what the device can have at most, where that is known."""
    if metric in {"gpu_busy", "gpu_temperature"}:
        return 100.0
    if device is None:
        return 0.0
    most = {
        "gpu_clock": device.sm_clock_max_mhz,
        "gpu_memory": None if device.memory_bytes is None else device.memory_bytes / 1e6,
        "gpu_power": device.power_limit_w,
    }.get(metric)
    return most or 0.0
