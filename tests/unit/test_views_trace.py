"""`labctl trace`: the file against its format, and against what the record holds."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.__main__ import run as labctl
from labctl.analysis.clock import Clocks
from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.analysis.ledger import client_spans
from labctl.analysis.model import OpRun
from labctl.errors import UsageError
from labctl.node import wire
from labctl.runs.data import load
from labctl.runs.events import Event
from labctl.runs.record import ClockSample, LabPhase
from labctl.views import trace_events
from labctl.views.trace_counters import readings
from labctl.views.trace_events import Bar, Process, thread_numbers
from labctl.views.trace_export import write_trace
from tests.unit.explained_samples import explained as story
from tests.unit.explained_samples import hung, traced
from tests.unit.stories import START_S, event, phase, run, usage

RECORDS = sorted((Path(__file__).parents[1] / "fixtures" / "records").iterdir())
REQUIRED = {
    "M": {"pid", "tid", "name", "args"},
    "X": {"pid", "tid", "ts", "dur", "name", "cat", "args"},
    "i": {"pid", "tid", "ts", "s", "name", "cat", "args"},
    "C": {"pid", "tid", "ts", "name", "args"},
    "s": {"pid", "tid", "ts", "id", "name", "cat", "bp"},
    "f": {"pid", "tid", "ts", "id", "name", "cat", "bp"},
}
Bars = list[dict[str, Any]]


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def check(document: dict[str, Any]) -> None:
    """Check a file against the Trace Event Format, as far as labctl uses it."""
    events = document["traceEvents"]
    assert document["displayTimeUnit"] == "ms"
    for each in events:
        assert each.keys() == REQUIRED[each["ph"]] | {"ph"}, each
        assert isinstance(each["pid"], int)
        assert isinstance(each["tid"], int)
        for key in ("ts", "dur"):
            if key in each:
                assert math.isfinite(each[key])
                assert each[key] >= 0
        if "cat" in each:
            assert each["cat"]
    _check_headings(events)
    _check_rows(events)
    _check_arrows(events)
    _check_counters(events)


def _check_headings(events: Bars) -> None:
    named = {each["pid"] for each in events if each["name"] == "process_name"}
    threads = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    assert len({tid for _, tid in threads}) == len(threads)  # unique in the whole file
    assert not named & {tid for _, tid in threads}
    for each in events:
        assert each["pid"] in named
        if each["ph"] in "Xisf":
            assert (each["pid"], each["tid"]) in threads


def _check_rows(events: Bars) -> None:
    rows: dict[int, list[tuple[int, int]]] = {}
    for each in events:
        if each["ph"] == "X":
            span = ns(each["ts"]), ns(each["ts"]) + ns(each["dur"])
            rows.setdefault(each["tid"], []).append(span)
    for spans in rows.values():
        for earlier, later in pairwise(sorted(spans)):
            assert earlier[1] <= later[0], (earlier, later)


def _check_arrows(events: Bars) -> None:
    ends: dict[int, Bars] = {}
    for each in events:
        if each["ph"] in "sf":
            ends.setdefault(each["id"], []).append(each)
    bars = [each for each in events if each["ph"] == "X"]
    for pair in ends.values():
        assert [each["ph"] for each in pair] == ["s", "f"]
        tail, head = pair
        assert (tail["name"], tail["cat"]) == (head["name"], head["cat"])
        assert tail["ts"] <= head["ts"]
        for end in pair:
            assert any(
                bar["tid"] == end["tid"]
                and ns(bar["ts"]) <= ns(end["ts"]) <= ns(bar["ts"]) + ns(bar["dur"])
                for bar in bars
            ), end


def _check_counters(events: Bars) -> None:
    last: dict[tuple[int, str, str], float] = {}
    for each in events:
        if each["ph"] == "C":
            ((figure, value),) = each["args"].items()
            counter = each["pid"], each["name"], figure
            assert math.isfinite(value)
            assert value >= 0
            assert each["ts"] > last.get(counter, -1), each
            last[counter] = each["ts"]


def exported(explained: Explained, folder: Path) -> dict[str, Any]:
    """Return the trace of a run, checked."""
    file = folder / "a.trace.json"
    size, count = write_trace(explained, file)
    assert size == file.stat().st_size
    document: dict[str, Any] = json.loads(file.read_text())
    assert count == len(document["traceEvents"])
    assert [path.name for path in folder.iterdir() if path.name.endswith(".part")] == []
    check(document)
    return document


def bars(document: dict[str, Any], category: str) -> Bars:
    return [
        each for each in document["traceEvents"] if each["ph"] == "X" and each["cat"] == category
    ]


def row_of(document: dict[str, Any], bar: dict[str, Any]) -> tuple[str, str]:
    """Return the headings of a bar's process and row."""
    names = {
        each["tid"] if each["name"] == "thread_name" else -each["pid"]: each["args"]["name"]
        for each in document["traceEvents"]
        if each["name"] in {"thread_name", "process_name"}
    }
    return names[-bar["pid"]], names[bar["tid"]]


def traced_story(**more: Any) -> Explained:
    """Return a run with a traced step of 60 ms, five seconds after its start."""
    step = event(wire.STEP, 5.06, index=11, kind="traced", total=11, duration_ns=60_000_000)
    around = phase(wire.PHASE_TRACED_STEP, 5.0, 5.07)
    return story(traced(**more), warm_s=0.06, extra=[around[0], step, around[1]])


@pytest.fixture(params=RECORDS, ids=lambda path: path.name)
def record(request: pytest.FixtureRequest) -> Explained:
    return explain(load(request.param))


def test_a_real_record_gives_a_file_of_the_format(record: Explained, tmp_path: Path) -> None:
    document = exported(record, tmp_path)
    assert [bar["name"] for bar in bars(document, "step")] == [
        f"step {step.index} {step.kind}" for step in record.steps
    ]
    assert len(bars(document, "op")) == sum(len(trace.ops) for trace in record.traces)
    transfers = sum(len(trace.edges) for trace in record.traces)
    assert len(bars(document, "transfer")) == 2 * transfers  # on either side
    assert sum(each["ph"] == "s" for each in document["traceEvents"]) == transfers
    assert transfers > 0
    head = document["otherData"]
    assert head["run_id"] == record.data.record.run_id
    assert set(head["clocks"]) == {line.node for line in record.clocks}
    assert all(clock["error_us"] > 0 for clock in head["clocks"].values())


def test_bars_are_the_records_phases_on_labctls_clock(record: Explained, tmp_path: Path) -> None:
    document = exported(record, tmp_path)
    origin_us = document["otherData"]["started_ts"]
    told = Counter(
        (bar["name"], round(bar["ts"] - origin_us), round(bar["dur"]))
        for bar in bars(document, "phase")
        if row_of(document, bar)[1].startswith(("client", "phases"))
    )
    data = record.data
    spans = (*data.record.spans, *client_spans(data.record, data.events, Clocks.of(data.record)))
    wanted = Counter(
        (span.phase, round(span.start_s * 1e6), round(span.duration_s * 1e6)) for span in spans
    )
    # A microsecond either way: a bar begins where the one before it ends.
    assert len(told) == len(wanted)
    for (name, start, length), (other, begin, took) in zip(
        sorted(told), sorted(wanted), strict=True
    ):
        assert name == other
        assert abs(start - begin) <= 2
        assert abs(length - took) <= 2


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for file in (first, second):
        write_trace(explain(load(RECORDS[-1])), file)
    assert first.read_bytes() == second.read_bytes()


def test_a_transfer_goes_from_its_sender_to_its_receiver(tmp_path: Path) -> None:
    explained = traced_story(answers_at_once=False)
    (trace,) = explained.traces
    document = exported(explained, tmp_path)
    arrows = [each for each in document["traceEvents"] if each["ph"] in "sf"]
    by_thread = {bar["tid"]: row_of(document, bar) for bar in bars(document, "transfer")}
    ways: dict[str, list[tuple[str, str]]] = {each["name"]: [] for each in arrows}
    for each in arrows:
        ways[each["name"]].append(by_thread[each["tid"]])
    total, fed = sorted(ways)
    assert ways[fed] == [("tf0 (task:0)", "task:0 sends"), ("tf1 (task:1)", "task:1 receives")]
    assert ways[total] == [("tf1 (task:1)", "task:1 sends"), ("tf0 (task:0)", "task:0 receives")]
    edge = next(each for each in trace.edges if each.tensor == fed)
    (wait,) = [bar for bar in bars(document, "wait") if fed in bar["name"]]
    way = next(bar for bar in bars(document, "transfer") if bar["name"] == fed)
    assert wait["ts"] == pytest.approx(5e6 + edge.asked_s * 1e6)  # type: ignore[operator]
    assert wait["dur"] == pytest.approx(edge.waited_s * 1e6)  # type: ignore[operator]
    assert way["ts"] == pytest.approx(5e6 + edge.answered_s * 1e6)
    assert way["dur"] == pytest.approx(edge.wire_s * 1e6)
    assert way["args"]["size_bytes"] == edge.size_bytes
    assert way["args"]["mb_per_s"] == pytest.approx(edge.mb_per_s, rel=1e-3)
    assert way["args"]["clock_error_us"] == pytest.approx(100)


def test_a_clamped_transfer_says_so_and_tells_no_rate(tmp_path: Path) -> None:
    explained = traced_story()
    (trace,) = explained.traces
    spoilt = tuple(
        replace(edge, clamped=True, waited_s=None, clock_error_s=math.inf) for edge in trace.edges
    )
    document = exported(replace(explained, traces=(replace(trace, edges=spoilt),)), tmp_path)
    for bar in (*bars(document, "transfer"), *bars(document, "wait")):
        assert bar["name"].endswith("(start clamped: not to be believed)")
        assert bar["args"]["clamped"] is True
        assert not bar["args"].keys() & {"mb_per_s", "wire_ms", "waited_ms", "clock_error_us"}


def test_nodes_clocks_are_corrected(tmp_path: Path) -> None:
    """The same run, seen by a node whose clock is an hour ahead, has its bars at the same places."""
    steady = traced_story()
    ahead_ns = 3_600_000_000_000
    record = steady.data.record
    late = replace(
        record,
        clock=(ClockSample("tf0", 1.0, 3600.0, 1e-4),),
        unit_end=replace(record.unit_end, ended_at_s=record.unit_end.ended_at_s + 3600)
        if record.unit_end
        else None,
    )
    events = tuple(replace(each, t_ns=each.t_ns + ahead_ns) for each in steady.data.events)
    steps = tuple(replace(step, start_s=step.start_s + 3600) for step in steady.steps)
    moved = replace(steady, data=replace(steady.data, record=late, events=events), steps=steps)
    plain, corrected = (
        [
            (each["name"], each.get("ts", 0.0), each.get("dur", 0.0))
            for each in exported(one, tmp_path)["traceEvents"]
        ]
        for one in (steady, moved)
    )
    assert [name for name, *_ in plain] == [name for name, *_ in corrected]
    for one, other in zip(plain, corrected, strict=True):
        assert one[1:] == pytest.approx(other[1:], abs=1.0)


def test_what_happened_before_the_run_is_moved_up_to_it_in_order(tmp_path: Path) -> None:
    phases = (
        LabPhase("image", "", "up", START_S - 7200, 60.0),
        LabPhase("boot", "tf0", "up", START_S - 7140, 8.0),
        LabPhase("boot", "tf1", "up", START_S - 7139, 8.0),
        LabPhase("role tensorflow", "", "provision", START_S - 3600, 30.0),
        LabPhase("role lab_base", "", "provision", START_S - 3569.5, 5.0),
    )
    document = exported(run(lab_phases=phases), tmp_path)
    before = bars(document, "before")
    start_us = document["otherData"]["started_ts"]
    by_name = {(bar["name"], row_of(document, bar)[1]): bar for bar in before}
    assert set(by_name) == {
        ("image", "up"),
        ("boot", "up tf0"),
        ("boot", "up tf1"),
        ("role tensorflow", "provision"),
        ("role lab_base", "provision"),
    }
    assert {row_of(document, bar)[0] for bar in before} == {"before the run (gaps closed)"}
    ends = [(bar["ts"] + bar["dur"] - start_us) / 1e6 for bar in before]
    starts = [(bar["ts"] - start_us) / 1e6 for bar in before]
    assert starts == pytest.approx([-106.5, -46.5, -45.5, -36.5, -6.0])
    assert ends == pytest.approx([-46.5, -38.5, -37.5, -6.5, -1.0])
    image = by_name["image", "up"]
    assert image["args"]["moved_s"] == pytest.approx(7200 - 106.5)
    assert image["args"]["started"].startswith("2026-")


def test_a_hung_run_and_one_without_events_have_a_trace(tmp_path: Path) -> None:
    document = exported(hung(), tmp_path)
    (first,) = [bar for bar in bars(document, "phase") if bar["name"] == "first_step"]
    assert first["dur"] == pytest.approx(60e6)
    assert any(each["ph"] == "i" for each in document["traceEvents"])
    assert not bars(exported(run([], ended_at_s=None, wall_s=None), tmp_path), "step")


def test_an_absurd_clock_leaves_bars_out_and_the_rest_in_place(tmp_path: Path) -> None:
    odd = [
        event(wire.STEP, -1e9, index=3, kind="warm", total=11, duration_ns=5),
        event(wire.NOTE, 1e9, text="late"),
        event(wire.NOTE, 4.0, text="odd \ud800 \n", number=math.inf, other=math.nan),
        *phase("graph", 1e8, 1e8 + 1),
    ]
    explained = story(traced(), extra=odd)
    document = exported(explained, tmp_path)
    assert max(each.get("ts", 0) for each in document["traceEvents"]) < 60e6
    (note,) = [
        each for each in document["traceEvents"] if each["ph"] == "i" and "odd" in each["name"]
    ]
    assert note["args"] == {"text": note["args"]["text"]}


def test_servers_on_the_clients_host_have_rows_of_their_own(tmp_path: Path) -> None:
    parameters = replace(run().data.record.parameters, placement="one-host")
    served = [
        event(wire.HELLO, 3.0, source="join-server", task=1, pid=7),
        event(wire.PHASE_BEGIN, 3.0, source="join-server", task=1, phase="server"),
        event(
            wire.PHASE_END,
            3.5,
            source="join-server",
            task=1,
            phase="server",
            duration_ns=500_000_000,
        ),
        usage(4.0, 1.0, 0.0, task=1),
        usage(4.5, 1.25, 0.0, task=1),
    ]
    document = exported(run([*run().data.events, *served], parameters=parameters), tmp_path)
    (bar,) = [each for each in bars(document, "phase") if "join" in row_of(document, each)[1]]
    assert row_of(document, bar) == ("tf0 (task:0, task:1)", "join-server task:1")
    counters = [each for each in document["traceEvents"] if each["ph"] == "C"]
    assert {each["name"] for each in counters} == {"join-server task:1"}
    assert counters[0]["args"] == {"CPU %": 50.0}


def used(at_s: float, **figures: Any) -> Event:
    return event(wire.USAGE, at_s, **figures)


def test_counters_are_rates_between_readings_and_end_with_the_client() -> None:
    gib = 2**30
    told = list(
        readings(
            [
                used(1.0, cpu_ns=0, wait_ns=None, rss_bytes=gib, rx_bytes=0, tx_bytes=5),
                used(
                    2.0,
                    cpu_ns=500_000_000,
                    wait_ns=7,
                    rss_bytes=2 * gib,
                    rx_bytes=3_000_000,
                    tx_bytes=5,
                ),
                used(4.0, cpu_ns=2_500_000_000, wait_ns=1_000_000_007, rx_bytes=0),
                event(wire.BYE, 5.0, exit=0),
            ],
            "client",
            node=True,
        )
    )
    values = {
        figure: [
            (round(each.unix_s - START_S, 3), each.value) for each in told if each.figure == figure
        ]
        for figure in {each.figure for each in told}
    }
    assert values == {
        "CPU %": [(1.0, 50.0), (2.0, 100.0), (5.0, 0.0)],
        "waits for a CPU %": [(2.0, 50.0), (5.0, 0.0)],
        "memory MB": [(1.0, 1073.742), (2.0, 2147.484), (5.0, 0.0)],
        "receives MB/s": [(1.0, 3.0)],  # the counter fell: a new start, not a negative rate
        "sends MB/s": [(1.0, 0.0)],
    }


def test_node_counters_are_parts_of_what_its_cpus_had() -> None:
    told = readings(
        [
            used(1.0, node_busy_ns=0, node_idle_ns=0, node_steal_ns=0),
            used(2.0, node_busy_ns=600, node_idle_ns=300, node_steal_ns=100),
        ],
        "client",
        node=True,
    )
    assert {(each.whose, each.figure): each.value for each in told} == {
        ("node", "CPU busy %"): 60.0,
        ("node", "CPU stolen %"): 10.0,
    }


def _put(spans: list[tuple[int, int]]) -> Iterator[trace_events.Event]:
    track = Process(1, "p", 0, thread_numbers()).track("t")
    for number, (start, length) in enumerate(spans):
        yield from track.put([Bar(str(number), start, start + length, "c")])


@given(
    spans=st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 30_000)), max_size=60),
    ordered=st.booleans(),
)
def test_every_bar_gets_a_place_where_it_overlaps_none(
    spans: list[tuple[int, int]], ordered: bool
) -> None:
    spans = sorted(spans) if ordered else spans
    events = list(_put(spans))
    _check_rows(events)
    placed = {int(each["name"]): each for each in events if each["ph"] == "X"}
    assert sorted(placed) == list(range(len(spans)))
    for number, (start, length) in enumerate(spans):
        # It may begin a microsecond late, where the one before it ends.
        begin, end = ns(placed[number]["ts"]), ns(placed[number]["ts"]) + ns(placed[number]["dur"])
        assert start <= begin <= start + 1000
        assert end == max(begin, start + length)


def test_as_few_rows_as_bars_at_one_time() -> None:
    events = list(_put([(0, 10_000), (2_000, 2_000), (5_000, 9_000), (20_000, 5_000)]))
    assert len({each["tid"] for each in events if each["ph"] == "X"}) == 2


def test_a_long_trace_needs_no_room(tmp_path: Path) -> None:
    explained = traced_story()
    (trace,) = explained.traces
    ops = tuple(
        OpRun(k % 2, "CPU:0", f"MatMul_{k}", "MatMul", ("a", "b"), k * 1e-6, k * 1e-6 + 3e-6)
        for k in range(6_000)
    )
    explained = replace(explained, traces=(replace(trace, ops=ops),))
    tracemalloc.start()
    try:
        _, count = write_trace(explained, tmp_path / "long.json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > 6_000
    assert peak < 2_500_000  # of which 1 MB is the buffer; kept as a whole they would take 6 MB


def test_the_command_writes_beside_the_caller_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = RECORDS[-1]
    assert labctl(["trace", str(source)]) == 0
    said = capsys.readouterr()
    file = tmp_path / f"{source.name}.trace.json"
    assert said.out.strip() == str(file)
    assert "ui.perfetto.dev" in said.err
    check(json.loads(file.read_text()))

    assert labctl(["trace", str(source), "-o", "mine.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run_id"] == source.name
    assert told["file"] == str(tmp_path / "mine.json")
    assert told["size_bytes"] == (tmp_path / "mine.json").stat().st_size
    assert told["events"] == len(json.loads((tmp_path / "mine.json").read_text())["traceEvents"])
    assert (tmp_path / "mine.json").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("target", [".", "missing/a.json", "/dev/null"])
def test_a_file_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        write_trace(run(), Path(target))
    assert list(tmp_path.glob("*.part")) == []
    assert Path("/dev/null").is_char_device()
