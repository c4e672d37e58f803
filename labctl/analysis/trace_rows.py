"""The rows of step stats, told apart: ops with their task and inputs, and transfers between tasks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from labctl.analysis.stepstats import NodeRow

SOURCE_OP = "_SOURCE"

_TRANSFER = "RecvTensor"
_TASK = re.compile(r"/task:(\d{1,9})(?:/|\Z)")
_PLACE = re.compile(r"\A(?:/(?:job|replica|task):[^/]*)*/(?:device:)?")
_EDGE = re.compile(
    r"(?:\[(?P<size>[\d.]+)(?P<unit>[kKMGT]?B)\] )?(?:\[[^\]]*\] )?"
    r"(?:edge_\d+_)?(?P<tensor>\S+) from (?P<source>\S+) to (?P<target>\S+)\Z"
)
_OP = re.compile(r"(?:\[[^\]]*\] )?\S+ = (?P<op>[^(\s]+)\((?P<inputs>.*)\)")
_UNITS = {"B": 1, "kB": 2**10, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_FAR_US = 3_600_000_000  # a stamp this far from its task's others is none


class RawOp(NamedTuple):
    """An op by its own device's clock.

    Attributes:
        task: Task index.
        device: Device name without job, replica and task.
        name: Node name.
        op: Type without TensorFlow's prefix for oneDNN kernels, "" if it is not told.
        inputs: Names of the tensors that it reads.
        start_us: Unix time, microseconds.
        end_us: Unix time, microseconds.
    """

    task: int
    device: str
    name: str
    op: str
    inputs: tuple[str, ...]
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class RawEdge:
    """A transfer.

    Attributes:
        tensor: Name of the tensor.
        size_bytes: Its bytes, None if they are not told.
        rounded: They are the label's, with two or three digits.
        source: Sending task.
        target: Receiving task.
        start_us: When the sender answered, by the sender's clock unless TensorFlow cut it; Unix, microseconds.
        end_us: When it had arrived, by the receiver's clock.
    """

    tensor: str
    size_bytes: int | None
    rounded: bool
    source: int
    target: int
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows told apart.

    Attributes:
        ops: By task, each in the order of the step stats.
        edges: In that order.
        lost: How many rows are of no use: no known task, impossible times.
    """

    ops: dict[int, list[RawOp]]
    edges: list[RawEdge]
    lost: int


def tell_apart(rows: Iterable[NodeRow]) -> Rows:
    """Return ops and edges of rows."""
    ops: list[RawOp] = []
    edges: list[RawEdge] = []
    loose: list[NodeRow] = []
    lost = 0
    devices: dict[str, tuple[int | None, str]] = {}
    for row in rows:
        if row.device not in devices:
            match = _TASK.search(row.device)
            task = None if match is None else int(match[1])
            devices[row.device] = task, _PLACE.sub("", row.device, count=1)
        task, device = devices[row.device]
        if row.start_us <= 0 or (row.end_us < row.start_us and row.name != _TRANSFER):
            lost += 1
        elif row.name == _TRANSFER:
            edge = _raw_edge(row)
            if edge is None:
                lost += 1
            else:
                edges.append(edge)
        elif task is None:
            loose.append(row)
        else:
            ops.append(_raw_op(task, device, row))
    adopted, homeless = _adopt(loose, ops)
    by_task: dict[int, list[RawOp]] = {}
    for op in (*ops, *adopted):
        by_task.setdefault(op.task, []).append(op)
    for task, own in by_task.items():
        middle_us = median_low(op.start_us for op in own)
        earliest_us, latest_us = middle_us - _FAR_US, middle_us + _FAR_US
        near = [op for op in own if earliest_us < op.start_us and op.end_us < latest_us]
        lost += len(own) - len(near)
        by_task[task] = near
    return Rows({task: own for task, own in by_task.items() if own}, edges, lost + homeless)


def _adopt(loose: Sequence[NodeRow], ops: Sequence[RawOp]) -> tuple[list[RawOp], int]:
    """Give rows of devices without a task (GPU streams) to the task that has an op of that name."""
    if not loose:
        return [], 0
    tasks = sorted({op.task for op in ops}) or [0]
    known = {op.name: op for op in reversed(ops)}
    adopted = []
    for row in loose:
        name, _, kind = row.name.partition(":")
        same = known.get(name)
        if same is None and len(tasks) > 1:
            continue
        task = same.task if same is not None else tasks[0]
        device = _PLACE.sub("", row.device, count=1)
        op = _raw_op(task, device, row)
        adopted.append(op._replace(name=name, op=op.op or (same.op if same is not None else kind)))
    return adopted, len(loose) - len(adopted)


def _raw_op(task: int, device: str, row: NodeRow) -> RawOp:
    match = _OP.match(row.label)
    if match is None:
        op = SOURCE_OP if row.name == SOURCE_OP else ""
        return RawOp(task, device, row.name, op, (), row.start_us, row.end_us)
    inputs = tuple(each for each in match["inputs"].split(", ") if each)
    op = SOURCE_OP if row.name == SOURCE_OP else match["op"].removeprefix("_Mkl")
    return RawOp(task, device, row.name, op, inputs, row.start_us, row.end_us)


def _raw_edge(row: NodeRow) -> RawEdge | None:
    match = _EDGE.match(row.label)
    if match is None:
        return None
    source, target = _TASK.search(match["source"]), _TASK.search(match["target"])
    if source is None or target is None:
        return None
    size, rounded = row.output_bytes, False
    if size is None and match["size"] is not None and match["size"].count(".") <= 1:
        size, rounded = round(float(match["size"]) * _UNITS[match["unit"]]), True
    return RawEdge(
        tensor=match["tensor"],
        size_bytes=size,
        rounded=rounded,
        source=int(source[1]),
        target=int(target[1]),
        start_us=row.start_us,
        end_us=row.end_us,
    )
