"""Verdicts as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labctl.analysis.causes.model import Proof, Verdict
from labctl.analysis.explained import Explained
from labctl.views.report.numbers import duration, figure, percent
from labctl.views.why import compute_bound

_GOES_ON = {
    "running": "is still running",
    "detached": "goes on without labctl",
    "interrupted": "lost its labctl and may go on",
    "lost": "is out of sight and may go on",
}


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


def causes(verdicts: Iterable[Verdict], explained: Explained, state: str) -> Causes:
    """Return verdicts in groups, each in the order given.

    Args:
        verdicts: In their rank.
        explained: The run.
        state: Its outcome, or `detached` or `interrupted`.
    """
    listed = list(verdicts)
    cards = tuple(_card(each, explained) for each in listed if each.status == "found")
    return Causes(
        cards,
        tuple(each for each in listed if each.status == "ruled_out"),
        tuple(each for each in listed if each.status == "not_measured"),
        _headline(cards, explained, state),
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


def _headline(cards: tuple[Card, ...], explained: Explained, state: str) -> str:
    if state in _GOES_ON:
        return f"This run {_GOES_ON[state]}: what follows rests on what is here so far."
    if explained.data.record.outcome != "ok":
        return "" if cards else f"This run ended {state}; no cause of the catalogue explains it."
    if any(card.verdict.scope == "step" for card in cards):
        return ""
    bound = compute_bound(explained)
    if bound is None:
        return "No cause was found that each step pays for."
    share, rates = bound
    told = "; ".join(_rate(*each) for each in rates)
    return (
        f"No cause was found that each step pays for: compute takes {100 * share:.0f} % of it"
        f"{f' ({told})' if told else ''}."
    )


def _rate(node: str, gflops: float, of_peak: float | None) -> str:
    peak = "" if of_peak is None else f", {100 * of_peak:.0f} % of its own peak"
    return f"{node} at {figure(gflops)} GFLOP/s{peak}"
