from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.console import safe_text
from labctl.errors import UsageError
from labctl.runs.observer import Progress
from labctl.runs.record import (
    ClockSample,
    NodeFacts,
    Origin,
    Parameters,
    RemoteRun,
    RunRecord,
    write_record,
)
from labctl.runs.store import Entry, RunStore
from labctl.views.logs import MAX_LINE, LogLine, record_lines
from labctl.views.progress import OutputLines, line_of
from labctl.views.since import parse_since

RUN_ID = "20261130T141502Z-3fa9c1"
START = 1796048102.0
RECORD = RunRecord(
    run_id=RUN_ID,
    lab="x",
    provider="none",
    outcome="ok",
    parameters=Parameters("script", False, False, 60.0, script="x.py"),
    tasks=2,
    origin=Origin(START, 0.0, "b"),
    remote=RemoteRun("tf0", "/d", "u"),
    nodes=(NodeFacts("tf0", 0, "a:1"), NodeFacts("tf1", 1, "b:1")),
    labctl_version="0",
    payload_sha256="",
    spec_sha256="",
    clock=(ClockSample("tf0", 0, 100.0, 0.001), ClockSample("tf1", 0, -50.0, 0.001)),
    wall_s=20.0,
)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    store = RunStore(tmp_path)
    folder = store.create(RUN_ID)
    for node in ("tf0", "tf1"):
        (folder / "logs" / node).mkdir(parents=True)
    write_record(folder, RECORD)
    return store.find("last")


def write_index(entry: Entry, *rows: tuple[str, float, int]) -> None:
    lines = [json.dumps({"file": name, "t": START + t, "offset": upto}) for name, t, upto in rows]
    (entry.path / "logs/tf0/index.jsonl").write_text("\n".join(lines) + "\n")


def write_journal(entry: Entry, *rows: tuple[float, Any]) -> None:
    lines = [
        json.dumps(
            {
                "__REALTIME_TIMESTAMP": str(round((START + t) * 1e6)),
                "MESSAGE": message,
                "SYSLOG_IDENTIFIER": "python",
            }
        )
        for t, message in rows
    ]
    (entry.path / "logs/tf1/join-server.jsonl").write_text("\n".join(lines) + "\n")


def seen(entry: Entry, *nodes: str) -> list[tuple[float, str, str, bytes]]:
    lines = record_lines(entry, nodes)
    return [(round(line.t_s - START, 3), line.node, line.source, line.text) for line in lines]


def test_lines_of_all_nodes_are_in_order_of_corrected_time(entry: Entry) -> None:
    (entry.path / "logs/tf0/stdout").write_bytes(b"first\nsecond\nrest")
    write_index(entry, ("stdout", 2.0, 6), ("stderr", 2.5, 99), ("stdout", 6.0, 13))
    event = {"event": "note", "t": round((START + 104.0) * 1e9), "mono": 0, "source": "client"}
    (entry.path / "events.jsonl").write_text(json.dumps({**event, "task": 0, "text": "hi"}) + "\n")
    write_journal(entry, (-45.0, "ready"), (-43.0, [255, 254]))
    assert seen(entry) == [
        (2.0, "tf0", "stdout", b"first"),
        (4.0, "tf0", "events", b"note text=hi"),
        (5.0, "tf1", "join-server", b"ready"),
        (6.0, "tf0", "stdout", b"second"),
        (7.0, "tf1", "join-server", b"\xff\xfe"),
        (20.0, "tf0", "stdout", b"rest"),
    ]
    assert {line[1] for line in seen(entry, "tf1")} == {"tf1"}


def test_a_line_that_tensorflow_stamped_has_its_own_time(entry: Entry) -> None:
    stamped = f"I0000 00:00:{START + 103:.6f}    1 x.cc:1] begun".encode()
    (entry.path / "logs/tf0/stderr").write_bytes(b"before\n" + stamped + b"\nafter\n")
    write_index(entry, ("stderr", 9.0, 7 + len(stamped) + 1 + 6))
    assert [line[0] for line in seen(entry)] == [3.0, 3.0, 9.0]


def test_a_source_keeps_its_own_order(entry: Entry) -> None:
    write_journal(entry, (-45.0, "one"), (-46.0, "two"), (-44.0, "three"))
    assert [(t, text) for t, _, _, text in seen(entry)] == [
        (5.0, b"one"),
        (5.0, b"two"),
        (6.0, b"three"),
    ]


def test_what_is_no_line_of_a_journal_or_an_index_stops_nothing(entry: Entry) -> None:
    write_journal(entry, (-45.0, "one"))
    path = entry.path / "logs/tf1/join-server.jsonl"
    path.write_text("[]\nnonsense\n{}\n" + path.read_text() + '{"__REALTIME_TIMESTAMP": "x"}\n')
    (entry.path / "logs/tf0/stdout").write_bytes(b"out\n")
    (entry.path / "logs/tf0/index.jsonl").write_text('nonsense\n{"file": "stdout", "t": "x"}\n')
    assert [text for *_, text in seen(entry)] == [b"one", b"out"]


def test_absurd_times_stop_nothing(entry: Entry) -> None:
    (entry.path / "logs/tf0/stdout").write_bytes(b"x\n")
    rows = ["1e308", "NaN", "-Infinity", "1" + "0" * 400]
    index = "".join(f'{{"file": "stdout", "t": {row}, "offset": 2}}\n' for row in rows)
    (entry.path / "logs/tf0/index.jsonl").write_text(index)
    stamp = {"__REALTIME_TIMESTAMP": "9" * 400, "MESSAGE": "far"}
    (entry.path / "logs/tf1/join-server.jsonl").write_text(json.dumps(stamp) + "\n[" + "[" * 9999)
    event = {"event": "note", "mono": 0, "source": "client", "task": 0, "duration_ns": 10**400}
    times = "".join(json.dumps({**event, "t": t}) + "\n" for t in (2**63 - 1, 1 - 2**63))
    (entry.path / "events.jsonl").write_text(times)
    lines = list(record_lines(entry))
    assert [line.source for line in lines].count("events") == 2
    assert (20.0, "tf0", "stdout", b"x") in seen(entry)
    for line in lines:
        assert line.printed()
        assert json.loads(line.to_json())["source"] == line.source
    assert LogLine(1e300, "tf0", "stdout", b"x").printed() == "--:--:--.--- tf0 stdout      x"


def test_what_is_no_plain_file_is_a_line_that_says_so(entry: Entry) -> None:
    os.mkfifo(entry.path / "events.jsonl")
    (entry.path / "logs/tf0/stdout").symlink_to("/dev/zero")
    (entry.path / "logs/tf0/stderr").write_bytes(b"kept\n")
    os.mkfifo(entry.path / "logs/tf0/index.jsonl")
    (entry.path / "logs/tf1/join-server.jsonl").mkdir()
    assert seen(entry) == [
        (0.0, "tf0", "events", b"labctl: events.jsonl cannot be read: it is no regular file"),
        (
            0.0,
            "tf0",
            "stdout",
            b"labctl: logs/tf0/stdout cannot be read: a symbolic link is not followed",
        ),
        (
            0.0,
            "tf1",
            "join-server",
            b"labctl: logs/tf1/join-server.jsonl cannot be read: it is no regular file",
        ),
        (20.0, "tf0", "stderr", b"kept"),
    ]


def test_an_endless_line_comes_in_pieces(entry: Entry) -> None:
    (entry.path / "logs/tf0/stdout").write_bytes(b"x" * (2 * MAX_LINE + 5))
    assert [len(text) for *_, text in seen(entry)] == [MAX_LINE, MAX_LINE, 5]


def test_a_terminal_gets_no_control_characters() -> None:
    assert safe_text(b"a\x1b[2Jb\x07\x9b\xff\tc\r") == "a\\x1b[2Jb\\x07\\x9b\\xff\tc"
    assert safe_text("x\u202ey\u2066z\x7f") == "x\\u202ey\\u2066z\\x7f"
    assert safe_text("Grüße 你好") == "Grüße 你好"


@given(st.binary(max_size=200))
def test_any_bytes_become_one_printable_line(data: bytes) -> None:
    text = safe_text(data)
    assert all(char == "\t" or ord(char) >= 0x20 for char in text)
    assert not set(text) & {chr(code) for code in range(0x7F, 0xA0)}


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_shown_output_does_not_depend_on_how_it_arrives(data: bytes, cuts: list[int]) -> None:
    def shown(pieces: list[bytes]) -> list[str]:
        output = OutputLines()
        lines = [line for piece in pieces for line in output.feed("tf0", "stdout", piece)]
        return lines + output.rest()

    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert shown(pieces) == shown([data])


def test_progress_is_one_line() -> None:
    assert line_of(Progress(elapsed_s=2.2)) == "starting · 2 s"
    progress = Progress("warm_steps", 3, 10, 152.4, 12.0)
    assert line_of(progress) == "warm_steps · step 3/10 · last 152 ms · 12 s"


NOW = datetime(2026, 11, 30, 14, 15, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOW.replace(minute=13, second=32)),
        ("10min", NOW.replace(minute=5)),
        ("2h", NOW.replace(hour=12)),
        ("1d", NOW.replace(day=29)),
        ("14:05", NOW.replace(minute=5, second=0)),
        ("14:05:30", NOW.replace(minute=5, second=30)),
        ("14:16", NOW.replace(day=29, minute=16, second=0)),
        ("2026-11-30T10:00", NOW.replace(hour=10, minute=0, second=0)),
        ("2026-11-30T10:00+02:00", NOW.replace(hour=8, minute=0, second=0)),
        ("2026-11-29", NOW.replace(day=29, hour=0, minute=0, second=0)),
    ],
)
def test_since_takes_what_people_write(text: str, moment: datetime) -> None:
    assert parse_since(text, NOW.timestamp()) == moment.timestamp()


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "10", "-5s", "2026-13-01", "5 min"])
def test_since_refuses_the_rest(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_since(text, NOW.timestamp())


def test_an_interrupted_run_has_logs_too(entry: Entry) -> None:
    write_record(entry.path, replace(RECORD, outcome="running", wall_s=None))
    (entry.path / "logs/tf0/stdout").write_bytes(b"so far\n")
    again = RunStore(entry.path.parents[1]).find("last")
    assert seen(again) == [(0.0, "tf0", "stdout", b"so far")]
