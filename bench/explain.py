"""How long the explanation takes and how it grows: commands of labctl on generated records.

    python bench/explain.py [--json] [--quick]

Each command is a process of its own, as a user starts it; of three runs the fastest counts. Bound at size 1
(1,000 runs; a run of 10,000 steps and 100,000 trace records): 2 s and 300 MB. Linear growth: twice the size
takes at most 2.6 times as much CPU time, the start of labctl left out; CPU time, because it hardly changes where
other processes share the machine. A command that takes a minute is ended: it is over every bound.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.records import Shape, run_id, total_bytes, write_run, write_store

SIZES = (1, 2, 4)
RUNS = 1_000
STEPS = 10_000
TRACE_RECORDS = 100_000
MOST_S = 2.0
MOST_MB = 300.0
MOST_GROWTH = 2.6
GIVE_UP_S = 60.0
_TRIES = 3
_LABCTL = [sys.executable, "-m", "labctl"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One command on one size.

    Attributes:
        command: What was run.
        size: Times the size that the bound is for.
        wall_s: Seconds from its start to its end, the fastest try.
        cpu_s: CPU time, seconds, the least of any try.
        rss_mb: Highest resident memory of any try, 10^6 bytes.
        growth: Its CPU time over that of half the size, the start of labctl left out of both; None at size 1.
        ok: Within the bounds: of time and memory at size 1, of growth above.
    """

    command: str
    size: int
    wall_s: float
    cpu_s: float
    rss_mb: float
    growth: float | None
    ok: bool


def main() -> int:
    """Measure, print, and say by the exit code whether all is within the bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--quick", action="store_true", help="size 1 only")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="commands that contain this text"
    )
    options = parser.parse_args()
    sizes = SIZES[:1] if options.quick else SIZES
    with tempfile.TemporaryDirectory(prefix="labctl-bench-") as root:
        figures = measure(Path(root), sizes, options.only)
    if options.json:
        print(json.dumps([asdict(each) for each in figures], indent=2))
    else:
        print_table(figures)
    return 0 if all(each.ok for each in figures) else 1


def measure(root: Path, sizes: tuple[int, ...], only: str) -> list[Figure]:
    """Return the figures of all commands whose text contains `only`.

    Args:
        root: An empty directory.
        sizes: In ascending order, each twice the one before.
        only: Part of a command.
    """
    start_s = _fastest(["--version"], root).cpu_s
    figures: list[Figure] = []
    before: dict[str, float] = {}
    for size in sizes:
        home = root / f"size-{size}"
        write_store(home / ".lab/store", RUNS * size)
        shape = Shape(STEPS * size, TRACE_RECORDS * size)
        write_run(home / ".lab/run/runs" / run_id(0), shape)
        if size == 1:
            say(f"the store of {RUNS} runs has {total_bytes(home / '.lab/store') / 1e6:.1f} MB")
            say(f"the large run has {total_bytes(home / '.lab/run') / 1e6:.1f} MB")
        for name, argv in commands(home):
            if only not in name:
                continue
            used = _fastest(argv, home)
            growth = None
            if name in before:
                growth = (used.cpu_s - start_s) / max(before[name] - start_s, 1e-3)
            within = used.wall_s <= MOST_S and used.rss_mb <= MOST_MB
            ok = used.wall_s < GIVE_UP_S and (within if growth is None else growth <= MOST_GROWTH)
            before[name] = used.cpu_s
            figures.append(Figure(name, size, used.wall_s, used.cpu_s, used.rss_mb, growth, ok))
            say(f"size {size}: {name}: {used.wall_s:.2f} s")
    return figures


def commands(home: Path) -> list[tuple[str, list[str]]]:
    """Return what is measured, with its arguments."""
    return [
        ("runs list, a store", ["runs", "list", "--lab", "store"]),
        ("why last, a store", ["why", "last", "--lab", "store"]),
        ("why, a large run", ["why", "last", "--lab", "run"]),
        (
            "report, a large run",
            ["report", "last", "--lab", "run", "-o", str(home / "report.html")],
        ),
        ("trace, a large run", ["trace", "last", "--lab", "run", "-o", str(home / "trace.json")]),
    ]


def print_table(figures: list[Figure]) -> None:
    """Print the figures with the bounds."""
    print(f"{'command':<22}{'size':>5}{'wall':>10}{'CPU':>10}{'memory':>11}{'growth':>9}")
    for each in figures:
        growth = "" if each.growth is None else f"{each.growth:.2f}"
        verdict = "" if each.ok else "  over"
        print(
            f"{each.command:<22}{each.size:>5}{each.wall_s:>8.2f} s{each.cpu_s:>8.2f} s"
            f"{each.rss_mb:>8.0f} MB{growth:>9}{verdict}"
        )
    print(f"bounds: {MOST_S:g} s and {MOST_MB:g} MB at size 1, growth {MOST_GROWTH:g} a doubling")
    busy, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if busy > cpus:
        print(f"load average {busy:.1f} on {cpus} CPUs: the wall times are those of a busy machine")


def say(text: str) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Used:
    """What a command took: wall seconds, CPU seconds, its highest resident memory in MB."""

    wall_s: float
    cpu_s: float
    rss_mb: float


def _fastest(argv: list[str], home: Path) -> _Used:
    tries = [_run(argv, home)]
    while len(tries) < _TRIES and tries[-1].wall_s < GIVE_UP_S:
        tries.append(_run(argv, home))
    return _Used(
        min(each.wall_s for each in tries),
        min(each.cpu_s for each in tries),
        max(each.rss_mb for each in tries),
    )


def _run(argv: list[str], home: Path) -> _Used:
    begun_s = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*_LABCTL, *argv],
            env={**os.environ, "LABCTL_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        alarm = threading.Timer(GIVE_UP_S, process.kill)
        alarm.start()
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begun_s
        alarm.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0 and wall_s < GIVE_UP_S:
            said.seek(0)
            message = said.read().decode(errors="replace")
            sys.exit(f"labctl {' '.join(argv)} ended with {process.returncode}: {message}")
    return _Used(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


if __name__ == "__main__":
    sys.exit(main())
