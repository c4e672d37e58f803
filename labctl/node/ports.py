"""TCP ports: does a gRPC server answer there, is one free, who holds it."""

from __future__ import annotations

import errno
import os
import pwd
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import PORT_IN_USE, NodeError
from .spec import split_address
from .wire import EXIT_PORT_IN_USE

State = Literal["answers", "refused", "timed out", "not resolvable", "not gRPC"]

_SETTINGS_FRAME = 4
_FRAME_HEAD_BYTES = 9
_LISTEN = "0A"


@dataclass(frozen=True)
class Answer:
    """What a port said.

    Attributes:
        state: `answers` only if a gRPC server is there and alive.
        detail: The system's own words, "" if there is nothing to add.
    """

    state: State
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.state == "answers"


def probe(address: str, timeout_s: float) -> Answer:
    """Return how a TensorFlow server's port answers.

    A gRPC server sends its HTTP/2 settings at once, unasked; so one that is stopped or wedged, whose kernel
    still accepts connections, is told from one that lives. Nothing is sent, and the server logs nothing.

    Args:
        address: `host:port`.
        timeout_s: For name resolution excepted, the whole probe.
    """
    host, port = split_address(address)
    deadline = time.monotonic() + timeout_s
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
    except OSError as error:
        return Answer("not resolvable", str(error))
    with socket.socket(family, kind, protocol) as connection:
        try:
            connection.settimeout(timeout_s)
            connection.connect(target)
            return _read_settings(connection, deadline)
        except ConnectionError as error:
            return Answer("refused", error.strerror or str(error))
        except TimeoutError:
            return Answer("timed out")
        except OSError as error:  # no route, network unreachable: nobody is there to refuse
            return Answer("timed out", error.strerror or str(error))


def _read_settings(connection: socket.socket, deadline: float) -> Answer:
    head = b""
    while len(head) < _FRAME_HEAD_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return Answer("timed out", "connected, but nothing was sent")
        connection.settimeout(left_s)
        try:
            piece = connection.recv(_FRAME_HEAD_BYTES - len(head))
        except TimeoutError:
            return Answer("timed out", "connected, but nothing was sent")
        if not piece:
            return Answer("refused", "connection closed at once")
        head += piece
    if head[3] != _SETTINGS_FRAME:
        return Answer("not gRPC", f"first bytes {head!r}")
    return Answer("answers")


def free_local_ports(count: int) -> list[int]:
    """Return that many different ports of 127.0.0.1 that were free a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def require_free_port(address: str) -> None:
    """Check that this machine can listen on an address's port.

    All interfaces count, because a TensorFlow server listens on all of them whatever its spec says.

    Raises:
        NodeError: Another process holds the port, or this user may not have it.
    """
    port = split_address(address)[1]
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 a probe
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((everywhere, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise port_in_use(port) from error
            if error.errno == errno.EACCES:
                raise NodeError(
                    f"port {port} may not be used by user {_user_name(os.getuid())}: {error.strerror}",
                    expected="a port of 1024 or more",
                    do="set tf_port in the inventory and provision again",
                ) from error
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                raise


def port_in_use(port: int) -> NodeError:
    """Return the error for a port that is taken, with its holder as far as it can be seen."""
    return NodeError(
        f"port {port} is in use by {holder_of(port)}",
        expected="no listener on this task's port, on any interface",
        do=f"end that process, or set another tf_port; `ss -ltnp 'sport = :{port}'` shows it",
        kind=PORT_IN_USE,
        status=EXIT_PORT_IN_USE,
    )


def holder_of(port: int) -> str:
    """Return who listens on a port, in words."""
    listeners = _listeners(port)
    pids = _owners({inode for inode, _ in listeners})
    if pids:
        return ", ".join(f"{_command(pid)} (pid {pid})" for pid in pids)
    users = sorted({_user_name(uid) for _, uid in listeners})
    if users:
        return f"a process of user {', '.join(users)} that this user may not inspect"
    return "another process that cannot be seen from here"


def _listeners(port: int) -> list[tuple[str, int]]:
    """Return socket inode and user id of each listening socket on a port."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.append((fields[9], int(fields[7])))
    return found


def _owners(inodes: set[str]) -> list[int]:
    """Return the processes, of those this user may inspect, that hold one of these sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(
        pid for pid in pids if wanted and any(link in wanted for link in _open_files(pid))
    )


def _open_files(pid: int) -> Iterable[str]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # ended, or another user's
        return
    for link in links:
        with suppress(OSError):
            yield str(link.readlink())


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "a process that has just ended"
    words = [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]
    return re.sub(r"\s+", " ", " ".join(words))[:120] or "a process without a command line"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
