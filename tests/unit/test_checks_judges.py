"""Every check on facts: what is well, what is wrong, what cannot be told."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.doctor import CHECKS, GPU_NAMES, judge, to_error
from labctl.checks.facts import Contact, ListenerFacts, Observed, ReachFacts
from labctl.checks.judge_server import catching, last_words, spec_difference
from labctl.checks.model import CheckResult
from labctl.checks.parse import node_facts
from labctl.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    HostKeyError,
    HostUnreachableError,
    LabBusyError,
    LabctlError,
    PeerUnreachableError,
    RemoteCommandError,
)
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote.clock import Offset

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/checks"
LAB = Lab(
    "rehearsal",
    tuple(
        Node(f"tf{k}", k, f"10.132.0.{k + 2}", 2222, SshTarget(f"10.132.0.{k + 2}"))
        for k in range(2)
    ),
    Path("inventory/rehearsal"),
    "rehearsal",
    Path(".lab/rehearsal"),
)
SERVER, CLIENT = "tf-join-server.service", "labctl-run.service"
NC = {"pid": 812, "command": "nc -lk 2222", "unit": "session-3.scope"}


def answer(node: str) -> dict[str, Any]:
    """Return a healthy node's answer, to be spoilt."""
    data: dict[str, Any] = json.loads((FIXTURES / f"{node}.json").read_text(encoding="utf-8"))
    return data


def merge(into: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(into.get(key), dict)
        into[key] = merge(into[key], value) if both else copy.deepcopy(value)
    return into


def reached(state: str = "answers", address: str = "", detail: str = "") -> ReachFacts:
    return ReachFacts((address,) if address else (), state, 0.4, detail)


def healthy(**changes: Any) -> Observed:
    """Return a healthy lab; tf0 and tf1 are merged into the nodes' answers, the rest replaces fields."""
    answers = {name: merge(answer(name), changes.pop(name, {})) for name in ("tf0", "tf1")}
    seen = Observed(
        lab=LAB,
        gpu=None,
        contacts={name: Contact(0.3) for name in answers},
        facts={name: node_facts(each) for name, each in answers.items()},
        unreadable={},
        listener=ListenerFacts(900, "12345", None),
        reach={
            ("tf0", "tf1"): reached(address="10.132.0.3"),
            ("tf1", "tf0"): reached(address="10.132.0.2"),
        },
        outside={"tf0": {"10.132.0.2": "filtered"}, "tf1": {"10.132.0.3": "filtered"}},
        offsets={"tf0": Offset(0.010, 0.001, 0.002), "tf1": Offset(0.012, 0.001, 0.002)},
    )
    return replace(seen, **changes)


def result(seen: Observed, name: str, node: str = "tf1") -> CheckResult:
    (found,) = [each for each in judge(seen) if (each.name, each.node) == (name, node)]
    return found


def failed(seen: Observed) -> set[tuple[str, str]]:
    return {(each.name, each.node) for each in judge(seen) if each.status == "fail"}


def without(seen: Observed, node: str, error: LabctlError) -> Observed:
    """Return what is left to see when a node cannot be met."""
    return replace(
        seen,
        contacts={**seen.contacts, node: Contact(10.0, error=error)},
        facts={name: facts for name, facts in seen.facts.items() if name != node},
        reach={pair: found for pair, found in seen.reach.items() if pair[0] != node},
        offsets={name: offset for name, offset in seen.offsets.items() if name != node},
        listener=None if node == "tf0" else seen.listener,
    )


def test_a_healthy_lab_fails_nothing_and_names_every_node() -> None:
    results = judge(healthy())
    assert [each for each in results if each.status == "fail"] == []
    skipped = {(each.name, each.node) for each in results if each.status == "skipped"}
    gpus = {(name, node) for name in GPU_NAMES for node in ("tf0", "tf1")}
    assert skipped == {*gpus, ("running-spec", "tf0")}
    assert len(results) == len(CHECKS) * 2
    assert all(each.found for each in results)


STOPPED = {
    "units": {SERVER: {"active": "inactive", "sub": "dead", "main_pid": 0, "since_s": 120.0}}
}
FELL = {
    "units": {
        SERVER: {
            "active": "failed",
            "sub": "failed",
            "main_pid": 0,
            "since_s": 120.0,
            "restarts": 3,
        }
    },
    "journal": [
        '{"event":"hello","source":"join-server"}',
        "E0000 00:00:17 grpc_server_lib.cc] UNKNOWN: Could not start gRPC server",
        '{"event":"error","type":"UnknownError","message":"Could not start gRPC server\\nmore"}',
        '{"event":"bye","exit":1}',
    ],
    "server": None,
    "holders": [NC],
}


FAULTS = [
    json.loads(line)
    for line in (FIXTURES / "faults.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['check']}: {fault['found']}")
def test_a_fault_fails_its_check_with_what_to_do(fault: dict[str, Any]) -> None:
    """Each line of faults.jsonl: what changes in a healthy node's answer, and what must be said."""
    seen = healthy(**{fault["node"]: fault["change"]})
    verdict = result(seen, fault["check"], fault["node"])
    assert verdict.status == "fail"
    assert fault["found"] in verdict.found
    assert verdict.expected
    assert fault["do"] in (verdict.do or "")
    assert isinstance(verdict.error, LabctlError)


@pytest.mark.parametrize(
    ("name", "node", "change"),
    [
        ("tensorflow", "tf1", {"venv": {"packages": {"tensorflow-cpu": "2.21.9"}}}),
        ("proxies", "tf0", {"login_proxies": {"http_proxy": "http://cache:3128"}}),
        ("proxies", "tf0", {"manager_proxies": {"grpc_proxy": "p:1"}}),
        ("proxies", "tf1", {"server": {"proxies": {"no_proxy": "localhost"}}}),
        ("cpu", "tf1", {"cpu": {"machine": "aarch64", "flags": []}}),
        ("dead-runs", "tf0", {"runs": [{"name": "R-2", "age_s": 5.0, "ended": False}]}),
        ("dead-runs", "tf0", {"runs": [{"name": "R-3", "age_s": 9e5, "ended": True}]}),
        ("running-spec", "tf1", {"spec": {"mtime_s": 1796049999.9}}),
        ("firewall", "tf1", {"firewall_table": None}),
    ],
)
def test_harmless_findings_pass(name: str, node: str, change: dict[str, Any]) -> None:
    assert result(healthy(**{node: change}), name, node).status == "ok"


def test_a_stopped_worker_gives_the_error_of_the_port_with_the_units_story() -> None:
    seen = healthy(
        tf1=FELL, reach={**healthy().reach, ("tf0", "tf1"): reached("refused", "10.132.0.3")}
    )
    error = to_error(judge(seen))
    assert isinstance(error, PeerUnreachableError)
    assert error.found == "task:1 does not answer: 10.132.0.3:2222 refused the connection from tf0"
    assert error.expected == (
        'tf-join-server active on tf1; found failed 2 min ago: "Could not start gRPC server"'
        " (port 2222 held by nc -lk 2222, pid 812)"
    )
    assert error.do == "on tf1: sudo kill 812; sudo systemctl restart tf-join-server"


@pytest.mark.parametrize(
    ("state", "detail", "says", "do"),
    [
        ("timed out", "connected, but no answer", "timed out from tf0", "restart tf-join-server"),
        ("timed out", "no connection", "timed out from tf0", "cloud's firewall"),
        ("not resolvable", "Name or service not known", "not resolvable on tf0", "tf_data_address"),
        ("unreachable", "No route to host", "No route to host", "cloud's firewall"),
        ("no gRPC server", "unknown greeting", "not as TensorFlow does", "restart"),
    ],
)
def test_a_port_that_does_not_answer_says_how(state: str, detail: str, says: str, do: str) -> None:
    view = ReachFacts(("10.132.0.3",), state, 3000.0, detail)
    verdict = result(healthy(reach={**healthy().reach, ("tf0", "tf1"): view}), "port")
    assert verdict.status == "fail"
    assert says in verdict.found
    assert do in (verdict.do or "")
    assert isinstance(verdict.error, PeerUnreachableError)


def test_peers_that_meet_the_same_are_named_together() -> None:
    nodes = (*LAB.nodes, Node("tf2", 2, "10.132.0.4", 2222, SshTarget("h")))
    extra = ReachFacts(("10.132.0.3",), "refused", 0.1, "")
    seen = healthy(
        lab=replace(LAB, nodes=nodes), reach={("tf0", "tf1"): extra, ("tf2", "tf1"): extra}
    )
    seen = replace(seen, contacts={**seen.contacts, "tf2": Contact(0.1)}, unreadable={"tf2": "x"})
    assert result(seen, "port").found == "10.132.0.3:2222 refused the connection from tf0, tf2"
    mixed = {("tf0", "tf1"): extra, ("tf2", "tf1"): reached(address="10.132.0.3")}
    found = result(replace(seen, reach=mixed), "port").found
    assert found == "10.132.0.3:2222 refused the connection from tf0; answers tf2"


def test_the_way_back_to_task_0_is_checked_too() -> None:
    view = ReachFacts(("10.132.0.2",), "timed out", 3000.0, "no connection")
    seen = healthy(reach={**healthy().reach, ("tf1", "tf0"): view})
    assert failed(seen) == {("port", "tf0")}
    assert (
        "task:0 does not answer: 10.132.0.2:2222 timed out from tf1" in to_error(judge(seen)).found
    )


def test_a_join_server_on_task_0s_port_is_stopped_by_its_unit_not_killed() -> None:
    held = {"pid": 911, "command": "python", "unit": "tf-join-server.service"}
    do = result(healthy(tf0={"holders": [held]}, listener=None), "leftovers", "tf0").do or ""
    assert "systemctl disable --now tf-join-server" in do
    assert "kill" not in do


def test_a_foreign_holder_of_task_0s_port_is_a_leftover_not_a_port_fault() -> None:
    seen = healthy(tf0={"holders": [NC]}, listener=None)
    assert failed(seen) == {("leftovers", "tf0")}
    assert result(seen, "port", "tf0").status == "skipped"
    assert isinstance(to_error(judge(seen)), LabBusyError)


def test_an_active_run_is_busy_and_its_own_port_is_judged() -> None:
    run = {"load": "loaded", "active": "active", "description": "labctl run 20261130T1-3fa9c1"}
    holder = {"pid": 5, "command": "python client", "unit": CLIENT}
    seen = healthy(tf0={"units": {CLIENT: run}, "holders": [holder]}, listener=None)
    assert failed(seen) == {("leftovers", "tf0")}
    assert result(seen, "port", "tf0").status == "ok"
    error = to_error(judge(seen))
    assert isinstance(error, LabBusyError)
    assert "20261130T1-3fa9c1" in error.found


def test_a_listener_that_cannot_be_opened_fails_the_port_of_task_0() -> None:
    verdict = result(healthy(listener=ListenerFacts(0, "", "Permission denied")), "port", "tf0")
    assert verdict.status == "fail"
    assert "Permission denied" in verdict.found


@pytest.mark.parametrize(
    "error",
    [
        HostUnreachableError("tf1 does not answer", do="see that it is up"),
        HostKeyError("the host key of tf1 changed", do="ssh-keygen -R"),
        AuthenticationError("tf1 refuses the key", do="ssh-copy-id"),
    ],
)
def test_a_node_out_of_reach_fails_ssh_only_and_the_others_are_checked(error: LabctlError) -> None:
    seen = without(healthy(), "tf1", error)
    assert failed(seen) == {("ssh", "tf1")}
    assert result(seen, "unit").found == "ssh failed"
    assert result(seen, "unit").status == "skipped"
    assert result(seen, "port", "tf0").status == "skipped"
    assert result(seen, "port", "tf1").status == "ok"
    assert result(seen, "spec", "tf0").status == "ok"
    assert to_error(judge(seen)) is error


def test_a_command_that_never_ends_counts_as_no_ssh() -> None:
    seen = without(healthy(), "tf0", DeadlineError("true on tf0 had not ended after 15 s"))
    assert isinstance(to_error(judge(seen)), HostUnreachableError)
    assert result(seen, "port", "tf0").status == "skipped"
    assert result(seen, "tensorflow", "tf1").status == "ok"


def test_a_node_that_answers_nonsense_fails_its_probe_and_nothing_else() -> None:
    seen = healthy()
    facts = {"tf0": seen.facts["tf0"]}
    seen = replace(seen, facts=facts, unreadable={"tf1": "the probe printed no JSON"})
    assert failed(seen) == {("probe", "tf1")}
    assert result(seen, "disk").found == "probe failed"
    assert isinstance(to_error(judge(seen)), RemoteCommandError)


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        (("127.0.1.1",), "loopback"),
        (("::1",), "loopback"),
        (("10.132.0.2",), "the node's own address"),
        ((), "not resolvable"),
    ],
)
def test_an_address_that_misleads_is_named(addresses: tuple[str, ...], says: str) -> None:
    view = ReachFacts(addresses, "refused" if addresses else "not resolvable", 1.0, "")
    verdict = result(healthy(reach={("tf0", "tf1"): view}), "addresses", "tf0")
    assert verdict.status == "fail"
    assert says in verdict.found
    assert "tf_data_address of tf1" in (verdict.do or "")


def test_a_name_that_leads_to_a_strange_machine_fails_only_if_that_does_not_answer() -> None:
    named = replace(LAB, nodes=(LAB.nodes[0], replace(LAB.nodes[1], data_address="vm1.test")))
    for state, status in (("refused", "fail"), ("answers", "ok")):
        view = ReachFacts(("192.0.2.9",), state, 1.0, "")
        seen = healthy(lab=named, reach={("tf0", "tf1"): view})
        assert result(seen, "addresses", "tf0").status == status


def test_a_port_open_to_this_machine_is_exposed_and_a_silent_one_proves_nothing() -> None:
    open_ = healthy(outside={"tf0": {}, "tf1": {"10.132.0.3": "filtered", "192.0.2.7": "open"}})
    verdict = result(open_, "exposure")
    assert verdict.status == "fail"
    assert "192.0.2.7" in verdict.found
    assert "authentication" in (verdict.expected or "")
    refused = {"tf0": {"10.132.0.2": "refused"}, "tf1": {"10.132.0.3": "refused"}}
    assert result(healthy(outside=refused), "exposure").status == "ok"
    silent = healthy(tf1={"holders": []}, outside=refused)
    assert result(silent, "exposure").status == "skipped"
    assert result(healthy(outside={}), "exposure").status == "skipped"
    filtered = {"tf0": {"10.132.0.2": "filtered"}, "tf1": {"10.132.0.3": "filtered"}}
    away = without(healthy(outside=filtered), "tf1", HostUnreachableError("tf1 is down"))
    assert result(away, "exposure", "tf1").status == "skipped"
    assert result(away, "exposure", "tf0").status == "ok"


def test_clock_offsets_are_compared_with_task_0_within_their_error() -> None:
    far = healthy(offsets={"tf0": Offset(-2.0, 0.001, 0.002), "tf1": Offset(0.5, 0.001, 0.002)})
    verdict = result(far, "clock")
    assert verdict.status == "fail"
    assert "+2500.0 ms to tf0" in verdict.found
    vague = healthy(offsets={"tf0": Offset(0.0, 0.3, 0.6), "tf1": Offset(0.5, 0.3, 0.6)})
    assert result(vague, "clock").status == "ok"
    assert result(healthy(offsets={}), "clock").status == "skipped"


def test_causes_are_reported_before_their_effects() -> None:
    def errors(**changes: Any) -> type[LabctlError]:
        refused = {**healthy().reach, ("tf0", "tf1"): reached("refused", "10.132.0.3")}
        return type(to_error(judge(healthy(reach=refused, **changes))))

    assert errors(tf1=STOPPED) is PeerUnreachableError
    assert errors(tf1={"spec": {"text": "{}"}}) is ConfigError
    assert errors(tf1={"venv": {"packages": {"tensorflow-cpu": "2.19.0"}}}) is ConfigError
    assert errors(tf1={"sudo_error": "sudo: a password is required"}) is RemoteCommandError
    assert errors(tf0={"strays": [{"pid": 7, "command": "x", "unit": ""}]}) is LabBusyError


@pytest.mark.parametrize(
    ("variables", "caught"),
    [
        ({"http_proxy": "http://p:1"}, "http_proxy=http://p:1"),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, "https_proxy=http://p:1"),
        ({"grpc_proxy": "p:1", "no_proxy": "10.132.0.*"}, "grpc_proxy=p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "10.132.0.0/24"}, None),
        ({"http_proxy": "http://p:1", "no_proxy": "10.132.0.2, 10.132.0.3"}, None),
        ({"http_proxy": "http://p:1", "no_proxy": "10.132.0.2"}, "http_proxy=http://p:1"),
        ({"http_proxy": "p", "no_grpc_proxy": "x", "no_proxy": "10.0.0.0/8"}, "http_proxy=p"),
        ({"http_proxy": ""}, None),
        ({"no_proxy": "10.0.0.0/8"}, None),
    ],
)
def test_a_proxy_counts_as_grpc_reads_it(variables: dict[str, str], caught: str | None) -> None:
    assert catching(variables, ["10.132.0.2", "10.132.0.3"]) == caught


def test_last_words_prefer_the_servers_own_error() -> None:
    assert last_words([]) == ""
    assert last_words(["one", '{"event":"bye"}']) == "one"
    assert last_words(["x: error: port in use", "later line"]) == "x: error: port in use"
    assert last_words(['{"event":"error","message":"m"}', "E0000 cc] other"]) == "m"
    assert last_words(["{not json", '["event"]']) == '["event"]'


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"cluster":[]}', '{"cluster":{"local":5}}', "[" * 5000, '{"cluster":null}'],
)
def test_a_hostile_spec_is_only_called_wrong(text: str) -> None:
    assert spec_difference(text, ["a:1", "b:2"])
