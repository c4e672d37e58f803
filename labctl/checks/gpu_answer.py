"""The answer of the GPU probe, checked before anything believes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from labctl.checks.reader import FactsError, Reader, plain
from labctl.runs.baseline import GpuBaseline
from labctl.runs.codec import decode

_NEEDED = frozenset(field.name for field in fields(GpuBaseline) if field.default is MISSING)
_KNOWN = frozenset(field.name for field in fields(GpuBaseline))


@dataclass(frozen=True, slots=True)
class GpuProblem:
    """What kept a GPU from being measured, or from being measured to the end.

    Attributes:
        index: The GPU's number in CUDA's order.
        found: What was found.
        expected: What was expected.
        do: What helps.
    """

    index: int
    found: str
    expected: str
    do: str


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """What a node's GPU probe found.

    Attributes:
        gpus: Those that were measured to the end of what a baseline needs.
        problems: Of these or of others.
        missing: Why there is no GPU to measure, None if there is one.
    """

    gpus: tuple[GpuBaseline, ...]
    problems: tuple[GpuProblem, ...]
    missing: str | None


def gpu_answer(data: object, node: str, at_unix_s: float) -> GpuAnswer:
    """Return what a GPU probe answered.

    Args:
        data: Its answer.
        node: Name of its node.
        at_unix_s: When, Unix time on labctl's clock.

    Raises:
        FactsError: It is not such an answer.
    """
    top = Reader(data)
    gpus = top.each("gpus", lambda each: _gpu(each, node, at_unix_s))
    problems = top.each("errors", _problem)
    return GpuAnswer(
        tuple(each for each in gpus if each is not None), problems, top.text_or_none("missing")
    )


def _problem(each: Reader) -> GpuProblem:
    limit = 600
    texts = (each.text(key, limit=limit) for key in ("found", "expected", "do"))
    return GpuProblem(each.whole("gpu"), *texts)


def _gpu(each: Reader, node: str, at_unix_s: float) -> GpuBaseline | None:
    """Return a GPU's figures, None where the probe did not come to the last that are needed."""
    told: Mapping[str, Any] = {name: each.value(name) for name in each.names()}
    figures = {
        name: plain(value) if isinstance(value, str) else value
        for name, value in told.items()
        if name in _KNOWN and value is not None
    } | {"node": node, "at_unix_s": at_unix_s}
    if not set(figures) >= _NEEDED - {"h2d_pageable_bytes_per_s"}:
        return None
    figures.setdefault("h2d_pageable_bytes_per_s", None)
    try:
        return decode(GpuBaseline, figures, "gpus")
    except ValueError as error:
        raise FactsError(str(error)) from error
