"""Foresees a run of the built-in experiment from constants that the lab's own runs measured. Pure.

The model of a warm step, with p products a task, m = 4 L^2 bytes a matrix, T tasks, and per task k the rate G_k:

    compute_k = 2 p L^3 / G_k
    lab, fed:    overhead + max(compute_0, (T-1) m / out + max_k compute_k + m / back) + fetch
    lab, fed, one inter-op thread on task 0:
                 overhead + compute_0 + (T-1) m / out + max_k compute_k + m / back + fetch
    lab, staged: overhead + max(compute_0, max_k compute_k + (T-1) m / back) + fetch
    one-process: overhead + T compute_0 + fetch
    one-host:    overhead + T compute_0 + transfers + fetch

`out` and `back` are the rates that tensors reached between task 0 and the slowest of the others; with several
others task 0's own link carries their inputs one after the other, and results come back in the same rhythm.
`overhead` is the step that computes nothing on any task; `fetch` the difference between steps with and without
the result's way to Python. The cold step is a warm one and what the session's first run pays once. The wall time
is the cold step, the warm ones, traced and probe steps, inputs, check, and all that any run costs.

On GPUs, compute_k is at least p times what launching a kernel takes, and h_k + d_k is added to it on its own task:
the way of a fed input to the GPU and of the result from it. What a GPU run has not measured is taken from CPU runs
(overhead, wires, fetch, what any run costs) and from the probe of the GPUs (products, copies, cold start). A cold
step then has cuBLAS' handle and what the first product takes beyond a later one; a run also wakes the driver, makes
a context and opens the libraries on task 0. Its kernels do not hold up an inter-op thread.

Ranges are interval arithmetic over the samples of each constant. What the formula misses, waiting above all, is
corrected by the median of measured / foreseen over past runs of the kind, and the range holds their spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.book import Book
from labctl.analysis.constants import (
    NOTHING,
    Figure,
    Range,
    RunFacts,
    figure,
    largest,
)
from labctl.analysis.work import Work, work_or_like
from labctl.node import wire
from labctl.runs.baseline import Baseline, GpuBaseline

_FLOAT64_CHECK_S = 2.5  # beyond it the client checks with random vectors if that is cheaper


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the foreseen step.

    Attributes:
        what: `overhead`, `compute`, `copy` (between memory and GPU), `transfer`, `fetch`, or `correction`, which
            may be below 0; of a cold start `wake`, `context`, `libraries`, `handle` or `product`.
        where: Whose, in words.
        seconds: Its length.
    """

    what: str
    where: str
    seconds: Range


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is foreseen, seconds.

    Attributes:
        work: Of what.
        warm: Median warm step.
        cold: First step; None if no cold step of the kind was measured.
        wall: From the command's start to its end; None if no run of the kind has an end.
        model_s: The warm step before it was corrected by past predictions.
        parts: Of the warm step: the path that decides; they add up to `warm.value`.
        constants: What it rests on.
        notes: What it could not know, one line each.
        runs: Ids of the runs that it rests on, oldest first.
        cold_start: What each process pays once for its GPU, by the probe: the slowest node's, the range from the
            fastest; () on CPUs, and where the probe has not measured every node.
    """

    work: Work
    warm: Range
    cold: Range | None
    wall: Range | None
    model_s: float
    parts: tuple[Part, ...]
    constants: tuple[Figure, ...]
    notes: tuple[str, ...]
    runs: tuple[str, ...]
    cold_start: tuple[Part, ...] = ()


def predict(
    work: Work,
    facts: Sequence[RunFacts],
    ratios: Sequence[float] = (),
    baseline: Baseline | None = None,
) -> Prediction:
    """Return what a run is foreseen to take.

    Args:
        work: The run.
        facts: Runs of the same machines that ended ok, oldest first.
        ratios: Measured warm step / what the model alone said, of past runs of the kind; with three or more their
            median corrects the step, and the range holds what they span.
        baseline: The lab's, which may be newer than that of the runs.

    Raises:
        RecordError: The rate of the products or of the network is not known.
    """
    book = Book(facts, device=work.device, baseline=baseline)
    parts, model = step_of(work, book)
    warm = model
    missed = figure("step / model", "", ratios, "past predictions") if len(ratios) >= 3 else None
    if missed is not None:
        spread = book.keep(missed).range
        warm = Range(
            model.value * spread.value,
            min(model.low, model.value * spread.low),
            max(model.high, model.value * spread.high),
        )
        beyond = model.value * (spread.value - 1)
        parts.append(
            Part("correction", "what past predictions missed", Range(beyond, beyond, beyond))
        )
    cold, wall = _cold_and_wall(work, book, warm)
    cold_start = _cold_start(work, book)
    return Prediction(
        work=work,
        warm=warm,
        cold=cold,
        wall=wall,
        model_s=model.value,
        parts=tuple(parts),
        constants=tuple(book.used.values()),
        notes=book.notes,
        runs=tuple(each.run_id for each in (*book.lent, *book.own)),
        cold_start=cold_start,
    )


def step_of(work: Work, book: Book) -> tuple[list[Part], Range]:
    """Return the parts of the path that decides and the whole warm step."""
    overhead = Part("overhead", "all tasks", book.overhead(work))
    own = [
        Part("compute", "task:0", book.compute(work, 0)),
        *_copy("task:0", book.copies(work, 0)),
    ]
    if work.placement == "lab" and work.tasks > 1:
        path, length = _lab_path(work, book, own)
    else:
        path, length = _one_node_path(work, book, own)
    fetch = Part("fetch", "task:0 to Python", book.fetch(work))
    return [overhead, *path, fetch], overhead.seconds + length + fetch.seconds


def _copy(where: str, seconds: Range) -> list[Part]:
    return [Part("copy", f"{where} to and from its GPU", seconds)] if seconds.high > 0 else []


def _lab_path(work: Work, book: Book, own: list[Part]) -> tuple[list[Part], Range]:
    others = work.tasks - 1
    tasks = book.others(work)
    products = Part("compute", _others(work), largest(book.compute(work, task) for task in tasks))
    copies = _copy(_others(work), largest(book.copies(work, task) for task in tasks))
    times = 1 if work.feed == "fed" else others
    back = Part("transfer", "results to task:0", book.transfer(work, out=False).times(times))
    away = [products, *copies, back]
    if work.feed == "fed":
        out = book.transfer(work, out=True).times(others)
        away.insert(0, Part("transfer", f"inputs to {_others(work)}", out))
    here, beyond = _sum(own), _sum(away)
    if work.feed == "fed" and _starved(work, book.facts):
        return [*own, *away], here + beyond
    return (own if here.value > beyond.value else away), largest((here, beyond))


def _one_node_path(work: Work, book: Book, own: list[Part]) -> tuple[list[Part], Range]:
    together = book.shared(work)
    products = Part(
        "compute", "all products on task:0's node", together or own[0].seconds.times(work.tasks)
    )
    path = [products]
    if together is None:
        path += [replace(each, seconds=each.seconds.times(work.tasks)) for each in own[1:]]
    if work.placement == "one-host" and together is None:
        wires = book.transfer(work, out=False)
        if work.feed == "fed":
            wires = wires + book.transfer(work, out=True)
        book.note("transfers within one node: between nothing and the network's")
        path.append(Part("transfer", "between servers of one node", replace(wires, low=0.0)))
    return path, _sum(path)


def _cold_and_wall(work: Work, book: Book, warm: Range) -> tuple[Range | None, Range | None]:
    same = [
        each
        for each in book.facts
        if each.parameters.placement == work.placement and each.parameters.feed == work.feed
    ]
    setup = [each.cold_s - each.warm_s for each in same if each.cold_s and each.warm_s]
    once = figure("first step beyond a warm one", "s", setup, f"{work.feed} runs")
    first, beside = _gpu_setup(work, book)
    cold = None if once is None else warm + book.keep(once).range + first
    fixed = figure(
        "a run without its work", "s", [each.fixed_s or 0.0 for each in same], f"{work.feed} runs"
    )
    if cold is None or fixed is None:
        book.note(
            f"no {work.feed} run with --placement {work.placement} yet: cold step and total are not foreseen"
        )
        return cold, None
    wall = book.keep(fixed).range + cold + warm.times(work.repeat) + beside
    starts = [each.command_s for each in book.facts if each.command_s is not None]
    command = figure("labctl's start and connection", "s", starts, "runs")
    if work.command and command is not None:
        wall = wall + book.keep(command).range
    wall = wall + _inputs(work, same, book) + _check(work, book) + _extra(work, book, warm)
    return cold, wall


def _inputs(work: Work, same: Sequence[RunFacts], book: Book) -> Range:
    """Return the time in which inputs are made and, if staged, brought to their tasks: both go with their bytes."""
    total = NOTHING
    kinds = [("inputs", [(each, each.inputs_s) for each in same])]
    if work.feed == "staged":
        kinds.append(("staging", [(each, each.stage_s) for each in same]))
    for name, pairs in kinds:
        samples = [s / (each.tasks * each.matrix_bytes / 1e6) for each, s in pairs if s]
        found = figure(name, "s/MB", samples, f"{work.feed} runs")
        if found is not None:
            total = total + book.keep(found).range.times(work.tasks * work.matrix_mb)
    return total


def _check(work: Work, book: Book) -> Range:
    """Return the time of the check: float64 products, or random vectors where those would take too long."""
    power = work.power + 1 if work.algorithm == "listing" else work.power
    exact = work.tasks * work.size**3 * (power.bit_length() + power.bit_count())
    rough = work.tasks * work.size**2 * power
    samples: dict[str, list[float]] = {"float64": [], "random-vector": []}
    for each in book.facts:
        its = work_or_like(each)
        its_power = its.power + 1 if its.algorithm == "listing" else its.power
        cost = its.tasks * its.size**2 * its_power
        if each.checked_by == "float64":
            cost = its.tasks * its.size**3 * (its_power.bit_length() + its_power.bit_count())
        if each.checked_by in samples and each.verify_s:
            samples[each.checked_by].append(each.verify_s / cost * 1e9)
    by_float64 = figure("check by float64", "ns/multiply-add", samples["float64"], "runs")
    by_vector = figure(
        "check by random vectors", "ns/multiply-add", samples["random-vector"], "runs"
    )
    if by_float64 is None and by_vector is None:
        book.note("the check of the result was not measured: it is left out")
        return NOTHING
    if by_float64 is not None:
        full = by_float64.range.times(exact / 1e9)
        if full.value <= _FLOAT64_CHECK_S:
            book.keep(by_float64)
            return full
        if by_vector is None:
            book.keep(by_float64)
            return Range(_FLOAT64_CHECK_S, 0.0, full.high)
    assert by_vector is not None  # noqa: S101 one of the two is there
    return book.keep(by_vector).range.times(rough / 1e9)


def _extra(work: Work, book: Book, warm: Range) -> Range:
    """Return the time of traced and probe steps."""
    if not work.trace:
        return NOTHING
    ratios = [each.tracing_ratio for each in book.facts if each.tracing_ratio]
    found = figure("traced step / warm step", "", ratios, "traced runs")
    if found is None:
        return NOTHING
    ratio = book.keep(found).range
    traced = Range(warm.value * ratio.value, warm.low * ratio.low, warm.high * ratio.high)
    probes = warm.less(book.fetch(work)) + book.overhead(work)
    return traced.times(wire.TRACED_STEPS) + probes.times(wire.PROBE_STEPS)


def _starved(work: Work, facts: Sequence[RunFacts]) -> bool:
    """Return whether task 0 answers for its inputs only when its own products are done."""
    if work.device == "gpu":
        return False
    if work.inter_op is not None:
        return work.inter_op == 1
    return bool(facts) and bool(facts[-1].machines) and facts[-1].machines[0][1] == 1


def _sum(parts: Sequence[Part]) -> Range:
    return sum((part.seconds for part in parts), start=NOTHING)


def _cold_start(work: Work, book: Book) -> tuple[Part, ...]:
    gpus = _gpus(work, book)
    if not gpus:
        return ()
    if any(gpu.awake for gpu in gpus):
        book.note("something kept the driver awake while the probe measured: wake is no waking")
    rows: tuple[tuple[str, str, Callable[[GpuBaseline], float]], ...] = (
        ("wake", "the driver, before TensorFlow", lambda gpu: gpu.wake_s),
        ("context", "with the server", lambda gpu: gpu.context_s),
        ("libraries", "cuBLAS, before the server", lambda gpu: gpu.libraries_s),
        ("handle", "in the first step", lambda gpu: gpu.handle_s),
        ("product", "in the first step, beyond a later one", _first_product_s),
    )
    return tuple(
        Part(what, where, _span([seconds(gpu) for gpu in gpus])) for what, where, seconds in rows
    )


def _gpu_setup(work: Work, book: Book) -> tuple[Range, Range]:
    """Return what a GPU adds to a first step, and to a run beside its steps, where only CPU runs are known.

    Servers of other tasks have woken their driver when their unit started; task 0 does so within the run.
    """
    if work.device != "gpu" or book.own:
        return NOTHING, NOTHING
    gpus = _gpus(work, book)
    if not gpus:
        return NOTHING, NOTHING
    book.note(
        "no GPU run yet: cold step and total are those of CPU runs and the probe's cold start"
    )
    first = _span([gpu.handle_s + _first_product_s(gpu) for gpu in gpus])
    here = gpus[0].wake_s + gpus[0].context_s + gpus[0].libraries_s
    return first, Range(here, here, here)


def _gpus(work: Work, book: Book) -> list[GpuBaseline]:
    """Return what the probe measured of each task's GPU; nothing where one is missing, or on CPUs."""
    if work.device != "gpu":
        return []
    tasks = [0, *book.others(work)] if work.placement == "lab" and work.tasks > 1 else [0]
    found = [gpu for gpu in map(book.gpu, tasks) if gpu is not None]
    return found if len(found) == len(tasks) else []


def _first_product_s(gpu: GpuBaseline) -> float:
    return max(0.0, gpu.first_product_s - gpu.warm_product_s)


def _span(samples: Sequence[float]) -> Range:
    """Return the largest, and the range from the smallest to it."""
    return Range(max(samples), min(samples), max(samples))


def _others(work: Work) -> str:
    return "task:1" if work.tasks == 2 else "the other tasks"
