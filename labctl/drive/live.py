"""Logs while they are written: the join servers' journals, and a run that another labctl follows."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from labctl.drive.clock import clock_sample
from labctl.drive.links import Links, Machine, NodeLink
from labctl.drive.places import JOIN_SERVICE
from labctl.drive.timing import Clock, Timeline
from labctl.errors import RecordError
from labctl.remote.journal import JournalPage, read_journal
from labctl.runs.events import parse_line
from labctl.runs.record import EVENTS_FILE, INDEX_FILE, LOGS_DIR
from labctl.runs.store import Entry, RunStore
from labctl.views.logs import (
    EVENTS,
    JOIN_SERVER,
    STREAMS,
    LogLine,
    event_text,
    journal_text,
    read_index,
)

_PAGE = 5_000
_POLL_S = 1.0
_BLOCK = 4 * 1024 * 1024
_LEAD_S = 2.0


class _Journal:
    """The journal of one node's join server.

    Args:
        link: The node.
        timeline: For the clock's measurement.
        since_s: Unix time on labctl's clock; None for the server's last start.
    """

    def __init__(self, link: NodeLink, timeline: Timeline, since_s: float | None) -> None:
        self._link = link
        self._cursor: str | None = None
        self._offset_s = link.call(lambda machine: clock_sample(machine, timeline)).offset_s
        self._since_s = self._from(since_s)

    def lines(self) -> Iterator[LogLine]:
        """Yield what has been written since the last call."""
        while True:
            page = self._link.call(self._page)
            self._cursor = page.cursor
            for line in page.lines:
                source = JOIN_SERVER if line.own else line.identifier
                t_s = line.t_ns / 1e9 - self._offset_s
                yield LogLine(t_s, self._link.node.name, source, journal_text(line.message))
            if len(page.lines) < _PAGE:
                return

    def _page(self, machine: Machine) -> JournalPage:
        since_s = self._since_s if self._cursor is None else None
        return read_journal(
            machine.executor, JOIN_SERVICE, since_cursor=self._cursor, since_s=since_s, limit=_PAGE
        )

    def _from(self, since_s: float | None) -> float | None:
        if since_s is not None:
            return since_s + self._offset_s
        started_s = self._link.call(lambda machine: machine.units.state(JOIN_SERVICE).started_at_s)
        return None if started_s is None else started_s - _LEAD_S


def server_lines(
    links: Links,
    timeline: Timeline,
    clock: Clock,
    *,
    nodes: tuple[str, ...],
    since_s: float | None,
    follow: bool,
) -> Iterator[LogLine]:
    """Yield the join servers' journals, interleaved by corrected time.

    Args:
        links: The lab's nodes.
        timeline: For the clocks' measurement.
        clock: For waiting.
        nodes: Only these; () for all.
        since_s: Unix time on labctl's clock; None for each server's last start.
        follow: Go on for ever with what comes.

    Raises:
        RemoteCommandError: A journal cannot be read.
    """
    chosen = [link for link in links.workers if not nodes or link.node.name in nodes]
    journals = [_Journal(link, timeline, since_s) for link in chosen]
    while True:
        yield from heapq.merge(*(each.lines() for each in journals), key=lambda line: line.t_s)
        if not follow:
            return
        clock.sleep(_POLL_S)


class RunTail:
    """Tails the record of a run while another labctl follows it.

    Args:
        store: The lab's runs.
        entry: The run.
        nodes: Only these; () for all.
        clock: Where time comes from.
    """

    def __init__(self, store: RunStore, entry: Entry, nodes: tuple[str, ...], clock: Clock) -> None:
        self._store = store
        self._entry = entry
        self._nodes = nodes
        self._clock = clock
        self._places: dict[Path, int] = {}

    def lines(self) -> Iterator[LogLine]:
        """Yield what the client writes until the run has ended."""
        while True:
            running = self._store.find(self._entry.run_id).state == "running"
            new = self._new(last=not running)
            yield from sorted(new, key=lambda line: line.t_s)
            if running:
                self._clock.sleep(_POLL_S)
            elif not new:
                return

    def _new(self, *, last: bool) -> list[LogLine]:
        record = self._entry.readable()
        node = record.remote.node
        if self._nodes and node not in self._nodes:
            return []
        found: list[LogLine] = []
        for line in self._read(self._entry.path / EVENTS_FILE, last=last):
            event = parse_line(line)
            if event is not None:
                t_s = event.t_s - record.offset_s(node)
                found.append(LogLine(t_s, node, EVENTS, event_text(event)))
        logs = self._entry.path / LOGS_DIR / node
        for name in STREAMS:
            arrivals = list(read_index(logs / INDEX_FILE, name))
            place = self._places.get(logs / name, 0)
            for line in self._read(logs / name, last=last):
                place += len(line) + 1
                found.append(LogLine(self._arrival(arrivals, place), node, name, line))
        return found

    def _arrival(self, arrivals: list[tuple[float, int]], place: int) -> float:
        """Return when the byte at a place had arrived: now, if the index does not say so yet."""
        at = bisect_left(arrivals, place, key=lambda arrival: arrival[1])
        return arrivals[at][0] if at < len(arrivals) else self._clock.unix_s()

    def _read(self, path: Path, *, last: bool) -> list[bytes]:
        """Return the new whole lines of a file, and the rest too if it is the last look.

        A line longer than a block comes in pieces.
        """
        place = self._places.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(place)
                data = file.read(_BLOCK)
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if last or (not whole and len(data) == _BLOCK):
            whole = data
        self._places[path] = place + len(whole)
        return whole.removesuffix(b"\n").split(b"\n") if whole else []


def require_followed(entry: Entry) -> None:
    """Check that somebody follows an open run, so that its record grows.

    Raises:
        RecordError: Nobody does.
    """
    if entry.readable().open and entry.state != "running":
        raise RecordError(
            f"no labctl follows run {entry.run_id}, so its record does not grow",
            expected="a run that is followed or has ended",
            do=f"labctl attach {entry.run_id} --show-output",
        )
