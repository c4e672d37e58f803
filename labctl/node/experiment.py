"""The built-in experiment in the client's process: from the imports to the verdict on its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import limits, placement, wire
from .errors import OUT_OF_RANGE, NodeError
from .events import EventLog
from .experiments.power import power_computed
from .watch import Stall
from .wire import MatpowPlan

if TYPE_CHECKING:
    from .experiments.inputs import Float32
    from .experiments.matpow import Computation, Setting
    from .gpu import Gpu

T = TypeVar("T")

_LONG_STEP_NS = int(wire.LONG_STEP_S * 1e9)


class Experiment:
    """One run of the built-in experiment.

    Keep it to the end of the process: to drop a session may block.

    Args:
        events: Where what happens is written.
        stall: Told when TensorFlow is called and when it returns.
        directory: The run's directory; traces go below it.
        began_ns: When the client began, `time.perf_counter_ns`.
        gpu: Of a GPU run, else None.
    """

    def __init__(
        self,
        events: EventLog,
        stall: Stall,
        directory: Path,
        began_ns: int,
        gpu: Gpu | None = None,
    ) -> None:
        self._events = events
        self._stall = stall
        self._directory = directory
        self._began_ns = began_ns
        self._gpu = gpu
        self._computation: Computation | None = None

    def run(self, plan: MatpowPlan, tasks: int, addresses: tuple[str, ...], *, trace: bool) -> bool:
        """Do the steps and return whether their result is right.

        Args:
            plan: What to compute.
            tasks: Number of matrices.
            addresses: Of the cluster's servers, the client's own first; empty for `one-process`.
            trace: Take the extra steps, too.

        Raises:
            NodeError: The server could not be built, a task of a GPU run has no GPU, or float32 cannot hold the
                result.
        """
        with self._events.phase(wire.PHASE_IMPORT_NUMPY):
            from .experiments.description import describe
            from .experiments.matpow import Setting
        with self._events.phase(wire.PHASE_IMPORT_TENSORFLOW):
            import tensorflow as tf
        if self._gpu is not None:
            self._gpu.open_libraries()
        self._computation = computation = _computation(tf, Setting(plan, tasks, addresses))
        with self._events.phase(wire.PHASE_SERVER), self._stall:
            computation.start_server()
        if self._gpu is not None:
            self._gpu.kernel_cache("server")
        if plan.api == "tf2":
            self._require_gpus(computation, plan, tasks, addresses)
        constants = self._inputs(plan, tasks) if plan.feed == "constant" else []
        with self._events.phase(wire.PHASE_GRAPH):
            products = computation.build_graph(constants)
        with self._events.phase(wire.PHASE_DESCRIBE):
            self._events.emit(wire.GRAPH, **describe(computation.graph_def()))
        section_ns = time.perf_counter_ns()
        if plan.api == "session":
            with self._events.phase(wire.PHASE_SESSION):
                computation.open_session()
            self._require_gpus(computation, plan, tasks, addresses)
        inputs = constants or self._inputs(plan, tasks)
        if plan.feed == "staged":
            with self._events.phase(wire.PHASE_STAGE), self._stall:
                computation.stage(inputs)
        with self._events.phase(wire.PHASE_FIRST_STEP):
            result = self._step(computation, plan, inputs, 0)
        section_ns = time.perf_counter_ns() - section_ns
        if self._gpu is not None:
            self._gpu.kernel_cache("first_step")
        with self._events.phase(wire.PHASE_WARM_STEPS):
            for index in range(1, plan.repeat + 1):
                result = self._step(computation, plan, inputs, index)
        if trace:
            index = self._traced_steps(computation, plan, inputs)
            self._probe_steps(computation, plan, inputs, index)
        if self._gpu is not None and not plan.soft_placement:
            placement.require_on_gpu(computation.misplaced())
        return self._verify(
            computation, plan, inputs, result, products=products, section_us=section_ns // 1000
        )

    def close(self) -> None:
        """Free what lies on the other tasks. May block when a peer is gone."""
        if self._computation is not None:
            self._computation.close()

    def _require_gpus(
        self, computation: Computation, plan: MatpowPlan, tasks: int, addresses: tuple[str, ...]
    ) -> None:
        """Check that every task of a GPU run has one; `--soft-placement` takes what there is."""
        if self._gpu is None or plan.soft_placement:
            return
        with self._events.phase(wire.PHASE_DEVICES), self._stall:
            devices = computation.devices()
        placement.require_gpus(devices, tasks, addresses, nvml_error=self._gpu.error)

    def _inputs(self, plan: MatpowPlan, tasks: int) -> list[Float32]:
        from .experiments.inputs import make_inputs

        with self._events.phase(wire.PHASE_INPUTS):
            return make_inputs(plan, tasks)

    def _step(
        self, computation: Computation, plan: MatpowPlan, inputs: Sequence[Float32], index: int
    ) -> Float32 | None:
        result, duration_ns = self._timed(
            lambda: computation.step(inputs, fetch=plan.fetch == "sum")
        )
        self._tell(plan, index, "warm" if index else "cold", duration_ns)
        return result

    def _timed(self, step: Callable[[], T]) -> tuple[T, int]:
        begin = time.perf_counter_ns()
        with self._stall:
            made = step()
        return made, time.perf_counter_ns() - begin

    def _tell(self, plan: MatpowPlan, index: int, kind: str, duration_ns: int) -> None:
        self._events.emit(
            wire.STEP, index=index, kind=kind, total=plan.repeat + 1, duration_ns=duration_ns
        )

    def _traced_steps(
        self, computation: Computation, plan: MatpowPlan, inputs: Sequence[Float32]
    ) -> int:
        """Take the traced steps and return the index that follows theirs."""
        index = plan.repeat + 1
        with self._events.phase(wire.PHASE_TRACED_STEP):
            for _ in range(wire.TRACED_STEPS):
                stats, duration_ns = self._timed(
                    lambda: computation.traced_step(inputs, fetch=plan.fetch == "sum")
                )
                if stats is None:
                    self._events.emit(wire.NOTE, text="no trace: this API has no step stats")
                    break
                self._tell(plan, index, "traced", duration_ns)
                path = self._directory / wire.TRACE_FILE.format(index)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(stats)
                index += 1
                if duration_ns > _LONG_STEP_NS:
                    break
        return index

    def _probe_steps(
        self, computation: Computation, plan: MatpowPlan, inputs: Sequence[Float32], index: int
    ) -> None:
        """Take the steps that leave something out; the first of a kind, which sets its graph up, is not told."""
        kinds: dict[str, Callable[[], object]] = {
            "no_fetch": lambda: computation.step(inputs, fetch=False),
            "null": computation.null_step,
        }
        with self._events.phase(wire.PHASE_PROBES):
            for kind, step in kinds.items():
                for number in range(wire.PROBE_STEPS + 1):
                    made, duration_ns = self._timed(step)
                    if made is False:
                        self._events.emit(wire.NOTE, text=f"no {kind} steps: not with this API")
                        break
                    if number == 0:
                        continue
                    self._tell(plan, index, kind, duration_ns)
                    index += 1
                    if duration_ns > _LONG_STEP_NS:
                        break

    def _verify(
        self,
        computation: Computation,
        plan: MatpowPlan,
        inputs: Sequence[Float32],
        result: Float32 | None,
        *,
        products: int,
        section_us: int,
    ) -> bool:
        """Check the last step's result; where it was not fetched, that of one step more."""
        from .verify import verify

        power = power_computed(plan.power, plan.algorithm)
        with self._events.phase(wire.PHASE_VERIFY):
            if result is None:
                with self._stall:
                    result = computation.step(inputs, fetch=True)
            assert result is not None  # noqa: S101 it was fetched
            method = limits.check_method(plan, len(inputs))
            verdict = verify(result, inputs, power, method, plan.seed)
        self._events.emit(
            wire.RESULT,
            ok=verdict.ok,
            relative_error=verdict.relative_error,
            tolerance=verdict.tolerance,
            power_computed=power,
            products=products,
            norm=verdict.norm,
            checked_by=verdict.checked_by,
            section_us=section_us,
            end_to_end_us=(time.perf_counter_ns() - self._began_ns) // 1000,
        )
        if verdict.relative_error is None:
            raise NodeError(
                f"float32 cannot hold the sum of M^{power} for size {plan.size}: its norm is {verdict.norm}",
                expected="finite entries that are not all 0",
                do="a smaller --power, or --algorithm chain or squaring, whose inputs are scaled",
                kind=OUT_OF_RANGE,
                status=wire.EXIT_WRONG,
            )
        return verdict.ok


def _computation(tf: Any, setting: Setting) -> Computation:
    if setting.plan.api == "tf2":
        from .experiments.tf2_api import FunctionComputation

        return FunctionComputation(tf, setting)
    from .experiments.session_api import SessionComputation

    return SessionComputation(tf, setting)
