"""What happened before a run, as bars of its trace: the lab's making and the join servers' start. Pure.

It may be hours ago, so it is moved up to the run: gaps are closed, and the real time is in `args`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from labctl.analysis.explained import Explained
from labctl.analysis.intervals import merge
from labctl.analysis.ledger import LABCTL
from labctl.runs.record import Span
from labctl.views.trace_events import Bar, whole_ns

JOIN_SERVER = "join-server"

_GAP_S = 1.0  # what is left of a longer gap


def before_the_run(explained: Explained) -> list[tuple[str, Bar]]:
    """Return tracks and bars, by their real start; the bars' times are before the run's start, so negative."""
    record = explained.data.record
    origin_s = record.origin.unix_s
    found = [
        (
            f"{each.command} {each.node}".strip(),
            Span(each.phase, each.node, each.started_unix_s - origin_s, each.duration_s, LABCTL),
        )
        for each in record.lab_phases
    ]
    for ledger in explained.nodes:
        found += [(f"{JOIN_SERVER} {ledger.node}", span) for span in ledger.before]
    kept = [(track, span) for track, span in found if span.start_s < 0 <= span.duration_s]
    ordered = sorted(kept, key=lambda each: (each[1].start_s, -each[1].duration_s, each[0]))
    return list(_moved(ordered, origin_s))


def utc(unix_s: float) -> str:
    """Return a time as ISO 8601 with milliseconds, "unknown" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def _moved(spans: Sequence[tuple[str, Span]], origin_s: float) -> Iterator[tuple[str, Bar]]:
    blocks = merge((span.start_s, span.start_s + span.duration_s) for _, span in spans)
    moves: list[tuple[float, float, float]] = []  # from, to, by how much
    next_s, next_moved_s = 0.0, 0.0
    for start_s, end_s in reversed(blocks):
        gap_s = min(_GAP_S, max(0.0, next_s - end_s))
        move_s = next_moved_s - gap_s - end_s
        moves.append((start_s, end_s, move_s))
        next_s, next_moved_s = start_s, start_s + move_s
    for track, span in spans:
        end_s = span.start_s + span.duration_s
        inside = (by for low, high, by in moves if low <= span.start_s and end_s <= high)
        move_s = next(inside, 0.0)
        args = {
            "started": utc(origin_s + span.start_s),
            "duration_s": round(span.duration_s, 6),
            "moved_s": round(move_s, 6),
        }
        start_ns, end_ns = whole_ns(span.start_s + move_s), whole_ns(end_s + move_s)
        yield track, Bar(span.phase, start_ns, end_ns, "before", args)
