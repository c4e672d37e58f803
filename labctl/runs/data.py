"""All that a record holds, read once: what every analysis starts from. A damaged part is named, never fatal."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.node import wire
from labctl.runs.events import Event, parse_line, read_file
from labctl.runs.plain import MIB, open_plain
from labctl.runs.record import (
    EVENTS_FILE,
    JOIN_PREFIX,
    JOURNAL_FILE,
    LOGS_DIR,
    TRACE_DIR,
    RunRecord,
    read_record,
)

# TensorFlow's log lines: severity and date, then Unix seconds, a thread and `file:line] text`.
_STAMPED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:(\d{10}\.\d{1,9})\s+\d+ ")
# Those of older versions have local time, of which the offset to UTC is not known.
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] ")
_TRACE = re.compile(r"step_stats(?:\.(\d{1,9}))?\.pb\Z")
_LINE_BYTES = 64 * 1024
_HALF_LOG = 20_000  # lines kept of each end of a log
_MOST_TRACE_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of TensorFlow's log, of the client or of a join server.

    Attributes:
        node: Whose.
        unix_s: Time on the node's clock: the logger's own stamp, else the journal's; None where neither is known.
        text: The line without its stamp.
    """

    node: str
    unix_s: float | None
    text: str


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The bytes of one traced step.

    Attributes:
        index: Of the step; None in records that kept only one.
        data: Serialised StepStats.
    """

    index: int | None
    data: bytes


@dataclass(frozen=True, slots=True)
class RunData:
    """A run, as its record tells it.

    Attributes:
        path: The record's directory.
        record: `run.json`.
        events: The client's, in order.
        server_events: Join servers' by node, in order: those of the run and, where the journal still had them, of
            their start.
        log: Lines of the client's stderr and of the join servers' journals, by node in order.
        traces: Traced steps.
        problems: What could not be read and why, one line each: a truncated line, a missing file.
    """

    path: Path
    record: RunRecord
    events: tuple[Event, ...]
    server_events: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    log: tuple[LogLine, ...] = ()
    traces: tuple[TraceFile, ...] = ()
    problems: tuple[str, ...] = ()


def load(path: Path, record: RunRecord | None = None) -> RunData:
    """Read a record.

    Args:
        path: Its directory.
        record: Its `run.json`, if that was read already.

    Raises:
        RecordError: `run.json` is missing, damaged or too new. Nothing else in the directory is fatal.
    """
    reader = _Reader(path, read_record(path) if record is None else record)
    events = reader.events(EVENTS_FILE, required=True)
    log, server_events = reader.logs()
    return RunData(
        path=path,
        record=reader.record,
        events=events,
        server_events=server_events,
        log=log,
        traces=reader.traces(),
        problems=tuple(reader.problems),
    )


def log_line(node: str, text: str, written_unix_s: float | None = None) -> LogLine:
    """Return a line of a log with its stamp read.

    Args:
        node: Whose.
        text: The line as it was written.
        written_unix_s: When, as the journal has it, on the node's clock.
    """
    match = _STAMPED.match(text)
    if match is not None:
        return LogLine(node, float(match[1]), text[match.end() :])
    local = _LOCAL.match(text)
    return LogLine(node, written_unix_s, text if local is None else text[local.end() :])


class _Reader:
    """Reads the parts of one record and notes what it could not read."""

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self.record = record
        self.problems: list[str] = []

    def events(self, name: str, *, required: bool) -> tuple[Event, ...]:
        try:
            found = read_file(self.path, name)
        except OSError as error:
            self._problem(name, f"cannot be read: {error.strerror or error}")
            return ()
        if found.damaged:
            self._problem(name, f"{_lines(found.damaged)} of it {_are(found.damaged)} no events")
        if found.truncated:
            self._problem(name, "its last line is cut short")
        if required and not found.events:
            gone = not (self.path / name).exists()
            self._problem(name, "is missing" if gone else "holds no event")
        return found.events

    def logs(self) -> tuple[tuple[LogLine, ...], dict[str, tuple[Event, ...]]]:
        lines: list[LogLine] = []
        events: dict[str, tuple[Event, ...]] = {}
        client = self.record.remote.node
        for node in dict.fromkeys([client, *(each.name for each in self.record.nodes)]):
            folder = f"{LOGS_DIR}/{node}"
            if node == client:
                lines += self._plain(f"{folder}/{wire.STDERR_FILE}", node)
            journal_lines, journal_events = self._journal(f"{folder}/{JOURNAL_FILE}", node)
            own = self.events(f"{folder}/{JOIN_PREFIX}{wire.STDOUT_FILE}", required=False)
            lines += journal_lines
            lines += self._plain(f"{folder}/{JOIN_PREFIX}{wire.STDERR_FILE}", node)
            if journal_events or own:
                events[node] = (*journal_events, *own)
        return tuple(lines), events

    def traces(self) -> tuple[TraceFile, ...]:
        found = []
        try:
            if (self.path / TRACE_DIR).is_symlink():
                self._problem(TRACE_DIR, "is left out: a symbolic link is not followed")
                return ()
            names = sorted(each.name for each in (self.path / TRACE_DIR).iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._problem(TRACE_DIR, f"cannot be read: {error.strerror or error}")
            return ()
        for name in names:
            match = _TRACE.match(name)
            if match is None:
                continue
            place = f"{TRACE_DIR}/{name}"
            try:
                with open_plain(self.path, place, most_bytes=_MOST_TRACE_BYTES) as file:
                    data = file.read()
            except OSError as error:
                self._problem(place, f"cannot be read: {error.strerror or error}")
                continue
            found.append(TraceFile(None if match[1] is None else int(match[1]), data))
        return tuple(sorted(found, key=lambda each: -1 if each.index is None else each.index))

    def _plain(self, name: str, node: str) -> list[LogLine]:
        return [log_line(node, _text(line)) for line in self._lines(name)]

    def _journal(self, name: str, node: str) -> tuple[list[LogLine], tuple[Event, ...]]:
        """Return what a join server's journal holds: its log lines and its events."""
        lines: list[LogLine] = []
        events: list[Event] = []
        damaged = 0
        for row in self._lines(name):
            entry = _json(row)
            stamp = entry.get("__REALTIME_TIMESTAMP")
            message = _message(entry.get("MESSAGE"))
            if message is None or not isinstance(stamp, str) or not stamp.isdecimal():
                damaged += 1
                continue
            event = parse_line(message) if message.startswith(b"{") else None
            if event is not None:
                events.append(event)
            else:
                lines.append(log_line(node, _text(message), int(stamp[:18]) / 1e6))
        if damaged:
            self._problem(name, f"{_lines(damaged)} of it {_are(damaged)} no journal entries")
        return lines, tuple(events)

    def _lines(self, name: str) -> Iterator[bytes]:
        """Yield the lines of a file, of a very long one only both ends."""
        tail: deque[bytes] = deque(maxlen=_HALF_LOG)
        count = 0
        try:
            with open_plain(self.path, name) as file:
                while line := file.readline(_LINE_BYTES):
                    count += 1
                    if count <= _HALF_LOG:
                        yield line
                    else:
                        tail.append(line)
        except FileNotFoundError:
            return
        except OSError as error:
            self._problem(name, f"cannot be read: {error.strerror or error}")
        yield from tail
        if count > 2 * _HALF_LOG:
            self._problem(name, f"{count - 2 * _HALF_LOG} lines in its middle are left out")

    def _problem(self, name: str, text: str) -> None:
        self.problems.append(f"{name}: {text}")


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace").rstrip("\r\n")


def _json(row: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(row)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _message(value: object) -> bytes | None:
    """Return the bytes of a journal's MESSAGE: a text, or a list of bytes where it is no UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, list) and all(isinstance(each, int) and 0 <= each < 256 for each in value):
        return bytes(value)
    return None


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
