"""The object that `labctl run --json` prints, and its head for lists: plain data from a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.analysis.model import Copy, Edge
from labctl.node import wire
from labctl.runs.codec import encode
from labctl.runs.data import load
from labctl.runs.events import Event
from labctl.runs.record import Span
from labctl.runs.store import Entry


def run_object(entry: Entry) -> dict[str, Any]:
    """Return the whole object of a run; docs/results-format.md describes each key.

    Raises:
        RecordError: Its record cannot be read.
    """
    return explained_object(entry, explain(load(entry.path, entry.readable())))


def explained_object(entry: Entry, explained: Explained) -> dict[str, Any]:
    """Return the whole object of a run that was analysed already."""
    record, stats, ledger = explained.data.record, explained.stats, explained.ledger
    result = result_of(explained.data.events)
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
        "fetch": record.parameters.fetch,
        "sum_task": record.parameters.sum_task,
        "soft_placement": record.parameters.soft_placement,
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
            "warm_p5": _ms(stats.warm_p5_ms),
            "warm_min": _ms(stats.warm_min_ms),
            "warm_max": _ms(stats.warm_max_ms),
        }
        if matpow
        else None,
        "section_ms": None if section_us is None else _ms(section_us / 1e3),
        "end_to_end_us": _whole(result, "end_to_end_us"),
        "ledger": rows,
        "unexplained_s": _rest_s(rows, ledger.wall_s) if ended else None,
        **_step_parts(explained),
        "nodes": [
            {
                "node": node.node,
                "rows": (own := _ledger_rows(node.rows)),
                "unexplained_s": _rest_s(own, node.wall_s),
                "before": _ledger_rows(node.before),
            }
            for node in explained.nodes
        ],
        "lab_phases": [encode(phase) for phase in record.lab_phases],
        "versions": {node.name: dict(node.versions) for node in record.nodes},
        "clock": [encode(line) for line in explained.clocks],
        "files": [encode(file) for file in record.files],
        "payload_sha256": record.payload_sha256,
        "spec_sha256": record.spec_sha256,
        "checks": dict(record.checks),
        "warnings": list(record.warnings),
        "problems": list(explained.problems),
        "labctl": record.labctl_version,
    }


def _step_parts(explained: Explained) -> dict[str, Any]:
    """Return what traced steps say; empty lists and nulls without any."""
    split, trace, tracing = explained.split, explained.trace, explained.tracing
    return {
        "split": [
            {
                "what": row.what,
                "task": row.task,
                "source": row.source,
                "seconds": _seconds(row.seconds),
            }
            for row in (split.rows if split is not None else ())
        ],
        "edges": [edge_object(edge) for edge in (trace.edges if trace is not None else ())],
        "copies": [copy_object(copy) for copy in (trace.copies if trace is not None else ())],
        "tasks_traced": [
            {
                "task": task.task,
                "node": task.node,
                "compute_ms": _ms(task.compute_s * 1e3),
                "products": sum(task.products.values()),
                "gflops": None if task.gflops is None else round(task.gflops, 3),
                "queued_only": task.queued_only,
            }
            for task in (trace.tasks if trace is not None else ())
        ],
        "overlap_ms": None if trace is None else _ms(trace.overlap_s * 1e3),
        "tracing": None
        if tracing is None
        else {
            "warm_median_ms": _ms(tracing.warm_median_ms),
            "traced_median_ms": _ms(tracing.traced_median_ms),
            "ratio": round(tracing.ratio, 4),
            "n": tracing.n,
        },
    }


def edge_object(edge: Edge) -> dict[str, Any]:
    """Return an edge as plain data, times in milliseconds."""
    share = edge.baseline_share
    return {
        "tensor": edge.tensor,
        "bytes": edge.size_bytes,
        "source": edge.source,
        "target": edge.target,
        "asked_ms": _ms(None if edge.asked_s is None else edge.asked_s * 1e3),
        "answered_ms": _ms(edge.answered_s * 1e3),
        "arrived_ms": _ms(edge.arrived_s * 1e3),
        "waited_ms": _ms(None if edge.waited_s is None else edge.waited_s * 1e3),
        "wire_ms": _ms(edge.wire_s * 1e3),
        "mb_per_s": None if edge.mb_per_s is None else round(edge.mb_per_s, 3),
        "baseline_percent": None if share is None else round(share * 100, 2),
        "clamped": edge.clamped,
        "believed": edge.believed,
        "doubt": edge.doubt,
        "clock_error_ms": None
        if math.isinf(edge.clock_error_s)
        else round(edge.clock_error_s * 1e3, 6),
    }


def copy_object(copy: Copy) -> dict[str, Any]:
    """Return a copy between host and GPU as plain data, times in milliseconds."""
    return {
        "kind": copy.kind,
        "tensor": copy.tensor,
        "bytes": copy.size_bytes,
        "task": copy.task,
        "device": copy.device,
        "host_memory": copy.host_memory or None,
        "queued_ms": _ms(None if copy.queued_s is None else copy.queued_s * 1e3),
        "start_ms": _ms(copy.start_s * 1e3),
        "duration_ms": _ms(copy.duration_s * 1e3),
        "mb_per_s": None if copy.mb_per_s is None else round(copy.mb_per_s, 3),
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


def _rest_s(rows: Sequence[dict[str, Any]], wall_s: float) -> float:
    covered_s: float = sum(row["duration_s"] for row in rows)
    return round(wall_s - covered_s, 6) + 0.0


def _seconds(value: float) -> float:
    return round(value, 9)


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _whole(event: Event | None, key: str) -> int | None:
    value = event.number(key) if event is not None else None
    return None if value is None else round(value)
