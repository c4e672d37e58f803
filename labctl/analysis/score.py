"""How good the predictions are: each run foreseen from the runs before it only, and compared. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.constants import HISTORY_RUNS, Range, RunFacts
from labctl.analysis.predict import Prediction, predict
from labctl.analysis.steps import percentile
from labctl.analysis.work import Work, device_of, work_of
from labctl.errors import RecordError
from labctl.runs.baseline import Baseline

RATIOS = 20  # newest past predictions that correct the next one


@dataclass(frozen=True, slots=True)
class Plan:
    """A prediction that somebody asked for.

    Attributes:
        asked_unix_s: When, on labctl's clock.
        work: Of what.
        warm: The median warm step foreseen, seconds.
        wall: The wall time foreseen, None if it could not be.
    """

    asked_unix_s: float
    work: Work
    warm: Range
    wall: Range | None


@dataclass(frozen=True, slots=True)
class Scored:
    """One run, foreseen and measured; seconds.

    Attributes:
        run_id: Of the run.
        work: What it did.
        warm: Foreseen median warm step.
        warm_s: Measured.
        cold: Foreseen first step, None if it could not be.
        cold_s: Measured.
        wall: Foreseen wall time, None if it could not be.
        wall_s: Measured.
        model_s: What the formula alone said of the warm step.
        known: Runs that the prediction rests on.
        planned: The prediction was asked for before the run, with `labctl plan`.
    """

    run_id: str
    work: Work
    warm: Range
    warm_s: float
    cold: Range | None
    cold_s: float | None
    wall: Range | None
    wall_s: float | None
    model_s: float
    known: int
    planned: bool = False

    @property
    def ratio(self) -> float:
        """Measured warm step / what the formula alone said."""
        return self.warm_s / self.model_s


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions of one kind were off.

    Attributes:
        what: `warm`, `cold` or `wall`; with a parameter's value where the group has one, e.g. `feed fed`.
        n: How many there were.
        median_percent: Median of |foreseen - measured| / measured, percent.
        bias_percent: Median of (foreseen - measured) / measured, percent: above 0 the foreseen is too long.
        inside_percent: Share whose measured value lay in the foreseen range, percent.
    """

    what: str
    n: int
    median_percent: float
    bias_percent: float
    inside_percent: float


@dataclass(frozen=True, slots=True)
class Score:
    """All predictions against their runs.

    Attributes:
        runs: Oldest first.
        overall: Of warm step, cold step and wall time.
        by_parameter: Of the warm step, by value of each parameter that has more than one.
        left_out: How many runs were not scored, by reason.
    """

    runs: tuple[Scored, ...]
    overall: tuple[Errors, ...]
    by_parameter: tuple[Errors, ...]
    left_out: dict[str, int]


def score(facts: Sequence[RunFacts], plans: Sequence[Plan] = ()) -> Score:
    """Foresee each run from those before it on the same machines, and compare.

    Args:
        facts: Runs that ended ok, oldest first.
        plans: Predictions that were asked for; a run of the same work that started later is compared with the
            newest of them instead.
    """
    done: list[Scored] = []
    left_out: dict[str, int] = {}
    for place, run in enumerate(facts):
        found = _scored(run, alike(facts[:place], run, device_of(run.parameters)), done)
        if isinstance(found, str):
            left_out[found] = left_out.get(found, 0) + 1
        else:
            done.append(found)
    shown = tuple(_as_planned(each, facts, plans) for each in done)
    return Score(shown, _overall(shown), _by_parameter(shown), left_out)


def ratios_of(scored: Sequence[Scored], work: Work) -> tuple[float, ...]:
    """Return measured / model of the newest runs of the same device, feed, placement and inter-op threads."""
    same = [each.ratio for each in scored if _kind(each.work) == _kind(work)]
    return tuple(same[-RATIOS:])


def foresee(work: Work, facts: Sequence[RunFacts], baseline: Baseline | None = None) -> Prediction:
    """Return the prediction of a run that would start now, on the newest run's machines.

    Args:
        work: The run.
        facts: All runs that ended ok, oldest first.
        baseline: The lab's, which may be newer than that of its runs; only GPUs' predictions look at it.

    Raises:
        RecordError: They lack a rate that it needs.
    """
    known = alike(facts, facts[-1], work.device) if facts else []
    newest = baseline if work.device == "gpu" else None
    return predict(work, known, ratios_of(score(known).runs, work), newest)


def alike(facts: Sequence[RunFacts], run: RunFacts, device: str = "cpu") -> list[RunFacts]:
    """Return the newest `HISTORY_RUNS` of the runs that were on a run's machines as they were then.

    Args:
        facts: Runs, oldest first.
        run: Of these machines.
        device: Of that device type; for `gpu` as many of CPUs are among them, which stand in for what is not known.
    """
    same = [each for each in facts if each.machines == run.machines]
    on_cpu, on_gpu = (
        [each for each in same if device_of(each.parameters) == kind][-HISTORY_RUNS:]
        for kind in ("cpu", "gpu")
    )
    if device != "gpu":
        return on_cpu
    return sorted((*on_cpu, *on_gpu), key=lambda each: each.at_unix_s)


def _kind(work: Work) -> tuple[str, str, str, int | None]:
    return work.device, work.feed, work.placement, work.inter_op


def _scored(run: RunFacts, known: Sequence[RunFacts], done: Sequence[Scored]) -> Scored | str:
    work = work_of(run.parameters, run.tasks, command=run.command_s is not None)
    if isinstance(work, str):
        return work
    if run.warm_s is None or run.warm_s <= 0:
        return "no warm step"
    try:
        newest = run.baseline if work.device == "gpu" else None
        found = predict(work, known, ratios_of(done, work), newest)
    except RecordError:
        return "no constants before it"
    return Scored(
        run_id=run.run_id,
        work=work,
        warm=found.warm,
        warm_s=run.warm_s,
        cold=found.cold,
        cold_s=run.cold_s,
        wall=found.wall,
        wall_s=run.wall_s,
        model_s=found.model_s,
        known=len(known),
    )


def _as_planned(each: Scored, facts: Sequence[RunFacts], plans: Sequence[Plan]) -> Scored:
    """Return a scored run with the newest plan of the same work that was asked for before it."""
    started = next(run.at_unix_s for run in facts if run.run_id == each.run_id)
    fitting = [plan for plan in plans if plan.work == each.work and plan.asked_unix_s < started]
    if not fitting:
        return each
    plan = max(fitting, key=lambda one: one.asked_unix_s)
    return replace(each, warm=plan.warm, wall=plan.wall, planned=True)


def _overall(runs: Sequence[Scored]) -> tuple[Errors, ...]:
    kinds: tuple[tuple[str, Callable[[Scored], tuple[Range | None, float | None]]], ...] = (
        ("warm", lambda each: (each.warm, each.warm_s)),
        ("cold", lambda each: (each.cold, each.cold_s)),
        ("wall", lambda each: (each.wall, each.wall_s)),
    )
    found = (_errors(what, [pair(each) for each in runs]) for what, pair in kinds)
    return tuple(each for each in found if each is not None)


def _by_parameter(runs: Sequence[Scored]) -> tuple[Errors, ...]:
    found = []
    for name in ("device", "size", "power", "algorithm", "feed", "placement", "inter_op"):
        values = sorted({getattr(each.work, name) for each in runs}, key=_order)
        if len(values) < 2:
            continue
        for value in values:
            pairs = [(r.warm, r.warm_s) for r in runs if getattr(r.work, name) == value]
            told = "default" if value is None else value
            errors = _errors(f"{name.replace('_', '-')} {told}", pairs)
            found += [errors] if errors is not None else []
    return tuple(found)


def _order(value: object) -> tuple[bool, int, str]:
    return value is None, value if isinstance(value, int) else 0, str(value)


def _errors(what: str, pairs: Sequence[tuple[Range | None, float | None]]) -> Errors | None:
    good = [(found, is_s) for found, is_s in pairs if found is not None and is_s]
    if not good:
        return None
    off = [100 * (found.value - is_s) / is_s for found, is_s in good]
    inside = sum(found.low <= is_s <= found.high for found, is_s in good)
    return Errors(
        what=what,
        n=len(good),
        median_percent=percentile([abs(each) for each in off], 50),
        bias_percent=percentile(off, 50),
        inside_percent=100 * inside / len(good),
    )
