"""What several rules on GPUs read: compiled kernels, the cost of a start, clocks and company in the steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    WALL_SHARE,
    first_step_extra_s,
    is_matpow,
    log_line,
    phase_s,
    wall_s,
)
from labctl.analysis.causes.contact import own
from labctl.analysis.cold_start import JIT_WORDS, PHASE_GPU_CONTEXT, cublas_s
from labctl.analysis.gpus import CacheGrowth, GpuFacts, GpuUse, NodeGpus, node_gpus
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.data import LogLine
    from labctl.runs.gpus import GpuState

CACHE_OFF = "CUDA_CACHE_DISABLE"
# A compilation that leaves nothing in the cache is one if the first step took this much more than a later one: what
# connection, placement and cuBLAS take is far below (0.3 to 0.5 s were measured on CPUs).
UNKEPT_S = 5.0
_SLACK_S = wire.USAGE_PERIOD_S + 0.1


@dataclass(frozen=True, slots=True)
class Compilation:
    """What is known of kernels that the driver compiled.

    Attributes:
        grown: Node and growth of each kernel cache that was read before and after.
        words: TensorFlow's line that kernels will be compiled, None without one.
        predicted: Nodes whose wheel has no code for their GPU, by the check before the run.
        known: Nodes of which that check said anything.
        off: The cache was switched off for the client.
        in_server_s: What the phase took at most in which the client's server was built, if its cache grew there.
        in_step_s: What the first step took beyond a later one and beyond cuBLAS's start, if kernels were compiled
            in it; None where that is not known.
    """

    grown: tuple[tuple[str, CacheGrowth], ...]
    words: LogLine | None
    predicted: tuple[str, ...]
    known: tuple[str, ...]
    off: bool
    in_server_s: float | None
    in_step_s: float | None

    @property
    def kept(self) -> bool:
        """Whether a cache grew."""
        return any(growth.compiled for _, growth in self.grown)

    @property
    def unkept(self) -> bool:
        """Whether kernels were compiled and left nothing: a long first step that log or wheel foretold."""
        foretold = self.words is not None or bool(self.predicted)
        looked = bool(self.grown) or self.off
        return foretold and looked and not self.kept and (self.in_step_s or 0.0) >= UNKEPT_S

    @property
    def seconds(self) -> float | None:
        """What it cost at most, None where that cannot be told."""
        parts = [each for each in (self.in_server_s, self.in_step_s) if each is not None]
        return sum(parts) if parts else None


def compilation(run: Explained) -> Compilation:
    """Return what is known of kernels that the driver compiled in a run."""
    told = node_gpus(run.data)
    client = run.data.record.remote.node
    grown = tuple((each.node, growth) for each in told if (growth := each.grown) is not None)
    mine = next((each for each in told if each.node == client), None)
    early = None if mine is None else mine.grown_in("begin", "server")
    late = None if mine is None else mine.grown_in("server", "end")
    others = any(growth.compiled for node, growth in grown if node != client)
    in_server = early is not None and early.compiled
    in_step = (late is not None and late.compiled) or others or not in_server
    extra_s = first_step_extra_s(run)
    if extra_s is not None:
        extra_s = max(0.0, extra_s - (cublas_s(run.data.record) or 0.0))
    states = [node for node in run.data.record.nodes if node.cuda is not None]
    return Compilation(
        grown=grown,
        words=log_line(run, *JIT_WORDS),
        predicted=tuple(each.name for each in states if each.cuda and each.cuda.compiles),
        known=tuple(each.name for each in states if each.cuda and each.cuda.compiles is not None),
        off=client_variable(run, CACHE_OFF) not in {None, "", "0"},
        in_server_s=context_s(run) if in_server else None,
        in_step_s=extra_s if in_step else None,
    )


def compiles_much(run: Explained) -> bool:
    """Return whether compilation is what the first step's extra time went into."""
    found = compilation(run)
    wall, seconds = wall_s(run), found.in_step_s
    if not (found.kept or found.unkept) or wall is None or seconds is None:
        return False
    return seconds >= WALL_SHARE * wall


def context_s(run: Explained) -> float | None:
    """Return what the client's GPU devices took to make, seconds: by TensorFlow's stamp, else the phase."""
    known = phase_s(run, PHASE_GPU_CONTEXT)
    return phase_s(run, wire.PHASE_SERVER) if known is None else known


def made_device(run: Explained) -> bool:
    """Return whether the client made a GPU device: TensorFlow's log or the traced step says so."""
    if (
        phase_s(run, PHASE_GPU_CONTEXT) is not None
        or log_line(run, "device:gpu:0 with") is not None
    ):
        return True
    tasks = run.trace.tasks if run.trace is not None else ()
    return any("GPU" in device.upper() for task in tasks for device in task.products)


def client_variable(run: Explained, name: str) -> str | None:
    """Return the value of a variable that the client had, "?" where only its name is known, None without it."""
    for event in own(run):
        environment = event.data.get("environment") if event.kind == wire.HELLO else None
        if isinstance(environment, dict) and name in environment:
            value = environment[name]
            return value if isinstance(value, str) else "?"
    return "?" if name in run.data.record.parameters.environment else None


def devices(run: Explained) -> dict[str, tuple[GpuState | GpuFacts, ...]]:
    """Return each node's GPUs as they were before the run, or as NVML told its process; nodes without left out."""
    told = {each.node: each.devices for each in node_gpus(run.data)}
    found: dict[str, tuple[GpuState | GpuFacts, ...]] = {}
    for node in run.data.record.nodes:
        known: tuple[GpuState | GpuFacts, ...] = node.gpus or told.get(node.name, ())
        if known:
            found[node.name] = known
    return found


def uses_in_steps(run: Explained) -> dict[str, list[GpuUse]]:
    """Return each node's readings of its GPUs while steps, or a script, ran; nodes without any left out."""
    return _between(run, *_bounds(run))


def uses_before(run: Explained) -> dict[str, list[GpuUse]]:
    """Return the client's readings of its GPUs before it made a device of its own: what others did with them."""
    begin = next(
        (
            event.t_s
            for event in own(run)
            if event.kind == wire.PHASE_BEGIN and event.text("phase") == wire.PHASE_SERVER
        ),
        None,
    )
    if begin is None:
        return {}
    record = run.data.record
    at_s = record.since_origin_s(record.remote.node, begin)
    found = _between(run, 0.0, at_s - _SLACK_S)
    return {node: uses for node, uses in found.items() if node == record.remote.node}


def highest_clock(told: Sequence[GpuState | GpuFacts], index: int) -> float | None:
    """Return the highest clock that a GPU can have, MHz."""
    return next((each.sm_clock_max_mhz for each in told if each.index == index), None)


def lost_share(uses: Sequence[GpuUse], told: Sequence[GpuState | GpuFacts]) -> float:
    """Return the part of its highest clock that a GPU that was held down lacked, mean over readings, 0 to 1."""
    lost = 0.0
    for use in uses:
        highest = highest_clock(told, use.index)
        if use.held_down and highest and use.sm_clock_mhz is not None:
            lost += max(0.0, 1 - use.sm_clock_mhz / highest)
    return lost / len(uses) if uses else 0.0


def errors(run: Explained) -> dict[str, str]:
    """Return what NVML said on each node on which it did not answer."""
    return {each.node: each.error for each in node_gpus(run.data) if each.error}


def missing_libraries(run: Explained) -> dict[str, list[str]]:
    """Return the CUDA libraries that could not be opened, by node: in the run, else by the check before it."""
    found: dict[str, list[str]] = {
        node.name: list(node.cuda.missing)
        for node in run.data.record.nodes
        if node.cuda is not None and node.cuda.missing
    }
    for each in node_gpus(run.data):
        if each.libraries:
            found[each.node] = [library.name for library in each.libraries if library.error]
    return {node: names for node, names in found.items() if names}


def by_index(uses: Sequence[GpuUse]) -> Mapping[int, list[GpuUse]]:
    """Return readings by device."""
    found: dict[int, list[GpuUse]] = {}
    for use in uses:
        found.setdefault(use.index, []).append(use)
    return found


def _bounds(run: Explained) -> tuple[float, float]:
    """Return when steps, or a script, began and ended, seconds after the origin; an empty interval without."""
    record = run.data.record
    phases = (
        {wire.PHASE_WARM_STEPS, wire.PHASE_TRACED_STEP, wire.PHASE_PROBES}
        if is_matpow(run)
        else {wire.PHASE_SCRIPT}
    )
    times = [
        record.since_origin_s(record.remote.node, event.t_s)
        for event in own(run)
        if event.kind in {wire.PHASE_BEGIN, wire.PHASE_END} and event.text("phase") in phases
    ]
    return (min(times), max(times)) if len(times) > 1 else (0.0, -1.0)


def _between(run: Explained, begin_s: float, end_s: float) -> dict[str, list[GpuUse]]:
    found: dict[str, list[GpuUse]] = {}
    if end_s < begin_s:
        return found
    record = run.data.record
    told: tuple[NodeGpus, ...] = node_gpus(run.data)
    for each, use in chain.from_iterable(((each, use) for use in each.use) for each in told):
        if begin_s <= record.since_origin_s(each.node, use.unix_s) <= end_s + _SLACK_S:
            found.setdefault(each.node, []).append(use)
    return found
