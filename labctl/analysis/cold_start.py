"""A GPU's cold start told apart, as far as the record has evidence for it. Pure; times as in `ledger`.

`import_nvml`, `gpu_wake` and `gpu_libraries` are phases of their own. `gpu_context` is what a phase took up to
TensorFlow's line "Created device ... with N MB memory" in it: driver, context, kernels' load and the mapping of
memory, which nothing tells apart. `cublas_start` is taken from what the probe measured of the GPU by itself: handle
and first product. What is left of the first step's set-up stays whole, and is named `setup_and_compile` where
kernels were compiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from labctl.analysis.clock import Clocks
from labctl.analysis.gpus import NodeGpus, node_gpus
from labctl.analysis.ledger import PHASE_GRAPH_SETUP
from labctl.analysis.model import StepTrace
from labctl.node import wire
from labctl.runs.baseline import GpuBaseline
from labctl.runs.data import RunData
from labctl.runs.record import RunRecord, Span

PHASE_GPU_CONTEXT = "gpu_context"
PHASE_CUBLAS = "cublas_start"
PHASE_COMPILE = "setup_and_compile"

# TensorFlow's words that it compiles, in lower case.
JIT_WORDS = (
    "not built with cuda kernel binaries compatible with compute capability",
    "jit-compiled from ptx",
    "cuda_error_invalid_ptx",
    "no kernel image is available",
)
_CREATED = re.compile(r"Created device \S*/device:GPU:\d+ with \d+ MB memory")
# TensorFlow makes its devices with the server; without one, with the session or when they are listed first.
_MAKES_DEVICES = frozenset(
    {wire.PHASE_SERVER, wire.PHASE_SESSION, wire.PHASE_DEVICES, wire.PHASE_FIRST_STEP}
)


def split_context(spans: Sequence[Span], data: RunData, clocks: Clocks, node: str) -> list[Span]:
    """Return phases of a process with the making of its GPU devices told apart.

    Args:
        spans: Of one process.
        data: The run, for its log.
        clocks: The run's clocks.
        node: Where the process ran.
    """
    made_s = [
        clocks.since_origin_s(node, line.unix_s)
        for line in data.log
        if line.node == node and line.unix_s is not None and _CREATED.search(line.text)
    ]
    pieces: list[Span] = []
    for span in spans:
        end_s = span.start_s + span.duration_s
        last_s = max((at_s for at_s in made_s if span.start_s < at_s < end_s), default=None)
        if span.phase not in _MAKES_DEVICES or last_s is None:
            pieces.append(span)
            continue
        took_s = last_s - span.start_s
        pieces += [
            replace(span, phase=PHASE_GPU_CONTEXT, duration_s=took_s, source="log"),
            replace(span, start_s=last_s, duration_s=end_s - last_s),
        ]
    return pieces


def split_setup(spans: Sequence[Span], data: RunData, trace: StepTrace | None) -> list[Span]:
    """Return phases with what a GPU adds to the first step told apart.

    Args:
        spans: The client's, with the first step split.
        data: The run.
        trace: The traced step that stands for the others, None without one.
    """
    if not computes_on_gpus(data.record, trace):
        return list(spans)
    name = PHASE_COMPILE if compiled(data) else PHASE_GRAPH_SETUP
    probe_s = cublas_s(data.record)
    pieces: list[Span] = []
    for span in spans:
        if span.phase != PHASE_GRAPH_SETUP:
            pieces.append(span)
            continue
        known_s = min(span.duration_s, probe_s or 0.0)
        rest_s = span.duration_s - known_s
        pieces.append(replace(span, phase=name, duration_s=rest_s))
        if known_s > 0:
            start_s = span.start_s + rest_s
            pieces.append(Span(PHASE_CUBLAS, span.node, start_s, known_s, "probe"))
    return pieces


def computes_on_gpus(record: RunRecord, trace: StepTrace | None) -> bool:
    """Return whether products ran on GPUs: the trace says so, or placement was strict."""
    if record.parameters.device != "gpu" or record.parameters.experiment != "matpow":
        return False
    if trace is not None:
        return any("GPU" in device for task in trace.tasks for device in task.products)
    return record.parameters.soft_placement is False


def compiled(data: RunData) -> bool:
    """Return whether the driver compiled kernels in a run: its cache grew, or TensorFlow's log says so."""
    grown = (each.grown for each in node_gpus(data))
    return any(each is not None and each.compiled for each in grown) or any(
        word in line.text.lower() for line in data.log for word in JIT_WORDS[:2]
    )


def cublas_s(record: RunRecord) -> float | None:
    """Return what cuBLAS takes to start on a GPU of the run by the probe, the slowest node's, seconds.

    Opening the library is no part of it: a GPU run has opened it before.
    """
    found = [
        each.handle_s + max(0.0, each.first_product_s - each.warm_product_s)
        for each in probes(record)
    ]
    return max(found, default=None)


def probes(record: RunRecord) -> list[GpuBaseline]:
    """Return what the probe measured of the GPU of each task of a run."""
    if record.baseline is None:
        return []
    found = (record.baseline.gpu(node.name) for node in record.nodes)
    return [each for each in found if each is not None]


def of_node(told: Sequence[NodeGpus], node: str) -> NodeGpus | None:
    """Return what a node told of its GPUs, None if it told nothing."""
    return next((each for each in told if each.node == node), None)
