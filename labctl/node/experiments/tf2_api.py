"""The experiment through `tf.function` on a connected cluster, for comparison with the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import wire
from ..errors import NodeError, classify, shorten
from ..ports import port_in_use
from ..spec import split_address
from .inputs import Float32
from .matpow import Setting
from .power import form_power


class FunctionComputation:
    """See `Computation`. The call of the function with its inputs is the step; there is no session.

    Args:
        tf: The tensorflow module.
        setting: Where to compute.
    """

    def __init__(self, tf: Any, setting: Setting) -> None:
        self._tf = tf
        self._setting = setting
        self._variables: list[Any] = []
        self._call: Any = None
        self._graph: Any = None

    def start_server(self) -> None:
        """Configure TensorFlow and connect to the cluster, which starts this task's own server.

        Raises:
            NodeError: This task's port is taken.
        """
        tf, plan = self._tf, self._setting.plan
        tf.config.set_soft_device_placement(plan.soft_placement)
        tf.config.experimental.enable_tensor_float_32_execution(False)
        if plan.inter_op is not None:
            tf.config.threading.set_inter_op_parallelism_threads(plan.inter_op)
        if plan.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        else:
            for gpu in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(gpu, True)
        addresses = self._setting.addresses
        if not addresses:
            return
        spec = tf.train.ClusterSpec(wire.cluster_spec(addresses))
        try:
            tf.config.experimental_connect_to_cluster(
                spec, job_name=wire.JOB_NAME, task_index=0, protocol="grpc"
            )
            tf.config.list_logical_devices()  # connecting waits for the first use of a device
        except tf.errors.OpError as error:
            if classify(type(error).__name__, error.message) == "port-in-use":
                raise port_in_use(split_address(addresses[0])[1]) from error
            raise NodeError(f"TensorFlow could not connect: {shorten(error.message)}") from error

    def build_graph(self, constants: Sequence[Float32]) -> int:
        """Trace the function; with staged inputs it makes their variables, empty, on their tasks."""
        tf, plan, setting = self._tf, self._setting.plan, self._setting
        shape = (plan.size, plan.size)
        if plan.feed == "staged":
            for task in range(setting.tasks):
                with tf.device(setting.device(task, plan.device)):
                    self._variables.append(tf.Variable(tf.zeros(shape), trainable=False))

        def total(*matrices: Any) -> Any:
            powers = []
            for task in range(setting.tasks):
                with tf.device(setting.device(task, plan.device)):
                    if constants:
                        matrix = tf.constant(constants[task])
                    elif self._variables:
                        matrix = self._variables[task].read_value()
                    else:
                        matrix = matrices[task]
                    powers.append(form_power(matrix, plan.power, plan.algorithm, tf.matmul))
            with tf.device(setting.device(plan.sum_task, "cpu")):
                return tf.add_n(powers)

        fed = setting.tasks if plan.feed == "fed" else 0
        function = tf.function(total)
        concrete = function.get_concrete_function(*[tf.TensorSpec(shape, tf.float32)] * fed)
        self._call, self._graph = function, concrete.graph
        return sum(op.type == "MatMul" for op in self._graph.get_operations())

    def graph_def(self) -> Any:
        return self._graph.as_graph_def()

    def open_session(self) -> bool:
        return False

    def devices(self) -> list[str]:
        return [device.name for device in self._tf.config.list_logical_devices()]

    def stage(self, inputs: Sequence[Float32]) -> None:
        for variable, matrix in zip(self._variables, inputs, strict=True):
            variable.assign(matrix)

    def step(self, inputs: Sequence[Float32], *, fetch: bool) -> Float32 | None:
        fed = inputs if self._setting.plan.feed == "fed" else ()
        with self._tf.device(self._setting.device(0, "cpu")):
            total = self._call(*[self._tf.constant(matrix) for matrix in fed])
            result: Float32 | None = total.numpy() if fetch else None
        return result

    def traced_step(self, inputs: Sequence[Float32], *, fetch: bool) -> bytes | None:  # noqa: ARG002 protocol
        return None

    def misplaced(self) -> list[tuple[str, str]]:
        return []

    def null_step(self) -> bool:
        return False

    def close(self) -> None:
        self._variables.clear()
        self._call = self._graph = None
