"""From the words of `labctl runs compare A… -- B…` to a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis.compare import Comparison, Measured, compare, measure
from labctl.analysis.explain import explain
from labctl.errors import RefusedError, UsageError
from labctl.runs.data import load
from labctl.runs.select import select
from labctl.runs.store import Entry, RunStore


def measured(entry: Entry) -> Measured:
    """Return what a stored run has to be compared.

    Raises:
        RecordError: It cannot be read.
    """
    return measure(explain(load(entry.path, entry.readable())))


def compare_runs(store: RunStore, a: Sequence[str], b: Sequence[str]) -> Comparison:
    """Compare two sets of stored runs.

    Args:
        store: The lab's runs.
        a: Ids, prefixes, `last` or `tag:key=value` of side A.
        b: Of side B.

    Raises:
        RecordError: A word fits no run, or a record cannot be read.
        UsageError: A side is empty, or a run is on both.
    """
    if not a or not b:
        raise UsageError(
            f"side {'B' if a else 'A'} has no run",
            expected="runs of side A, then --, then runs of side B",
            do="labctl runs compare tag:side=a -- tag:side=b",
        )
    side_a, side_b = select(store, a), select(store, b)
    both = sorted({each.run_id for each in side_a} & {each.run_id for each in side_b})
    if both:
        raise UsageError(f"run {both[0]} is on both sides", expected="each run on one side")
    return compare([measured(each) for each in side_a], [measured(each) for each in side_b])


def raise_for(found: Comparison, *, force: bool) -> None:
    """Raise what a comparison means for the exit code.

    Raises:
        RefusedError: There is no verdict and none was forced, or side B is slower.
    """
    if found.refused and not force:
        raise RefusedError(
            f"no verdict: {'; '.join(found.refused)}",
            expected="sides that differ in nothing but what is compared, and enough runs to see past their noise",
            do="choose or repeat runs so that they are alike; --force shows the comparison without a verdict",
        )
    row = found.decides
    if found.verdict == "slower" and row is not None and row.difference is not None:
        percent = row.difference.percent
        by = "" if percent is None else f" by {percent:.1f} %"
        raise RefusedError(f"side B is slower than side A{by} in its {row.key.name}")
