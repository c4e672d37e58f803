"""How a playbook's events become role times, a recap and one error."""

from __future__ import annotations

from pathlib import Path

from labctl.cli.provision import _error, _phases
from labctl.playbook import HostStats, PlaybookOutcome, RoleTime, TaskFailure, _Timeline


def outcome(*failures: TaskFailure, rc: int = 2) -> PlaybookOutcome:
    return PlaybookOutcome("provision.yml", rc, 1.0, (), (), {}, failures, Path("/log"))


def test_tasks_add_up_to_roles_in_the_order_of_their_first() -> None:
    timeline = _Timeline()
    for at_s, role in [(1.0, "base"), (3.0, "tf"), (7.0, "base"), (8.0, None)]:
        data = {"role": role, "play": "Check"}
        timeline.add({"event": "playbook_on_task_start", "event_data": data}, at_s)
    found = [(each.role, each.start_s, each.duration_s) for each in timeline.roles(10.0)]
    assert found == [("base", 1.0, 3.0), ("tf", 3.0, 4.0), ("Check", 8.0, 2.0)]


def test_stretches_are_the_roles_in_the_order_of_time() -> None:
    timeline = _Timeline()
    for at_s, role in [(1.0, "base"), (2.0, "base"), (3.0, "tf"), (7.0, "base"), (8.0, None)]:
        data = {"role": role, "play": "Check"}
        timeline.add({"event": "playbook_on_task_start", "event_data": data}, at_s)
    found = [(each.role, each.start_s, each.duration_s) for each in timeline.stretches(10.0)]
    assert found == [("base", 1.0, 2.0), ("tf", 3.0, 4.0), ("base", 7.0, 1.0), ("Check", 8.0, 2.0)]


def test_a_playbook_without_a_task_has_no_roles() -> None:
    assert _Timeline().roles(3.0) == ()
    assert _Timeline().stretches(3.0) == ()


def test_phases_add_up_to_the_playbook(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    times = (RoleTime("Validate it", 2.0, 0.5), RoleTime("base", 2.5, 7.5))
    done = PlaybookOutcome("provision.yml", 0, 10.0, (), times, {}, (), Path("/log"))
    found = _phases(done, 1000.0, tmp_path)
    assert [(each.phase, each.started_unix_s, each.duration_s) for each in found] == [
        ("ansible-playbook", 1000.0, 2.0),
        ("play Validate it", 1002.0, 0.5),
        ("role base", 1002.5, 7.5),
    ]
    assert sum(each.duration_s for each in found) == done.wall_s


def test_ignored_failures_are_none_and_the_recap_has_every_host() -> None:
    timeline = _Timeline()
    failed = {
        "host": "a",
        "task": "t",
        "res": {"msg": "no", "results": [{"failed": True, "msg": "x"}]},
    }
    timeline.add({"event": "runner_on_failed", "event_data": {**failed, "ignore_errors": True}}, 0)
    timeline.add({"event": "runner_on_failed", "event_data": failed}, 0)
    timeline.add({"event": "runner_on_unreachable", "event_data": {"host": "b", "task": "t"}}, 0)
    stats = {"ok": {"a": 3}, "changed": {"a": 1}, "failures": {"a": 1}, "dark": {"b": 1}}
    timeline.add({"event": "playbook_on_stats", "event_data": stats}, 0)
    assert timeline.failures == [
        TaskFailure("a", "t", "no\nx", unreachable=False),
        TaskFailure("b", "t", "no message", unreachable=True),
    ]
    assert timeline.hosts == {
        "a": HostStats(ok=3, changed=1, failed=1),
        "b": HostStats(unreachable=1),
    }


def test_a_roles_three_parts_become_the_errors() -> None:
    message = "tf1 runs Plan 9\n  expected  Debian\n  do        install it\n\nmore"
    error = _error(
        outcome(
            TaskFailure("tf1", "t", message, unreachable=False),
            TaskFailure("tf0", "t", "x", unreachable=False),
        )
    )
    assert str(error) == (
        "tf1 runs Plan 9 (also failed: tf0)\n  expected  Debian\n  do        install it"
    )
    assert error.exit_code == 7


def test_other_failures_name_host_task_and_log() -> None:
    error = _error(outcome(TaskFailure("tf1", "Install", "disk\nfull", unreachable=False)))
    assert error.found == "tf1: disk full in 'Install'"
    assert "/log" in (error.do or "")
    error = _error(outcome(TaskFailure("tf1", "Facts", "No route", unreachable=True)))
    assert error.found == "tf1: No route, it did not answer"
    assert _error(outcome(rc=4)).found == "ansible-playbook provision.yml ended with 4"
