"""Step stats made up by hand, byte for byte as protobuf has them, and runs that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.runs.baseline import Baseline, LinkBaseline
from labctl.runs.data import RunData, TraceFile
from labctl.runs.events import Event
from labctl.runs.record import (
    ClockSample,
    NodeFacts,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
)

ORIGIN_S = 1_796_000_000.0
START_US = 1_796_000_010_000_000  # of the traced step, on labctl's clock
MB4 = 4_000_000


@dataclass(frozen=True)
class Row:
    """One row, times in microseconds after the traced step's start on labctl's clock."""

    device: str
    name: str
    label: str
    start_us: float
    end_us: float
    size_bytes: int | None = None
    asked_us: float = 1_000  # when the receiver of a transfer asked for it
    queued_us: float | None = None  # when the host put it into a GPU's stream


def cpu(task: int) -> str:
    return f"/job:local/replica:0/task:{task}/device:CPU:0"


def op(
    task: int, name: str, kind: str, inputs: str, start_us: float, end_us: float, device: str = ""
) -> Row:
    label = f"[mklcpu 3.8MB] {name} = {kind}({inputs})"
    return Row(device or cpu(task), name, label, start_us, end_us)


def source(task: int, start_us: float) -> Row:
    return Row(cpu(task), "_SOURCE", "_SOURCE = NoOp()", start_us, start_us)


def recv(
    tensor: str,
    sender: int,
    receiver: int,
    start_us: float,
    end_us: float,
    size_bytes: int | None = MB4,
) -> Row:
    label = f"[3.8MB] [9.9Gb/s] edge_7_{tensor} from {cpu(sender)} to {cpu(receiver)}"
    return Row(cpu(receiver), "RecvTensor", label, start_us, end_us, size_bytes)


def step_stats(rows: Iterable[Row], ahead_us: dict[int, int] | None = None) -> bytes:
    """Return serialised StepStats.

    Args:
        rows: Its rows; a device has as many entries as it has runs of rows.
        ahead_us: How far each task's clock is ahead of labctl's. A transfer's start is the sender's.
    """
    entries: list[tuple[str, list[bytes]]] = []
    for row in rows:
        if not entries or entries[-1][0] != row.device:
            entries.append((row.device, []))
        entries[-1][1].append(_node(row, ahead_us or {}))
    return b"".join(
        _message(1, _text(1, device) + b"".join(_message(2, node) for node in nodes))
        for device, nodes in entries
    )


def _node(row: Row, ahead_us: dict[int, int]) -> bytes:
    tasks = [int(part.split("/")[0]) for part in f"{row.device} {row.label}".split("task:")[1:]]
    own = ahead_us.get(tasks[0], 0) if tasks else 0
    start_us, end_us = row.start_us + own, row.end_us + own
    if len(tasks) > 1:
        # TensorFlow cuts the sender's stamp to what the receiver saw, by the receiver's clock.
        sent_us = row.start_us + ahead_us.get(tasks[1], 0)
        start_us = min(max(sent_us, row.asked_us + own), end_us - 1)
    start_us, end_us = START_US + round(start_us), START_US + round(end_us)
    length_us = end_us - start_us
    data = _text(1, row.name) + _number(2, start_us) + _number(5, length_us) + _text(8, row.label)
    if row.name != "RecvTensor":
        data += _number(4, length_us)
    if row.queued_us is not None:
        data += _number(9, START_US + round(row.queued_us + own))
    if row.size_bytes is not None:
        data += _message(7, _message(3, _message(4, _number(1, row.size_bytes))))
    return data


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value % 2**64)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def run_data(
    rows: Sequence[Row],
    *,
    duration_ms: float,
    warm_ms: Sequence[float] = (),
    clock: Sequence[ClockSample] | None = None,
    ahead_us: dict[int, int] | None = None,
    placement: str = "lab",
    tasks: int = 2,
    bits_per_s: float | None = None,
) -> RunData:
    """Return a run with one traced step, index 11, that begins at START_US.

    Args:
        rows: Of its step stats.
        duration_ms: Of the traced step.
        warm_ms: Of the warm steps before it.
        clock: Samples; by default all clocks agree with labctl's to 0.1 ms.
        ahead_us: How far each task's clock is ahead.
        placement: Of the run.
        tasks: Number of tasks.
        bits_per_s: Network baseline of every direction.
    """
    names = [f"tf{task}" for task in range(tasks)]
    if clock is None:
        clock = [
            ClockSample(name, at_s, (ahead_us or {}).get(task, 0) / 1e6, 1e-4)
            for task, name in enumerate(names)
            for at_s in (1.0, 20.0)
        ]
    links = [
        LinkBaseline(one, other, bits_per_s, None, None, ORIGIN_S, "iperf3 3.12")
        for one in names
        for other in names
        if bits_per_s is not None and one != other
    ]
    record = RunRecord(
        run_id="20261130T175757Z-3daed9",
        lab="x",
        provider="none",
        outcome="ok",
        parameters=Parameters("matpow", True, False, 60.0, size=1000, placement=placement),
        tasks=tasks,
        origin=Origin(ORIGIN_S, 0.0, "b"),
        remote=RemoteRun("tf0", "/d", "u"),
        nodes=tuple(NodeFacts(name, task, f"{name}:2222") for task, name in enumerate(names)),
        labctl_version="0",
        payload_sha256="",
        spec_sha256="",
        clock=tuple(clock),
        wall_s=20.0,
        baseline=Baseline({}, tuple(links)) if links else None,
    )
    ahead_ns = (ahead_us or {}).get(0, 0) * 1000
    events = [
        _step(index, "warm", START_US * 1000 - 10**9 + index + ahead_ns, length_ms)
        for index, length_ms in enumerate(warm_ms, start=1)
    ]
    end_ns = START_US * 1000 + round(duration_ms * 1e6) + ahead_ns
    events.append(_step(11, "traced", end_ns, duration_ms))
    data = step_stats(rows, ahead_us)
    return RunData(Path(), record, tuple(events), traces=(TraceFile(11, data),))


def _step(index: int, kind: str, end_ns: int, length_ms: float) -> Event:
    data = {"index": index, "kind": kind, "duration_ns": round(length_ms * 1e6)}
    return Event("step", end_ns, 0, "client", 0, data)


def fed_step(*, starved: bool) -> list[Row]:
    """Return a fed step of two tasks, two products each; `starved` if its input is answered after task 0's own."""
    late = 19_000 if starved else 0
    return [
        recv("MatMul_3", 1, 0, 26_100 + late, 29_000 + late),
        recv("_recv_input_1_0", 0, 1, 2_000 + late, 5_000 + late),
        source(1, 1_000),
        op(1, "MatMul_2", "_MklMatMul", "_recv_input_1_0_S1, _recv_input_1_0_S1", 5_100 + late, 15_000 + late),
        op(1, "MatMul_3", "_MklMatMul", "MatMul_2, _recv_input_1_0_S1", 15_000 + late, 26_000 + late),
        source(0, 900),
        op(0, "MatMul", "_MklMatMul", "_recv_input_0_0, _recv_input_0_0", 1_000, 11_000),
        op(0, "MatMul_1", "_MklMatMul", "MatMul, _recv_input_0_0", 11_000, 21_000),
        op(0, "total", "AddN", "MatMul_1, MatMul_3_S3", 29_200 + late, 29_400 + late),
    ]  # fmt: skip
