"""All rules, and their answers in order. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes import (
    connection,
    device,
    gpu,
    graph,
    node,
    numerics,
    scheduling,
    server,
    startup,
    wire,
)
from labctl.analysis.causes.common import ended_ok
from labctl.analysis.causes.model import Rule, Verdict

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

RULES: tuple[Rule, ...] = (
    *connection.RULES,
    *server.RULES,
    *node.RULES,
    *scheduling.RULES,
    *wire.RULES,
    *graph.RULES,
    *startup.RULES,
    *device.RULES,
    *gpu.RULES,
    *numerics.RULES,
)

_STATUS = {"found": 0, "ruled_out": 1, "not_measured": 2}
_SCOPE = {"step": 0, "once": 1}


def judge_all(run: Explained) -> tuple[Verdict, ...]:
    """Return what every rule says of a run, the most telling first.

    Found causes come first: those paid in each step before those paid once, each group by its seconds. A cause
    without a price comes first in its group where the run did not end well, for then it is why; and in the group of
    the step always, for there it says that the steps do not do what was asked of them.
    """
    unpriced_first = {"step": True, "once": not ended_ok(run)}
    verdicts = [rule.judge(run) for rule in RULES]

    def rank(verdict: Verdict) -> tuple[int, int, float]:
        if verdict.status != "found":
            return _STATUS[verdict.status], _SCOPE[verdict.scope], 0.0
        unpriced = float("inf") if unpriced_first[verdict.scope] else 0.0
        seconds = unpriced if verdict.seconds is None else verdict.seconds
        return _STATUS["found"], _SCOPE[verdict.scope], -seconds

    return tuple(sorted(verdicts, key=rank))
