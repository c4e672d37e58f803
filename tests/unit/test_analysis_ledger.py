from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.clock import Clocks
from labctl.analysis.explain import explain
from labctl.analysis.ledger import build_ledger, client_spans
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.runs.record import (
    ClockSample,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
    Span,
    UnitEnded,
)

NS = 1_000_000_000
TIME = st.floats(-5, 50, allow_nan=False)
SPANS = st.lists(
    st.builds(
        Span,
        phase=st.sampled_from(["push", "import", "step"]),
        node=st.sampled_from(["labctl", "tf0"]),
        start_s=TIME,
        duration_s=st.floats(0, 30, allow_nan=False),
        source=st.just("x"),
    ),
    max_size=12,
)


@given(SPANS, SPANS, st.floats(0, 60, allow_nan=False))
def test_rows_never_overlap_and_add_up(own: list[Span], client: list[Span], wall_s: float) -> None:
    ledger = build_ledger(own, client, wall_s)
    for row in ledger.rows:
        assert row.duration_s > 0
        assert row.start_s >= 0
        assert row.start_s + row.duration_s <= wall_s + 1e-9
    for earlier, later in itertools.pairwise(ledger.rows):
        assert earlier.start_s + earlier.duration_s <= later.start_s + 1e-9
    total = sum(row.duration_s for row in ledger.rows)
    assert total + ledger.unexplained_s == pytest.approx(wall_s, abs=1e-6)
    assert ledger.unexplained_s >= 0


def test_time_that_the_client_works_is_the_clients() -> None:
    own = [Span("start", "labctl", 0, 2, "labctl"), Span("unattended", "labctl", 2, 8, "labctl")]
    client = [Span("import", "tf0", 1, 4, "client"), Span("step", "tf0", 6, 1, "client")]
    ledger = build_ledger(own, client, 11)
    assert [(row.phase, row.start_s, row.duration_s) for row in ledger.rows] == [
        ("start", 0, 1),
        ("import", 1, 4),
        ("unattended", 5, 1),
        ("step", 6, 1),
        ("unattended", 7, 3),
    ]
    assert ledger.unexplained_s == pytest.approx(1)


RECORD = RunRecord(
    run_id="r",
    lab="x",
    provider="none",
    outcome="ok",
    parameters=Parameters("matpow", False, False, 60.0),
    tasks=2,
    origin=Origin(1000.0, 0.0, "b"),
    remote=RemoteRun("tf0", "/d", "u"),
    nodes=(),
    labctl_version="0",
    payload_sha256="",
    spec_sha256="",
    clock=(ClockSample("tf0", 0, 100.0, 0.001),),
    wall_s=20.0,
)


def event(kind: str, at_s: float, **data: object) -> Event:
    return Event(kind, round(at_s * NS), 0, "client", 0, dict(data))


def test_client_phases_are_mapped_to_labctls_clock() -> None:
    events = [
        event("hello", 1102.0, process_start_t=1101 * NS),
        event("phase_begin", 1102.0, phase="import_tensorflow"),
        event("phase_end", 1106.0, phase="import_tensorflow", duration_ns=4 * NS),
        event("phase_begin", 1106.0, phase="warm_steps"),
        event("step", 1107.0, duration_ns=NS, index=0),
    ]
    spans = {span.phase: span for span in client_spans(RECORD, events, Clocks.of(RECORD))}
    assert (spans["interpreter"].start_s, spans["interpreter"].duration_s) == (1.0, 1.0)
    assert (spans["import_tensorflow"].start_s, spans["import_tensorflow"].duration_s) == (2.0, 4.0)
    # A phase that has no end lasts to the last thing that is known.
    assert (spans["warm_steps"].start_s, spans["warm_steps"].duration_s) == (6.0, 1.0)
    assert {span.node for span in spans.values()} == {"tf0"}


def test_the_end_of_the_process_is_part_of_the_story() -> None:
    ended = replace(RECORD, unit_end=UnitEnded("success", "exited", "0", 1107.5))
    events = [event("bye", 1107.0, exit=0)]
    (span,) = client_spans(ended, events, Clocks.of(ended))
    assert (span.phase, span.start_s, span.duration_s) == ("exit", 7.0, 0.5)
    ledger = explain(RunData(Path(), ended, tuple(events))).ledger
    assert ledger.unexplained_s == pytest.approx(19.5)


def test_other_tasks_events_are_not_the_clients() -> None:
    other = Event("phase_end", 1105 * NS, 0, "join-server", 1, {"phase": "x", "duration_ns": NS})
    assert client_spans(RECORD, [other], Clocks.of(RECORD)) == []
