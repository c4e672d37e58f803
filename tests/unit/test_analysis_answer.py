"""Each claim of the question's answer, held against made-up runs; what is missing is said to be missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from labctl.analysis.answer import Answer, answer_of
from labctl.analysis.claims import CLAIMS
from labctl.analysis.defects import growth_limit
from labctl.analysis.evidence import (
    CHAIN,
    LISTING,
    LISTING_TWO,
    RECURSIVE,
    SQUARING,
    STAGED,
    SWEEP,
    Claim,
    grown,
    measured,
    transfer_ms,
)
from labctl.analysis.explained import Explained
from labctl.node import wire
from labctl.runs.events import Event
from labctl.views.answer import answer_lines, answer_markdown, answer_object
from tests.unit.explained_samples import explained, extra_steps, traced
from tests.unit.stories import MATPOW, event, phase

PEAKS = {"tf0": 260.0, "tf1": 260.0}  # a product of L 1000 in 8 ms is 250 GFLOP/s
_numbers = iter(range(1, 10_000))


def graph(sha256: str = "a" * 64, products: int = 8) -> Event:
    ops = {"MatMul": products, "AddN": 1}
    return event(
        wire.GRAPH, 2.54, nodes=products + 1, ops=ops, bytes=1540, constant_bytes=0, sha256=sha256
    )


def made(
    warm_s: float = 0.045,
    *,
    size: int = 1000,
    product_s: float = 8e-3,
    wire_s: float = 3e-3,
    events: Sequence[Event] = (),
    result: dict[str, Any] | None = None,
    parameters: dict[str, Any] | None = None,
    **more: Any,
) -> Explained:
    """Return a run with an id of its own; its steps differ a little from those of the next."""
    number = next(_numbers)
    trace = traced(product_s=product_s, wire_s=wire_s, size_bytes=4 * size * size)
    run = explained(
        trace,
        parameters=replace(MATPOW, size=size, **(parameters or {})),
        warm_s=warm_s * (1 + 0.001 * (number % 7)),
        extra=[*phase(wire.PHASE_INPUTS, 2.6, 2.63), *events],
        run_id=f"20261130T{number:06d}Z-abcdef",
        **{"peaks": PEAKS, **more},
    )
    fields = {
        "ok": True, "relative_error": 1.2e-7, "norm": 3.1e16, "power_computed": 6, "products": 8,
        "section_us": 400_000, "end_to_end_us": 4_000_000, **(result or {}),
    }  # fmt: skip
    kept = [each for each in run.data.events if each.kind != wire.RESULT]
    data = replace(run.data, events=(*kept, event(wire.RESULT, 8.0, **fields)))
    return replace(run, data=data)


def several(count: int = 3, **settings: Any) -> list[Explained]:
    return [made(**settings) for _ in range(count)]


def round_of_runs(**changed: list[Explained]) -> dict[str, list[Explained]]:
    """Return a round as it comes out on two one-CPU machines."""
    runs = {
        LISTING: several(
            warm_s=0.090, events=[graph(products=10), *extra_steps("no_fetch", [0.088] * 5)],
            parameters={"algorithm": "listing", "inter_op": None},
        ),
        LISTING_TWO: several(warm_s=0.050, parameters={"algorithm": "listing"}),
        CHAIN: several(events=[graph()]),
        RECURSIVE: several(events=[graph()], parameters={"algorithm": "recursive"}),
        SQUARING: several(warm_s=0.034, events=[graph(products=6)], result={"products": 6}),
        STAGED: several(warm_s=0.040, parameters={"feed": "staged"}),
        SWEEP[500]: several(size=500, product_s=1e-3, wire_s=0.75e-3),
        SWEEP[2000]: several(size=2000, product_s=64e-3, wire_s=12e-3),
    }  # fmt: skip
    return {**runs, **changed}


def answered(**changed: list[Explained]) -> Answer:
    return answer_of("20261130T120000Z", round_of_runs(**changed))


def claim(found: Answer, name: str) -> Claim:
    return next(each for each in found.claims if each.claim == name)


def values(found: Claim) -> dict[str, float]:
    return {each.what: each.value for each in found.numbers}


def test_every_claim_of_a_whole_round_has_its_verdict() -> None:
    found = answered()
    assert {each.claim: each.verdict for each in found.claims} == {
        "cpu-runs-well": "confirmed",
        "recursion": "refuted",
        "cubic-is-slow": "refuted",
        "memory-latency": "needs-gpu",
        "transfers": "refuted",
        "cold-start": "confirmed",
        "one-inter-op-thread": "confirmed",
    }
    for each in found.claims:
        assert each.runs
        assert each.runs == tuple(sorted(set(each.runs)))
    assert found.failed == ()


def test_equal_graphs_refute_recursion_whatever_the_noise() -> None:
    slow = several(warm_s=0.080, events=[graph()])
    found = claim(answered(**{RECURSIVE: slow}), "recursion")
    assert found.verdict == "refuted"
    assert "equal byte for byte" in found.facts[0]
    assert values(found)["recursion minus loop"] == pytest.approx(35, rel=0.05)


def test_another_graph_with_slower_steps_would_confirm_recursion() -> None:
    slow = several(warm_s=0.080, events=[graph("b" * 64, products=9)])
    found = claim(answered(**{RECURSIVE: slow}), "recursion")
    assert found.verdict == "confirmed"
    assert found.facts[0].startswith("graphs differ")
    same = several(events=[graph("b" * 64)])
    assert claim(answered(**{RECURSIVE: same}), "recursion").verdict == "refuted"


def test_squaring_says_what_does_count() -> None:
    found = claim(answered(), "recursion")
    assert values(found)["squaring minus loop"] == pytest.approx(-11, abs=1)
    assert "products of all tasks in one step, squaring: 6" in found.facts


def test_doubling_l_makes_products_8_times_and_transfers_4_times_as_long() -> None:
    told = values(claim(answered(), "cubic-is-slow"))
    for step in ("L 500 to 1000", "L 1000 to 2000"):
        assert told[f"product, {step}"] == pytest.approx(8)
        assert told[f"transfer, {step}"] == pytest.approx(4)
    assert told["products, L 1000"] == pytest.approx(250)
    assert told["share of it, tf0"] == pytest.approx(250 / 260)


@pytest.mark.parametrize(
    ("peak", "verdict"), [(260.0, "refuted"), (800.0, "undecided"), (2000.0, "confirmed")]
)
def test_a_slow_product_is_one_far_below_the_machines_own_peak(peak: float, verdict: str) -> None:
    runs = several(events=[graph()], peaks={"tf0": peak, "tf1": peak})
    assert claim(answered(**{CHAIN: runs}), "cubic-is-slow").verdict == verdict


def test_without_a_peak_nothing_is_said_of_the_rate() -> None:
    found = claim(answer_of("t", {CHAIN: several(events=[graph()], peaks=None)}), "cubic-is-slow")
    assert found.verdict == "not-measured"
    assert not any("share" in each.what for each in found.numbers)


def test_a_peak_that_products_beat_was_measured_on_a_busy_node() -> None:
    low = several(events=[graph()], peaks={"tf0": 190.0, "tf1": 190.0})
    found = claim(answer_of("t", {CHAIN: low}), "cubic-is-slow")
    assert found.verdict == "undecided"
    assert "busy hosts" in found.why
    assert (
        "tf0: its products reach 250 GFLOP/s, more than its measured peak of 190" in found.facts[1]
    )
    assert not any("share" in each.what for each in found.numbers)
    # Any run's better peak of the node is its peak.
    known = claim(answered(**{CHAIN: low}), "cubic-is-slow")
    assert values(known)["share of it, tf0"] == pytest.approx(250 / 260)
    near = several(events=[graph()], peaks={"tf0": 245.0, "tf1": 245.0})
    close = claim(answer_of("t", {CHAIN: near}), "cubic-is-slow")
    assert close.verdict == "refuted"
    assert max(each.value for each in close.numbers if "share" in each.what) <= 1


@pytest.mark.parametrize(
    ("staged_s", "verdict"), [(0.040, "refuted"), (0.010, "confirmed"), (0.045, "refuted")]
)
def test_transfers_are_what_it_is_about_if_they_are_most_of_the_step(
    staged_s: float, verdict: str
) -> None:
    found = claim(answered(**{STAGED: several(warm_s=staged_s)}), "transfers")
    assert found.verdict == verdict
    assert found.why.startswith(("Sending the inputs", "No cost of sending"))


def test_a_noisy_difference_stays_undecided() -> None:
    noisy = [made(warm_s=each) for each in (0.005, 0.08, 0.02)]
    assert claim(answered(**{STAGED: noisy}), "transfers").verdict == "undecided"


def test_two_threads_that_change_nothing_refute_the_one_thread() -> None:
    runs = several(warm_s=0.090)
    found = claim(answered(**{LISTING_TWO: runs}), "one-inter-op-thread")
    assert found.verdict == "refuted"
    assert "do not differ" in found.why


def test_a_stopwatch_that_shows_a_step_would_refute_the_cold_start() -> None:
    runs = several(warm_s=0.090, result={"end_to_end_us": 100_000})
    assert claim(answered(**{LISTING: runs}), "cold-start").verdict == "refuted"


def test_a_section_of_seconds_refutes_that_cpus_run_well() -> None:
    runs = several(result={"section_us": 14_000_000})
    assert claim(answered(**{LISTING: runs}), "cpu-runs-well").verdict == "refuted"


def test_what_was_not_run_is_not_measured() -> None:
    found = answer_of("20261130T120000Z", {CHAIN: [made()]})
    verdicts = {each.claim: each.verdict for each in found.claims}
    assert verdicts.pop("memory-latency") == "needs-gpu"
    assert verdicts.pop("cubic-is-slow") == "refuted"
    assert set(verdicts.values()) == {"not-measured"}
    shown = {each.defect for each in found.defects if each.shown}
    assert shown == {"future-import-late"}


def test_runs_that_failed_are_named_and_not_used() -> None:
    failed = made(outcome="failed")
    found = answered(**{RECURSIVE: [failed]})
    assert found.failed == ((RECURSIVE, failed.data.record.run_id, "failed"),)
    assert claim(found, "recursion").verdict == "not-measured"
    assert RECURSIVE not in found.runs
    assert any(line.startswith(f"warning {RECURSIVE}") for line in answer_lines(found))
    assert "## Runs that did not end ok" in answer_markdown(found)


def test_the_listings_defects_are_shown_by_its_runs() -> None:
    shown = {each.defect: each.shown for each in answered().defects}
    assert "A^6 + B^6" in shown["one-factor-more"]
    assert "beginning of the file" in shown["future-import-late"]
    assert shown["one-shot"] == "first step 300 ms, later ones 90 ms"
    assert "n = 14" in shown["overflow"]
    assert "30 ms" in shown["inputs-on-cpu"]
    assert "88.0 ms without" in shown["fetch-included"]
    assert shown["stopwatch-unit"] == "stopwatch 4000000, section 0:00:00.400000"
    assert "tf1 is active after each of 3 runs" in shown["server-stays"]
    assert shown["graph-built-twice"] == ""


def test_float32_holds_the_listing_up_to_n_14() -> None:
    assert growth_limit(1000) == 14


def test_the_same_runs_give_the_same_document_in_any_order() -> None:
    runs = round_of_runs()
    turned = {label: list(reversed(side)) for label, side in reversed(runs.items())}
    first, second = (answer_of("20261130T120000Z", each) for each in (runs, turned))
    assert answer_markdown(first) == answer_markdown(second)
    assert answer_object(first) == answer_object(second)


def test_the_document_says_what_it_does_not_know() -> None:
    text = answer_markdown(answered())
    assert "is not known here" in text
    assert "cannot be told here: needs a GPU" in text
    assert "## What needs a GPU" in text
    for each in answered().claims:
        assert each.text in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_the_terminal_has_every_verdict_and_the_next_command() -> None:
    lines = answer_lines(answered())
    for each in CLAIMS:
        assert each.__doc__
    assert sum(line.startswith(("refuted", "confirmed", "needs a GPU")) for line in lines) == 7
    assert lines[-1].startswith("next: labctl answer --from 20261130T120000Z")


def test_numbers_without_samples_or_spread_say_so() -> None:
    assert measured("x", "ms", [[], []]) is None
    single = measured("x", "ms", [[5.0]])
    assert single is not None
    assert (single.low, single.high, single.n) == (None, None, 1)
    assert grown("x", [[1.0]], [[]]) is None
    ratio = grown("x", [[1.0, 1.1, 0.9]] * 3, [[8.0, 8.8, 7.2]] * 3)
    assert ratio is not None
    assert ratio.value == pytest.approx(8)
    assert ratio.low is not None
    assert 0 < ratio.low < 8


def test_machines_with_other_work_are_noticed() -> None:
    assert answered().notes == ()
    uneven = [made(warm_s=each, events=[graph()]) for each in (0.045, 0.045, 0.15)]
    found = answered(**{CHAIN: uneven})
    assert len(found.notes) == 1
    assert re.search(r"45 to 15[01] ms", found.notes[0])
    assert found.notes[0] in answer_markdown(found)
    assert any(found.notes[0] in line for line in answer_lines(found))


def test_clamped_transfers_do_not_count() -> None:
    run = made()
    trace = run.traces[0]
    cut = replace(trace, edges=tuple(replace(each, clamped=True) for each in trace.edges))
    assert transfer_ms([replace(run, traces=(cut,))]) == [[]]
    assert len(transfer_ms([run])[0]) == 2
