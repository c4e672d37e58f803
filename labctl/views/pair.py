"""Runs on GPUs beside runs on CPUs, as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labctl.analysis.compare import COLD, WALL, WARM
from labctl.analysis.devices import SECTION, STOPWATCH
from labctl.analysis.stats import ENOUGH_RUNS, NOISE_GATE_PERCENT
from labctl.console import safe_text
from labctl.views.compare import compare_object, row_label, seconds_text, worth_a_line

if TYPE_CHECKING:
    from labctl.analysis.compare import Comparison, Row
    from labctl.analysis.devices import Devices
    from labctl.analysis.stats import Summary

# Judged each by itself: what a step costs, what the first one costs, what the question's stopwatch says.
_JUDGED = (WARM, COLD, STOPWATCH)
_WATCHES = (SECTION, STOPWATCH, WALL)


def pair_lines(found: Devices) -> list[str]:
    """Return the comparison for a terminal: stopwatches, what is paid once, what each step costs, the verdicts."""
    lines = [
        f"pair {found.pair} · GPU {_runs(found.gpu)} · CPU {_runs(found.cpu)} · interleaved",
    ]
    if found.comparison is not None:
        lines += ["", *_table(found.comparison), "", *_verdicts(found.comparison)]
    lines += [f"note      {safe_text(note)}" for note in found.notes]
    if found.comparison is not None:
        lines += [f"note      {safe_text(note)}" for note in found.comparison.notes]
    lines.append("next: labctl why RUN · labctl report RUN · labctl runs list")
    return lines


def pair_object(found: Devices) -> dict[str, Any]:
    """Return the comparison as plain data; docs/results-format.md describes each key."""
    rows = (
        []
        if found.comparison is None
        else [(row, _judgement(row, found.comparison)) for row in _judged(found.comparison)]
    )
    return {
        "pair": found.pair,
        "gpu": list(found.gpu),
        "cpu": list(found.cpu),
        "verdicts": [
            {"name": row.key.name, "verdict": judged, "ratio": ratio(row)} for row, judged in rows
        ],
        "comparison": None if found.comparison is None else compare_object(found.comparison),
        "notes": list(found.notes),
    }


def ratio(row: Row) -> float | None:
    """Return the GPU's median over the CPU's, None if a side has none."""
    if row.a is None or row.b is None or row.a.median <= 0:
        return None
    return row.b.median / row.a.median


def _table(found: Comparison) -> list[str]:
    shown = [row for row in found.rows if worth_a_line(row, found) or row.key.name in _WATCHES]
    groups = (
        ("stopwatches", [row for row in shown if row.key.name in _WATCHES]),
        ("once", [row for row in shown if not row.key.by_step and row.key.name not in _WATCHES]),
        ("each step", [row for row in shown if row.key.by_step]),
    )
    wide = max((len(row_label(row)) for row in shown), default=0)
    head = ("GPU", "p5 … p95", "CPU", "p5 … p95", "GPU/CPU")
    lines = [f"  {'':<{wide}}  {_cells(head)}"]
    for title, rows in groups:
        if rows:
            lines.append(f"{title}")
            lines += [f"  {row_label(row):<{wide}}  {_cells(_row(row))}".rstrip() for row in rows]
    left_out = len(found.rows) - len(shown)
    if left_out:
        lines.append(f"  {left_out} rows under 1 % of the wall time are left out; --json")
    return lines


def _cells(cells: Sequence[str]) -> str:
    widths = (9, 21, 9, 21, 8)
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _row(row: Row) -> tuple[str, ...]:
    times = ratio(row)
    if times is None:
        text = "" if row.a is not None and row.b is not None else "only one"
    else:
        text = f"{times:.2f}" if times >= 0.01 else f"{times:.1e}"
    return (*_side(row.b), *_side(row.a), text)


def _side(side: Summary | None) -> tuple[str, str]:
    if side is None:
        return "", ""
    spread = f"{seconds_text(side.p5)} … {seconds_text(side.p95)}" if side.values > 1 else ""
    return seconds_text(side.median), spread


def _judged(found: Comparison) -> list[Row]:
    return [row for name in _JUDGED for row in found.rows if row.key.name == name]


def _judgement(row: Row, found: Comparison) -> str | None:
    """Return what a row amounts to, the GPU seen from the CPU; None where nothing may be said."""
    unlike = found.mismatches or row.judgement == "unclear"
    return None if unlike or row.difference is None else row.judgement


def _verdicts(found: Comparison) -> list[str]:
    rows = _judged(found)
    wide = max((len(row.key.name) for row in rows), default=0)
    lines = []
    for number, row in enumerate(rows):
        head = "verdict   " if number == 0 else " " * 10
        lines.append(f"{head}{row.key.name:<{wide}}  {_verdict(row, found)}")
    unlike = [why for why in found.refused if found.mismatches]
    return [*lines, *(f"refused   {safe_text(why)}" for why in unlike)]


def _verdict(row: Row, found: Comparison) -> str:
    difference, judged = row.difference, _judgement(row, found)
    if difference is None:
        return "none: only one side has it"
    if judged is None:
        if found.mismatches:
            return "none: the sides differ in more than the device"
        if min(difference.a.runs, difference.b.runs) < ENOUGH_RUNS:
            return f"none: it needs {ENOUGH_RUNS} runs on each device (--pairs {ENOUGH_RUNS})"
        noise = difference.detectable_percent
        told = "no change" if noise is None else f"only a change of {noise:.0f} % or more"
        return f"none: too noisy, {told} would show"
    percent = "" if difference.percent is None else f" ({difference.percent:+.1f} %)"
    sign = "+" if difference.change >= 0 else "-"
    change = f"{sign}{seconds_text(abs(difference.change))}{percent}"
    if judged == "same":
        noise = difference.detectable_percent or NOISE_GATE_PERCENT
        return f"the same on both: {change}; a change of {noise:.0f} % would show"
    return f"the GPU is {judged}: {change}"


def _runs(ids: Sequence[str]) -> str:
    return f"{len(ids)} run{'' if len(ids) == 1 else 's'}"
