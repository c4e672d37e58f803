"""A record's data made fit for analysis: each event once and in order, on a clock that can be believed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labctl.analysis.clock import Clocks
from labctl.analysis.ledger import process_times
from labctl.node import wire
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.runs.record import RunRecord

_NEAR_S = 1.0  # events this far outside of the run are still taken to be of it
_FULLER = 1.05  # a rate above its baseline by more than noise
_UNITS = ((365.25 * 86_400, "years"), (86_400, "days"), (3600, "hours"), (60, "minutes"))


def arranged(data: RunData, clocks: Clocks) -> tuple[RunData, list[str]]:
    """Return a run's data as the analysis reads it, and what is wrong with it, one line each.

    Events that lie outside of the run have stamps of a clock that cannot be believed. Where their monotonic stamps
    and the start of the client's unit allow it, they are moved to where they belong; else they stay, and their
    phases are no part of the ledger.
    """
    events, line = _within_run(_in_order(once_each(data.events)), data.record, clocks)
    servers = {node: once_each(each) for node, each in data.server_events.items()}
    return replace(data, events=events, server_events=servers), [] if line is None else [line]


def once_each(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return events without their copies."""
    seen: dict[tuple[str, int, int, str, int], list[Event]] = {}
    kept = []
    for event in events:
        alike = seen.setdefault(
            (event.kind, event.t_ns, event.mono_ns, event.source, event.task), []
        )
        if event not in alike:
            alike.append(event)
            kept.append(event)
    return tuple(kept)


def _in_order(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the client's events, and those of its children on the same node, by time."""
    return tuple(event for event, _ in process_times(events))


def _within_run(
    events: tuple[Event, ...], record: RunRecord, clocks: Clocks
) -> tuple[tuple[Event, ...], str | None]:
    """Return the client's events, inside of the run if they can be, and what is to be said if they were not."""
    node, wall_s = record.remote.node, record.wall_s
    times = [
        clocks.since_origin_s(node, t_s)
        for event, t_s in process_times(events)
        if event.source == "client" and event.task == 0
    ]
    if not times or wall_s is None:
        return events, None
    first_s, last_s = min(times), max(times)
    inside_s = min(last_s, wall_s + _NEAR_S) - max(first_s, -_NEAR_S)
    if inside_s >= 0 and inside_s >= (last_s - first_s) / 2:
        return events, None
    if first_s < 0:
        far = f"{_long(-last_s if last_s < 0 else -first_s)} before"
    else:
        far = f"{_long(first_s - wall_s if first_s > wall_s else last_s - wall_s)} after"
    line = f"clock: the client's events lie {far} the run: its clock cannot be believed"
    placed = _by_unit_start(events, record, clocks)
    if placed is None:
        return events, f"{line}; its phases are left out"
    return placed, f"{line}; they are placed by the start of its unit"


def _by_unit_start(
    events: Sequence[Event], record: RunRecord, clocks: Clocks
) -> tuple[Event, ...] | None:
    """Return events with the times that their monotonic stamps and their unit's start give them.

    None where the process's start has no stamp, or the times would not lie in the run.
    """
    started_s, wall_s = record.remote.started_at_s, record.wall_s
    begin = next(
        (
            event
            for event in events
            if event.kind == wire.PHASE_BEGIN and event.text("phase") == wire.PHASE_INTERPRETER
        ),
        None,
    )
    if started_s is None or wall_s is None or begin is None:
        return None
    monos = [event.mono_ns for event in events]
    length_s = (max(monos) - begin.mono_ns) / 1e9
    start_s = clocks.since_origin_s(record.remote.node, started_s)
    if min(monos) <= 0 or min(monos) < begin.mono_ns:
        return None
    if start_s < 0 or start_s + length_s > wall_s + _NEAR_S:
        return None
    started_ns = round(started_s * 1e9)
    return tuple(
        replace(event, t_ns=started_ns + event.mono_ns - begin.mono_ns) for event in events
    )


def baseline_problems(record: RunRecord, reached: dict[str, float]) -> list[str]:
    """Return where a run did better than the baseline says that it can, one line each.

    Args:
        record: The run.
        reached: The best rate of products in a traced step by node, GFLOP/s.
    """
    if record.baseline is None or record.parameters.device != "cpu":
        return []
    return [
        f"baseline: the products on {peak.node} reached {reached[peak.node]:.1f} GFLOP/s, more than the "
        f"{peak.gflops:.1f} measured there: the baseline was measured on a busy host"
        for peak in record.baseline.compute
        if reached.get(peak.node, 0.0) > _FULLER * peak.gflops
    ]


def _long(seconds: float) -> str:
    """Return a long time for people."""
    for unit_s, name in _UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {name}"
    return f"{seconds:.1f} s"
