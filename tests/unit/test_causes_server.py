"""Servers that went away or came back, other versions, no memory left: one fault, one cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.causes.model import Verdict
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.causes.server import RULES
from labctl.analysis.explained import Explained
from labctl.node import wire
from labctl.runs.record import FailedCheck, Failure, UnitEnded
from tests.unit.stories import (
    AT_CONTACT,
    HEALTHY,
    MATPOW,
    SERVER,
    START_S,
    TF0,
    TF1,
    event,
    peer,
    run,
    steps,
    usage,
)

IDS = {"server-restarted", "server-killed", "node-rebooted", "out-of-memory", "version-skew"}
AGAIN = replace(SERVER, invocation_id="b" * 32, started_at_s=START_S + 10)
INCARNATION = "RecvTensor expects a different device incarnation: 1 vs. 2. Your worker job was probably restarted."
# The first five steps of a run, the last one ended 8.9 s after labctl's start.
MIDWAY = [*HEALTHY[:13], *steps(8.3, 6)[1:]]
ABORTED = event(
    wire.ERROR, 10.9, kind="peer-restarted", message="AbortedError: x", detail=INCARNATION
)


def verdicts(of: Explained) -> dict[str, Verdict]:
    return {rule.cause: rule.judge(of) for rule in RULES}


def found(of: Explained) -> list[str]:
    return [cause for cause, verdict in verdicts(of).items() if verdict.status == "found"]


def died(*more: Any, **record: Any) -> Explained:
    """Return a run that ended in mid-run, two seconds after its last step."""
    return run([*MIDWAY, *more], outcome="failed", ended_at_s=10.9, **record)


RESTARTED = died(
    ABORTED,
    after=(AGAIN,),
    server_log=("Stopping tf-join-server.service - TensorFlow server of task 1...",),
    failure=Failure("server-restarted", "server on tf1 restarted at 00:00:10 UTC"),
)
FAULTS = {
    "restarted": (RESTARTED, "server-restarted"),
    "starting again": (
        died(after=(replace(SERVER, active="activating"),)),
        "server-restarted",
    ),
    "restarted, nobody looked": (died(ABORTED, after=None), "server-restarted"),
    "restarted, as the failure says": (
        died(after=None, failure=Failure("server-restarted", "server on tf1 restarted at 1 UTC")),
        "server-restarted",
    ),
    "killed and started again": (
        died(
            ABORTED,
            after=(AGAIN,),
            server_log=("tf-join-server.service: Main process exited, code=killed, status=9/KILL",),
        ),
        "server-restarted",
    ),
    "gone": (died(after=(replace(SERVER, active="failed"),)), "server-killed"),
    "gone, seen by the port alone": (
        died(peer(10.0, "refused", "Connection refused"), after=None),
        "server-killed",
    ),
    "stopped, as the failure says": (
        died(after=None, failure=Failure("server-stopped", "server on tf1 stopped in mid-run")),
        "server-killed",
    ),
    "node of the server": (died(after=(replace(AGAIN, boot_id="other"),)), "node-rebooted"),
    "node of the client": (
        died(failure=Failure("node-rebooted", "tf0 restarted at 00:00:10 UTC")),
        "node-rebooted",
    ),
    "memory of the server": (
        died(
            after=(AGAIN,),
            server_log=(
                "tf-join-server.service: Main process exited, code=killed, status=9/KILL",
                "tf-join-server.service: Failed with result 'oom-kill'.",
            ),
        ),
        "out-of-memory",
    ),
    "memory of the client": (
        died(unit_end=UnitEnded("oom-kill", "killed", "KILL", START_S + 10.9)),
        "out-of-memory",
    ),
    "memory of the devices": (
        died(
            event(
                wire.ERROR,
                10.9,
                kind="out-of-memory",
                message="ResourceExhaustedError: OOM when allocating",
            )
        ),
        "out-of-memory",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_has_one_cause(name: str) -> None:
    of, cause = FAULTS[name]
    said = verdicts(of)
    assert set(said) == IDS
    assert found(of) == [cause]
    assert said[cause].evidence
    assert all(said[cause].evidence)
    assert said[cause].remedy
    assert said[cause].seconds == pytest.approx(2.0)
    assert "no progress for 2.0 s" in said[cause].evidence[-1]
    assert all(verdict.evidence for verdict in said.values())


def test_the_evidence_names_both_processes_and_tensorflows_words() -> None:
    said = verdicts(RESTARTED)["server-restarted"]
    assert said.title == "The join server on tf1 was restarted in mid-run"
    assert said.evidence[0] == (
        "the server on tf1 was invocation aaaaaaaa at the start, bbbbbbbb at the end, started 10.0 s after labctl"
    )
    assert any("Stopping tf-join-server" in line for line in said.evidence)
    assert any("different device incarnation" in line for line in said.evidence)


def test_a_unit_that_is_starting_again_is_not_told_as_the_same_process() -> None:
    said = verdicts(FAULTS["starting again"][0])["server-restarted"]
    assert (
        said.evidence[0] == "tf-join-server on tf1 was active at the start, activating at the end"
    )


def test_what_ended_a_run_comes_before_what_it_paid_on_its_way() -> None:
    of = run([*MIDWAY, ABORTED], outcome="failed", ended_at_s=10.9, after=(AGAIN,))
    causes = [each.cause for each in judge_all(of) if each.status == "found"]
    assert causes[0] == "server-restarted"
    assert "import" in causes


def test_a_healthy_run_rules_all_of_them_out() -> None:
    used = usage(9.0, 1.0, 0.0)
    used.data["rss_bytes"] = 600 * 2**20
    said = verdicts(run([*HEALTHY[:-1], used, HEALTHY[-1]]))
    assert {verdict.status for verdict in said.values()} == {"ruled_out"}
    assert said["server-restarted"].evidence == (
        "the server on tf1 was the same process (invocation aaaaaaaa) to the end",
    )
    assert said["node-rebooted"].evidence == ("tf1 stayed in boot boot-1",)
    assert said["out-of-memory"].evidence == ("at most 600 MiB in use by a task, on tf0",)
    assert said["version-skew"].evidence == ("TensorFlow 2.21.0 on tf0, 2.21.0 on tf1",)


def test_a_run_that_did_not_notice_the_restart_is_told_with_low_confidence() -> None:
    said = verdicts(run(after=(AGAIN,)))["server-restarted"]
    assert (said.status, said.confidence, said.seconds) == ("found", "low", None)


def test_a_server_that_was_down_from_the_start_did_not_go_away() -> None:
    down = replace(SERVER, active="failed")
    said = verdicts(died(before=(down,), after=(down,)))
    assert said["server-killed"].status == "ruled_out"
    assert said["server-killed"].evidence == ("tf-join-server on tf1 was failed from the start",)


@pytest.mark.parametrize("outcome", ["ok", "timeout"])
def test_different_versions_are_a_cause_of_each_step(outcome: Any) -> None:
    other = replace(TF1, versions={"tensorflow": "2.20.0"})
    events = HEALTHY if outcome == "ok" else AT_CONTACT
    of = run(events, outcome=outcome, nodes=(TF0, other))
    said = verdicts(of)["version-skew"]
    assert (said.status, said.scope, said.seconds) == ("found", "step", None)
    assert "2.21.0 on tf0, 2.20.0 on tf1" in said.title
    assert judge_all(of)[0].cause == "version-skew"


def test_what_a_server_loaded_counts_more_than_what_is_installed_since() -> None:
    hello = event(wire.HELLO, 0.0, source="join-server", task=1, tensorflow="2.19.1")
    assert "2.19.1 on tf1" in verdicts(run(server_events=(hello,)))["version-skew"].title


def test_versions_that_had_no_chance_to_matter_are_no_cause() -> None:
    nodes = (TF0, replace(TF1, versions={"tensorflow": "2.20.0"}))
    down = run([*HEALTHY[:2], peer(13.0, "refused")], outcome="failed", nodes=nodes)
    for of in (down, died(ABORTED, after=(AGAIN,), nodes=nodes)):
        said = verdicts(of)["version-skew"]
        assert said.status == "ruled_out"
        assert said.evidence == (
            "TensorFlow 2.21.0 on tf0, 2.20.0 on tf1, but something else ended the run",
        )


def test_a_patch_release_is_no_other_version() -> None:
    nodes = (TF0, replace(TF1, versions={"tensorflow": "2.21.3"}))
    assert verdicts(run(nodes=nodes))["version-skew"].status == "ruled_out"


def test_what_nobody_looked_at_is_not_measured() -> None:
    silent = run(before=(), after=None, nodes=(TF0, replace(TF1, versions={})))
    said = verdicts(silent)
    assert said["server-restarted"].status == "not_measured"
    assert said["server-killed"].status == "not_measured"
    assert said["version-skew"].status == "not_measured"
    assert "tf1" in said["version-skew"].evidence[0]


def test_a_kill_of_unknown_reason_is_no_proof_of_memory() -> None:
    said = verdicts(died(failure=Failure("signal", "the client was ended by signal KILL")))
    assert said["out-of-memory"].status == "not_measured"
    assert "journalctl -k" in said["out-of-memory"].evidence[1]


def test_a_run_on_one_node_has_no_servers() -> None:
    alone = replace(MATPOW, placement="one-process")
    said = verdicts(run(parameters=alone, before=(), after=()))
    assert {verdict.status for verdict in said.values()} == {"ruled_out"}


def test_two_faults_of_two_nodes_are_told_apart() -> None:
    tf2 = replace(TF1, name="tf2", task=2, tf_address="10.0.0.4:2222")
    other = replace(SERVER, node="tf2")
    of = died(
        nodes=(TF0, TF1, tf2),
        before=(SERVER, other),
        after=(replace(SERVER, active="inactive"), replace(other, invocation_id="c" * 32)),
        failed_checks=(FailedCheck("clock", "tf2", "off", "", ""),),
    )
    said = verdicts(of)
    assert found(of) == ["server-restarted", "server-killed"]
    assert "tf2" in said["server-restarted"].title
    assert "tf1" in said["server-killed"].title


def test_a_killed_server_that_systemd_started_anew_is_one_story_with_the_failure() -> None:
    said = verdicts(FAULTS["killed and started again"][0])["server-restarted"]
    assert said.evidence[0] == "its process was killed (signal KILL); systemd started it anew"
    assert "last words" in said.remedy
    assert "last words" not in verdicts(RESTARTED)["server-restarted"].remedy


def test_without_a_log_or_usage_memory_is_not_ruled_out() -> None:
    error = event(wire.ERROR, 9.0, kind="unexpected", message="x")
    bare = verdicts(run([*HEALTHY[:8], error], outcome="failed"))["out-of-memory"]
    assert bare.status == "not_measured"
    logged = verdicts(run([*HEALTHY[:8], error], outcome="failed", log=("a", "b")))
    assert logged["out-of-memory"].evidence == ("0 of 2 log lines speak of memory",)
