"""What this process and its node use while they work: CPU time, waiting for a CPU, memory, network traffic."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from . import wire
from .events import EventLog

# A server counts as working while it uses more CPU time than its idle threads do.
WORKING_CPU_NS = 2_000_000

_MOST_OPEN_FILES = 256

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

Figures = dict[str, int | None]


class Meter:
    """Reads the counters; each but `threads` and `rss_bytes` only grows, from the start of process or node.

    Args:
        proc: Where the kernel shows them.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = Path(proc)
        self._cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._tasks = f"{proc}/self/task"
        self._files: dict[str, int] = {}  # by thread
        self._waits: dict[str, int] = {}  # by thread, as last read
        self._ended_wait_ns = 0

    def read(self) -> Figures:
        """Return the fields of a `usage` event; what cannot be read is None.

        The node's CPUs are those that this process may use.
        """
        status = self._text("self/status")
        busy, idle, steal = self._node()
        received, sent = self._network()
        rss_kib = _field(status, "VmRSS")
        return {
            "cpu_ns": time.process_time_ns(),
            "wait_ns": self._wait(),
            "threads": _field(status, "Threads"),
            "rss_bytes": None if rss_kib is None else rss_kib * 1024,
            "node_busy_ns": busy,
            "node_idle_ns": idle,
            "node_steal_ns": steal,
            "rx_bytes": received,
            "tx_bytes": sent,
        }

    def _wait(self) -> int | None:
        """Return how long threads were ready to run and had no CPU, those that have ended included, ns."""
        waits: dict[str, int] = {}
        ran_ns = 0
        for thread in self._threads():
            with suppress(OSError, ValueError, IndexError):  # it has just ended
                ran, waited, *_ = self._schedstat(thread).split()
                waits[thread] = int(waited)
                ran_ns += int(ran)
        if not ran_ns:
            return None  # a kernel that keeps no such statistics
        for thread, wait_ns in self._waits.items():
            if waits.get(thread, -1) < wait_ns:  # gone, or another thread that got its number
                self._ended_wait_ns += wait_ns
        self._waits = waits
        return self._ended_wait_ns + sum(waits.values())

    def _threads(self) -> list[str]:
        """Return this process's threads, and forget the files of those that have ended."""
        try:
            threads = os.listdir(self._tasks)  # noqa: PTH208 names only, and twice a second
        except OSError:
            return []
        for thread in self._files.keys() - threads:
            os.close(self._files.pop(thread))
        return threads

    def _schedstat(self, thread: str) -> bytes:
        """Return a thread's `schedstat`; its file stays open, which makes the next reading ten times as fast.

        Raises:
            OSError: There is no such thread, or no such file.
        """
        kept = self._files.get(thread)
        file = os.open(f"{self._tasks}/{thread}/schedstat", os.O_RDONLY) if kept is None else kept
        try:
            text = os.pread(file, 128, 0)
        except OSError:  # it has ended; another thread may get its number
            self._files.pop(thread, None)
            os.close(file)
            raise
        if kept is None and len(self._files) < _MOST_OPEN_FILES:
            self._files[thread] = file
        elif kept is None:
            os.close(file)
        return text

    def _node(self) -> tuple[int | None, int | None, int | None]:
        rows = [
            [int(field) for field in fields[1:]]
            for fields in map(str.split, self._text("stat").splitlines())
            if fields and fields[0] in self._cpus
        ]
        if not rows or min(map(len, rows)) < 8:
            return None, None, None
        user, nice, system, idle, iowait, irq, softirq, steal = (
            sum(row[column] for row in rows) * _TICK_NS for column in range(8)
        )
        return user + nice + system + irq + softirq, idle + iowait, steal

    def _network(self) -> tuple[int | None, int | None]:
        received = sent = 0
        found = False
        for line in self._text("net/dev").splitlines():
            name, colon, rest = line.partition(":")
            fields = rest.split()
            if colon and name.strip() != "lo" and len(fields) >= 16:
                received, sent, found = received + int(fields[0]), sent + int(fields[8]), True
        return (received, sent) if found else (None, None)

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""


class UsageReporter(threading.Thread):
    """Writes `usage` events from a thread of its own.

    Args:
        events: Where they go.
        always: Write one each period; else only while the process works, and the one before and after.
        meter: Reads the counters.
        period_s: Between two readings.
        own_cpu_ns: Tells what the calling thread has used: the reading itself is no work.
    """

    def __init__(
        self,
        events: EventLog,
        *,
        always: bool,
        meter: Meter | None = None,
        period_s: float = wire.USAGE_PERIOD_S,
        own_cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        super().__init__(name="usage", daemon=True)
        self._events = events
        self._always = always
        self._meter = meter or Meter()
        self._period_s = period_s
        self._own_cpu_ns = own_cpu_ns
        self._stopped = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._before: tuple[int, int, Figures] | None = None
        self._work_ns = 0  # up to then
        self._busy = False  # in the period that ended with it
        self._told = False

    def run(self) -> None:
        while True:
            with suppress(OSError):  # a full disk is not this thread's to report
                self.sample()
            if self._stopped.wait(self._period_s):
                return

    def stop(self) -> None:
        """End the thread after a last sample; returns without waiting for it."""
        self._stopped.set()
        with suppress(OSError):
            self.sample()

    def sample(self) -> None:
        """Read the counters and write what is due.

        Raises:
            OSError: An event could not be written.
        """
        with self._one_at_a_time:
            now = (time.time_ns(), time.monotonic_ns(), self._meter.read())
            work_ns = (now[2]["cpu_ns"] or 0) - self._own_cpu_ns()
            before, was_busy = self._before, self._busy
            worked = before is not None and work_ns - self._work_ns >= WORKING_CPU_NS
            busy = self._always or worked
            if busy and before is not None and not self._told:
                self._tell(before)
            self._before, self._work_ns = now, work_ns
            self._busy, self._told = busy, busy or was_busy
            if self._told:
                self._tell(now)

    def _tell(self, reading: tuple[int, int, Figures]) -> None:
        t, mono, figures = reading
        self._events.emit(wire.USAGE, t=t, mono=mono, **figures)


def _field(status: str, name: str) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(match.group(1)) if match else None
