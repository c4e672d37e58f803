"""What a rule says, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

Status = Literal["found", "ruled_out", "not_measured"]
Scope = Literal["step", "once"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a controlled experiment said of a verdict.

    Attributes:
        outcome: `confirmed`, `refuted`, or `undecided` where noise hides the difference.
        seconds: The measured difference, of a step or once, seconds.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end.
        pair: The two settings, e.g. `--inter-op 1 against --inter-op 2`.
        runs: Ids of the runs that decide, first side first.
    """

    outcome: Literal["confirmed", "refuted", "undecided"]
    seconds: float
    low_s: float
    high_s: float
    pair: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of one run.

    Attributes:
        cause: A stable kebab-case id, e.g. `inter-op-starved`.
        status: `found`, `ruled_out`, or `not_measured` where a signal is missing.
        scope: `step` if it is paid in each step, `once` if once.
        title: The cause in plain words, one line.
        seconds: What it costs, of a warm step or once; None where that cannot be told (a run that hung, a fault
            without a price). Never 0 for "unknown".
        confidence: How sure.
        evidence: Numbers and log words that speak for it or rule it out, one line each; for `not_measured` what is
            missing and what would measure it.
        remedy: A command or setting; "" where there is none.
        proved: What `--prove` said, None if it was not asked.
    """

    cause: str
    status: Status
    scope: Scope
    title: str
    seconds: float | None
    confidence: Confidence
    evidence: tuple[str, ...]
    remedy: str = ""
    proved: Proof | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause.

    Attributes:
        cause: Its id.
        scope: Whether it is paid in each step or once.
        title: In plain words.
        grade: How good the evidence in the literature is: `A`, `B` or `C`; docs/causes.md has the sources.
        judge: Says what it is in a run. It never raises for what a record may hold.
    """

    cause: str
    scope: Scope
    title: str
    grade: Literal["A", "B", "C"]
    judge: Callable[[Explained], Verdict]
