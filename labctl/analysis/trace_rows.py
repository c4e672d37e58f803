"""The rows of step stats, told apart: ops with task and inputs, transfers between tasks, a GPU's copies. Pure.

How a GPU's rows look stands in TensorFlow 2's xplane_to_step_stats.cc (`ConvertGpuXSpaceToStepStats`): devices
`/device:GPU:0/stream:14` of kernels and `/device:GPU:0/stream:15<MemcpyH2D>` of copies, without job and task, each
row a second time below `/stream:all` and `/memcpy`, and `/sync` of waiting for a stream. A copy's label is
`MemcpyH2D` and details such as `kind_src:pinned kind_dst:device size:4000000 dest:0 async:1` (cupti_collector.cc);
its name is that of the edge (copy_tensor.cc), or the label's first word. TensorFlow 1's device_tracer.cc has
MEMCPYHtoD and MEMCPYDtoH.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Literal, NamedTuple

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
_COPY = re.compile(r"memcpy_?(?P<source>[hd])(?:2|to)(?P<target>[hd])\b", re.IGNORECASE)
_COPY_BYTES = re.compile(r"\b(?:size|num_bytes|bytes):(\d{1,18})\b")
_HOST_MEMORY = {
    "h2d": re.compile(r"\bkind_src:(\w+)"),
    "d2h": re.compile(r"\bkind_dst:(\w+)"),
}
_EDGE_NAME = re.compile(r"\Aedge_\d+_")
_STREAM = re.compile(r"/stream:\d")
_ALL_STREAMS = ("/stream:all", "/memcpy")
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


class RawCopy(NamedTuple):
    """A copy between host and GPU by the clock of its node.

    Attributes:
        kind: Its direction.
        task: Task index.
        device: The GPU, e.g. `GPU:0`.
        tensor: Name of the tensor, "" if it is not told.
        size_bytes: None if they are not told.
        host_memory: `pinned`, `pageable` or "".
        queued_us: When the host queued it, Unix time, microseconds; None if it is not told.
        start_us: Unix time, microseconds.
        end_us: Unix time, microseconds.
    """

    kind: Literal["h2d", "d2h"]
    task: int
    device: str
    tensor: str
    size_bytes: int | None
    host_memory: str
    queued_us: int | None
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
        copies: Between host and GPU, in that order.
    """

    ops: dict[int, list[RawOp]]
    edges: list[RawEdge]
    lost: int
    copies: list[RawCopy] = field(default_factory=list)


def tell_apart(rows: Iterable[NodeRow]) -> Rows:
    """Return ops and edges of rows."""
    ops: list[RawOp] = []
    edges: list[RawEdge] = []
    loose: list[list[NodeRow]] = []  # in blocks: TensorFlow has the rows of one task together
    together = False
    copies: list[RawCopy] = []
    lost = 0
    devices: dict[str, tuple[int | None, str]] = {}
    for row in rows:
        if row.device not in devices:
            match = _TASK.search(row.device)
            task = None if match is None else int(match[1])
            devices[row.device] = task, _PLACE.sub("", row.device, count=1)
        task, device = devices[row.device]
        is_loose = task is None and row.name != _TRANSFER
        if is_loose and not together:
            loose.append([])
        together = is_loose
        if row.start_us <= 0 or (row.end_us < row.start_us and row.name != _TRANSFER):
            lost += 1
        elif row.name == _TRANSFER:
            edge = _raw_edge(row)
            if edge is None:
                lost += 1
            else:
                edges.append(edge)
        elif task is None:
            loose[-1].append(row)
        else:
            ops.append(_raw_op(task, device, row))
    adopted, homeless = _adopt(loose, ops, copies)
    by_task: dict[int, list[RawOp]] = {}
    for op in (*ops, *adopted):
        by_task.setdefault(op.task, []).append(op)
    for task, own in by_task.items():
        middle_us = median_low(op.start_us for op in own)
        earliest_us, latest_us = middle_us - _FAR_US, middle_us + _FAR_US
        near = [op for op in own if earliest_us < op.start_us and op.end_us < latest_us]
        lost += len(own) - len(near)
        by_task[task] = near
    return Rows({task: own for task, own in by_task.items() if own}, edges, lost + homeless, copies)


def _adopt(
    blocks: Sequence[Sequence[NodeRow]], ops: Sequence[RawOp], copies: list[RawCopy]
) -> tuple[list[RawOp], int]:
    """Give rows of devices without a task (GPU streams) to the task that has their ops, and note their copies.

    A row whose name no op has goes with the others of its block, or to the only task that has a GPU.
    """
    tasks = sorted({op.task for op in ops}) or [0]
    known = {op.name: op for op in reversed(ops)}
    with_gpu = sorted({op.task for op in ops if op.device.startswith("GPU:")})
    only = tasks if len(tasks) == 1 else with_gpu if len(with_gpu) == 1 else None
    adopted: list[RawOp] = []
    homeless = 0
    for rows in blocks:
        named = Counter(same.task for row in rows if (same := known.get(_op_name(row))) is not None)
        task = named.most_common(1)[0][0] if named else only[0] if only is not None else None
        single = {_gpu_of(row.device) for row in rows if _STREAM.search(row.device)}
        for row in rows:
            name, _, kind = row.name.partition(":")
            same = known.get(_op_name(row))
            owner = task if same is None else same.task
            if owner is None:
                homeless += 1
                continue
            if row.device.endswith(_ALL_STREAMS) and _gpu_of(row.device) in single:
                continue  # the same rows stand below their own streams
            device = _PLACE.sub("", row.device, count=1)
            op = _raw_op(owner, device, row)
            copy = _raw_copy(owner, row)
            if copy is not None:
                copies.append(copy)
            op_name = op.op or (same.op if same is not None else kind)
            adopted.append(op._replace(name=name, op=op_name))
    return adopted, homeless


def _op_name(row: NodeRow) -> str:
    """Return the op whose kernel a row is of, or whose output it copies."""
    return _EDGE_NAME.sub("", row.name.partition(":")[0])


def _gpu_of(device: str) -> str:
    """Return the GPU that a row of its streams is of, e.g. `GPU:0`."""
    return _PLACE.sub("", device, count=1).partition("/")[0]


def _raw_copy(task: int, row: NodeRow) -> RawCopy | None:
    """Return the copy between host and GPU that a row is of, None if it is of none."""
    match = _COPY.search(row.label) or _COPY.search(row.device) or _COPY.search(row.name)
    if match is None or match["source"].lower() == match["target"].lower():
        return None
    kind: Literal["h2d", "d2h"] = "h2d" if match["source"].lower() == "h" else "d2h"
    size = _COPY_BYTES.search(row.label)
    memory = _HOST_MEMORY[kind].search(row.label)
    name = _op_name(row)
    queued = 0 < row.scheduled_us <= row.start_us < row.scheduled_us + _FAR_US
    return RawCopy(
        kind=kind,
        task=task,
        device=_gpu_of(row.device),
        tensor="" if _COPY.match(name) else name,
        size_bytes=int(size[1]) if size is not None and int(size[1]) > 0 else row.output_bytes,
        host_memory="" if memory is None else memory[1],
        queued_us=row.scheduled_us if queued else None,
        start_us=row.start_us,
        end_us=row.end_us,
    )


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
