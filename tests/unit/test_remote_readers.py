"""Journal, clock, port probes and the follower, over a scripted node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import ConnectionLostError, RecordError, RemoteCommandError
from labctl.remote.clock import CLOCK_ARGV, clock_offset
from labctl.remote.fake import Call, FakeExecutor, Reply
from labctl.remote.follow import Follower
from labctl.remote.journal import read_journal, save_journal
from labctl.remote.probe import tcp_probe

UNIT = "tf-join-server.service"


def entry(message: Any, **fields: Any) -> bytes:
    row = {
        "__REALTIME_TIMESTAMP": "1796048102250001",
        "__CURSOR": "s=1;i=2",
        "_PID": "4711",
        "_SYSTEMD_UNIT": UNIT,
        "SYSLOG_IDENTIFIER": "python",
        "_BOOT_ID": "ab" * 16,
        "MESSAGE": message,
        **fields,
    }
    return json.dumps(row).encode() + b"\n"


def test_journal_keeps_bytes_and_tells_the_units_own_lines() -> None:
    rows = (
        entry("text ü"),
        entry([255, 254, 10, 65]),
        entry(None),
        entry(["first", "second"]),
        entry("exited", _SYSTEMD_UNIT="init.scope", _PID="1", __CURSOR="s=1;i=9"),
    )
    node = FakeExecutor("tf1").on(["sh", "-c"], Reply(b"".join(rows)))
    page = read_journal(node, UNIT, since_cursor="s=1;i=1", since_s=12.5, boot="a-b", limit=7)
    assert [each.message for each in page.lines] == [
        "text ü".encode(),
        b"\xff\xfe\nA",
        b"",
        b"first",
        b"exited",
    ]
    assert [each.own for each in page.lines] == [True, True, True, True, False]
    assert page.lines[0].t_ns == 1796048102250001000
    assert (page.lines[0].pid, page.lines[4].pid, page.cursor) == (4711, 1, "s=1;i=9")
    (call,) = node.calls
    assert call.sudo
    assert {"--after-cursor=s=1;i=1", "--since=@12.500000", "--boot=ab", "--all"} <= set(call.argv)
    assert call.argv[4] == "7"


def test_journal_that_may_not_be_read_is_an_error_not_an_empty_log() -> None:
    said = b"No journal files were opened due to insufficient permissions.\n"
    node = FakeExecutor("tf1").on(["sh", "-c"], Reply(stderr=said))
    with pytest.raises(RemoteCommandError, match="on tf1 cannot be read: No journal files"):
        read_journal(node, UNIT)
    node = FakeExecutor("tf1")
    node.sudo_works = False
    with pytest.raises(RemoteCommandError, match="sudo does not work without a password"):
        read_journal(node, UNIT)


def test_journal_with_nothing_new_keeps_its_place() -> None:
    node = FakeExecutor("tf1").on(["sh", "-c"], Reply())
    assert read_journal(node, UNIT, since_cursor="s=1").cursor == "s=1"


def test_journal_file_that_cannot_be_written_is_an_error() -> None:
    node = FakeExecutor("tf1").on(["sh", "-c"], Reply(stderr=b"sh: No space left\n", returncode=2))
    with pytest.raises(RemoteCommandError, match="saving the journal of tf-join-server"):
        save_journal(node, UNIT, "/run/journal")


def test_clock_offset_is_that_of_the_quickest_round_trip() -> None:
    # sent, received here; the node is 2 s ahead and answers half way
    trips = [(0, 900), (1_000, 1_200), (2_000, 2_800)]
    times: Iterator[int] = iter([each for trip in trips for each in trip])
    theirs = [10**12, 2_000_000_000 + 1_100, 10**12]
    node = FakeExecutor("tf1").on(CLOCK_ARGV, *(Reply(f"{each}\n".encode()) for each in theirs))
    node.clock_ns = lambda: next(times)
    offset = clock_offset(node, samples=3)
    assert (offset.seconds, offset.rtt_s, offset.error_bound_s) == (2.0, 200e-9, 100e-9)


def test_clock_that_is_no_number_is_an_error() -> None:
    node = FakeExecutor("tf1").on(CLOCK_ARGV, Reply(b"soon\n"))
    with pytest.raises(RemoteCommandError, match="tf1 does not tell its time"):
        clock_offset(node, samples=1)


def test_probe_reports_what_the_node_saw() -> None:
    answer = {"state": "refused", "address": "10.132.0.3", "detail": "Connection refused"}
    node = FakeExecutor("tf0").on(["python3"], Reply(json.dumps(answer).encode()))
    probe = tcp_probe(node, "tf1", 2222, 2.5)
    assert (probe.state, probe.address) == ("refused", "10.132.0.3")
    assert node.calls[0].argv[3:] == ("tf1", "2222", "2.5")


def test_probe_that_cannot_be_made_is_an_error() -> None:
    node = FakeExecutor("tf0").on(["python3"], Reply(stderr=b"not found\n", returncode=127))
    with pytest.raises(RemoteCommandError, match=r"trying tf1:2222 failed on tf0 \(exit 127\)"):
        tcp_probe(node, "tf1", 2222, 1)


def test_follower_goes_on_where_a_broken_link_left_it(tmp_path: Path) -> None:
    node = FakeExecutor("tf0", {"/log": b"one\ntwo\n"})
    follower = Follower(node, "/log", tmp_path / "log")
    assert follower.poll(limit=4) == b"one\n"
    node.broken = True
    with pytest.raises(ConnectionLostError):
        follower.poll()
    node.broken = False
    assert follower.poll() == b"two\n"
    assert follower.poll() == b""


def test_follower_leaves_out_what_is_written_while_it_finishes(tmp_path: Path) -> None:
    node = FakeExecutor("tf0", {"/log": b"before"})
    follower = Follower(node, "/log", tmp_path / "log")

    def grow(call: Call) -> Reply:
        node.files["/log"] += b" after"
        return node._sha256sum(call.argv[5], int(call.argv[4]))

    node.on(["sh", "-c"], grow)
    assert follower.finish().size == len(b"before")
    assert (tmp_path / "log").read_bytes() == b"before"


def test_follower_of_a_file_never_made_gives_an_empty_one(tmp_path: Path) -> None:
    copied = Follower(FakeExecutor("tf0"), "/none", tmp_path / "log").finish()
    assert (copied.size, (tmp_path / "log").read_bytes()) == (0, b"")


def test_follower_that_cannot_make_both_equal_says_so(tmp_path: Path) -> None:
    node = FakeExecutor("tf0", {"/log": b"text"}).on(["sh", "-c"], Reply(b"0" * 64 + b"  -\n"))
    (tmp_path / "log").write_bytes(b"te")
    with pytest.raises(RecordError, match="differ after a second whole copy") as caught:
        Follower(node, "/log", tmp_path / "log").finish()
    assert caught.value.exit_code == 8
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".part"] == []
