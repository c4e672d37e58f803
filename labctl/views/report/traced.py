"""A traced step: what each task did in it, what travelled, and the parts of a median warm step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labctl.analysis.model import Copy, Edge, OpRun, SplitRow, StepSplit, StepTrace, TaskTrace
from labctl.views.report.lanes import Bar, Chart, Lane, chart, packed
from labctl.views.report.numbers import duration, percent, size

MOST_EDGES = 200
_COLUMNS = 800  # of the axis: ops that are shorter than one share a bar
_MOST_OPS = 400  # bars of single ops a lane
_MOST_ROWS = 6
_MOST_WAITS = 12  # tensors a task received: of more, only their time on the wire is drawn

OP_NAMES = {
    "product": "matrix products",
    "op": "other ops",
    "copy": "copies between host and GPU",
    "small": "many short ops",
    "wait": "waiting for the sender",
    "wire": "on the wire",
    "client": "dispatch and fetch",
}
SPLIT_KINDS = {
    "dispatch": "client",
    "compute": "product",
    "copy": "copy",
    "transfer": "wire",
    "wait": "wait",
    "fetch": "client",
    "other": "small",
}


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One part of a median warm step.

    Attributes:
        label: What it is, and of whom.
        kind: Its colour.
        seconds: Its length.
        share: Percent of the step.
        left: Percent of the step before it.
    """

    label: str
    kind: str
    seconds: float
    share: float
    left: float


def trace_chart(trace: StepTrace) -> Chart | None:
    """Return the traced step over its wall time in ms: the client, then each task's ops and what it received."""
    end_ms = trace.duration_s * 1e3
    lanes = [_client_lane(trace)]
    for task in trace.tasks:
        mine = [op for op in trace.ops if op.task == task.task]
        for device in dict.fromkeys(op.device for op in mine):
            bars, rows = _op_bars([op for op in mine if op.device == device], task.node, end_ms)
            lanes.append(
                Lane(f"task:{task.task}", f"{task.node} {_lane_name(device, task)}", bars, rows)
            )
        edges = [edge for edge in trace.edges if edge.target == task.task]
        if edges:
            bars, rows = _edge_bars(edges, task.node)
            lanes.append(Lane(f"to task:{task.task}", "received", bars, rows))
    return chart("trace", "Traced step", "ms", lanes, end_ms, OP_NAMES)


def split_parts(split: StepSplit) -> list[SplitPart]:
    """Return the parts of a median warm step in the order of its path."""
    parts: list[SplitPart] = []
    left = 0.0
    for row in split.rows:
        share = percent(row.seconds, split.total_s) or 0.0
        kind = SPLIT_KINDS.get(row.what, "small")
        parts.append(SplitPart(split_label(row), kind, row.seconds, share, left))
        left += share
    return parts


def split_label(row: SplitRow) -> str:
    """Return what a part of a step is, in words."""
    if row.what == "transfer" and row.source is not None and row.task is not None:
        return f"transfer task:{row.source} to task:{row.task}"
    if row.what == "wait" and row.task is not None:
        return f"task:{row.task} waits"
    return row.what if row.task is None else f"{row.what} on task:{row.task}"


def longest_edges(trace: StepTrace) -> list[Edge]:
    """Return the edges that took longest, waiting included, at most `MOST_EDGES`, by arrival."""
    by_time = sorted(trace.edges, key=lambda each: -(each.wire_s + (each.waited_s or 0.0)))
    return sorted(by_time[:MOST_EDGES], key=lambda each: each.arrived_s)


def longest_copies(trace: StepTrace) -> list[Copy]:
    """Return the copies between host and GPU that took longest, at most `MOST_EDGES`, by start."""
    by_time = sorted(trace.copies, key=lambda each: -each.duration_s)
    return sorted(by_time[:MOST_EDGES], key=lambda each: each.start_s)


def _client_lane(trace: StepTrace) -> Lane:
    parts = (
        ("dispatch", 0.0, trace.dispatch_s),
        ("fetch", trace.duration_s - trace.fetch_s, trace.fetch_s),
    )
    bars = tuple(
        Bar(name, "client", start_s * 1e3, length_s * 1e3, "client", "client")
        for name, start_s, length_s in parts
        if length_s > 0
    )
    return Lane("client", "session.run", bars)


def _op_bars(ops: Sequence[OpRun], node: str, end_ms: float) -> tuple[tuple[Bar, ...], int]:
    """Return bars of ops: the long ones each, the short ones by column of the screen."""
    column_ms = end_ms / _COLUMNS or 1.0
    shown = sorted(
        (op for op in ops if op.duration_s * 1e3 >= column_ms), key=lambda op: -op.duration_s
    )[:_MOST_OPS]
    alone = {id(op) for op in shown}
    bars = [
        Bar(
            label=op.name,
            node=node,
            start=op.start_s * 1e3,
            length=op.duration_s * 1e3,
            kind=_kind(op),
            source="TensorFlow",
            note=op.op,
        )
        for op in shown
    ]
    bars += _merged([op for op in ops if id(op) not in alone], node, column_ms)
    return packed(bars, _MOST_ROWS)


def _lane_name(device: str, task: TaskTrace) -> str:
    """Return a lane's name: a GPU's own rows tell when ops were queued, its streams' when they ran."""
    is_gpu = device.startswith("GPU:")
    if is_gpu and "/" not in device:
        return f"{device}, queued" + (" (no GPU trace)" if task.queued_only else "")
    return device


def _kind(op: OpRun) -> str:
    if op.device.endswith((">", "/memcpy")):
        return "copy"
    if op.device.endswith("/sync"):
        return "wait"
    return "product" if op.op == "MatMul" else "op"


def _merged(ops: Sequence[OpRun], node: str, column_ms: float) -> list[Bar]:
    """Return one bar for each run of short ops that lie less than a column apart."""
    bars: list[Bar] = []
    begin = end = busy = 0.0
    count = 0
    first: OpRun | None = None

    def close() -> None:
        if first is None:
            return
        if count == 1:
            bars.append(Bar(first.name, node, begin, end - begin, "op", "TensorFlow", first.op))
        else:
            note = f"{duration(busy / 1e3)} of ops in all"
            bars.append(
                Bar(f"{count} short ops", node, begin, end - begin, "small", "TensorFlow", note)
            )

    for op in sorted(ops, key=lambda each: each.start_s):
        start, stop = op.start_s * 1e3, op.end_s * 1e3
        if first is None or start > end + column_ms:
            close()
            begin, end, busy, count, first = start, stop, 0.0, 0, op
        end = max(end, stop)
        busy += stop - start
        count += 1
    close()
    return bars


def _edge_bars(edges: Sequence[Edge], node: str) -> tuple[tuple[Bar, ...], int]:
    bars = []
    longest = sorted(edges, key=lambda each: -(each.wire_s + (each.waited_s or 0.0)))[:_MOST_OPS]
    for edge in longest:
        about = f"{size(edge.size_bytes)} from task:{edge.source}"
        if edge.asked_s is not None and (edge.waited_s or 0) > 0 and len(edges) <= _MOST_WAITS:
            bars.append(
                Bar(
                    f"{edge.tensor} asked",
                    node,
                    edge.asked_s * 1e3,
                    (edge.waited_s or 0) * 1e3,
                    "wait",
                    "TensorFlow",
                    about,
                    edge.clamped,
                )
            )
        bars.append(
            Bar(
                edge.tensor,
                node,
                edge.answered_s * 1e3,
                max(0.0, edge.wire_s) * 1e3,
                "wire",
                "TensorFlow",
                about,
                edge.clamped,
            )
        )
    return packed(bars, _MOST_ROWS)
