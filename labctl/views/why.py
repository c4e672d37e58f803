"""What `labctl why` shows: found causes with their price, what was ruled out, what was not measured."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labctl.analysis.causes.common import ended_ok, part_text, time_text, warm_s
from labctl.console import safe_text
from labctl.views.terminal import head_line

if TYPE_CHECKING:
    from labctl.analysis.causes.model import Proof, Verdict
    from labctl.analysis.explained import Explained

_WIDTH = 100
_PRICE_AT = 70  # column of a cause's price
_LABEL = 11  # width of `evidence` and its like
_NAMES = 4  # of causes with one reason, before the others are only counted
_COMPUTE_BOUND = 0.5  # part of a step that compute takes from there on
_BEATEN = 1.05  # products that beat their node's peak by more than noise


def why_object(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts as plain data; docs/results-format.md describes each key."""
    return [
        {
            "cause": verdict.cause,
            "status": verdict.status,
            "scope": verdict.scope,
            "title": verdict.title,
            "seconds": None if verdict.seconds is None else round(verdict.seconds, 6),
            "confidence": verdict.confidence,
            "evidence": list(verdict.evidence),
            "remedy": verdict.remedy,
            "proved": None if verdict.proved is None else _proof_object(verdict.proved),
        }
        for verdict in verdicts
    ]


def why_lines(run: Explained, verdicts: Sequence[Verdict], *, state: str, name: str) -> list[str]:
    """Return the verdicts on one screen.

    Args:
        run: The run.
        verdicts: In order.
        state: The run's outcome, or `detached` or `interrupted`.
        name: What the next commands call the run.
    """
    record = run.data.record
    found = [verdict for verdict in verdicts if verdict.status == "found"]
    lines = [head_line(record.lab, record.parameters, record.tasks, record.run_id)]
    lines += [*_wrapped("outcome", _outcome(run, state)), ""]
    for number, verdict in enumerate(found, start=1):
        lines += _found_lines(run, number, verdict)
    if (healthy := _healthy_line(run, found)) is not None:
        lines += _wrapped("healthy", healthy)
    elif not found:
        lines += _wrapped("found", "no cause of the catalogue explains this run; see what follows")
    lines += _others(verdicts, "ruled_out", "ruled out")
    lines += _others(verdicts, "not_measured", "not measured")
    lines += [line for text in run.problems for line in _wrapped("record", text)]
    lines.append(_next_line(run, found, name))
    return [safe_text(line) for line in lines]


def price_text(verdict: Verdict, step_s: float | None) -> str:
    """Return what a cause costs, "" if that cannot be told.

    Args:
        verdict: A found cause.
        step_s: The median warm step, seconds; None if there is none.
    """
    if verdict.seconds is None:
        return ""
    if verdict.scope == "once":
        return f"costs {time_text(verdict.seconds)} once"
    if step_s is None:
        return f"costs {time_text(verdict.seconds)} of each step"
    return f"costs {time_text(verdict.seconds)} of each {time_text(step_s)} step"


def compute_bound(
    run: Explained,
) -> tuple[float, tuple[tuple[str, float, float | None], ...]] | None:
    """Return how far a warm step is bound by compute, None if it is not or cannot be told.

    Returns:
        Compute's part of the step, 0 to 1; and of each task's node its GFLOP/s and their part of the peak that
        was measured there, None without one.
    """
    if run.trace is None or run.split is None or run.split.total_s <= 0:
        return None
    compute = sum(row.seconds for row in run.split.rows if row.what == "compute")
    share = compute / run.split.total_s
    if share < _COMPUTE_BOUND:
        return None
    baseline = run.data.record.baseline
    rates = []
    for task in run.trace.tasks:
        if task.gflops is None:
            continue
        peak = baseline.peak(task.node) if baseline is not None else None
        of_peak = task.gflops / peak.gflops if peak and peak.gflops else None
        # A peak that products beat was measured on a busy host: it is none.
        believed = of_peak is not None and of_peak <= _BEATEN
        rates.append((task.node, task.gflops, of_peak if believed else None))
    return share, tuple(rates)


def _outcome(run: Explained, state: str) -> str:
    record = run.data.record
    if record.open:
        told = {
            "running": "it is still running",
            "detached": "it goes on without labctl",
            "interrupted": "its labctl has ended; the run may go on",
            "lost": "out of sight; it may go on",
        }.get(state, "it has not been brought to its end")
        return f"{state}: {told}; what follows rests on what is here so far"
    if record.failure is not None and state != "cancelled":
        return f"{state}: {record.failure.message.splitlines()[0]}"
    return state


def _found_lines(run: Explained, number: int, verdict: Verdict) -> list[str]:
    price = price_text(verdict, warm_s(run))
    head = f"{number:<2} {verdict.title}"
    if not price:
        lines = [head]
    elif len(head) < _PRICE_AT:
        lines = [f"{head:<{_PRICE_AT}}{price}"]
    else:
        lines = [f"{head}  {price}"]
    lines += _wrapped("evidence", *verdict.evidence, indent=3)
    if verdict.remedy:
        lines += _wrapped("remedy", verdict.remedy, indent=3)
    lines += _wrapped("confidence", verdict.confidence, indent=3)
    if verdict.proved is not None:
        lines += _wrapped("proved", _proof_text(verdict.proved), indent=3)
    return [*lines, ""]


def _proof_text(proof: Proof) -> str:
    return (
        f"{proof.outcome}: {proof.pair} differ by {time_text(proof.seconds)} "
        f"({time_text(proof.low_s)} to {time_text(proof.high_s)}, 95 %)"
    )


def _proof_object(proof: Proof) -> dict[str, Any]:
    return {
        "outcome": proof.outcome,
        "seconds": round(proof.seconds, 6),
        "low_s": round(proof.low_s, 6),
        "high_s": round(proof.high_s, 6),
        "pair": proof.pair,
        "runs": list(proof.runs),
    }


def _healthy_line(run: Explained, found: Sequence[Verdict]) -> str | None:
    bound = compute_bound(run)
    if bound is None or not ended_ok(run) or any(each.scope == "step" for each in found):
        return None
    share, rates = bound
    assert run.split is not None  # noqa: S101 `compute_bound` has looked at it
    told = part_text(share * run.split.total_s, run.split.total_s)
    text = f"each step is compute-bound: {told} is compute"
    for node, gflops, of_peak in rates:
        text += f"; {node} at {gflops:.0f} GFLOP/s"
        text += (
            f", {of_peak * 100:.0f} % of its own peak"
            if of_peak is not None
            else ", its peak not known (labctl check --compute)"
        )
    return text


def _others(verdicts: Sequence[Verdict], status: str, label: str) -> list[str]:
    """Return the causes of a status, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.status == status:
            why = verdict.evidence[0].partition("; ")[0] if verdict.evidence else ""
            reasons.setdefault(why, []).append(verdict.cause)
    if not reasons:
        return []
    told = []
    for why, causes in reasons.items():
        names = ", ".join(causes[:_NAMES])
        more = f" and {len(causes) - _NAMES} more" if len(causes) > _NAMES else ""
        told.append(f"{names}{more} ({why})" if why else f"{names}{more}")
    return _wrapped(f"{label}:", "; ".join(told), width=len(label) + 2)


def _wrapped(label: str, *texts: str, indent: int = 0, width: int = _LABEL) -> list[str]:
    """Return texts beside a label, each on lines of its own that fit the screen."""
    room = _WIDTH - indent - width
    pieces = [
        piece
        for text in texts
        for piece in textwrap.wrap(
            safe_text(" ".join(text.split())), room, break_long_words=False, break_on_hyphens=False
        )
    ]
    return [
        f"{' ' * indent}{label if not number else '':<{width}}{piece}"
        for number, piece in enumerate(pieces)
    ]


def _next_line(run: Explained, found: Sequence[Verdict], name: str) -> str:
    if run.data.record.open:
        return f"next: labctl attach {name} · labctl cancel {name}"
    prove = f"labctl why {name} --prove · " if any(each.scope == "step" for each in found) else ""
    log = "" if ended_ok(run) else f" · labctl logs {name}"
    return f"next: {prove}labctl report {name} · labctl trace {name}{log}"
