"""One SSH connection: jumps or proxy command, host key checked, keys offered, retried only where that is safe."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST
from paramiko.message import Message

from labctl.errors import (
    AuthenticationError,
    ConfigError,
    HostUnreachableError,
)
from labctl.lab.model import SshTarget
from labctl.remote.known_hosts import KnownHosts
from labctl.remote.ssh_config import Hop, jump_target, resolve
from labctl.remote.ssh_keys import Identities

_RETRY_S = 0.5
_MOST_HOPS = 8
_MOST_KEYS = 5  # sshd hangs up after six by default
_NOT_FOUND = ("126", "127")  # what a shell says of a command that it cannot start
_RSA = ("rsa-sha2-512", "rsa-sha2-256")

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # its threads log tracebacks


class NoSshYetError(Exception):
    """Nobody answered, or nobody who speaks SSH: worth another try."""


class Transport(paramiko.Transport):
    """A transport that also hears which signal ended a command.

    Attributes:
        exit_signals: Name of the signal, without SIG, by channel id.
    """

    def __init__(self, sock: Any) -> None:
        self.exit_signals: dict[int, str] = {}
        super().__init__(sock)
        self._channel_handler_table = {
            **self._channel_handler_table,  # type: ignore[has-type]
            MSG_CHANNEL_REQUEST: self._channel_request,
        }

    def _channel_request(self, channel: Any, message: Message) -> None:
        start = message.packet.tell()
        if message.get_text() == "exit-signal":
            message.get_boolean()
            self.exit_signals[channel.chanid] = message.get_text()
            channel.status_event.set()
            return
        message.packet.seek(start)
        channel._handle_request(message)  # noqa: SLF001 what the plain transport does


class Link:
    """An authenticated connection and all that it stands on.

    Args:
        hop: Where to.
        transport: The connection.
        closers: What to close after it, last first.
    """

    def __init__(self, hop: Hop, transport: Transport, closers: contextlib.ExitStack) -> None:
        self.hop = hop
        self.transport = transport
        self._closers = closers

    def close(self) -> None:
        """End the connection and its jumps. May be called twice."""
        self._closers.close()


def open_link(
    node: str,
    target: SshTarget,
    *,
    known_hosts: Sequence[Path],
    timeout_s: float | None,
    default_timeout_s: float,
) -> Link:
    """Connect to a node.

    Args:
        node: Its name, for messages.
        target: Where, before OpenSSH's configuration.
        known_hosts: Files that count before OpenSSH's own.
        timeout_s: Seconds for all of it, jumps included; None for `ConnectTimeout` of OpenSSH.
        default_timeout_s: Seconds if OpenSSH's configuration says nothing.

    Raises:
        ConfigError: OpenSSH's configuration cannot be used.
        HostUnreachableError: No SSH server answered in time.
        HostKeyError: A host key is unknown or another one.
        AuthenticationError: No key was accepted.
    """
    hop = resolve(target, node)
    limit = timeout_s or hop.connect_timeout_s or default_timeout_s
    return _Opening(node, known_hosts, time.monotonic() + limit, limit).open(hop, ())


class _Opening:
    """What the hops of one connection share."""

    def __init__(
        self, node: str, known_hosts: Sequence[Path], deadline: float, limit_s: float
    ) -> None:
        self._node = node
        self._known_hosts = known_hosts
        self._deadline = deadline
        self._limit_s = limit_s

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def open(self, hop: Hop, before: tuple[str, ...]) -> Link:
        """Open one hop, its jumps first; try again while no SSH server answers."""
        if hop.where in before or len(before) >= _MOST_HOPS:
            raise ConfigError(
                f"ProxyJump goes in a circle on the way to {self._node}: "
                f"{' <- '.join((*before, hop.where))}",
                do=f"ssh -G {hop.alias} | grep -i proxyjump",
            )
        with contextlib.ExitStack() as closers:
            connect = self._dialler(hop, (*before, hop.where), closers)
            transport = self._until_ssh(hop, connect)
            closers.callback(transport.close)
            self._check_key(hop, transport)
            self._authenticate(hop, transport)
            transport.set_keepalive(30)
            return Link(hop, transport, closers.pop_all())

    def _dialler(
        self, hop: Hop, before: tuple[str, ...], closers: contextlib.ExitStack
    ) -> Callable[[], Any]:
        """Return what opens a byte stream to a hop, each time anew."""
        if hop.proxy_command is not None:
            proxy = _ProxyCommand(hop.proxy_command)
            closers.callback(proxy.close)
            return lambda: self._by_command(proxy, hop)
        if hop.jumps:
            last = jump_target(hop.jumps[-1], hop.jumps[:-1], hop.config_args)
            gate = self.open(resolve(last, self._node), before)
            closers.callback(gate.close)
            return lambda: self._through(gate, hop)
        return lambda: self._dial(hop)

    def _dial(self, hop: Hop) -> socket.socket:
        try:
            found = socket.getaddrinfo(hop.host, hop.port, hop.family, socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise HostUnreachableError(
                f"the SSH host of {self._node}, {hop.host}, is not known by name ({error})",
                do=f"correct ansible_host of {self._node}, or HostName in ~/.ssh/config",
            ) from error
        last: OSError = TimeoutError()
        for family, kind, protocol, _, address in found:
            link = socket.socket(family, kind, protocol)
            try:
                link.settimeout(self._left())
                if hop.bind_address is not None:
                    link.bind((hop.bind_address, 0))
                link.connect(address)
            except OSError as error:
                link.close()
                last = error
            else:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return link
        if isinstance(last, ConnectionRefusedError):
            raise NoSshYetError("connection refused") from last
        cause = "no answer" if isinstance(last, TimeoutError) else last.strerror
        raise self._unreachable(hop, str(cause)) from last

    def _through(self, gate: Link, hop: Hop) -> paramiko.Channel:
        try:
            return gate.transport.open_channel(
                "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=self._left()
            )
        except paramiko.ChannelException as error:
            if error.code == 1:
                raise self._unreachable(hop, f"{gate.hop.where} forwards nothing") from error
            raise NoSshYetError(f"{gate.hop.where} says: {error.text}") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._unreachable(hop, f"{gate.hop.where} was lost: {error}") from error

    def _by_command(self, proxy: _ProxyCommand, hop: Hop) -> socket.socket:
        ended = proxy.ended()
        proxy.close()
        if ended is not None and (
            ended.startswith(_NOT_FOUND) or time.monotonic() + 2 * _RETRY_S >= self._deadline
        ):
            raise self._unreachable(hop, f"its ProxyCommand ended with {ended}")
        return proxy.open()

    def _unreachable(self, hop: Hop, cause: str) -> HostUnreachableError:
        return HostUnreachableError(
            f"no SSH connection to {self._node} ({hop.where}): {cause}",
            do=f"ssh -v {_login(hop)}",
        )

    def _until_ssh(self, hop: Hop, connect: Callable[[], Any]) -> Transport:
        while True:
            try:
                return self._handshake(hop, connect())
            except NoSshYetError as error:
                if time.monotonic() + _RETRY_S >= self._deadline:
                    cause = f"{error} (tried for {self._limit_s:g} s)"
                    raise self._unreachable(hop, cause) from error
                time.sleep(_RETRY_S)

    def _handshake(self, hop: Hop, stream: Any) -> Transport:
        transport = Transport(stream)
        transport.banner_timeout = transport.auth_timeout = self._left()
        kinds = self._known(hop).kinds()
        wanted = [name for kind in kinds for name in (_RSA if kind == "ssh-rsa" else (kind,))]
        options = transport.get_security_options()
        offered = tuple(options.key_types)
        first = tuple(each for each in wanted if each in offered)
        options.key_types = (*first, *(each for each in offered if each not in first))
        try:
            transport.start_client(timeout=self._left())
        except (paramiko.SSHException, EOFError, OSError) as error:
            transport.close()
            if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
                raise self._unreachable(hop, f"no algorithm in common: {error}") from error
            if isinstance(error, paramiko.SSHException) and "banner" not in str(error):
                raise self._unreachable(hop, str(error)) from error
            raise NoSshYetError("the port is open but no SSH server speaks there") from error
        except BaseException:
            transport.close()
            raise
        if not transport.initial_kex_done:
            transport.close()
            raise NoSshYetError("the port is open but no SSH server speaks there")
        return transport

    def _known(self, hop: Hop) -> KnownHosts:
        files = (*self._known_hosts, *hop.known_hosts)
        name, port = (hop.key_alias, None) if hop.key_alias else (hop.host, hop.port)
        return KnownHosts(files, name, port)

    def _check_key(self, hop: Hop, transport: Transport) -> None:
        key = transport.get_remote_server_key()
        self._known(hop).check(
            key.get_name(), key.asbytes(), node=self._node, login=f"ssh {_login(hop)}"
        )

    def _authenticate(self, hop: Hop, transport: Transport) -> None:
        identities = Identities(hop)
        try:
            for each in identities.offered[:_MOST_KEYS]:
                if self._offer(hop, transport, each.key):
                    return
        finally:
            identities.close()
        labels = [each.label for each in identities.offered[:_MOST_KEYS]]
        tried = f"refused {', '.join(labels)}" if labels else "no key to offer"
        raise AuthenticationError(
            "; ".join([f"{self._node} ({hop.where}) let nobody in: {tried}", *identities.problems]),
            expected=f"a private key whose public half is in ~{hop.user}/.ssh/authorized_keys there",
            do=f"ssh -v {_login(hop)}",
        )

    def _offer(self, hop: Hop, transport: Transport, key: paramiko.PKey) -> bool:
        """Offer one key; False when it is refused."""
        transport.auth_timeout = self._left()
        try:
            more = transport.auth_publickey(hop.user, key)
        except paramiko.BadAuthenticationType as error:
            raise AuthenticationError(
                f"{self._node} ({hop.where}) accepts no keys, only {', '.join(error.allowed_types)}",
                expected="PubkeyAuthentication yes in its sshd_config",
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if "timeout" in str(error).lower():
                raise self._unreachable(hop, "no answer to a key") from error
            if not transport.is_active():
                raise AuthenticationError(
                    f"{self._node} ({hop.where}) hung up while keys were offered",
                    expected="one of the first few keys to be accepted",
                    do="name the right one: ansible_ssh_private_key_file, or IdentityFile with "
                    "IdentitiesOnly yes in ~/.ssh/config",
                ) from error
            return False
        if more:
            raise AuthenticationError(
                f"{self._node} ({hop.where}) wants more than a key: {', '.join(more)}",
                expected="a login by key alone",
            )
        return True


def _login(hop: Hop) -> str:
    """Return arguments of `ssh` that make the same connection."""
    port = f"-p {hop.port} " if hop.port != 22 else ""
    return (
        f"{port}{shlex.join(hop.config_args)}{' ' if hop.config_args else ''}{hop.user}@{hop.alias}"
    )


class _ProxyCommand:
    """A command whose standard input and output are the connection, run as OpenSSH runs it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    def open(self) -> socket.socket:
        """Start the command."""
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 closed by close()
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self._command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
                start_new_session=True,
            )
        return ours

    def ended(self) -> str | None:
        """Return its exit status and last words, None if it runs or was never started."""
        if self._process is None or self._said is None or self._process.poll() is None:
            return None
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return f"{self._process.returncode}{': ' + lines[-1] if lines else ''}"

    def close(self) -> None:
        """End the command. May be called twice."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._said is not None:
            self._said.close()
            self._said = None
