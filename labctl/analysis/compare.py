"""Two sets of runs, phase by phase: what differs between them, and whether it may be said at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from labctl.analysis import stats
from labctl.analysis.explained import Explained
from labctl.analysis.model import StepTrace
from labctl.analysis.stats import Difference, Judgement, Summary
from labctl.node import wire
from labctl.runs.record import Parameters, RunRecord

WALL = "wall"
WARM = "warm step"
COLD = "cold step"
_STEP_ROWS = {"warm": WARM, "cold": COLD, "no_fetch": "step without fetch", "null": "empty step"}
_BY_STEP_KINDS = frozenset({"warm", "no_fetch", "null"})
_VERSIONS = ("tensorflow", "python", "numpy", "kernel", "driver", "cuda")
_NO_SUBJECT = frozenset(
    {"timeout_s", "fresh"}
)  # the one changes no time, the other is the caches' state
_OF_PLACEMENT = ("tasks", "inter-op threads of")  # facts that follow from where the tasks are
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RowKey:
    """What a row is of.

    Attributes:
        name: A phase, `wall`, `warm step`, `compute`, `transfer`, …
        where: Node, task, `source → target` of a transfer, or "".
        by_step: A run has many values of it.
    """

    name: str
    where: str = ""
    by_step: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """All of one run that is compared.

    Attributes:
        run_id: Its id.
        outcome: As in the record.
        facts: What must be alike on both sides, by name.
        parameters: What it was asked to do, by option; a difference here is what is compared.
        rows: Seconds, by row.
        graph: sha256 of the graph, "" if unknown.
    """

    run_id: str
    outcome: str
    facts: dict[str, str]
    parameters: dict[str, str]
    rows: dict[RowKey, tuple[float, ...]]
    graph: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A fact or parameter that is not the same everywhere.

    Attributes:
        what: Its name.
        a: Its value in side A; several, with commas, if A's runs do not agree.
        b: In side B.
        mixed: The side whose own runs do not agree, "" if both do.
    """

    what: str
    a: str
    b: str
    mixed: Literal["", "A", "B"] = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a comparison; times in seconds.

    Attributes:
        key: What it is of.
        a: Summary of side A, None if it has none.
        b: Summary of side B.
        difference: B against A, None if a side has no value.
        judgement: What it amounts to; `unclear` without a difference.
    """

    key: RowKey
    a: Summary | None
    b: Summary | None
    difference: Difference | None
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of runs.

    Attributes:
        a: Run ids of side A, oldest first.
        b: Of side B.
        subject: Parameters that differ between the sides: what is compared.
        mismatches: What else differs; empty if the sides are alike.
        rows: The row that decides first.
        notes: What a reader should know.
        refused: Why there is no verdict, one line each; empty if there is one.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    subject: tuple[Mismatch, ...]
    mismatches: tuple[Mismatch, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def decides(self) -> Row | None:
        """The row that the verdict is of: the warm step, or the wall time where there are no steps."""
        return self.rows[0] if self.rows else None

    @property
    def verdict(self) -> Judgement | None:
        """B seen from A; None if a verdict is refused."""
        return None if self.refused or self.decides is None else self.decides.judgement


def measure(explained: Explained) -> Measured:
    """Return what a run has to be compared."""
    record = explained.data.record
    rows: dict[RowKey, list[float]] = {}

    def add(key: RowKey, seconds: float) -> None:
        rows.setdefault(key, []).append(seconds)

    for step in explained.steps:
        if (name := _STEP_ROWS.get(step.kind)) is not None:
            add(RowKey(name, by_step=step.kind in _BY_STEP_KINDS), step.duration_ms / 1e3)
    if record.wall_s is not None:
        add(RowKey(WALL), record.wall_s)
    for trace in explained.traces:
        for key, seconds in _trace_rows(trace):
            add(key, seconds)
    if record.wall_s is not None:
        phases: dict[RowKey, float] = {}
        for span in explained.ledger.rows:
            key = RowKey(span.phase, span.node)
            phases[key] = phases.get(key, 0.0) + span.duration_s
        for key, seconds in phases.items():
            add(key, seconds)
        add(RowKey("unexplained"), explained.ledger.unexplained_s)
    return Measured(
        run_id=record.run_id,
        outcome=record.outcome,
        facts=facts_of(record),
        parameters=parameters_of(record.parameters),
        rows={key: tuple(values) for key, values in rows.items()},
        graph=_graph(explained),
    )


def _graph(explained: Explained) -> str:
    events = (event for event in explained.data.events if event.kind == wire.GRAPH)
    return next((event.text("sha256") for event in events), "")


def _trace_rows(trace: StepTrace) -> Iterable[tuple[RowKey, float]]:
    for task in trace.tasks:
        yield RowKey("compute", f"task:{task.task}", by_step=True), task.compute_s
    ways: dict[RowKey, float] = {}
    for edge in trace.edges:
        way = f"task:{edge.source} → task:{edge.target}"
        if not edge.clamped:
            transfer = RowKey("transfer", way, by_step=True)
            ways[transfer] = ways.get(transfer, 0.0) + edge.wire_s
            if edge.waited_s is not None:
                wait = RowKey("wait for", way, by_step=True)
                ways[wait] = ways.get(wait, 0.0) + edge.waited_s
    yield from ways.items()
    yield RowKey("dispatch", by_step=True), trace.dispatch_s
    yield RowKey("fetch", by_step=True), trace.fetch_s


def facts_of(record: RunRecord) -> dict[str, str]:
    """Return what must be alike for two runs' times to be comparable, by name."""
    facts = {
        "labctl": record.labctl_version,
        "client code": record.payload_sha256[:12],
        "lab": record.lab,
        "provider": record.provider,
        "tasks": str(record.tasks),
        "cluster spec": record.spec_sha256[:12],
        "join servers restarted first": "yes" if record.parameters.fresh else "no",
    }
    for node in record.nodes:
        facts[f"node of task {node.task}"] = f"{node.name} at {node.tf_address}"
        for name in _VERSIONS:
            if name in node.versions or name in _VERSIONS[:4]:
                facts[f"{name} on {node.name}"] = node.versions.get(name) or UNKNOWN
        facts[f"CPUs of {node.name}"] = str(node.cpus or UNKNOWN)
        facts[f"CPU model of {node.name}"] = node.cpu_model or UNKNOWN
        limit = node.cpu_limit
        facts[f"CPU limit of {node.name}"] = "none" if limit is None else f"{limit:g} CPUs"
        facts[f"boot of {node.name}"] = node.boot_id[:8] or UNKNOWN
    for server in record.servers_before:
        facts[f"inter-op threads of {server.node}'s join server"] = (
            "default" if server.inter_op is None else str(server.inter_op)
        )
    return facts


def parameters_of(parameters: Parameters) -> dict[str, str]:
    """Return what a run was asked to do, by option, without what changes no time."""
    told = {}
    for each in fields(parameters):
        value = getattr(parameters, each.name)
        if each.name in _NO_SUBJECT:
            continue
        if isinstance(value, tuple):
            value = " ".join(value) or "none"
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        told[each.name.replace("_", "-")] = "default" if value is None else str(value)
    return told


def compare(a: Sequence[Measured], b: Sequence[Measured]) -> Comparison:
    """Compare two sets of runs.

    Args:
        a: At least one run.
        b: At least one, none of them in `a`.
    """
    subject, mixed = _parameters(a, b)
    mismatches = [*mixed, *_facts(a, b, subject)]
    rows = _rows(a, b)
    first = _deciding(rows)
    ordered = [first, *(row for row in rows if row is not first)] if first is not None else rows
    refused = [_mismatch_line(each) for each in mismatches]
    refused += [
        f"run {run.run_id} is {run.outcome}, not ok" for run in (*a, *b) if run.outcome != "ok"
    ]
    refused += _too_little(first)
    return Comparison(
        a=tuple(run.run_id for run in a),
        b=tuple(run.run_id for run in b),
        subject=tuple(subject),
        mismatches=tuple(mismatches),
        rows=tuple(ordered),
        notes=tuple(_notes(a, b)),
        refused=tuple(refused),
    )


def _values(told: Iterable[dict[str, str]], name: str) -> list[str]:
    """Return the different values that a side's runs have, in order; `none` for runs without it."""
    return sorted({each.get(name, "none") for each in told})


def _parameters(
    a: Sequence[Measured], b: Sequence[Measured]
) -> tuple[list[Mismatch], list[Mismatch]]:
    """Return the parameters that differ between the sides, and those that differ within one."""
    subject, mixed = [], []
    for name in dict.fromkeys(name for run in (*a, *b) for name in run.parameters):
        in_a = _values((run.parameters for run in a), name)
        in_b = _values((run.parameters for run in b), name)
        if len(in_a) > 1 or len(in_b) > 1:
            mixed.append(_mismatch(name, in_a, in_b))
        elif in_a != in_b:
            subject.append(Mismatch(name, in_a[0], in_b[0]))
    return subject, mixed


def _facts(
    a: Sequence[Measured], b: Sequence[Measured], subject: Sequence[Mismatch]
) -> list[Mismatch]:
    """Return the facts that are not the same in all runs, without those that the subject brings with it."""
    placed = any(each.what == "placement" for each in subject)
    found = []
    for name in dict.fromkeys(name for run in (*a, *b) for name in run.facts):
        if placed and name.startswith(_OF_PLACEMENT):
            continue
        in_a = _values((run.facts for run in a), name)
        in_b = _values((run.facts for run in b), name)
        if len({*in_a, *in_b}) > 1:
            found.append(_mismatch(name, in_a, in_b))
    return found


def _mismatch(what: str, in_a: Sequence[str], in_b: Sequence[str]) -> Mismatch:
    mixed: Literal["", "A", "B"] = "A" if len(in_a) > 1 else "B" if len(in_b) > 1 else ""
    return Mismatch(what, ", ".join(in_a), ", ".join(in_b), mixed)


def _mismatch_line(each: Mismatch) -> str:
    if each.mixed:
        values = each.a if each.mixed == "A" else each.b
        return f"{each.what} is not the same in all runs of {each.mixed}: {values}"
    return f"{each.what} is {each.a} in A and {each.b} in B"


def _rows(a: Sequence[Measured], b: Sequence[Measured]) -> list[Row]:
    """Return all rows: steps and wall time, parts of a step, phases by time in A."""
    rows = []
    for key in dict.fromkeys(key for run in (*a, *b) for key in run.rows):
        side_a = [run.rows.get(key, ()) for run in a]
        side_b = [run.rows.get(key, ()) for run in b]
        found = stats.difference(side_a, side_b)
        judged: Judgement = "unclear"
        if found is not None:
            judged = stats.judge(found)
        rows.append(Row(key, stats.summarize(side_a), stats.summarize(side_b), found, judged))
    return rows


def _deciding(rows: Sequence[Row]) -> Row | None:
    for name in (WARM, WALL):
        for row in rows:
            if row.key.name == name and row.difference is not None:
                return row
    return None


def _too_little(row: Row | None) -> list[str]:
    """Return why a row does not carry a verdict."""
    if row is None or row.difference is None:
        return ["the two sides have neither a warm step nor a wall time in common"]
    found, name = row.difference, row.key.name
    if found.low is None or not stats.enough(found):
        counted = [f"{side.values} of {side.runs} run(s)" for side in (found.a, found.b)]
        needed = f"a verdict needs {stats.ENOUGH_RUNS} runs a side"
        return [f"{name} has {counted[0]} in A and {counted[1]} in B; {needed}"]
    if row.judgement == "unclear":
        noise = found.detectable_percent
        told = "no" if noise is None else f"only a change of {noise:.0f} % or more"
        return [
            f"{name} is too noisy: {told} would show, a verdict needs {stats.NOISE_GATE_PERCENT:.0f} %"
        ]
    return []


def _notes(a: Sequence[Measured], b: Sequence[Measured]) -> Iterable[str]:
    startup = [{any(key.name == "startup" for key in run.rows) for run in side} for side in (a, b)]
    if startup[0] != startup[1]:
        yield (
            "runs of a batch have no start of labctl and no connection of their own: the wall times of the two "
            "sides are not alike"
        )
