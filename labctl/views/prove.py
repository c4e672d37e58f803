"""What `labctl why --prove` shows: what each pair said, beside what its rule had claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import time_text
from labctl.console import safe_text

if TYPE_CHECKING:
    from labctl.analysis.pairs import Tried


def prove_lines(tried: Sequence[Tried]) -> list[str]:
    """Return what was tried, a few lines a cause; nothing was found where nothing was tried."""
    if not tried:
        return ["proof     no cause was found, so there is nothing to prove; --cause ID tries one"]
    return [safe_text(line) for each in tried for line in _lines(each)]


def _lines(each: Tried) -> list[str]:
    head = f"proof     {each.cause}: "
    if each.proof is None:
        return [f"{head}not tried, {each.why_not}"]
    proof = each.proof
    interval = f"{time_text(proof.low_s)} to {time_text(proof.high_s)}, 95 %"
    claimed = "the rule names no price"
    if each.claimed_s is not None:
        claimed = f"the rule says {time_text(each.claimed_s)}"
    lines = [
        f"{head}{proof.outcome}; {time_text(proof.seconds)} measured ({interval}), {claimed}",
        f"          {proof.pair}, {len(proof.runs)} runs",
    ]
    if proof.outcome == "undecided":
        lines.append("          the runs differ too much among themselves: a larger --repeat")
    return lines
