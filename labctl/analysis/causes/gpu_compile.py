"""Rules on kernels that the driver compiles for a GPU, and on the cache that keeps them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    WALL_SHARE,
    Cause,
    gpu_asked,
    part_text,
    quoted,
    time_text,
    wall_s,
)
from labctl.analysis.causes.device import NOT_ASKED, OF_SCRIPT, by_words, silent
from labctl.analysis.causes.gpu_signals import CACHE_OFF, Compilation, compilation
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.cold_start import JIT_WORDS

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

PTX_JIT = Cause("ptx-jit", "once", "The driver compiles TensorFlow's kernels for this GPU", "A")
CACHE_LOST = Cause(
    "jit-cache-lost", "once", "Compiled kernels are not kept: each process compiles them again", "B"
)

# The bound of the cache counts as reached from here on.
_FULL = 0.9
_REMEDY = "a TensorFlow built for this GPU (docs/causes.md), or a warm-up and CUDA_CACHE_PATH on a disk that stays"


def _ptx_jit(run: Explained) -> Verdict:
    if not gpu_asked(run):
        said = by_words(run, PTX_JIT, JIT_WORDS, _REMEDY)
        return PTX_JIT.not_measured(*OF_SCRIPT) if said is None else said
    found = compilation(run)
    if found.kept or found.unkept:
        return _compiled(run, found)
    if found.grown and not found.off:
        return PTX_JIT.ruled_out(*_lines(found))
    said = by_words(run, PTX_JIT, JIT_WORDS, _REMEDY)
    if said is None:
        return _not_compiled(run, found)
    if said.status != "found":
        return said
    seconds = found.in_step_s or None
    told = [] if seconds is None else [f"it took {time_text(seconds)} at most: {_where(found)}"]
    return PTX_JIT.found(seconds, [*said.evidence, *told], remedy=said.remedy, confidence="medium")


def _compiled(run: Explained, found: Compilation) -> Verdict:
    """Return what a compilation cost, at most."""
    evidence, seconds, wall = _lines(found), found.seconds, wall_s(run)
    if seconds is not None:
        evidence.append(f"it took {time_text(seconds)} at most: {_where(found)}")
        if wall is not None and seconds < WALL_SHARE * wall:
            return PTX_JIT.ruled_out(f"{part_text(seconds, wall)} at most", *evidence)
    sure = found.kept and (found.words is not None or bool(found.predicted))
    return PTX_JIT.found(seconds, evidence, remedy=_REMEDY, confidence="high" if sure else "medium")


def _not_compiled(run: Explained, found: Compilation) -> Verdict:
    """Return what the absence of words and of readings of the cache says."""
    if found.off:
        return PTX_JIT.not_measured(
            f"{CACHE_OFF} is set: a compilation leaves no trace",
            f"the same run without {CACHE_OFF}",
        )
    if found.known and not found.predicted:
        count = len(found.known)
        return PTX_JIT.ruled_out(
            f"the wheel has code for the GPUs of {count} nodes: {', '.join(found.known)}"
        )
    return silent(run, PTX_JIT)


def _lines(found: Compilation) -> list[str]:
    """Return what says that kernels were compiled, or that none were, the caches first."""
    lines = [
        f"the kernel cache of {node} grew by {growth.files} files, {growth.size_bytes / 1e6:.1f} MB "
        f"(before: {growth.files_before} files, {growth.bytes_before / 1e6:.1f} MB), {growth.path}"
        for node, growth in found.grown
    ]
    if found.words is not None:
        lines.append(quoted(found.words))
    if found.predicted:
        lines.append(f"the wheel has no code for the GPU of {', '.join(found.predicted)}")
    return lines


def _where(found: Compilation) -> str:
    """Return in which part of a run kernels were compiled, in words."""
    parts = [
        *(["the making of the devices"] if found.in_server_s is not None else []),
        *(["the first step less a later one"] if found.in_step_s is not None else []),
    ]
    return " and ".join(parts)


def _cache_lost(run: Explained) -> Verdict:
    if not gpu_asked(run):
        return CACHE_LOST.not_measured(*(NOT_ASKED if gpu_asked(run) is False else OF_SCRIPT))
    found = compilation(run)
    compiles = found.kept or found.unkept or found.words is not None
    if found.off and (compiles or found.predicted):
        return CACHE_LOST.found(
            found.in_step_s or None,
            [f"{CACHE_OFF} is set for the client", *_lines(found)],
            remedy=f"unset {CACHE_OFF}",
            confidence="high" if compiles else "medium",
        )
    if found.unkept:
        return CACHE_LOST.found(
            found.in_step_s,
            [*_lines(found), "kernels were compiled and nothing was kept"],
            remedy="CUDA_CACHE_PATH on a disk that stays and that the unit's user may write",
            confidence="medium",
        )
    if found.grown:
        return _full(run, found) or _kept(run, found)
    if not compiles:
        return CACHE_LOST.ruled_out(
            "0 log lines say that anything was compiled", confidence="medium"
        )
    return CACHE_LOST.not_measured(
        "files and bytes of the cache before and after the run are not in the record",
        "find ${CUDA_CACHE_PATH:-~/.nv/ComputeCache} -type f | wc -l on the node, before and after",
    )


def _kept(run: Explained, found: Compilation) -> Verdict:
    """Return whether a cache that keeps what is compiled had kernels already when many were compiled."""
    lines, seconds, wall = _lines(found), found.seconds, wall_s(run)
    had = [node for node, growth in found.grown if growth.compiled and growth.files_before > 0]
    if had and seconds is not None and wall is not None and seconds >= WALL_SHARE * wall:
        return CACHE_LOST.found(
            seconds,
            [*lines, f"{', '.join(had)} had compiled kernels already"],
            remedy="run it once more: what compiles again although driver and TensorFlow stayed is lost",
            confidence="low",
        )
    return CACHE_LOST.ruled_out(*lines)


def _full(run: Explained, found: Compilation) -> Verdict | None:
    """Return that a cache was at its bound when kernels were compiled, None if none was."""
    for node in run.data.record.nodes:
        growth = next((each for name, each in found.grown if name == node.name), None)
        most = None if node.cuda is None else node.cuda.cache_max_bytes
        if growth is None or not most or not (growth.compiled or growth.files < 0):
            continue
        has = growth.bytes_before + growth.size_bytes
        if has >= _FULL * most:
            return CACHE_LOST.found(
                found.seconds,
                [
                    *_lines(found),
                    f"the cache of {node.name} holds {has / 1e6:.0f} of at most {most / 1e6:.0f} MB",
                ],
                remedy="a larger cuda_cache_max_bytes in the inventory, then labctl provision",
            )
    return None


RULES: tuple[Rule, ...] = (PTX_JIT.rule(_ptx_jit), CACHE_LOST.rule(_cache_lost))
