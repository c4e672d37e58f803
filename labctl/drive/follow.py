"""Following a run: copy what it writes, see its end, and stop it when somebody or something says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.drive import stop
from labctl.drive.interrupts import Interrupts
from labctl.drive.links import Machine, NodeLink
from labctl.drive.outcome import Ending, Why
from labctl.drive.places import RUN_UNIT, Places, run_of
from labctl.drive.timing import Clock
from labctl.drive.watch import ServerChange, ServerWatch
from labctl.errors import (
    AuthenticationError,
    ConnectionLostError,
    DeadlineError,
    HostKeyError,
    HostUnreachableError,
)
from labctl.node import wire
from labctl.remote.follow import Follower
from labctl.remote.units import EXIT_FILE, UnitEnd
from labctl.runs.events import EventStream
from labctl.runs.observer import Observer, Progress
from labctl.runs.record import EVENTS_FILE, INDEX_FILE, LOGS_DIR, RemoteRun

POLL_S = 0.25
UNIT_POLL_S = 5.0
SERVER_GRACE_S = (
    10.0  # a client that sees its server go may end by itself, and says more than we know
)
LOST_GRACE_S = 60.0  # beyond the run's deadline, a node may still come back
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_GONE_AFTER = 3  # looks at a unit that neither runs nor has an end
_ROOM_S = 10.0
_LITTLE_ROOM = 1 << 20  # bytes
_BLOCK = 4 * 1024 * 1024
STREAMS = (wire.STDOUT_FILE, wire.STDERR_FILE)


@dataclass(frozen=True, slots=True)
class Followed:
    """What to follow.

    Attributes:
        run_id: The run.
        remote: Where it runs.
        folder: Its record.
        where: The lab's places.
        deadline_unix_s: When labctl ends it, Unix time on labctl's clock, seconds.
        timeout_s: The run's time-out, for the message.
    """

    run_id: str
    remote: RemoteRun
    folder: Path
    where: Places
    deadline_unix_s: float
    timeout_s: float

    @property
    def logs(self) -> Path:
        """Directory of the client's streams in the record."""
        return self.folder / LOGS_DIR / self.remote.node

    def local(self, name: str) -> Path:
        """Return where a file of the run directory is copied to."""
        if name == wire.EVENTS_FILE:
            return self.folder / EVENTS_FILE
        return self.logs / name if name in STREAMS else self.folder / name

    def distant(self, name: str) -> str:
        """Return a file's path on the node."""
        return f"{self.remote.directory}/{name}"


@dataclass(frozen=True, slots=True)
class _Seen:
    events: bytes
    streams: dict[str, bytes]
    end: UnitEnd | None
    more: bool


class Follow:
    """Follows one run to its end.

    Args:
        run: What to follow.
        link: The node of task 0; the only thing that is waited for.
        watch: The join servers.
        observer: Is told of everything.
        interrupts: Says when the user wants the end.
        clock: Where time comes from.
    """

    def __init__(
        self,
        run: Followed,
        link: NodeLink,
        watch: ServerWatch,
        *,
        observer: Observer,
        interrupts: Interrupts,
        clock: Clock,
    ) -> None:
        self._run = run
        self._link = link
        self._watch = watch
        self._observer = observer
        self._interrupts = interrupts
        self._clock = clock
        self._stream = EventStream()
        self._progress = Progress()
        self._why: Why = "ended"
        self._stopped = False
        self._server: ServerChange | None = None
        self._server_gone_s = 0.0
        self._next_unit_look_s = 0.0
        self._looks_without_unit = 0
        self._began_s = clock.mono_s()

    def to_the_end(self) -> Ending:
        """Return when the run has ended, was stopped, or is lost from sight."""
        self._run.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._replay()
        while True:
            self._wishes()
            try:
                ending = self._once()
            except (ConnectionLostError, HostUnreachableError, DeadlineError) as error:
                ending = self._reconnect(error.found)
            except (HostKeyError, AuthenticationError) as error:
                ending = Ending("lost", detail=error.found)
            if ending is not None:
                return replace(ending, server=self._server)
            self._clock.sleep(POLL_S)

    def _once(self) -> Ending | None:
        if self._why != "ended" and not self._stopped:
            try:
                if not self._stop():
                    self._why = "ended"  # it had ended by itself
            except DeadlineError as error:
                return Ending("lost", detail=error.found)
        seen = self._link.call(self._look)
        self._take(seen)
        while seen.more:
            seen = self._link.call(self._look)
            self._take(seen)
        if seen.end is not None:
            cancelled = self._link.call(
                lambda machine: stop.was_cancelled(machine, self._run.where, self._run.run_id)
            )
            why = "cancelled" if cancelled and self._why == "ended" else self._why
            return Ending(why, seen.end, self._detail(why))
        if self._clock.mono_s() >= self._next_unit_look_s:
            self._next_unit_look_s = self._clock.mono_s() + UNIT_POLL_S
            return self._look_at_unit()
        return None

    def _look(self, machine: Machine) -> _Seen:
        """Copy what is new. The end is read first: all that was written before it is copied after."""
        end = machine.units.end(self._run.remote.directory)
        data = {name: self._copy(machine, name) for name in (wire.EVENTS_FILE, *STREAMS)}
        more = any(len(each) >= _BLOCK for each in data.values())
        return _Seen(data.pop(wire.EVENTS_FILE), data, end, more)

    def _copy(self, machine: Machine, name: str) -> bytes:
        follower = Follower(machine.executor, self._run.distant(name), self._run.local(name))
        return follower.poll(limit=_BLOCK)

    def _take(self, seen: _Seen) -> None:
        for name, data in seen.streams.items():
            if data:
                self._index(name)
                self._observer.output(self._run.remote.node, name, data)
        self._advance(seen.events)
        elapsed_s = self._clock.mono_s() - self._began_s
        self._observer.progress(replace(self._progress, elapsed_s=elapsed_s))

    def _advance(self, data: bytes) -> None:
        for event in self._stream.feed(data):
            if event.source != "client":
                continue
            if event.kind == wire.PHASE_BEGIN:
                self._progress = Progress(event.text("phase"))
            elif event.kind == wire.STEP:
                duration_ns = event.number("duration_ns")
                sample = event.text("kind") in wire.SAMPLE_KINDS  # others are beyond the total
                self._progress = replace(
                    self._progress,
                    step=(event.whole("index") or 0) + 1 if sample else 0,
                    total=event.whole("total") or 0 if sample else 0,
                    last_step_ms=None if duration_ns is None else duration_ns / 1e6,
                )

    def _index(self, name: str) -> None:
        """Note up to which byte a stream has come by now: its lines have no times of their own."""
        line = {
            "file": name,
            "t": round(self._clock.unix_s(), 6),
            "offset": self._run.local(name).stat().st_size,
        }
        with (self._run.logs / INDEX_FILE).open("a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")

    def _replay(self) -> None:
        """Take what an earlier labctl has copied already."""
        events = self._run.local(wire.EVENTS_FILE)
        if events.exists():
            self._advance(events.read_bytes())

    def _wishes(self) -> None:
        """See who wants the run to end."""
        if self._why != "ended" or self._stopped:
            return
        now_s = self._clock.mono_s()
        if self._server is None and (change := self._watch.look()) is not None:
            self._server, self._server_gone_s = change, now_s
            self._observer.note(f"{change.text}; the run has {SERVER_GRACE_S:g} s to end by itself")
        if self._interrupts.wanted:
            self._why = "cancelled"
            self._observer.note(
                f"cancelling run {self._run.run_id} on {self._run.remote.node}; "
                "a second Ctrl-C leaves it alone and returns at once"
            )
        elif self._clock.unix_s() > self._run.deadline_unix_s:
            self._why = "timeout"
            self._observer.note(f"{self._detail('timeout')}; ending the run")
        elif self._server is not None and now_s - self._server_gone_s > SERVER_GRACE_S:
            self._why = "server"

    def _stop(self) -> bool:
        """End the client on its node and return whether it was running.

        Raises:
            DeadlineError: Something of it is still alive.
        """
        run, cancelled = self._run, self._why == "cancelled"

        def end(machine: Machine) -> bool:
            if cancelled:
                return stop.cancel_client(machine, run.where, run.run_id)
            return stop.stop_client(machine, run.run_id)

        was_running = self._link.call(end)
        self._stopped = True
        return was_running

    def _look_at_unit(self) -> Ending | None:
        """See a unit that is gone without having left its end: its node went down, or somebody removed it."""
        run = self._run

        state = self._link.call(lambda machine: machine.units.state(RUN_UNIT))
        if state.running and run_of(state.description) == run.run_id:
            self._looks_without_unit = 0
            return None
        self._looks_without_unit += 1
        if self._looks_without_unit < _GONE_AFTER:
            self._next_unit_look_s = self._clock.mono_s()  # its end may just be being written
            return None
        if run.remote.boot_id and state.boot_id != run.remote.boot_id:
            return Ending("rebooted", detail=f"{run.remote.node} restarted in mid-run")
        if not run.remote.boot_id:
            detail = f"the client was never started on {run.remote.node}: labctl ended before that"
            return Ending("vanished", detail=detail)
        room = self._link.call(self._room)
        detail = (
            f"the client is gone from {run.remote.node} and left no {run.distant(EXIT_FILE)}{room}"
        )
        return Ending("vanished", detail=detail)

    def _room(self, machine: Machine) -> str:
        """Return what there is to say of the room where the end should have been written."""
        argv = ["df", "--block-size=1", "--output=avail", self._run.remote.directory]
        said = machine.executor.run(argv, timeout_s=_ROOM_S).text.splitlines()
        if not said or not said[-1].strip().isdecimal() or int(said[-1]) >= _LITTLE_ROOM:
            return ""
        return f": its disk is full ({int(said[-1]) >> 10} KiB free)"

    def _reconnect(self, why: str) -> Ending | None:
        """Try to reach the node again until its run must be over; None when it answers."""
        node = self._run.remote.node
        self._observer.note(f"no connection to {node} ({why}); the run goes on there, reconnecting")
        give_up_unix_s = self._run.deadline_unix_s + LOST_GRACE_S
        attempt = 0
        while True:
            self._link.reopen()
            try:
                self._link.call(lambda machine: machine.executor.size(self._run.remote.directory))
            except (ConnectionLostError, HostUnreachableError, DeadlineError) as error:
                why = error.found
            except (HostKeyError, AuthenticationError) as error:
                return Ending("lost", detail=error.found)
            else:
                self._observer.note(f"connected to {node} again")
                return None
            if self._interrupts.wanted:
                detail = f"{node} cannot be reached, so the run could not be cancelled: {why}"
                return Ending("lost", detail=detail)
            if self._clock.unix_s() > give_up_unix_s:
                return Ending("lost", detail=f"{node} has not been reachable since: {why}")
            self._wait(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            attempt += 1

    def _wait(self, seconds: float) -> None:
        until_s = self._clock.mono_s() + seconds
        while self._clock.mono_s() < until_s and not self._interrupts.wanted:
            self._clock.sleep(POLL_S)

    def _detail(self, why: Why) -> str:
        return f"no end within {self._run.timeout_s:g} s" if why == "timeout" else ""
