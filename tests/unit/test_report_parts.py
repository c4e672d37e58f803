"""The parts of the page that compute: numbers, lanes, charts, rates, commands, colours."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from labctl.__main__ import run as labctl
from labctl.analysis.model import Edge, OpRun, StepTrace, TaskTrace
from labctl.analysis.steps import Step, step_stats
from labctl.drive import plan
from labctl.errors import LabctlError, UsageError
from labctl.node import wire
from labctl.runs.events import Event
from labctl.runs.record import LabPhase, NodeFacts, Parameters
from labctl.views.report import numbers, page
from labctl.views.report.environment import fact_rows, moment, server_rows
from labctl.views.report.lanes import Bar, Lane, chart, kind_of, packed, ticks
from labctl.views.report.reproduce import run_command
from labctl.views.report.step_chart import MOST_COLUMNS, step_chart
from labctl.views.report.traced import MOST_EDGES, longest_edges, trace_chart
from labctl.views.report.usage import usage_series
from labctl.views.report.waterfall import lab_charts
from tests.unit import stories

STYLE = Path(page.__file__).parent / "template/style.css"
LENGTH = st.floats(0, 1e4, allow_nan=False)


# Numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not measured"),
        (float("inf"), "not measured"),
        (float("nan"), "not measured"),
        (0.0, "0 ms"),
        (2.5e-5, "25.0 µs"),
        (0.0301, "30.1 ms"),
        (5.071, "5.07 s"),
        (1390.4, "1\u202f390 s"),
        (-0.0012, "\u22121.20 ms"),
    ],
)
def test_a_length_of_time_has_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "not measured"), (0, "0 B"), (999, "999 B"), (4e6, "4.00 MB"), (2.5e9, "2.50 GB")],
)
def test_bytes_have_the_unit_that_suits_them(count: float | None, text: str) -> None:
    assert numbers.size(count) == text


def test_a_part_of_nothing_is_no_percent() -> None:
    assert numbers.percent(1.0, 0.0) is None
    assert numbers.percent(None, 2.0) is None
    assert numbers.percent(1.0, 2.0) == 50.0


@given(value=st.floats(-1e9, 1e9, allow_nan=False), digits=st.integers(0, 6))
def test_a_written_number_reads_back_within_its_digits(value: float, digits: int) -> None:
    text = numbers.fixed(value, digits).replace("\u202f", "").replace("\u2212", "-")
    assert abs(float(text) - value) <= 0.5000001 * 10**-digits + abs(value) * 1e-12


# Lanes


@given(begin=st.floats(-1e6, 1e6), length=st.floats(1e-6, 1e6), most=st.integers(2, 12))
def test_ticks_are_round_in_order_and_few(begin: float, length: float, most: int) -> None:
    end = begin + length
    if end - begin < abs(begin) * 1e-9:
        return
    found = [value for value, _ in ticks(begin, end, most)]
    assert len(found) <= most + 1
    assert found == sorted(set(found))
    slack = (end - begin) * 1e-6
    assert all(begin - slack <= value <= end + slack for value in found)


def test_an_axis_without_length_has_no_ticks() -> None:
    assert ticks(3.0, 3.0) == []
    assert ticks(1e25, 1e25 + 1) == []


@given(spans=st.lists(st.tuples(LENGTH, LENGTH), max_size=40), most=st.integers(1, 60))
def test_packed_bars_overlap_only_where_lines_ran_out(
    spans: list[tuple[float, float]], most: int
) -> None:
    bars = [Bar(str(k), "n", start, length, "op") for k, (start, length) in enumerate(spans)]
    placed, rows = packed(bars, most)
    assert sorted(bar.label for bar in placed) == sorted(bar.label for bar in bars)
    assert all(0 <= bar.row < rows <= max(most, 1) for bar in placed)
    for row in range(rows if rows < most else rows - 1):
        mine = sorted((bar for bar in placed if bar.row == row), key=lambda bar: bar.start)
        for one, after in pairwise(mine):
            assert one.start + one.length <= after.start


def test_a_chart_reaches_from_its_first_bar_to_its_end() -> None:
    early = Bar("early", "n", -2.0, 1.0, "start")
    made = chart("c", "C", "s", [Lane("n", "", (early, Bar("late", "n", 4.0, 0.5, "own")))], 8.0)
    assert made is not None
    assert (made.begin, made.end) == (-2.0, 8.0)
    assert made.left(early) == "0.0000%"
    assert made.width(early) == "10.0000%"
    assert [kind for kind, _ in made.legend] == ["own", "start"]
    assert chart("c", "C", "s", [Lane("n", "", ())], 8.0) is None


@pytest.mark.parametrize(
    ("phase", "source", "kind"),
    [
        ("startup", "labctl", "own"),
        ("exit", "systemd", "own"),
        ("import_tensorflow", "client", "start"),
        ("join_server import_tensorflow", "join-server", "start"),
        ("join_server bind", "join-server", "build"),
        ("graph_setup", "log", "cold"),
        ("warm compute task:1", "trace", "warm"),
        ("warm transfer task:0>task:1", "trace", "wire"),
        ("warm wait task:1", "trace", "wait"),
        ("warm_steps", "client", "warm"),
        ("waiting", "labctl", "wait"),
        ("something_new", "client", "build"),
    ],
)
def test_each_phase_has_its_colour(phase: str, source: str, kind: str) -> None:
    assert kind_of(phase, source) == kind


def test_each_command_that_made_the_lab_has_its_own_axis() -> None:
    made = lab_charts(
        [
            LabPhase("role tensorflow", "", "provision", 500.0, 30.0),
            LabPhase("boot", "tf1", "up", 103.0, 8.0),
            LabPhase("machine", "tf0", "up", 100.0, 2.0),
        ]
    )
    assert [each.title for each in made] == ["labctl up", "labctl provision"]
    assert [(lane.name, lane.bars[0].start) for lane in made[0].lanes] == [
        ("tf0", 0.0),
        ("tf1", 3.0),
    ]
    assert made[1].end == 30.0


# A traced step


def traced(ops: list[OpRun], edges: list[Edge], duration_s: float = 0.1) -> StepTrace:
    tasks = tuple(TaskTrace(k, f"tf{k}", 0.0, duration_s, 0.0, 0.0, {}, None) for k in (0, 1))
    return StepTrace(11, duration_s, tuple(ops), tuple(edges), tasks, 0.0, 0.0, 0.001, 0.002)


def edge(start_s: float, *, clamped: bool = False, waited_s: float | None = 0.01) -> Edge:
    asked_s = None if waited_s is None else start_s - waited_s
    return Edge("t", 4_000_000, 0, 1, asked_s, start_s, start_s + 0.004, waited_s, clamped, 1e-4)


@given(
    st.lists(
        st.tuples(st.floats(0, 0.09), st.floats(0, 0.01), st.booleans()), min_size=1, max_size=300
    )
)
def test_every_op_of_a_step_is_in_one_bar(ops: list[tuple[float, float, bool]]) -> None:
    runs = [
        OpRun(0, "CPU:0", f"op{k}", "MatMul" if product else "Add", (), start_s, start_s + length_s)
        for k, (start_s, length_s, product) in enumerate(ops)
    ]
    made = trace_chart(traced(runs, []))
    assert made is not None
    bars = [bar for lane in made.lanes if lane.name == "task:0" for bar in lane.bars]
    counts = [re.match(r"(\d+) short ops", bar.label) for bar in bars]
    assert sum(int(match[1]) if match else 1 for match in counts) == len(runs)


def test_a_hundred_thousand_ops_are_few_bars() -> None:
    width_s = 0.09 / 100_000
    ops = [
        OpRun(k % 2, "CPU:0", f"op{k}", "MatMul", (), k * width_s, (k + 0.9) * width_s)
        for k in range(100_000)
    ]
    edges = [edge(k * 9e-6) for k in range(10_000)]
    made = trace_chart(traced(ops, edges))
    assert made is not None
    assert sum(len(lane.bars) for lane in made.lanes) < 2_000
    assert len(longest_edges(traced(ops, edges))) == MOST_EDGES


def test_a_tensor_that_was_cut_by_skew_is_marked() -> None:
    made = trace_chart(
        traced([], [edge(0.02, clamped=True), edge(0.05), edge(0.08, waited_s=None)])
    )
    assert made is not None
    bars = next(lane for lane in made.lanes if lane.name == "to task:1").bars
    assert [(bar.kind, bar.clamped) for bar in sorted(bars, key=lambda bar: bar.start)] == [
        ("wait", True), ("wire", True), ("wait", False), ("wire", False), ("wire", False),
    ]  # fmt: skip


# Steps


def steps(times_ms: list[float]) -> list[Step]:
    kinds = ["cold", *["warm"] * (len(times_ms) - 2), "traced"]
    return [
        Step(k, kind, float(k), ms)
        for k, (kind, ms) in enumerate(zip(kinds, times_ms, strict=True))
    ]


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1e5), min_size=3, max_size=1_500))
def test_every_warm_step_is_in_one_column_and_no_extra_step_is(times_ms: list[float]) -> None:
    listed = steps(times_ms)
    made = step_chart(listed, step_stats(listed))
    assert made is not None
    assert len(made.columns) <= MOST_COLUMNS
    covered: list[int] = []
    for column in made.columns:
        ends = [int(text) for text in re.findall(r"\d+", column.text.partition(":")[0])]
        covered += range(ends[0], ends[-1] + 1)
        assert 0 <= column.high <= column.middle <= column.low <= 100
    assert covered == [step.index for step in listed if step.kind == "warm"]


def test_a_cold_step_far_above_the_warm_ones_is_cut_and_says_so() -> None:
    listed = steps([5000.0, 40.0, 42.0, 41.0])
    made = step_chart(listed, step_stats(listed))
    assert made is not None
    assert made.cut
    assert made.cold_top == 0
    assert made.cold_text == "cold step: 5000.000 ms"
    assert step_chart([], step_stats([])) is None


# Utilisation


def used(at_s: float, **figures: Any) -> Event:
    return stories.event(wire.USAGE, at_s, **figures)


def test_rates_are_differences_and_what_is_missing_has_none() -> None:
    events = [
        used(1.0, cpu_ns=0, rss_bytes=10**6, rx_bytes=None),
        used(2.0, cpu_ns=500_000_000, rss_bytes=2 * 10**6, rx_bytes=5),
        used(4.0, cpu_ns=2_500_000_000, rss_bytes=3 * 10**6, rx_bytes=None),
    ]
    found = {each.metric: each for each in usage_series(stories.run(events).data)}
    assert set(found) == {"cpu", "rss"}
    assert [(s.start_s, s.end_s, round(s.value, 6)) for s in found["cpu"].samples] == [
        (1, 2, 50),
        (2, 4, 100),
    ]
    assert found["cpu"].mean == pytest.approx(250 / 3)
    assert found["cpu"].path(8.0) == "M125.0 100V50.0H250.0V0.0H500.0V100Z"


def test_a_counter_that_went_back_is_a_gap() -> None:
    events = [
        used(t, cpu_ns=int(cpu * 1e9))
        for t, cpu in ((1.0, 0.5), (2.0, 1.0), (3.0, 0.1), (4.0, 0.6))
    ]
    (series,) = usage_series(stories.run(events).data)
    assert [(s.start_s, s.end_s) for s in series.samples] == [(1, 2), (3, 4)]
    assert series.path(4.0).count("M") == 2
    assert usage_series(stories.run([]).data) == []


def test_a_long_run_has_no_more_samples_than_a_screen() -> None:
    events = [used(1 + k / 2, cpu_ns=k * 300_000_000) for k in range(5_000)]
    data = stories.run(events).data
    long = replace(data, record=replace(data.record, wall_s=3000.0))
    (series,) = usage_series(long)
    assert 100 < len(series.samples) <= 300
    assert series.mean == pytest.approx(60.0)


# Nodes


def test_what_differs_between_nodes_is_marked() -> None:
    record = stories.run().data.record
    one = NodeFacts(
        "tf0", 0, "a:1", {"tensorflow": "2.21.0", "python": "3.11"}, 2, "EPYC", "b0", None, 0.5
    )
    other = NodeFacts("tf1", 1, "b:1", {"tensorflow": "2.20.0"}, 2, "EPYC", "b1", None, 3.0)
    rows = {row.label: row for row in fact_rows(replace(record, nodes=(one, other)))}
    assert {label for label, row in rows.items() if row.differs} == {"tensorflow"}
    assert rows["python"].values == ("3.11", "not measured")
    assert rows["CPU limit"].values == ("none", "none")


def test_what_a_node_was_never_asked_is_not_none() -> None:
    record = stories.run().data.record
    older = tuple(NodeFacts(f"tf{task}", task, "a:1") for task in (0, 1))
    rows = {row.label: row.values for row in fact_rows(replace(record, nodes=older))}
    assert rows["CPU limit"] == rows["proxy variables"] == ("not measured", "not measured")
    told = tuple(replace(node, load_1min=0.0) for node in older)
    rows = {row.label: row.values for row in fact_rows(replace(record, nodes=told))}
    assert rows["CPU limit"] == rows["proxy variables"] == ("none", "none")


def test_on_paper_nothing_is_folded() -> None:
    printed = STYLE.read_text().partition("@media print {")[2]
    assert re.search(r"details::details-content \{ content-visibility: visible", printed)


def test_a_restarted_server_is_said_to_be_another_process() -> None:
    record = stories.run().data.record
    again = replace(stories.SERVER, invocation_id="b" * 32, inter_op=None)
    rows = {row.label: row.values for row in server_rows(replace(record, servers_after=(again,)))}
    assert rows["same process at the end"] == ("no: it restarted",)
    assert rows["inter-op threads asked for"] == ("TensorFlow's default",)
    assert server_rows(replace(record, servers_before=(), servers_after=())) == []


def test_an_absurd_time_is_no_error() -> None:
    assert moment(1e300) == "1e+300 s"
    assert moment(None) == "not measured"
    assert moment(0.0) == "1970-01-01 00:00:00 UTC"


# The command that does it again

MATPOW = st.builds(
    Parameters,
    experiment=st.just("matpow"),
    trace=st.booleans(),
    fresh=st.booleans(),
    timeout_s=st.integers(1, 10_000).map(float),
    device=st.sampled_from(wire.DEVICES),
    size=st.integers(1, 5_000),
    power=st.integers(1, 12),
    algorithm=st.sampled_from(wire.ALGORITHMS),
    feed=st.just("fed"),
    placement=st.sampled_from(["lab", "one-host"]),
    api=st.just("session"),
    inter_op=st.none() | st.integers(1, 64),
    repeat=st.integers(1, 200),
    seed=st.just(wire.MatpowPlan().seed),
    fetch=st.sampled_from(wire.FETCHES),
    sum_task=st.integers(0, 1),
    soft_placement=st.booleans(),
    skip_checks=st.booleans(),
).map(
    lambda each: replace(
        each,
        fresh=each.fresh and each.placement == "lab",
        soft_placement=each.soft_placement and each.device == "gpu",
    )
)


class _AskedError(LabctlError):
    pass


def asked_by(argv: list[str]) -> Parameters | None:
    """Return the parameters that a command line of `labctl run` asks for, None if it is refused; nothing is run."""
    seen: list[Parameters] = []
    real = plan.make_request

    def note(options: Any) -> Any:
        seen.append(real(options).parameters)
        raise _AskedError("asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "make_request", note)
        assert labctl(argv) in {_AskedError.exit_code, UsageError.exit_code}
    return seen[0] if seen else None


@settings(deadline=None, max_examples=40)
@given(MATPOW)
def test_the_command_asks_for_the_very_same_run(parameters: Parameters) -> None:
    argv = run_command(parameters, "lead")
    assert argv[:4] == ["labctl", "run", "--lab", "lead"]
    asked = asked_by(argv[1:])
    assume(asked is not None)
    assert asked == parameters


def test_the_command_of_a_script_names_it_and_its_arguments() -> None:
    parameters = Parameters(
        "script", trace=False, fresh=True, timeout_s=90.0, device="cpu", script="my.py",
        args=("-x", "two words"), companions=("data.txt",), environment=("NAME",),
    )  # fmt: skip
    assert run_command(parameters, "lead") == [
        "labctl", "run", "--lab", "lead", "--cpu", "--fresh", "--env", "NAME", "--timeout", "90",
        "--with", "data.txt", "my.py", "--", "-x", "two words",
    ]  # fmt: skip


# Colours


def palettes() -> dict[str, dict[str, str]]:
    """Return the colours of the light and the dark scheme by name."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE.read_text(encoding="utf-8"), re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block)) for block in blocks)
    return {"light": light, "dark": {**light, **dark}}


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_on_its_ground(scheme: str) -> None:
    colours = palettes()[scheme]
    pairs = [(name, name.removesuffix("-ink")) for name in colours if name.endswith("-ink")]
    pairs += [(text, ground) for text in ("ink", "soft", "link") for ground in ("paper", "card")]
    pairs += [("bad", "card"), *((each, f"{each}-paper") for each in ("bad", "warn", "good"))]
    assert len(pairs) > 15
    poor = {pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in pairs}
    assert {pair: value for pair, value in poor.items() if value < 4.5} == {}
