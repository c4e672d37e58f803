"""Whatever reads as a record has a page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.records import Shape, run_id, write_run
from labctl.analysis.explain import explain
from labctl.errors import RecordError
from labctl.runs.data import RunData, load
from labctl.runs.events import parse_line
from labctl.runs.record import from_text, to_text
from labctl.views.report.page import render
from tests.unit.test_report_page import Page
from tests.unit.test_runs_record import places

NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**25), 10**25)
    | st.sampled_from([1.7e308, -1.7e308, 5e-324, 1e16, -1.0, 0.0])
)
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.lists(NUMBERS, max_size=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    folder = tmp_path_factory.mktemp("runs") / run_id(0)
    write_run(folder, Shape(steps=6, trace_records=24))
    return load(folder)


def assert_has_a_page(data: RunData) -> None:
    text = render(explain(data), (), "ok")
    assert len(Page(text).named("section")) == 13
    numbers = [float(each) for each in _attributes(text) if each]
    assert all(math.isfinite(each) for each in numbers)


def _attributes(text: str) -> list[str]:
    page = Page(text)
    return [
        value.removesuffix("%")
        for tag, attributes in page.elements
        if tag in {"svg", "rect", "line", "circle"}
        for name, value in attributes.items()
        if name in {"x", "x1", "cx", "width", "data-start", "data-length"}
    ]


def like(value: Any) -> st.SearchStrategy[Any]:
    """Return values that may stand where this one does."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int | float):
        return st.none() | NUMBERS
    return st.text(max_size=8) if isinstance(value, str) else VALUES


@settings(deadline=None, max_examples=25)
@given(draw=st.data())
def test_a_record_with_anything_in_any_place_has_a_page(data: RunData, draw: st.DataObject) -> None:
    document = inner = json.loads(to_text(data.record))
    place = draw.draw(st.sampled_from(sorted(places(document), key=str)))
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = draw.draw(like(inner[place[-1]]))
    try:
        record = from_text(json.dumps(document), "run.json")
    except RecordError:
        return  # no record: the command says so and ends
    assert_has_a_page(replace(data, record=record))


@settings(deadline=None, max_examples=25)
@given(draw=st.data(), value=VALUES)
def test_events_with_anything_in_any_place_have_a_page(
    data: RunData, draw: st.DataObject, value: Any
) -> None:
    lines = [
        {
            "event": e.kind,
            "t": e.t_ns,
            "mono": e.mono_ns,
            "source": e.source,
            "task": e.task,
            **e.data,
        }
        for e in data.events
    ]
    line = draw.draw(st.sampled_from(lines))
    line[draw.draw(st.sampled_from(sorted(line)))] = value
    events = [event for each in lines if (event := parse_line(json.dumps(each))) is not None]
    assert_has_a_page(replace(data, events=tuple(events)))
