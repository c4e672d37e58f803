"""Rules on what a GPU costs by itself: its driver's and its context's start, cuBLAS, clocks, company. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes import gpu_compile
from labctl.analysis.causes.common import (
    WALL_SHARE,
    Cause,
    gpu_asked,
    log_line,
    matters,
    part_text,
    phase_s,
    quoted,
    time_text,
    wall_s,
    warm_s,
)
from labctl.analysis.causes.contact import is_open, not_reached
from labctl.analysis.causes.device import NOT_ASKED, OF_SCRIPT
from labctl.analysis.causes.gpu_signals import (
    by_index,
    compilation,
    context_s,
    devices,
    lost_share,
    made_device,
    uses_before,
    uses_in_steps,
)
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.cold_start import PHASE_GPU_CONTEXT, cublas_s, probes
from labctl.analysis.gpus import GpuUse, node_gpus
from labctl.analysis.split import COMPUTE
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

NO_PERSISTENCE = Cause(
    "no-persistence", "once", "The driver sets the GPU up anew for each process", "A"
)
CONTEXT = Cause("cuda-context", "once", "CUDA's context and the load of TensorFlow's kernels", "B")
CUBLAS = Cause("cublas-load", "once", "cuBLAS is loaded by the first product", "C")
THROTTLED = Cause("gpu-throttled", "step", "The GPU runs below its clock", "A")
SHARED = Cause("gpu-shared", "step", "Another process computes on the GPU", "C")

# NVIDIA states 1 to 3 s for each GPU with ECC (driver persistence documentation): less is no sleeping driver.
WAKE_S = 1.0
# A GPU on which nothing of the run is yet, and that is busy for more than this, has company.
BUSY_PERCENT = 10.0
# Products this far below what the probe reached alone are slowed down by somebody.
_SLOW = 0.75

_CUBLAS_WORDS = ("failed to create cublas handle", "opened dynamic library libcublas")
_CUDA_MODULES = "CUDA_MODULE_LOADING"


def _no_persistence(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return NO_PERSISTENCE.not_measured(*_not_here(run))
    told = devices(run)
    off = {
        node: sum(1 for each in gpus if each.persistence is False) for node, gpus in told.items()
    }
    known = sum(1 for gpus in told.values() for each in gpus if each.persistence is not None)
    if not known:
        return NO_PERSISTENCE.not_measured(
            "persistence mode is not in the record",
            "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader, on a GPU that has been idle",
        )
    if not any(off.values()):
        return NO_PERSISTENCE.ruled_out(f"persistence mode is on, on all of {known} GPUs")
    where = ", ".join(f"{count} GPUs of {node}" for node, count in off.items() if count)
    lines = [f"persistence mode is off on {where}"]
    wakes: list[float] = []
    client, woke_s = run.data.record.remote.node, phase_s(run, wire.PHASE_GPU_WAKE)
    if woke_s is not None and off.get(client):
        wakes.append(woke_s)
        each_s = woke_s / off[client]
        lines.append(
            f"the driver of {client} took {time_text(woke_s)} to answer, {time_text(each_s)} for each GPU"
        )
    for node in run.data.record.nodes:
        first = max((gpu.woke_s for gpu in node.gpus if gpu.woke_s is not None), default=None)
        if first is not None and off.get(node.name):
            wakes.append(first)
            lines.append(
                f"the first nvidia-smi before the run took {time_text(first)} more than a second one on {node.name}"
            )
    if not wakes:
        return NO_PERSISTENCE.not_measured(
            f"{lines[0]}, and nothing tells how long the driver took to wake",
            "time nvidia-smi twice on a GPU that has been idle",
        )
    if max(wakes) < WAKE_S:
        return NO_PERSISTENCE.ruled_out(
            f"the driver woke in {time_text(max(wakes))}, below {WAKE_S:g} s", *lines
        )
    return NO_PERSISTENCE.found(
        max(wakes),
        lines,
        remedy="labctl provision starts nvidia-persistenced; nvidia-smi -pm 1 until the next boot",
    )


def _context(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return CONTEXT.not_measured(*_not_here(run))
    seconds, wall = context_s(run), wall_s(run)
    stamped = phase_s(run, PHASE_GPU_CONTEXT) is not None
    line = log_line(run, "device:gpu:0 with")
    if seconds is None or wall is None or not made_device(run):
        return CONTEXT.not_measured(
            "no GPU device was made in this run", "a run in which TensorFlow finds its GPU"
        )
    told = part_text(seconds, wall)
    found = compilation(run)
    if found.in_server_s is not None and found.kept:
        return CONTEXT.ruled_out(
            f"the client's devices took {told}, counted in {gpu_compile.PTX_JIT.name}"
        )
    alone = [
        f"the probe alone took {time_text(each.wake_s + each.context_s)} for driver and context on {each.node}"
        for each in probes(run.data.record)
        if each.node == run.data.record.remote.node
    ]
    if seconds < WALL_SHARE * wall:
        return CONTEXT.ruled_out(f"the client's devices took {told}", *alone)
    what = "TensorFlow's stamp of its device" if stamped else "the whole phase of the server"
    return CONTEXT.found(
        seconds,
        [
            f"the client's server and its devices took {told}",
            f"this is up to {what}: what of it is context, kernels and memory is not told apart",
            *([quoted(line)] if line else []),
            *alone,
        ],
        remedy=f"one GPU (CUDA_VISIBLE_DEVICES=0), {_CUDA_MODULES}=LAZY, servers that stay",
        confidence="medium",
    )


def _cublas(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return CUBLAS.not_measured(*_not_here(run))
    line = log_line(run, *_CUBLAS_WORDS)
    if line is not None and "failed" in line.text.lower():
        return CUBLAS.found(
            None, [quoted(line)], remedy="free the GPU's memory, or TF_FORCE_GPU_ALLOW_GROWTH=true"
        )
    opened, probe_s, wall = (
        phase_s(run, wire.PHASE_GPU_LIBRARIES),
        cublas_s(run.data.record),
        wall_s(run),
    )
    if opened is None or wall is None:
        return CUBLAS.not_measured(
            "the first step is not traced, so its first product has no time of its own",
            "nsys profile of the client, or the first product's time in a script of your own",
        )
    if probe_s is None and opened < WALL_SHARE * wall:
        return CUBLAS.not_measured(
            f"opening CUDA's libraries took {part_text(opened, wall)}; handle and first product are part of the "
            "first step, and the GPU was not measured by itself",
            "labctl check --gpu-probe, then run it again",
        )
    seconds = opened + (probe_s or 0.0)
    lines = [f"opening CUDA's libraries took {time_text(opened)}", *_slowest_library(run)]
    if probe_s is not None:
        lines.append(
            f"handle and first product take {time_text(probe_s)} by the probe (an estimate)"
        )
    if seconds < WALL_SHARE * wall:
        return CUBLAS.ruled_out(part_text(seconds, wall), *lines)
    return CUBLAS.found(
        seconds,
        [part_text(seconds, wall), *lines],
        remedy="a warm-up step; libraries on a fast disk: the second start finds them in memory",
        confidence="medium",
    )


def _slowest_library(run: Explained) -> list[str]:
    mine = next((e for e in node_gpus(run.data) if e.node == run.data.record.remote.node), None)
    timed = (
        [(each.duration_s, each.name) for each in mine.libraries if each.duration_s] if mine else []
    )
    return [f"the slowest was {max(timed)[1]}: {time_text(max(timed)[0])}"] if timed else []


def _throttled(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return THROTTLED.not_measured(*_not_here(run))
    uses, told = uses_in_steps(run), devices(run)
    known = {node: [use for use in own if use.throttle is not None] for node, own in uses.items()}
    if not any(known.values()):
        return THROTTLED.not_measured(*_no_reading(run, "the GPU's clocks during the steps"))
    readings = sum(len(each) for each in known.values())
    held = {
        node: sorted({reason for use in own for reason in use.held_down})
        for node, own in known.items()
    }
    if not any(held.values()):
        return THROTTLED.ruled_out(
            f"nothing held clocks down in {readings} readings while steps ran"
        )
    node = max(known, key=lambda name: lost_share(known[name], told.get(name, ())))
    lost = lost_share(known[node], told.get(node, ()))
    reasons = ", ".join(held[node] or next(each for each in held.values() if each))
    lines = [_clock_line(name, own, held[name]) for name, own in known.items() if held[name]]
    step = warm_s(run)
    if step is None:
        return THROTTLED.found(
            None,
            lines,
            remedy=_COOL,
            confidence="low",
            title=f"The GPU of {node} is held down: {reasons}",
        )
    computes_s = _compute_s(run)
    seconds = lost * (step if computes_s is None else min(step, computes_s))
    if not matters(seconds, step):
        return THROTTLED.ruled_out(f"{part_text(seconds, step)} at most", *lines)
    bound = "what computes of it" if computes_s is not None else "the whole step"
    return THROTTLED.found(
        seconds,
        [
            *lines,
            f"{lost:.0%} of its highest clock is missing in the mean: at most that part of {bound}",
        ],
        remedy=_COOL,
        confidence="medium",
        title=f"The GPU of {node} is held down: {reasons}",
    )


_COOL = (
    "cool it, raise its power limit (nvidia-smi -pl), or take a machine whose GPU is not held down"
)


def _clock_line(node: str, uses: list[GpuUse], reasons: list[str]) -> str:
    held = sum(1 for use in uses if use.held_down)
    clocks = [use.sm_clock_mhz for use in uses if use.sm_clock_mhz is not None]
    hot = [use.temperature_c for use in uses if use.temperature_c is not None]
    parts = [f"{node}: {', '.join(reasons)} in {held} of {len(uses)} readings"]
    if clocks:
        parts.append(f"clock {min(clocks):.0f} to {max(clocks):.0f} MHz")
    if hot:
        parts.append(f"up to {max(hot):.0f} °C")
    return ", ".join(parts)


def _compute_s(run: Explained) -> float | None:
    """Return what computes on the path of a warm step, seconds; None without a trace of when it did."""
    if run.split is None or (run.trace is not None and any(t.queued_only for t in run.trace.tasks)):
        return None
    return sum(row.seconds for row in run.split.rows if row.what == COMPUTE)


def _shared(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return SHARED.not_measured(*_not_here(run))
    uses, before = uses_in_steps(run), uses_before(run)
    listed = [use for own in uses.values() for use in own if use.others is not None]
    early = [
        (use.utilisation_percent, node)
        for node, own in before.items()
        for use in own
        if use.utilisation_percent is not None
    ]
    if not listed:
        return SHARED.not_measured(*_no_reading(run, "the GPU's other processes during the steps"))
    lines = [line for node, own in uses.items() for line in _company(node, own)]
    if early:
        lines.append(
            f"the GPU of {max(early)[1]} was busy for up to {max(early)[0]:.0f} % before this run used it"
        )
    if not any(use.others for use in listed):
        return SHARED.ruled_out(f"0 processes of others in {len(listed)} readings", *lines)
    slowed = _slowed(run)
    if slowed is not None:
        ratio, line = slowed
        if ratio >= _SLOW:
            return SHARED.ruled_out(line, *lines)
        seconds = (_compute_s(run) or 0.0) * (1 - ratio)
        return SHARED.found(seconds or None, [line, *lines], remedy=_ALONE, confidence="medium")
    if early and max(early)[0] >= BUSY_PERCENT:
        return SHARED.found(None, lines, remedy=_ALONE, confidence="medium")
    if early:
        return SHARED.ruled_out(
            f"the GPU was idle ({max(early)[0]:.0f} % busy) before the run",
            *lines,
            confidence="medium",
        )
    return SHARED.not_measured(
        f"{lines[0]}; whether they compute is not known",
        "labctl check --gpu-probe on an idle lab, then a traced run",
    )


_ALONE = "a GPU of the run's own: end the others, or CUDA_VISIBLE_DEVICES with a free one"


def _company(node: str, uses: list[GpuUse]) -> list[str]:
    """Return who else was on a node's GPUs, as evidence."""
    lines = []
    for index, own in by_index(uses).items():
        seen: dict[int, list[float | None]] = {}
        for use in own:
            for pid, held in (use.others or {}).items():
                seen.setdefault(pid, []).append(held)
        for pid, held_bytes in sorted(seen.items()):
            known = [each for each in held_bytes if each is not None]
            size = f", holding {max(known) / 1e6:.0f} MB" if known else ""
            lines.append(
                f"process {pid} was on GPU {index} of {node} in {len(held_bytes)} of {len(own)} readings{size}"
            )
    return lines


def _slowed(run: Explained) -> tuple[float, str] | None:
    """Return the least part of its probe's rate that a task's products reached, and that as evidence."""
    if run.trace is None:
        return None
    alone = {each.node: each.gflops for each in probes(run.data.record) if each.gflops > 0}
    reached = [
        (task.gflops / alone[task.node], task)
        for task in run.trace.tasks
        if task.gflops is not None and task.node in alone
    ]
    if not reached:
        return None
    ratio, task = min(reached, key=lambda each: each[0])
    return ratio, (
        f"products on {task.node} ran at {task.gflops:.0f} GFLOP/s, {ratio:.0%} of the {alone[task.node]:.0f} "
        "that the probe reached"
    )


def _no_reading(run: Explained, what: str) -> tuple[str, str]:
    if is_open(run):
        return not_reached(run, "its end")
    if any(each.use for each in node_gpus(run.data)):
        return (
            f"{what} are not known: no reading of NVML fell into them",
            "the same run with a larger --repeat",
        )
    why = "; ".join(f"{each.node}: {each.error}" for each in node_gpus(run.data) if each.error)
    return (
        f"{what} are not in the record{': ' if why else ''}{why}",
        "nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,clocks_event_reasons.active --format=csv while steps run",
    )


def _not_here(run: Explained) -> tuple[str, str]:
    return NOT_ASKED if gpu_asked(run) is False else OF_SCRIPT


RULES: tuple[Rule, ...] = (
    *gpu_compile.RULES,
    NO_PERSISTENCE.rule(_no_persistence),
    CONTEXT.rule(_context),
    CUBLAS.rule(_cublas),
    THROTTLED.rule(_throttled),
    SHARED.rule(_shared),
)
