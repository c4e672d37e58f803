"""Times as ordered, disjoint intervals. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals, ordered and disjoint; empty ones are dropped."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def covered_s(merged: Iterable[Interval]) -> float:
    """Return the length of ordered, disjoint intervals, seconds."""
    return math.fsum(end - start for start, end in merged)


def pieces(merged: Sequence[Interval], start: float, end: float) -> list[tuple[float, float, bool]]:
    """Return an interval cut at the edges of others: start, end, and whether they cover the piece.

    Args:
        merged: Ordered and disjoint.
        start: Of the interval.
        end: Of the interval.
    """
    found: list[tuple[float, float, bool]] = []
    place = max(0, bisect_right(merged, (start, math.inf)) - 1)
    at = start
    while at < end and place < len(merged):
        low, high = merged[place]
        if low >= end:
            break
        if high > at:
            if low > at:
                found.append((at, low, False))
                at = low
            found.append((at, min(high, end), True))
            at = min(high, end)
        place += 1
    if at < end:
        found.append((at, end, False))
    return found
