"""Too little CPU, a weak node, a clock that jumps: with the figures of healthy and disturbed runs on machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.causes.model import Verdict
from labctl.analysis.causes.node import RULES
from labctl.analysis.causes.usage import Use, uses
from labctl.analysis.explained import Explained
from labctl.analysis.model import ClockLine
from labctl.node import wire
from labctl.runs.record import ClockSample, Parameters
from tests.unit.stories import (
    HEALTHY,
    MATPOW,
    SERVER,
    START_S,
    TF0,
    TF1,
    event,
    phase,
    run,
    usage,
)

PEAKS = {"tf0": 235.0, "tf1": 230.0}
COMPUTES = {0: 0.01, 1: 0.08}  # of a warm step of 0.1 s


def verdicts(of: Explained) -> dict[str, Verdict]:
    return {rule.cause: rule.judge(of) for rule in RULES}


def starved(of: Explained) -> Verdict:
    return verdicts(of)["cpu-starved"]


def used(lost: float, *, task: int, cpu_s: float = 0.9, **node_s: float) -> list[Any]:
    """Return the readings around the warm steps (8.4 to 9.4 s) of a task that lost a share of its threads' time."""
    wait_s = cpu_s * lost / (1 - lost)
    zeros = dict.fromkeys(node_s, 0.0)
    return [
        usage(8.3, 5.0, 7.0, task=task, **zeros),
        usage(
            8.9,
            5.0 + cpu_s / 2,
            7.0 + wait_s / 2,
            task=task,
            **{k: v / 2 for k, v in node_s.items()},
        ),
        usage(9.45, 5.0 + cpu_s, 7.0 + wait_s, task=task, **node_s),
    ]


def measured(
    reach: dict[int, float],
    lost: dict[int, float],
    node_s: dict[str, float] | None = None,
    **more: Any,
) -> Explained:
    """Return a run whose products reached a share of the nodes' peaks and whose threads lost one of their time."""
    own = used(lost[0], task=0, **(node_s or {})) if 0 in lost else []
    server = used(lost[1], task=1, **(node_s or {})) if 1 in lost else []
    gflops = {task: share * PEAKS[f"tf{task}"] for task, share in reach.items()}
    values: dict[str, Any] = {"peaks": PEAKS, "computes_s": COMPUTES, "gflops": gflops, **more}
    return run([*HEALTHY[:-1], *own, HEALTHY[-1]], server_events=server, **values)


# Figures of runs on two machines of one CPU each that nobody disturbed.
UNDISTURBED = [
    ({0: 0.99, 1: 0.94}, {0: 0.50, 1: 0.28}),
    ({0: 0.92, 1: 0.92}, {0: 0.46, 1: 0.32}),
    ({0: 0.89, 1: 0.89}, {0: 0.42, 1: 0.42}),
    ({0: 1.06, 1: 0.99}, {0: 0.20, 1: 0.17}),
    ({0: 0.91, 1: 0.94}, {0: 0.52, 1: 0.53}),
]
DISTURBED = [
    ({0: 0.95, 1: 0.24}, {0: 0.55, 1: 0.84}),
    ({0: 0.83, 1: 0.41}, {0: 0.63, 1: 0.73}),
    ({0: 0.90, 1: 0.50}, {0: 0.58, 1: 0.58}),
]


@pytest.mark.parametrize(("reach", "lost"), UNDISTURBED)
def test_threads_that_wait_for_each_other_starve_nobody(
    reach: dict[int, float], lost: dict[int, float]
) -> None:
    said = verdicts(measured(reach, lost))
    assert {cause: verdict.status for cause, verdict in said.items()} == dict.fromkeys(
        said, "ruled_out"
    )
    assert f"its products ran at {230 * reach[1]:.0f} GFLOP/s" in said["cpu-starved"].evidence[1]


@pytest.mark.parametrize(("reach", "lost"), DISTURBED)
def test_products_that_are_slow_while_threads_wait_are_starved(
    reach: dict[int, float], lost: dict[int, float]
) -> None:
    said = starved(measured(reach, lost))
    assert (said.status, said.scope, said.confidence) == ("found", "step", "high")
    assert said.title.startswith("task:1 on tf1 has no CPU for ")
    assert said.seconds == pytest.approx(COMPUTES[1] * (1 - reach[1] / 0.9), rel=0.03)
    assert "tf1" in said.remedy


def test_a_node_of_the_same_make_shows_what_a_badly_measured_peak_hides() -> None:
    reach, lost = DISTURBED[0]
    said = starved(measured(reach, lost, peaks=PEAKS | {"tf1": 60.0}))
    assert said.status == "found"
    assert "25 % of the 223 that such a node can do" in said.evidence[0]
    assert starved(measured(reach, lost, peaks=None)).status == "found"
    other_make = (TF0, replace(TF1, cpu_model="another"))
    assert (
        starved(measured(reach, lost, peaks=PEAKS | {"tf1": 60.0}, nodes=other_make)).status
        == "ruled_out"
    )


def test_slow_products_of_a_task_that_did_not_wait_are_no_lack_of_cpu() -> None:
    assert starved(measured({0: 0.95, 1: 0.4}, {0: 0.1, 1: 0.05})).status == "ruled_out"


def test_a_starved_task_off_the_critical_path_costs_nothing() -> None:
    of = measured({0: 0.3, 1: 0.95}, {0: 0.8, 1: 0.3})
    assert starved(of).status == "ruled_out"


def test_without_readings_only_much_slower_products_count() -> None:
    assert starved(measured({0: 0.95, 1: 0.65}, {})).status == "ruled_out"
    said = starved(measured({0: 0.95, 1: 0.45}, {}))
    assert (said.status, said.confidence) == ("found", "medium")
    assert said.seconds == pytest.approx(0.04)


def test_without_a_trace_the_cpus_must_have_gone_to_others() -> None:
    bare: dict[str, Any] = {"gflops": None, "peaks": None, "computes_s": None}
    busy = {"busy": 1.1, "idle": 0.05, "steal": 0.0}
    others = {"busy": 1.3, "idle": 0.0, "steal": 0.0}
    assert starved(measured({}, {1: 0.5}, busy | {"busy": 0.95}, **bare)).status == "ruled_out"
    said = starved(measured({}, {1: 0.5}, others, **bare))
    assert (said.status, said.confidence, said.seconds) == ("found", "medium", None)
    said = starved(measured({}, {1: 0.5}, others, **bare | {"peaks": PEAKS}))
    assert said.seconds == pytest.approx(0.1 * 0.4 / 1.3)
    assert starved(measured({}, {1: 0.8}, None, **bare)).seconds is None


def test_without_a_trace_no_more_is_lost_than_products_at_their_best_leave() -> None:
    """Four products of L = 1000 take 80 of the 100 ms at 100 GFLOP/s."""
    bare: dict[str, Any] = {"gflops": None, "peaks": {"tf0": 100.0, "tf1": 90.0}}
    said = starved(measured({}, {1: 0.9}, None, **bare, computes_s=None))
    assert said.seconds == pytest.approx(0.02)
    assert (
        "a step of 4 products at 100 GFLOP/s and its tensors take 80.0 of 100.0 ms (80 %) at the least"
        in said.evidence
    )
    bare["peaks"] = {"tf0": 80.0, "tf1": 90.0}
    assert starved(measured({}, {1: 0.9}, None, **bare, computes_s=None)).status == "ruled_out"


def script(lost: float) -> Explained:
    parameters = Parameters("script", trace=False, fresh=False, timeout_s=60.0, script="x.py")
    events = [
        *HEALTHY[:5],
        usage(4.0, 1.0, 1.0, busy=0.0, idle=0.0, steal=0.0),
        *phase(wire.PHASE_SCRIPT, 4.1, 8.1),
        usage(8.2, 2.0, 1.0 + lost / (1 - lost), busy=4.0, idle=0.2, steal=0.0),
    ]
    return run(sorted(events, key=lambda each: each.t_ns), parameters=parameters)


def test_a_script_is_judged_by_the_readings_around_it() -> None:
    said = starved(script(0.8))
    assert (said.status, said.seconds) == ("found", None)
    assert said.title == "task:0 on tf0 has no CPU for 80 % of the time that it computes"
    assert starved(script(0.2)).status == "ruled_out"
    events = [each for each in script(0.8).data.events if each.kind != wire.USAGE]
    silent = starved(run(events, parameters=script(0.8).data.record.parameters))
    assert (silent.status, silent.evidence[0]) == (
        "not_measured",
        "no usage events frame the script, or its processes used less than 50 ms",
    )


def test_a_run_that_goes_on_has_not_ended() -> None:
    said = verdicts(run(HEALTHY[:9], outcome="running", wall_s=None))
    assert said["cpu-starved"].evidence[0] == "the run has not come to a warm step yet"
    assert said["slow-node"].evidence[0] == "the run has not come to a warm step yet"


def test_what_does_not_starve_is_told_with_its_threshold() -> None:
    said = starved(measured({1: 0.97}, {1: 0.46}))
    assert "starved at 70 % of the peak or less and 30 % without a CPU or more" in said.evidence[0]
    off = starved(measured({0: 0.3, 1: 0.95}, {0: 0.8, 1: 0.3}))
    assert off.evidence[0] == (
        "task:0 lost 67 % of its compute, 6.7 of 100.0 ms (7 %) of a step at most, a cause from 15 % on"
    )


def test_others_that_explain_too_little_of_the_waiting_leave_room_for_a_quota() -> None:
    """Figures of a machine with other load and a quota of 0.3 CPU, and of one with the load alone."""
    both = starved(measured({1: 0.28}, {1: 0.82}, {"busy": 1.48, "idle": 0.13, "steal": 0.0}))
    assert any("explains 68 % of waiting at most, not 82 %" in line for line in both.evidence)
    assert "lift the CPU quota of tf1" in both.remedy
    assert "end the other load" in both.remedy
    load = starved(measured({1: 0.4}, {1: 0.7}, {"busy": 2.4, "idle": 0.1, "steal": 0.0}))
    assert load.remedy == "end the other load on tf1 (top shows it there)"


@pytest.mark.parametrize(
    ("node_s", "words"),
    [
        ({"busy": 0.9, "idle": 0.6, "steal": 0.0}, "stood idle for 600.0 of 1500.0 ms"),
        ({"busy": 2.4, "idle": 0.1, "steal": 0.0}, "for other processes"),
        ({"busy": 0.9, "idle": 0.1, "steal": 0.9}, "(steal)"),
        ({"busy": 1.0, "idle": 0.1, "steal": 0.0}, "the node cannot tell"),
    ],
    ids=["quota from outside", "other load", "hypervisor", "nobody knows"],
)
def test_who_takes_the_cpu_is_told_where_it_can_be(node_s: dict[str, float], words: str) -> None:
    nodes = (TF0, replace(TF1, load_1min=3.2))
    said = starved(measured({1: 0.4}, {1: 0.7}, node_s, nodes=nodes))
    assert any(
        words.replace("1500.0 ms", "1.50 s").replace("600.0", "0.60") in line
        for line in said.evidence
    )


def test_a_quota_that_the_node_sees_is_named() -> None:
    nodes = (TF0, replace(TF1, cpu_limit=0.4))
    said = starved(measured({1: 0.4}, {1: 0.7}, nodes=nodes))
    assert "a control group grants tf1 0.4 of 1 CPU" in said.evidence
    assert said.remedy == "lift the CPU quota of tf1"


def test_a_small_product_is_not_held_against_the_peak_of_a_large_one() -> None:
    small = replace(MATPOW, size=200)
    assert starved(measured({1: 0.3}, {1: 0.5}, parameters=small)).status == "ruled_out"


def test_tasks_on_one_host_share_it_on_purpose() -> None:
    of = measured({0: 0.4, 1: 0.4}, {0: 0.6}, parameters=replace(MATPOW, placement="one-host"))
    said = starved(of)
    assert said.status == "ruled_out"
    assert "2 tasks share 1 CPU on" in said.evidence[0]


def test_what_is_missing_is_said() -> None:
    nothing = verdicts(run())
    assert nothing["cpu-starved"].status == "not_measured"
    assert "labctl check --compute" in nothing["cpu-starved"].evidence[1]
    assert nothing["slow-node"].evidence[0] == "the peak of tf0, tf1"
    assert nothing["clock-jump"].status == "ruled_out"  # by the clocks of the client's own events
    failed = verdicts(run(HEALTHY[:9], outcome="failed"))
    assert failed["cpu-starved"].status == failed["slow-node"].status == "not_measured"


def test_a_server_without_readings_is_judged_by_the_two_looks_at_it() -> None:
    before = replace(SERVER, cpu_s=2.0, wait_s=0.3)
    after = replace(SERVER, cpu_s=3.0, wait_s=4.3)
    assert uses(run(before=(before,), after=(after,))) == {1: Use(1.0, 4.0)}
    again = replace(after, invocation_id="b" * 32)
    assert uses(run(before=(before,), after=(again,))) == {}


def test_readings_are_taken_around_the_warm_steps_by_labctls_clock() -> None:
    """tf1's clock is 1000 s ahead; what it did before and after does not count."""
    events = [
        usage(at_s + 1000, cpu_s, wait_s, task=1)
        for at_s, cpu_s, wait_s in [(5.0, 0, 0), (8.2, 1, 5), (9.5, 2, 6), (20.0, 9, 9)]
    ]
    clock = (ClockSample("tf1", 1.0, 1000.0, 0.001),)
    assert uses(run(server_events=events, clock=clock)) == {1: Use(1.0, 1.0)}


def test_a_counter_that_went_back_is_no_reading() -> None:
    events = [usage(8.2, 5.0, 5.0, task=1), usage(9.5, 1.0, 6.0, task=1)]
    assert uses(run(server_events=events)) == {}


def slow(peaks: dict[str, float], gflops: dict[int, float], **more: Any) -> Verdict:
    values: dict[str, Any] = {"computes_s": COMPUTES, **more}
    return verdicts(run(peaks=peaks, gflops=gflops, **values))["slow-node"]


def test_a_node_of_half_the_speed_is_slow() -> None:
    said = slow({"tf0": 200.0, "tf1": 100.0}, {0: 190.0, 1: 90.0})
    assert (said.status, said.title) == ("found", "tf1 computes at 50 % of the best node's speed")
    assert said.seconds == pytest.approx(0.04)
    assert said.evidence[1] == "tf1: 100.0 GFLOP/s by itself on 1 CPU, 90.0 in the traced steps"


def test_without_speeds_in_a_trace_the_peaks_alone_rule_a_slow_node_out() -> None:
    said = verdicts(run(peaks=PEAKS))["slow-node"]
    assert (said.status, said.evidence[0]) == (
        "ruled_out",
        "the weakest node has 98 % of the best one's peak, slow is below 75 %",
    )
    assert verdicts(run(peaks={"tf0": 200.0, "tf1": 100.0}))["slow-node"].status == "not_measured"


def test_a_peak_that_was_measured_badly_makes_no_node_slow() -> None:
    assert slow({"tf0": 230.0, "tf1": 139.0}, {0: 210.0, 1: 205.0}).status == "ruled_out"


def test_a_starved_node_is_not_slow_by_itself() -> None:
    of = measured({0: 0.95, 1: 0.4}, {0: 0.3, 1: 0.7}, peaks=PEAKS | {"tf1": 150.0})
    said = verdicts(of)
    assert said["slow-node"].status == "ruled_out"
    assert said["slow-node"].evidence[0].endswith("counted in cpu-starved")
    fine = slow({"tf0": 230.0, "tf1": 139.0}, {0: 210.0, 1: 205.0})
    assert fine.evidence[0] == "tf1 has 98 % of the best node's speed, slow is below 75 %"


def clock(**values: Any) -> Verdict:
    return verdicts(run(**values))["clock-jump"]


def test_a_clock_that_was_set_is_found_by_its_own_events() -> None:
    jumped = [
        replace(each, t_ns=each.t_ns + 2 * 10**9) if each.t_s > START_S + 8.5 else each
        for each in HEALTHY
    ]
    said = clock(events=jumped)
    assert (said.status, said.seconds) == ("found", None)
    assert "clock of tf0 leapt by 2.00 s in mid-run" in said.evidence
    assert said.title == "The clock of tf0 was set in mid-run"


def test_a_clock_that_was_set_is_found_by_its_samples() -> None:
    lines = (
        ClockLine("tf0", 0.0, 0.001, 0.0, 2),
        ClockLine("tf1", 0.3, 0.001, 0.6, 2, absurd=True),
    )
    said = clock(clocks=lines)
    assert said.title == "The clock of tf1 was set in mid-run"
    assert any("+300.00 ms ± 1.00 ms" in line for line in said.evidence)


def test_a_clock_that_is_bent_slowly_is_no_jump() -> None:
    bent = [
        replace(each, t_ns=round(each.t_ns + (each.t_s - START_S) * 500_000)) for each in HEALTHY
    ]
    assert clock(events=bent).status == "ruled_out"


def test_a_reboot_between_two_servers_is_no_jump() -> None:
    first = event(wire.HELLO, 900.0, source="join-server", task=1)
    events = (first, replace(first, mono_ns=5 * 10**9, t_ns=first.t_ns + 30 * 10**9))
    assert clock(server_events=events).status == "ruled_out"


def test_no_clock_at_all_is_not_measured() -> None:
    assert clock(events=()).status == "not_measured"


@given(
    st.floats(0.01, 2.0),
    st.floats(0.0, 0.99),
    st.floats(0.0, 0.1),
    st.floats(0.0, 5.0),
    st.floats(0.0, 5.0),
)
def test_no_figure_costs_more_than_the_step_or_less_than_nothing(
    reach: float, lost: float, computes_s: float, busy_s: float, idle_s: float
) -> None:
    node_s = {"busy": busy_s, "idle": idle_s, "steal": 0.0}
    said = starved(measured({1: reach}, {1: lost}, node_s, computes_s={1: computes_s}))
    assert said.status in {"found", "ruled_out"}
    if said.seconds is not None:
        assert 0.015 <= said.seconds <= computes_s
