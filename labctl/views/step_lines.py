"""The steps of a run on a few lines: their times, what a warm one is made of, its tensors' ways."""

from __future__ import annotations

from labctl.analysis.explained import Explained
from labctl.analysis.model import Copy, Edge, SplitRow, StepTrace
from labctl.console import safe_text
from labctl.views.run_object import result_of

_MOST_EDGES = 5
_NAME = 24


def step_lines(explained: Explained) -> list[str]:
    """Return the times of the steps; empty without any."""
    stats, tracing = explained.stats, explained.tracing
    if not explained.steps:
        return []
    parts = []
    if stats.cold_ms is not None:
        parts.append(f"cold {stats.cold_ms:.0f} ms")
    if stats.warm_median_ms is not None and stats.warm_p95_ms is not None:
        parts.append(
            f"warm median {stats.warm_median_ms:.1f} ms, p5 {stats.warm_p5_ms:.1f}, "
            f"p95 {stats.warm_p95_ms:.1f}  ({stats.n})"
        )
    if tracing is not None:
        parts.append(f"traced {tracing.traced_median_ms:.1f} ms  ({tracing.n})")
    lines = ["  step      " + "    ".join(parts)]
    result = result_of(explained.data.events)
    section_us = result.number("section_us") if result is not None else None
    end_to_end_us = result.number("end_to_end_us") if result is not None else None
    if section_us is not None and end_to_end_us is not None:
        stopwatch = f"{end_to_end_us:,.0f} µs".replace(",", " ")
        lines.append(f"  question  section {section_us / 1e3:.0f} ms    stopwatch {stopwatch}")
    return lines


def split_lines(explained: Explained) -> list[str]:
    """Return what a warm step is made of, and what its tasks did; empty without a trace."""
    split, trace = explained.split, explained.trace
    if trace is None:
        return []
    lines = []
    if split is not None:
        told = [
            f"{_what(row)} {_ms(row.seconds)}"
            for row in split.rows
            if row.seconds >= 0.005 * split.total_s
        ]
        lines += _wrapped(f"  a warm step of {_ms(split.total_s)}:  ", told)
    tasks = [
        f"task:{task.task} {'queues its ops in' if task.queued_only else 'computes'} {_ms(task.compute_s)}"
        + (f" at {task.gflops:.0f} GFLOP/s" if task.gflops is not None else "")
        for task in trace.tasks
    ]
    if len(tasks) > 1:
        tasks.append(f"together {_ms(trace.overlap_s)} of it")
    return lines + _wrapped("  ", tasks)


def edge_lines(explained: Explained) -> list[str]:
    """Return the table of a warm step's transfers, the longest first; empty without any."""
    trace = explained.trace
    if trace is None:
        return []
    return [*_edges(trace), *_copies(trace)]


def _copies(trace: StepTrace) -> list[str]:
    """Return the copies between host and GPU, those of one task, direction and GPU in one line."""
    groups: dict[tuple[int, str, str], list[Copy]] = {}
    for copy in trace.copies:
        groups.setdefault((copy.task, copy.kind, copy.device), []).append(copy)
    lines = []
    for (task, kind, device), own in sorted(groups.items()):
        sizes = [copy.size_bytes for copy in own]
        known = sum(size for size in sizes if size is not None)
        took_s = sum(copy.duration_s for copy in own)
        told = f"  task:{task} {kind} {device}  {len(own)} copies in {_ms(took_s)}"
        if None not in sizes and took_s > 0:
            told += f", {known / 1e6:.3f} MB at {known / 1e6 / took_s:.0f} MB/s"
        lines.append(told)
    return lines


def _edges(trace: StepTrace) -> list[str]:
    if not trace.edges:
        return []
    edges = sorted(trace.edges, key=lambda edge: edge.wire_s + (edge.waited_s or 0.0), reverse=True)
    head = f"  {'tensor':<{_NAME}}  {'way':<14}  {'MB':>7}  {'asked':>7}  {'answered':>8}  "
    lines = [f"{head}{'arrived ms':>10}  {'MB/s':>6}  of link"]
    lines += [_edge_line(edge) for edge in edges[:_MOST_EDGES]]
    if len(edges) > _MOST_EDGES:
        lines.append(f"  and {len(edges) - _MOST_EDGES} more transfers")
    if any(edge.clamped for edge in edges[:_MOST_EDGES]):
        lines.append("  ? cut by the difference of two clocks, not to be believed")
    if any(edge.doubt for edge in edges[:_MOST_EDGES]):
        lines.append(
            "  % ? faster than the measured network: the sender's stamp or the baseline is wrong"
        )
    return lines


def _edge_line(edge: Edge) -> str:
    name = safe_text(edge.tensor)
    name = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    size = "" if edge.size_bytes is None else f"{edge.size_bytes / 1e6:.3f}"
    asked = "" if edge.asked_s is None else f"{edge.asked_s * 1e3:.1f}"
    answered = "?" if edge.clamped else f"{edge.answered_s * 1e3:.1f}"
    rate = "" if edge.mb_per_s is None else f"{edge.mb_per_s:.0f}"
    share = (
        ""
        if edge.baseline_share is None
        else f"{edge.baseline_share * 100:.0f} %{' ?' if edge.doubt else ''}"
    )
    way = f"task:{edge.source}>task:{edge.target}"
    return (
        f"  {name:<{_NAME}}  {way:<14}  {size:>7}  {asked:>7}  {answered:>8}  "
        f"{edge.arrived_s * 1e3:>10.1f}  {rate:>6}  {share}"
    ).rstrip()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e3:.3f} ms"


def _what(row: SplitRow) -> str:
    if row.source is not None:
        return f"{row.what} {row.source}>{row.task}"
    return row.what if row.task is None else f"{row.what} task:{row.task}"


def _wrapped(head: str, parts: list[str], wide: int = 100) -> list[str]:
    lines, line = [], head
    for number, part in enumerate(parts):
        piece = part if number == len(parts) - 1 else f"{part} · "
        if len(line) + len(piece.rstrip()) > wide and line.strip():
            lines.append(line.rstrip())
            line = "    "
        line += piece
    return [*lines, line.rstrip()] if line.strip() else lines
