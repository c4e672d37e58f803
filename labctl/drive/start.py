"""Starting the client's unit, and in the loopback lab the join servers before it."""

from __future__ import annotations

import time
from collections.abc import Callable

from labctl.drive.links import Links, Machine
from labctl.drive.places import DESCRIPTION, RUN_UNIT, Places, join_unit, run_of
from labctl.drive.stop import CLIENT_STOP_S
from labctl.errors import LabBusyError, RemoteCommandError
from labctl.node import wire
from labctl.remote.units import UnitSpec, UnitState
from labctl.runs.events import EventStream

SPEC_FILE = "cluster.json"
MARGIN_S = 60.0  # the node ends a run by itself this long after labctl should have
_SERVER_READY_S = 120.0
_SERVER_STOP_S = 15.0
_POLL_S = 0.1
# Of the role cuda: what join server, client and checks share, and the driver's cache of compiled kernels.
CUDA_ENVIRONMENT = "/etc/labctl/cuda.env"
CUDA_KERNEL_CACHE = "/var/cache/labctl/cuda"
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}  # what a script prints is seen when it prints it


def refuse_if_busy(machine: Machine) -> None:
    """Check that no run is active on task 0's node.

    Raises:
        LabBusyError: One is; the message names it.
    """
    state = machine.units.state(RUN_UNIT)
    if state.running:
        raise busy(machine.node.name, state.description)


def busy(node: str, description: str) -> LabBusyError:
    """Return the error for a lab on which another run is active."""
    run_id = run_of(description)
    if run_id is None:
        return LabBusyError(
            f"{node} is busy: {RUN_UNIT} is running ({description})",
            expected="one run at a time",
            do=f"wait for it, or on {node}: sudo systemctl stop {RUN_UNIT}",
        )
    return LabBusyError(
        f"{node} is busy with run {run_id}",
        expected="one run at a time",
        do=f"labctl attach {run_id} follows it, labctl cancel {run_id} ends it; where its record is not at "
        f"hand, on {node}: sudo systemctl stop {RUN_UNIT}",
    )


def start_client(machine: Machine, where: Places, run_id: str, timeout_s: float) -> UnitState:
    """Start the client as a unit that outlives this connection.

    Raises:
        LabBusyError: Another run is active; the message names it.
        RemoteCommandError: It could not be started.
    """
    directory = where.directory(run_id)
    spec = UnitSpec(
        name=RUN_UNIT,
        description=DESCRIPTION + run_id,
        argv=(
            where.python,
            f"{directory}/{wire.PAYLOAD_FILE}",
            "client",
            "--plan",
            wire.PLAN_FILE,
        ),
        # A user of its own has a home that it may not write to; what a script caches goes to the run's.
        env=_ENVIRONMENT if where.user is None else {**_ENVIRONMENT, "HOME": directory},
        directory=directory,
        user=where.user,
        deadline_s=timeout_s + MARGIN_S,
        stop_timeout_s=CLIENT_STOP_S,
        environment_file=CUDA_ENVIRONMENT,
        writable=(CUDA_KERNEL_CACHE,),
    )
    try:
        return machine.units.start(spec)
    except LabBusyError as error:
        description = machine.units.state(RUN_UNIT).description
        raise busy(machine.node.name, description) from error


def start_servers(links: Links, where: Places, run_id: str, timeout_s: float) -> None:
    """Start a loopback run's join servers and wait until all are ready.

    Servers that an earlier run left behind are ended first.

    Raises:
        RemoteCommandError: One did not become ready; the message ends with its last line.
    """

    def start(machine: Machine) -> None:
        node = machine.node
        name, directory = join_unit(node), where.join_directory(run_id, node)
        machine.units.stop(name, timeout_s=_SERVER_STOP_S)
        made = machine.executor.run(
            ["mkdir", "-p", "-m", "0700", directory], timeout_s=_SERVER_STOP_S
        )
        made.check(node.name, f"making {directory}")
        payload = f"{where.directory(run_id)}/{wire.PAYLOAD_FILE}"
        spec_file = f"{where.directory(run_id)}/{SPEC_FILE}"
        argv = ("serve", "--spec", spec_file, "--task", str(node.task_index))
        machine.units.start(
            UnitSpec(
                name=name,
                description=f"join server {node.task_index} of labctl run {run_id}",
                argv=(where.python, payload, *argv),
                env=_ENVIRONMENT,
                directory=directory,
                user=None,
                deadline_s=timeout_s + 2 * MARGIN_S,
            )
        )
        _wait_until_ready(machine, name, directory)

    _on_workers(links, start)


def stop_servers(links: Links) -> None:
    """End the join servers of a loopback run.

    Raises:
        DeadlineError: Something of one is still alive.
    """
    _on_workers(
        links, lambda machine: machine.units.stop(join_unit(machine.node), timeout_s=_SERVER_STOP_S)
    )


def _on_workers(links: Links, work: Callable[[Machine], None]) -> None:
    errors = [future.exception() for future in [link.submit(work) for link in links.workers]]
    for error in errors:
        if error is not None:
            raise error


def _wait_until_ready(machine: Machine, name: str, directory: str) -> None:
    give_up_s = time.monotonic() + _SERVER_READY_S
    stream, offset = EventStream(), 0
    while True:
        data = _read(machine, f"{directory}/{wire.STDOUT_FILE}", offset)
        offset += len(data)
        if any(event.kind == wire.READY for event in stream.feed(data)):
            return
        if machine.units.end(directory) is not None or time.monotonic() > give_up_s:
            said = _read(machine, f"{directory}/{wire.STDERR_FILE}", 0).decode("utf-8", "replace")
            last = (said.strip().splitlines() or ["it said nothing"])[-1]
            raise RemoteCommandError(
                f"{name} on {machine.node.name} did not become ready: {last}",
                do=f"see {directory}/{wire.STDERR_FILE}",
            )
        time.sleep(_POLL_S)


def _read(machine: Machine, path: str, offset: int) -> bytes:
    try:
        return machine.executor.read(path, offset=offset)
    except FileNotFoundError:
        return b""
