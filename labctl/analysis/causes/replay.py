"""What if: a traced step played again with some tensors sent sooner. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
    done: dict[tuple[int, str], tuple[float, float]] = {}  # (task, tensor): old and new end
    old_last = new_last = 0.0
    items: list[OpRun | Edge] = [*trace.ops, *trace.edges]
    for item in sorted(items, key=_begin_s):
        if isinstance(item, Edge):
            old_end, made = item.arrived_s, (item.target, plain_name(item.tensor))
            needs: Sequence[tuple[int, str]] = ((item.source, plain_name(item.tensor)),)
        else:
            old_end, made = item.end_s, (item.task, plain_name(item.name))
            needs = [(item.task, plain_name(label)) for label in item.inputs]
        ends = [done[need] for need in needs if need in done]
        moved_s = max(e[0] for e in ends) - max(e[1] for e in ends) if ends else 0.0
        new_end = old_end - moved_s
        if isinstance(item, Edge) and item in arrivals:
            new_end = min(new_end, arrivals[item])
        done[made] = (old_end, new_end)
        old_last, new_last = max(old_last, old_end), max(new_last, new_end)
    return old_last - new_last


def plain_name(label: str) -> str:
    """Return the op that a tensor's label is of: without control mark, output number and receive number."""
    before = None
    while before != label:
        before, label = label, _LABEL.sub("", label)
    return label


def _begin_s(item: OpRun | Edge) -> float:
    return item.answered_s if isinstance(item, Edge) else item.start_s
