"""Causes provoked for real, one after the other: each must come first, and none may be found in a healthy run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.quota import cpu_quota

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

WORKER = "tf1"
UNIT = "tf-join-server.service"
SPEC = "/etc/tf-join-server/cluster.json"
VENV = "/opt/labctl/venv"
OTHER_TENSORFLOW = "2.20.0"
WAIT_S = 60.0
# Mostly products: what little travels is no cause of its time.
HEALTHY = ("-L", "1500", "-n", "8", "--algorithm", "squaring", "--feed", "staged", "--repeat", "5")
ATTEMPTS = (
    4  # of a healthy run: this machine may be busy with something else, which then is a cause
)
PROVOKED = {
    "peer-down",
    "port-filtered",
    "proxy",
    "inter-op-starved",
    "stale-spec",
    "cpu-starved",
    "constants-folded",
    "small-work",
    "fetch",
    "soft-placement",
    "server-restarted",
    "version-skew",
}

Fault = Callable[["RehearsalLab"], AbstractContextManager[None]]


def as_root(lab: RehearsalLab, script: str, *, node: str = WORKER) -> None:
    lab.ssh(node, ["sudo", "sh", "-ec", script], timeout_s=180)


def why(lab: RehearsalLab) -> list[dict[str, Any]]:
    verdicts: list[dict[str, Any]] = lab.labctl_json("why", "last")
    return verdicts


def found(verdicts: list[dict[str, Any]]) -> list[str]:
    return [verdict["cause"] for verdict in verdicts if verdict["status"] == "found"]


@contextmanager
def no_server(lab: RehearsalLab) -> Iterator[None]:
    as_root(lab, f"systemctl stop {UNIT}")
    try:
        yield
    finally:
        as_root(lab, f"systemctl start {UNIT}")


@contextmanager
def dropped_port(lab: RehearsalLab) -> Iterator[None]:
    rules = "chain input { type filter hook input priority -50; tcp dport 2222 drop; };"
    as_root(lab, f"nft 'table inet provoked {{ {rules} }}'")
    try:
        yield
    finally:
        as_root(lab, "nft delete table inet provoked")


@contextmanager
def stale_spec(lab: RehearsalLab) -> Iterator[None]:
    port = lab.lab.client.tf_address
    wrong = port.replace(":2222", ":2299")
    as_root(
        lab, f"cp -p {SPEC} {SPEC}.kept; sed -i s/{port}/{wrong}/ {SPEC}; systemctl restart {UNIT}"
    )
    try:
        yield
    finally:
        as_root(lab, f"mv {SPEC}.kept {SPEC}; systemctl restart {UNIT}")


@contextmanager
def other_tensorflow(lab: RehearsalLab) -> Iterator[None]:
    install = (
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_CACHE_DIR=/var/cache/labctl/uv UV_LINK_MODE=copy "
        f"/opt/labctl/uv/bin/uv pip install --quiet --python {VENV}/bin/python --no-deps "
        f"tensorflow-cpu=={OTHER_TENSORFLOW}"
    )
    as_root(lab, f"cp -al {VENV} {VENV}.kept")
    try:
        as_root(lab, f"{install}; systemctl restart {UNIT}")
        yield
    finally:
        as_root(lab, f"rm -r {VENV}; mv {VENV}.kept {VENV}; systemctl restart {UNIT}")


def starved(lab: RehearsalLab) -> AbstractContextManager[None]:
    return cpu_quota(lab.root, lab.name, WORKER, 0.2)


def nothing(lab: RehearsalLab) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Case:
    """A cause and what provokes it.

    Attributes:
        cause: Must come first.
        options: Of the run.
        outcome: What the run comes to.
        says: Words of the title or the evidence.
        fault: Breaks the lab and mends it.
    """

    cause: str
    options: tuple[str, ...]
    outcome: str
    says: str
    fault: Fault = nothing


CASES = (
    Case("peer-down", ("--skip-checks",), "failed", "refused", no_server),
    Case("port-filtered", ("--skip-checks",), "failed", "timed out", dropped_port),
    Case("stale-spec", ("--skip-checks", "--timeout", "60"), "failed", ":2299", stale_spec),
    Case(
        "proxy",
        ("--env", "http_proxy=http://192.0.2.1:3128", "--timeout", "25"),
        "timeout",
        "http_proxy was set",
    ),
    Case(
        "inter-op-starved",
        ("--feed", "fed", "--inter-op", "1"),
        "ok",
        "task:0 has 1 inter-op thread",
    ),
    Case("cpu-starved", HEALTHY, "ok", f"task:1 on {WORKER}", starved),
    Case(
        "constants-folded",
        ("--feed", "constant", "-L", "1000"),
        "ok",
        "the graph has 8 products, 0 ran",
    ),
    Case("small-work", ("-L", "200", "-n", "2", "--feed", "fed"), "ok", "travel"),
    # The sum of two constants lies ready on task 1: a step only brings it back.
    Case(
        "fetch", ("-L", "2000", "-n", "1", "--feed", "constant", "--sum-on", "1"), "ok", "16.0 MB"
    ),
    Case("soft-placement", ("--gpu", "--soft-placement", "--skip-checks"), "ok", "CPU"),
    Case("version-skew", ("--skip-checks",), "ok", OTHER_TENSORFLOW, other_tensorflow),
)


@pytest.fixture(scope="module")
def healthy(lab: RehearsalLab) -> list[dict[str, Any]]:
    """What is said of a run that nothing is wrong with; it also measures what the nodes can do by themselves."""
    verdicts: list[dict[str, Any]] = []
    for _ in range(ATTEMPTS):
        assert lab.labctl_json("run", *HEALTHY)["outcome"] == "ok"
        verdicts = why(lab)
        if not PROVOKED & set(found(verdicts)):
            break
    return verdicts


def test_nothing_that_is_provoked_here_is_found_in_a_healthy_run(
    healthy: list[dict[str, Any]],
) -> None:
    assert PROVOKED & set(found(healthy)) == set()
    assert {v["cause"] for v in healthy if v["cause"] in PROVOKED and v["evidence"]} == PROVOKED
    assert [v["cause"] for v in healthy if v["status"] == "found" and v["scope"] == "step"] == []


def test_the_import_dominates_a_cold_start(healthy: list[dict[str, Any]]) -> None:
    first = healthy[0]
    assert (first["cause"], first["status"], first["scope"]) == ("import", "found", "once")
    assert first["seconds"] > 0.5


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cause)
def test_the_right_cause_comes_first(lab: RehearsalLab, case: Case) -> None:
    with case.fault(lab):
        run = lab.labctl_json("run", *case.options)
    assert run["outcome"] == case.outcome, run["error"]
    verdicts = why(lab)
    first = verdicts[0]
    assert (first["cause"], first["status"]) == (case.cause, "found"), found(verdicts)
    assert case.says in " ".join([first["title"], *first["evidence"]])
    assert first["remedy"]


def test_a_server_that_restarts_in_mid_run_is_the_first_cause(lab: RehearsalLab) -> None:
    labctl = subprocess.Popen(
        [sys.executable, "-m", "labctl", "run", "--repeat", "100000", "--no-trace", "--json"],
        cwd=lab.root,
        env=lab.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_steps(labctl)
        as_root(lab, f"systemctl restart {UNIT}")
        out, _ = labctl.communicate(timeout=WAIT_S)
    finally:
        if labctl.poll() is None:
            labctl.send_signal(signal.SIGINT)
            labctl.communicate(timeout=WAIT_S)
    assert json.loads(out)["outcome"] == "failed"
    verdicts = why(lab)
    assert verdicts[0]["cause"] == "server-restarted", found(verdicts)
    assert WORKER in verdicts[0]["title"]
    assert any("invocation" in line for line in verdicts[0]["evidence"])


def wait_for_steps(labctl: subprocess.Popen[str]) -> None:
    """Read labctl's progress until warm steps run."""
    assert labctl.stderr is not None
    give_up_s = time.monotonic() + WAIT_S
    for line in labctl.stderr:
        if "warm_steps" in line:
            return
        if time.monotonic() > give_up_s:
            break
    pytest.fail("no warm step")
