"""From a node's printed answer to results: collecting, bad answers, order, and what is always cleaned up."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.checks import collect, facts_probe, gpu_facts_probe, ports_probe
from labctl.checks.collect import BOOT, NODE_PYTHON
from labctl.checks.doctor import CHECKS, preflight_names, run_checked, run_checks, to_error
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.model import CheckResult
from labctl.checks.parse import node_facts, reach_facts
from labctl.checks.reader import FactsError, plain
from labctl.errors import ConnectionLostError, HostKeyError, PeerUnreachableError
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote.clock import CLOCK_ARGV
from labctl.remote.fake import Call, FakeExecutor, Reply

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/checks"
PROBE = (NODE_PYTHON, "-I", "-c", BOOT)
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
Requests = list[dict[str, Any]]


def answers(node: str) -> dict[str, Any]:
    """Return what a healthy node's probes print, by request."""
    facts = json.loads((FIXTURES / f"{node}.json").read_text(encoding="utf-8"))
    peer, address = ("tf1", "10.132.0.3") if node == "tf0" else ("tf0", "10.132.0.2")
    view = {"addresses": [address], "state": "answers", "ms": 0.5, "detail": ""}
    return {
        "facts": facts,
        "listen": {"pid": 900, "start": "777", "error": None},
        "reach": {peer: view},
        "close": {"closed": True},
    }


def machine(node: str, said: dict[str, Any], log: Requests) -> FakeExecutor:
    """Return a node that answers the probes with `said`: values as JSON, bytes as they are, errors raised."""

    def reply(call: Call) -> Reply:
        message = json.loads(call.input)
        kind = message["request"].get("kind", "facts")
        log.append({**message["request"], "node": node, "kind": kind, "sudo": call.sudo})
        value = said[kind]
        if isinstance(value, Exception):
            raise value
        return Reply(value if isinstance(value, bytes) else json.dumps(value).encode())

    return FakeExecutor(node).on(["true"], Reply()).on(PROBE, reply)


@pytest.fixture
def lab() -> Callable[..., tuple[dict[str, FakeExecutor], Requests]]:
    def make(**said: dict[str, Any]) -> tuple[dict[str, FakeExecutor], Requests]:
        log: Requests = []
        nodes = {
            name: machine(name, {**answers(name), **said.get(name, {})}, log)
            for name in ("tf0", "tf1")
        }
        return nodes, log

    return make


Make = Callable[..., tuple[dict[str, FakeExecutor], Requests]]


def preflight(nodes: dict[str, FakeExecutor]) -> list[CheckResult]:
    return run_checks(LAB, nodes, only=preflight_names(gpu=False))


def failed(results: list[CheckResult]) -> set[tuple[str, str]]:
    return {(each.name, each.node) for each in results if each.status == "fail"}


def test_preflight_asks_each_node_twice_and_closes_its_listener(lab: Make) -> None:
    nodes, log = lab()
    said: list[str] = []
    results = run_checks(LAB, nodes, only=preflight_names(gpu=False), progress=said.append)
    assert {each.status for each in results} == {"ok", "skipped"}
    assert {each.name for each in results} == preflight_names(gpu=False)
    steps = [(each["node"], each["kind"]) for each in log]
    assert steps.count(("tf1", "facts")) == steps.count(("tf1", "reach")) == 1
    assert steps.index(("tf0", "listen")) < steps.index(("tf1", "reach"))
    assert steps[-1] == ("tf0", "close")
    assert (log[-1]["pid"], log[-1]["start"], log[-1]["sudo"]) == (900, "777", True)
    assert said == ["asking 2 nodes", "trying the ports"]


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"Welcome!\n{}",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"user": 5}',
        b"\xff\xfe{",
        json.dumps({**answers("tf1")["facts"], "holders": {"a": 1}}).encode(),
        json.dumps({**answers("tf1")["facts"], "units": {"x.service": {"load": None}}}).encode(),
        json.dumps({**answers("tf1")["facts"], "spec": {"text": 1}}).encode(),
        json.dumps({**answers("tf1")["facts"], "runs": [{"name": "x", "age_s": 1e400}]}).encode(),
    ],
    ids=range(12),
)
def test_a_hostile_answer_fails_the_probe_of_its_node_only(lab: Make, output: bytes) -> None:
    nodes, _ = lab(tf1={"facts": output})
    results = preflight(nodes)
    assert failed(results) == {("probe", "tf1")}
    (tf0,) = [each for each in results if (each.name, each.node) == ("spec", "tf0")]
    assert tf0.status == "ok"


def test_a_missing_python_is_named(lab: Make) -> None:
    nodes, _ = lab()
    nodes["tf1"].on(PROBE, Reply(stderr=b"sh: /usr/bin/python3: not found\n", returncode=127))
    (probe,) = [each for each in preflight(nodes) if each.status == "fail"]
    assert (probe.name, probe.node) == ("probe", "tf1")
    assert "/usr/bin/python3: not found" in probe.found


def test_a_probe_that_does_not_end_is_a_failed_probe(lab: Make) -> None:
    nodes, _ = lab()
    nodes["tf1"].on(PROBE, Reply(takes_s=60))
    assert failed(preflight(nodes)) == {("probe", "tf1")}


def test_the_listener_is_closed_although_the_link_to_the_other_node_breaks(lab: Make) -> None:
    nodes, log = lab(tf1={"reach": ConnectionLostError("the link to tf1 broke")})
    results = preflight(nodes)
    assert [each["kind"] for each in log if each["node"] == "tf0"][-1] == "close"
    (port,) = [each for each in results if (each.name, each.node) == ("port", "tf0")]
    assert (port.status, port.found) == ("skipped", "no other node could look")


def test_a_node_with_a_changed_key_does_not_keep_the_other_from_being_checked(lab: Make) -> None:
    nodes, _ = lab()
    error = HostKeyError("the host key of tf1 changed", expected="the pinned one", do="see it")
    nodes["tf1"].on(["true"], error)
    results = preflight(nodes)
    assert failed(results) == {("ssh", "tf1")}
    assert to_error(results) is error
    assert {each.status for each in results if each.node == "tf0"} == {"ok", "skipped"}


def test_no_listener_is_opened_beside_an_active_run_or_another_holder(lab: Make) -> None:
    busy = answers("tf0")["facts"]
    busy["units"]["labctl-run.service"].update(active="activating", description="labctl run R-1")
    held = answers("tf0")["facts"]
    held["holders"] = [{"pid": 812, "command": "nc", "unit": ""}]
    for facts in (busy, held):
        nodes, log = lab(tf0={"facts": facts})
        assert failed(preflight(nodes)) == {("leftovers", "tf0")}
        assert not [each for each in log if each["kind"] in {"listen", "close"}]


def test_ports_are_left_alone_when_no_check_needs_them(lab: Make) -> None:
    nodes, log = lab()
    run_checks(LAB, nodes, only=frozenset({"ssh", "venv"}))
    assert [each["kind"] for each in log] == ["facts", "facts"]


def test_the_listener_of_another_check_is_no_obstacle(lab: Make) -> None:
    facts = answers("tf0")["facts"]
    facts["holders"] = [{"pid": 8, "command": "labctl-listen", "unit": "session-4.scope"}]
    nodes, log = lab(tf0={"facts": facts})
    assert failed(preflight(nodes)) == set()
    assert "listen" in [each["kind"] for each in log]


def test_a_refused_port_is_the_error_that_a_run_raises(lab: Make) -> None:
    view = {"addresses": ["10.132.0.3"], "state": "refused", "ms": 0.2, "detail": ""}
    nodes, _ = lab(tf0={"reach": {"tf1": view}})
    error = to_error(preflight(nodes))
    assert isinstance(error, PeerUnreachableError)
    assert error.exit_code == 4
    assert "10.132.0.3:2222 refused the connection from tf0" in error.found


def test_everything_is_checked_with_a_view_from_outside(
    lab: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "see_from_here", lambda _: {"tf0": {"a": "filtered"}})
    nodes, _ = lab()
    nodes["tf0"].clock_ns = lambda: 10**18
    nodes["tf0"].on(CLOCK_ARGV, Reply(b"%d" % (10**18 + 5_000_000)))
    nodes["tf1"].on(CLOCK_ARGV, Reply(b"noon"))
    results = run_checks(LAB, nodes)
    assert [(each.name, each.node) for each in results] == [
        (check.name, node.name) for check in CHECKS for node in LAB.nodes
    ]
    by_node = {each.node: each.status for each in results if each.name == "exposure"}
    assert by_node == {"tf0": "ok", "tf1": "skipped"}
    clocks = {each.node: each.found for each in results if each.name == "clock"}
    assert "+5.0 ms" in clocks["tf0"]
    assert clocks["tf1"] == "the offset could not be measured"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no such checks: typo"):
        run_checks(LAB, {}, only=frozenset({"typo"}))


def test_no_failure_is_no_error() -> None:
    with pytest.raises(ValueError, match="no check failed"):
        to_error([])


@pytest.mark.parametrize("probe", [facts_probe, gpu_facts_probe, ports_probe])
def test_probes_are_python_3_9(probe: Any) -> None:
    source = Path(probe.__file__).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 9))
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (
            [ast.alias(node.module or "")] if isinstance(node, ast.ImportFrom) else node.names
        )
    }
    assert "labctl" not in imported
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match)]


def test_proxies_keep_passwords_on_the_node() -> None:
    pairs = [
        "http_proxy=http://me:secret@proxy:3128",
        "HTTP_PROXY=x",
        'export grpc_proxy="p:1"',
        "x",
    ]
    assert facts_probe.proxies(pairs) == {
        "http_proxy": "http://***@proxy:3128",
        "grpc_proxy": "p:1",
    }


def test_texts_of_a_node_cannot_move_the_cursor_or_flood_the_screen() -> None:
    assert plain("a\x1b[2Jb\nc\r") == "a [2Jb c"
    assert len(plain("x" * 10_000)) == 300
    view = {"addresses": [], "state": "\x1b[31mred", "ms": 1, "detail": ""}
    assert reach_facts({"tf1": view})["tf1"].state == "[31mred"
    with pytest.raises(FactsError, match="units"):
        node_facts({**answers("tf1")["facts"], "units": []})


def test_gpus_are_asked_in_the_same_round_trip_with_a_longer_deadline(lab: Make) -> None:
    nodes, log = lab()
    checked = run_checked(LAB, nodes, gpu=GpuNeed(1000), only=preflight_names(gpu=True))
    asked = {each["node"]: each for each in log if each["kind"] == "facts"}
    assert [each["kind"] for each in log].count("facts") == 2
    assert (asked["tf0"]["gpu_user"], asked["tf0"]["gpu_server"]) == ("labctl", False)
    assert (asked["tf1"]["gpu_user"], asked["tf1"]["gpu_server"]) == ("tf-join", True)
    assert asked["tf1"]["deadline_s"] > 60
    assert "libcudnn" in asked["tf1"]["gpu_libraries"]
    assert checked.gpus == {}  # these nodes told nothing of GPUs
    run_checks(LAB, nodes, only=preflight_names(gpu=False))
    plain_request = [each for each in log if each["kind"] == "facts"][-1]
    assert not {key for key in plain_request if key.startswith("gpu_")}
    assert "deadline_s" not in plain_request
