"""Verdicts as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labctl.analysis.causes.model import Proof, Verdict
from labctl.analysis.explained import Explained
from labctl.views.report.numbers import duration, percent


@dataclass(frozen=True, slots=True)
class Card:
    """A cause that was found.

    Attributes:
        verdict: What the rule says.
        cost: In words, with its unit.
        share: Percent of the median warm step, None where it is not paid in each.
        proof: What the experiment said, in words; "" if none was made.
    """

    verdict: Verdict
    cost: str
    share: float | None
    proof: str


@dataclass(frozen=True, slots=True)
class Causes:
    """All verdicts, by what they say.

    Attributes:
        found: In their rank.
        ruled_out: With the number that rules each out.
        not_measured: With what would measure each.
        headline: The answer in one sentence.
    """

    found: tuple[Card, ...]
    ruled_out: tuple[Verdict, ...]
    not_measured: tuple[Verdict, ...]
    headline: str


def causes(verdicts: Iterable[Verdict], explained: Explained) -> Causes:
    """Return verdicts in groups, each in the order given."""
    listed = list(verdicts)
    cards = tuple(_card(each, explained) for each in listed if each.status == "found")
    return Causes(
        cards,
        tuple(each for each in listed if each.status == "ruled_out"),
        tuple(each for each in listed if each.status == "not_measured"),
        _headline(cards, explained),
    )


def _card(verdict: Verdict, explained: Explained) -> Card:
    step_ms = explained.stats.warm_median_ms
    share = None
    if verdict.seconds is None:
        cost = "cost not known"
    elif verdict.scope == "step":
        step = "" if step_ms is None else f" {duration(step_ms / 1e3)}"
        cost = f"{duration(verdict.seconds)} of each{step} step"
        share = percent(verdict.seconds * 1e3, step_ms)
    else:
        cost = f"{duration(verdict.seconds)} once"
    return Card(verdict, cost, share, _proof(verdict.proved))


def _proof(proof: Proof | None) -> str:
    if proof is None:
        return ""
    between = f"{duration(proof.low_s)} to {duration(proof.high_s)}"
    return (
        f"{proof.outcome}: {duration(proof.seconds)}, 95 % interval {between}, by {proof.pair}"
        f" ({len(proof.runs)} runs)"
    )


def _headline(cards: tuple[Card, ...], explained: Explained) -> str:
    record = explained.data.record
    if record.outcome != "ok":
        return (
            f"This run ended {record.outcome}."
            if cards
            else f"This run ended {record.outcome}; no rule found why."
        )
    if any(card.verdict.scope == "step" for card in cards):
        return ""
    if explained.split is None:
        return "No cause was found that a step pays for; without a traced step its parts are not measured."
    parts = explained.split
    compute = sum(row.seconds for row in parts.rows if row.what == "compute")
    share = percent(compute, parts.total_s)
    computed = "" if share is None else f" Compute takes {share:.0f} % of a warm step."
    return f"No cause was found that a step pays for.{computed}"
