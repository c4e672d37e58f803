"""What is made of a join server's journal and of /proc."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labctl.drive.servers import with_process, with_start
from labctl.runs.events import Event, parse
from labctl.runs.record import ServerState

STATE = ServerState("tf1", "active", "i", 100.0, "boot")


def events(*lines: tuple[float, str, dict[str, Any]]) -> list[Event]:
    rows = [
        json.dumps(
            {
                "event": kind,
                "t": round(t_s * 1e9),
                "mono": 0,
                "source": "join-server",
                "task": 1,
                **more,
            }
        )
        for t_s, kind, more in lines
    ]
    return list(parse(row.encode() for row in rows))


def test_a_start_is_told_in_phases_on_the_nodes_clock() -> None:
    told = with_start(
        STATE,
        events(
            (100.5, "hello", {"process_start_t": 100_000_000_000}),
            (100.5, "phase_end", {"phase": "interpreter", "duration_ns": 500_000_000}),
            (104.5, "phase_end", {"phase": "import_tensorflow", "duration_ns": 4_000_000_000}),
            (105.0, "ready", {"spec_sha256": "ab", "inter_op": 2}),
            (300.0, "phase_end", {"phase": "later", "duration_ns": 1}),
        ),
    )
    assert told.startup_s == pytest.approx(5.0)
    assert [(each.phase, each.duration_s) for each in told.phases] == [
        ("interpreter", 0.5),
        ("import_tensorflow", 4.0),
    ]
    assert [each.start_s for each in told.phases] == pytest.approx([100.0, 100.5])
    assert {(each.node, each.source) for each in told.phases} == {("tf1", "join-server")}
    assert (told.spec_sha256, told.inter_op) == ("ab", 2)


def test_only_the_last_start_counts() -> None:
    told = with_start(
        STATE,
        events(
            (90.0, "hello", {"process_start_t": 89_000_000_000}),
            (95.0, "phase_end", {"phase": "import_tensorflow", "duration_ns": 5_000_000_000}),
            (100.0, "hello", {"process_start_t": 99_000_000_000}),
            (101.0, "ready", {}),
        ),
    )
    assert told.startup_s == pytest.approx(2.0)
    assert told.phases == ()
    assert (told.spec_sha256, told.inter_op) == (None, None)


def test_a_start_that_has_no_end_keeps_the_phases_that_have() -> None:
    told = with_start(
        STATE,
        events(
            (100.0, "hello", {"process_start_t": 99_000_000_000}),
            (103.0, "phase_end", {"phase": "import_numpy", "duration_ns": 1_000_000_000}),
        ),
    )
    assert told.startup_s is None
    assert [each.phase for each in told.phases] == ["import_numpy"]


def test_a_journal_without_a_start_says_nothing() -> None:
    assert with_start(STATE, []) == STATE
    assert with_start(STATE, events((101.0, "ready", {"inter_op": 2}))) == STATE


STAT = "811 (python) (x) {} 1 811 811 0 -1 4194560 1 0 0 0 313 87 0 0 20 0 12 0 5 0"


def test_a_process_is_told_by_its_state_its_cpu_time_and_its_waiting() -> None:
    text = "\n".join([STAT.format("T"), "100", "3000000000 250000000 9", "1000000 250000000 4"])
    told = with_process(STATE, text)
    assert (told.process_state, told.cpu_s, told.wait_s) == ("T", 4.0, 0.5)


@pytest.mark.parametrize("rest", ["100\n0 0 0\n0 0 0", "100"])
def test_a_kernel_that_counts_no_waiting_is_not_0(rest: str) -> None:
    told = with_process(STATE, f"{STAT.format('S')}\n{rest}")
    assert (told.process_state, told.cpu_s, told.wait_s) == ("S", 4.0, None)


@pytest.mark.parametrize(
    "text", ["", "nonsense", f"{STAT.format('S')}\n100\nno numbers here", "1 (python) S 1"]
)
def test_a_process_that_is_gone_or_says_nonsense_is_unknown(text: str) -> None:
    assert with_process(STATE, text) == STATE


def test_a_process_without_its_ticks_has_no_cpu_time() -> None:
    told = with_process(STATE, STAT.format("S"))
    assert (told.process_state, told.cpu_s, told.wait_s) == ("S", None, None)
