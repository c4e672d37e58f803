"""A scripted machine in memory: an Executor and Units for tests, with no process and no socket."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from labctl.errors import (
    ConnectionLostError,
    DeadlineError,
    LabctlError,
    RemoteCommandError,
)
from labctl.remote.base import Answer, Result
from labctl.remote.capture import Capture, sudo_refused
from labctl.remote.follow import DIGEST_SCRIPT
from labctl.remote.units import (
    EXIT_FILE,
    UnitEnd,
    UnitSpec,
    UnitState,
    busy,
    read_end,
    still_alive,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One command that a FakeExecutor was asked to run."""

    argv: tuple[str, ...]
    input: bytes = b""
    sudo: bool = False
    env: Mapping[str, str] | None = None
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """How a scripted command ends.

    Attributes:
        stdout: Its output.
        stderr: Its standard error.
        returncode: Its exit status, not used when a signal is given.
        signal: Number of the signal that ends it.
        takes_s: How long it takes, in seconds that nobody waits: longer than the deadline of the
            call is a DeadlineError.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    returncode: int = 0
    signal: int | None = None
    takes_s: float = 0.0


Script = Reply | LabctlError | Callable[[Call], Reply]


class FakeExecutor:
    """A machine whose files are a dict and whose commands are a table.

    Knows the digests of its own files that a Follower asks for; every other command is scripted
    with `on`.

    Args:
        name: The node's name, for messages.
        files: Its files, by absolute path.

    Attributes:
        files: The same, changed by `put` and by the test.
        modes: Mode of each file that `put` wrote.
        calls: Every command so far, in order.
        unreadable: Paths whose reading is refused.
        sudo_works: False makes every call with sudo fail as `sudo -n` would.
        disk_full: True makes `put` fail.
        broken: True makes every call raise ConnectionLostError, as a broken link does.
        closed: `close` was called.
        clock_ns: This side's clock, as `ask` stamps its answers; each question is one scripted command.
    """

    def __init__(self, name: str = "fake", files: Mapping[str, bytes] | None = None) -> None:
        self._name = name
        self.files: dict[str, bytes] = dict(files or {})
        self.modes: dict[str, int] = {}
        self.calls: list[Call] = []
        self.unreadable: set[str] = set()
        self.sudo_works = True
        self.disk_full = False
        self.broken = False
        self.closed = False
        self.clock_ns: Callable[[], int] = time.time_ns
        self._scripts: dict[tuple[str, ...], list[Script]] = {}

    @property
    def name(self) -> str:
        return self._name

    def on(self, argv: Sequence[str], *scripts: Script) -> FakeExecutor:
        """Say how commands that begin with `argv` end; the longest match counts.

        Args:
            argv: The program and any number of arguments; () stands for every command.
            scripts: Replies, errors to raise or functions of the call, used one after the other;
                the last one stays.
        """
        self._scripts[tuple(argv)] = list(scripts) or [Reply()]
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: bytes = b"",  # noqa: A002 the name of the interface
        sudo: bool = False,
        env: Mapping[str, str] | None = None,
        max_output: int = 64 * 1024 * 1024,
    ) -> Result:
        self._link()
        call = Call(tuple(argv), input, sudo, env, timeout_s)
        self.calls.append(call)
        if sudo and not self.sudo_works:
            raise sudo_refused(self._name, "user", b"sudo: a password is required\n")
        script = self._find(call)
        if isinstance(script, LabctlError):
            raise script
        reply = script if isinstance(script, Reply) else script(call)
        if reply.takes_s > timeout_s:
            raise DeadlineError(
                f"{argv[0]} on {self._name} had not ended after {timeout_s:g} s and was killed"
            )
        out, err = Capture(max_output), Capture(max_output)
        out.add(reply.stdout)
        err.add(reply.stderr)
        return Result(
            call.argv,
            reply.returncode if reply.signal is None else None,
            reply.signal,
            out.take(),
            err.take(),
            reply.takes_s,
            out.truncated or err.truncated,
        )

    def ask(
        self, argv: Sequence[str], questions: Sequence[bytes], *, timeout_s: float
    ) -> list[Answer]:
        answers = []
        for each in questions:
            sent = self.clock_ns()
            done = self.run(argv, timeout_s=timeout_s, input=each)
            if not done.ok:
                raise RemoteCommandError(f"{argv[0]} on {self._name} ended before it had answered")
            answers.append(Answer(sent, done.stdout.rstrip(b"\n"), self.clock_ns()))
        return answers

    def size(self, path: str) -> int | None:
        self._link()
        data = self.files.get(path)
        return None if data is None else len(data)

    def read(self, path: str, *, offset: int = 0, limit: int = 1024 * 1024) -> bytes:
        self._link()
        if path in self.unreadable:
            raise RemoteCommandError(f"{path} on {self._name}: Permission denied")
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path][offset : offset + limit]

    def put(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        self._link()
        if self.disk_full:
            raise RemoteCommandError(f"{path} on {self._name}: No space left on device")
        self.files[path] = bytes(data)
        self.modes[path] = mode

    def close(self) -> None:
        self.closed = True

    def _link(self) -> None:
        if self.broken:
            raise ConnectionLostError(f"the connection to {self._name} broke")

    def _find(self, call: Call) -> Script:
        for length in range(len(call.argv), -1, -1):
            scripts = self._scripts.get(call.argv[:length])
            if length == 0 and call.argv[:3] == ("sh", "-c", DIGEST_SCRIPT):
                return self._sha256sum(path=call.argv[5], size=int(call.argv[4]))
            if scripts is not None:
                return scripts.pop(0) if len(scripts) > 1 else scripts[0]
        raise LookupError(f"FakeExecutor {self._name} has no script for {call.argv}")

    def _sha256sum(self, path: str, size: int) -> Reply:
        data = self.files.get(path, b"")[:size]
        return Reply(f"{hashlib.sha256(data).hexdigest()}  -\n".encode())


_ABSENT = UnitState(
    load="not-found",
    active="inactive",
    sub="dead",
    result="success",
    description="",
    main_pid=0,
    invocation_id="",
    restarts=0,
    started_at_s=None,
    boot_id="00000000-0000-0000-0000-000000000001",
)


class FakeUnits:
    """Units that are started and ended by the test.

    Args:
        executor: Where `exit.json` is written and read.
        kind: What to pass for.

    Attributes:
        states: Every unit known, by name; the test may set one.
        specs: Every unit started, in order.
        on_start: Called after each start, e.g. to write the unit's files and call `finish`.
        ignores_stop: Names of units that `stop` does not end.
        restarted: Names of units restarted, in order.
        restart_takes_s: More than the time-out of a `restart` makes it fail.
    """

    def __init__(
        self, executor: FakeExecutor, kind: Literal["systemd", "process"] = "systemd"
    ) -> None:
        self.kind: Literal["systemd", "process"] = kind
        self.executor = executor
        self.states: dict[str, UnitState] = {}
        self.specs: list[UnitSpec] = []
        self.on_start: Callable[[UnitSpec], None] | None = None
        self.ignores_stop: set[str] = set()
        self.restarted: list[str] = []
        self.restart_takes_s = 0.0

    def install(self, name: str, *, active: str = "active", description: str = "") -> None:
        """Add a service that is not started by labctl, e.g. the join server."""
        self.states[name] = replace(
            _ABSENT,
            load="loaded",
            active=active,
            sub="running" if active == "active" else "dead",
            description=description or name,
            main_pid=100 if active == "active" else 0,
            invocation_id="0" * 32,
            started_at_s=1.0,
        )

    def finish(self, name: str, end: UnitEnd | None = None) -> None:
        """End a running unit as its program would; success by default."""
        end = end or UnitEnd("success", "exited", "0", 2.0)
        for spec in reversed(self.specs):
            if spec.name == name:
                data = {
                    "result": end.result,
                    "exit_code": end.exit_code,
                    "exit_status": end.exit_status,
                    "ended_at_s": end.ended_at_s,
                }
                self.executor.files[f"{spec.directory}/{EXIT_FILE}"] = json.dumps(data).encode()
                break
        good = end.result == "success"
        self.states[name] = replace(
            self.states[name],
            active="inactive" if good else "failed",
            sub="dead" if good else "failed",
            result=end.result,
            main_pid=0,
        )

    def start(self, spec: UnitSpec) -> UnitState:
        if self.state(spec.name).running:
            raise busy(self.executor.name, spec.name, self.states[spec.name].description)
        self.specs.append(spec)
        self.executor.files.pop(f"{spec.directory}/{EXIT_FILE}", None)
        for stream in ("stdout", "stderr"):
            self.executor.files.setdefault(f"{spec.directory}/{stream}", b"")
        number = len(self.specs)
        self.states[spec.name] = replace(
            _ABSENT,
            load="loaded",
            active="active",
            sub="running",
            description=spec.description,
            main_pid=1000 + number,
            invocation_id=f"{number:032x}",
            started_at_s=float(number),
        )
        if self.on_start is not None:
            self.on_start(spec)
        return self.states[spec.name]

    def state(self, name: str) -> UnitState:
        self.executor.size("/")  # a broken link breaks this call too
        return self.states.get(name, _ABSENT)

    def end(self, directory: str) -> UnitEnd | None:
        return read_end(self.executor, directory)

    def stop(self, name: str, *, timeout_s: float) -> None:
        if not self.state(name).running:
            return
        if name in self.ignores_stop:
            raise still_alive(self.executor.name, name, timeout_s)
        self.finish(name, UnitEnd("success", "killed", "TERM", 2.0))

    def restart(self, name: str, *, timeout_s: float) -> None:
        if self.kind == "process" or self.state(name).load != "loaded":
            raise RemoteCommandError(f"{name} on {self.executor.name} cannot be restarted")
        if self.restart_takes_s > timeout_s:
            raise RemoteCommandError(f"{name} on {self.executor.name} was not ready in time")
        self.restarted.append(name)
        self.install(name, description=self.states[name].description)
