"""The work that is to be foreseen: a run of the built-in experiment, as far as the model knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.analysis.constants import RunFacts
from labctl.node import wire
from labctl.runs.record import Parameters


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be foreseen.

    Attributes:
        size: L.
        power: n.
        algorithm: How the power is formed.
        feed: `fed` or `staged`.
        placement: `lab`, `one-host` or `one-process`.
        tasks: Matrices.
        inter_op: Threads of task 0's inter-op pool, None for TensorFlow's default: one a CPU.
        repeat: Warm steps.
        fetch: `sum` or `none`.
        trace: Traced and probe steps follow.
        command: It is a command of its own, not part of a batch.
        device: Device type of the products, `cpu` or `gpu`.
    """

    size: int = 1000
    power: int = 5
    algorithm: str = "chain"
    feed: str = "fed"
    placement: str = "lab"
    tasks: int = 2
    inter_op: int | None = 2
    repeat: int = 10
    fetch: str = "sum"
    trace: bool = True
    command: bool = True
    device: str = "cpu"

    @property
    def products(self) -> int:
        """Products that one task forms in a step."""
        if self.algorithm == "listing":
            return self.power
        if self.algorithm == "squaring":
            return self.power.bit_length() + self.power.bit_count() - 2
        return self.power - 1

    @property
    def gflop(self) -> float:
        """2 p L^3 / 10^9, of one task."""
        return 2 * self.products * self.size**3 / 1e9

    @property
    def matrix_mb(self) -> float:
        """Bytes of one matrix / 10^6."""
        return 4 * self.size**2 / 1e6


def device_of(parameters: Parameters) -> str:
    """Return where a run's products ran for certain: `cpu`, `gpu`, or "" where TensorFlow chose by itself."""
    if parameters.device == "gpu":
        return "" if parameters.soft_placement else "gpu"
    return parameters.device or "cpu"


def work_of(parameters: Parameters, tasks: int, *, command: bool = True) -> Work | str:
    """Return the work of a run, or why the model does not hold for it."""
    if parameters.experiment != "matpow":
        return "script"
    device = device_of(parameters)
    if device not in wire.DEVICES:
        return "soft placement"
    if parameters.api != "session":
        return str(parameters.api)
    if parameters.feed not in {"fed", "staged"}:
        return f"feed {parameters.feed}"
    if parameters.sum_task not in {None, 0}:
        return "sum on another task"
    if (
        not parameters.size
        or not parameters.power
        or min(parameters.size, parameters.power, tasks) < 1
    ):
        return "size or power unknown"
    return Work(
        size=parameters.size,
        power=parameters.power,
        algorithm=parameters.algorithm or "chain",
        feed=parameters.feed,
        placement=parameters.placement or "lab",
        tasks=tasks,
        inter_op=parameters.inter_op,
        repeat=parameters.repeat or 0,
        fetch=parameters.fetch or "sum",
        trace=parameters.trace,
        command=command,
        device=device,
    )


def work_or_like(facts: RunFacts) -> Work:
    """Return the work of a run, as far as the model knows it."""
    work = work_of(facts.parameters, facts.tasks)
    if isinstance(work, Work):
        return work
    return Work(size=facts.size, power=facts.parameters.power or 1, tasks=facts.tasks)
