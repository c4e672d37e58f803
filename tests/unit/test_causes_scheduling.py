"""Who waits for whom: the thread that answers too late, its price, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.causes.model import Verdict
from labctl.analysis.causes.replay import plain_name, saving_s
from labctl.analysis.causes.scheduling import RULES, all_held_up, inter_op_threads
from labctl.analysis.explained import Explained
from labctl.node import wire
from tests.unit.explained_samples import FED, explained, healthy, hung, starved, traced
from tests.unit.stories import MATPOW, SERVER, TF0, TF1, event

ONE_THREAD = replace(MATPOW, inter_op=1)
TWO_CPUS = (replace(TF0, cpus=2), replace(TF1, cpus=2))


def verdict(of: Explained, cause: str = "inter-op-starved") -> Verdict:
    return next(rule for rule in RULES if rule.cause == cause).judge(of)


@given(
    products=st.integers(1, 12),
    product_s=st.floats(2e-3, 0.5),
    wire_s=st.floats(1e-4, 0.05),
    tasks=st.integers(2, 4),
)
def test_the_price_is_what_an_answer_at_once_would_save(
    products: int, product_s: float, wire_s: float, tasks: int
) -> None:
    step = {"products": products, "product_s": product_s, "wire_s": wire_s, "tasks": tasks}
    late = traced(answers_at_once=False, **step)  # type: ignore[arg-type]
    at_once = traced(answers_at_once=True, **step)  # type: ignore[arg-type]
    nodes = tuple(replace(TF1, name=f"tf{task}", task=task, cpus=2) for task in range(tasks))
    said = verdict(explained(late, parameters=ONE_THREAD, nodes=nodes))
    saved_s = late.duration_s - at_once.duration_s
    if saved_s < 0.149 * late.duration_s:
        assert said.status == "ruled_out"
        assert said.evidence[0].endswith("of waiting for a thread")
    elif saved_s > 0.151 * late.duration_s:
        assert said.status == "found"
        assert said.seconds == pytest.approx(saved_s, rel=1e-3)


def test_on_one_cpu_the_answer_and_the_products_share_it() -> None:
    found = verdict(starved())
    late, at_once = traced(answers_at_once=False), traced()
    assert found.seconds == pytest.approx(late.duration_s - at_once.duration_s - 3e-3)
    assert (found.status, found.confidence) == ("found", "high")
    assert found.remedy == "--inter-op 2 (or --feed staged)"
    assert found.title == "One inter-op thread on task:0 holds up what task:1 waits for"
    text = "\n".join(found.evidence)
    assert f"task:1 could have {FED} from 1.0 ms on, its answer began at 33.0 ms" in text
    assert "task:0's MatMul_3 ended at 33.0 ms" in text
    assert "0.0 of 64.0 ms (0 %)" in text
    assert "task:0 has 1 inter-op thread" in text


def test_the_price_is_of_a_warm_step_and_of_the_usual_traced_one() -> None:
    late = traced(answers_at_once=False)
    several = [late, traced(), late]
    half = explained(
        late, traces=several, parameters=ONE_THREAD, warm_s=late.duration_s / 2, nodes=TWO_CPUS
    )
    full = explained(late, parameters=ONE_THREAD, nodes=TWO_CPUS)
    assert verdict(full).seconds == pytest.approx(0.032)
    assert verdict(half).seconds == pytest.approx(0.016)
    usual = explained(late, traces=[late, traced(), traced()], parameters=ONE_THREAD)
    assert verdict(usual).status == "ruled_out"


def test_a_healthy_step_rules_it_out_with_its_longest_wait() -> None:
    ruled_out = verdict(healthy())
    assert (ruled_out.status, ruled_out.seconds) == ("ruled_out", None)
    assert ruled_out.evidence[0] == "0 of 2 tensors waited for a thread"


def test_an_answer_in_the_middle_of_the_products_is_none_of_a_thread() -> None:
    # Two threads on one CPU: the kernel lets the answer wait for a time slice, which ends between two products too.
    trace = traced(product_s=2.8e-3)
    (fed,) = [edge for edge in trace.edges if edge.tensor == FED]
    late_s = 1e-3 + 2.8e-3 + 1e-4
    slice_later = replace(fed, answered_s=late_s, arrived_s=late_s + 3e-3, waited_s=2.9e-3)
    assert all_held_up(replace(trace, edges=(slice_later,))) == []


def test_a_result_that_is_sent_when_it_is_made_is_not_held_up() -> None:
    staged = explained(traced(feed=False), parameters=replace(ONE_THREAD, feed="staged"))
    assert verdict(staged).status == "ruled_out"
    assert "0.0 ms" in verdict(staged).evidence[1]


def test_a_sender_that_computes_nothing_meanwhile_is_another_story() -> None:
    trace = traced(answers_at_once=False)
    idle = replace(trace, ops=tuple(op for op in trace.ops if op.task == 1 or op.name == "total"))
    assert verdict(explained(idle, parameters=ONE_THREAD)).status == "ruled_out"


def test_stamps_that_cannot_be_believed_measure_nothing() -> None:
    trace = traced(answers_at_once=False)
    cut = replace(trace, edges=tuple(replace(edge, clamped=True) for edge in trace.edges))
    said = verdict(explained(cut, parameters=ONE_THREAD))
    assert said.status == "not_measured"
    assert "clocks differ" in said.evidence[0]


def test_without_a_trace_it_is_not_measured() -> None:
    assert verdict(hung()).status == "not_measured"
    untraced = replace(healthy(), trace=None, traces=(), split=None)
    assert "before a traced step" in verdict(untraced).evidence[0]
    tf2 = explained(traced(), parameters=replace(MATPOW, api="tf2"))
    assert "tf2" in verdict(replace(tf2, trace=None, traces=(), split=None)).evidence[0]
    alone = replace(MATPOW, placement="one-process")
    assert verdict(explained(traced(tasks=1), parameters=alone)).status == "ruled_out"


@pytest.mark.parametrize(
    ("inter_op", "nodes", "confidence"),
    [
        (None, (TF0, TF1), "high"),
        (None, TWO_CPUS, "low"),
        (2, (TF0, TF1), "low"),
        (None, (replace(TF0, cpus=None), TF1), "medium"),
    ],
)
def test_how_sure_it_is_follows_from_the_threads(
    inter_op: int | None, nodes: tuple[object, ...], confidence: str
) -> None:
    parameters = replace(MATPOW, inter_op=inter_op)
    found = verdict(explained(traced(answers_at_once=False), parameters=parameters, nodes=nodes))
    assert (found.status, found.confidence) == ("found", confidence)


def test_threads_of_the_other_tasks_are_those_of_their_servers() -> None:
    said = explained(traced(), before=(replace(SERVER, inter_op=1),))
    assert inter_op_threads(said, 1) == 1
    ready = event(wire.READY, -50.0, source="join-server", task=1, inter_op=3)
    assert inter_op_threads(explained(traced(), server_events=[ready]), 1) == 3
    assert inter_op_threads(healthy(), 1) is None
    assert inter_op_threads(healthy(), 0) == 2


def test_tasks_with_unequal_products() -> None:
    trace = traced()
    busy, other = trace.tasks
    more = replace(trace, tasks=(replace(busy, products={"CPU:0": 8}, compute_s=0.064), other))
    found = verdict(explained(more), "tasks-unbalanced")
    assert found.status == "found"
    assert found.seconds == pytest.approx(0.016)
    assert found.evidence[0] == "products: task:0 8, task:1 4"
    assert verdict(healthy(), "tasks-unbalanced").evidence == ("4 products on each of 2 tasks",)
    little = replace(trace, tasks=(replace(busy, products={"CPU:0": 5}), other))
    assert verdict(explained(little), "tasks-unbalanced").status == "ruled_out"
    assert verdict(hung(), "tasks-unbalanced").status == "not_measured"


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("MatMul_7_S3", "MatMul_7"),
        ("^MatMul_7:0", "MatMul_7"),
        ("_recv_input_1_0_S1", "_recv_input_1_0"),
        ("MatMul_7", "MatMul_7"),
    ],
)
def test_labels_of_tensors(label: str, name: str) -> None:
    assert plain_name(label) == name


@given(st.permutations(range(9)))
def test_the_replay_does_not_depend_on_the_order_of_rows(order: list[int]) -> None:
    trace = traced(answers_at_once=False)
    (fed,) = [edge for edge in trace.edges if edge.tensor == FED]
    mixed = replace(
        trace, ops=tuple(trace.ops[k] for k in order), edges=tuple(reversed(trace.edges))
    )
    assert saving_s(mixed, {fed: 4e-3}) == pytest.approx(saving_s(trace, {fed: 4e-3}))
    assert saving_s(trace, {}) == 0.0
