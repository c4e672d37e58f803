"""Records read whole, and what is still said of those that are damaged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labctl.analysis.causes.common import phase_s
from labctl.analysis.causes.rules import judge_all
from labctl.analysis.explain import explain
from labctl.errors import RecordError, RecordTooNewError
from labctl.runs.data import LogLine, load, log_line
from labctl.runs.events import parse_line
from labctl.runs.record import read_record, write_record

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
NAMES = sorted(each.name for each in RECORDS.iterdir())
FED = "20261130T181113Z-bd03c6"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDS / FED, tmp_path / FED))


@pytest.mark.parametrize("name", NAMES)
def test_real_records_are_read_without_a_problem_and_add_up(name: str) -> None:
    explained = explain(load(RECORDS / name))
    assert explained.problems == ()
    wall_s = explained.data.record.wall_s
    assert wall_s is not None
    # An older record says nothing of what a join server used.
    knows_servers = explained.data.record.servers_before[0].cpu_s is not None
    for rest_s in (
        explained.ledger.unexplained_s,
        *(each.unexplained_s for each in explained.nodes if each.node != "tf1" or knows_servers),
    ):
        assert rest_s < 0.05 * wall_s
    assert [each.node for each in explained.nodes] == ["labctl", "tf0", "tf1"]
    assert [line.node for line in explained.clocks] == ["tf0", "tf1"]
    assert not any(line.absurd for line in explained.clocks)
    assert explained.split is not None
    assert explained.tracing is not None
    assert 0.5 < explained.tracing.ratio < 2
    assert explained.tracing.n == len(explained.traces)
    assert {row.phase for row in explained.ledger.rows} >= {
        "graph_setup",
        "first_run",
        "connect_peers",
    }


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(NAMES), st.randoms(use_true_random=False), st.integers(1, 3))
def test_why_and_ledger_tell_one_time_of_a_phase(name: str, random: Random, copies: int) -> None:
    data = load(RECORDS / name)
    events = [event for event in data.events for _ in range(random.randint(1, copies))]
    random.shuffle(events)
    whole, mixed = explain(data), explain(replace(data, events=tuple(events)))
    assert mixed.ledger == whole.ledger
    assert mixed.stats == whole.stats
    for phase in ("import_numpy", "import_tensorflow", "server", "graph"):
        rows = [row.duration_s for row in whole.ledger.rows if row.phase == phase]
        assert rows
        assert phase_s(mixed, phase) == pytest.approx(sum(rows))
    (imported,) = (each for each in judge_all(mixed) if each.cause == "import")
    assert imported == next(each for each in judge_all(whole) if each.cause == "import")


def test_log_lines_have_their_own_time_else_the_journals() -> None:
    absl = "I0000 00:00:1796061486.259064    1522 master.cc:243] Scanning workers"
    assert log_line("tf0", absl, 5.0) == LogLine(
        "tf0", 1796061486.259064, "master.cc:243] Scanning workers"
    )
    older = "2026-11-30 15:34:22.123456: I tensorflow/core/x.cc:1] text"
    assert log_line("tf1", older, 5.0) == LogLine("tf1", 5.0, "tensorflow/core/x.cc:1] text")
    assert log_line("tf1", "no stamp") == LogLine("tf1", None, "no stamp")


def test_logs_and_server_events_come_from_stderr_and_journal(record: Path) -> None:
    data = load(record)
    texts = {node: [line.text for line in data.log if line.node == node] for node in ("tf0", "tf1")}
    assert any(text.startswith("master.cc:243] Scanning workers") for text in texts["tf0"])
    assert any("Profiler session started" in text for text in texts["tf1"])
    message = {"event": "note", "t": 5, "mono": 6, "source": "join-server", "task": 1, "text": "x"}
    rows = [
        {"__REALTIME_TIMESTAMP": "1796061481092820", "MESSAGE": json.dumps(message)},
        {"__REALTIME_TIMESTAMP": "1796061481092821", "MESSAGE": [104, 105, 255]},
        {"__REALTIME_TIMESTAMP": "soon", "MESSAGE": "x"},
        {"__REALTIME_TIMESTAMP": "1796061481092821", "MESSAGE": None},
    ]
    journal = record / "logs/tf1/join-server.jsonl"
    journal.write_text("\n".join(map(json.dumps, rows)) + "\n[1]\n{")
    data = load(record)
    (event,) = data.server_events["tf1"]
    assert (event.kind, event.text("text")) == ("note", "x")
    assert [line for line in data.log if line.node == "tf1"] == [
        LogLine("tf1", 1796061481.092821, "hi\\xff")
    ]
    assert data.problems == ("logs/tf1/join-server.jsonl: 4 lines of it are no journal entries",)


def test_a_loopback_servers_streams_are_read(record: Path) -> None:
    (record / "logs/tf1/join-server.jsonl").unlink()
    (record / "logs/tf1/join-server.stdout").write_text(
        '{"event": "ready", "t": 1, "mono": 1, "source": "join-server", "task": 1}\nnoise\n'
    )
    (record / "logs/tf1/join-server.stderr").write_text("plain words\n")
    data = load(record)
    assert [event.kind for event in data.server_events["tf1"]] == ["ready"]
    assert [line.text for line in data.log if line.node == "tf1"] == ["plain words"]
    assert data.problems == ("logs/tf1/join-server.stdout: 1 line of it is no events",)


def test_a_line_that_is_cut_short_is_told_with_its_file(record: Path) -> None:
    events = record / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(b"junk\n\x00\n" + whole[:-20])
    data = load(record)
    assert len(data.events) == len(whole.splitlines()) - 1
    assert data.problems == (
        "events.jsonl: 2 lines of it are no events",
        "events.jsonl: its last line is cut short",
    )


@pytest.mark.parametrize("content", [b"", b"\n\n", None])
def test_without_events_there_is_still_a_ledger(record: Path, content: bytes | None) -> None:
    if content is None:
        (record / "events.jsonl").unlink()
    else:
        (record / "events.jsonl").write_bytes(content)
    explained = explain(load(record))
    why = "is missing" if content is None else "holds no event"
    assert explained.problems[0] == f"events.jsonl: {why}"
    assert explained.steps == ()
    assert explained.stats.warm_median_ms is None
    assert explained.split is None
    assert {row.node for row in explained.ledger.rows} == {"labctl"}
    assert explained.ledger.unexplained_s > 1
    assert explained.trace is not None  # its stamps alone still tell what ran


def test_every_single_part_may_be_missing(record: Path) -> None:
    parts = sorted(each for each in record.rglob("*") if each.name != "run.json")
    for part in parts:
        kept = part.with_name("kept-aside")
        part.rename(kept)
        explained = explain(load(record))
        assert explained.ledger.rows
        kept.rename(part)
    assert explain(load(record)).problems == ()


def test_a_directory_in_the_place_of_a_file_is_told(record: Path) -> None:
    (record / "events.jsonl").unlink()
    (record / "events.jsonl").mkdir()
    (record / "logs/tf0/stderr").unlink()
    (record / "logs/tf0/stderr").mkdir()
    problems = load(record).problems
    assert problems[0] == "events.jsonl: cannot be read: it is no regular file"
    assert "logs/tf0/stderr: cannot be read: it is no regular file" in problems


def test_truncated_step_stats_are_told_and_the_others_used(record: Path) -> None:
    file = record / "trace/step_stats.12.pb"
    file.write_bytes(file.read_bytes()[:-9])
    (record / "trace/step_stats.extra.pb").write_bytes(b"not read")
    explained = explain(load(record))
    assert len(explained.traces) == 2
    assert explained.problems[0].startswith("step stats of step 12: no step stats")
    assert explained.split is not None


def test_nodes_and_clocks_may_be_missing(record: Path) -> None:
    known = read_record(record)
    bare = replace(known, nodes=(), clock=(), spans=(), unit_end=None)
    explained = explain(replace(load(record), record=bare))
    assert explained.clocks == ()
    assert explained.problems == ("clock: the offset of tf0 was not measured",)
    assert [each.node for each in explained.nodes] == ["labctl", "tf0"]
    write_record(record, replace(known, nodes=known.nodes[:1]))
    assert explain(load(record)).trace is not None


def test_absurd_clocks_are_told_and_invent_nothing(record: Path) -> None:
    known = read_record(record)
    years = tuple(
        replace(sample, offset_s=sample.offset_s + (1e8 if sample.node == "tf1" else 0.0))
        for sample in known.clock
    )
    write_record(record, replace(known, clock=years))
    explained = explain(load(record))
    assert any("tf1 is 1157.4 days ahead" in each for each in explained.problems)
    assert any("times of task:1 lie" in each for each in explained.problems)
    assert explained.trace is not None
    assert all(edge.clamped and edge.mb_per_s is None for edge in explained.trace.edges)
    jump = tuple(
        replace(sample, offset_s=sample.at_s) if sample.node == "tf0" else sample
        for sample in known.clock
    )
    write_record(record, replace(known, clock=jump))
    explained = explain(load(record))
    assert any("tf0 jumped" in each for each in explained.problems)
    for row in explained.ledger.rows:
        assert 0 < row.duration_s <= explained.ledger.wall_s


def test_a_run_in_progress_is_explained_as_far_as_it_went(record: Path) -> None:
    known = read_record(record)
    write_record(record, replace(known, outcome="running", wall_s=None, unit_end=None, clock=()))
    explained = explain(load(record))
    assert (explained.ledger.rows, explained.nodes) == ((), ())
    assert explained.stats.n == 10
    assert explained.problems == ()


def test_only_run_json_is_fatal(record: Path) -> None:
    (record / "run.json").write_text('{"format": 99}')
    with pytest.raises(RecordTooNewError):
        load(record)
    (record / "run.json").write_text("{")
    with pytest.raises(RecordError):
        load(record)


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "x", "t": 1' + "0" * 400 + ', "mono": 1, "source": "client", "task": 0}',
        '{"event": "x", "t": 1e400, "mono": 1, "source": "client", "task": 0}',
        '{"event": "x", "t": true, "mono": 1, "source": "client", "task": 0}',
        "[" * 100_000,
        "NaN",
    ],
)
def test_lines_with_impossible_numbers_are_no_events(line: str) -> None:
    assert parse_line(line) is None


def test_fields_with_impossible_numbers_are_none() -> None:
    line = '{"event": "step", "t": 1, "mono": 1, "source": "client", "task": 0, "n": %s}'
    for value in ("1" + "0" * 400, "1e400", "NaN", '"x"', "null", "true"):
        event = parse_line(line % value)
        assert event is not None
        assert event.number("n") is None


def test_a_very_long_log_keeps_both_ends(record: Path) -> None:
    log = record / "logs/tf0/stderr"
    log.write_text("".join(f"line {n}\n" for n in range(50_000)))
    data = load(record)
    texts = [line.text for line in data.log if line.node == "tf0"]
    assert (texts[0], texts[-1], len(texts)) == ("line 0", "line 49999", 40_000)
    assert "logs/tf0/stderr: 10000 lines in its middle are left out" in data.problems


def test_steps_longer_than_the_run_are_none() -> None:
    data = load(RECORDS / FED)
    events = tuple(
        replace(each, data={**each.data, "duration_ns": 10**15}) if each.kind == "step" else each
        for each in data.events
    )
    explained = explain(replace(data, events=events))
    assert (explained.steps, explained.stats.warm_median_ms) == ((), None)
    assert any("are longer than the run and left out" in each for each in explained.problems)
