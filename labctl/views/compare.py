"""A comparison as text with drawn intervals, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labctl.analysis.compare import Comparison, Mismatch, Row
from labctl.analysis.stats import NOISE_GATE_PERCENT, Summary
from labctl.console import safe_text

_HALF_BAR = 12
_SMALLEST_SCALE = 5.0  # percent at the ends of the bars
_LARGEST_SCALE = 100.0
# Rows below this part of the wall time, on both sides, are left out unless they differ.
_SHORT = 0.01


def compare_lines(found: Comparison) -> list[str]:
    """Return a comparison for a terminal, the row that decides first."""
    lines = [head_line(found)]
    shown = [row for row in found.rows if worth_a_line(row, found)]
    scale = _scale(shown)
    labels = [row_label(row) for row in shown]
    wide = max((len(label) for label in labels), default=0)
    lines += ["", _columns_line(wide, scale)]
    lines += [_row_line(row, label, wide, scale) for row, label in zip(shown, labels, strict=True)]
    lines.append("  detects: the smallest change that would be seen in four of five tries")
    left_out = len(found.rows) - len(shown)
    if left_out:
        lines.append(
            f"  {left_out} rows under {_SHORT * 100:.0f} % of the wall time are left out; --json"
        )
    lines += ["", _verdict_line(found)]
    lines += [f"note      {note}" for note in found.notes]
    lines += [f"refused   {safe_text(why)}" for why in found.refused]
    return lines


def head_line(found: Comparison) -> str:
    """Return what is compared, in one line."""
    sides = f"A {len(found.a)} run{_s(found.a)} · B {len(found.b)} run{_s(found.b)}"
    if not found.subject:
        return f"{sides} · the same parameters on both sides"
    return safe_text(f"{sides} · compared: {', '.join(subject_text(e) for e in found.subject)}")


def subject_text(each: Mismatch) -> str:
    """Return a parameter that differs, e.g. `feed fed against staged`."""
    return f"{each.what} {each.a} against {each.b}"


def compare_object(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data; docs/results-format.md describes each key."""
    decides = found.decides
    return {
        "a": list(found.a),
        "b": list(found.b),
        "subject": [_mismatch_object(each) for each in found.subject],
        "differs": [_mismatch_object(each) for each in found.mismatches],
        "refused": list(found.refused),
        "decides": None if decides is None else decides.key.name,
        "verdict": found.verdict,
        "rows": [_row_object(row) for row in found.rows],
        "notes": list(found.notes),
    }


def seconds_text(seconds: float) -> str:
    """Return a duration with a unit that fits it: `45.2 ms`, `4.31 s`."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def interval_bar(low: float, value: float, high: float, scale: float) -> str:
    """Return an interval drawn on a line from -scale to +scale, 0 in the middle; ends beyond it are arrows."""
    cells = [" "] * (2 * _HALF_BAR + 1)
    cells[_HALF_BAR] = "│"

    def cell(percent: float) -> int:
        place = _HALF_BAR + round(percent / scale * _HALF_BAR)
        return min(max(place, 0), 2 * _HALF_BAR)

    for place in range(cell(low), cell(high) + 1):
        cells[place] = "─" if cells[place] == " " else "┼"
    cells[cell(value)] = "●"
    if low < -scale:
        cells[0] = "←"
    if high > scale:
        cells[-1] = "→"
    return "".join(cells).rstrip()


def _s(runs: Sequence[str]) -> str:
    return "" if len(runs) == 1 else "s"


def row_label(row: Row) -> str:
    """Return what a row is of, for people."""
    return f"{row.key.name.replace('_', ' ')} {row.key.where}".strip()


def _columns_line(wide: int, scale: float) -> str:
    ends = (f"-{scale:.0f} %", f"+{scale:.0f} %")
    axis = f"{ends[0]:<{_HALF_BAR}}0{ends[1]:>{_HALF_BAR}}"
    return f"  {'':<{wide}}  {'A':>9}  {'B':>9}  {'B to A':>8}  {'95 % interval':>17}  {'detects':>7}  {axis}"


def worth_a_line(row: Row, found: Comparison) -> bool:
    """Return whether a row matters: of each step, different, or a hundredth of the wall time."""
    if row.key.by_step or row is found.decides or row.judgement in {"slower", "faster"}:
        return True
    walls = [each for each in found.rows if each.key.name == "wall"]
    summaries = [side for each in walls for side in (each.a, each.b) if side is not None]
    wall_s = max((side.median for side in summaries), default=0.0)
    return any(side is not None and side.median >= _SHORT * wall_s for side in (row.a, row.b))


def _scale(rows: Sequence[Row]) -> float:
    """Return the percent at the ends of the bars: what holds all intervals, within reason."""
    ends = [
        abs(end)
        for row in rows
        if row.difference is not None
        for end in (row.difference.percent_low, row.difference.percent_high)
        if end is not None
    ]
    return min(max([_SMALLEST_SCALE, *ends]), _LARGEST_SCALE)


def _row_line(row: Row, label: str, wide: int, scale: float) -> str:
    a = "" if row.a is None else seconds_text(row.a.median)
    b = "" if row.b is None else seconds_text(row.b.median)
    line = f"  {label:<{wide}}  {a:>9}  {b:>9}"
    found = row.difference
    if found is None:
        return f"{line}  only in {'A' if row.b is None else 'B'}"
    percent = "" if found.percent is None else f"{_percent(found.percent)} %"
    line += f"  {percent:>8}"
    if found.percent is None or found.percent_low is None or found.percent_high is None:
        return f"{line}  {'too few to tell':>17}"
    interval = f"{_percent(found.percent_low)} … {_percent(found.percent_high)} %"
    noise = found.detectable_percent
    detects = "" if noise is None else f"{_percent(noise).removeprefix('+')} %"
    bar = interval_bar(found.percent_low, found.percent, found.percent_high, scale)
    return f"{line}  {interval:>17}  {detects:>7}  {bar:<{2 * _HALF_BAR + 1}}  {row.judgement}"


def _percent(value: float) -> str:
    """Return a signed number of a fixed width at most; what is over ten times as much is told so."""
    if value > 999:
        return ">999"
    return f"{value:+.0f}" if abs(value) >= 100 else f"{value:+.1f}"


def _verdict_line(found: Comparison) -> str:
    row = found.decides
    if found.refused or row is None or row.difference is None:
        return "verdict   none"
    difference, name = row.difference, row.key.name
    seconds = f"{'+' if difference.change >= 0 else '-'}{seconds_text(abs(difference.change))}"
    if row.judgement == "same":
        noise = difference.detectable_percent
        limit = NOISE_GATE_PERCENT if noise is None else noise
        return f"verdict   the same: {name} {seconds}; a change of {limit:.1f} % would show"
    percent = "" if difference.percent is None else f" ({difference.percent:+.1f} %)"
    return f"verdict   B is {row.judgement}: {name} {seconds}{percent}"


def _mismatch_object(each: Mismatch) -> dict[str, Any]:
    return {"what": each.what, "a": each.a, "b": each.b, "mixed": each.mixed or None}


def _row_object(row: Row) -> dict[str, Any]:
    found = row.difference
    return {
        "name": row.key.name,
        "where": row.key.where,
        "level": "step" if row.key.by_step else "run",
        "verdict": row.judgement,
        "a": _summary_object(row.a),
        "b": _summary_object(row.b),
        "change_s": None if found is None else found.change,
        "low_s": None if found is None else found.low,
        "high_s": None if found is None else found.high,
        "percent": None if found is None else found.percent,
        "percent_low": None if found is None else found.percent_low,
        "percent_high": None if found is None else found.percent_high,
        "detectable_s": None if found is None else found.detectable,
        "detectable_percent": None if found is None else found.detectable_percent,
    }


def _summary_object(side: Summary | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "runs": side.runs,
        "values": side.values,
        "median_s": side.median,
        "p5_s": side.p5,
        "p95_s": side.p95,
        "spread_percent": side.spread_percent,
    }
