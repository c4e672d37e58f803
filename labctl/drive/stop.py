"""Ending the client on its node, and only the client of this run."""

from __future__ import annotations

import contextlib

from labctl.drive.links import Machine
from labctl.drive.places import RUN_UNIT, Places, run_of
from labctl.drive.push import write_marker
from labctl.errors import RemoteCommandError
from labctl.node import wire
from labctl.remote.units import UnitState

CLIENT_STOP_S = 5.0  # between TERM and KILL
_VERIFIED_S = 20.0


def client_state(machine: Machine, run_id: str) -> UnitState | None:
    """Return the state of the run's unit, None when no unit of this run is loaded."""
    state = machine.units.state(RUN_UNIT)
    return state if run_of(state.description) == run_id else None


def is_running(machine: Machine, run_id: str) -> bool:
    """Return whether the run's client is running."""
    state = client_state(machine, run_id)
    return state is not None and state.running


def stop_client(machine: Machine, run_id: str) -> bool:
    """End the run's client: TERM, then KILL; return, when no process of it is left, whether it was running.

    Raises:
        DeadlineError: Something of it is still alive.
    """
    if not is_running(machine, run_id):
        return False
    machine.units.stop(RUN_UNIT, timeout_s=_VERIFIED_S)
    return True


def cancel_client(machine: Machine, where: Places, run_id: str) -> bool:
    """Leave word that the end is wanted, then end the run's client; return whether it was running.

    Raises:
        DeadlineError: Something of it is still alive.
    """
    if not is_running(machine, run_id):
        return False
    # The mark only tells other readers why; that it cannot be left must not keep the client alive.
    with contextlib.suppress(RemoteCommandError):
        write_marker(machine.executor, where, run_id, wire.CANCELLED_FILE)
    return stop_client(machine, run_id)


def was_cancelled(machine: Machine, where: Places, run_id: str) -> bool:
    """Return whether somebody has cancelled the run."""
    path = f"{where.directory(run_id)}/{wire.CANCELLED_FILE}"
    return machine.executor.size(path) is not None
