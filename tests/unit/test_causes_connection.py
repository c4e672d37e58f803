"""What keeps the tasks apart: for each fault the one cause that it has, and numbers that rule out the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labctl.analysis.causes.connection import RULES
from labctl.analysis.causes.model import Verdict
from labctl.analysis.explained import Explained
from labctl.node import wire
from labctl.runs.record import FailedCheck, Failure
from tests.unit.stories import (
    AT_CONTACT,
    HEALTHY,
    HELLO,
    MATPOW,
    SERVER,
    SPEC,
    TF0,
    TF1,
    event,
    peer,
    phase,
    run,
    steps,
)

STILL = "CreateSession still waiting for response from worker: /job:local/replica:0/task:1"
IDS = {
    "peer-down",
    "port-filtered",
    "name-unresolvable",
    "name-resolves-to-self",
    "proxy",
    "peer-frozen",
    "port-in-use",
    "stale-spec",
    "protocol-skew",
}
OTHER = "9" * 64


def verdicts(of: Explained) -> dict[str, Verdict]:
    return {rule.cause: rule.judge(of) for rule in RULES}


def silent(state: str, detail: str = "", **more: object) -> Explained:
    """Return a run whose client waited ten seconds for task 1."""
    events = [
        *HELLO,
        peer(13.1, state, detail),
        event(wire.PHASE_END, 13.1, phase=wire.PHASE_PEERS, duration_ns=10**10, failed=True),
        event(wire.ERROR, 13.1, kind="peer-lost", message="no TensorFlow server answers"),
        event(wire.BYE, 13.1, exit=12),
    ]
    return run(events, outcome="failed", ended_at_s=13.2, **more)  # type: ignore[arg-type]


def port(node: str, found: str) -> FailedCheck:
    return FailedCheck("port", node, found, "", "")


def hung(**more: object) -> Explained:
    """Return a run that hung in its first step until it was ended."""
    return run(AT_CONTACT, outcome="timeout", ended_at_s=33.0, **more)  # type: ignore[arg-type]


PROXIED = hung(
    parameters=replace(MATPOW, environment=("http_proxy",)), log=(STILL, STILL), after=None
)
STALE = run(
    [
        *AT_CONTACT,
        event(
            wire.ERROR,
            28.3,
            kind="peer-unavailable",
            message="UnavailableError: see below",
            detail="x\nfailed to connect to all addresses; last error: ipv4:10.0.0.2:2299",
        ),
    ],
    outcome="failed",
    ended_at_s=28.4,
    before=(replace(SERVER, spec_sha256=OTHER),),
)
FAULTS = {
    "refused": (silent("refused", "Connection refused"), "peer-down"),
    "inactive server": (
        silent("refused", before=(replace(SERVER, active="inactive", spec_sha256=None),)),
        "peer-down",
    ),
    "dropped": (silent("timed out"), "port-filtered"),
    "no route": (silent("timed out", "No route to host"), "port-filtered"),
    "a firewall that refuses": (
        silent("refused", "Connection refused", before=(replace(SERVER, startup_s=4.7),)),
        "port-filtered",
    ),
    "dropped towards task 0": (
        hung(failed_checks=(port("tf0", "10.0.0.2:2222 timed out from tf1 (no connection)"),)),
        "port-filtered",
    ),
    "refused towards task 0": (
        hung(failed_checks=(port("tf0", "10.0.0.2:2222 refused the connection from tf1"),)),
        "port-filtered",
    ),
    "dropped between two others": (
        hung(failed_checks=(port("tf1", "10.0.0.3:2222 timed out from tf2 (no connection)"),)),
        "port-filtered",
    ),
    "mute": (silent("timed out", "connected, but nothing was sent"), "peer-frozen"),
    "unresolvable": (
        silent(
            "not resolvable",
            nodes=(TF0, replace(TF1, tf_address="x.invalid:2222")),
            before=(replace(SERVER, spec_sha256=OTHER),),
        ),
        "name-unresolvable",
    ),
    "a stranger": (silent("not gRPC", "first bytes b'SSH-2.0-O'"), "port-in-use"),
    "a stranger by the check": (
        silent(
            "timed out",
            "connected, but nothing was sent",
            failed_checks=(
                FailedCheck("unit", "tf1", "failed 2 min ago (port 2222 held by nc)", "", ""),
            ),
        ),
        "port-in-use",
    ),
    "own port taken": (
        run(
            [
                *HEALTHY[:5],
                *phase(wire.PHASE_SERVER, 8.2, 8.3, failed=True),
                event(
                    wire.ERROR, 8.3, kind="port-in-use", message="port 2222 is in use by nc (pid 8)"
                ),
            ],
            outcome="failed",
            ended_at_s=8.4,
        ),
        "port-in-use",
    ),
    "proxy": (PROXIED, "proxy"),
    "frozen in mid-run": (
        run(
            [*HEALTHY[:13], peer(20.0, "timed out", "connected, but nothing was sent")],
            outcome="failed",
            ended_at_s=25.0,
            after=(replace(SERVER, process_state="T"),),
        ),
        "peer-frozen",
    ),
    "frozen, seen by its state alone": (
        hung(after=(replace(SERVER, process_state="T"),)),
        "peer-frozen",
    ),
    "filtered in mid-run": (
        run([*HEALTHY[:13], peer(20.0, "timed out")], outcome="failed", ended_at_s=25.0),
        "port-filtered",
    ),
    "stale spec": (STALE, "stale-spec"),
    "stale spec by the check": (
        hung(
            before=(replace(SERVER, spec_sha256=None),),
            failed_checks=(FailedCheck("spec", "tf1", "has task:0 at 10.0.0.9:2222", "", ""),),
        ),
        "stale-spec",
    ),
    "another task there": (
        run(
            [
                *AT_CONTACT,
                event(
                    wire.ERROR,
                    8.5,
                    kind="wrong-cluster",
                    message="x",
                    detail="task:1 unknown device",
                ),
            ],
            outcome="failed",
            ended_at_s=8.6,
        ),
        "name-resolves-to-self",
    ),
    "alias": (
        hung(nodes=(TF0, replace(TF1, tf_address="127.0.1.1:2222"))),
        "name-resolves-to-self",
    ),
    "alias by the check": (
        silent(
            "refused",
            before=(replace(SERVER, spec_sha256=OTHER),),
            nodes=(TF0, replace(TF1, tf_address="tf1:2222")),
            failed_checks=(
                FailedCheck(
                    "addresses",
                    "tf0",
                    "tf1 (tf1) resolves to 127.0.1.1, a loopback address, on tf0",
                    "",
                    "",
                ),
            ),
        ),
        "name-resolves-to-self",
    ),
    "versions": (
        hung(nodes=(TF0, replace(TF1, versions={"tensorflow": "2.15.1"})), log=(STILL,)),
        "protocol-skew",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_has_one_cause(name: str) -> None:
    of, cause = FAULTS[name]
    said = verdicts(of)
    assert set(said) == IDS
    assert [each for each, verdict in said.items() if verdict.status == "found"] == [cause]
    assert said[cause].evidence
    assert said[cause].remedy
    assert said[cause].scope == "once"
    for verdict in said.values():
        assert all(verdict.evidence)
        if verdict.status == "ruled_out":
            assert verdict.seconds is None
            assert any(char.isdigit() for char in "".join(verdict.evidence))


def test_a_healthy_run_rules_all_of_them_out() -> None:
    said = verdicts(run())
    assert {each: verdict.status for each, verdict in said.items()} == dict.fromkeys(
        IDS, "ruled_out"
    )
    assert said["peer-down"].evidence == ("task:1 at 10.0.0.3:2222 (tf1) answered within 5.0 ms",)
    assert said["stale-spec"].evidence == (f"tf1 serves the run's own spec, {SPEC[:12]}",)
    assert "10.0.0.3:2222" in said["name-unresolvable"].evidence[0]


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("refused", 10.1), ("dropped", 10.1), ("proxy", 24.7), ("stale spec", 20.1)],
)
def test_a_hung_run_costs_from_its_last_progress_to_its_end(name: str, seconds: float) -> None:
    of, cause = FAULTS[name]
    found = verdicts(of)[cause]
    assert found.seconds == pytest.approx(seconds)
    assert f"no progress for {seconds:.1f} s in phase" in found.evidence[-1]


def test_the_evidence_names_node_address_and_words() -> None:
    down = verdicts(FAULTS["inactive server"][0])["peer-down"]
    assert "task:1 at 10.0.0.3:2222 (tf1): refused" in down.evidence
    assert "tf-join-server on tf1 was inactive at the start" in down.evidence
    assert down.remedy == "on tf1: sudo systemctl restart tf-join-server"
    proxy = verdicts(PROXIED)["proxy"]
    assert proxy.evidence[0] == "http_proxy was set for the client: gRPC obeys it silently"
    assert any("answers a plain probe" in line for line in proxy.evidence)
    assert any("task:1 (2 times)" in line for line in proxy.evidence)
    assert "no_proxy=10.0.0.3" in proxy.remedy
    stale = verdicts(STALE)["stale-spec"]
    assert f"tf1 serves spec {OTHER[:12]}, the run has {SPEC[:12]}" in stale.evidence
    assert any("ipv4:10.0.0.2:2299" in line for line in stale.evidence)


def test_a_port_that_only_the_checks_could_not_reach_costs_the_hang() -> None:
    found = verdicts(FAULTS["dropped towards task 0"][0])["port-filtered"]
    assert found.title == "Packets to task:0's port on tf0 are dropped"
    assert found.evidence[0] == (
        "check port on tf0: 10.0.0.2:2222 timed out from tf1 (no connection)"
    )
    assert found.seconds == pytest.approx(24.7)
    refused = FAULTS["refused towards task 0"][0]
    assert "A firewall refuses" in verdicts(refused)["port-filtered"].title


def test_a_port_that_the_checks_could_not_reach_is_no_cause_of_a_run_with_steps() -> None:
    checks = (port("tf0", "10.0.0.2:2222 timed out from tf1 (no connection)"),)
    for of in (
        run(failed_checks=checks),
        run(HEALTHY[:13], outcome="timeout", ended_at_s=25.0, failed_checks=checks),
    ):
        assert verdicts(of)["port-filtered"].status == "ruled_out"


def test_a_firewall_that_refuses_is_told_without_contradiction() -> None:
    said = verdicts(
        silent(
            "timed out",
            failed_checks=(port("tf1", "10.0.0.3:2222 refused the connection from tf0"),),
        )
    )["port-filtered"]
    assert said.title == "A firewall refuses packets to task:1's port on tf1"
    assert not any("nobody refused" in line for line in said.evidence)
    alive = verdicts(FAULTS["a firewall that refuses"][0])["port-filtered"]
    assert any("answered on tf1 itself 4.7 s" in line for line in alive.evidence)


def test_a_proxy_that_spares_the_peers_is_none() -> None:
    spared = replace(MATPOW, environment=("http_proxy", "no_proxy"))
    assert verdicts(run(parameters=spared))["proxy"].status == "ruled_out"
    unsure = verdicts(hung(parameters=spared))["proxy"]
    assert (unsure.status, unsure.confidence) == ("found", "medium")
    upper_case = replace(MATPOW, environment=("HTTP_PROXY",))
    assert verdicts(hung(parameters=upper_case))["proxy"].status == "ruled_out"


def test_a_spec_that_did_no_harm_is_told_without_a_price() -> None:
    stale = verdicts(run(before=(replace(SERVER, spec_sha256=OTHER),)))["stale-spec"]
    assert (stale.status, stale.seconds, stale.confidence) == ("found", None, "medium")


def test_a_hang_that_nothing_explains_is_not_guessed_at() -> None:
    said = verdicts(hung(log=(STILL,)))
    assert [each for each, verdict in said.items() if verdict.status == "found"] == []
    assert said["protocol-skew"].status == "not_measured"
    assert "GRPC_VERBOSITY" in said["protocol-skew"].evidence[1]


def test_a_server_that_dies_in_mid_run_is_no_peer_that_was_down() -> None:
    died = run(
        [*HEALTHY[:13], *steps(8.4, 3), peer(11.0, "refused")], outcome="failed", ended_at_s=16.0
    )
    assert {verdict.status for verdict in verdicts(died).values()} <= {"ruled_out"}


@pytest.mark.parametrize("placement", ["one-process", "one-host"])
def test_a_run_on_one_node_has_no_such_cause(placement: str) -> None:
    alone = replace(MATPOW, placement=placement)
    events = [each for each in HEALTHY if each.kind != wire.PEER or placement == "one-host"]
    said = verdicts(run(events, parameters=alone, before=(), after=()))
    assert {verdict.status for verdict in said.values()} == {"ruled_out"}


def test_an_empty_record_says_what_is_missing() -> None:
    empty = run(
        (),
        outcome="failed",
        ended_at_s=None,
        before=(),
        after=None,
        nodes=(replace(TF0, versions={}), replace(TF1, versions={})),
        failure=Failure("no-end", "the client is gone"),
    )
    said = verdicts(empty)
    assert said["peer-down"].status == "not_measured"
    assert said["stale-spec"].status == "not_measured"
    assert said["protocol-skew"].status == "not_measured"
    assert not [verdict for verdict in said.values() if verdict.status == "found"]


def test_what_the_client_did_not_say_of_its_variables_rules_no_proxy_out() -> None:
    older = [replace(each, data={}) if each.kind == wire.HELLO else each for each in AT_CONTACT]
    silent_record = run(older, outcome="timeout", ended_at_s=33.0, log=(STILL,))
    assert verdicts(silent_record)["proxy"].status == "not_measured"
    told = verdicts(hung(after=None))["proxy"]
    assert told.evidence == ("0 proxy variables were given to the client",)
    ended = run([replace(each, data={}) if each.kind == wire.HELLO else each for each in HEALTHY])
    assert verdicts(ended)["proxy"].evidence == ("a session reached all 2 tasks",)
    # One that its node gave it is told by the client alone.
    caught = [
        replace(each, data={"environment": {"https_proxy": None}})
        if each.kind == wire.HELLO
        else each
        for each in AT_CONTACT
    ]
    found = verdicts(run(caught, outcome="timeout", ended_at_s=33.0, log=(STILL,)))["proxy"]
    assert found.status == "found"
    assert found.evidence[0].startswith("https_proxy was set for the client")


def test_that_a_script_ended_well_does_not_say_whom_it_reached() -> None:
    script = replace(MATPOW, experiment="script", size=None, power=None, algorithm=None)
    named = (TF0, replace(TF1, tf_address="tf1:2222"))
    said = verdicts(run(HELLO, parameters=script, nodes=named))
    assert said["name-resolves-to-self"].status == "not_measured"
    assert said["protocol-skew"].evidence == ("TensorFlow 2.21 on tf0, 2.21 on tf1",)
    mixed = (TF0, replace(TF1, versions={"tensorflow": "2.20.0"}))
    assert verdicts(run(HELLO, parameters=script, nodes=mixed))["protocol-skew"].status == (
        "not_measured"
    )
