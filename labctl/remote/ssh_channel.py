"""One command over an SSH connection: started, fed, drained, watched and, where it must be, killed."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import paramiko

from labctl.errors import ConnectionLostError, RemoteCommandError
from labctl.remote.base import Answer, Result
from labctl.remote.capture import Capture

if TYPE_CHECKING:
    from labctl.remote.ssh_link import Link

OPEN_S = 10.0  # for the server's answer to a request
_QUIET_S = 4.0  # of silence before the peer is asked whether it is there
_ANSWER_S = 8.0  # for that answer
_STRAGGLER_S = 0.5
_POLL_S = 0.02
_IDLE_S = 0.5
_BLOCK = 256 * 1024
_FEED = 32 * 1024

# Both streams begin with a mark, so that what a login shell's own files print is told apart; the
# shell becomes the command, so that the server sees its exit status or its signal.
_SCRIPT = """printf '%s %s\\n' "$1" "$$"; printf '%s\\n' "$1" >&2; shift; exec "$@\""""
_SUDO_SCRIPT = _SCRIPT.replace(
    'shift; exec "$@"', 'shift; [ "$(id -u)" = 0 ] || set -- sudo -n "$@"; exec "$@"'
)
_KILL_SCRIPT = """
group=$1
alive() {
    for stat in /proc/[0-9]*/stat; do
        read -r line < "$stat" || continue
        set -- ${line##*) }
        [ "$3" = "$group" ] && [ "$1" != Z ] && return 0
    done
    return 1
}
if [ "$2" = sudo ]; then kill -s TERM -- "-$group"; sleep 1; fi  # which sudo passes on
kill -s KILL -- "-$group" || kill -s KILL "$group"
n=0
while alive; do
    n=$((n + 1))
    [ "$n" -lt 20 ] || exit 1
    sleep 0.1
done
"""


class Guard:
    """Breaks a connection when what is done with it makes no progress: paramiko itself may wait for ever.

    Args:
        link: The connection.
        limit_s: Seconds without `kick`.
    """

    def __init__(self, link: Link, limit_s: float) -> None:
        self._link = link
        self._limit_s = limit_s
        self._expires = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.fired = False

    def kick(self) -> None:
        """Tell that there was progress."""
        self._expires = time.monotonic() + self._limit_s

    def _watch(self) -> None:
        while not self._done.wait(max(0.0, self._expires - time.monotonic())):
            if time.monotonic() >= self._expires:
                self.fired = True
                self._link.transport.close()
                return

    def __enter__(self) -> Self:
        self.kick()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()


def open_session(link: Link) -> paramiko.Channel:
    """Return a new channel for a command.

    Raises:
        paramiko.SSHException, EOFError, OSError: The connection is gone or refuses.
        TimeoutError: The peer does not answer.
    """
    try:
        return link.transport.open_session(timeout=OPEN_S)
    except paramiko.SSHException as error:
        if "Timeout" in str(error):
            raise TimeoutError(f"no answer for {OPEN_S:g} s") from error
        raise


class Command:
    """One remote command.

    Args:
        link: The connection.
        node: The node's name, for messages.
        argv: Program and arguments, `env` put before them already.
        sudo: Run it as root.

    Raises:
        ValueError: A null byte, which no argument can hold.
    """

    def __init__(self, link: Link, node: str, argv: Sequence[str], *, sudo: bool) -> None:
        if any("\0" in each for each in argv):
            raise ValueError("embedded null byte")
        self._link = link
        self._node = node
        self._argv = tuple(argv)
        self._sudo = sudo
        self._mark = f"labctl-{os.urandom(8).hex()}"
        self._pid: int | None = None

    def run(
        self,
        channel: paramiko.Channel,
        data: bytes,
        deadline: float,
        max_output: int,
        shown: Sequence[str],
    ) -> Result:
        """Run it to its end.

        Args:
            channel: A fresh one of `open_session`; closed afterwards.
            data: Its standard input.
            deadline: Monotonic time, seconds.
            max_output: Bytes of each stream that are kept.
            shown: The command as the result names it.

        Raises:
            TimeoutError: The deadline passed; the command is not killed yet.
            ConnectionLostError: The link broke, or the peer is frozen.
        """
        started = time.monotonic()
        try:
            self._start(channel)
            streams = _Streams(channel, self._mark, max_output)
            self._pump(channel, streams, memoryview(data), deadline)
            status, number = self._outcome(channel)
        finally:
            with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
                channel.close()
        if not streams.marked:
            said = streams.early().decode("utf-8", "replace").strip()
            raise RemoteCommandError(
                f"the login shell of {self._link.hop.where} did not run the command: "
                f"{said.splitlines()[-1] if said else f'exit {status}'}",
                expected=f"an account on {self._node} that may run commands over SSH",
            )
        return Result(
            tuple(shown),
            status if number is None else None,
            number,
            streams.out.take(),
            streams.err.take(),
            time.monotonic() - started,
            streams.out.truncated or streams.err.truncated,
        )

    def kill(self, link: Link) -> bool:
        """Kill the command and its process group over any connection to its node; False if that failed."""
        if self._pid is None:
            return False
        way = "sudo" if self._sudo else "plain"
        argv = ["sh", "-c", _KILL_SCRIPT, "sh", str(self._pid), way]
        killer = Command(link, self._node, argv, sudo=self._sudo)
        try:
            done = killer.run(open_session(link), b"", time.monotonic() + OPEN_S, 4096, argv)
        except (paramiko.SSHException, EOFError, OSError, ConnectionLostError, RemoteCommandError):
            return False
        return done.ok

    def ask(
        self, channel: paramiko.Channel, questions: Sequence[bytes], deadline: float
    ) -> list[Answer]:
        """Send lines, each when the last was answered with a line.

        Raises:
            TimeoutError: The deadline passed; the command is not killed yet.
            EOFError: The command ended early.
            ConnectionLostError: The link broke.
        """
        answers: list[Answer] = []
        streams = _Streams(channel, self._mark, 1024 * 1024)
        try:
            self._start(channel)
            for each in questions:
                with Guard(self._link, OPEN_S):
                    sent = time.time_ns()
                    channel.sendall(each)
                wanted = len(answers) + 1
                while (lines := streams.out.take().split(b"\n"))[wanted:] == []:
                    self._await(channel, streams, deadline)
                answers.append(Answer(sent, lines[wanted - 1], time.time_ns()))
        finally:
            self._pid = streams.pid
            with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
                channel.close()
        return answers

    def _await(self, channel: paramiko.Channel, streams: _Streams, deadline: float) -> None:
        """Wait for more output. A wake-up may be lost between the two streams, so look now and then."""
        heard = time.monotonic()
        while True:
            ended = channel.eof_received or channel.closed
            if streams.drain():
                return
            if ended:
                raise EOFError if self._link.transport.is_active() else self._lost()
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError
            if now - heard >= _QUIET_S:
                self._probe()
                heard = time.monotonic()
            select.select([channel.fileno()], [], [], min(_IDLE_S, deadline - now))

    def _start(self, channel: paramiko.Channel) -> None:
        script = _SUDO_SCRIPT if self._sudo else _SCRIPT
        command = f"exec /bin/sh -c {shlex.join([script, 'sh', self._mark, *self._argv])}"
        with Guard(self._link, OPEN_S):
            try:
                channel.exec_command(command)
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise self._lost() from error

    def _pump(
        self, channel: paramiko.Channel, streams: _Streams, waiting: memoryview, deadline: float
    ) -> None:
        number = channel.fileno()
        feeding, heard = True, time.monotonic()
        with Guard(self._link, max(0.0, deadline - time.monotonic()) + OPEN_S + _ANSWER_S):
            while True:
                moved = streams.drain()
                if moved:
                    heard = time.monotonic()
                    self._pid = self._pid or streams.pid
                if feeding:
                    waiting = _feed(channel, waiting)
                    if not waiting:
                        feeding = False
                        with contextlib.suppress(OSError, EOFError):
                            channel.shutdown_write()
                ended = channel.status_event.is_set()
                if channel.closed or (channel.eof_received and ended):
                    while streams.drain():
                        pass
                    return
                now = time.monotonic()
                if now >= deadline and not ended:
                    raise TimeoutError
                if now - heard >= (_STRAGGLER_S if ended else _QUIET_S):
                    # What the command wrote before it ended arrives before the peer's answer.
                    self._probe()
                    moved, heard = streams.drain(), time.monotonic()
                    if ended and not moved and not channel.eof_received:
                        return
                if not moved:
                    pause = min(_POLL_S if feeding else _IDLE_S, max(0.0, deadline - now))
                    if channel.eof_received:
                        channel.status_event.wait(pause)
                    else:
                        select.select([number], [], [], pause)

    def _probe(self) -> None:
        """Make the peer answer something.

        Raises:
            ConnectionLostError: It does not.
        """
        try:
            self._link.transport.open_session(timeout=_ANSWER_S).close()
        except paramiko.ChannelException:
            return  # a refusal is an answer
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._lost() from error

    def _outcome(self, channel: paramiko.Channel) -> tuple[int, int | None]:
        name = self._link.transport.exit_signals.pop(channel.chanid, None)
        if name is not None:
            return 0, _signal_number(name)
        if channel.exit_status < 0:
            raise self._lost()
        return channel.exit_status, None

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(
            f"the connection to {self._node} ({self._link.hop.where}) broke while {_program(self._argv)} "
            "ran there: whether it ended is not known"
        )


def _program(argv: Sequence[str]) -> str:
    return next((each for each in argv if each != "env" and "=" not in each), argv[0])


def _signal_number(name: str) -> int:
    """Return a signal's number; 0 for one that the SSH protocol has no name for."""
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return 0


def _feed(channel: paramiko.Channel, waiting: memoryview) -> memoryview:
    """Send what the peer's window takes; a command that has ended wants no more."""
    try:
        while waiting and channel.send_ready():
            waiting = waiting[channel.send(bytes(waiting[:_FEED])) :]
            if channel.recv_ready() or channel.recv_stderr_ready():
                break
    except (OSError, EOFError):
        return waiting[:0]
    return waiting


class _Streams:
    """Both output streams, the mark and whatever came before it taken off."""

    def __init__(self, channel: paramiko.Channel, mark: str, limit: int) -> None:
        self._channel = channel
        self._mark = mark.encode()
        self._limit = limit
        self.out, self.err = Capture(limit), Capture(limit)
        self._early: dict[int, bytes] = {1: b"", 2: b""}
        self.pid: int | None = None

    @property
    def marked(self) -> bool:
        """The command was started."""
        return self.pid is not None

    def early(self) -> bytes:
        """Return what came without a mark."""
        return b"".join(self._early.values())

    def drain(self) -> bool:
        """Take what has arrived, up to a block of each stream; False if there was nothing."""
        out, err = self._channel.recv_ready(), self._channel.recv_stderr_ready()
        if out:
            self._take(1, self._channel.recv(_BLOCK))
        if err:
            self._take(2, self._channel.recv_stderr(_BLOCK))
        return out or err

    def _take(self, stream: int, data: bytes) -> None:
        capture = self.out if stream == 1 else self.err
        if stream in self._early and data:
            data = self._early[stream] + data
            at = data.find(self._mark)
            end = data.find(b"\n", at)
            if at < 0 or end < 0:
                self._early[stream] = data[-_BLOCK:]
                return
            if stream == 1:
                self.pid = int(data[at + len(self._mark) : end])
            del self._early[stream]
            data = data[end + 1 :]
        capture.add(data)
