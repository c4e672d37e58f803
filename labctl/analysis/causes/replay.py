"""What if: a traced step played again with some tensors sent sooner. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from labctl.analysis.model import Edge, OpRun, StepTrace

_LABEL = re.compile(r"^\^|:\d+$|_S\d+$")


def saving_s(trace: StepTrace, arrivals: Mapping[Edge, float]) -> float:
    """Return how much sooner the last op of a traced step would end, seconds.

    Each op and edge begins as long after the last of what it needs as it did in the trace, and takes as long; what
    needs nothing that the trace names stays where it was. That a task's ops share its CPUs is not played again.

    Args:
        trace: The step.
        arrivals: Edges that arrive at another time, and that time.
    """
    if not arrivals:
        return 0.0
    ends: dict[tuple[int, str], float] = {}  # (task, tensor): when it was there in the trace
    moved: dict[tuple[int, str], float] = {}  # how much sooner it is, where it is
    old_last = new_last = 0.0
    items: list[OpRun | Edge] = [*trace.ops, *trace.edges]
    for item in sorted(items, key=_begin_s):
        sooner_s = 0.0
        if isinstance(item, Edge):
            end_s, made = item.arrived_s, (item.target, plain_name(item.tensor))
            sooner_s = moved.get((item.source, plain_name(item.tensor)), 0.0)
            if item in arrivals:
                sooner_s = max(sooner_s, end_s - arrivals[item])
        else:
            end_s, made = item.end_s, (item.task, plain_name(item.name))
            needs = [(item.task, plain_name(label)) for label in item.inputs]
            if any(need in moved for need in needs):
                known = [need for need in needs if need in ends]
                sooner_s = max(ends[need] for need in known) - max(
                    ends[need] - moved.get(need, 0.0) for need in known
                )
        ends[made] = end_s
        if sooner_s > 0:
            moved[made] = sooner_s
        old_last, new_last = max(old_last, end_s), max(new_last, end_s - sooner_s)
    return old_last - new_last


@lru_cache(maxsize=2**17)
def plain_name(label: str) -> str:
    """Return the op that a tensor's label is of: without control mark, output number and receive number."""
    before = None
    while before != label:
        before, label = label, _LABEL.sub("", label)
    return label


def _begin_s(item: OpRun | Edge) -> float:
    return item.answered_s if isinstance(item, Edge) else item.start_s
