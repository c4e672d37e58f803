"""Events that arrive in pieces, files that are plain, a run as one file, and where one may be written."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.errors import UsageError
from labctl.runs import data
from labctl.runs.atomic import cannot_write, check_output
from labctl.runs.events import EventStream, parse_line
from labctl.runs.export import export
from labctl.runs.plain import MIB, open_plain

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
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


def test_numbers_that_no_sum_can_hold_read_as_missing() -> None:
    line = {**LINES[0], "a": 10**400, "b": 1e101, "c": 2**63, "d": 1e30, "duration_ns": 10**18}
    event = parse_line(json.dumps(line))
    assert event is not None
    assert [event.number(key) for key in "abcd"] == [None, None, 2**63, 1e30]
    assert [event.whole(key) for key in "acd"] == [None, None, None]
    assert (event.number("duration_ns"), event.whole("duration_ns")) == (None, None)


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
    (tmp_path / "link.tgz").symlink_to("nowhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        export(folder, tmp_path / "link.tgz")
    with pytest.raises(UsageError, match="cannot export"):
        export(folder, tmp_path / "run.zip")
    with pytest.raises(UsageError, match="cannot write"):
        export(folder, tmp_path / "missing" / "run.tar.gz")
    assert sorted(path.name for path in tmp_path.glob("*run*")) == ["run.tar.gz"]


def test_an_output_replaces_regular_files_alone(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("old")
    check_output(tmp_path / "plain")
    check_output(tmp_path / "new")
    (tmp_path / "link").symlink_to("plain")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    for path, said in {
        tmp_path / "link": "a symbolic link",
        tmp_path / "dangling": "a symbolic link",
        tmp_path / "fifo": "a FIFO",
        tmp_path: "a directory",
        Path("/dev/null"): "a device",
        tmp_path / "plain/x": "Not a directory",
        tmp_path / ("x" * 300): "too long",
    }.items():
        with pytest.raises(UsageError, match=said) as caught:
            check_output(path)
        assert caught.value.expected
        assert caught.value.do
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(errno.ENOSPC, 3), (errno.EDQUOT, 3), (errno.EACCES, 2), (errno.ENOENT, 2)],
)
def test_a_full_disk_is_told_from_a_name_that_cannot_be(number: int, exit_code: int) -> None:
    error = cannot_write(Path("/there/x.html"), OSError(number, os.strerror(number)))
    assert error.exit_code == exit_code
    assert error.found == f"cannot write /there/x.html: {os.strerror(number)}"


def test_no_link_is_followed_below_a_record_and_nothing_waited_for(tmp_path: Path) -> None:
    record = tmp_path / "record"
    (record / "logs/tf0").mkdir(parents=True)
    (record / "logs/tf0/stdout").write_text("hello")
    (record / "logs/tf1").symlink_to("tf0")
    (record / "logs/tf0/link").symlink_to("stdout")
    os.mkfifo(record / "logs/tf0/fifo")
    (tmp_path / "way").symlink_to(record)
    with open_plain(tmp_path / "way", "logs/tf0/stdout", most_bytes=MIB) as file:
        assert file.read() == b"hello"
    for name, said in {
        "logs/tf1/stdout": "link",
        "logs/tf0/link": "link",
        "logs/tf0/fifo": "no regular file",
        "logs/tf0/fifo/x": "Not a directory",
        "logs/tf0": "no regular file",
        "logs/tf0/stdout/x": "Not a directory",
        "logs/tf2/stdout": "No such file",
    }.items():
        with pytest.raises(OSError, match=said):
            open_plain(record, name)
    with (record / "large").open("wb") as large:
        large.truncate(MIB + 1)
    with pytest.raises(OSError, match="over 1 MiB"):
        open_plain(record, "large", most_bytes=MIB)


def test_a_part_of_a_record_that_is_no_plain_file_is_a_problem(tmp_path: Path) -> None:
    name = "20261130T181128Z-7aa9b1"
    folder = shutil.copytree(RECORDS / name, tmp_path / name)
    whole = data.load(folder)
    assert (whole.problems, bool(whole.events), bool(whole.traces)) == ((), True, True)
    traces = sorted(f"trace/{each.name}" for each in (folder / "trace").iterdir())
    parts = ["events.jsonl", "logs/tf0/stderr", "logs/tf1/join-server.jsonl", *traces]
    for part in parts:
        (folder / part).unlink()
        os.mkfifo(folder / part)
    found = data.load(folder)
    assert sorted(found.problems) == sorted(
        f"{part}: cannot be read: it is no regular file" for part in parts
    )
    assert not found.events
    assert not found.traces
    for part in parts:
        (folder / part).unlink()
        (folder / part).symlink_to("/dev/zero")
    assert all("link is not followed" in problem for problem in data.load(folder).problems)
    shutil.move(folder / "trace", tmp_path / "elsewhere")
    (folder / "trace").symlink_to(tmp_path / "elsewhere")
    assert "trace: is left out: a symbolic link is not followed" in data.load(folder).problems
