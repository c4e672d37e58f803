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

# What may end a run. In one that did not end well it comes first, whatever else that one paid on its way.
_ENDS = frozenset(rule.cause for rule in (*connection.RULES, *server.RULES))
_STATUS = {"found": 0, "ruled_out": 1, "not_measured": 2}
_SCOPE = {"step": 0, "once": 1}


def judge_all(run: Explained) -> tuple[Verdict, ...]:
    """Return what every rule says of a run, the most telling first.

    Found causes come first: those paid in each step before those paid once, each group by its seconds. A cause
    without a price comes first in its group where the run did not end well, for then it is why; and in the group of
    the step always, for there it says that the steps do not do what was asked of them. Where the run did not end
    well, a fault of connection or server precedes them all.
    """
    ended = ended_ok(run)
    unpriced_first = {"step": True, "once": not ended}
    verdicts = [rule.judge(run) for rule in RULES]

    def rank(verdict: Verdict) -> tuple[int, bool, int, float]:
        if verdict.status != "found":
            return _STATUS[verdict.status], True, _SCOPE[verdict.scope], 0.0
        late = ended or verdict.cause not in _ENDS
        unpriced = float("inf") if unpriced_first[verdict.scope] else 0.0
        seconds = unpriced if verdict.seconds is None else verdict.seconds
        return _STATUS["found"], late, _SCOPE[verdict.scope], -seconds

    return tuple(sorted(verdicts, key=rank))
