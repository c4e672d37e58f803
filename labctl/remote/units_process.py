"""Units as plain processes under a small supervisor, for the loopback lab."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labctl.errors import RemoteCommandError
from labctl.remote import supervisor
from labctl.remote.units import UnitEnd, UnitSpec, UnitState, busy, read_end, still_alive

if TYPE_CHECKING:
    from labctl.remote.base import Executor

_ACTION_S = 30.0


class ProcessUnits:
    """Units that are processes of the calling user, each under a detached supervisor.

    Args:
        executor: The machine.
        folder: Where the units' states and locks are kept; the same for all who share the names.
        python: Interpreter of the supervisor.
    """

    kind: Literal["systemd", "process"] = "process"

    def __init__(self, executor: Executor, folder: str, python: str = sys.executable) -> None:
        self._executor = executor
        self._folder = folder
        self._argv = [python, "-I", "-c", Path(supervisor.__file__).read_text(encoding="utf-8")]

    def start(self, spec: UnitSpec) -> UnitState:
        plain = {**asdict(spec), "argv": list(spec.argv), "env": dict(spec.env)}
        answer = self._do("start", {"spec": plain})
        if "busy" in answer:
            raise busy(self._executor.name, spec.name, answer["busy"])
        if "failed" in answer:
            raise RemoteCommandError(
                f"{spec.name} did not start on {self._executor.name}: {answer['failed']}"
            )
        return _state(answer)

    def state(self, name: str) -> UnitState:
        return _state(self._do("state", {"name": name}))

    def end(self, directory: str) -> UnitEnd | None:
        return read_end(self._executor, directory)

    def stop(self, name: str, *, timeout_s: float) -> None:
        answer = self._do("stop", {"name": name, "timeout_s": timeout_s}, timeout_s)
        if not answer["stopped"]:
            raise still_alive(self._executor.name, name, timeout_s)

    def restart(self, name: str, *, timeout_s: float) -> None:  # noqa: ARG002 the interface
        raise RemoteCommandError(
            f"{name} on {self._executor.name} cannot be restarted: it is no installed service",
            do="leave --fresh out: every process of a loopback run is fresh",
        )

    def _do(self, action: str, given: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        done = self._executor.run(
            [*self._argv, action],
            timeout_s=timeout_s + _ACTION_S,
            input=json.dumps({**given, "folder": self._folder}).encode(),
        ).check(self._executor.name, f"the {action} of a process unit")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _state(record: dict[str, Any]) -> UnitState:
    known, running = "pid" in record, bool(record.get("running"))
    result = record.get("result", "success" if running or not known else "signal")
    good = result == "success"
    return UnitState(
        load="loaded" if known else "not-found",
        active="active" if running else "inactive" if good else "failed",
        sub="running" if running else "dead" if good else "failed",
        result=result,
        description=record.get("description", ""),
        main_pid=record["pid"] if running else 0,
        invocation_id=record.get("invocation_id", ""),
        restarts=0,
        started_at_s=record.get("started_at_s"),
        boot_id=record["boot_id"],
    )
