"""All rules together: their order, their table in the documentation, and records that no rule may fall over."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labctl.analysis.causes import rules
from labctl.analysis.causes.model import Rule, Scope, Status, Verdict
from labctl.analysis.causes.rules import RULES, judge_all
from labctl.analysis.explained import Explained
from labctl.node import wire
from labctl.runs.data import LogLine
from labctl.runs.events import Event
from labctl.runs.record import Outcome
from tests.unit.explained_samples import explained, healthy, hung, starved, traced
from tests.unit.stories import MATPOW, run

DOCS = Path(__file__).resolve().parents[2] / "docs/causes.md"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (step|once) \|.*\| ([ABC]) \|$", re.MULTILINE)
# Each cause's id is part of the contract: proofs, scripts and people's notes name it.
IDS = {
    *("peer-down", "port-filtered", "name-unresolvable", "name-resolves-to-self", "proxy"),
    *("peer-frozen", "port-in-use", "stale-spec", "protocol-skew"),
    *("server-restarted", "server-killed", "version-skew", "node-rebooted", "out-of-memory"),
    *("cpu-starved", "slow-node", "clock-jump", "inter-op-starved", "tasks-unbalanced"),
    *("transfer", "slow-link", "mtu-mismatch", "small-work", "fetch", "feed", "remote-master"),
    *("protocol-plugin", "constants-folded", "graph-too-large", "more-products-than-needed"),
    *("recursion", "import", "first-step-setup", "server-start", "xla-compile"),
    *("soft-placement", "cuda-libraries-missing", "driver-mismatch", "no-driver", "gpu-too-old"),
    *("gpu-hidden", "gpu-memory-taken", "ptx-jit", "jit-cache-lost", "no-persistence"),
    *("cuda-context", "cublas-load", "gpu-throttled", "gpu-shared", "float32-overflow", "tf32"),
}


def test_every_cause_has_one_rule_and_one_row_of_the_documentation() -> None:
    assert [rule.cause for rule in RULES] == list(dict.fromkeys(rule.cause for rule in RULES))
    assert {rule.cause for rule in RULES} == IDS
    rows = {cause: (scope, grade) for cause, scope, grade in ROW.findall(DOCS.read_text())}
    assert rows == {rule.cause: (rule.scope, rule.grade) for rule in RULES}


@pytest.mark.parametrize("of", [healthy(), starved(), hung()], ids=["healthy", "starved", "hung"])
def test_every_rule_answers_in_its_own_name(of: Explained) -> None:
    for rule in RULES:
        verdict = rule.judge(of)
        assert (verdict.cause, verdict.scope) == (rule.cause, rule.scope)
        assert_sound(verdict)


def test_a_healthy_run_has_no_cause_of_its_steps_and_the_cold_start_on_top() -> None:
    verdicts = judge_all(healthy())
    assert [each.cause for each in verdicts if each.status == "found"] == ["import"]
    assert verdicts[0].seconds == pytest.approx(1.5)


def test_a_starved_run_has_its_thread_first() -> None:
    found = [each.cause for each in judge_all(starved()) if each.status == "found"]
    assert found == ["inter-op-starved", "import"]


def fixed(status: Status, scope: Scope, seconds: float | None, name: str) -> Rule:
    verdict = Verdict(name, status, scope, name, seconds, "high", ("x",))
    return Rule(name, scope, name, "A", lambda _: verdict)


@pytest.mark.parametrize(
    ("outcome", "order"),
    [
        ("ok", ["unpriced", "large", "small", "once-large", "once-small", "once-unpriced"]),
        ("failed", ["unpriced", "large", "small", "once-unpriced", "once-large", "once-small"]),
    ],
)
def test_the_order(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, order: list[str]) -> None:
    monkeypatch.setattr(
        rules,
        "RULES",
        (
            fixed("not_measured", "step", None, "unknown"),
            fixed("ruled_out", "once", None, "out-once"),
            fixed("ruled_out", "step", None, "out-step"),
            fixed("found", "once", 0.5, "once-small"),
            fixed("found", "once", None, "once-unpriced"),
            fixed("found", "once", 9.0, "once-large"),
            fixed("found", "step", 0.01, "small"),
            fixed("found", "step", None, "unpriced"),
            fixed("found", "step", 0.02, "large"),
        ),
    )
    said = [each.cause for each in judge_all(run(outcome=outcome))]
    assert said == [*order, "out-step", "out-once", "unknown"]


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=4), st.integers()),
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "phase",
        "duration_ns",
        "index",
        "kind",
        "products",
        "ok",
        "norm",
        "relative_error",
        "ops",
        "bytes",
        "constant_bytes",
        "state",
        "peer_task",
        "address",
        "detail",
        "message",
        "inter_op",
        "spec_sha256",
        "cpu_ns",
        "wait_ns",
        "node_busy_ns",
        "t",
    ]
)
KINDS = st.sampled_from(
    [
        "hello",
        "phase_begin",
        "phase_end",
        "step",
        "graph",
        "usage",
        "result",
        "error",
        "peer",
        "ready",
        "note",
        "bye",
        "x",
    ]
)
EVENTS = st.lists(
    st.builds(
        Event,
        KINDS,
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.sampled_from(["client", "join-server"]),
        st.integers(-1, 3),
        st.dictionaries(KEYS, VALUES, max_size=5),
    ),
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    events=EVENTS,
    outcome=st.sampled_from(["ok", "wrong", "failed", "timeout", "lost", "running", "cancelled"]),
    parameters=st.sampled_from(
        [
            MATPOW,
            replace(MATPOW, device="gpu", soft_placement=True),
            replace(MATPOW, size=None, power=None, inter_op=None, feed="constant"),
            replace(MATPOW, experiment="script", device=None, algorithm=None, placement=None),
        ]
    ),
    wall_s=st.one_of(st.none(), st.just(0.0), st.floats(1e-6, 1e6)),
    nodes=st.booleans(),
    step=st.booleans(),
)
def test_no_record_is_too_odd(
    events: list[Event],
    outcome: Outcome,
    parameters: Any,
    wall_s: float | None,
    nodes: bool,
    step: bool,
) -> None:
    odd = run(events, outcome=outcome, parameters=parameters, wall_s=wall_s, log=("a \x1b[31mb",))
    if not nodes:
        odd = run(events, outcome=outcome, parameters=parameters, wall_s=wall_s, nodes=())
    if step:
        trace = traced(products=0)
        odd = replace(odd, trace=trace, traces=(trace,))
    for verdict in judge_all(odd):
        assert_sound(verdict)


def test_odd_traces_are_judged_too() -> None:
    trace = traced(answers_at_once=False)
    variants = [
        replace(trace, ops=()),
        replace(trace, edges=(), tasks=()),
        replace(trace, tasks=tuple(replace(each, gflops=None) for each in trace.tasks)),
        replace(trace, duration_s=0.0),
        replace(trace, edges=tuple(replace(e, asked_s=None, size_bytes=None) for e in trace.edges)),
        replace(trace, edges=tuple(replace(e, arrived_s=e.answered_s) for e in trace.edges)),
    ]
    for variant in variants:
        for verdict in judge_all(explained(variant, warm_s=0.07)):
            assert_sound(verdict)


def test_log_lines_and_errors_do_not_accuse_a_run_on_cpus() -> None:
    words = (
        "failed call to cuInit: INTERNAL: CUDA error",
        "Could not find cuda drivers on your machine, GPU will not be used.",
        "GPU trace was not collected.",
    )
    of = healthy()
    noisy = replace(of, data=replace(of.data, log=tuple(LogLine("tf0", None, w) for w in words)))
    said = [each.cause for each in judge_all(noisy) if each.status == "found"]
    assert said == ["import"]
    assert wire.ERROR not in {event.kind for event in noisy.data.events}


def assert_sound(verdict: Verdict) -> None:
    assert verdict.evidence, verdict
    assert all(line and line == line.strip() for line in verdict.evidence), verdict
    if verdict.status != "found":
        assert verdict.seconds is None, verdict
    if verdict.seconds is not None:
        assert 0 < verdict.seconds < float("inf"), verdict
    if verdict.status == "not_measured":
        assert len(verdict.evidence) >= 2, verdict
