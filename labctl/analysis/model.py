"""What the analysis says of a run, as frozen values; the modules beside this one make them, the views read them.

Times of a step are seconds after that step's start on labctl's clock; a node's stamps are mapped with its
measured offset. Where a figure rests on a stamp of another node, its error bound goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class OpRun:
    """One op that ran once in a traced step.

    Attributes:
        task: Task index.
        device: TensorFlow's device name without job, replica and task, e.g. `CPU:0`.
        name: Of the node in the graph.
        op: Its type, e.g. `MatMul`; `_MklMatMul` is told as `MatMul`.
        inputs: Names of the tensors that it reads, as TensorFlow labels them.
        start_s: When its kernel began.
        end_s: When it ended.
    """

    task: int
    device: str
    name: str
    op: str
    inputs: tuple[str, ...]
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Edge:
    """One tensor's way from one task to another in a traced step.

    Attributes:
        tensor: Its name in the graph, e.g. `MatMul_7` or `_recv_input_1_0`.
        size_bytes: Bytes of the tensor, None where the trace does not say.
        source: Sending task.
        target: Receiving task.
        asked_s: When the receiver asked for it; None if unknown.
        answered_s: When the sender began to answer, by the sender's clock.
        arrived_s: When it was there, by the receiver's clock.
        waited_s: Between asked and answered; None if unknown.
        clamped: The sender's stamp lay outside of what the receiver saw, so TensorFlow cut it: `answered_s`,
            `waited_s` and the rate are not to be believed.
        clock_error_s: Bound of the error of `answered_s` against the receiver's stamps; infinite where a clock
            was never measured.
        baseline_share: Rate as part of the measured network baseline of this direction, 0 to 1 and above; None
            without a baseline.
        doubt: Why the rate is not to be believed although the stamp was not cut: it is above what the baseline
            allows; None for no doubt.
    """

    tensor: str
    size_bytes: int | None
    source: int
    target: int
    asked_s: float | None
    answered_s: float
    arrived_s: float
    waited_s: float | None
    clamped: bool
    clock_error_s: float
    baseline_share: float | None = None
    doubt: str | None = None

    @property
    def believed(self) -> bool:
        """Whether the rate can be true."""
        return not self.clamped and self.doubt is None

    @property
    def asked_mb_per_s(self) -> float | None:
        """Least rate that it had, MB/s: since it was asked for, by the receiver's clock alone."""
        if self.size_bytes is None or self.asked_s is None or self.arrived_s <= self.asked_s:
            return None
        return self.size_bytes / 1e6 / (self.arrived_s - self.asked_s)

    @property
    def wire_s(self) -> float:
        """Seconds from answer to arrival."""
        return self.arrived_s - self.answered_s

    @property
    def mb_per_s(self) -> float | None:
        """Rate in MB (10^6 bytes) a second, None where size or time are not known."""
        if self.size_bytes is None or self.clamped or self.wire_s <= 0:
            return None
        return self.size_bytes / 1e6 / self.wire_s


@dataclass(frozen=True, slots=True)
class Copy:
    """One tensor's way between a node's memory and its GPU in a traced step, by CUPTI: an edge within a task.

    Attributes:
        kind: `h2d` from host to device, `d2h` back.
        task: Whose.
        device: The GPU, e.g. `GPU:0`.
        tensor: Its name in the graph, "" where TensorFlow named none.
        size_bytes: Bytes, None where the trace does not say.
        host_memory: Of the host's side: `pinned`, `pageable`; "" where the trace does not say.
        queued_s: When the host put it into the stream; None where the trace does not say.
        start_s: When the copy began.
        end_s: When it ended.
    """

    kind: Literal["h2d", "d2h"]
    task: int
    device: str
    tensor: str
    size_bytes: int | None
    host_memory: str
    queued_s: float | None
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s

    @property
    def mb_per_s(self) -> float | None:
        """Rate in MB (10^6 bytes) a second, None where size or time are not known."""
        if self.size_bytes is None or self.duration_s <= 0:
            return None
        return self.size_bytes / 1e6 / self.duration_s


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """What one task did in a traced step.

    Attributes:
        task: Task index.
        node: Its node.
        began_s: When its part of the graph started.
        ended_s: When its last op ended.
        compute_s: Time in which at least one of its ops ran (union).
        op_sum_s: Sum of its ops' times.
        products: MatMul ops that ran, by device.
        gflops: 2 L^3 x products / time of the products / 10^9; None if there were none or L is unknown, and where a
            GPU's rows tell only when ops were queued.
        queued_only: Its products ran on a GPU and TensorFlow collected no GPU trace (CUPTI): `compute_s`,
            `op_sum_s` and `ended_s` are of putting them into the stream, not of running them.
    """

    task: int
    node: str
    began_s: float
    ended_s: float
    compute_s: float
    op_sum_s: float
    products: dict[str, int]
    gflops: float | None
    queued_only: bool = False


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One traced step.

    Attributes:
        index: Of the step; -1 in records that kept only one.
        duration_s: Wall time that the client saw, seconds; from first to last stamp where no event tells it.
        ops: By start.
        edges: By arrival.
        tasks: In task order.
        compute_sum_s: Sum of the tasks' `compute_s`.
        compute_union_s: Time in which at least one task computed.
        dispatch_s: From the step's start to the first op.
        fetch_s: From the last op's end to the step's end: the result's way back to Python. Never recorded by
            TensorFlow, so it is the rest.
        copies: Between host and GPU, by start; none without CUPTI.
    """

    index: int
    duration_s: float
    ops: tuple[OpRun, ...]
    edges: tuple[Edge, ...]
    tasks: tuple[TaskTrace, ...]
    compute_sum_s: float
    compute_union_s: float
    dispatch_s: float
    fetch_s: float
    copies: tuple[Copy, ...] = ()

    @property
    def overlap_s(self) -> float:
        """Time that the tasks saved by computing at the same time: sum minus union, seconds."""
        return self.compute_sum_s - self.compute_union_s


@dataclass(frozen=True, slots=True)
class SplitRow:
    """One part of a warm step.

    Attributes:
        what: `dispatch`, `compute`, `copy` (between host and GPU), `transfer`, `wait`, `fetch` or `other`.
        task: The task that computes, copies or waits; the receiver of a transfer; None where there is no one.
        source: Sender of a transfer, else None.
        seconds: Of the median warm step.
    """

    what: str
    task: int | None
    source: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class StepSplit:
    """A median warm step in parts that add up to it: the traced step's critical path, scaled.

    Attributes:
        rows: In order of the path; parts of one kind are added up.
        total_s: The median warm step, seconds.
        traced_s: The traced step that the proportions come from, seconds.
        scale: `total_s / traced_s`; below 1 by what tracing costs.
    """

    rows: tuple[SplitRow, ...]
    total_s: float
    traced_s: float
    scale: float


@dataclass(frozen=True, slots=True)
class TracingCost:
    """What tracing costs: traced steps against warm ones, never mixed.

    Attributes:
        warm_median_ms: Of the warm steps.
        traced_median_ms: Of the traced steps.
        n: Number of traced steps.
    """

    warm_median_ms: float
    traced_median_ms: float
    n: int

    @property
    def ratio(self) -> float:
        """Traced / warm."""
        return self.traced_median_ms / self.warm_median_ms


@dataclass(frozen=True, slots=True)
class ClockLine:
    """A node's clock against labctl's over a run.

    Attributes:
        node: Node name.
        offset_s: Node minus labctl at the middle of the run, seconds.
        error_s: Its bound.
        drift_s: Change from the first to the last sample; None with fewer than two.
        samples: How many there were.
        absurd: The samples contradict each other by more than their bounds: the clock jumped; or it is more than
            a day off.
    """

    node: str
    offset_s: float
    error_s: float
    drift_s: float | None
    samples: int
    absurd: bool = False
