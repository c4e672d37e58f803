"""A run on one screen: the answer first, units on every number, the next command at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from labctl.analysis.explain import explain
from labctl.console import safe_text
from labctl.lab.model import LOOPBACK
from labctl.node import wire
from labctl.runs.data import load
from labctl.runs.events import Event
from labctl.runs.plain import open_plain
from labctl.runs.record import LOGS_DIR, Parameters, RunRecord
from labctl.runs.store import LAST, Entry, is_run_id
from labctl.views.run_object import result_of
from labctl.views.step_lines import edge_lines, split_lines, step_lines
from labctl.views.waterfall import ledger_lines, node_lines

_SERVERS = 3
_PROBLEMS = 3
_OUTPUT_LINES = 10
_OUTPUT_BYTES = 4096
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
        lines += ["", f"  where {record.wall_s:.1f} s went"]
        lines += [*ledger_lines(explained.ledger), *_server_lines(record)]
        lines += ["", *node_lines(explained.nodes), ""]
    step = [*split_lines(explained), *edge_lines(explained)]
    lines += [*step, ""] if step else []
    lines += step_lines(explained)
    problems = [f"note    {safe_text(text)}" for text in explained.problems]
    lines += problems[:_PROBLEMS]
    if len(problems) > _PROBLEMS:
        lines.append(f"note    and {len(problems) - _PROBLEMS} more")
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
        name = f"{LOGS_DIR}/{record.remote.node}/{wire.STDOUT_FILE}"
        with open_plain(entry.path, name) as file:
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


def _server_lines(record: RunRecord) -> list[str]:
    """Return since when the join servers run; those of the loopback lab were started by the run itself."""
    lines = []
    for server in record.servers_before:
        if server.started_at_s is not None and record.provider != LOOPBACK:
            since = datetime.fromtimestamp(server.started_at_s, UTC).strftime("%H:%M:%S")
            took = "" if server.startup_s is None else f" and took {server.startup_s:.1f} s"
            lines.append(
                f"  join server on {server.node} started at {since} UTC{took}, not in this sum"
            )
    if len(lines) > _SERVERS:
        return [*lines[:_SERVERS], f"  and {len(lines) - _SERVERS} more join servers"]
    return lines


def _next_line(entry: Entry, record: RunRecord) -> str:
    if record.open:
        return f"next: labctl attach {entry.run_id} · labctl cancel {entry.run_id}"
    if _is_older(entry):
        return f"next: labctl why {entry.run_id} · labctl report {entry.run_id}"
    return f"next: labctl why {LAST} · labctl report {LAST} · labctl trace {LAST}"


def _is_older(entry: Entry) -> bool:
    """Return whether there is a later run beside it."""
    return any(
        is_run_id(each.name) and each.name > entry.run_id for each in entry.path.parent.iterdir()
    )


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
