"""Bars on lanes over one time axis: the waterfall, a traced step, the lab's making."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.analysis.cold_start import PHASE_COMPILE, PHASE_CUBLAS, PHASE_GPU_CONTEXT
from labctl.analysis.ledger import PHASE_CONNECT, PHASE_FIRST_RUN, PHASE_GRAPH_SETUP, WARM
from labctl.analysis.node_ledgers import SERVER
from labctl.analysis.server_time import WAITING
from labctl.node import wire

_NARROWEST = 0.12  # percent of the axis: what a bar is drawn with at least
_FARTHEST = 1e300  # what an axis reaches to: its length stays a number, whatever a record holds
_LETTER = 0.62  # percent of the axis that one letter of a label takes on a screen of middle width

KIND_NAMES = {
    "own": "labctl and systemd",
    "start": "interpreter and imports",
    "gpu": "a GPU's start",
    "build": "server, graph, session, inputs",
    "cold": "first step",
    "warm": "warm steps, or the script",
    "copy": "copies between host and GPU",
    "wire": "transfers",
    "client": "dispatch and fetch",
    "extra": "traced and probe steps",
    "check": "result check",
    "wait": "waiting",
}
_KINDS = {
    wire.PHASE_INTERPRETER: "start",
    wire.PHASE_IMPORT_NUMPY: "start",
    wire.PHASE_IMPORT_TENSORFLOW: "start",
    wire.PHASE_PEERS: "wait",
    wire.PHASE_IMPORT_NVML: "gpu",
    wire.PHASE_GPU_WAKE: "gpu",
    wire.PHASE_GPU_LIBRARIES: "gpu",
    PHASE_GPU_CONTEXT: "gpu",
    PHASE_CUBLAS: "gpu",
    PHASE_COMPILE: "cold",
    wire.PHASE_DEVICES: "cold",
    wire.PHASE_SERVER: "build",
    wire.PHASE_GRAPH: "build",
    wire.PHASE_SESSION: "build",
    wire.PHASE_INPUTS: "build",
    wire.PHASE_STAGE: "build",
    wire.PHASE_FIRST_STEP: "cold",
    PHASE_CONNECT: "cold",
    PHASE_GRAPH_SETUP: "cold",
    PHASE_FIRST_RUN: "cold",
    wire.PHASE_WARM_STEPS: "warm",
    wire.PHASE_TRACED_STEP: "extra",
    wire.PHASE_PROBES: "extra",
    wire.PHASE_VERIFY: "check",
    wire.PHASE_SCRIPT: "warm",
    WAITING: "wait",
}
_WARM_KINDS = {
    "compute": "warm",
    "copy": "copy",
    "transfer": "wire",
    "wait": "wait",
    "dispatch": "client",
    "fetch": "client",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval.

    Attributes:
        label: Its name.
        node: Whose.
        start: On the chart's axis, in its unit.
        length: In the same unit.
        kind: Its colour.
        source: Who measured it.
        note: What else is to say, shown on hover.
        clamped: Its start was cut by a clock's skew and is not to be believed.
        row: Line within its lane.
    """

    label: str
    node: str
    start: float
    length: float
    kind: str
    source: str = ""
    note: str = ""
    clamped: bool = False
    row: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """Bars of one name.

    Attributes:
        name: Of the lane.
        detail: What it is, small.
        bars: In order of their start.
        rows: Lines that its bars take.
    """

    name: str
    detail: str
    bars: tuple[Bar, ...]
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Chart:
    """Lanes over one axis.

    Attributes:
        name: Its id on the page.
        title: What a screen reader is told.
        unit: Of the axis, `s` or `ms`.
        begin: Left end of the axis.
        end: Right end.
        lanes: From top to bottom.
        legend: Kinds that occur, with their names.
    """

    name: str
    title: str
    unit: str
    begin: float
    end: float
    lanes: tuple[Lane, ...]
    legend: tuple[tuple[str, str], ...]

    def place(self, value: float) -> float:
        """Return a value's place on the axis in percent."""
        return self.share(value - self.begin)

    def share(self, length: float) -> float:
        """Return a length in percent of the axis."""
        return length / (self.end - self.begin) * 100

    def left(self, bar: Bar) -> str:
        """Return where a bar begins, percent."""
        return f"{min(self.place(bar.start), 100 - _NARROWEST):.4f}%"

    def width(self, bar: Bar) -> str:
        """Return how wide a bar is drawn, percent."""
        return f"{max(self.share(bar.length), _NARROWEST):.4f}%"

    def fits(self, bar: Bar) -> bool:
        """Return whether a bar is wide enough for its label."""
        return self.share(bar.length) > _LETTER * (len(bar.label) + 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places on the axis in percent with their labels."""
        return [
            (self.place(value), f"{text} {self.unit}")
            for value, text in ticks(self.begin, self.end)
        ]


def chart(
    name: str,
    title: str,
    unit: str,
    lanes: Sequence[Lane],
    end: float,
    names: Mapping[str, str] = KIND_NAMES,
) -> Chart | None:
    """Return a chart that begins at 0 or at the first bar before it; None without a bar.

    Args:
        name: Its id on the page.
        title: What a screen reader is told.
        unit: Of the axis.
        lanes: From top to bottom.
        end: Right end of the axis at least.
        names: What the kinds of its bars are called.
    """
    bars = [bar for lane in lanes for bar in lane.bars]
    if not bars:
        return None
    begin = max(-_FARTHEST, min(0.0, *(bar.start for bar in bars)))
    last = min(_FARTHEST, max(end, *(bar.start + bar.length for bar in bars)))
    kinds = {bar.kind for bar in bars}
    legend = tuple((kind, text) for kind, text in names.items() if kind in kinds)
    return Chart(name, title, unit, begin, max(last, begin + 1e-9), tuple(lanes), legend)


def kind_of(phase: str, source: str) -> str:
    """Return the kind of a ledger's row; a phase that is not known by name has that of its source."""
    own = phase.removeprefix(f"{SERVER} ")
    if own in _KINDS:
        return _KINDS[own]
    part = phase.removeprefix(f"{WARM} ")
    if part == phase:
        return "own" if source in {"labctl", "systemd"} else "build"
    return _WARM_KINDS.get(part.split(" ")[0], "warm")


def ticks(begin: float, end: float, most: int = 8) -> list[tuple[float, str]]:
    """Return round values between two ends, at most `most` and one, with their labels; none of an empty axis."""
    if not end > begin:
        return []
    step = _nice((end - begin) / most)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(begin / step - 1e-9)
    last = math.floor(end / step + 1e-9)
    return [(k * step, f"{k * step:.{digits}f}") for k in range(first, last + 1)]


def packed(bars: Iterable[Bar], most: int) -> tuple[tuple[Bar, ...], int]:
    """Return bars, each on the first line where it overlaps no other, and the number of lines.

    Args:
        bars: In any order.
        most: Lines at most; what finds no room is drawn on the last.
    """
    free: list[float] = []
    placed = []
    for bar in sorted(bars, key=lambda each: (each.start, -each.length)):
        row = next((k for k, end in enumerate(free) if end <= bar.start), len(free))
        if row == len(free):
            if row < most:
                free.append(0.0)
            else:
                row = most - 1
        free[row] = max(free[row], bar.start + bar.length)
        placed.append(replace(bar, row=row) if row else bar)
    return tuple(placed), max(1, len(free))


def _nice(rough: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
