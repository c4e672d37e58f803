"""The page: everything that is known of a run, put into one HTML text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from labctl import __version__
from labctl.analysis.causes.model import Verdict
from labctl.analysis.explained import Explained
from labctl.analysis.gpus import node_gpus
from labctl.console import safe_text
from labctl.node import wire
from labctl.runs.events import Event
from labctl.runs.record import RunRecord
from labctl.views.report import (
    causes,
    environment,
    gpu_use,
    lanes,
    numbers,
    reproduce,
    step_chart,
    traced,
    usage,
    waterfall,
)
from labctl.views.report.metrics import METRICS

_FOLDER = Path(__file__).parent / "template"


def render(explained: Explained, verdicts: Iterable[Verdict], state: str) -> str:
    """Return the page of a run.

    Args:
        explained: The run and its analysis.
        verdicts: What the rules say of it, in their rank.
        state: Its outcome, or `detached` or `interrupted` while it may go on.
    """
    record = explained.data.record
    style, script = _asset("style.css"), _asset("script.js")
    tables = waterfall.ledger_tables(explained)
    series = usage.usage_series(explained.data) + gpu_use.gpu_series(explained.data)
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            policy=_policy(style, script),
            style=Markup(style),  # noqa: S704 the package's own file
            script=Markup(script),  # noqa: S704 the package's own file
            version=__version__,
            record=record,
            state=state,
            explained=explained,
            title=_title(record),
            result=_result(explained.data.events),
            causes=causes.causes(verdicts, explained, state),
            tables=tables,
            waterfall=waterfall.waterfall(tables, record),
            step_chart=step_chart.step_chart(explained.steps, explained.stats),
            kinds=step_chart.kind_rows(explained.steps),
            steps=step_chart.step_rows(explained),
            split=traced.split_parts(explained.split) if explained.split else [],
            trace_chart=traced.trace_chart(explained.trace) if explained.trace else None,
            edges=traced.longest_edges(explained.trace) if explained.trace else [],
            copies=traced.longest_copies(explained.trace) if explained.trace else [],
            usage=_grouped(series),
            lab_charts=waterfall.lab_charts(record.lab_phases),
            facts=environment.fact_rows(record, node_gpus(explained.data)),
            servers=environment.server_rows(record),
            graph=environment.graph_facts(explained),
            asked=environment.asked(record),
            commands=reproduce.commands(record),
        )
    )


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    made.globals.update(
        METRICS=METRICS,
        KIND_NAMES=lanes.KIND_NAMES,
        PAGE_ROWS=step_chart.PAGE_ROWS,
        MOST_EDGES=traced.MOST_EDGES,
        fixed=numbers.fixed,
        figure=numbers.figure,
        duration=numbers.duration,
        size=numbers.size,
        scaled=numbers.scaled,
        percent=numbers.percent,
        moment=environment.moment,
        NOT_MEASURED=numbers.NOT_MEASURED,
    )
    return made


def _printable(value: Any) -> Any:
    """Return what a template prints, without control characters and marks that reorder a line."""
    if isinstance(value, str) and not (isinstance(value, Markup) or value.isprintable()):
        return "\n".join(safe_text(line) for line in value.split("\n"))
    return value


def _policy(style: str, script: str) -> str:
    """Return a content security policy under which only this page's own style and script work."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _title(record: RunRecord) -> list[tuple[str, str]]:
    """Return the run's formula as terms and their exponents, or the script's name."""
    parameters = record.parameters
    if parameters.experiment == "script":
        return [(parameters.script or "script", "")]
    power = str(parameters.power)
    if record.tasks <= 4:
        return [(letter, power) for letter in "ABCD"[: max(2, record.tasks)]]
    return [(f"sum of {record.tasks} powers M", power)]


def _result(events: Iterable[Event]) -> Event | None:
    return next((e for e in reversed(list(events)) if e.kind == wire.RESULT), None)


def _grouped(series: Iterable[usage.Series]) -> list[tuple[str, str, list[usage.Series]]]:
    groups: dict[tuple[str, str], list[usage.Series]] = {}
    for each in series:
        groups.setdefault((each.node, each.who), []).append(each)
    return [(node, who, members) for (node, who), members in groups.items()]
