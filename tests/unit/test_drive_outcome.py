from __future__ import annotations

from typing import Any

import pytest

from labctl.drive.outcome import Ending, Why, judge
from labctl.drive.watch import ServerChange, compare
from labctl.remote.units import UnitEnd
from labctl.runs.events import Event
from labctl.runs.record import ServerState

RESTART = ServerChange("tf1", "restarted", 1796048102.0)


def event(kind_: str, **data: Any) -> Event:
    return Event(kind_, 0, 0, "client", 0, data)


def exited(status: int) -> UnitEnd:
    return UnitEnd("success" if status == 0 else "exit-code", "exited", str(status), 2.0)


TERM = UnitEnd("success", "killed", "TERM", 2.0)
RESULT = event("result", ok=True)


@pytest.mark.parametrize(
    ("ending", "events", "outcome", "kind"),
    [
        (Ending("ended", exited(0)), [RESULT], "ok", None),
        (Ending("ended", exited(0)), [], "failed", "no-result"),
        (Ending("cancelled", exited(0)), [RESULT], "ok", None),
        (Ending("cancelled", TERM), [], "cancelled", "cancelled"),
        (
            Ending("ended", exited(10)),
            [event("result", relative_error=0.5)],
            "wrong",
            "wrong-result",
        ),
        (Ending("timeout", TERM), [], "timeout", "timeout"),
        (Ending("ended", UnitEnd("timeout", "killed", "TERM", 2.0)), [], "timeout", "timeout"),
        (Ending("lost", None, "tf0 is gone"), [], "lost", "connection-lost"),
        (Ending("rebooted", None, "tf0 restarted"), [], "failed", "node-rebooted"),
        (Ending("vanished", None, "gone"), [], "failed", "no-end"),
        (Ending("ended", TERM), [], "failed", "signal"),
        (Ending("ended", UnitEnd("signal", "killed", "KILL", 2.0)), [], "failed", "signal"),
        (
            Ending("ended", UnitEnd("oom-kill", "killed", "KILL", 2.0)),
            [],
            "failed",
            "out-of-memory",
        ),
        (Ending("ended", exited(12)), [], "failed", "peer-lost"),
        (Ending("ended", exited(13)), [], "failed", "bad-plan"),
        (Ending("ended", exited(3)), [], "failed", "exit-status"),
        (
            Ending("ended", exited(11)),
            [event("error", kind="script", message="no")],
            "failed",
            "script",
        ),
        (Ending("server", TERM, server=RESTART), [], "failed", "server-restarted"),
    ],
)
def test_what_a_run_came_to(
    ending: Ending, events: list[Event], outcome: str, kind: str | None
) -> None:
    verdict = judge(ending, events, [], has_result=True)
    assert verdict.outcome == outcome
    assert (None if verdict.failure is None else verdict.failure.kind) == kind


def test_a_restarted_server_is_named_with_its_time() -> None:
    verdict = judge(Ending("ended", exited(11)), [], [RESTART], has_result=True)
    assert verdict.failure is not None
    assert verdict.failure.message == "server on tf1 restarted at 14:15:02 UTC"


def test_a_restart_that_did_no_harm_is_a_warning() -> None:
    verdict = judge(Ending("ended", exited(0)), [RESULT], [RESTART], has_result=True)
    assert verdict.outcome == "ok"
    assert "restarted at 14:15:02" in verdict.warnings[0]


def test_a_script_needs_no_result() -> None:
    assert judge(Ending("ended", exited(0)), [], [], has_result=False).outcome == "ok"


def test_a_time_out_says_where_it_hung() -> None:
    events = [
        event("phase_begin", phase="graph"),
        event("phase_end", phase="graph"),
        event("phase_begin", phase="first_step"),
    ]
    verdict = judge(Ending("timeout", TERM, "no end within 5 s"), events, [], has_result=True)
    assert verdict.failure is not None
    assert verdict.failure.message == "no end within 5 s in phase first_step"


BEFORE = ServerState("tf1", "active", "one", 100.0, "boot")


def test_a_killed_servers_old_start_is_not_taken_for_its_new_one() -> None:
    first = compare(BEFORE, ServerState("tf1", "activating", "one", 100.0, "boot"))
    assert first is not None
    assert first.at_s is None
    later = compare(BEFORE, ServerState("tf1", "active", "two", 160.0, "boot"))
    assert later is not None
    end = UnitEnd("exit-code", "exited", "12", 165.0)
    verdict = judge(Ending("ended", end, server=first), (), [later], has_result=True)
    assert verdict.failure is not None
    assert verdict.failure.message == "server on tf1 restarted at 00:02:40 UTC"


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        (("active", "one", 100.0, "boot"), None),
        (("active", "two", 160.0, "boot"), "restarted"),
        (("activating", "two", 160.0, "boot"), "restarted"),
        (("activating", "one", 100.0, "boot"), "restarted"),  # killed, and systemd is at it
        (("inactive", "one", 100.0, "boot"), "stopped"),
        (("failed", "one", 100.0, "boot"), "stopped"),
        (("active", "two", 160.0, "another"), "rebooted"),
    ],
)
def test_a_server_is_the_same_only_as_the_same_process(
    now: tuple[str, str, float, str], kind: Why | None
) -> None:
    change = compare(BEFORE, ServerState("tf1", *now))
    assert (None if change is None else change.kind) == kind
    unused = ServerState("tf1", "inactive", "zero", None, "boot")
    assert compare(unused, ServerState("tf1", *now)) is None
