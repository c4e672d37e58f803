"""The join server: one task's TensorFlow server, until SIGTERM.

There is no SIGTERM handler on purpose: Python's handlers never run while the main thread is inside
`Server.join()`, and the default action ends the process at once (status 143).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from . import host, wire
from .errors import NodeError, classify, shorten
from .events import EventLog
from .gpu import Gpu, may_use_gpus
from .notify import notify_ready
from .ports import port_in_use, probe, require_free_port
from .spec import bad_spec, check_task, parse_spec, split_address
from .usage import UsageReporter

_READY_WITHIN_S = 60.0
_PR_SET_PDEATHSIG = 1


def serve(spec_file: str, task: int, inter_op: int | None, parent: int | None) -> int:
    """Serve one task of a cluster; returns only when it cannot.

    Events go to standard output. systemd is told that the service is ready once its port answers.

    Args:
        spec_file: File with the cluster spec.
        task: Index of the task.
        inter_op: Threads of TF's inter-op pool, None for TF's default.
        parent: Process id of the client that started this server; it is killed with that client.

    Returns:
        An exit status of `wire`.
    """
    events = EventLog(sys.stdout.fileno(), "join-server", task)
    dropped = host.drop_proxies(os.environ)
    host.introduce(events)
    usage = UsageReporter(events, always=False)
    usage.start()
    try:
        if parent is not None:
            _die_with(parent)
        addresses = _read_spec(spec_file)
        own = addresses[check_task(task, addresses)]
        if dropped:
            events.emit(wire.NOTE, text=f"cleared {', '.join(dropped)}: gRPC would obey them")
        require_free_port(own)
        gpu = None
        if may_use_gpus(os.environ):
            gpu = Gpu(events, head=parent)
            gpu.wake()
            usage.watch(gpu)
        server = _build(addresses, task, inter_op, events, gpu)
        _wait_until_ready(f"127.0.0.1:{split_address(own)[1]}")
    except NodeError as error:
        events.emit(wire.ERROR, **error.fields())
        sys.stderr.write(f"labctl join server: {error}\n")
        return events.end(error.status)
    events.emit(wire.READY, address=own, spec_sha256=wire.spec_hash(addresses), inter_op=inter_op)
    notify_ready(f"task {task} of {len(addresses)} serves {own}")
    server.join()
    return events.end(wire.EXIT_SERVER_FAILED)


def server_config(tf: Any, inter_op: int | None, *, use_gpu: bool) -> Any:
    """Return the `ConfigProto` of a TensorFlow server.

    GPU options count only here; those given to a session of a remote master are ignored.

    Args:
        tf: The tensorflow module.
        inter_op: Threads of the inter-op pool, None for TF's default.
        use_gpu: False hides the GPUs, so that a CPU run does not pay for their start.
    """
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=inter_op or 0)
    config.gpu_options.allow_growth = True
    if not use_gpu:
        config.device_count["GPU"] = 0
    return config


def start_server(tf: Any, addresses: tuple[str, ...], task: int, config: Any) -> Any:
    """Return a running `tf.distribute.Server`.

    float32 products are computed in float32: TF32 is switched off for the process.

    Raises:
        NodeError: The port is taken after all, or TensorFlow refused.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    spec = tf.train.ClusterSpec(wire.cluster_spec(addresses))
    try:
        return tf.distribute.Server(spec, job_name=wire.JOB_NAME, task_index=task, config=config)
    except tf.errors.OpError as error:
        if classify(type(error).__name__, error.message) == "port-in-use":
            raise port_in_use(split_address(addresses[task])[1]) from error
        raise NodeError(
            f"TensorFlow could not build its server: {shorten(error.message)}"
        ) from error


def _build(
    addresses: tuple[str, ...],
    task: int,
    inter_op: int | None,
    events: EventLog,
    gpu: Gpu | None,
) -> Any:
    with events.phase(wire.PHASE_IMPORT_NUMPY):
        import numpy as np  # noqa: F401 timed apart from TensorFlow, which imports it
    with events.phase(wire.PHASE_IMPORT_TENSORFLOW):
        import tensorflow as tf
    if gpu is not None:
        gpu.open_libraries()
    with events.phase(wire.PHASE_SERVER):
        server = start_server(tf, addresses, task, server_config(tf, inter_op, use_gpu=True))
    if gpu is not None:
        gpu.kernel_cache("server")
    return server


def _read_spec(path: str) -> tuple[str, ...]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_spec(
            f"the cluster spec {path} cannot be read: {error}",
            expected="a readable JSON file",
            do="provision again: ansible-playbook provision.yml",
        ) from error
    return parse_spec(text)


def _wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while not (answer := probe(address, 2.0)).ok:
        if time.monotonic() > deadline:
            raise NodeError(
                f"own port {address} does not answer within {_READY_WITHIN_S:g} s: {answer.state}"
            )
        time.sleep(0.05)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise NodeError(f"the client (pid {parent}) that started this server has ended")
