"""From the options of `labctl plan` to what is to be foreseen."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis import ptx
from labctl.analysis.constants import RunFacts
from labctl.analysis.ptx import Gpu
from labctl.analysis.work import Work, work_of
from labctl.drive.plan import MAX_TASKS, RunOptions, make_request
from labctl.errors import UsageError
from labctl.runs.baseline import Baseline


def work_for(
    options: RunOptions,
    tasks: int | None,
    facts: Sequence[RunFacts],
    baseline: Baseline | None = None,
) -> Work:
    """Return the work that options of `labctl run` mean.

    Args:
        options: As given; checked here.
        tasks: Matrices, None for the newest run's, or as many as nodes were measured.
        facts: The lab's runs.
        baseline: The lab's own.

    Raises:
        UsageError: An option is out of bounds, or the model does not hold for it.
    """
    if tasks is not None and not 1 <= tasks <= MAX_TASKS:
        raise UsageError(f"--tasks {tasks}", expected=f"1 to {MAX_TASKS}", do="labctl plan --help")
    parameters = make_request(options).parameters
    measured = 2 if baseline is None else max(2, len(baseline.boot_ids))
    count = tasks if tasks is not None else facts[-1].tasks if facts else measured
    found = work_of(parameters, count)
    if isinstance(found, str):
        raise UsageError(
            f"the model does not hold for {found}",
            expected="--feed fed or staged",
            do="labctl run measures it",
        )
    return found


def find_device(name: str) -> Gpu:
    """Return the GPU of a name.

    Raises:
        UsageError: The table has none of that name.
    """
    found = ptx.find_gpu(name)
    if found is None:
        known = ", ".join(each.name for each in ptx.gpus())
        raise UsageError(
            f"--device {name}", expected=f"list, or one of {known}", do="labctl plan --device list"
        )
    return found
