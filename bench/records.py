"""Records of runs that never took place, as large as wanted: what the explanation is measured on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.node import wire
from labctl.runs.baseline import Baseline, ComputeBaseline, LinkBaseline
from labctl.runs.record import (
    ClockSample,
    LabPhase,
    NodeFacts,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
    ServerState,
    Span,
    UnitEnded,
    write_record,
)

_BEGIN_S = 1_796_000_000.0
_STEP_S = 0.045
_NODES = ("tf0", "tf1")
_DEVICE = "/job:local/replica:0/task:{}/device:CPU:0"
_EVERY = 20  # records: one of so many is a transfer


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a run is.

    Attributes:
        steps: Cold and warm ones.
        trace_records: Rows of the step stats of all traced steps.
        usage_every_s: Seconds between two usage events.
    """

    steps: int = 11
    trace_records: int = 40
    usage_every_s: float = wire.USAGE_PERIOD_S


def write_store(local_dir: Path, count: int, shape: Shape | None = None) -> None:
    """Write a store of so many runs below `.lab/<lab>`."""
    for number in range(count):
        write_run(local_dir / "runs" / run_id(number), shape or Shape(), number)


def run_id(number: int) -> str:
    """Return the id of the run of that number, in the order of time."""
    day, rest = divmod(number, 86_400)
    return f"203001{day + 1:02d}T{rest // 3600:02d}{rest // 60 % 60:02d}{rest % 60:02d}Z-{number % 0xFFFFFF:06x}"


def write_run(folder: Path, shape: Shape, number: int = 0) -> None:
    """Write the record of one run.

    Args:
        folder: Its directory, named by its id; it must not exist.
        shape: How large it is.
        number: Makes runs differ.
    """
    folder.mkdir(parents=True)
    dice = random.Random(number)  # noqa: S311 no secret
    origin_s = _BEGIN_S + 3600 * number
    writer = _Events(origin_s)
    _client(writer, shape, dice)
    (folder / wire.EVENTS_FILE).write_text("".join(writer.lines), encoding="utf-8")
    logs = folder / "logs" / _NODES[0]
    logs.mkdir(parents=True)
    (logs / "stdout").write_bytes(b"")
    stamp = f"{origin_s + 3.0:.6f}"
    (logs / "stderr").write_text(
        f"I0000 00:00:{stamp}  686 master.cc:243] Scanning workers for devices: 2 total workers\n"
        f"I0000 00:00:{float(stamp) + 0.01:.6f}  686 mlir_graph_optimization_pass.cc:437] MLIR V1 optimization\n",
        encoding="utf-8",
    )
    (folder / "trace").mkdir()
    for k in range(wire.TRACED_STEPS):
        data = step_stats(shape.trace_records // wire.TRACED_STEPS, writer.traced_s[k], dice)
        (folder / wire.TRACE_FILE.format(shape.steps + k)).write_bytes(data)
    write_record(folder, _record(folder.name, origin_s, writer.t_s + 0.4 - origin_s))


def step_stats(records: int, begin_unix_s: float, dice: random.Random) -> bytes:
    """Return serialised step stats of two tasks: products one after the other, and transfers between the tasks."""
    begin_us = int(begin_unix_s * 1e6)
    each = max(1, records // 2)
    width_us = _STEP_S * 1e6 * 0.8 / each
    devices = []
    for task in (0, 1):
        rows = [_node("_SOURCE", begin_us + 200, 1, "_SOURCE = NoOp()")]
        for k in range(each - 1):
            start_us = begin_us + 300 + int(k * width_us)
            if k % _EVERY == _EVERY // 2:
                source, target = _DEVICE.format(1 - task), _DEVICE.format(task)
                label = f"[3.8MB] [11.2Gb/s] edge_{k}_MatMul_{k} from {source} to {target}"
                rows.append(_node("RecvTensor", start_us, int(width_us) + 1, label, 4_000_000))
            else:
                label = (
                    f"[mklcpu 3.8MB 3.8MB] MatMul_{k} = _MklMatMul(MatMul_{k - 1}, input_{task})"
                )
                took_us = max(1, int(width_us * dice.uniform(0.7, 1.0)))
                rows.append(_node(f"MatMul_{k}", start_us, took_us, label, 4_000_000))
        devices.append(_text(1, _DEVICE.format(task)) + b"".join(_bytes(2, row) for row in rows))
    return b"".join(_bytes(1, device) for device in devices)


class _Events:
    """Writes events of the client, one after the other."""

    def __init__(self, origin_s: float) -> None:
        self.origin_s = origin_s
        self.t_s = origin_s + 1.0
        self.lines: list[str] = []
        self.traced_s: list[float] = []

    def add(self, kind: str, /, **data: Any) -> None:
        t_ns = int(self.t_s * 1e9)
        head = {"event": kind, "t": t_ns, "mono": t_ns - int(_BEGIN_S * 1e9) + 10**9}
        self.lines.append(json.dumps({**head, "source": "client", "task": 0, **data}) + "\n")

    def phase(self, name: str, duration_s: float) -> None:
        self.add(wire.PHASE_BEGIN, phase=name)
        self.t_s += duration_s
        self.add(wire.PHASE_END, phase=name, duration_ns=int(duration_s * 1e9))


def _client(writer: _Events, shape: Shape, dice: random.Random) -> None:
    started_ns = int(writer.t_s * 1e9)
    writer.t_s += 0.2
    writer.add(wire.HELLO, pid=686, process_start_t=started_ns, python="3.11.2", cpus=1)
    for name, duration_s in (
        (wire.PHASE_PEERS, 0.01),
        (wire.PHASE_IMPORT_NUMPY, 0.1),
        (wire.PHASE_IMPORT_TENSORFLOW, 1.5),
        (wire.PHASE_SERVER, 0.02),
        (wire.PHASE_GRAPH, 0.05),
        (wire.PHASE_SESSION, 0.001),
        (wire.PHASE_INPUTS, 0.02),
    ):
        writer.phase(name, duration_s)
    ops = {"MatMul": 8, "Placeholder": 2, "AddN": 1}
    writer.add(wire.GRAPH, nodes=11, ops=ops, bytes=1252, constant_bytes=0, sha256="0" * 64)
    total = shape.steps
    for index in range(shape.steps + wire.TRACED_STEPS):
        kind = "cold" if index == 0 else "warm" if index < shape.steps else "traced"
        if index in {0, 1, shape.steps}:
            phase = {0: wire.PHASE_FIRST_STEP, 1: wire.PHASE_WARM_STEPS}.get(
                index, wire.PHASE_TRACED_STEP
            )
            begun_s = writer.t_s
            writer.add(wire.PHASE_BEGIN, phase=phase)
        took_s = _STEP_S * dice.gauss(1.0, 0.04) * (6 if index == 0 else 1)
        if kind == "traced":
            writer.traced_s.append(writer.t_s)
        before = int((writer.t_s - writer.origin_s) / shape.usage_every_s)
        writer.t_s += took_s
        writer.add(wire.STEP, index=index, kind=kind, total=total, duration_ns=int(took_s * 1e9))
        if int((writer.t_s - writer.origin_s) / shape.usage_every_s) > before:
            _usage(writer)
        if index in {0, shape.steps - 1, shape.steps + wire.TRACED_STEPS - 1}:
            length_ns = int((writer.t_s - begun_s) * 1e9)
            writer.add(wire.PHASE_END, phase=phase, duration_ns=length_ns)
    writer.phase(wire.PHASE_VERIFY, 0.02)
    writer.add(
        wire.RESULT,
        ok=True,
        relative_error=6.3e-07,
        tolerance=1e-5,
        power_computed=5,
        products=8,
        norm=43.9,
        checked_by="float64",
        section_us=int(7 * _STEP_S * 1e6),
        end_to_end_us=int((writer.t_s - writer.origin_s) * 1e6),
    )
    writer.add(wire.BYE, exit=0)


def _usage(writer: _Events) -> None:
    ran_ns = int((writer.t_s - writer.origin_s) * 1e9)
    writer.add(
        wire.USAGE,
        cpu_ns=int(0.6 * ran_ns),
        wait_ns=int(0.1 * ran_ns),
        threads=40,
        rss_bytes=620_000_000,
        node_busy_ns=int(0.7 * ran_ns),
        node_idle_ns=int(0.3 * ran_ns),
        node_steal_ns=0,
        rx_bytes=int(ran_ns * 0.03),
        tx_bytes=int(ran_ns * 0.03),
    )


def _record(name: str, origin_s: float, wall_s: float) -> RunRecord:
    versions = {"python": "3.11.2", "tensorflow": "2.21.0", "numpy": "2.4.6", "kernel": "6.1.0"}
    server = ServerState(
        _NODES[1], "active", "1" * 32, origin_s - 600, "b1", startup_s=2.0, spec_sha256="0" * 64
    )
    return RunRecord(
        run_id=name,
        lab="bench",
        provider="rehearsal",
        outcome="ok",
        parameters=Parameters(
            experiment="matpow",
            trace=True,
            fresh=False,
            timeout_s=600.0,
            device="cpu",
            size=1000,
            power=5,
            algorithm="chain",
            feed="fed",
            placement="lab",
            api="session",
            inter_op=2,
            repeat=10,
            seed=20170901,
            fetch="sum",
            sum_task=0,
            soft_placement=False,
        ),
        tasks=2,
        origin=Origin(origin_s, 1.0, "b"),
        remote=RemoteRun(
            _NODES[0], f"/var/lib/labctl/runs/{name}", "labctl-run.service", "b0", origin_s + 1
        ),
        nodes=tuple(
            NodeFacts(
                node, k, f"10.132.0.{k + 2}:2222", versions, 1, "AMD EPYC", f"b{k}", None, 0.5
            )
            for k, node in enumerate(_NODES)
        ),
        labctl_version="0.1.0",
        payload_sha256="0" * 64,
        spec_sha256="0" * 64,
        spans=(
            Span("startup", "labctl", 0.0, 0.9, "labctl"),
            Span("collect", "labctl", wall_s - 0.3, 0.3, "labctl"),
        ),
        clock=tuple(
            ClockSample(node, at_s, 2e-5, 6e-5) for node in _NODES for at_s in (0.5, wall_s - 0.2)
        ),
        servers_before=(server,),
        servers_after=(server,),
        unit_end=UnitEnded("success", "exited", "0", origin_s + wall_s - 0.35),
        wall_s=wall_s,
        baseline=Baseline(
            boot_ids={"tf0": "b0", "tf1": "b1"},
            links=tuple(
                LinkBaseline(one, other, 9.4e9, 9e-5, 0, origin_s - 900, "iperf 3.12")
                for one, other in (_NODES, _NODES[::-1])
            ),
            compute=tuple(
                ComputeBaseline(node, 1000, 98.0, 1, "openblas 0.3.31", origin_s - 900)
                for node in _NODES
            ),
        ),
        lab_phases=(
            LabPhase("machine", "tf0", "up", origin_s - 3000, 1.2),
            LabPhase("machine", "tf1", "up", origin_s - 3000, 1.3),
            LabPhase("boot", "tf0", "up", origin_s - 2998, 8.1),
            LabPhase("boot", "tf1", "up", origin_s - 2998, 8.4),
            LabPhase("role lab_base", "", "provision", origin_s - 2900, 22.0),
            LabPhase("role tensorflow", "", "provision", origin_s - 2870, 31.0),
            LabPhase("role tf_join_server", "", "provision", origin_s - 2835, 9.0),
        ),
    )


# Protocol buffers, written by hand: fields of TensorFlow's step_stats.proto.


def _node(name: str, start_us: int, took_us: int, label: str, size: int = 0) -> bytes:
    data = _text(1, name) + _number(2, start_us) + _number(4, took_us) + _number(5, took_us)
    if size:
        allocation = _bytes(4, _number(1, size))
        data += _bytes(7, _bytes(3, allocation))
    return data + _text(8, label)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    return bytes(_septets(value))


def _septets(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def total_bytes(folder: Path) -> int:
    """Return the bytes of all files below a directory."""
    files: Iterable[Path] = (each for each in folder.rglob("*") if each.is_file())
    return sum(each.stat().st_size for each in files)
