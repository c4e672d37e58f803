"""Events that arrive in pieces, and a run as one file."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import UsageError
from labctl.runs.events import EventStream, parse_line
from labctl.runs.export import export

LINES = [
    {"event": "hello", "t": 1, "mono": 2, "source": "client", "task": 0, "python": "3.11"},
    {"event": "step", "t": 5, "mono": 6, "source": "client", "task": 0, "duration_ns": 7},
]
DATA = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)


@given(st.lists(st.integers(0, len(DATA)), max_size=8))
def test_events_do_not_depend_on_how_their_bytes_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(DATA)]
    stream = EventStream()
    events = [
        event for start, end in itertools.pairwise(places) for event in stream.feed(DATA[start:end])
    ]
    assert [event.kind for event in events] == ["hello", "step"]
    assert events[1].number("duration_ns") == 7


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b"nonsense",
        b'{"event": 1, "t": 1, "mono": 1, "source": "client", "task": 0}',
        b'{"event": "step", "t": 1.5, "mono": 1, "source": "client", "task": 0}',
        b'{"event": "step", "t": true, "mono": 1, "source": "client", "task": 0}',
        b'{"event": "step", "t": 1, "mono": 1, "source": "client"}',
    ],
)
def test_a_line_that_is_no_event_is_left_out(line: bytes) -> None:
    assert parse_line(line) is None


def test_values_of_the_wrong_type_read_as_missing() -> None:
    event = parse_line(
        b'{"event": "x", "t": 1, "mono": 1, "source": "client", "task": 0,'
        b' "a": "1", "b": true, "c": 1.5, "d": 1e999}'
    )
    assert event is not None
    assert (event.number("a"), event.number("b"), event.number("c"), event.number("d")) == (
        None,
        None,
        1.5,
        None,
    )
    assert (event.text("c"), event.whole("c"), event.flag("b"), event.flag("a")) == (
        "",
        None,
        True,
        None,
    )


def make_run(root: Path) -> Path:
    folder = root / "20261130T141502Z-3fa9c1"
    (folder / "logs/tf0").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "logs/tf0/stdout").write_bytes(bytes(range(256)))
    return folder


def test_export_depends_on_the_content_alone(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    os.utime(second / "run.json", (1, 1))
    (second / "run.json").chmod(0o600)
    (second / "leads-elsewhere").symlink_to("/etc/passwd")
    digests = set()
    for number, folder in enumerate((first, second)):
        target = tmp_path / f"{number}.tar.gz"
        assert export(folder, target) == target.stat().st_size
        digests.add(hashlib.sha256(target.read_bytes()).hexdigest())
    assert len(digests) == 1
    with tarfile.open(tmp_path / "1.tar.gz") as archive:
        assert archive.getnames() == [
            first.name,
            f"{first.name}/logs",
            f"{first.name}/logs/tf0",
            f"{first.name}/logs/tf0/stdout",
            f"{first.name}/run.json",
        ]
        packed = archive.extractfile(f"{first.name}/logs/tf0/stdout")
        assert packed is not None
        assert packed.read() == bytes(range(256))


def test_export_never_overwrites(tmp_path: Path) -> None:
    folder, target = make_run(tmp_path), tmp_path / "run.tar.gz"
    target.write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        export(folder, target)
    assert target.read_text() == "mine"
    with pytest.raises(UsageError, match="cannot export"):
        export(folder, tmp_path / "run.zip")
    with pytest.raises(UsageError, match="cannot write"):
        export(folder, tmp_path / "missing" / "run.tar.gz")
    assert sorted(path.name for path in tmp_path.glob("*run*")) == ["run.tar.gz"]
