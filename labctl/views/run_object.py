"""The object that `labctl run --json` prints, and its head for lists: plain data from a record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from labctl.analysis.ledger import run_ledger
from labctl.analysis.steps import step_stats, steps_of
from labctl.node import wire
from labctl.runs.codec import encode
from labctl.runs.events import Event, read_events
from labctl.runs.record import Span
from labctl.runs.store import Entry


def run_object(entry: Entry) -> dict[str, Any]:
    """Return the whole object of a run; docs/results-format.md describes each key.

    Raises:
        RecordError: Its record cannot be read.
    """
    record = entry.readable()
    events = read_events(entry.path)
    ledger = run_ledger(record, events)
    stats = step_stats(steps_of(events))
    result = result_of(events)
    section_us = result.number("section_us") if result is not None else None
    matpow = record.parameters.experiment == "matpow"
    ended = record.wall_s is not None
    rows = _ledger_rows(ledger.rows) if ended else []
    return {
        **run_head(entry),
        "tasks": record.tasks,
        "placement": record.parameters.placement,
        "api": record.parameters.api,
        "inter_op": record.parameters.inter_op,
        "repeat": record.parameters.repeat,
        "seed": record.parameters.seed,
        "args": list(record.parameters.args),
        "power_computed": result.whole("power_computed") if result is not None else None,
        "relative_error": result.number("relative_error") if result is not None else None,
        "checked_by": (result.text("checked_by") or None) if result is not None else None,
        "step_ms": {
            "cold": _ms(stats.cold_ms),
            "warm_median": _ms(stats.warm_median_ms),
            "warm_p95": _ms(stats.warm_p95_ms),
            "n": stats.n,
        }
        if matpow
        else None,
        "section_ms": None if section_us is None else _ms(section_us / 1e3),
        "end_to_end_us": _whole(result, "end_to_end_us"),
        "ledger": rows,
        "unexplained_s": round(ledger.wall_s - sum(row["duration_s"] for row in rows), 6)
        if ended
        else None,
        "versions": {node.name: dict(node.versions) for node in record.nodes},
        "clock": [encode(sample) for sample in record.clock],
        "files": [encode(file) for file in record.files],
        "payload_sha256": record.payload_sha256,
        "spec_sha256": record.spec_sha256,
        "checks": dict(record.checks),
        "warnings": list(record.warnings),
        "labctl": record.labctl_version,
    }


def run_head(entry: Entry) -> dict[str, Any]:
    """Return what a list of runs says of one, damaged ones included."""
    record = entry.record
    head: dict[str, Any] = {
        "run_id": entry.run_id,
        "outcome": entry.state,
        "record": str(entry.path),
    }
    if record is None:
        return {**head, "error": {"message": entry.problem, "kind": entry.state, "do": None}}
    failure = record.failure
    return {
        **head,
        "outcome": "running" if entry.state == "detached" else entry.state,
        "exit_code": record.exit_code,
        "lab": record.lab,
        "started_at": datetime.fromtimestamp(record.origin.unix_s, UTC).isoformat(
            timespec="milliseconds"
        ),
        "experiment": record.parameters.experiment,
        "script": record.parameters.script,
        "size": record.parameters.size,
        "power": record.parameters.power,
        "algorithm": record.parameters.algorithm,
        "feed": record.parameters.feed,
        "device": record.parameters.device,
        "wall_s": None if record.wall_s is None else round(record.wall_s, 6),
        "tags": dict(record.tags),
        "error": None
        if failure is None
        else {"message": failure.message, "kind": failure.kind, "do": failure.do},
    }


def result_of(events: Sequence[Event]) -> Event | None:
    """Return the client's last result."""
    return next((each for each in reversed(events) if each.kind == wire.RESULT), None)


def _ledger_rows(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Return the rows in whole microseconds: both ends are rounded, so that none overlap by that."""
    return [
        {
            "phase": span.phase,
            "node": span.node,
            "start_s": round(span.start_s, 6),
            "duration_s": round(
                round(span.start_s + span.duration_s, 6) - round(span.start_s, 6), 6
            ),
            "source": span.source,
        }
        for span in spans
    ]


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _whole(event: Event | None, key: str) -> int | None:
    value = event.number(key) if event is not None else None
    return None if value is None else round(value)
