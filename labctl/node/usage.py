"""What this process and its node use while they work: CPU time, waiting for a CPU, memory, network, GPUs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from . import wire
from .events import EventLog

if TYPE_CHECKING:
    from .gpu import Gpu

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
        self._proc = proc
        self._tasks = f"{proc}/self/task"
        self._cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._files: dict[str, int] = {}  # that stay open, by path
        self._thread_files: dict[str, int] = {}  # the same, by thread
        self._waits: dict[str, int] = {}  # by thread, as last read
        self._ended_wait_ns = 0

    def read(self) -> Figures:
        """Return the fields of a `usage` event; what cannot be read is None.

        The node's CPUs are those that this process may use.
        """
        threads = self._threads()
        busy, idle, steal = self._node()
        received, sent = self._network()
        return {
            "cpu_ns": time.process_time_ns(),
            "wait_ns": self._wait(threads),
            "threads": len(threads) or None,
            "rss_bytes": self._memory(),
            "node_busy_ns": busy,
            "node_idle_ns": idle,
            "node_steal_ns": steal,
            "rx_bytes": received,
            "tx_bytes": sent,
        }

    def _threads(self) -> list[str]:
        """Return this process's threads, and forget the files of those that have ended."""
        try:
            threads = os.listdir(self._tasks)  # noqa: PTH208 names only, and twice a second
        except OSError:
            return []
        for thread in self._thread_files.keys() - threads:
            os.close(self._thread_files.pop(thread))
        return threads

    def _wait(self, threads: list[str]) -> int | None:
        """Return how long threads were ready to run and had no CPU, those that have ended included, ns."""
        waits: dict[str, int] = {}
        ran_ns = 0
        for thread in threads:
            try:
                ran, waited, _ = self._schedstat(thread).split()
                waits[thread] = int(waited)
                ran_ns += int(ran)
            except (OSError, ValueError):  # it has just ended
                continue
        if not ran_ns:
            return None  # a kernel that keeps no such statistics
        for thread, wait_ns in self._waits.items():
            if waits.get(thread, -1) < wait_ns:  # gone, or another thread that got its number
                self._ended_wait_ns += wait_ns
        self._waits = waits
        return self._ended_wait_ns + sum(waits.values())

    def _schedstat(self, thread: str) -> bytes:
        """Return a thread's `schedstat`; its file stays open, which makes the next reading ten times as fast.

        Raises:
            OSError: There is no such thread, or no such file.
        """
        file = self._thread_files.get(thread)
        if file is not None:
            try:
                return os.pread(file, 128, 0)
            except OSError:  # it has ended; another thread may get its number
                os.close(self._thread_files.pop(thread))
                raise
        file = os.open(f"{self._tasks}/{thread}/schedstat", os.O_RDONLY)
        try:
            text = os.pread(file, 128, 0)
        except OSError:
            os.close(file)
            raise
        if len(self._thread_files) < _MOST_OPEN_FILES:
            self._thread_files[thread] = file
        else:
            os.close(file)
        return text

    def _memory(self) -> int | None:
        fields = self._bytes("self/statm").split()
        return int(fields[1]) * self._page_bytes if len(fields) > 1 else None

    def _node(self) -> tuple[int | None, int | None, int | None]:
        rows = []
        for line in self._bytes("stat").split(b"\n"):
            if not line.startswith(b"cpu"):
                break  # the CPUs come first
            name, *fields = line.split()
            if name.decode() in self._cpus:
                rows.append([int(field) for field in fields])
        if not rows or min(map(len, rows)) < 8:
            return None, None, None
        user, nice, system, idle, iowait, irq, softirq, steal = (
            sum(row[column] for row in rows) * _TICK_NS for column in range(8)
        )
        return user + nice + system + irq + softirq, idle + iowait, steal

    def _network(self) -> tuple[int | None, int | None]:
        received = sent = 0
        found = False
        for line in self._bytes("net/dev").split(b"\n"):
            name, colon, rest = line.partition(b":")
            fields = rest.split()
            if colon and name.strip() != b"lo" and len(fields) >= 16:
                received, sent, found = received + int(fields[0]), sent + int(fields[8]), True
        return (received, sent) if found else (None, None)

    def _bytes(self, name: str) -> bytes:
        """Return the content of a file, which stays open, too; nothing if it cannot be read."""
        try:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = os.open(f"{self._proc}/{name}", os.O_RDONLY)
            text = b""
            while piece := os.pread(file, 65_536, len(text)):  # a page at a time from some files
                text += piece
        except OSError:
            return b""
        return text


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
        self._gpu: Gpu | None = None

    def watch(self, gpu: Gpu) -> None:
        """Write a `gpu_usage` event beside each `usage` event from now on, and the kernel cache after work."""
        self._gpu = gpu

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
                self._tell_of_gpus(at_rest=not busy)

    def _tell_of_gpus(self, *, at_rest: bool) -> None:
        """Write what the GPUs do now; a server that has just come to rest has compiled what it had to."""
        gpu = self._gpu
        devices = None if gpu is None else gpu.usage()
        if devices is not None:
            self._events.emit(wire.GPU_USAGE, devices=devices)
        if gpu is not None and at_rest:
            gpu.kernel_cache("end")

    def _tell(self, reading: tuple[int, int, Figures]) -> None:
        t, mono, figures = reading
        self._events.emit(wire.USAGE, t=t, mono=mono, **figures)
