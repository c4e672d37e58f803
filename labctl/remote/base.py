"""The interface to a machine: run, read, put.

Commands are argument lists, results are values, every call ends. Implementations: `ssh.SshExecutor`
(paramiko), `local.LocalExecutor`, `fake.FakeExecutor`; all pass `tests/contract/test_executor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from labctl.errors import RemoteCommandError


@dataclass(frozen=True, slots=True)
class Result:
    """A command's end.

    Attributes:
        argv: The command.
        returncode: Its exit status; None if a signal ended it.
        signal: Number of the signal that ended it, else None.
        stdout: All bytes of its output, or the first `max_output` of them.
        stderr: The same for standard error.
        truncated: Bytes were dropped beyond `max_output`.
        duration_s: Seconds on this side's monotonic clock, the round trip included.
    """

    argv: tuple[str, ...]
    returncode: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    duration_s: float
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def text(self) -> str:
        """Standard output as text, stripped; undecodable bytes become U+FFFD."""
        return self.stdout.decode("utf-8", "replace").strip()

    def check(self, host: str, what: str, *, do: str | None = None) -> Result:
        """Return self.

        Raises:
            RemoteCommandError: The command did not end with status 0. The message has `what`, the
                host, how the command ended and the last line of its standard error.
        """
        if self.ok:
            return self
        ended = f"exit {self.returncode}" if self.signal is None else f"signal {self.signal}"
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines()
        tail = f": {lines[-1]}" if lines else ""
        raise RemoteCommandError(f"{what} failed on {host} ({ended}){tail}", do=do)


@dataclass(frozen=True, slots=True)
class Answer:
    """One line that a program on a machine answered.

    Attributes:
        sent_ns: Unix time here when the question was sent, nanoseconds.
        line: The answer, without its newline.
        received_ns: Unix time here when the answer had arrived, nanoseconds.
    """

    sent_ns: int
    line: bytes
    received_ns: int


class Executor(Protocol):
    """One machine.

    Not shared between threads; cheap to make, connects on first use, closed by its maker. Every
    method may raise HostUnreachableError, HostKeyError, AuthenticationError (while connecting;
    never retried but for a refused or banner-less port within the connect deadline), or
    ConnectionLostError (the link broke after the command started; it is not run again).
    """

    @property
    def name(self) -> str:
        """The node's name, for messages."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        input: bytes = b"",  # noqa: A002 the name that subprocess.run uses
        sudo: bool = False,
        env: Mapping[str, str] | None = None,
        max_output: int = 64 * 1024 * 1024,
    ) -> Result:
        """Run a command to its end, both streams drained at once.

        Args:
            argv: Program and arguments; quoting is this method's business.
            timeout_s: Deadline in seconds; past it the remote command is killed.
            input: Bytes for its standard input, then end of file.
            sudo: Run as root by `sudo -n` (never a prompt); nothing is added when already root.
            env: Variables set for the command (with sudo: inside it); values may not be secrets.
            max_output: Bytes of each stream that are kept.

        Raises:
            DeadlineError: The deadline passed.
            RemoteCommandError: sudo wants a password (the message has the sudoers line needed).
        """
        ...

    def ask(
        self, argv: Sequence[str], questions: Sequence[bytes], *, timeout_s: float
    ) -> list[Answer]:
        """Run a program that answers each line it reads with one line, one question after the other.

        Args:
            argv: Program and arguments.
            questions: Lines, each with its newline; the next is sent when the last was answered.
            timeout_s: Deadline in seconds for all of it.

        Raises:
            DeadlineError: The deadline passed; the program is killed.
            RemoteCommandError: The program ended before the last answer.
        """
        ...

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, None if it does not exist."""
        ...

    def read(self, path: str, *, offset: int = 0, limit: int = 1024 * 1024) -> bytes:
        """Return up to `limit` bytes from `offset` on, b"" at or beyond the end.

        Raises:
            FileNotFoundError: No such file.
            RemoteCommandError: It may not be read.
        """
        ...

    def put(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a whole file atomically (temporary name, then rename), with that mode.

        Raises:
            RemoteCommandError: It could not be written (no space, no permission).
        """
        ...

    def close(self) -> None:
        """End the connection. May be called twice."""
        ...
