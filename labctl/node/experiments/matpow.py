"""What both TensorFlow APIs of the experiment have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..wire import JOB_NAME, MatpowPlan
from .inputs import Float32


@dataclass(frozen=True)
class Setting:
    """Where the experiment computes.

    Attributes:
        plan: Its parameters.
        tasks: Number of matrices, one a task.
        addresses: Of the cluster's servers, the client's own first; empty for `one-process`.
    """

    plan: MatpowPlan
    tasks: int
    addresses: tuple[str, ...]

    def device(self, task: int, kind: str) -> str:
        """Return TensorFlow's name for a task's device of kind `cpu` or `gpu`; without a cluster all are here."""
        job = f"/job:{JOB_NAME}/task:{task}" if self.addresses else ""
        return f"{job}/device:{kind.upper()}:0"


class Computation(Protocol):
    """One way to run the experiment, from server to result. Methods are called in this order."""

    def start_server(self) -> None:
        """Configure TensorFlow and, but for `one-process`, start this task's own server."""

    def build_graph(self, constants: Sequence[Float32]) -> int:
        """Build the graph and return how many products it has, all tasks together.

        Args:
            constants: The inputs that are written into the graph, for `constant`; otherwise empty.
        """

    def graph_def(self) -> Any:
        """Return the `GraphDef` of the whole graph as it was built, before TensorFlow optimises it."""

    def open_session(self) -> bool:
        """Open the session; False if this API has none."""

    def devices(self) -> list[str]:
        """Return TensorFlow's names of all tasks' devices. For a session it is the first contact with them."""

    def stage(self, inputs: Sequence[Float32]) -> None:
        """Put the inputs into variables on their tasks, once; only for `staged`."""

    def step(self, inputs: Sequence[Float32], *, fetch: bool) -> Float32 | None:
        """Compute once; return the L x L sum, or leave it where it is and return None. Called many times."""

    def traced_step(self, inputs: Sequence[Float32], *, fetch: bool) -> bytes | None:
        """Compute once with a full trace; return the serialised StepStats, None if this API has none."""

    def misplaced(self) -> list[tuple[str, str]]:
        """Return name and device of each product that traced steps saw on a CPU."""

    def null_step(self) -> bool:
        """Run an op on every task that does nothing; False if this API has no such step."""

    def close(self) -> None:
        """Free what lies on the other tasks. May block when a peer is gone."""
