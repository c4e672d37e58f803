"""A run on one screen: the answer first, units on every number, the next command at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from labctl.analysis.explain import explain
from labctl.analysis.ledger import Ledger
from labctl.analysis.steps import StepStats
from labctl.console import safe_text
from labctl.lab.model import LOOPBACK
from labctl.node import wire
from labctl.runs.data import load
from labctl.runs.events import Event
from labctl.runs.record import LOGS_DIR, Parameters, RunRecord
from labctl.runs.store import Entry
from labctl.views.run_object import result_of

_BAR = 32
_OUTPUT_LINES = 10
_OUTPUT_BYTES = 4096
_SHORT = 0.005  # phases below this part of the wall time share one row
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def head_line(lab: str, parameters: Parameters, tasks: int, run_id: str) -> str:
    """Return what a run is, in one line."""
    parts = [f"lab {lab}", f"{tasks} task{'' if tasks == 1 else 's'}"]
    if parameters.experiment == "script":
        parts.append(" ".join((parameters.script or "", *parameters.args)))
    else:
        parts += [
            formula(parameters.power or 0, tasks),
            f"L {parameters.size}",
            parameters.algorithm or "",
            parameters.feed or "",
        ]
        parts += [parameters.placement or ""] if parameters.placement != "lab" else []
        parts += [parameters.api or ""] if parameters.api != "session" else []
    if parameters.device is not None:
        parts.append(parameters.device.upper())
    return safe_text(" · ".join([*parts, f"run {run_id}"]))


def formula(power: int, tasks: int) -> str:
    """Return the sum that is computed, e.g. `A^5 + B^5`."""
    if tasks <= 4:
        return " + ".join(f"{_LETTERS[k]}^{power}" for k in range(max(tasks, 2)))
    return f"sum of {tasks} powers M^{power}"


def run_lines(entry: Entry) -> list[str]:
    """Return the result of a run: what came out, where the time went, its steps, what next.

    Raises:
        RecordError: Its record cannot be read.
    """
    record = entry.readable()
    explained = explain(load(entry.path, record))
    events = explained.data.events
    lines = [_result_line(entry, record, events)]
    if record.parameters.experiment == "script":
        lines += _output_lines(entry, record)
    if record.wall_s is not None:
        lines += ["", *_ledger_lines(explained.ledger, record), ""]
    if explained.steps:
        lines += _step_lines(explained.stats, result_of(events))
    lines += [f"warning {safe_text(text)}" for text in record.warnings]
    lines.append(_next_line(entry, record))
    return lines


def _result_line(entry: Entry, record: RunRecord, events: Sequence[Event]) -> str:
    state = entry.state
    parts = [f"result  {state}"]
    result = result_of(events)
    if result is not None:
        error = result.number("relative_error")
        if error is not None:
            by = result.text("checked_by") or "float64"
            against = "float64" if by == "float64" else f"float64 ({by})"
            parts.append(f"relative error {error:.1e} against {against}")
        computed = result.whole("power_computed")
        if computed is not None and computed != record.parameters.power:
            asked = record.parameters.power
            parts.append(
                f"computed power {computed} (the question's listing makes n + 1 of {asked})"
            )
    if record.failure is not None and state != "cancelled":
        parts.append(safe_text(record.failure.message.splitlines()[0]))
    if state == "detached":
        parts.append("it goes on without labctl")
    if state == "interrupted":
        parts.append("its labctl has ended; the run may go on")
    return ", ".join(parts)


def _output_lines(entry: Entry, record: RunRecord) -> list[str]:
    """Return the end of what a script printed."""
    try:
        with (entry.path / LOGS_DIR / record.remote.node / wire.STDOUT_FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _OUTPUT_BYTES))
            said = file.read().splitlines()
    except OSError:
        return []
    if not said:
        return []
    shown = said[-_OUTPUT_LINES:]
    whole = size <= _OUTPUT_BYTES and len(shown) == len(said)
    head = "  printed" if whole else f"  printed {size} bytes, the end of it"
    return ["", head, *(f"    {safe_text(line)}" for line in shown)]


@dataclass(slots=True)
class _Row:
    label: str
    node: str
    duration_s: float
    pieces: list[tuple[float, float]]


def _ledger_lines(ledger: Ledger, record: RunRecord) -> list[str]:
    rows: list[_Row] = []
    short = _Row("shorter phases", "", 0.0, [])
    for each in ledger.rows:
        piece = (each.start_s, each.duration_s)
        same = next((row for row in rows if (row.label, row.node) == (each.phase, each.node)), None)
        if each.duration_s < _SHORT * ledger.wall_s and same is None:
            same = short
        if same is None:
            same = _Row(each.phase, each.node, 0.0, [])
            rows.append(same)
        same.duration_s += each.duration_s
        same.pieces.append(piece)
    rows += [short] if short.pieces else []
    rows.append(_Row("unexplained", "", ledger.unexplained_s, []))
    wide = max(len(f"{row.label}  {row.node}") for row in rows)
    lines = [f"  where {ledger.wall_s:.1f} s went"]
    lines += [
        f"  {row.label.replace('_', ' '):<{wide - len(row.node)}}{row.node}  {row.duration_s:6.2f} s  "
        f"{_bar(row.pieces, ledger.wall_s)}".rstrip()
        for row in rows
    ]
    for server in record.servers_before:
        # Those of the loopback lab were started by the run: that is one of its rows.
        if server.started_at_s is not None and record.provider != LOOPBACK:
            since = datetime.fromtimestamp(server.started_at_s, UTC).strftime("%H:%M:%S")
            took = "" if server.startup_s is None else f" and took {server.startup_s:.1f} s"
            lines.append(
                f"  join server on {server.node} started at {since} UTC{took}, not in this sum"
            )
    return lines


def _bar(pieces: Sequence[tuple[float, float]], wall_s: float) -> str:
    cells = [" "] * _BAR
    for start_s, duration_s in pieces:
        first = min(_BAR - 1, int(start_s / wall_s * _BAR))
        last = min(_BAR - 1, int((start_s + duration_s) / wall_s * _BAR))
        if duration_s / wall_s * _BAR < 0.5:
            cells[first] = "▏" if cells[first] == " " else cells[first]
            continue
        for cell in range(first, max(first + 1, last)):
            cells[cell] = "▇"
    return "".join(cells)


def _step_lines(stats: StepStats, result: Event | None) -> list[str]:
    parts = []
    if stats.cold_ms is not None:
        parts.append(f"cold {stats.cold_ms:.0f} ms")
    if stats.warm_median_ms is not None and stats.warm_p95_ms is not None:
        warm = f"warm median {stats.warm_median_ms:.0f} ms  p95 {stats.warm_p95_ms:.0f} ms"
        parts.append(f"{warm}  ({stats.n})")
    lines = ["  step      " + "    ".join(parts)]
    section_us = result.number("section_us") if result is not None else None
    end_to_end_us = result.number("end_to_end_us") if result is not None else None
    if section_us is not None and end_to_end_us is not None:
        stopwatch = f"{end_to_end_us:,.0f} µs".replace(",", " ")
        lines.append(f"  question  section {section_us / 1e3:.0f} ms    stopwatch {stopwatch}")
    return lines


def _next_line(entry: Entry, record: RunRecord) -> str:
    if record.open:
        return f"next: labctl attach {entry.run_id} · labctl cancel {entry.run_id}"
    return "next: labctl logs last · labctl runs show last · labctl runs list"


def runs_table(entries: Sequence[Entry]) -> list[str]:
    """Return the table of `labctl runs list`, newest last."""
    lines = [f"{'run':<23}  {'outcome':<12}  {'wall':>9}  what"]
    for entry in entries:
        record = entry.record
        wall = "" if record is None or record.wall_s is None else f"{record.wall_s:.1f} s"
        what = entry.problem if record is None else _what(record)
        lines.append(
            f"{entry.run_id:<23}  {entry.state:<12}  {wall:>9}  {safe_text(what)}".rstrip()
        )
    return lines


def _what(record: RunRecord) -> str:
    parameters = record.parameters
    if parameters.experiment == "script":
        what = " ".join((parameters.script or "", *parameters.args))
    else:
        what = f"{formula(parameters.power or 0, record.tasks)} L {parameters.size} {parameters.algorithm} "
        what += f"{parameters.feed} {parameters.device}"
    tags = " ".join(f"{key}={value}" for key, value in record.tags.items())
    return f"{what} {tags}".strip()
