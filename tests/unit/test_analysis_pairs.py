"""The pair that decides on a cause, and what its runs say."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from labctl.analysis.causes.model import Proof
from labctl.analysis.causes.rules import RULES
from labctl.analysis.compare import Measured, RowKey
from labctl.analysis.pairs import Pair, graphs_equal, pair_for, setting_text, weigh
from labctl.drive.plan import RunOptions
from labctl.runs.record import Parameters

OWN = Parameters(
    "matpow",
    trace=True,
    fresh=False,
    timeout_s=60.0,
    device="cpu",
    size=1000,
    power=5,
    algorithm="chain",
    feed="fed",
    placement="lab",
    api="session",
    inter_op=1,
    repeat=10,
    fetch="sum",
    sum_task=0,
)
BARE = "--algorithm chain -n 1 --feed staged --fetch none"
DECIDED = {
    "inter-op-starved",
    "feed",
    "fetch",
    "transfer",
    "slow-link",
    "small-work",
    "more-products-than-needed",
    "recursion",
    "tasks-unbalanced",
    "import",
    "first-step-setup",
    "server-start",
}


def own(**changed: Any) -> Parameters:
    return replace(OWN, **changed)


def pair(cause: str, **changed: Any) -> Pair:
    found = pair_for(cause, own(**changed))
    assert isinstance(found, Pair), found
    return found


def reason(cause: str, **changed: Any) -> str:
    found = pair_for(cause, own(**changed))
    assert isinstance(found, str)
    return found


def run(number: int, *steps_s: float, graph: str = "", **once_s: float) -> Measured:
    rows: dict[RowKey, tuple[float, ...]] = {RowKey("warm step", by_step=True): steps_s}
    rows |= {RowKey(name.replace("0", " ")): (value,) for name, value in once_s.items()}
    return Measured(f"run-{number}", "ok", {}, {}, rows, graph)


def runs(step_s: float, count: int = 3, **told: Any) -> list[Measured]:
    return [
        run(k, *(step_s * (1 + 0.001 * (k + j)) for j in range(6)), **told) for k in range(count)
    ]


OWN_RUN = replace(runs(0.045)[0], rows={**runs(0.045)[0].rows, RowKey("wall"): (4.0,)})


def weighed(
    which: Pair, first: list[Measured], second: list[Measured], claimed_s: float | None
) -> Proof | None:
    return weigh(which, first, second, own=OWN_RUN, claimed_s=claimed_s)


def test_every_cause_of_the_catalogue_has_a_pair_or_a_reason() -> None:
    decided = set()
    for rule in RULES:
        found = pair_for(rule.cause, OWN)
        if isinstance(found, Pair):
            decided.add(rule.cause)
        else:
            assert len(found) > 20, rule.cause
    assert decided == DECIDED


def test_changes_are_options_of_a_run() -> None:
    options = {each.name for each in fields(RunOptions)}
    of_record = {each.name for each in fields(Parameters)}
    for cause in DECIDED:
        found = pair(cause)
        names = {name for name, _ in (*found.first, *(found.second or ()))}
        assert names <= options & of_record, cause


@pytest.mark.parametrize(
    ("cause", "changed", "text"),
    [
        ("inter-op-starved", {}, "--inter-op 1 against --inter-op 2"),
        ("inter-op-starved", {"inter_op": None}, "--inter-op default against --inter-op 2"),
        ("inter-op-starved", {"inter_op": 2}, "--inter-op 2 against --inter-op 4"),
        ("feed", {}, "--feed fed against --feed staged"),
        ("fetch", {}, "--fetch sum against --fetch none"),
        ("constants-folded", {"feed": "constant"}, "--feed fed against --feed constant"),
        (
            "more-products-than-needed",
            {"algorithm": "listing"},
            "--algorithm listing -n 5 against --algorithm squaring -n 6",
        ),
        ("recursion", {}, "--algorithm recursive against --algorithm chain"),
        (
            "recursion",
            {"algorithm": "listing"},
            "--algorithm listing -n 5 against --algorithm chain -n 6",
        ),
        ("tasks-unbalanced", {}, "--sum-on 0 against --sum-on 1"),
        ("tasks-unbalanced", {"sum_task": 1}, "--sum-on 1 against --sum-on 0"),
        (
            "transfer",
            {},
            f"--placement lab against --placement one-process, both with {BARE}",
        ),
        ("small-work", {}, "--placement lab against --placement one-process"),
        ("import", {}, "import of fresh processes"),
    ],
)
def test_the_two_sides_differ_in_the_cause_alone(
    cause: str, changed: dict[str, Any], text: str
) -> None:
    assert pair(cause, **changed).text == text


@pytest.mark.parametrize(
    ("cause", "changed", "word"),
    [
        ("feed", {"feed": "staged"}, "staged"),
        ("fetch", {"fetch": "none"}, "none"),
        ("constants-folded", {}, "no constants"),
        ("more-products-than-needed", {"algorithm": "squaring"}, "fewest"),
        ("transfer", {"placement": "one-process"}, "one process"),
        ("small-work", {"placement": "one-process"}, "one process"),
        ("slow-link", {"placement": "one-host"}, "one-host"),
        ("soft-placement", {}, "GPU"),
        ("cpu-starved", {}, "on the node"),
        ("import", {"experiment": "script"}, "built-in experiment"),
    ],
)
def test_what_cannot_be_proved_says_why(cause: str, changed: dict[str, Any], word: str) -> None:
    assert word in reason(cause, **changed)


def test_a_cost_that_is_there_is_confirmed() -> None:
    proof = weighed(pair("inter-op-starved"), runs(0.075), runs(0.045), 0.031)
    assert proof is not None
    assert proof.outcome == "confirmed"
    assert proof.seconds == pytest.approx(0.030, rel=0.02)
    assert proof.low_s < proof.seconds < proof.high_s
    assert len(proof.runs) == 6


def test_a_cost_that_is_not_there_is_refuted() -> None:
    proof = weighed(pair("inter-op-starved"), runs(0.045), runs(0.045), 0.031)
    assert proof is not None
    assert proof.outcome == "refuted"
    assert proof.high_s < 0.031 / 2


def test_noise_leaves_it_undecided() -> None:
    noisy = [run(k, *([step] * 6)) for k, step in enumerate((0.03, 0.05, 0.09))]
    proof = weighed(pair("inter-op-starved"), noisy, runs(0.045), 0.031)
    assert proof is not None
    assert proof.outcome == "undecided"


def test_what_nobody_claims_has_to_matter() -> None:
    checked = pair("feed")
    # 15 % of a step of 45 ms
    for first_s, outcome in ((0.060, "confirmed"), (0.050, "refuted"), (0.0451, "refuted")):
        proof = weighed(checked, runs(first_s), runs(0.045), None)
        assert proof is not None
        assert proof.outcome == outcome


def test_one_and_the_same_graph_refutes_recursion_whatever_the_noise() -> None:
    noisy = [run(k, *([step] * 6), graph="ab") for k, step in enumerate((0.03, 0.05, 0.09))]
    checked = pair("recursion")
    proof = weighed(checked, noisy, runs(0.045, graph="ab"), None)
    assert proof is not None
    assert proof.outcome == "refuted"
    assert proof.pair.endswith("with one and the same graph")
    other = weighed(checked, noisy, runs(0.045, graph="cd"), None)
    assert other is not None
    assert other.outcome == "undecided"
    assert graphs_equal([run(0, graph="ab"), run(1)]) is None
    assert graphs_equal([]) is None


def test_what_is_paid_once_is_measured_within_fresh_processes() -> None:
    fresh = [
        run(k, 0.1, 0.11, 0.12, import_numpy=0.1, import_tensorflow=1.5 + 0.01 * k, cold0step=0.4)
        for k in range(3)
    ]
    imported = weighed(pair("import"), fresh, [], 1.7)
    assert imported is not None
    assert imported.outcome == "confirmed"
    assert imported.seconds == pytest.approx(1.61)
    first = weighed(pair("first-step-setup"), fresh, [], 2.0)
    assert first is not None
    assert first.seconds == pytest.approx(0.29)
    assert first.outcome == "refuted"


def test_what_is_paid_once_and_nobody_claims_has_to_be_a_part_of_the_run() -> None:
    for import_s, outcome in ((1.5, "confirmed"), (0.2, "refuted")):
        fresh = [run(k, 0.1, import_tensorflow=import_s + 0.01 * k) for k in range(3)]
        proof = weighed(pair("import"), fresh, [], None)
        assert proof is not None
        assert proof.outcome == outcome


def test_runs_that_measured_nothing_say_nothing() -> None:
    assert weighed(pair("fetch"), [], runs(0.1), 0.01) is None
    assert weighed(pair("fetch"), [run(0, 0.1)], [run(1, 0.2)], 0.01) is None
    assert weighed(pair("first-step-setup"), runs(0.1), [], 0.01) is None


def test_settings_are_told_as_options() -> None:
    assert setting_text(()) == "as recorded"
    assert setting_text((("power", 3), ("feed", "staged"))) == "-n 3 --feed staged"
