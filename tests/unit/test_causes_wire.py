"""What travels: each part of a step has one rule, and small work is told from a slow path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.causes.model import Verdict
from labctl.analysis.causes.travel import break_even, travel
from labctl.analysis.causes.wire import RULES
from labctl.analysis.explained import Explained
from labctl.node import wire
from labctl.runs.baseline import Baseline, LinkBaseline
from tests.unit.explained_samples import explained, extra_steps, healthy, hung, starved, traced
from tests.unit.stories import HEALTHY, MATPOW, START_S, event, run

SMALL = {
    "product_s": 1e-4,
    "wire_s": 3e-4,
    "dispatch_s": 8e-4,
    "fetch_s": 6e-4,
    "size_bytes": 160_000,
}
SMALL_RUN = replace(MATPOW, size=200, power=5)


def verdicts(of: Explained) -> dict[str, Verdict]:
    return {rule.cause: rule.judge(of) for rule in RULES}


def found(of: Explained) -> dict[str, float | None]:
    return {
        cause: verdict.seconds
        for cause, verdict in verdicts(of).items()
        if verdict.status == "found"
    }


def links(bits_per_s: float, retransmits: int | None = None) -> Baseline:
    both = (("tf0", "tf1"), ("tf1", "tf0"))
    return Baseline(
        {},
        links=tuple(
            LinkBaseline(*pair, bits_per_s, 2e-4, retransmits, START_S, "iperf 3.12")
            for pair in both
        ),
    )


@pytest.mark.parametrize("run", [healthy(), starved()])
def test_a_step_of_the_questions_size_has_no_cause_here(run: Explained) -> None:
    said = verdicts(run)
    assert {cause for cause, each in said.items() if each.status == "found"} == set()
    for cause in ("transfer", "feed", "fetch", "slow-link", "small-work"):
        assert said[cause].status == "ruled_out"
        assert any(letter.isdigit() for letter in said[cause].evidence[0]), said[cause]


def test_a_run_without_a_trace_measures_nothing_of_a_step() -> None:
    said = verdicts(hung())
    for cause in ("transfer", "feed", "fetch", "slow-link", "small-work"):
        assert said[cause].status == "not_measured"
        assert len(said[cause].evidence) == 2


def test_a_trace_without_a_warm_step_is_not_enough() -> None:
    said = verdicts(replace(healthy(), split=None))
    assert said["feed"].status == said["small-work"].status == "not_measured"
    assert said["feed"].evidence[0] == "there is no warm step to hold the trace against"


def test_small_work_has_what_travels_and_says_what_would_pay() -> None:
    run = explained(traced(**SMALL), parameters=SMALL_RUN)  # type: ignore[arg-type]
    assert set(found(run)) == {"small-work"}
    small = verdicts(run)["small-work"]
    assert small.seconds == pytest.approx(8e-4 + 2 * 3e-4 + 6e-4)
    assert small.confidence == "high"
    assert small.remedy.startswith("--feed staged, --size ")
    assert "--power " in small.remedy
    said = verdicts(run)
    assert said["transfer"].evidence[0].endswith("counted in small-work")
    assert said["feed"].evidence[0].endswith("counted in small-work")
    # 320 kB at 533 MB/s against 4 products of 160 GFLOP/s.
    assert small.evidence[1] == (
        "products x L is 800, and 1200 would break even at 160 GFLOP/s and 533 MB/s"
    )


def test_the_work_that_is_said_to_pay_does_pay() -> None:
    run = explained(traced(**SMALL), parameters=SMALL_RUN)  # type: ignore[arg-type]
    remedy = verdicts(run)["small-work"].remedy
    size = int(remedy.split("--size ")[1].split()[0])
    grown = traced(
        product_s=1e-4 * (size / 200) ** 3,
        wire_s=3e-4 * (size / 200) ** 2,
        dispatch_s=8e-4,
        fetch_s=6e-4,
        size_bytes=4 * size * size,
    )
    assert found(explained(grown, parameters=replace(SMALL_RUN, size=size))) == {}
    power = int(remedy.split("--power ")[1].split()[0])
    longer = traced(**{**SMALL, "products": power - 1})  # type: ignore[arg-type]
    assert found(explained(longer, parameters=replace(SMALL_RUN, power=power))) == {}


@given(
    product_s=st.floats(1e-6, 0.1),
    wire_s=st.floats(1e-6, 0.1),
    dispatch_s=st.floats(1e-5, 0.02),
    fetch_s=st.floats(1e-5, 0.1),
    feed=st.booleans(),
    at_once=st.booleans(),
    slow=st.booleans(),
)
def test_no_second_is_claimed_twice(
    product_s: float,
    wire_s: float,
    dispatch_s: float,
    fetch_s: float,
    feed: bool,
    at_once: bool,
    slow: bool,
) -> None:
    trace = traced(
        product_s=product_s,
        wire_s=wire_s,
        dispatch_s=dispatch_s,
        fetch_s=fetch_s,
        feed=feed,
        answers_at_once=at_once,
        share=0.8,
    )
    parameters = replace(MATPOW, feed="fed" if feed else "staged")
    run = explained(trace, parameters=parameters, baseline=links(5e8 if slow else 7e9))
    parts = travel(run)
    assert parts is not None
    claimed = sum(seconds or 0.0 for seconds in found(run).values())
    travels = parts.dispatch_s + parts.transfer_s + parts.fetch_s
    assert claimed <= travels + 1e-9
    assert travels + parts.compute_s <= parts.step_s + 1e-9


def test_a_hiccup_of_one_traced_step_is_not_paid_in_each() -> None:
    slow, quick = traced(product_s=0.02, wire_s=0.03), traced(product_s=0.02)
    assert set(found(explained(slow))) == {"transfer", "feed"}
    assert found(explained(slow, traces=[slow, quick, slow])) == {}


def test_feed_and_transfer_are_told_apart() -> None:
    fed = explained(traced(wire_s=0.012))
    assert found(fed) == {
        "feed": pytest.approx(0.012),
        "transfer": pytest.approx(0.012),
    }
    said = verdicts(fed)
    assert "--feed staged" in said["feed"].remedy
    assert "_recv_input_1_0 4.0 MB task:0 to task:1 in 12.0 ms, 333 MB/s" in said["feed"].evidence
    staged = explained(traced(wire_s=0.03, feed=False), parameters=replace(MATPOW, feed="staged"))
    assert set(found(staged)) == {"transfer"}
    assert verdicts(staged)["feed"].evidence == ("0 bytes are fed with a step (--feed staged)",)


def test_a_path_far_below_its_link_is_the_copies_fault() -> None:
    run = explained(traced(wire_s=0.012, share=0.1), baseline=links(7e9))
    transfer = verdicts(run)["transfer"]
    assert transfer.confidence == "high"
    assert "at best 10 % of what the link can: gRPC's copies are the bound" in transfer.evidence
    assert verdicts(run)["slow-link"].evidence[0] == "the slowest direction carries 7.0 Gbit/s"


def test_a_slow_link_has_all_transfers() -> None:
    run = explained(traced(wire_s=0.04, share=0.9), baseline=links(8e8, retransmits=41))
    assert set(found(run)) == {"slow-link"}
    link = verdicts(run)["slow-link"]
    assert link.seconds == pytest.approx(0.08)
    assert "carries 800 Mbit/s by itself (iperf 3.12)" in "\n".join(link.evidence)
    assert "41 segments were sent again" in link.evidence[-1]
    assert verdicts(run)["feed"].evidence[0].endswith("counted in slow-link")
    unknown = explained(traced(wire_s=0.04))
    assert verdicts(unknown)["slow-link"].status == "not_measured"
    assert verdicts(unknown)["slow-link"].evidence[1] == "labctl check --network"


def test_fetching_is_measured_by_the_pair_where_its_scatter_allows() -> None:
    trace = traced(fetch_s=0.02)
    assert found(explained(trace)) == {"fetch": pytest.approx(0.02)}
    warm_s = trace.duration_s
    pair = extra_steps("no_fetch", [warm_s - 0.015] * 5)
    by_pair = explained(trace, extra=pair)
    assert found(by_pair) == {"fetch": pytest.approx(0.015)}
    assert "without fetching" in verdicts(by_pair)["fetch"].evidence[0]
    equal = explained(trace, extra=extra_steps("no_fetch", [warm_s] * 5))
    assert found(equal) == {}
    scattered = explained(trace, extra=extra_steps("no_fetch", [warm_s, warm_s * 2, warm_s * 3]))
    assert found(scattered) == {"fetch": pytest.approx(0.02)}


def test_a_pair_claims_no_more_than_compute_and_transfers_leave() -> None:
    trace = traced(fetch_s=0.02)
    of = explained(trace, extra=extra_steps("no_fetch", [1e-4] * 5))
    parts = travel(of)
    assert parts is not None
    left_s = parts.step_s - parts.compute_s - parts.dispatch_s - parts.transfer_s
    assert found(of) == {"fetch": pytest.approx(left_s)}


def test_a_pair_that_scatters_decides_nothing() -> None:
    trace = traced()
    w = trace.duration_s
    extra = [*extra_steps("warm", [0.3 * w] * 4), *extra_steps("no_fetch", [0.3 * w, 0.7 * w, w])]
    said = verdicts(explained(trace, extra=extra))["fetch"]
    assert said.status == "not_measured"
    assert "they scatter too much" in said.evidence[0]


def test_a_part_near_its_threshold_is_told_with_it() -> None:
    said = verdicts(explained(traced(fetch_s=0.006)))["fetch"]
    assert (said.status, said.evidence[0].partition(", ")[2]) == (
        "ruled_out",
        "a cause from 15 % and 1.0 ms on",
    )


def test_a_result_that_stays_is_not_fetched() -> None:
    run = explained(traced(fetch_s=0.02), parameters=replace(MATPOW, fetch="none"))
    assert verdicts(run)["fetch"].evidence == ("0 bytes are fetched in a warm step (--fetch none)",)
    far = explained(traced(fetch_s=0.02), parameters=replace(MATPOW, sum_task=1))
    assert "--sum-on 0" in verdicts(far)["fetch"].remedy


def test_steps_without_their_products_are_told_by_another_rule() -> None:
    run = explained(traced(products=0, wire_s=0.02), products=8)
    assert found(run) == {}
    for cause in ("small-work", "fetch"):
        evidence = verdicts(run)[cause].evidence[0]
        assert evidence.endswith("counted in constants-folded")
        assert evidence[0].isdigit()


def test_break_even_needs_rates() -> None:
    assert break_even(traced(), 1000) is not None
    assert break_even(traced(), None) is None
    assert break_even(traced(tasks=1), 1000) is None
    trace = traced()
    unrated = replace(trace, edges=tuple(replace(e, size_bytes=None) for e in trace.edges))
    assert break_even(unrated, 1000) is None


def test_large_packets_pass_or_it_is_not_known() -> None:
    assert verdicts(healthy())["mtu-mismatch"].evidence == ("4.0 MB came across at 1333 MB/s",)
    said = verdicts(hung())["mtu-mismatch"]
    assert said.status == "not_measured"
    assert "ping -M do" in said.evidence[1]
    by_baseline = replace(
        hung(), data=replace(hung().data, record=replace(hung().data.record, baseline=links(7e9)))
    )
    assert verdicts(by_baseline)["mtu-mismatch"].status == "ruled_out"


def test_the_master_and_the_protocol() -> None:
    said = verdicts(healthy())
    assert said["remote-master"].status == said["protocol-plugin"].status == "ruled_out"
    script: Any = replace(MATPOW, experiment="script", feed=None, size=None)
    assert (
        verdicts(explained(traced(), parameters=script))["remote-master"].status == "not_measured"
    )
    bare = verdicts(run(HEALTHY, outcome="failed", parameters=script))
    assert bare["protocol-plugin"].status == "not_measured"
    assert verdicts(run(HEALTHY, parameters=script))["protocol-plugin"].status == "ruled_out"
    words = "No server factory registered; the available server factories are: [ GRPC_SERVER ]"
    error = event(wire.ERROR, 4.0, kind="script", message=words)
    asked = verdicts(explained(traced(), parameters=script, extra=[error]))["protocol-plugin"]
    assert (asked.status, asked.seconds) == ("found", None)


def test_a_tensor_faster_than_its_link_shows_a_busy_baseline() -> None:
    lines = verdicts(explained(traced(wire_s=0.012, share=1.2)))["transfer"].evidence
    assert any("more than its baseline: that was measured on a busy host" in each for each in lines)
    assert not any("120 %" in each for each in lines)
