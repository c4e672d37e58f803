"""All that a record holds, read once: what every analysis starts from. A damaged part is named, never fatal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from labctl.runs.events import Event
from labctl.runs.record import RunRecord


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
