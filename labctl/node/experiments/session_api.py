"""The experiment through `tf.compat.v1.Session`: one graph over all tasks, as in the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..placement import misplaced_products
from ..server import server_config, start_server
from .inputs import Float32
from .matpow import Setting
from .power import form_power


class SessionComputation:
    """See `Computation`.

    Args:
        tf: The tensorflow module.
        setting: Where to compute.
    """

    def __init__(self, tf: Any, setting: Setting) -> None:
        self._tf = tf
        self._v1 = tf.compat.v1
        self._setting = setting
        self._graph = self._v1.Graph()
        self._placeholders: list[Any] = []
        self._initializers: list[Any] = []
        self._destroyers: list[Any] = []
        self._total: Any = None
        self._idle: list[Any] = []
        self._target = ""
        self._server: Any = None
        self._session: Any = None
        self._misplaced: list[tuple[str, str]] = []

    def start_server(self) -> None:
        if not self._setting.addresses:
            return
        config = server_config(
            self._tf, self._setting.plan.inter_op, use_gpu=self._setting.plan.device == "gpu"
        )
        self._server = start_server(self._tf, self._setting.addresses, 0, config)
        self._target = self._server.target

    def build_graph(self, constants: Sequence[Float32]) -> int:
        """Build the graph; inputs are placeholders or variables, which TF cannot fold, if not constants."""
        plan, setting = self._setting.plan, self._setting
        with self._graph.as_default():
            powers = []
            for task in range(setting.tasks):
                fed = None if constants else self._placeholder(task)
                with self._v1.device(setting.device(task, plan.device)):
                    if fed is None:
                        matrix = self._v1.constant(constants[task], name=f"matrix_{task}")
                    else:
                        matrix = self._variable(task, fed) if plan.feed == "staged" else fed
                    powers.append(form_power(matrix, plan.power, plan.algorithm, self._tf.matmul))
            with self._v1.device(setting.device(plan.sum_task, "cpu")):
                self._total = self._v1.add_n(powers, name="total")
            for task in range(setting.tasks):
                with self._v1.device(setting.device(task, "cpu")):
                    self._idle.append(self._v1.no_op(name=f"idle_{task}"))
        return sum(op.type == "MatMul" for op in self._graph.get_operations())

    def graph_def(self) -> Any:
        return self._graph.as_graph_def()

    def open_session(self) -> bool:
        config = server_config(
            self._tf, self._setting.plan.inter_op, use_gpu=self._setting.plan.device == "gpu"
        )
        config.allow_soft_placement = self._setting.plan.soft_placement
        self._session = self._v1.Session(self._target, graph=self._graph, config=config)
        return True

    def devices(self) -> list[str]:
        return [device.name for device in self._session.list_devices()]

    def stage(self, inputs: Sequence[Float32]) -> None:
        self._session.run(self._initializers, feed_dict=self._feeds(inputs))

    def step(self, inputs: Sequence[Float32], *, fetch: bool) -> Float32 | None:
        return self._run(inputs, fetch=fetch)

    def traced_step(self, inputs: Sequence[Float32], *, fetch: bool) -> bytes | None:
        options = self._v1.RunOptions(trace_level=self._v1.RunOptions.FULL_TRACE)
        metadata = self._v1.RunMetadata()
        self._run(inputs, fetch=fetch, options=options, run_metadata=metadata)
        self._misplaced += misplaced_products(metadata.step_stats)
        serialised: bytes = metadata.step_stats.SerializeToString()
        return serialised

    def misplaced(self) -> list[tuple[str, str]]:
        return self._misplaced

    def null_step(self) -> bool:
        self._session.run(self._idle)
        return True

    def close(self) -> None:
        if self._destroyers:
            self._session.run(self._destroyers)
        self._session.close()

    def _run(self, inputs: Sequence[Float32], *, fetch: bool, **options: Any) -> Float32 | None:
        feeds = self._feeds(inputs) if self._setting.plan.feed == "fed" else None
        wanted = self._total if fetch else self._total.op
        result: Float32 | None = self._session.run(wanted, feed_dict=feeds, **options)
        return result

    def _feeds(self, inputs: Sequence[Float32]) -> dict[Any, Float32]:
        return dict(zip(self._placeholders, inputs, strict=True))

    def _placeholder(self, task: int) -> Any:
        shape = [self._setting.plan.size] * 2
        with self._v1.device(self._setting.device(task, "cpu")):
            fed = self._v1.placeholder(self._tf.float32, shape, name=f"input_{task}")
        self._placeholders.append(fed)
        return fed

    def _variable(self, task: int, fed: Any) -> Any:
        variable = self._v1.get_variable(
            f"matrix_{task}", initializer=fed, trainable=False, use_resource=True
        )
        self._initializers.append(variable.initializer)
        self._destroyers.append(self._tf.raw_ops.DestroyResourceOp(resource=variable.handle))
        return variable.read_value()
