"""Rules on what a GPU costs by itself: compilation, its driver's and its context's start, clocks, company. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    WALL_SHARE,
    Cause,
    first_step_extra_s,
    gpu_asked,
    log_line,
    part_text,
    phase_s,
    quoted,
    time_text,
    wall_s,
)
from labctl.analysis.causes.device import NOT_ASKED, by_words, products_on, silent
from labctl.analysis.causes.model import Rule, Verdict
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

PTX_JIT = Cause("ptx-jit", "once", "The driver compiles TensorFlow's kernels for this GPU", "A")
CACHE_LOST = Cause(
    "jit-cache-lost", "once", "Compiled kernels are not kept: each process compiles them again", "B"
)
NO_PERSISTENCE = Cause(
    "no-persistence", "once", "The driver sets the GPU up anew for each process", "A"
)
CONTEXT = Cause("cuda-context", "once", "CUDA's context and the load of TensorFlow's kernels", "B")
CUBLAS = Cause("cublas-load", "once", "cuBLAS is loaded by the first product", "C")
THROTTLED = Cause("gpu-throttled", "step", "The GPU runs below its clock", "A")
SHARED = Cause("gpu-shared", "step", "Another process computes on the GPU", "C")

JIT_WORDS = (
    "not built with cuda kernel binaries compatible with compute capability",
    "jit-compiled from ptx",
    "cuda_error_invalid_ptx",
    "no kernel image is available",
)
_CACHE_VARIABLES = ("CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE")
_CONTEXT_WORDS = ("device:gpu:0 with",)
_CUBLAS_WORDS = ("failed to create cublas handle", "opened dynamic library libcublas")
_CUDA_MODULES = "CUDA_MODULE_LOADING"


def _ptx_jit(run: Explained) -> Verdict:
    said = by_words(
        run,
        PTX_JIT,
        JIT_WORDS,
        "a TensorFlow built for this GPU (docs/causes.md), or a warm-up and CUDA_CACHE_PATH on a disk that stays",
    )
    if said is None:
        return silent(run, PTX_JIT) if gpu_asked(run) else PTX_JIT.not_measured(*_of_script())
    if said.status != "found":
        return said
    extra = first_step_extra_s(run)
    seconds = extra if extra is not None and extra > 0 else None
    told = (
        []
        if seconds is None
        else [f"the first step took {time_text(seconds)} more than a later one"]
    )
    return PTX_JIT.found(seconds, [*said.evidence, *told], remedy=said.remedy, confidence="medium")


def _cache_lost(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return CACHE_LOST.not_measured(*_not_here(run))
    line = log_line(run, *JIT_WORDS)
    if line is None:
        return CACHE_LOST.ruled_out(
            "0 log lines say that anything was compiled", confidence="medium"
        )
    names = [name for name in run.data.record.parameters.environment if name in _CACHE_VARIABLES]
    if "CUDA_CACHE_DISABLE" in names:
        return CACHE_LOST.found(
            None,
            [quoted(line), "CUDA_CACHE_DISABLE is set for the client"],
            remedy="unset CUDA_CACHE_DISABLE",
        )
    return CACHE_LOST.not_measured(
        "files and bytes of the cache before and after the run are not in the record",
        "find ${CUDA_CACHE_PATH:-~/.nv/ComputeCache} -type f | wc -l on the node, before and after",
    )


def _no_persistence(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return NO_PERSISTENCE.not_measured(*_not_here(run))
    return NO_PERSISTENCE.not_measured(
        "persistence mode is not in the record",
        "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader, on a GPU that has been idle",
    )


def _context(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return CONTEXT.not_measured(*_not_here(run))
    seconds, wall = phase_s(run, wire.PHASE_SERVER), wall_s(run)
    line = log_line(run, *_CONTEXT_WORDS)
    if seconds is None or wall is None or (line is None and not products_on(run).get("GPU")):
        return CONTEXT.not_measured(
            "no GPU device was made in this run", "a run in which TensorFlow finds its GPU"
        )
    told = part_text(seconds, wall)
    if seconds < WALL_SHARE * wall:
        return CONTEXT.ruled_out(f"the client's devices took {told}")
    return CONTEXT.found(
        seconds,
        [f"the client's server and its devices took {told}", *([quoted(line)] if line else [])],
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
    return CUBLAS.not_measured(
        "the first step is not traced, so its first product has no time of its own",
        "nsys profile of the client, or the first product's time in a script of your own",
    )


def _throttled(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return THROTTLED.not_measured(*_not_here(run))
    return THROTTLED.not_measured(
        "the GPU's clocks during the run are not in the record",
        "nvidia-smi --query-gpu=clocks.sm,clocks.max.sm,clocks_event_reasons.active --format=csv "
        "while steps run",
    )


def _shared(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return SHARED.not_measured(*_not_here(run))
    return SHARED.not_measured(
        "the GPU's other processes are not in the record",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv while steps run",
    )


def _not_here(run: Explained) -> tuple[str, str]:
    return NOT_ASKED if gpu_asked(run) is False else _of_script()


def _of_script() -> tuple[str, str]:
    return "a script does not say whether it asks for a GPU", "labctl run --gpu SCRIPT"


RULES: tuple[Rule, ...] = (
    PTX_JIT.rule(_ptx_jit),
    CACHE_LOST.rule(_cache_lost),
    NO_PERSISTENCE.rule(_no_persistence),
    CONTEXT.rule(_context),
    CUBLAS.rule(_cublas),
    THROTTLED.rule(_throttled),
    SHARED.rule(_shared),
)
