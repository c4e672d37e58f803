from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.analysis.clock import Clocks
from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.analysis.ledger import build_ledger, client_spans
from labctl.runs.data import LogLine, RunData
from labctl.runs.events import Event
from labctl.runs.record import (
    ClockSample,
    NodeFacts,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
    ServerState,
    Span,
    UnitEnded,
)
from tests.unit.made_traces import START_US, fed_step, run_data

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


@settings(deadline=None)
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


def test_a_moment_between_two_phases_is_nobodys() -> None:
    own = [Span("inventory", "labctl", 0, 5, "labctl")]
    client = [Span("import", "tf0", 1, 1, "client"), Span("step", "tf0", 2.0005, 1, "client")]
    ledger = build_ledger(own, client, 5)
    assert [(row.phase, row.start_s) for row in ledger.rows] == [
        ("inventory", 0),
        ("import", 1),
        ("step", 2.0005),
        ("inventory", 3.0005),
    ]
    assert ledger.unexplained_s == pytest.approx(0.0005)


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


def event(kind: str, at_s: float, /, **data: object) -> Event:
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


def run(
    events: Sequence[Event], record: RunRecord = RECORD, log: Sequence[LogLine] = ()
) -> Explained:
    return explain(RunData(Path(), record, tuple(events), log=tuple(log)))


def phases(explained: Explained) -> list[tuple[str, float, float]]:
    return [
        (row.phase, round(row.start_s, 6), round(row.duration_s, 6))
        for row in explained.ledger.rows
    ]


def phase(name: str, start_s: float, end_s: float) -> list[Event]:
    return [
        event("phase_begin", start_s, phase=name),
        event("phase_end", end_s, phase=name, duration_ns=round((end_s - start_s) * NS)),
    ]


def steps(*lengths_s: float) -> list[Event]:
    return [
        Event(
            "step",
            1110 * NS,
            0,
            "client",
            0,
            {"index": n, "kind": "warm" if n else "cold", "duration_ns": round(length * NS)},
        )
        for n, length in enumerate(lengths_s)
    ]


REACHED = [
    LogLine("tf0", 1105.0, "master.cc:243] Scanning workers for devices: 2 total workers"),
    LogLine("tf0", 1105.5, "mlir_graph_optimization_pass.cc:437] MLIR V1 optimization pass is off"),
]


def test_the_first_step_is_split_where_the_log_tells() -> None:
    events = [*phase("first_step", 1105, 1108), *phase("warm_steps", 1108, 1110), *steps(3, 1, 1)]
    assert phases(run(events, log=REACHED)) == [
        ("connect_peers", 5.0, 0.5),
        ("graph_setup", 5.5, 1.5),
        ("first_run", 7.0, 1.0),
        ("warm_steps", 8.0, 2.0),
    ]
    assert phases(run(events)) == [("first_step", 5.0, 3.0), ("warm_steps", 8.0, 2.0)]
    other = [replace(line, node="tf1") for line in REACHED]
    assert phases(run(events, log=other))[0] == ("first_step", 5.0, 3.0)
    alone = [REACHED[1]]  # one process has no workers to look for
    assert phases(run(events, log=alone))[0] == ("first_step", 5.0, 3.0)


def test_staged_inputs_meet_the_peers_first() -> None:
    events = [
        *phase("stage_inputs", 1104.9, 1106),
        *phase("first_step", 1106, 1108),
        *phase("warm_steps", 1108, 1109),
        *steps(2, 0.5, 0.5),
    ]
    assert phases(run(events, log=REACHED)) == [
        ("connect_peers", 4.9, 0.6),
        ("stage_inputs", 5.5, 0.5),
        ("graph_setup", 6.0, 1.5),
        ("first_run", 7.5, 0.5),
        ("warm_steps", 8.0, 1.0),
    ]


def test_a_cold_step_that_is_no_slower_has_no_setup() -> None:
    events = [*phase("first_step", 1105, 1106), *steps(1, 2, 2)]
    assert phases(run(events, log=REACHED)) == [
        ("connect_peers", 5.0, 0.5),
        ("first_run", 5.5, 0.5),
    ]


def test_warm_steps_are_split_in_the_traced_steps_proportions() -> None:
    data = run_data(fed_step(starved=True), duration_ms=50, warm_ms=[24, 25, 26])
    begin = Event("phase_begin", (START_US - 10**6) * 1000, 0, "client", 0, {"phase": "warm_steps"})
    length_ns = 80 * 10**6
    end = replace(
        begin,
        kind="phase_end",
        t_ns=begin.t_ns + length_ns,
        data={"phase": "warm_steps", "duration_ns": length_ns},
    )
    explained = explain(replace(data, events=(begin, *data.events, end)))
    rows = explained.ledger.rows
    assert [row.phase for row in rows] == [
        "warm dispatch",
        "warm wait task:1",
        "warm transfer task:0>task:1",
        "warm compute task:1",
        "warm wait task:0",
        "warm transfer task:1>task:0",
        "warm compute task:0",
        "warm fetch",
        "warm_steps",
    ]
    assert {row.source for row in rows} == {"trace", "client"}
    told = {row.phase: row.duration_s for row in rows}
    assert told["warm wait task:1"] == pytest.approx(0.075 * 20.1 / 50)
    assert told["warm_steps"] == pytest.approx(0.005, abs=1e-6)  # between the steps
    assert math.fsum(told.values()) == pytest.approx(0.080, abs=1e-6)
    node = {ledger.node: ledger for ledger in explained.nodes}
    one = {row.phase: row.duration_s for row in node["tf1"].rows if row.phase != "waiting"}
    assert one["warm compute"] == pytest.approx(0.080 * 20.9 / 50, abs=1e-6)
    assert math.fsum(one.values()) == pytest.approx(0.080, abs=1e-6)


def test_each_node_has_a_ledger_of_its_own() -> None:
    server = ServerState(
        "tf1",
        "active",
        "i",
        990.0,
        "b",
        phases=(Span("import_tensorflow", "tf1", 991.0, 4.0, "join-server"),),
    )
    record = replace(
        RECORD,
        nodes=(NodeFacts("tf0", 0, "a:1"), NodeFacts("tf1", 1, "b:1")),
        parameters=replace(RECORD.parameters, placement="lab"),
        spans=(
            Span("connect", "labctl", 0, 2, "labctl"),
            Span("collect", "labctl", 9, 1, "labctl"),
        ),
        servers_before=(server,),
        wall_s=10.0,
    )
    events = [*phase("import_tensorflow", 1102.5, 1104), *phase("first_step", 1104, 1108)]
    explained = run(events, record)
    found = {
        ledger.node: [(row.phase, row.start_s, row.duration_s) for row in ledger.rows]
        for ledger in explained.nodes
    }
    assert found == {
        "labctl": [("connect", 0, 2), ("waiting", 2.5, 5.5), ("collect", 9, 1)],
        "tf0": [
            ("waiting", 0, 2.5),
            ("import_tensorflow", 2.5, 1.5),
            ("first_step", 4, 4),
            ("waiting", 8, 2),
        ],
        "tf1": [("first_step", 4, 4)],  # its server wrote no `usage`
    }
    rest = {ledger.node: ledger.unexplained_s for ledger in explained.nodes}
    assert rest == {"labctl": 1.5, "tf0": 0, "tf1": 6}
    (before,) = explained.nodes[2].before
    assert (before.phase, before.start_s) == ("join_server import_tensorflow", -9.0)


def test_a_server_that_starts_within_the_run_works_then() -> None:
    record = replace(RECORD, nodes=(NodeFacts("tf0", 0, "a:1"), NodeFacts("tf1", 1, "b:1")))
    again = [
        Event("hello", 1003 * NS, 5, "join-server", 1, {"process_start_t": 1002 * NS}),
        Event("phase_begin", 1003 * NS, 5, "join-server", 1, {"phase": "import_tensorflow"}),
        Event(
            "phase_end",
            1005 * NS,
            5 + 2 * NS,
            "join-server",
            1,
            {"phase": "import_tensorflow", "duration_ns": 2 * NS},
        ),
    ]
    data = RunData(Path(), record, tuple(phase("first_step", 1104, 1108)), {"tf1": tuple(again)})
    rows = explain(data).nodes[2].rows
    assert [(row.phase, row.start_s, row.duration_s) for row in rows] == [
        ("join_server interpreter", 2, 1),
        ("join_server import_tensorflow", 3, 2),
        ("first_step", 5, 3),
    ]


def test_a_clock_that_jumps_in_mid_run_does_not_stretch_a_phase() -> None:
    events = [
        Event("phase_begin", 1102 * NS, 2 * NS, "client", 0, {"phase": "graph"}),
        Event("phase_end", 5103 * NS, 3 * NS, "client", 0, {"phase": "graph", "duration_ns": NS}),
        Event("phase_begin", 5103 * NS, 3 * NS, "client", 0, {"phase": "warm_steps"}),
        Event(
            "step", 5107 * NS, 7 * NS, "client", 0, {"index": 1, "kind": "warm", "duration_ns": NS}
        ),
    ]
    assert phases(run(events)) == [("graph", 2.0, 1.0), ("warm_steps", 3.0, 4.0)]


EVENTS = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(["phase_begin", "phase_end", "step", "hello", "bye", "note"]),
        t_ns=st.integers(1_100_000, 1_125_000).map(lambda ms: ms * 10**6),
        mono_ns=st.just(0),
        source=st.just("client"),
        task=st.just(0),
        data=st.fixed_dictionaries(
            {
                "phase": st.sampled_from(["graph", "first_step", "warm_steps", "verify"]),
                "duration_ns": st.one_of(
                    st.none(), st.integers(-1000, 30_000).map(lambda ms: ms * 10**6)
                ),
                "index": st.integers(0, 3),
                "kind": st.sampled_from(["cold", "warm", "traced"]),
                "process_start_t": st.one_of(st.none(), st.integers(-(2**70), 2**70)),
            }
        ),
    ),
    max_size=14,
    unique_by=lambda event: event.t_ns,
)
CLOCK = st.lists(
    st.builds(
        ClockSample,
        node=st.sampled_from(["tf0", "tf1"]),
        at_s=st.floats(-10, 50),
        offset_s=st.floats(-1e9, 1e9),
        error_s=st.floats(0, 1e6),
    ),
    max_size=5,
)
NODES = (NodeFacts("tf0", 0, "a:1"), NodeFacts("tf1", 1, "b:1"))


def check(explained: Explained, wall_s: float) -> None:
    for rows, rest_s in [
        (explained.ledger.rows, explained.ledger.unexplained_s),
        *((ledger.rows, ledger.unexplained_s) for ledger in explained.nodes),
    ]:
        for row in rows:
            assert 0 < row.duration_s <= wall_s
            assert 0 <= row.start_s <= wall_s
        for before, after in itertools.pairwise(rows):
            assert before.start_s + before.duration_s <= after.start_s + 1e-9
        assert rest_s >= 0
        total_s = math.fsum(row.duration_s for row in rows)
        assert total_s + rest_s == pytest.approx(wall_s, abs=1e-6)


@settings(deadline=None)
@given(EVENTS, CLOCK, SPANS)
def test_whatever_a_record_says_its_rows_add_up(
    events: list[Event], clock: list[ClockSample], own: list[Span]
) -> None:
    record = replace(RECORD, clock=tuple(clock), spans=tuple(own), nodes=NODES)
    check(run(events, record, REACHED), 20.0)


@settings(deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(events: list[Event], random: Random) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)
    one, other = (run(each, replace(RECORD, nodes=NODES)) for each in (events, shuffled))
    assert one.ledger == other.ledger
    assert one.nodes == other.nodes


@settings(deadline=None)
@given(EVENTS, st.integers(-(10**6), 10**6))
def test_a_clock_and_its_samples_may_shift_together(events: list[Event], shift_s: int) -> None:
    moved = [
        replace(
            each,
            t_ns=each.t_ns + shift_s * NS,
            data={**each.data, "process_start_t": None},
        )
        for each in events
    ]
    still = [replace(each, data={**each.data, "process_start_t": None}) for each in events]
    clock = tuple(replace(each, offset_s=each.offset_s + shift_s) for each in RECORD.clock)
    one = run(still, replace(RECORD, nodes=NODES))
    other = run(moved, replace(RECORD, nodes=NODES, clock=clock))
    check(other, 20.0)
    assert len(one.ledger.rows) == len(other.ledger.rows)
    for before, after in zip(one.ledger.rows, other.ledger.rows, strict=True):
        assert before.phase == after.phase
        assert after.start_s == pytest.approx(before.start_s, abs=1e-5)
        assert after.duration_s == pytest.approx(before.duration_s, abs=1e-5)


def test_copies_of_events_count_once() -> None:
    events = [*phase("graph", 1102, 1104), *phase("warm_steps", 1104, 1110), *steps(3, 1, 1)]
    one, other = run(events), run([*events, *events])
    assert one.ledger == other.ledger
    assert one.stats == other.stats


OWN = (Span("connect", "labctl", 0, 2, "labctl"), Span("collect", "labctl", 15, 4, "labctl"))
YEAR = 365 * 86_400


def process(start_s: float, started_s: float | None = None) -> tuple[list[Event], RunRecord]:
    """Return a run whose client's clock says that it began at a time; its unit's start may say otherwise."""

    def at(kind: str, after_s: float, **data: object) -> Event:
        mono_ns = round((50 + after_s) * NS)
        return Event(kind, round((start_s + after_s) * NS), mono_ns, "client", 0, dict(data))

    events = [
        at("hello", 1, process_start_t=round(start_s * NS)),
        at("phase_begin", 0, phase="interpreter"),
        at("phase_end", 1, phase="interpreter", duration_ns=NS),
        at("phase_begin", 1, phase="graph"),
        at("phase_end", 9, phase="graph", duration_ns=8 * NS),
        at("bye", 9),
    ]
    remote = RemoteRun("tf0", "/d", "u", "b", started_s)
    ended = UnitEnded("success", "exited", "0", 1114.0)
    return events, replace(RECORD, remote=remote, unit_end=ended, spans=OWN)


@pytest.mark.parametrize(
    ("shift_s", "said"),
    [
        (-30 * YEAR, "clock: the client's events lie 30 years before the run"),
        (10 * YEAR, "clock: the client's events lie 9.99 years after the run"),
        (3 * 3600, "clock: the client's events lie 3 hours after the run"),
    ],
)
def test_events_outside_of_the_run_are_no_part_of_it(shift_s: float, said: str) -> None:
    events, record = process(1104.0 + shift_s)
    explained = run(events, record)
    assert [row.phase for row in explained.ledger.rows] == ["connect", "collect"]
    assert explained.ledger.unexplained_s == pytest.approx(14.0)
    line = f"{said}: its clock cannot be believed; its phases are left out"
    assert line in explained.problems


def test_a_units_start_and_the_monotonic_clock_place_events() -> None:
    right = run(*process(1104.0, 1104.0))
    assert not any("believed" in each for each in right.problems)
    for shift_s in (-30 * YEAR, 10 * YEAR):
        moved = run(*process(1104.0 + shift_s, 1104.0))
        assert moved.ledger == right.ledger
        assert any("placed by the start of its unit" in each for each in moved.problems)
    late = run(*process(1104.0 - 30 * YEAR, 1118.0))  # it would end after the run
    assert any("left out" in each for each in late.problems)


def test_a_units_end_outside_of_the_run_ends_nothing() -> None:
    events, record = process(1104.0)
    assert ("exit", 13.0, 1.0) in phases(run(events, record))
    absurd = replace(record, unit_end=UnitEnded("success", "exited", "0", 1104.0 + 10 * YEAR))
    assert phases(run(events, absurd))[-1] == ("collect", 15.0, 4.0)
