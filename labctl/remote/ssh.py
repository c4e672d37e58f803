"""A node over SSH: commands on channels of one connection, files over SFTP."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import paramiko

from labctl.errors import (
    ConfigError,
    ConnectionLostError,
    DeadlineError,
    HostKeyError,
    RemoteCommandError,
    UnreachableError,
)
from labctl.remote.capture import looks_like_sudo_refusal, sudo_refused, temporary_name
from labctl.remote.ssh_channel import OPEN_S, Command, Guard, open_session
from labctl.remote.ssh_link import Link, open_link

if TYPE_CHECKING:
    from labctl.lab.model import SshTarget
    from labctl.remote.base import Answer, Result

CONNECT_TIMEOUT_VARIABLE = "LABCTL_CONNECT_TIMEOUT_S"

_CONNECT_S = 15.0
_STALL_S = 15.0
_REFUSED_S = 2.0
_PUT_BLOCK = 256 * 1024
_T = TypeVar("_T")


class SshExecutor:
    """Runs commands on a node over one SSH connection, made on first use and made anew when it is gone.

    Host keys are always checked. The connect deadline is `connect_timeout_s`, else the environment's
    `LABCTL_CONNECT_TIMEOUT_S`, else OpenSSH's `ConnectTimeout`, else 15 s.

    Args:
        name: The node's name, for messages.
        target: Where it is, before OpenSSH's configuration.
        known_hosts: Files of host keys that count before OpenSSH's own.
        wrong_key_advice: What to do about an unknown or changed host key, None for OpenSSH's own ways.
        connect_timeout_s: Seconds until a connection must stand.

    Raises:
        ConfigError: `LABCTL_CONNECT_TIMEOUT_S` is no number of seconds.
    """

    def __init__(
        self,
        name: str,
        target: SshTarget,
        *,
        known_hosts: Sequence[Path] = (),
        wrong_key_advice: str | None = None,
        connect_timeout_s: float | None = None,
    ) -> None:
        self._name = name
        self._target = target
        self._known_hosts = tuple(known_hosts)
        self._wrong_key_advice = wrong_key_advice
        self._connect_s = connect_timeout_s or _connect_timeout_of_environment()
        self._link: Link | None = None
        self._sftp: paramiko.SFTPClient | None = None

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
        settings = [f"{key}={value}" for key, value in (env or {}).items()]
        words = [*(["env", *settings] if settings else []), *argv]
        link, channel = self._session()
        command = Command(link, self._name, words, sudo=sudo)
        deadline = time.monotonic() + timeout_s
        try:
            result = command.run(channel, input, deadline, max_output, argv)
        except TimeoutError as error:
            raise self._late(command, argv, timeout_s) from error
        except ConnectionLostError:
            self._drop()
            raise
        except RemoteCommandError:
            raise
        except BaseException:
            command.kill(link)
            raise
        if sudo and looks_like_sudo_refusal(result.returncode, result.stderr):
            trial = self.run(["sudo", "-n", "true"], timeout_s=OPEN_S)
            if not trial.ok:
                raise sudo_refused(self._name, link.hop.user, result.stderr)
        return result

    def _session(self) -> tuple[Link, paramiko.Channel]:
        """Return a channel for a command, on a new connection if the old one turns out to be gone.

        Raises:
            ConnectionLostError: The peer does not answer; the command was not started.
        """
        fresh = self._link is None
        link = self._connected()
        try:
            return link, self._patiently(lambda: open_session(link))
        except paramiko.ChannelException as error:
            raise RemoteCommandError(
                f"{self._name} ({link.hop.where}) refuses to run commands: {error.text}",
                expected="MaxSessions of at least 1 in its sshd_config",
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._drop()
            if fresh or isinstance(error, TimeoutError):
                raise ConnectionLostError(
                    f"the connection to {self._name} ({link.hop.where}) does not answer: {error}"
                ) from error
            return self._session()

    def _patiently(self, open_channel: Callable[[], _T]) -> _T:
        """Open a channel; where the server's MaxSessions refuses, give up SFTP's and try for a while."""
        give_up = time.monotonic() + _REFUSED_S
        while True:
            try:
                return open_channel()
            except paramiko.ChannelException:
                if self._sftp is not None:
                    self._sftp.close()
                    self._sftp = None
                elif time.monotonic() >= give_up:
                    raise
                time.sleep(0.05)

    def _late(
        self, command: Command, argv: Sequence[str], timeout_s: float
    ) -> DeadlineError | ConnectionLostError:
        """Kill a command past its deadline, over a second connection if the first one cannot."""
        found = f"{argv[0]} on {self._name} had not ended after {timeout_s:g} s"
        if self._link is not None and command.kill(self._link):
            return DeadlineError(f"{found} and was killed")
        self._drop()
        with contextlib.suppress(UnreachableError):
            if command.kill(self._connected()):
                return DeadlineError(f"{found} and was killed")
        return ConnectionLostError(f"{found} and could not be killed: it may still run")

    def ask(
        self, argv: Sequence[str], questions: Sequence[bytes], *, timeout_s: float
    ) -> list[Answer]:
        link, channel = self._session()
        command = Command(link, self._name, argv, sudo=False)
        try:
            return command.ask(channel, questions, time.monotonic() + timeout_s)
        except TimeoutError as error:
            raise self._late(command, argv, timeout_s) from error
        except EOFError as error:
            raise RemoteCommandError(
                f"{argv[0]} on {self._name} ended before it had answered"
            ) from error
        except ConnectionLostError:
            self._drop()
            raise

    def size(self, path: str) -> int | None:
        def look(sftp: paramiko.SFTPClient, _: Guard) -> int | None:
            return sftp.stat(path).st_size

        try:
            return self._over_sftp(path, look)
        except FileNotFoundError:
            return None

    def read(self, path: str, *, offset: int = 0, limit: int = 1024 * 1024) -> bytes:
        def fetch(sftp: paramiko.SFTPClient, guard: Guard) -> bytes:
            with sftp.open(path, "rb") as file:
                wanted = min(limit, (file.stat().st_size or 0) - offset)
                if wanted <= 0:
                    return b""
                file.seek(offset)
                file.prefetch(offset + wanted)
                found = bytearray()
                while len(found) < wanted:
                    guard.kick()
                    block = file.read(min(_PUT_BLOCK, wanted - len(found)))
                    if not block:
                        break
                    found += block
                return bytes(found)

        return self._over_sftp(path, fetch)

    def put(self, data: bytes, path: str, *, mode: int = 0o600) -> None:
        fresh = temporary_name(path)

        def write(sftp: paramiko.SFTPClient, guard: Guard) -> None:
            try:
                # Pipelined writes may fail silently, or only as `Failure`: the size tells.
                file = sftp.open(fresh, "wxb")
                with _vague_errors(), file:
                    file.chmod(mode)
                    file.set_pipelined(True)
                    for start in range(0, len(data), _PUT_BLOCK):
                        guard.kick()
                        file.write(data[start : start + _PUT_BLOCK])
                guard.kick()
                self._check_written(sftp, fresh, len(data))
                sftp.posix_rename(fresh, path)
            except OSError:
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                    sftp.remove(fresh)
                raise

        try:
            self._over_sftp(path, write)
        except FileNotFoundError as error:
            folder = posixpath.dirname(path)
            raise RemoteCommandError(f"{path} on {self._name}: {folder} does not exist") from error

    def close(self) -> None:
        self._drop()

    def _connected(self) -> Link:
        if self._link is not None and not self._link.transport.is_active():
            self._drop()
        if self._link is None:
            try:
                self._link = open_link(
                    self._name,
                    self._target,
                    known_hosts=self._known_hosts,
                    timeout_s=self._connect_s,
                    default_timeout_s=_CONNECT_S,
                )
            except HostKeyError as error:
                error.do = self._wrong_key_advice or error.do
                raise
        return self._link

    def _drop(self) -> None:
        self._sftp, self._link, link = None, None, self._link
        if link is not None:
            link.close()

    def _over_sftp(self, path: str, do: Callable[[paramiko.SFTPClient, Guard], _T]) -> _T:
        """Do something over SFTP, its errors mapped; FileNotFoundError passes."""
        link = self._connected()
        with Guard(link, _STALL_S) as guard:
            try:
                if self._sftp is None:
                    self._sftp = self._patiently(link.transport.open_sftp_client)
                return do(self._sftp, guard)
            except FileNotFoundError:
                raise
            except PermissionError as error:
                raise RemoteCommandError(f"{path} on {self._name}: Permission denied") from error
            except paramiko.ChannelException as error:
                raise RemoteCommandError(
                    f"{self._name} ({link.hop.where}) offers no SFTP: {error.text}",
                    do="enable Subsystem sftp in its sshd_config",
                ) from error
            except (paramiko.SSHException, EOFError, OSError) as error:
                alive = link.transport.is_active() and not guard.fired
                failure = error
        if alive and isinstance(failure, OSError):
            cause = failure.strerror or f"SFTP says {failure}"
            raise RemoteCommandError(f"{path} on {self._name}: {cause}") from failure
        self._drop()
        raise ConnectionLostError(f"the connection to {self._name} broke: {failure}") from failure

    def _check_written(self, sftp: paramiko.SFTPClient, path: str, size: int) -> None:
        missing = size - (sftp.stat(path).st_size or 0)
        if missing and self._free_bytes(path) < missing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if missing:
            raise OSError(errno.EIO, f"{missing} bytes were not written")

    def _free_bytes(self, path: str) -> int:
        """Return the room on the file system of a path."""
        shown = self.run(["df", "-Pk", "--", path], timeout_s=OPEN_S)
        fields = shown.text.splitlines()[-1].split() if shown.ok else []
        return int(fields[3]) * 1024 if len(fields) >= 4 and fields[3].isdigit() else 0


def _connect_timeout_of_environment() -> float | None:
    text = os.environ.get(CONNECT_TIMEOUT_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            f"{CONNECT_TIMEOUT_VARIABLE}={text!r} is no number of seconds",
            expected="a number above 0, e.g. 30",
        )
    return seconds


@contextlib.contextmanager
def _vague_errors() -> Iterator[None]:
    """Pass over SFTP's `Failure`, which has no errno."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
