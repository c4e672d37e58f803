"""Join servers as children of the client, for placement `one-host`: they end with it, however it ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import wire
from .errors import NodeError
from .ports import free_local_ports
from .wire import MatpowPlan

SPEC_FILE = "one-host.json"
STARTUP_S_PER_TASK = 60.0  # they import TensorFlow at the same time, perhaps on one core

_END_WITHIN_S = 5.0


@dataclass(frozen=True)
class Children:
    """Join servers on ports of 127.0.0.1.

    Attributes:
        addresses: Of all tasks; task 0 is the client itself.
        pids: Process id of each other task's server, by task index.
    """

    addresses: tuple[str, ...]
    pids: dict[int, int]

    def require_alive(self) -> None:
        """Check that every server still runs.

        Raises:
            NodeError: One has ended.
        """
        for task, pid in self.pids.items():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                raise NodeError(
                    f"the join server of task {task} on this node ended with status"
                    f" {os.waitstatus_to_exitcode(status)} before it was ready",
                    expected="a server on a free port of 127.0.0.1",
                    do="its own error stands above, with source join-server",
                )

    def end(self) -> None:
        """End all servers and reap them."""
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_WITHIN_S
        for pid in self.pids.values():
            with suppress(ChildProcessError):
                while os.waitpid(pid, os.WNOHANG)[0] == 0:
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(0.02)


def start_children(plan: MatpowPlan, tasks: int, payload: str, directory: Path) -> Children:
    """Start a join server for every task but 0 on this node.

    Call it from the main thread: the kernel ends a child together with the thread that started it. Their
    events go to the run's events file, their log to standard error.

    Args:
        plan: For its device and thread count.
        tasks: Number of tasks, the client's included.
        payload: Path that this program was started from.
        directory: The run's directory.
    """
    addresses = tuple(f"127.0.0.1:{port}" for port in free_local_ports(tasks))
    spec_file = directory / SPEC_FILE
    spec_file.write_text(wire.spec_text(addresses) + "\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    if plan.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    options = [] if plan.inter_op is None else ["--inter-op", str(plan.inter_op)]
    to_events = (
        os.POSIX_SPAWN_OPEN, 1, str(directory / wire.EVENTS_FILE), os.O_WRONLY | os.O_APPEND, 0,
    )  # fmt: skip
    pids = {}
    for task in range(1, tasks):
        arguments = ["serve", "--spec", str(spec_file), "--task", str(task)]
        pids[task] = os.posix_spawn(
            sys.executable,
            [sys.executable, payload, *arguments, "--parent", str(os.getpid()), *options],
            environment,
            file_actions=[to_events],
        )
    return Children(addresses, pids)
