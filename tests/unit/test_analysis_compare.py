"""Two sets of runs: what is compared, what must be alike, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.compare import (
    Comparison,
    Measured,
    RowKey,
    compare,
    facts_of,
    measure,
    parameters_of,
)
from labctl.analysis.explain import explain
from labctl.runs.data import load
from labctl.runs.record import Parameters, read_record
from labctl.views.compare import compare_lines, compare_object, interval_bar, seconds_text

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/records/20261130T153419Z-f99880"
WARM = RowKey("warm step", by_step=True)
WALL = RowKey("wall")


def run(number: int, step_s: float = 0.1, **changed: Any) -> Measured:
    """Return a run with steps around a time; runs differ a little among themselves."""
    centre = step_s * (1 + 0.002 * (number % 5))
    steps = tuple(centre * (1 + 0.001 * k) for k in range(6))
    parameters = Parameters(
        "matpow", trace=True, fresh=False, timeout_s=60.0, feed="fed", placement="lab", inter_op=2
    )
    made = Measured(
        run_id=f"20261130T1600{number:02d}Z-abcdef",
        outcome="ok",
        facts={"kernel on tf0": "6.1", "tasks": "2", "boot of tf0": "1234"},
        parameters=parameters_of(parameters),
        rows={WARM: steps, WALL: (4.0 + 10 * centre,), RowKey("import", "tf0"): (1.5,)},
    )
    return replace(made, **changed)


def side(first: int, count: int = 4, step_s: float = 0.1, **changed: Any) -> list[Measured]:
    return [run(first + k, step_s, **changed) for k in range(count)]


def with_parameter(name: str, value: str) -> dict[str, Any]:
    return {"parameters": {**run(0).parameters, name: value}}


def with_fact(name: str, value: str) -> dict[str, Any]:
    return {"facts": {**run(0).facts, name: value}}


def test_sets_of_one_kind_are_the_same() -> None:
    found = compare(side(0), side(10))
    assert (found.subject, found.mismatches, found.refused) == ((), (), ())
    assert found.verdict == "same"
    assert found.decides is not None
    assert found.decides.key == WARM
    assert "the same" in "\n".join(compare_lines(found))


@pytest.mark.parametrize(("step_s", "verdict"), [(0.13, "slower"), (0.07, "faster")])
def test_the_parameter_that_differs_is_the_subject(step_s: float, verdict: str) -> None:
    found = compare(side(0), side(10, step_s=step_s, **with_parameter("feed", "staged")))
    assert [(each.what, each.a, each.b) for each in found.subject] == [("feed", "fed", "staged")]
    assert found.refused == ()
    assert found.verdict == verdict
    lines = compare_lines(found)
    assert "compared: feed fed against staged" in lines[0]
    assert any(line.startswith(f"verdict   B is {verdict}: warm step") for line in lines)


@pytest.mark.parametrize("fact", ["kernel on tf0", "boot of tf0", "tasks"])
def test_a_fact_that_differs_refuses_a_verdict_and_is_named(fact: str) -> None:
    found = compare(side(0), side(10, **with_fact(fact, "other")))
    assert found.verdict is None
    assert [each.what for each in found.mismatches] == [fact]
    assert any(fact in why and "other" in why for why in found.refused)
    assert any(line.startswith("refused") and fact in line for line in compare_lines(found))


def test_a_fact_that_one_side_does_not_have_differs() -> None:
    found = compare(side(0), side(10, **with_fact("driver on tf0", "550")))
    assert [(each.a, each.b) for each in found.mismatches] == [("none", "550")]


def test_a_side_must_agree_with_itself() -> None:
    mixed = [*side(0, 2), *side(2, 2, **with_parameter("feed", "staged"))]
    found = compare(mixed, side(10))
    assert found.subject == ()
    assert [(each.what, each.mixed, each.a) for each in found.mismatches] == [
        ("feed", "A", "fed, staged")
    ]
    facts = [*side(10, 2), *side(12, 2, **with_fact("kernel on tf0", "6.2"))]
    assert [each.mixed for each in compare(side(0), facts).mismatches] == ["B"]


def test_placement_brings_its_own_number_of_tasks() -> None:
    one_process = {**with_parameter("placement", "one-process"), **with_fact("tasks", "1")}
    assert compare(side(0), side(10, **one_process)).refused == ()
    one_process = {**one_process, "facts": {**run(0).facts, "tasks": "1", "kernel on tf0": "x"}}
    assert len(compare(side(0), side(10, **one_process)).refused) == 1


def test_a_run_that_did_not_end_well_refuses_a_verdict() -> None:
    found = compare(side(0), [*side(10, 3), run(13, outcome="timeout")])
    assert found.refused == ("run 20261130T160013Z-abcdef is timeout, not ok",)


def too_few() -> Comparison:
    def few(run: Measured) -> Measured:
        return replace(run, rows={WARM: (0.1, 0.11), WALL: (4.0,)})

    return compare([few(run(0)), few(run(1))], [few(run(10)), few(run(11))])


def too_noisy() -> Comparison:
    return compare(
        [run(k, 0.1 * (1 + k)) for k in range(4)], [run(10 + k, 0.1 * (1 + k)) for k in range(4)]
    )


def nothing_common() -> Comparison:
    return compare([run(0, rows={})], [run(1, rows={})])


@pytest.mark.parametrize(
    ("make", "words"),
    [(too_few, "3 runs a side"), (too_noisy, "too noisy"), (nothing_common, "neither")],
)
def test_too_little_refuses_a_verdict(make: Callable[[], Comparison], words: str) -> None:
    found = make()
    assert found.verdict is None
    assert any(words in why for why in found.refused)
    assert compare_object(found)["verdict"] is None
    assert "verdict   none" in compare_lines(found)


def test_a_verdict_needs_three_runs_a_side() -> None:
    for runs in (1, 2):
        found = compare(side(0, runs), side(10, runs, step_s=0.2))
        assert found.verdict is None
        assert "a verdict needs 3 runs a side" in found.refused[0]
    assert compare(side(0, 3), side(10, 3, step_s=0.2)).verdict == "slower"


def test_without_steps_the_wall_time_decides() -> None:
    def walls(first: int, wall_s: float) -> list[Measured]:
        return [run(first + k, rows={WALL: (wall_s + 0.01 * k,)}) for k in range(3)]

    found = compare(walls(0, 4.0), walls(10, 5.0))
    assert found.decides is not None
    assert (found.decides.key, found.verdict) == (WALL, "slower")


def test_what_only_one_side_has_is_shown_without_a_difference() -> None:
    extra = RowKey("restart servers", "labctl")
    b = [replace(each, rows={**each.rows, extra: (2.0,)}) for each in side(10)]
    found = compare(side(0), b)
    row = next(row for row in found.rows if row.key == extra)
    assert (row.a, row.difference, row.judgement) == (None, None, "unclear")
    assert any("only in B" in line for line in compare_lines(found))


def test_runs_of_a_batch_are_told_from_commands() -> None:
    commands = [
        replace(each, rows={**each.rows, RowKey("startup", "labctl"): (0.2,)}) for each in side(0)
    ]
    assert any("batch" in note for note in compare(commands, side(10)).notes)
    assert compare(side(0), side(10)).notes == ()


def test_the_object_has_every_row_in_seconds() -> None:
    told = compare_object(compare(side(0), side(10, step_s=0.2)))
    assert told["verdict"] == "slower"
    assert told["decides"] == "warm step"
    first = told["rows"][0]
    assert first["level"] == "step"
    assert first["change_s"] == pytest.approx(0.1, rel=0.05)
    assert first["low_s"] < first["change_s"] < first["high_s"]
    assert first["percent"] == pytest.approx(100, rel=0.05)
    assert first["a"]["runs"] == 4
    assert first["a"]["values"] == 24


def test_measures_of_a_stored_run() -> None:
    record = read_record(FIXTURE)
    measured = measure(explain(load(FIXTURE, record)))
    assert measured.run_id == record.run_id
    assert len(measured.rows[WARM]) == record.parameters.repeat
    assert measured.rows[WALL] == (record.wall_s,)
    phases = sum(
        values[0]
        for key, values in measured.rows.items()
        if not key.by_step and key.name not in {"wall", "cold step"}
    )
    assert phases == pytest.approx(record.wall_s)
    traced = {(key.name, key.where) for key in measured.rows if key.by_step}
    assert {("compute", "task:0"), ("compute", "task:1"), ("fetch", "")} <= traced


def test_facts_and_parameters_of_a_record() -> None:
    record = read_record(FIXTURE)
    facts = facts_of(record)
    assert facts["tasks"] == "2"
    assert facts["tensorflow on tf1"] == record.nodes[1].versions["tensorflow"]
    assert facts["join servers restarted first"] == "no"
    bare = replace(record, nodes=(replace(record.nodes[0], versions={}, cpus=None, boot_id=""),))
    assert facts_of(bare)["CPUs of tf0"] == "unknown"
    assert facts_of(bare)["kernel on tf0"] == "unknown"
    told = parameters_of(record.parameters)
    assert told["feed"] == record.parameters.feed
    assert "timeout-s" not in told
    assert "fresh" not in told
    changed = replace(record.parameters, inter_op=None, args=("a", "b"), soft_placement=True)
    assert parameters_of(changed)["inter-op"] == "default"
    assert parameters_of(changed)["args"] == "a b"
    assert parameters_of(changed)["soft-placement"] == "yes"


def test_bars_and_durations() -> None:
    assert interval_bar(-10, 0, 10, 10) == "─" * 12 + "●" + "─" * 12
    assert interval_bar(5, 10, 200, 20).startswith(" " * 12 + "│")
    assert interval_bar(5, 10, 200, 20).endswith("→")
    assert interval_bar(-200, -10, 5, 20)[0] == "←"
    assert [seconds_text(each) for each in (4.314, 0.0452, 0.0000123, -0.5)] == [
        "4.31 s",
        "45.2 ms",
        "12 µs",
        "-500.0 ms",
    ]
