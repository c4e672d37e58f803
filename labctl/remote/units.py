"""Transient units: a process on a node that outlives the connection that started it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from labctl.errors import DeadlineError, LabBusyError, RemoteCommandError

if TYPE_CHECKING:
    from labctl.remote.base import Executor

EXIT_FILE = "exit.json"


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """What to start.

    Attributes:
        name: Unit name with its suffix, e.g. `labctl-run.service`. One at a time: the name is the
            lock.
        description: Whose it is; for a run `labctl run <run id>`.
        argv: Program (absolute path) and arguments.
        env: Whole extra environment; no proxy variables, no secrets on argv.
        directory: Working directory on the node, existing; `stdout`, `stderr` and `exit.json` are
            written there.
        user: System user to run as; None for the login user (process units always run as the
            caller).
        deadline_s: Seconds after which the node itself ends it.
        stop_timeout_s: Seconds between TERM and KILL.
        environment_file: A file on the node with further environment, `KEY=VALUE` lines; it may be missing.
            Process units know none.
        writable: Directories that it may write to beside its own; they may be missing.
    """

    name: str
    description: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    directory: str
    user: str | None
    deadline_s: float
    stop_timeout_s: float = 5.0
    environment_file: str | None = None
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """How a unit ended: `exit.json`, as systemd (ExecStopPost) or the process supervisor wrote it.

    Attributes:
        result: systemd's `$SERVICE_RESULT`: success, exit-code, signal, core-dump, timeout, …
        exit_code: systemd's `$EXIT_CODE`: exited, killed, dumped.
        exit_status: Exit status as text ("0", "3") or a signal's name ("TERM").
        ended_at_s: Unix time on the node, seconds.
    """

    result: str
    exit_code: str
    exit_status: str
    ended_at_s: float


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as it is now.

    Attributes:
        load: systemd's LoadState (`loaded`, `not-found`, `masked`).
        active: systemd's ActiveState; `inactive` when the unit is not loaded.
        sub: systemd's SubState.
        result: systemd's Result.
        description: Its description, "" when not loaded.
        main_pid: 0 if none.
        invocation_id: Changes with each start; "" when never started.
        restarts: systemd's NRestarts.
        started_at_s: Unix time on the node of the last start, None when never started.
        boot_id: The node's boot.
    """

    load: str
    active: str
    sub: str
    result: str
    description: str
    main_pid: int
    invocation_id: str
    restarts: int
    started_at_s: float | None
    boot_id: str

    @property
    def running(self) -> bool:
        return self.active in {"active", "activating", "deactivating", "reloading"}


class Units(Protocol):
    """Starts and watches units on one node: `SystemdUnits` or `ProcessUnits`."""

    kind: Literal["systemd", "process"]

    def start(self, spec: UnitSpec) -> UnitState:
        """Start a unit; a finished one of the same name is cleared first.

        Raises:
            LabBusyError: A unit of that name is still running; the message has its description.
            RemoteCommandError: It could not be started.
        """
        ...

    def state(self, name: str) -> UnitState:
        """Return a unit's state; an unknown unit is `not-found` and `inactive`."""
        ...

    def end(self, directory: str) -> UnitEnd | None:
        """Return how the unit of that directory ended; None if it has not (or the power went)."""
        ...

    def stop(self, name: str, *, timeout_s: float) -> None:
        """Stop it (TERM, then KILL after its stop time-out), return when no process of it is left.

        Raises:
            DeadlineError: Something of it is still alive after `timeout_s`.
        """
        ...

    def restart(self, name: str, *, timeout_s: float) -> None:
        """Restart an installed service (`tf-join-server.service`) and return when it is ready.

        Raises:
            RemoteCommandError: It failed; the message ends with its last journal line.
        """
        ...


def read_end(executor: Executor, directory: str) -> UnitEnd | None:
    """Return what `exit.json` in a unit's directory says, None if there is none.

    Raises:
        RemoteCommandError: It cannot be read, or is no such file.
    """
    path = f"{directory}/{EXIT_FILE}"
    try:
        raw = executor.read(path)
    except FileNotFoundError:
        return None
    try:
        data = json.loads(raw)
        return UnitEnd(
            result=str(data["result"]),
            exit_code=str(data["exit_code"]),
            exit_status=str(data["exit_status"]),
            ended_at_s=float(data["ended_at_s"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RemoteCommandError(
            f"{path} on {executor.name} does not say how the unit ended: {raw[:200]!r}",
            expected="one JSON object with result, exit_code, exit_status and ended_at_s",
        ) from error


def busy(host: str, name: str, description: str) -> LabBusyError:
    """Return the error for a unit that is running already."""
    return LabBusyError(
        f"{host} is busy: {description or name} is still running ({name})",
        expected="one run at a time",
        do="labctl attach last to follow it, labctl cancel last to end it",
    )


def still_alive(host: str, name: str, timeout_s: float) -> DeadlineError:
    """Return the error for a unit that outlives its stop."""
    return DeadlineError(
        f"{name} on {host} still has a process {timeout_s:g} s after it was told to stop",
        do=f"systemctl status {name} on {host}",
    )
