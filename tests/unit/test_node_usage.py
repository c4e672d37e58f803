"""What a process and its node use: read from the kernel's files, told while there is something to tell."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.node import wire
from labctl.node.events import EventLog
from labctl.node.usage import WORKING_CPU_NS, Figures, Meter, UsageReporter

FIELDS = [
    "cpu_ns", "wait_ns", "threads", "rss_bytes",
    "node_busy_ns", "node_idle_ns", "node_steal_ns", "rx_bytes", "tx_bytes",
]  # fmt: skip
GROWING = [name for name in FIELDS if name not in {"threads", "rss_bytes"}]

_NONE = "0 " * 7
NET_DEV = f"""Inter-|   Receive       |  Transmit
 face |bytes    packets  |bytes    packets
    lo: 9999999 {_NONE} 9999999 {_NONE}
 host0: 1000 {_NONE} 300 {_NONE}
  eth1:20 {_NONE} 4 {_NONE}
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with two threads; the process may use this machine's CPUs, the last CPU is another's."""
    mine = sorted(os.sched_getaffinity(0))
    rows = [f"cpu{number} 10 1 5 100 20 2 3 7 0 0" for number in mine]
    (tmp_path / "stat").write_text(
        "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *rows, "cpu9999 " + "5 " * 10])
    )
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "dev").write_text(NET_DEV)
    _thread(tmp_path, 11, 500, 70)
    _thread(tmp_path, 12, 100, 7)
    (tmp_path / "self" / "statm").write_text("99 512 7 1 0 9 0\n")
    return tmp_path


def _thread(proc: Path, number: int, ran_ns: int, waited_ns: int) -> None:
    folder = proc / "self" / "task" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"{ran_ns} {waited_ns} 3\n")


def test_figures_come_from_the_kernels_files(proc: Path) -> None:
    figures = Meter(str(proc)).read()
    cpus = len(os.sched_getaffinity(0))
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    assert list(figures) == FIELDS
    assert figures["wait_ns"] == 77
    assert (figures["threads"], figures["rss_bytes"]) == (2, 512 * os.sysconf("SC_PAGE_SIZE"))
    assert figures["node_busy_ns"] == cpus * 21 * tick_ns  # user, nice, system, irq, softirq
    assert figures["node_idle_ns"] == cpus * 120 * tick_ns  # idle, iowait
    assert figures["node_steal_ns"] == cpus * 7 * tick_ns
    assert (figures["rx_bytes"], figures["tx_bytes"]) == (1020, 304)


def test_what_cannot_be_read_is_none_and_not_zero(tmp_path: Path) -> None:
    figures = Meter(str(tmp_path / "nowhere")).read()
    assert figures.pop("cpu_ns")
    assert set(figures.values()) == {None}


def test_a_kernel_without_statistics_of_waiting_says_none(proc: Path) -> None:
    _thread(proc, 11, 0, 0)
    _thread(proc, 12, 0, 0)
    assert Meter(str(proc)).read()["wait_ns"] is None


def test_odd_lines_are_passed_over(proc: Path) -> None:
    (proc / "stat").write_text("cpu0 1 2\n")
    (proc / "net" / "dev").write_text("head\n host0: 1 2\n")
    (proc / "self" / "task" / "11" / "schedstat").write_text("")
    figures = Meter(str(proc)).read()
    assert (figures["node_busy_ns"], figures["rx_bytes"]) == (None, None)
    assert figures["wait_ns"] == 7


def test_waiting_of_threads_that_ended_stays_counted(proc: Path) -> None:
    meter = Meter(str(proc))
    assert meter.read()["wait_ns"] == 77
    for name in ("schedstat", ""):
        path = proc / "self" / "task" / "11" / name
        path.unlink() if name else path.rmdir()
    assert meter.read()["wait_ns"] == 77
    _thread(proc, 12, 100, 20)
    assert meter.read()["wait_ns"] == 90
    _thread(proc, 11, 1, 5)  # a new thread with the number of an old one
    assert meter.read()["wait_ns"] == 95


def test_figures_of_this_process_only_grow() -> None:
    meter = Meter()
    before = meter.read()
    for _ in range(3):
        threads = [threading.Thread(target=sum, args=(range(200_000),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        now = meter.read()
        for name in GROWING:
            earlier, later = before[name], now[name]
            assert (earlier is None) == (later is None)
            assert earlier is None or later is None or later >= earlier, name
        assert now["cpu_ns"] != before["cpu_ns"]
        before = now


class _Scripted(Meter):
    """A meter of a process that uses a given CPU time in each period."""

    def __init__(self, each_ns: list[int]) -> None:
        super().__init__()
        self._each_ns = iter(each_ns)
        self._sum_ns = 0

    def read(self) -> Figures:
        self._sum_ns += next(self._each_ns)
        return {**dict.fromkeys(FIELDS), "cpu_ns": self._sum_ns}


def _told(each_ns: list[int], folder: Path, *, always: bool) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    path.unlink(missing_ok=True)
    log = EventLog.to_file(str(path), "join-server", 1)
    reporter = UsageReporter(log, always=always, meter=_Scripted(each_ns), own_cpu_ns=lambda: 0)
    for _ in each_ns:
        reporter.sample()
    return [json.loads(line) for line in path.read_text().splitlines()]


def _sums(each_ns: list[int], folder: Path, *, always: bool = False) -> list[int]:
    return [event["cpu_ns"] for event in _told(each_ns, folder, always=always)]


def test_an_idle_process_tells_nothing(tmp_path: Path) -> None:
    assert _sums([10, 10, 10, WORKING_CPU_NS - 1, 0], tmp_path) == []


def test_work_is_told_with_one_sample_before_and_one_after(tmp_path: Path) -> None:
    work = WORKING_CPU_NS
    assert _sums([5, 1, work, work, 1, 1, 1], tmp_path) == [
        6, 6 + work, 6 + 2 * work, 7 + 2 * work,
    ]  # fmt: skip
    # What lies between two spells is told once, whether it closes the one or opens the other.
    assert _sums([0, work, 0, work, 0], tmp_path) == [0, work, work, 2 * work, 2 * work]


def test_the_reading_itself_is_no_work(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog.to_file(str(path), "join-server", 1)
    own = iter([WORKING_CPU_NS, 2 * WORKING_CPU_NS, 3 * WORKING_CPU_NS])
    meter = _Scripted([WORKING_CPU_NS] * 3)
    reporter = UsageReporter(log, always=False, meter=meter, own_cpu_ns=lambda: next(own))
    for _ in range(3):
        reporter.sample()
    assert path.read_text() == ""


def test_a_client_tells_every_period(tmp_path: Path) -> None:
    assert _sums([5, 0, 0], tmp_path, always=True) == [5, 5, 5]


@given(periods=st.lists(st.sampled_from([0, WORKING_CPU_NS, 3 * WORKING_CPU_NS]), max_size=30))
def test_stamps_grow_and_no_sample_is_told_twice(
    periods: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    events = _told(periods, folder, always=False)
    stamps = [event["mono"] for event in events]
    assert all(earlier < later for earlier, later in itertools.pairwise(stamps))
    # All work but the very first reading's lies between two samples that were told.
    told = events[-1]["cpu_ns"] - events[0]["cpu_ns"] if events else 0
    assert told == sum(periods[1:])


def test_reporter_writes_from_its_thread_and_a_last_time_when_stopped(tmp_path: Path) -> None:
    log = EventLog.to_file(str(tmp_path / "events.jsonl"), "client", 0)
    reporter = UsageReporter(log, always=True, period_s=3600)
    reporter.start()
    reporter.stop()
    reporter.join(10)
    assert not reporter.is_alive()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == [wire.USAGE] * 2
    assert list(events[0])[5:] == FIELDS


def test_a_full_disk_does_not_end_the_reporter() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        reporter = UsageReporter(EventLog(full.fileno(), "client", 0), always=True, period_s=0.001)
        reporter.start()
        reporter.join(0.05)
        assert reporter.is_alive()
        reporter.stop()
        reporter.join(10)
        assert not reporter.is_alive()
