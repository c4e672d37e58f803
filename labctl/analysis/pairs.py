"""For each cause the controlled pair that decides: two settings that differ in the cause alone. Pure.

Where one setting is enough, the cost is measured within its runs, each of which is a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from labctl.analysis import stats
from labctl.analysis.causes.common import STEP_LEAST_S, STEP_SHARE, WALL_SHARE
from labctl.analysis.causes.model import Proof, Scope
from labctl.analysis.cold_start import PHASE_CUBLAS, PHASE_GPU_CONTEXT
from labctl.analysis.compare import COLD, WALL, WARM, Measured, RowKey
from labctl.analysis.stats import Difference
from labctl.analysis.steps import percentile
from labctl.node import wire
from labctl.runs.record import Parameters

Outcome = Literal["confirmed", "refuted", "undecided"]
Changes = tuple[tuple[str, str | int], ...]

_WARM = RowKey(WARM, by_step=True)
_COLD = RowKey(COLD)
_FLAGS = {
    "inter_op": "--inter-op",
    "feed": "--feed",
    "fetch": "--fetch",
    "algorithm": "--algorithm",
    "placement": "--placement",
    "power": "-n",
    "sum_task": "--sum-on",
    "environment": "--env",
}
_NEEDS_GPU = "it shows only where there is a GPU: labctl run --gpu on such a lab, once with it and once without"
_NO_SETTING = (
    "no setting of labctl run takes it away: remove it on the node, run again, and compare"
)
_NO_TIME = "it costs no time: the run's result or its error says it already"
_OF_SCRIPT = "it is set in a script or in --env: make one run with it and one without, then labctl runs compare"
_UNPROVABLE = {
    "float32-overflow": _NO_TIME,
    "graph-too-large": _NO_TIME,
    "protocol-plugin": _OF_SCRIPT,
    "remote-master": _OF_SCRIPT,
    "xla-compile": _OF_SCRIPT,
    "soft-placement": _NEEDS_GPU,
    "cuda-libraries-missing": _NEEDS_GPU,
    "driver-mismatch": _NEEDS_GPU,
    "no-driver": _NEEDS_GPU,
    "gpu-too-old": _NEEDS_GPU,
    "gpu-hidden": _NEEDS_GPU,
    "gpu-memory-taken": _NEEDS_GPU,
    "gpu-throttled": _NEEDS_GPU,
    "gpu-shared": _NEEDS_GPU,
    "tf32": _NEEDS_GPU,
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is measured of a run.

    Attributes:
        name: In plain words.
        scope: Whether it is paid in each step or once.
        values: Seconds, one or many; empty if the run does not have it.
    """

    name: str
    scope: Scope
    values: Callable[[Measured], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A controlled experiment: what the first setting costs beyond the second is the cause's price.

    Attributes:
        cause: Its id.
        quantity: What is measured.
        first: Changes to the settings of the run that is explained, as fields of `RunOptions`.
        second: Those of the other side; None where the quantity is the price by itself.
        same_graph: Both sides are expected to have one and the same graph.
    """

    cause: str
    quantity: Quantity
    first: Changes = ()
    second: Changes | None = None
    same_graph: bool = False

    @property
    def text(self) -> str:
        """The two settings, e.g. `--inter-op 1 against --inter-op 2`."""
        if self.second is None:
            return f"{self.quantity.name} of fresh processes"
        shared = tuple(each for each in self.first if each in self.second)
        first, second = (
            setting_text(tuple(each for each in side if each not in shared))
            for side in (self.first, self.second)
        )
        both = f", both with {setting_text(shared)}" if shared else ""
        return f"{first} against {second}{both}"


@dataclass(frozen=True, slots=True)
class Tried:
    """A cause that `--prove` was asked about.

    Attributes:
        cause: Its id.
        claimed_s: What the rule says that it costs, None if it does not.
        proof: What its pair said; None if it has none, or nothing came of it.
        why_not: Why there is no proof, "" if there is one.
    """

    cause: str
    claimed_s: float | None
    proof: Proof | None
    why_not: str = ""


def setting_text(changes: Changes) -> str:
    """Return changes as options of `labctl run`."""
    return " ".join(f"{_FLAGS[name]} {value}" for name, value in changes) or "as recorded"


def _warm_steps(run: Measured) -> Sequence[float]:
    return run.rows.get(_WARM, ())


def _first_step_extra(run: Measured) -> Sequence[float]:
    cold, warm = run.rows.get(_COLD, ()), run.rows.get(_WARM, ())
    return [cold[0] - percentile(warm, 50)] if cold and warm else []


def _phases(*names: str) -> Callable[[Measured], Sequence[float]]:
    def values(run: Measured) -> Sequence[float]:
        found = [sum(row) for key, row in run.rows.items() if key.name in names]
        return [sum(found)] if found else []

    return values


WARM_STEP = Quantity("warm step", "step", _warm_steps)
FIRST_STEP = Quantity("first step less a warm one", "once", _first_step_extra)
IMPORT = Quantity("import", "once", _phases(wire.PHASE_IMPORT_NUMPY, wire.PHASE_IMPORT_TENSORFLOW))
SERVERS = Quantity(
    "server start", "once", _phases(wire.PHASE_SERVER, "restart_servers", "start_servers")
)
GPU_WAKE = Quantity("wake-up of the driver", "once", _phases(wire.PHASE_GPU_WAKE))
GPU_CONTEXT = Quantity("making of the GPU device", "once", _phases(PHASE_GPU_CONTEXT))
CUBLAS_START = Quantity(
    "libraries, handle and first product", "once", _phases(wire.PHASE_GPU_LIBRARIES, PHASE_CUBLAS)
)


def pair_for(cause: str, parameters: Parameters) -> Pair | str:
    """Return the pair that decides on a cause of a run, or why there is none.

    Args:
        cause: Its id.
        parameters: Of the run.
    """
    if parameters.experiment != "matpow":
        return "pairs are of the built-in experiment: its settings can be changed one at a time"
    if cause in _UNPROVABLE:
        return _UNPROVABLE[cause]
    build = _PAIRS.get(cause)
    return _NO_SETTING if build is None else build(cause, parameters)


def _inter_op(cause: str, own: Parameters) -> Pair | str:
    threads = own.inter_op
    more = 2 if threads is None or threads < 2 else 2 * threads
    first = (("inter_op", "default" if threads is None else str(threads)),)
    return Pair(cause, WARM_STEP, first, (("inter_op", str(more)),))


def _feed(cause: str, own: Parameters) -> Pair | str:
    if own.feed != "fed":
        return f"the run has --feed {own.feed}: no input is sent with a step"
    return Pair(cause, WARM_STEP, (("feed", "fed"),), (("feed", "staged"),))


def _fetch(cause: str, own: Parameters) -> Pair | str:
    if own.fetch == "none":
        return "the run has --fetch none: no result is brought back"
    return Pair(cause, WARM_STEP, (("fetch", "sum"),), (("fetch", "none"),))


def _transfer(cause: str, own: Parameters) -> Pair | str:
    if own.placement == "one-process":
        return "the run is one process: nothing travels between tasks"
    # Without a product there is no computing that the tasks could share: what is left is the way between them.
    bare: Changes = (("algorithm", "chain"), ("power", 1), ("feed", "staged"), ("fetch", "none"))
    return Pair(
        cause,
        WARM_STEP,
        (("placement", own.placement or "lab"), *bare),
        (("placement", "one-process"), *bare),
    )


def _slow_link(cause: str, own: Parameters) -> Pair | str:
    if own.placement != "lab":
        return f"the run has --placement {own.placement}: nothing travels between nodes"
    bare: Changes = (("algorithm", "chain"), ("power", 1), ("fetch", "none"))
    return Pair(
        cause,
        WARM_STEP,
        (("placement", "lab"), *bare),
        (("placement", "one-process"), *bare),
    )


def _small_work(cause: str, own: Parameters) -> Pair | str:
    if own.placement == "one-process":
        return "the run is one process already"
    first = (("placement", own.placement or "lab"),)
    return Pair(cause, WARM_STEP, first, (("placement", "one-process"),))


def _constants(cause: str, own: Parameters) -> Pair | str:
    if own.feed != "constant":
        return f"the run has --feed {own.feed}: its inputs are no constants"
    return Pair(cause, WARM_STEP, (("feed", "fed"),), (("feed", "constant"),))


def _products(cause: str, own: Parameters) -> Pair | str:
    algorithm, power = own.algorithm or "chain", own.power or 1
    if algorithm == "squaring":
        return "the run has --algorithm squaring: it forms the power with the fewest products"
    return Pair(cause, WARM_STEP, *_algorithms(algorithm, "squaring", power))


def _recursion(cause: str, own: Parameters) -> Pair | str:
    algorithm, power = own.algorithm, own.power or 1
    recursive = "listing" if algorithm == "listing" else "recursive"
    return Pair(cause, WARM_STEP, *_algorithms(recursive, "chain", power), same_graph=True)


def _algorithms(first: str, second: str, power: int) -> tuple[Changes, Changes]:
    """Return two algorithms that compute one power: the question's listing makes n + 1 factors of n."""
    if first != "listing":
        return (("algorithm", first),), (("algorithm", second),)
    return (
        (("algorithm", first), ("power", power)),
        (("algorithm", second), ("power", power + 1)),
    )


def _unbalanced(cause: str, own: Parameters) -> Pair | str:
    if own.placement == "one-process":
        return "the run is one process: there is no other task to sum on"
    here = own.sum_task or 0
    return Pair(cause, WARM_STEP, (("sum_task", here),), (("sum_task", 0 if here else 1),))


def _kernel_cache(cause: str, own: Parameters) -> Pair | str:
    """Return a run that must compile against one that finds its kernels: in the client's process alone."""
    if own.device != "gpu":
        return _NEEDS_GPU
    off = (("environment", "CUDA_CACHE_DISABLE=1"),)
    return Pair(cause, FIRST_STEP, off, (("environment", "CUDA_CACHE_DISABLE=0"),))


def _of_gpu(quantity: Quantity) -> Callable[[str, Parameters], Pair | str]:
    return lambda cause, own: Pair(cause, quantity) if own.device == "gpu" else _NEEDS_GPU


def _within(quantity: Quantity) -> Callable[[str, Parameters], Pair | str]:
    return lambda cause, own: Pair(cause, quantity)  # noqa: ARG005 one form for all


_PAIRS: dict[str, Callable[[str, Parameters], Pair | str]] = {
    "inter-op-starved": _inter_op,
    "feed": _feed,
    "fetch": _fetch,
    "transfer": _transfer,
    "slow-link": _slow_link,
    "small-work": _small_work,
    "constants-folded": _constants,
    "more-products-than-needed": _products,
    "recursion": _recursion,
    "tasks-unbalanced": _unbalanced,
    "import": _within(IMPORT),
    "first-step-setup": _within(FIRST_STEP),
    "server-start": _within(SERVERS),
    "ptx-jit": _kernel_cache,
    "jit-cache-lost": _kernel_cache,
    "no-persistence": _of_gpu(GPU_WAKE),
    "cuda-context": _of_gpu(GPU_CONTEXT),
    "cublas-load": _of_gpu(CUBLAS_START),
}


def weigh(
    pair: Pair,
    first: Sequence[Measured],
    second: Sequence[Measured],
    *,
    own: Measured,
    claimed_s: float | None,
) -> Proof | None:
    """Return what the runs of a pair say of its cause, None if they are too few to say anything.

    The cost is confirmed when its interval is above 0 and it is at least half of what was claimed; refuted when
    even the interval's upper end is less than that, or when both sides ran one and the same graph; undecided
    between. Where nothing was claimed, the measure is what the rules call a cause: 15 % of a step, 10 % of a run.

    Args:
        pair: What was run.
        first: Runs of its first setting.
        second: Of its second; empty for a quantity that is the price by itself.
        own: The run that is explained.
        claimed_s: The rule's own estimate, None if it made none.
    """
    found = cost(pair, first, second)
    if found is None or found.low is None or found.high is None:
        return None
    runs = (*first, *second)
    same_graph = pair.same_graph and graphs_equal(runs) is True
    least_s = claimed_s / 2 if claimed_s else _least_s(pair.quantity.scope, own)
    outcome: Outcome = "undecided"
    if found.high < least_s or same_graph:
        outcome = "refuted"
    elif found.low > 0 and found.change >= least_s:
        outcome = "confirmed"
    return Proof(
        outcome=outcome,
        seconds=found.change,
        low_s=found.low,
        high_s=found.high,
        pair=f"{pair.text}, with one and the same graph" if same_graph else pair.text,
        runs=tuple(run.run_id for run in runs),
    )


def _least_s(scope: Scope, own: Measured) -> float:
    """Return from which cost on a rule would call it a cause of a run."""
    if scope == "once":
        return WALL_SHARE * sum(own.rows.get(RowKey(WALL), ()))
    steps = own.rows.get(_WARM, ())
    return max(STEP_LEAST_S, STEP_SHARE * percentile(steps, 50) if steps else 0.0)


def cost(pair: Pair, first: Sequence[Measured], second: Sequence[Measured]) -> Difference | None:
    """Return what the first side costs beyond the second (beyond nothing, where there is none), seconds."""
    dear = [list(pair.quantity.values(run)) for run in first]
    if pair.second is None:
        return stats.difference([[0.0, 0.0]], dear)
    return stats.difference([list(pair.quantity.values(run)) for run in second], dear)


def graphs_equal(runs: Sequence[Measured]) -> bool | None:
    """Return whether all runs had one and the same graph, None if a run did not say."""
    graphs = {run.graph for run in runs}
    return None if not graphs or "" in graphs else len(graphs) == 1
