"""The logs of a stored run, interleaved by corrected time, in bounded memory."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from labctl.console import safe_text
from labctl.node import wire
from labctl.runs.events import Event, parse_line
from labctl.runs.plain import open_plain
from labctl.runs.record import (
    EVENTS_FILE,
    INDEX_FILE,
    JOIN_PREFIX,
    JOURNAL_FILE,
    LOGS_DIR,
    RunRecord,
)
from labctl.runs.store import Entry

MAX_LINE = 64 * 1024  # a longer line is shown in pieces
_ROW_BYTES = 4 * 1024 * 1024  # of a journal's entry
_STAMP_DIGITS = 18  # of microseconds since 1970
_LAST_S = 1e10  # no stream arrived later than this, Unix time
_WAITING = 64  # lines that may wait for a stamp: bounds the memory
_STAMPED = re.compile(rb"[IWEF]\d{4} \d\d:\d\d:(\d{10}\.\d{1,9}) ")
EVENTS = "events"
JOIN_SERVER = "join-server"
STREAMS = (wire.STDOUT_FILE, wire.STDERR_FILE)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log.

    Attributes:
        t_s: Unix time on labctl's clock, seconds.
        node: Where it was written.
        source: `stdout`, `stderr`, `events`, `join-server` or `systemd`.
        text: Its bytes, without the newline.
    """

    t_s: float
    node: str
    source: str
    text: bytes

    def printed(self) -> str:
        """Return the line for a terminal: time (UTC), node, source, text without control characters."""
        return f"{_clock_time(self.t_s)} {self.node} {self.source:<11} {safe_text(self.text)}"

    def to_json(self) -> str:
        """Return the line as one line of JSON."""
        data = {
            "t": round(self.t_s, 6),
            "node": self.node,
            "source": self.source,
            "text": self.text.decode("utf-8", "backslashreplace"),
        }
        return json.dumps(data, ensure_ascii=False)


def record_lines(entry: Entry, nodes: tuple[str, ...] = ()) -> Iterator[LogLine]:
    """Yield all log lines of a run in order of time.

    Args:
        entry: The run.
        nodes: Only these; () for all.

    Raises:
        RecordError: Its record cannot be read.
    """
    record = entry.readable()
    sources = [_rising(each) for each in _sources(entry.path, record, nodes)]
    yield from heapq.merge(*sources, key=lambda line: line.t_s)


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without their newline; one longer than MAX_LINE comes in pieces."""
    while line := file.readline(MAX_LINE):
        yield line.removesuffix(b"\n")


def event_text(event: Event) -> bytes:
    """Return an event as one line: its kind and what it holds."""
    parts = [event.kind]
    for key, value in event.data.items():
        duration_ns = event.number(key) if key == "duration_ns" else None
        if duration_ns is not None:
            parts.append(f"duration={duration_ns / 1e6:.3f} ms")
        elif value is not None:
            parts.append(f"{key}={value}")
    return " ".join(parts).encode("utf-8", "backslashreplace")


def _sources(
    folder: Path, record: RunRecord, nodes: tuple[str, ...]
) -> Iterator[Iterator[LogLine]]:
    client = record.remote.node
    zero_s = record.origin.unix_s
    if not nodes or client in nodes:
        lines = _events(folder, EVENTS_FILE, client, EVENTS, record.offset_s(client))
        yield _readable(lines, LogLine(zero_s, client, EVENTS, EVENTS_FILE.encode()))
    for node in record.nodes:
        if nodes and node.name not in nodes:
            continue
        logs, offset_s = f"{LOGS_DIR}/{node.name}", record.offset_s(node.name)
        said, wrote = (f"{logs}/{JOIN_PREFIX}{name}" for name in STREAMS)
        start_s = _server_start(record, node.name)
        sources = [
            *(
                (f"{logs}/{name}", name, _stream(folder, logs, node.name, name, record))
                for name in STREAMS
            ),
            (
                f"{logs}/{JOURNAL_FILE}",
                JOIN_SERVER,
                _journal(folder, f"{logs}/{JOURNAL_FILE}", node.name, offset_s),
            ),
            (said, JOIN_SERVER, _events(folder, said, node.name, JOIN_SERVER, offset_s)),
            (wrote, JOIN_SERVER, _plain(folder, wrote, node.name, start_s)),
        ]
        for place, source, lines in sources:
            yield _readable(lines, LogLine(zero_s, node.name, source, place.encode()))


def _readable(lines: Iterator[LogLine], place: LogLine) -> Iterator[LogLine]:
    """Yield the lines of a file; of one that cannot be read, a line that says so; of a missing one, none.

    Args:
        lines: Those of the file, which is opened with the first.
        place: A line at the run's start that holds the file's path.
    """
    try:
        yield from lines
    except FileNotFoundError:
        return
    except OSError as error:
        why = f" cannot be read: {error.strerror or error}".encode()
        yield LogLine(place.t_s, place.node, place.source, b"labctl: " + place.text + why)


def _rising(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines whose times never fall: a source keeps its own order whatever its clock did."""
    latest = float("-inf")
    for line in lines:
        if line.t_s < latest:
            yield LogLine(latest, line.node, line.source, line.text)
        else:
            latest = line.t_s
            yield line


def _stream(
    folder: Path, logs: str, node: str, source: str, record: RunRecord
) -> Iterator[LogLine]:
    """Yield lines of a stream without times.

    Each is placed at the moment its last byte had arrived, or earlier: a line that TensorFlow stamped has its
    own time, and lines before it in the same arrival are not later than it.
    """
    offset_s = record.offset_s(record.remote.node)
    end_s = record.origin.unix_s + (record.wall_s or 0.0)
    index = read_index(folder / logs / INDEX_FILE, source)
    nothing: tuple[float, int | None] = (end_s, None)
    arrived_s, upto = next(index, nothing)
    place = 0
    waiting: list[bytes] = []
    with open_plain(folder, f"{logs}/{source}") as file:
        while line := file.readline(MAX_LINE):
            place += len(line)
            if upto is not None and upto < place:
                yield from (LogLine(arrived_s, node, source, each) for each in waiting)
                waiting.clear()
                while upto is not None and upto < place:
                    arrived_s, upto = next(index, nothing)
            waiting.append(line.removesuffix(b"\n"))
            stamp_s = _stamp(line)
            if stamp_s is not None or len(waiting) >= _WAITING:
                t_s = arrived_s if stamp_s is None else min(arrived_s, stamp_s - offset_s)
                yield from (LogLine(t_s, node, source, each) for each in waiting)
                waiting.clear()
    yield from (LogLine(arrived_s, node, source, each) for each in waiting)


def _stamp(line: bytes) -> float | None:
    """Return the Unix time that TensorFlow's logger put at the head of a line, None if there is none."""
    match = _STAMPED.match(line)
    return None if match is None else float(match[1])


def read_index(path: Path, name: str) -> Iterator[tuple[float, int]]:
    """Yield when a stream had arrived (Unix time on labctl's clock, seconds), and up to which byte.

    A file that is missing or no plain file holds none.
    """
    with suppress(OSError), open_plain(path.parent, path.name) as file:
        for line in lines_of(file):
            data = _json(line)
            t_s, offset = data.get("t"), data.get("offset")
            if data.get("file") != name or not isinstance(offset, int):
                continue
            if isinstance(t_s, int | float) and 0 <= t_s <= _LAST_S:
                yield float(t_s), offset


def _events(folder: Path, name: str, node: str, source: str, offset_s: float) -> Iterator[LogLine]:
    latest = 0.0
    with open_plain(folder, name) as file:
        for line in lines_of(file):
            event = parse_line(line)
            latest = latest if event is None else event.t_s - offset_s
            yield LogLine(latest, node, source, line if event is None else event_text(event))


def _journal(folder: Path, name: str, node: str, offset_s: float) -> Iterator[LogLine]:
    with open_plain(folder, name) as file:
        while row := file.readline(_ROW_BYTES):
            data = _json(row)
            stamp = data.get("__REALTIME_TIMESTAMP")
            if not isinstance(stamp, str) or not stamp.isdecimal() or len(stamp) > _STAMP_DIGITS:
                continue
            source = "systemd" if data.get("SYSLOG_IDENTIFIER") == "systemd" else JOIN_SERVER
            yield LogLine(int(stamp) / 1e6 - offset_s, node, source, _message(data.get("MESSAGE")))


def _plain(folder: Path, name: str, node: str, t_s: float) -> Iterator[LogLine]:
    """Yield the lines of a loopback join server's stderr: by TensorFlow's stamps, from its start on."""
    with open_plain(folder, name) as file:
        for line in lines_of(file):
            stamp_s = _stamp(line)
            t_s = t_s if stamp_s is None else stamp_s
            yield LogLine(t_s, node, JOIN_SERVER, line)


def journal_text(message: bytes) -> bytes:
    """Return a join server's message for people: its own events without the JSON."""
    event = parse_line(message) if message.startswith(b"{") else None
    return message if event is None else event_text(event)


def _message(value: Any) -> bytes:
    if isinstance(value, list) and all(isinstance(each, int) and 0 <= each < 256 for each in value):
        return bytes(value)  # how the journal writes what is no UTF-8
    return journal_text(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else b""


def _clock_time(t_s: float) -> str:
    """Return the time of day in UTC, dashes where an absurd clock's is none."""
    try:
        return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError, OSError):
        return "--:--:--.---"


def _server_start(record: RunRecord, node: str) -> float:
    for server in record.servers_before:
        if server.node == node and server.started_at_s is not None:
            return server.started_at_s - record.offset_s(node)
    return record.origin.unix_s


def _json(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
