"""The run over its wall time: the ledger as one lane, then what labctl and each node did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labctl.analysis.explained import Explained
from labctl.runs.record import LabPhase, RunRecord, Span
from labctl.views.report.lanes import Bar, Chart, Lane, chart, kind_of
from labctl.views.report.numbers import percent

RUN = "run"
_LAB_NAMES = {"own": "machines and plays", "build": "Ansible roles"}


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row of a ledger's table.

    Attributes:
        span: What it says.
        kind: Its colour.
        share: Percent of the wall time, None while there is none.
    """

    span: Span
    kind: str
    share: float | None


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """One ledger: that of the run, or of one node.

    Attributes:
        name: `run`, `labctl` or the node's name.
        title: For its heading.
        rows: In order of their start.
        sum_s: Of the rows, seconds.
        unexplained_s: What they leave of the wall time, seconds.
        unexplained_share: The same in percent.
        wall_s: The run's wall time, seconds.
    """

    name: str
    title: str
    rows: tuple[LedgerRow, ...]
    sum_s: float
    unexplained_s: float
    unexplained_share: float | None
    wall_s: float


def ledger_tables(explained: Explained) -> list[LedgerTable]:
    """Return the run's ledger and one of each node; empty while the run has no end."""
    if not explained.ledger.wall_s:
        return []
    ledger = explained.ledger
    tables = [_table(RUN, "The run", ledger.rows, ledger.wall_s, ledger.unexplained_s)]
    for each in explained.nodes:
        title = each.node if each.node == "labctl" else _node_title(explained, each.node)
        tables.append(_table(each.node, title, each.rows, each.wall_s, each.unexplained_s))
    return tables


def waterfall(tables: Iterable[LedgerTable], record: RunRecord) -> Chart | None:
    """Return the chart of all ledgers, None without a row."""
    lanes = [
        Lane(
            table.name,
            _detail(table.name, record),
            tuple(
                Bar(
                    label=row.span.phase.replace("_", " "),
                    node=row.span.node,
                    start=row.span.start_s,
                    length=row.span.duration_s,
                    kind=row.kind,
                    source=row.span.source,
                )
                for row in table.rows
            ),
        )
        for table in tables
    ]
    return chart("waterfall", "Where the run's time went", "s", lanes, record.wall_s or 0.0)


def lab_charts(phases: Iterable[LabPhase]) -> list[Chart]:
    """Return one chart for each command that made the lab, over the time since that command's first phase."""
    charts: list[Chart] = []
    ordered = sorted(phases, key=lambda each: each.started_unix_s)
    for command in dict.fromkeys(each.command for each in ordered):
        mine = [each for each in ordered if each.command == command]
        zero_s = mine[0].started_unix_s
        nodes = dict.fromkeys(each.node for each in mine)
        lanes = [
            Lane(
                node or "all",
                "",
                tuple(
                    Bar(
                        label=each.phase,
                        node=node,
                        start=each.started_unix_s - zero_s,
                        length=each.duration_s,
                        kind="build" if each.phase.startswith("role ") else "own",
                        source="labctl",
                    )
                    for each in mine
                    if each.node == node
                ),
            )
            for node in nodes
        ]
        made = chart(f"lab-{len(charts)}", f"labctl {command}", "s", lanes, 0.0, _LAB_NAMES)
        charts += [made] if made is not None else []
    return charts


def _table(
    name: str, title: str, rows: Iterable[Span], wall_s: float, unexplained_s: float
) -> LedgerTable:
    listed = tuple(
        LedgerRow(row, kind_of(row.phase, row.source), percent(row.duration_s, wall_s))
        for row in rows
    )
    total_s = sum(row.span.duration_s for row in listed)
    share = percent(unexplained_s, wall_s)
    return LedgerTable(name, title, listed, total_s, unexplained_s, share, wall_s)


def _detail(name: str, record: RunRecord) -> str:
    if name == RUN:
        return "the ledger"
    if name == "labctl":
        return "this machine"
    return next((f"task:{node.task}" for node in record.nodes if node.name == name), "")


def _node_title(explained: Explained, name: str) -> str:
    detail = _detail(name, explained.data.record)
    return f"{name}, {detail}" if detail else name
