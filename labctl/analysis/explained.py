"""A run with all that the analysis can say of it: made once, read by every rule and every view."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.analysis.ledger import Ledger, NodeLedger
from labctl.analysis.model import ClockLine, StepSplit, StepTrace, TracingCost
from labctl.analysis.steps import Step, StepStats
from labctl.runs.data import RunData


@dataclass(frozen=True, slots=True)
class Explained:
    """A run and its analysis.

    Attributes:
        data: What the record holds.
        clocks: By node, labctl's own left out.
        steps: Every step, extra ones included.
        stats: Of cold and warm ones.
        ledger: Rows that add up to the wall time.
        nodes: One ledger a node, each adding up to the wall time.
        traces: Traced steps that could be read.
        trace: The one whose duration is the median: where single times come from; None without any.
        split: A warm step in parts; None without a trace.
        tracing: What tracing costs; None without a trace.
        problems: Parts that could not be analysed and why, one line each, those of `data` included.
    """

    data: RunData
    clocks: tuple[ClockLine, ...]
    steps: tuple[Step, ...]
    stats: StepStats
    ledger: Ledger
    nodes: tuple[NodeLedger, ...]
    traces: tuple[StepTrace, ...]
    trace: StepTrace | None
    split: StepSplit | None
    tracing: TracingCost | None
    problems: tuple[str, ...]
