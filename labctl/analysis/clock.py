"""Node clocks against labctl's: offsets with their bounds, before and after a run, and lines between them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from labctl.analysis.model import ClockLine
from labctl.runs.record import ClockSample, RunRecord

# What a clock may drift between two samples without having jumped: the most that the kernel slews a clock by.
_DRIFT = 500e-6
_MOST_OFFSET_S = 86_400.0
# No clock is off by more than since 1970; beyond it a time of microseconds is lost in the sum, too.
MOST_BELIEVED_S = 2e9


class Clocks:
    """Maps times of nodes to seconds after the run's origin, on labctl's clock.

    Between two samples the offset changes evenly; before the first and after the last it stays. Where samples
    contradict each other the clock jumped, and there is no line between them: the sample with the smallest
    error then stands for all.

    Args:
        samples: Measurements, in any order.
        origin_unix_s: The run's origin, Unix time on labctl's clock.
    """

    def __init__(self, samples: Sequence[ClockSample], origin_unix_s: float) -> None:
        self._origin_unix_s = origin_unix_s
        self._samples: dict[str, list[ClockSample]] = {}
        for sample in sorted(samples, key=lambda each: (each.at_s, each.offset_s, each.error_s)):
            self._samples.setdefault(sample.node, []).append(sample)
        self._jumped = {node for node, own in self._samples.items() if _contradict(own)}

    @classmethod
    def of(cls, record: RunRecord) -> Clocks:
        """Return those of a record."""
        return cls(record.clock, record.origin.unix_s)

    def offset(self, node: str, at_s: float) -> tuple[float, float]:
        """Return a node's clock minus labctl's and its bound, seconds.

        Args:
            node: Node name.
            at_s: When, seconds after the origin on labctl's clock.

        Returns:
            0 and infinity for a node whose clock was never measured.
        """
        samples = self._samples.get(node)
        if not samples:
            return 0.0, math.inf
        if node in self._jumped:
            best = min(samples, key=lambda each: each.error_s)
            spread = max(abs(each.offset_s - best.offset_s) + each.error_s for each in samples)
            return best.offset_s, spread
        after = bisect_right(samples, at_s, key=lambda each: each.at_s)
        if after == 0 or after == len(samples):
            end = samples[0] if after == 0 else samples[-1]
            return end.offset_s, end.error_s
        first, last = samples[after - 1], samples[after]
        part = (at_s - first.at_s) / (last.at_s - first.at_s)
        offset_s = first.offset_s + part * (last.offset_s - first.offset_s)
        return offset_s, max(first.error_s, last.error_s)

    def since_origin_s(self, node: str, unix_s: float) -> float:
        """Return a time of a node's clock as seconds after the origin."""
        there_s = unix_s - self._origin_unix_s
        guess_s = there_s - self.offset(node, there_s - self.offset(node, 0.0)[0])[0]
        return there_s - self.offset(node, guess_s)[0]

    def lines(self) -> tuple[ClockLine, ...]:
        """Return what is to be said of each clock that was measured, by node."""
        return tuple(self._line(node) for node in sorted(self._samples))

    def _line(self, node: str) -> ClockLine:
        samples = self._samples[node]
        first, last = samples[0], samples[-1]
        offset_s, error_s = self.offset(node, (first.at_s + last.at_s) / 2)
        return ClockLine(
            node=node,
            offset_s=offset_s,
            error_s=error_s,
            drift_s=last.offset_s - first.offset_s if len(samples) > 1 else None,
            samples=len(samples),
            absurd=node in self._jumped or abs(offset_s) > _MOST_OFFSET_S,
        )


def clock_problems(clocks: Clocks, record: RunRecord) -> list[str]:
    """Return what is wrong with the clocks of a run, one line each."""
    problems = []
    lines = {line.node: line for line in clocks.lines()}
    for line in lines.values():
        if not line.absurd:
            continue
        if abs(line.offset_s) > _MOST_OFFSET_S:
            way = "ahead" if line.offset_s > 0 else "behind"
            problems.append(
                f"clock: {line.node} is {abs(line.offset_s) / _MOST_OFFSET_S:.1f} days {way}"
            )
        else:
            problems.append(
                f"clock: {line.node} jumped: its samples differ by more than their errors, "
                f"times there are only good to {line.error_s:.3g} s"
            )
    taking_part = {record.remote.node, *(node.name for node in record.nodes)}
    problems += [
        f"clock: the offset of {node} was not measured"
        for node in sorted(taking_part - set(lines))
        if record.wall_s is not None
    ]
    return problems


def _contradict(samples: Sequence[ClockSample]) -> bool:
    return any(
        abs(after.offset_s - before.offset_s)
        > before.error_s + after.error_s + _DRIFT * (after.at_s - before.at_s)
        for before, after in pairwise(samples)
    )
