"""Defects of the question's listing, each with what in these runs shows it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labctl.analysis.evidence import (
    LISTING,
    Defect,
    Runs,
    kind_ms,
    median,
    phase_ms,
    result_values,
    warm_ms,
)
from labctl.analysis.explained import Explained
from labctl.node import wire

FUTURE_TOO_LATE = "from zmq import Stopwatch\nfrom __future__ import print_function\n"
_FLOAT32_MAX = 3.4028235e38
_TEXTS = {
    "one-factor-more": "matpow(M, n) returns M at n = 0, so it computes M^(n+1).",
    "future-import-late": "`from __future__` comes after another import: Python refuses the file.",
    "one-shot": "One run of a new process is timed; its start is in the figure.",
    "overflow": "Entries of A^k grow with (L/2)^(k-1): float32 holds L = 1000 only up to n = 14.",
    "inputs-on-cpu": "numpy makes the inputs on the client's CPU, inside the section under test.",
    "fetch-included": "The whole sum is fetched: its way back to Python is part of the figure.",
    "stopwatch-unit": "zmq's Stopwatch counts microseconds; the other figure is h:mm:ss.",
    "server-stays": "server.join() never returns: task:1 and what it holds stay after the run.",
    "graph-built-twice": "Both machines build the graph; on task:1 it is never used.",
    "gpu-held-by-server": "tf.train.Server takes the GPU, also where only the CPU is used.",
}


def defects_of(runs: Runs) -> tuple[Defect, ...]:
    """Return the listing's defects.

    Args:
        runs: Runs that ended ok, by label.
    """
    listing = runs.get(LISTING, ())
    told = {
        "one-factor-more": _factors(listing),
        "future-import-late": _future(),
        "one-shot": _one_shot(listing),
        "overflow": _overflow(listing),
        "inputs-on-cpu": _inputs(listing),
        "fetch-included": _fetch(listing),
        "stopwatch-unit": _unit(listing),
        "server-stays": _stays(listing),
    }
    return tuple(Defect(name, text, told.get(name, "")) for name, text in _TEXTS.items())


def growth_limit(size: int) -> int:
    """Return the largest n that the listing can have: M^(n+1) of uniform entries stays below float32's largest.

    An entry of M^k is about (L/2)^(k-1) / 2.
    """
    return int((math.log(2 * _FLOAT32_MAX)) / math.log(size / 2))


def _factors(runs: Sequence[Explained]) -> str:
    computed, asked = _number(runs, "power_computed"), _asked(runs)
    error = _number(runs, "relative_error")
    if computed is None or asked is None or error is None:
        return ""
    return (
        f"asked for n = {asked}; the result equals A^{computed:.0f} + B^{computed:.0f} in float64 "
        f"(relative error {error:.1e})"
    )


def _future() -> str:
    try:
        compile(FUTURE_TOO_LATE, "listing", "exec")
    except SyntaxError as error:
        return f"Python says: {error.msg}"
    return ""


def _one_shot(runs: Sequence[Explained]) -> str:
    cold, warm = median(kind_ms(runs, "cold")), median(warm_ms(runs))
    if cold is None or warm is None:
        return ""
    return f"first step {cold:.0f} ms, later ones {warm:.0f} ms"


def _overflow(runs: Sequence[Explained]) -> str:
    norm, computed = _number(runs, "norm"), _number(runs, "power_computed")
    size = runs[0].data.record.parameters.size if runs else None
    if norm is None or computed is None or not size or size < 4:
        return ""
    return (
        f"the sum of the powers {computed:.0f} has norm {norm:.1e}, entries near {norm / size:.0e}; by that growth "
        f"n = {growth_limit(size)} is the last that fits"
    )


def _inputs(runs: Sequence[Explained]) -> str:
    inputs = median(phase_ms(runs, wire.PHASE_INPUTS))
    return "" if inputs is None else f"making both takes {inputs:.0f} ms of the section"


def _fetch(runs: Sequence[Explained]) -> str:
    without, warm = median(kind_ms(runs, "no_fetch")), median(warm_ms(runs))
    if without is None or warm is None:
        return ""
    return f"a step takes {warm:.1f} ms with it, {without:.1f} ms without"


def _unit(runs: Sequence[Explained]) -> str:
    section, whole = (
        median(result_values(runs, f"{each}_us")) for each in ("section", "end_to_end")
    )
    if section is None or whole is None:
        return ""
    return f"stopwatch {whole:.0f}, section 0:00:{section / 1e6:09.6f}"


def _stays(runs: Sequence[Explained]) -> str:
    states = [state for run in runs for state in run.data.record.servers_after]
    if not states or any(state.active != "active" for state in states):
        return ""
    nodes = ", ".join(sorted({state.node for state in states}))
    return f"the join server on {nodes} is active after each of {len(runs)} run{'' if len(runs) == 1 else 's'}"


def _number(runs: Sequence[Explained], key: str) -> float | None:
    return median(result_values(runs, key))


def _asked(runs: Sequence[Explained]) -> int | None:
    return runs[0].data.record.parameters.power if runs else None
