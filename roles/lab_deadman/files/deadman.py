#!/usr/bin/python3
"""Power this machine off at its deadline, or when no run has used it for long.

    deadman.py status             print what is armed, as one JSON object
    deadman.py extend HOURS       put the deadline off to HOURS from now, never to an earlier one without --shorten
    deadman.py touch              count as used at this moment
    deadman.py arm                what provisioning does: take a scheduled shutdown over, allow for the installation
    deadman.py watch              what lab-deadman.service runs

Standard library and the system's Python (3.10 or newer) only; needs no network and nobody's machine but this one.

Time. The deadline is kept as wall-clock time. While the machine is up, what counts down is the clock since boot,
which nobody can set: when the wall clock is set, the deadline moves with it, and the time left stays what it was.
Over a reboot the wall clock counts, and one that went back leaves the time left as it was last seen. A deadline
that passed while the machine was off leaves `GRACE_S` after the boot, so that whoever started it can put it off.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

STATE_FORMAT = 1
UNIT = "lab-deadman.service"
RUN_UNIT = "labctl-run.service"
WARNINGS_S = (600, 120)  # before the end, to everybody who is logged in
GRACE_S = 600.0
# Provisioning is no run and may take longer than a machine may idle; `touch` at its end cuts this short.
PROVISION_S = 3600.0
TICK_S = 15.0
LOCK_S = 10.0
CLOCK_SET_S = (
    1.0  # the wall clock was set when it left the one since boot by more than this within a tick
)
FUTURE_S = 60.0  # a file from further ahead says nothing of when it was written
EXTEND_MAX_HOURS = 24.0 * 366


@dataclass(frozen=True)
class Places:
    """Files that are read and written.

    Attributes:
        config: What the role asks for.
        state: What is armed; a lock lies beside it.
        runs: Directories of runs.
        motd: Line for the next login.
        scheduled: systemd's own scheduled shutdown.
        boot: Name of this boot. The kernel's own is another one inside of a sandbox where a container has its own.
    """

    config: Path = Path("/etc/lab-deadman.json")
    state: Path = Path("/var/lib/lab-deadman/state.json")
    runs: Path = Path("/var/lib/labctl/runs")
    motd: Path = Path("/run/motd.d/60-lab-deadman")
    scheduled: Path = Path("/run/systemd/shutdown/scheduled")
    boot: Path = Path("/run/lab-deadman/boot")


@dataclass(frozen=True)
class Config:
    """What was asked for.

    Attributes:
        max_hours: From the first arming to the deadline; None for no deadline.
        idle_minutes: Without a run until the machine ends; None for ever.
    """

    max_hours: float | None
    idle_minutes: float | None


@dataclass(frozen=True)
class Instant:
    """One moment on both clocks.

    Attributes:
        unix_s: Wall clock.
        boot_s: Clock since boot, sleep included; nobody can set it.
        boot_id: Name of this boot.
    """

    unix_s: float
    boot_s: float
    boot_id: str


@dataclass(frozen=True)
class State:
    """What is armed, as it stands in the state file.

    Attributes:
        armed_unix_s: When this machine was armed first.
        max_hours: Of the configuration that the deadline comes from.
        deadline_unix_s: When the machine ends; None for never.
        used_unix_s: When it was last known to be in use.
        busy_until_unix_s: Until then it counts as in use; None without such an allowance.
        seen_unix_s: When this was last looked at, wall clock.
        seen_boot_s: The same moment on the clock since boot.
        boot_id: The boot of that moment.
        warned_s: The warning told last, seconds before the end; None before the first.
    """

    armed_unix_s: float
    max_hours: float | None
    deadline_unix_s: float | None
    used_unix_s: float
    busy_until_unix_s: float | None
    seen_unix_s: float
    seen_boot_s: float
    boot_id: str
    warned_s: int | None = None

    def moved(self, by_s: float) -> State:
        """Return the state with every wall-clock time moved."""
        times = {
            name: value + by_s
            for name, value in dataclasses.asdict(self).items()
            if name.endswith("_unix_s") and value is not None
        }
        return replace(self, **times)


@dataclass(frozen=True)
class End:
    """When the machine ends as things stand.

    Attributes:
        unix_s: Wall clock.
        why: In words.
    """

    unix_s: float
    why: str


def armed(config: Config, now: Instant) -> State:
    """Return the state of a machine that is armed for the first time."""
    hours = config.max_hours
    return State(
        armed_unix_s=now.unix_s,
        max_hours=hours,
        deadline_unix_s=None if hours is None else now.unix_s + hours * 3600,
        used_unix_s=now.unix_s,
        busy_until_unix_s=None,
        seen_unix_s=now.unix_s,
        seen_boot_s=now.boot_s,
        boot_id=now.boot_id,
    )


def at(state: State, now: Instant) -> State:
    """Return the state as it is now: clocks that were set, and a boot in between, are accounted for."""
    passed_s = now.unix_s - state.seen_unix_s
    if now.boot_id == state.boot_id:
        set_by_s = passed_s - (now.boot_s - state.seen_boot_s)
        if abs(set_by_s) > CLOCK_SET_S:
            state = state.moved(set_by_s)
    else:
        if passed_s < 0:
            state = state.moved(passed_s)
        state = replace(state, used_unix_s=now.unix_s, busy_until_unix_s=None, warned_s=None)
        if state.deadline_unix_s is not None and state.deadline_unix_s < now.unix_s:
            state = replace(state, deadline_unix_s=now.unix_s + GRACE_S)
    return replace(state, seen_unix_s=now.unix_s, seen_boot_s=now.boot_s, boot_id=now.boot_id)


def configured(state: State, config: Config, now: Instant) -> State:
    """Return the state after a change of the configuration: it never puts a deadline off."""
    hours = config.max_hours
    if hours == state.max_hours:
        return state
    deadline = state.deadline_unix_s
    if hours is None:
        deadline = None
    elif deadline is None:
        deadline = now.unix_s + hours * 3600
    elif state.max_hours is None or hours < state.max_hours:
        deadline = min(deadline, max(state.armed_unix_s + hours * 3600, now.unix_s + GRACE_S))
    return replace(state, max_hours=hours, deadline_unix_s=deadline)


def extended(state: State, hours: float, now: Instant, *, shorten: bool) -> State:
    """Return the state with the deadline `hours` from now; an earlier one than it is only if `shorten`."""
    deadline = state.deadline_unix_s
    if deadline is not None:
        wanted = now.unix_s + hours * 3600
        deadline = wanted if shorten else max(deadline, wanted)
    return replace(state, deadline_unix_s=deadline, used_unix_s=now.unix_s)


def ends(state: State, config: Config) -> list[End]:
    """Return when the machine would end, the earliest first; empty for never."""
    found = []
    if state.deadline_unix_s is not None:
        found.append(End(state.deadline_unix_s, "its deadline"))
    if config.idle_minutes is not None:
        since = max(state.used_unix_s, state.busy_until_unix_s or 0.0)
        found.append(
            End(since + config.idle_minutes * 60, f"{config.idle_minutes:g} minutes without a run")
        )
    return sorted(found, key=lambda end: end.unix_s)


def due_warning(warned_s: int | None, left_s: float) -> tuple[int | None, bool]:
    """Return which warning the time left belongs to (None for none yet), and whether it has to be told now."""
    due = min((each for each in WARNINGS_S if left_s <= each), default=None)
    return due, due is not None and (warned_s is None or due < warned_s)


def status(
    state: State | None, config: Config | None, *, running: bool, booted_unix_s: float
) -> dict[str, Any]:
    """Return what `status` prints."""
    idle_minutes = None if config is None else config.idle_minutes
    deadline = None if state is None else state.deadline_unix_s
    return {
        "armed": running and (deadline is not None or idle_minutes is not None),
        "deadline_unix_s": deadline,
        "idle_minutes": idle_minutes,
        "idle_since_unix_s": None if state is None or idle_minutes is None else state.used_unix_s,
        "booted_unix_s": booted_unix_s,
    }


class Node:
    """The machine itself: its clocks, files, units and people."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = places or Places()

    def now(self) -> Instant:
        """Return this moment."""
        return Instant(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self.boot_id())

    def boot_id(self) -> str:
        """Return the name of this boot, given at the first question after it.

        Raises:
            OSError: It can be neither read nor given.
        """
        path = self.places.boot
        with contextlib.suppress(FileNotFoundError):
            if found := path.read_text().strip():
                return found
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(f"{uuid.uuid4()}\n")
        part.replace(path)
        return path.read_text().strip()

    def booted_unix_s(self) -> float:
        """Return when process 1 began: in a container the kernel's boot is the host's."""
        fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
        start_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, counted from 1
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - start_s)

    def config(self) -> Config | None:
        """Return what is asked for, None where it cannot be read."""
        try:
            data = json.loads(self.places.config.read_text())
            return Config(_positive(data["max_hours"]), _positive(data["idle_minutes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def load(self) -> State | None:
        """Return what is armed, None where nothing is or it cannot be read."""
        try:
            data = json.loads(self.places.state.read_text())
            if data.pop("format") != STATE_FORMAT:
                return None
            state = State(**data)
            # Arithmetic that fails here would fail in every later look.
            return (
                state if math.isfinite(state.moved(0.0).seen_boot_s + state.seen_unix_s) else None
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, state: State) -> None:
        """Write what is armed, whole or not at all."""
        text = json.dumps({"format": STATE_FORMAT, **dataclasses.asdict(state)}, indent=2)
        part = self.places.state.with_suffix(".part")
        with part.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.places.state)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from changing the state.

        Raises:
            OSError: It cannot be locked, or another process kept it locked for `LOCK_S`.
        """
        path = self.places.state.with_name("lock")
        give_up_s = time.monotonic() + LOCK_S
        with path.open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up_s:
                        raise TimeoutError(0, "another process keeps it locked", path) from None
                    time.sleep(0.05)
            yield

    def last_written_unix_s(self, now: Instant) -> float:
        """Return when a run's directory or a file in it was last written, 0 if none was."""
        newest = 0.0
        with contextlib.suppress(OSError):
            for run in os.scandir(self.places.runs):
                for path in (run.path, *_children(run.path)):
                    with contextlib.suppress(OSError):
                        written = Path(path).lstat().st_mtime
                        if written <= now.unix_s + FUTURE_S:
                            newest = max(newest, min(written, now.unix_s))
        return newest

    def active(self, unit: str) -> bool:
        """Tell whether a unit runs, starts or stops."""
        said = _output("systemctl", "is-active", unit)
        return said in {"active", "activating", "deactivating", "reloading"}

    def in_use(self, state: State, now: Instant) -> State:
        """Return the state with what the node's runs say of its use."""
        used = now.unix_s if self.active(RUN_UNIT) else self.last_written_unix_s(now)
        return replace(state, used_unix_s=max(state.used_unix_s, used))

    def scheduled_unix_s(self) -> float | None:
        """Return when systemd's own scheduled shutdown powers the machine off, None without one."""
        try:
            rows = dict(
                row.split("=", 1)
                for row in self.places.scheduled.read_text().splitlines()
                if "=" in row
            )
            if rows.get("MODE") not in {"poweroff", "halt"}:
                return None
            return int(rows["USEC"]) / 1e6
        except (OSError, ValueError, KeyError):
            return None

    def tell(self, text: str) -> None:
        """Say it to everybody who is logged in, and in the journal."""
        print(text, flush=True)
        _output("wall", text)

    def post(self, text: str) -> None:
        """Put the line for the next login."""
        with contextlib.suppress(OSError):
            if not self.places.motd.is_file() or self.places.motd.read_text() != text:
                self.places.motd.write_text(text)

    def power_off(self) -> None:
        """Have systemd start poweroff.target, as `systemctl poweroff` does: it takes this signal without D-Bus."""
        os.kill(1, signal.SIGRTMIN + 4)


def _positive(value: Any) -> float | None:
    number = float(value or 0)
    if not math.isfinite(number):
        raise ValueError(value)
    return number if number > 0 else None


def _children(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder)]
    except OSError:
        return []


def _output(*argv: str) -> str:
    """Return what a program printed, "" where it cannot be run."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _clock_text(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _time_left_text(left_s: float) -> str:
    if left_s >= 90:
        return f"{round(left_s / 60)} minutes"
    return f"{max(0, round(left_s))} seconds"


class Watch:
    """Looks at the state again and again, warns, and ends the machine."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.state: State | None = (
            None  # what is armed, should the file be lost or the disk be full
        )
        self.config = Config(None, None)

    def look(self) -> float:
        """Look once, and act; return the seconds until the next look."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(self.node.locked())
            now = self.node.now()
            self.config = self.node.config() or self.config
            state = self.node.load() or self.state or armed(self.config, now)
            state = configured(at(state, now), self.config, now)
            first = next(iter(ends(state, self.config)), None)
            if (
                self.config.idle_minutes is not None
                and first
                and first.unix_s - now.unix_s <= WARNINGS_S[0]
            ):
                state = self.node.in_use(state, now)
                first = next(iter(ends(state, self.config)), None)
            left_s = math.inf if first is None else first.unix_s - now.unix_s
            state = replace(state, warned_s=(warning := due_warning(state.warned_s, left_s))[0])
            self.state = state
            with contextlib.suppress(OSError):
                self.node.save(state)
        if first is None:
            self.node.post("")
            return TICK_S
        if left_s <= 0:
            self.node.tell(f"This machine powers itself off now: {first.why}.")
            self.node.power_off()
            return TICK_S
        when = f"at {_clock_text(first.unix_s)} ({first.why})"
        remedy = "To put it off: labctl extend HOURS"
        self.node.post(f"This machine powers itself off {when}. {remedy}\n")
        if warning[1]:
            self.node.tell(
                f"This machine powers itself off in {_time_left_text(left_s)}, {when}. {remedy}"
            )
        marks = [left_s - mark for mark in (*WARNINGS_S, 0) if left_s > mark]
        return min(TICK_S, *marks)

    def run(self) -> NoReturn:
        """Look until the machine ends."""
        wait_s = self.look()
        _notify("READY=1")
        while True:
            time.sleep(max(0.2, wait_s))
            wait_s = self.look()
            _notify("WATCHDOG=1")


def _notify(text: str) -> None:
    """Tell systemd that the service is ready, or alive."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(text.encode(), address)


def arm(node: Node) -> bool:
    """Take a scheduled shutdown over and allow for the installation that follows; tell whether a deadline moved.

    The earlier of both deadlines stays. The scheduled shutdown is cancelled once the other is written.
    """
    with node.locked():
        now = node.now()
        config = node.config() or Config(None, None)
        before = node.load()
        state = configured(at(before, now), config, now) if before else armed(config, now)
        scheduled = node.scheduled_unix_s()
        if scheduled is not None:
            state = replace(
                state, deadline_unix_s=min(state.deadline_unix_s or math.inf, scheduled)
            )
        state = replace(state, used_unix_s=now.unix_s, busy_until_unix_s=now.unix_s + PROVISION_S)
        node.save(state)
        if scheduled is not None:
            _output("shutdown", "-c")
    return scheduled is not None or before is None


def _change(node: Node, hours: float | None, *, shorten: bool) -> None:
    """Extend by hours, or only count as used."""
    with node.locked():
        now = node.now()
        state = node.load()
        if state is None:
            _fail("no timer is armed here", f"{UNIT} to run", "ansible-playbook provision.yml")
        state = at(state, now)
        if hours is None:
            state = replace(state, used_unix_s=now.unix_s, busy_until_unix_s=None)
        else:
            state = extended(state, hours, now, shorten=shorten)
        node.save(state)


def _fail(found: str, expected: str, do: str) -> NoReturn:
    print(f"deadman.py: {found}\n  expected  {expected}\n  do        {do}", file=sys.stderr)
    sys.exit(1)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours <= EXTEND_MAX_HOURS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of hours from above 0 to {EXTEND_MAX_HOURS:g}"
        )
    return hours


def main(argv: list[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="deadman.py", description="Power this machine off in time."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("status", "touch", "arm", "watch"):
        verbs.add_parser(name)
    extend = verbs.add_parser("extend")
    extend.add_argument("hours", type=_hours)
    extend.add_argument("--shorten", action="store_true", help="also to an earlier deadline")
    options = parser.parse_args(argv)

    node = Node()
    if options.verb == "watch":
        Watch(node).run()
    changed = False
    try:
        if options.verb == "arm":
            changed = arm(node)
        elif options.verb != "status":
            _change(
                node, getattr(options, "hours", None), shorten=getattr(options, "shorten", False)
            )
        now = node.now()
        state = node.load()
        state = None if state is None else node.in_use(at(state, now), now)
    except OSError as error:
        _fail(
            f"{error.filename or node.places.state}: {error.strerror or error}",
            "root's rights and a disk with room",
            "run it with sudo; free some space",
        )
    said = status(
        state, node.config(), running=node.active(UNIT), booted_unix_s=node.booted_unix_s()
    )
    print(json.dumps({**said, "changed": changed} if options.verb == "arm" else said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
