"""What a join server's node did beside the client's phases, by the server's `usage` events."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.analysis.explain import explain
from labctl.analysis.ledger import NodeLedger
from labctl.runs.data import RunData
from labctl.runs.events import Event
from labctl.runs.record import (
    NodeFacts,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
    ServerState,
)

NS = 1_000_000_000
SERVER = ServerState("tf1", "active", "i", 1_795_999_000.0, "b")
START_S = 1_796_000_000
RECORD = RunRecord(
    run_id="r",
    lab="x",
    provider="none",
    outcome="ok",
    parameters=Parameters("script", False, False, 60.0),
    tasks=2,
    origin=Origin(float(START_S), 0.0, "b"),
    remote=RemoteRun("tf0", "/d", "u"),
    nodes=(NodeFacts("tf0", 0, "a:1"), NodeFacts("tf1", 1, "b:1")),
    labctl_version="0",
    payload_sha256="",
    spec_sha256="",
    servers_before=(SERVER,),
    servers_after=(SERVER,),
    wall_s=20.0,
)


def server(kind: str, at_s: float, **data: object) -> Event:
    at_ns = round(at_s * NS)
    return Event(kind, START_S * NS + at_ns, 1000 * NS + at_ns, "join-server", 1, dict(data))


def usage(at_s: float, cpu_s: float | None, wait_s: float | None = 0.0) -> Event:
    return server(
        "usage",
        at_s,
        cpu_ns=None if cpu_s is None else round(cpu_s * NS),
        wait_ns=None if wait_s is None else round(wait_s * NS),
    )


def ledger(
    events: Sequence[Event], record: RunRecord = RECORD, client: Sequence[Event] = ()
) -> NodeLedger:
    explained = explain(RunData(Path(), record, tuple(client), {"tf1": tuple(events)}))
    return explained.nodes[2]


def rows(found: NodeLedger) -> list[tuple[str, float, float]]:
    return [(row.phase, round(row.start_s, 6), round(row.duration_s, 6)) for row in found.rows]


WORK = [usage(5, 1.0), usage(5.5, 1.5), usage(6, 1.7, 0.3), usage(6.5, 1.702, 0.3)]


def test_a_server_works_where_its_readings_say_so_and_silence_is_idle() -> None:
    found = ledger(WORK)
    assert rows(found) == [("waiting", 0, 5), ("working", 5, 1), ("waiting", 6, 14)]
    assert found.rows[1].source == "usage"
    assert found.unexplained_s == pytest.approx(0, abs=1e-6)


def test_an_interval_of_some_work_is_shared_out() -> None:
    found = ledger([usage(5, 1.0), usage(5.5, 1.1, 0.1), usage(6, 1.1, 0.1)])
    assert rows(found)[1:] == [("working", 5, 0.2), ("waiting", 5.2, 14.8)]


def test_rows_of_the_clients_phases_take_an_intervals_work_first() -> None:
    client = [
        Event(kind, START_S * NS + round(at_s * NS), 0, "client", 0, data)
        for kind, at_s, data in (
            ("phase_begin", 5.1, {"phase": "first_step"}),
            ("phase_end", 5.3, {"phase": "first_step", "duration_ns": NS // 5}),
        )
    ]
    told = rows(ledger([usage(5, 1.0), usage(5.5, 1.25), usage(6, 1.25)], client=client))
    assert told == [
        ("waiting", 0, 5),
        ("working", 5, 0.05),
        ("waiting", 5.05, 0.05),
        ("first_step", 5.1, 0.2),
        ("waiting", 5.3, 14.7),
    ]


def test_a_moment_between_two_phases_is_nobodys() -> None:
    client = [
        Event(kind, START_S * NS + round(at_s * NS), 0, "client", 0, {"phase": phase, **length})
        for kind, at_s, phase, length in (
            ("phase_begin", 5.1, "first_step", {}),
            ("phase_end", 5.2, "first_step", {"duration_ns": NS // 10}),
            ("phase_begin", 5.2005, "warm_steps", {}),
            ("phase_end", 5.4, "warm_steps", {"duration_ns": NS // 5}),
        )
    ]
    found = ledger(WORK, client=client)
    assert [row[0] for row in rows(found)] == [
        "waiting",
        "working",
        "first_step",
        "warm_steps",
        "working",
        "waiting",
    ]
    assert found.unexplained_s == pytest.approx(0.0005, abs=1e-6)


def test_what_no_reading_tells_is_unexplained() -> None:
    assert ledger([]).unexplained_s == pytest.approx(20)
    unreadable = ledger([usage(5, None), usage(5.5, None), usage(6, 1.0), usage(6.5, 1.0)])
    assert rows(unreadable) == [("waiting", 0, 5), ("waiting", 6, 14)]
    no_waits = ledger([usage(5, 1.0, None), usage(5.5, 1.2, None), usage(6, 1.2, None)])
    assert rows(no_waits)[1] == ("working", 5, 0.2)
    assert no_waits.unexplained_s == pytest.approx(0.3)


def test_a_server_without_work_wrote_nothing_and_waited() -> None:
    idle = replace(SERVER, cpu_s=3.0)
    record = replace(RECORD, servers_before=(idle,), servers_after=(replace(idle, cpu_s=3.1),))
    assert rows(ledger([], record)) == [("waiting", 0, 20)]
    busy = replace(record, servers_after=(replace(idle, cpu_s=9.0),))
    assert ledger([], busy).unexplained_s == pytest.approx(20)


def test_the_look_after_the_run_is_a_last_reading() -> None:
    after = replace(SERVER, cpu_s=2.0, wait_s=0.0)
    record = replace(RECORD, servers_after=(after,), wall_s=6.0)
    found = ledger([usage(5, 1.0), usage(5.5, 1.5)], record)
    assert rows(found)[1:] == [("working", 5, 1)]


def test_a_killed_server_is_known_to_live_until_it_spoke_last() -> None:
    again = [
        server("hello", 11, pid=2, process_start_t=(START_S + 10) * NS),
        server("phase_begin", 11, phase="server"),
        server("phase_end", 12, phase="server", duration_ns=NS),
        usage(12.5, 0.0),
        usage(13, 0.5),
        usage(13.5, 0.5),
    ]
    record = replace(RECORD, servers_after=(replace(SERVER, invocation_id="j"),))
    found = ledger([*WORK, *again], record)
    assert rows(found) == [
        ("waiting", 0, 5),
        ("working", 5, 1),
        ("waiting", 6, 0.5),
        ("join_server interpreter", 10, 1),
        ("join_server server", 11, 1),
        ("waiting", 12, 0.5),
        ("working", 12.5, 0.5),
        ("waiting", 13, 7),
    ]
    assert found.unexplained_s == pytest.approx(3.5)  # down


def test_no_server_of_a_run_waits_until_it_is_started() -> None:
    record = replace(
        RECORD, servers_before=(replace(SERVER, started_at_s=float(START_S + 3)),), wall_s=6.0
    )
    assert rows(ledger([], record)) == [("waiting", 0, 3)]


@pytest.mark.parametrize("placement", ["one-host", "one-process"])
def test_other_nodes_take_no_part_where_all_is_on_one(placement: str) -> None:
    parameters = replace(RECORD.parameters, placement=placement)
    record = replace(RECORD, parameters=parameters, servers_before=(), servers_after=())
    assert rows(ledger(WORK, record)) == [("waiting", 0, 20)]


EVENTS = st.lists(
    st.one_of(
        st.builds(
            usage,
            st.floats(-3, 25),
            st.one_of(st.none(), st.floats(-5, 50)),
            st.one_of(st.none(), st.floats(-5, 50)),
        ),
        st.builds(server, st.sampled_from(["hello", "bye", "ready"]), st.floats(-3, 25)),
        st.builds(
            lambda kind, at_s, ns: server(kind, at_s, phase="server", duration_ns=ns),
            st.sampled_from(["phase_begin", "phase_end"]),
            st.floats(-3, 25),
            st.integers(-NS, 30 * NS),
        ),
    ),
    max_size=14,
)
STATES = st.lists(
    st.builds(
        ServerState,
        node=st.just("tf1"),
        active=st.sampled_from(["active", "inactive"]),
        invocation_id=st.sampled_from(["i", "j"]),
        started_at_s=st.one_of(st.none(), st.floats(-10, 30).map(lambda s: START_S + s)),
        boot_id=st.just("b"),
        cpu_s=st.one_of(st.none(), st.floats(0, 60)),
        wait_s=st.one_of(st.none(), st.floats(0, 60)),
    ),
    max_size=1,
)


@settings(deadline=None)
@given(EVENTS, STATES, STATES, st.booleans())
def test_whatever_a_server_says_its_nodes_rows_add_up(
    events: list[Event], before: list[ServerState], after: list[ServerState], steps: bool
) -> None:
    record = replace(RECORD, servers_before=tuple(before), servers_after=tuple(after))
    client = [
        Event("phase_begin", (START_S + 4) * NS, 0, "client", 0, {"phase": "first_step"}),
        Event("phase_begin", (START_S + 9) * NS, 0, "client", 0, {"phase": "verify"}),
    ]
    found = ledger(events, record, client if steps else ())
    for row in found.rows:
        assert 0 < row.duration_s <= 20.0
        assert row.start_s >= 0
    for one, two in itertools.pairwise(found.rows):
        assert one.start_s + one.duration_s <= two.start_s + 1e-9
    assert found.unexplained_s >= 0
    total_s = math.fsum(row.duration_s for row in found.rows)
    assert total_s + found.unexplained_s == pytest.approx(20.0, abs=1e-5)
