"""One thread a node: an executor is never shared, and a node that hangs holds up nobody else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from labctl.errors import LabctlError
from labctl.lab.model import Lab, Node
from labctl.remote.base import Executor
from labctl.remote.units import Units

T = TypeVar("T")


class Opener(Protocol):
    """Makes executors and units: `labctl.remote.connect`, or fakes in a test."""

    def executor(self, node: Node, lab: Lab) -> Executor:
        """Return an executor that nobody else uses."""
        ...

    def units(self, node: Node, executor: Executor, lab: Lab) -> Units:
        """Return the units behind an executor."""
        ...


class RealOpener:
    """Opens real nodes."""

    def executor(self, node: Node, lab: Lab) -> Executor:
        from labctl.remote.connect import open_executor

        return open_executor(node, lab)

    def units(self, node: Node, executor: Executor, lab: Lab) -> Units:
        from labctl.remote.connect import open_units

        return open_units(node, executor, lab)


@dataclass(frozen=True, slots=True)
class Machine:
    """What work on a node gets: used by the node's own thread only.

    Attributes:
        node: The node.
        executor: Its executor.
        units: Its units.
    """

    node: Node
    executor: Executor
    units: Units


class NodeLink:
    """A node with its thread. The thread is a daemon: labctl can always leave.

    Args:
        node: The node.
        lab: Its lab.
        opener: Makes the executor, in the thread, when the first work comes.
    """

    def __init__(self, node: Node, lab: Lab, opener: Opener) -> None:
        self.node = node
        self._lab = lab
        self._opener = opener
        self._machine: Machine | None = None
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[Machine], Any]] | None]
        self._work = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"labctl-{node.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Machine], T]) -> Future[T]:
        """Queue work for the node and return its future."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def call(self, work: Callable[[Machine], T]) -> T:
        """Do work on the node and wait for its end.

        Raises:
            LabctlError: As the executor or the units raised it.
        """
        return self.submit(work).result()

    def reopen(self) -> None:
        """Have the next work use a new connection."""
        self.submit(lambda _: self._drop())

    def close(self) -> None:
        """End the connection once the work queued so far is done; does not wait."""
        self._work.put(None)

    def _drop(self) -> None:
        if self._machine is not None:
            self._machine.executor.close()
            self._machine = None

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if self._machine is None:
                    executor = self._opener.executor(self.node, self._lab)
                    units = self._opener.units(self.node, executor, self._lab)
                    self._machine = Machine(self.node, executor, units)
                future.set_result(work(self._machine))
            except BaseException as error:  # noqa: BLE001 whoever waits for the future gets it
                future.set_exception(error)
        self._drop()


class Links:
    """The links to all nodes of a lab.

    Args:
        lab: The lab.
        opener: Makes executors and units.
    """

    def __init__(self, lab: Lab, opener: Opener) -> None:
        self.all = tuple(NodeLink(node, lab, opener) for node in lab.nodes)

    @property
    def client(self) -> NodeLink:
        """The link to the node of task 0."""
        return self.all[0]

    @property
    def workers(self) -> tuple[NodeLink, ...]:
        """The links to the nodes with a join server."""
        return self.all[1:]

    def everywhere(self, work: Callable[[Machine], T]) -> list[T]:
        """Do work on all nodes at once and return the results in task order.

        Raises:
            LabctlError: The first error in task order, after every node has ended its work.
        """
        return gather([link.submit(work) for link in self.all])

    def close(self) -> None:
        """End all connections."""
        for link in self.all:
            link.close()


def gather(futures: list[Future[T]]) -> list[T]:
    """Return the results of futures.

    Raises:
        LabctlError: The first error, after all have ended.
    """
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    expected = [error for error in errors if isinstance(error, LabctlError)]
    for error in (*expected, *errors):
        raise error
    return [future.result() for future in futures]
