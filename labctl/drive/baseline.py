"""What the lab's network and nodes can do by themselves: measured on demand, or before the first run that traces.

Nothing of it can fail a run: what could not be measured is named in the baseline.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from labctl.analysis.model import Edge, StepTrace
from labctl.checks.model import CheckResult
from labctl.drive.links import Links
from labctl.drive.measure import Bench, Progress, ask_means, measure_compute, measure_network
from labctl.drive.timing import Clock
from labctl.lab.model import Lab
from labctl.runs import lab_files
from labctl.runs.baseline import Baseline, LinkBaseline

NETWORK = "network"
COMPUTE = "compute"
PARTS = (NETWORK, COMPUTE)

_BEATS = 1.05  # more than what a baseline and a run may differ by
_LARGE_BYTES = 1_000_000  # a smaller tensor may come out of a socket's buffer
_BUSY_LOAD = 1.0  # for each CPU: somebody else's work was there just before
_LOCK_S = 30.0
_POLL_S = 0.1


def stored(lab: Lab, boot_ids: Mapping[str, str]) -> Baseline | None:
    """Return the lab's baseline if it is of these boots of these nodes, else None.

    Args:
        lab: The lab.
        boot_ids: Boot of each node now; "" where it is not known.
    """
    found = lab_files.read_baseline(lab.local_dir)
    if found is None or found.boot_ids != dict(boot_ids) or not all(boot_ids.values()):
        return None
    return found


def is_complete(baseline: Baseline | None) -> bool:
    """Return whether network and nodes were both tried, so that a run need not try again."""
    return baseline is not None and all(_was_tried(baseline, part) for part in PARTS)


def measure(
    lab: Lab,
    links: Links,
    clock: Clock,
    *,
    parts: Sequence[str] = PARTS,
    again: bool = True,
    progress: Progress = lambda _: None,
) -> Baseline:
    """Measure a lab and keep the result in `.lab/<lab>/baseline.json`; other parts stay as they were.

    Args:
        lab: The lab.
        links: Its nodes.
        clock: Where time comes from.
        parts: Which of `PARTS`.
        again: Also what was tried since the nodes' start.
        progress: Told what is done next.

    Raises:
        OSError: The result cannot be written.
    """
    with alone(lab, clock) as is_alone:
        means, missing = ask_means(links)
        boots = {node.name: means[node.name].boot_id for node in lab.nodes if node.name in means}
        names = {node.name: boots.get(node.name, "") for node in lab.nodes}
        before = stored(lab, names) or Baseline(boots)
        wanted = [part for part in parts if again or not _was_tried(before, part)]
        if not is_alone:
            return _with_missing(before, wanted, "another labctl is measuring this lab")
        bench = Bench(lab, links, clock, means)
        after = before
        if NETWORK in wanted:
            found, problems = measure_network(bench, progress)
            after = replace(after, links=found, missing=_missing(after, NETWORK, problems, missing))
        if COMPUTE in wanted:
            peaks, problems = measure_compute(bench, progress)
            after = replace(
                after, compute=peaks, missing=_missing(after, COMPUTE, problems, missing)
            )
        lab_files.write_baseline(lab.local_dir, after)
        return after


def as_checks(lab: Lab, baseline: Baseline, parts: Sequence[str]) -> list[CheckResult]:
    """Return a baseline as results of the named checks `network` and `compute`."""
    results = []
    client = lab.client.name
    for node in lab.workers if NETWORK in parts else ():
        to, back = baseline.link(client, node.name), baseline.link(node.name, client)
        if to is None or back is None:
            why = _why_not(baseline, NETWORK, node.name)
            results.append(CheckResult(NETWORK, node.name, "skipped", why))
            continue
        rtt = "" if to.rtt_s is None else f", round trip {to.rtt_s * 1e3:.3g} ms"
        text = f"{_rate(to)} from {client}, {_rate(back)} to it{rtt} (TCP, one stream, {to.tool})"
        text += _busy(max(to.load_1min or 0.0, back.load_1min or 0.0), baseline, client, node.name)
        results.append(CheckResult(NETWORK, node.name, "ok", text))
    for node in lab.nodes if COMPUTE in parts else ():
        peak = baseline.peak(node.name)
        if peak is None:
            why = _why_not(baseline, COMPUTE, node.name)
            results.append(CheckResult(COMPUTE, node.name, "skipped", why))
            continue
        cpus = f"{peak.threads} CPU{'' if peak.threads == 1 else 's'}"
        by = f", {peak.library}" if peak.library else ""
        text = f"{peak.gflops:.1f} GFLOP/s in float32, L = {peak.size}, {cpus}{by}"
        text += _busy(peak.load_1min or 0.0, baseline, node.name)
        results.append(CheckResult(COMPUTE, node.name, "ok", text))
    return results


def better_than(baseline: Baseline, traces: Sequence[StepTrace]) -> list[str]:
    """Return which figures of a baseline traced steps beat by more than 5 %, one line each.

    Products count on CPUs. A large tensor counts from when it was asked for, by the receiver's clock alone.
    """
    lines = []
    for peak in baseline.compute:
        best = max(
            (
                task.gflops or 0.0
                for trace in traces
                for task in trace.tasks
                if task.node == peak.node and all("CPU" in device for device in task.products)
            ),
            default=0.0,
        )
        if best > _BEATS * peak.gflops:
            lines.append(
                f"products on {peak.node} reached {best:.1f} GFLOP/s, not {peak.gflops:.1f}"
            )
    for link in baseline.links:
        best = max(
            (_least_bits(link, trace, edge) for trace in traces for edge in trace.edges),
            default=0.0,
        )
        if best > _BEATS * link.bits_per_s:
            lines.append(
                f"a tensor went from {link.source} to {link.target} at {best / 1e9:.2f} Gbit/s or more, "
                f"not {_rate(link)}"
            )
    return lines


def _least_bits(link: LinkBaseline, trace: StepTrace, edge: Edge) -> float:
    """Return the least rate in bits/s that a large tensor had over a link, 0 for one that says nothing of it."""
    nodes = {task.task: task.node for task in trace.tasks}
    way = nodes.get(edge.source), nodes.get(edge.target)
    if way != (link.source, link.target) or (edge.size_bytes or 0) < _LARGE_BYTES:
        return 0.0
    return (edge.asked_mb_per_s or 0.0) * 8e6


def not_measured(lab: Lab, parts: Sequence[str], why: str) -> list[CheckResult]:
    """Return the checks `network` and `compute` of a lab that is not measured now."""
    return as_checks(lab, _with_missing(Baseline({}), parts, why), parts)


def _busy(load: float, baseline: Baseline, *nodes: str) -> str:
    """Return a remark on a figure that other work may have made too low, else nothing."""
    peaks = [baseline.peak(node) for node in nodes]
    cpus = min((peak.threads for peak in peaks if peak is not None), default=1)
    if load < _BUSY_LOAD * cpus:
        return ""
    return f"; measured on a busy host (load {load:.1f}), it may do better"


def _was_tried(baseline: Baseline, part: str) -> bool:
    found = baseline.links if part == NETWORK else baseline.compute
    return bool(found) or any(each.startswith(f"{part}: ") for each in baseline.missing)


def _with_missing(baseline: Baseline, parts: Sequence[str], why: str) -> Baseline:
    return replace(
        baseline, missing=(*baseline.missing, *(f"{part}: not measured: {why}" for part in parts))
    )


def _missing(
    baseline: Baseline, part: str, problems: Sequence[str], unasked: Sequence[str]
) -> tuple[str, ...]:
    """Return what is missing once a part has been tried, each line with its part in front."""
    others = [each for each in baseline.missing if not each.startswith(f"{part}: ")]
    return (*others, *(f"{part}: {each}" for each in (*unasked, *problems)))


def _why_not(baseline: Baseline, part: str, node: str) -> str:
    lines = [each for each in baseline.missing if each.startswith(f"{part}: ")]
    about = [each for each in lines if node in each] or lines
    return "; ".join(each.removeprefix(f"{part}: ") for each in about) or "not measured"


def _rate(link: LinkBaseline) -> str:
    if link.bits_per_s >= 1e9:
        return f"{link.bits_per_s / 1e9:.2f} Gbit/s"
    return f"{link.bits_per_s / 1e6:.1f} Mbit/s"


@contextmanager
def alone(lab: Lab, clock: Clock) -> Iterator[bool]:
    """Keep other labctl processes of this machine from measuring the lab at the same time.

    Yields:
        Whether they are kept; False when one of them measures it for too long.
    """
    handle = os.open(lab.local_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        give_up_s = clock.mono_s() + _LOCK_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
                return
            if clock.mono_s() > give_up_s:
                yield False
                return
            clock.sleep(_POLL_S)
    finally:
        os.close(handle)
