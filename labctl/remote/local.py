"""This machine as a node: the loopback lab's executor."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from labctl.errors import DeadlineError, RemoteCommandError
from labctl.remote.base import Answer, Result
from labctl.remote.capture import (
    Capture,
    looks_like_sudo_refusal,
    sudo_refused,
    temporary_name,
)

_BLOCK = 256 * 1024
_STRAGGLER_S = 0.5  # a child left behind may hold the streams open; silence this long ends the call
_TERM_S = 1.0


class LocalExecutor:
    """Runs commands on this machine, each in a session of its own.

    Args:
        name: The node's name, for messages.
    """

    def __init__(self, name: str = "localhost") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

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
        as_root = sudo and os.geteuid() != 0
        command = list(argv)
        if as_root:
            command = ["sudo", "-n", *_assignments(env), *argv]
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                bufsize=0,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            status = 126 if isinstance(error, PermissionError) else 127
            said = f"{command[0]}: {error.strerror}\n".encode()
            return Result(tuple(argv), status, None, b"", said, time.monotonic() - started)
        out, err = Capture(max_output), Capture(max_output)
        with process:
            try:
                _pump(process, input, out, err, started + timeout_s)
            except TimeoutError as error:
                _kill(process.pid, as_root=as_root)
                raise DeadlineError(
                    f"{argv[0]} on {self._name} had not ended after {timeout_s:g} s and was killed"
                ) from error
            except BaseException:
                _kill(process.pid, as_root=as_root)
                raise
            code = process.wait()
        if as_root and looks_like_sudo_refusal(code, err.take()) and not _sudo_works():
            raise sudo_refused(self._name, getpass.getuser(), err.take())
        return Result(
            tuple(argv),
            code if code >= 0 else None,
            -code if code < 0 else None,
            out.take(),
            err.take(),
            time.monotonic() - started,
            out.truncated or err.truncated,
        )

    def ask(
        self, argv: Sequence[str], questions: Sequence[bytes], *, timeout_s: float
    ) -> list[Answer]:
        deadline = time.monotonic() + timeout_s
        answers = []
        with subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        ) as process:
            try:
                for each in questions:
                    sent = time.time_ns()
                    with contextlib.suppress(BrokenPipeError):
                        cast("IO[bytes]", process.stdin).write(each)
                    line = _read_line(cast("IO[bytes]", process.stdout).fileno(), deadline)
                    answers.append(Answer(sent, line, time.time_ns()))
            except TimeoutError as error:
                raise DeadlineError(
                    f"{argv[0]} on {self._name} did not answer within {timeout_s:g} s"
                ) from error
            except EOFError as error:
                raise RemoteCommandError(
                    f"{argv[0]} on {self._name} ended before it had answered"
                ) from error
            finally:
                _kill(process.pid, as_root=False)
        return answers

    def size(self, path: str) -> int | None:
        try:
            return Path(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unusable(path, error) from error

    def read(self, path: str, *, offset: int = 0, limit: int = 1024 * 1024) -> bytes:
        try:
            with Path(path).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(error.errno, error.strerror, path) from error
        except OSError as error:
            raise self._unusable(path, error) from error

    def put(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        fresh = Path(temporary_name(path))
        try:
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._unusable(path, error) from error

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _unusable(self, path: str, error: OSError) -> RemoteCommandError:
        return RemoteCommandError(f"{path} on {self._name}: {error.strerror}")


def _assignments(env: Mapping[str, str] | None) -> list[str]:
    return ["env", *(f"{key}={value}" for key, value in env.items())] if env else []


def _sudo_works() -> bool:
    done = subprocess.run(
        ["sudo", "-n", "true"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=30,
    )
    return done.returncode == 0


def _pump(
    process: subprocess.Popen[bytes], data: bytes, out: Capture, err: Capture, deadline: float
) -> None:
    """Feed and drain a process until it has ended and its streams are at their end.

    Raises:
        TimeoutError: The deadline (monotonic, seconds) passed.
    """
    feed = cast("IO[bytes]", process.stdin)
    streams = {
        cast("IO[bytes]", process.stdout).fileno(): out,
        cast("IO[bytes]", process.stderr).fileno(): err,
    }
    waiting = memoryview(data)
    ended = os.pidfd_open(process.pid)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, ended)
        selector = stack.enter_context(selectors.DefaultSelector())
        for number in streams:
            selector.register(number, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        os.set_blocking(feed.fileno(), False)
        selector.register(feed, selectors.EVENT_WRITE)
        running = True
        while running or streams:
            left = deadline - time.monotonic()
            if left <= 0 and running:
                raise TimeoutError
            ready = selector.select(left if running else max(0, min(left, _STRAGGLER_S)))
            if not running and (not ready or left <= 0):
                return
            for key, _ in ready:
                if key.fd == ended:
                    running = False
                    selector.unregister(ended)
                elif key.fd in streams:
                    block = os.read(key.fd, _BLOCK)
                    if block:
                        streams[key.fd].add(block)
                    else:
                        selector.unregister(key.fd)
                        del streams[key.fd]
                else:
                    waiting = _feed(key.fd, waiting)
                    if not waiting:
                        selector.unregister(feed)
                        feed.close()


def _read_line(number: int, deadline: float) -> bytes:
    """Return the next line of a pipe.

    Raises:
        TimeoutError: The deadline (monotonic, seconds) passed.
        EOFError: The pipe is at its end.
    """
    found = bytearray()
    while not found.endswith(b"\n"):
        if not select.select([number], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        block = os.read(number, _BLOCK)
        if not block:
            raise EOFError
        found += block
    return bytes(found[:-1])


def _feed(number: int, waiting: memoryview) -> memoryview:
    """Write what the pipe takes; a reader that has gone away wants no more."""
    try:
        return waiting[os.write(number, waiting[:_BLOCK]) :] if waiting else waiting
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _kill(group: int, *, as_root: bool) -> None:
    """Kill a process group: TERM, so that sudo can pass it on, and then KILL."""
    if as_root:
        for number in ("TERM", "KILL"):
            subprocess.run(
                ["sudo", "-n", "kill", f"-{number}", "--", f"-{group}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=30,
            )
            time.sleep(_TERM_S if number == "TERM" else 0)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
