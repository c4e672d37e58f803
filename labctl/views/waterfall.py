"""Where a run's time went, on a few lines: phases with their place in the run, and one line a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from labctl.analysis.cold_start import PHASE_COMPILE, PHASE_CUBLAS, PHASE_GPU_CONTEXT
from labctl.analysis.ledger import (
    LABCTL,
    PHASE_CONNECT,
    PHASE_EXIT,
    PHASE_FIRST_RUN,
    PHASE_GRAPH_SETUP,
    WARM,
    Ledger,
    NodeLedger,
)
from labctl.analysis.server_time import WAITING
from labctl.analysis.split import WAIT
from labctl.console import safe_text
from labctl.node import wire

BAR = 40
_WORK, _IDLE = "▇", "░"
_SHORT = 0.005  # phases below this part of the wall time share one row
_MOST_NODES = 6
# Phases that are told as one; what is not named here is told by its own name.
_GROUPS: dict[str, tuple[str, ...]] = {
    "reach the lab": ("startup", "inventory", "connect"),
    "push, start": ("push", "start"),
    "interpreter, peers": (wire.PHASE_INTERPRETER, wire.PHASE_PEERS),
    "GPU's start": (
        wire.PHASE_IMPORT_NVML,
        wire.PHASE_GPU_WAKE,
        wire.PHASE_GPU_LIBRARIES,
        PHASE_GPU_CONTEXT,
        PHASE_CUBLAS,
    ),
    "import tensorflow": (wire.PHASE_IMPORT_NUMPY, wire.PHASE_IMPORT_TENSORFLOW),
    "server, graph, inputs": (
        wire.PHASE_SERVER,
        wire.PHASE_GRAPH,
        "describe_graph",
        wire.PHASE_SESSION,
        wire.PHASE_INPUTS,
        wire.PHASE_STAGE,
    ),
    "first step": (
        wire.PHASE_DEVICES,
        PHASE_CONNECT,
        PHASE_GRAPH_SETUP,
        PHASE_COMPILE,
        PHASE_FIRST_RUN,
        wire.PHASE_FIRST_STEP,
    ),
    "warm steps": (wire.PHASE_WARM_STEPS,),
    "extra steps": (wire.PHASE_TRACED_STEP, wire.PHASE_PROBES),
    "end, collect": (PHASE_EXIT, "notice", "collect"),
}
_GROUP_OF = {phase: group for group, phases in _GROUPS.items() for phase in phases}


@dataclass(slots=True)
class _Row:
    label: str
    nodes: set[str] = field(default_factory=set)
    duration_s: float = 0.0
    pieces: list[tuple[float, float]] = field(default_factory=list)

    @property
    def node(self) -> str:
        return next(iter(self.nodes)) if len(self.nodes) == 1 else ""


def ledger_lines(ledger: Ledger) -> list[str]:
    """Return the phases of a run, those that belong together in one line, with their place in the run."""
    rows: dict[str, _Row] = {}
    for each in ledger.rows:
        label = group_of(each.phase)
        row = rows.setdefault(label, _Row(label))
        row.nodes.add(each.node)
        row.duration_s += each.duration_s
        row.pieces.append((each.start_s, each.duration_s))
    short = _Row("shorter phases")
    for row in list(rows.values()):
        if row.duration_s < _SHORT * ledger.wall_s:
            del rows[row.label]
            short.duration_s += row.duration_s
            short.pieces += row.pieces
    told = [*rows.values(), *([short] if short.pieces else [])]
    told.append(_Row("unexplained", duration_s=ledger.unexplained_s))
    wide = max(len(safe_text(row.label)) for row in told)
    node_wide = max(len(row.node) for row in told)
    return [
        f"  {safe_text(row.label):<{wide}}  {row.node:<{node_wide}}  {row.duration_s:7.2f} s  "
        f"{_bar(row.pieces, ledger.wall_s)}".rstrip()
        for row in told
    ]


def node_lines(ledgers: Sequence[NodeLedger]) -> list[str]:
    """Return one line a node: when it worked, and when it waited within the warm steps."""
    if not ledgers:
        return []
    shown = ledgers[: _MOST_NODES + 1]
    wide = max(len(each.node) for each in shown)
    lines = []
    for each in shown:
        worked_s = sum(row.duration_s for row in each.rows if not _idle(row.phase))
        before_s = sum(row.duration_s for row in each.before)
        before = f"  and {before_s:.1f} s before the run" if before_s else ""
        work = [(row.start_s, row.duration_s) for row in each.rows if not _idle(row.phase)]
        idle = [
            (row.start_s, row.duration_s)
            for row in each.rows
            if _idle(row.phase) and row.phase != WAITING
        ]
        bar = _bar(work, each.wall_s, under=_bar(idle, each.wall_s, mark=_IDLE))
        name = each.node if each.node != LABCTL else LABCTL
        lines.append(f"  {name:<{wide}}  at work {worked_s:7.2f} s  {bar:<{BAR}}{before}".rstrip())
    if len(ledgers) > len(shown):
        lines.append(f"  and {len(ledgers) - len(shown)} more nodes")
    return lines


def group_of(phase: str) -> str:
    """Return under which name a phase is told on one screen."""
    if phase.startswith(f"{WARM} "):
        return "warm steps"
    return _GROUP_OF.get(phase, phase.replace("_", " "))


def _idle(phase: str) -> bool:
    return phase in {WAITING, f"{WARM} {WAIT}"}


def _bar(
    pieces: Iterable[tuple[float, float]], wall_s: float, mark: str = _WORK, under: str = ""
) -> str:
    cells = list(under.ljust(BAR))
    covered = [0.0] * BAR
    for start_s, duration_s in pieces:
        start, end = start_s / wall_s * BAR, (start_s + duration_s) / wall_s * BAR
        first = min(BAR - 1, int(start))
        for cell in range(first, min(BAR - 1, int(end)) + 1):
            covered[cell] += max(0.0, min(end, cell + 1) - max(start, cell))
    for cell, part in enumerate(covered):
        if part >= 0.5:
            cells[cell] = mark
        elif part > 0 and cells[cell] == " ":
            cells[cell] = "▏" if mark == _WORK else " "
    return "".join(cells)
