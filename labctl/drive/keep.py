"""Artefacts first: before a lab's machines go, every run's files are here, with equal digests on both sides.

The kernel caches come too where the inventory asks for it: they save time, so that nothing waits for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.drive import stop
from labctl.drive.interrupts import Interrupts
from labctl.drive.links import Links, Machine, Opener, RealOpener
from labctl.drive.places import Places, places
from labctl.drive.run import attach
from labctl.drive.session import Session, Writer
from labctl.drive.timing import Clock, SystemClock, Timeline
from labctl.errors import (
    LabBusyError,
    LabctlError,
    RefusedError,
    UnreachableError,
    UserInterruptError,
)
from labctl.lab.home import Home
from labctl.lab.model import Lab
from labctl.node import wire
from labctl.playbook import load_lab, run_playbook
from labctl.remote.follow import Follower
from labctl.remote.units import EXIT_FILE
from labctl.runs.observer import Observer, Silent
from labctl.runs.record import (
    EVENTS_FILE,
    LOGS_DIR,
    STEPS_FILE,
    TRACE_DIR,
    RunRecord,
    StoredFile,
)
from labctl.runs.store import Entry, RunStore, is_run_id

_HASH_S = 600.0
_CACHES_S = 600.0
_CACHES_ASKED = b"cuda_kernel_cache_kept"
# Every file of a run that its record should have, one `digest  ./run/name` each, NUL between them.
_DIGESTS = (
    'cd "$1" 2>/dev/null || exit 0; exec find . -mindepth 2 -type f '
    "\\( -name events.jsonl -o -name stdout -o -name stderr -o -name exit.json -o -path './*/trace/*' \\) "
    "-exec sha256sum -z -- {} +"
)
_STREAMS = (wire.STDOUT_FILE, wire.STDERR_FILE, EXIT_FILE)


@dataclass(frozen=True, slots=True)
class Kept:
    """What was seen to before machines go.

    Attributes:
        text: One line for the receipt, "" where no run is stored.
        lost: Ids of runs that are not whole here, given up by `--force`.
    """

    text: str
    lost: tuple[str, ...] = ()


def keep_runs(
    home: Home,
    lab: str,
    *,
    force: bool,
    observer: Observer | None = None,
    opener: Opener | None = None,
    model: Lab | None = None,
    clock: Clock | None = None,
) -> Kept:
    """Bring home what runs left on the nodes, and compare all digests.

    Args:
        home: Where the lab is.
        lab: Its name.
        force: Go on where something cannot be had.
        observer: Is told of it.
        opener: Makes executors.
        model: The lab, if it has been read already.
        clock: Where time comes from.

    Raises:
        LabBusyError: Another labctl follows a run.
        RefusedError: A run still goes on, its node is out of reach, or digests differ.
    """
    store = RunStore(home.local_dir(lab))
    entries = [each for each in store.entries() if each.record is not None]
    if not entries:
        return Kept("")
    followed = [each.run_id for each in entries if each.state == "running"]
    if followed and not force:
        raise LabBusyError(
            f"another labctl follows run {', '.join(followed)}",
            expected="a lab without a run",
            do=f"wait for its end, or labctl cancel {followed[0]}; --force loses it",
        )
    keeper = _Keeper(observer or Silent(), store, clock or SystemClock())
    try:
        keeper.look(model or load_lab(home, lab), opener or RealOpener(), entries)
    except LabctlError as error:
        if not isinstance(error, UnreachableError) and error.exit_code == 130:
            raise
        keeper.out_of_reach(entries, error)
    return keeper.verdict(len(entries), force=force)


def first_step_unix_s(local_dir: Path, since_unix_s: float) -> float | None:
    """Return when the first step of a lab's runs began after a time, by its node's clock; None if there was none.

    Args:
        local_dir: `.lab/<lab>`.
        since_unix_s: Runs of before are of machines that are gone.
    """
    found: list[float] = []
    for entry in RunStore(local_dir).entries():
        if entry.record is None or entry.record.origin.unix_s < since_unix_s:
            continue
        start_s = _first_step(entry.path, entry.record)
        found += [] if start_s is None else [start_s]
    return min(found, default=None)


def keep_kernel_caches(home: Home, lab: str) -> str:
    """Fetch the nodes' kernel caches where the inventory says what becomes of them.

    Args:
        home: Where the lab is.
        lab: Its name.

    Returns:
        Why some could not be had, "" where they could or none were asked for.
    """
    folder = home.inventory(lab)
    files = (path for path in folder.rglob("*") if path.is_file())
    if not any(_CACHES_ASKED in path.read_bytes() for path in files):
        return ""
    try:
        outcome = run_playbook(home, lab, "playbooks/keep_kernel_cache.yml", timeout_s=_CACHES_S)
    except UserInterruptError:
        raise
    except LabctlError as error:
        return error.found
    return (
        "" if outcome.rc == 0 else f"keep_kernel_cache.yml ended with {outcome.rc}: {outcome.log}"
    )


class _Keeper:
    """Collects what is whole, what is not and why."""

    def __init__(self, observer: Observer, store: RunStore, clock: Clock) -> None:
        self._observer = observer
        self._clock = clock
        self._store = store
        self._problems: dict[str, str] = {}
        self._unseen: list[str] = []
        self._files = 0
        self._collected: list[str] = []
        self._strangers: list[str] = []

    def look(self, lab: Lab, opener: Opener, entries: Sequence[Entry]) -> None:
        """See to every run while the lab stands."""
        links, where = Links(lab, opener), places(lab)
        try:
            for entry in entries:
                if entry.readable().open:
                    self._bring_to_end(lab, links, entry)
            digests = links.client.call(lambda machine: _digests(machine, where))
            for entry in self._store.entries():
                if entry.record is not None and entry.run_id not in self._problems:
                    self._compare(links, where, entry, digests.pop(entry.run_id, {}))
            self._strangers = sorted(digests)
        finally:
            links.close()

    def out_of_reach(self, entries: Iterable[Entry], error: LabctlError) -> None:
        """Note what can be said of runs without their node: what was collected whole was equal then."""
        for entry in entries:
            record = entry.readable()
            if entry.run_id in self._problems or entry.run_id in self._collected:
                continue
            if record.open or _lacks(record):
                self._problems[entry.run_id] = f"its files are out of reach: {error.found}"
            else:
                self._unseen.append(entry.run_id)

    def verdict(self, runs: int, *, force: bool) -> Kept:
        """Return the line for the receipt.

        Raises:
            RefusedError: A run is not whole here.
        """
        if self._problems and not force:
            first = next(iter(self._problems))
            ids = ", ".join(self._problems)
            raise RefusedError(
                f"run {ids} is not whole on this machine: {self._problems[first]}",
                expected="every file of every run here, with the digest that it has on its node",
                do=f"labctl attach {first} or labctl cancel {first}, or labctl down --force, which loses it",
            )
        if self._problems:
            text = f"{runs} runs, LOST of them: {', '.join(self._problems)}"
        elif self._unseen:
            text = f"{runs} runs, their nodes out of reach; every file's digest was equal when it was collected"
        else:
            text = f"{runs} runs, every file's digest equal on both sides ({self._files} files)"
        if self._collected:
            text += f"; {len(self._collected)} collected now"
        if self._strangers:
            text += f"; of {', '.join(self._strangers)} there is no record here: removed, or another user's"
        return Kept(text, tuple(self._problems))

    def _bring_to_end(self, lab: Lab, links: Links, entry: Entry) -> None:
        """Collect an open run whose client has ended."""
        run_id = entry.run_id
        if links.client.call(lambda machine: stop.is_running(machine, run_id)):
            self._problems[run_id] = "it is still running"
            return
        self._observer.stage(f"collecting run {run_id}")
        with Interrupts() as interrupts:
            timeline = Timeline(self._clock)
            session = Session(lab, links, self._clock, timeline, self._observer, interrupts)
            record = attach(session, entry)
        if record.open:
            message = record.failure.message if record.failure is not None else record.outcome
            self._problems[run_id] = message
        else:
            self._collected.append(run_id)

    def _compare(self, links: Links, where: Places, entry: Entry, distant: dict[str, str]) -> None:
        """Compare a run's files on its node with those here, and fetch those that are missing."""
        record = entry.readable()
        stored = {each.path: each.sha256 for each in record.files}
        fresh: list[StoredFile] = []
        for name, digest in sorted(distant.items()):
            path = _path_here(name, record)
            if path not in stored:
                fetched = self._fetch(links, where, entry, name, path)
                if fetched is None:
                    return
                fresh.append(fetched)
                stored[path] = fetched.sha256
            if stored[path] != digest or _digest_here(entry.path / path) != digest:
                self._problems[entry.run_id] = f"{path} is not what {name} on its node is"
                return
            self._files += 1
        if fresh:
            Writer(entry.path, record).write(files=(*record.files, *fresh))
            self._collected.append(entry.run_id)

    def _fetch(
        self, links: Links, where: Places, entry: Entry, name: str, path: str
    ) -> StoredFile | None:
        local, remote = entry.path / path, f"{where.directory(entry.run_id)}/{name}"
        local.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            copied = links.client.call(
                lambda machine: Follower(machine.executor, remote, local).finish()
            )
        except UnreachableError:
            raise
        except LabctlError as error:
            self._problems[entry.run_id] = error.found
            return None
        return StoredFile(path, entry.readable().remote.node, copied.size, copied.sha256)


def _digests(machine: Machine, where: Places) -> dict[str, dict[str, str]]:
    """Return digest by file name by run id of what is on the client's node."""
    done = machine.executor.run(["sh", "-c", _DIGESTS, "sh", where.runs_dir], timeout_s=_HASH_S)
    done.check(machine.node.name, "sha256sum of the runs' files")
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.decode("utf-8", "surrogateescape").split("\0"):
        digest, _, path = line.partition("  ./")
        run_id, _, name = path.partition("/")
        if name and is_run_id(run_id):
            found.setdefault(run_id, {})[name] = digest
    return found


def _path_here(name: str, record: RunRecord) -> str:
    """Return where a file of a run's directory stands in its record."""
    if name == EVENTS_FILE or name.startswith(f"{TRACE_DIR}/"):
        return name
    return f"{LOGS_DIR}/{record.remote.node}/{name}"


def _lacks(record: RunRecord) -> bool:
    """Say whether a run that was started has files that its record has not."""
    if record.failure is not None and record.failure.kind == "start-failed":
        return False
    stored = {each.path for each in record.files}
    return any(
        path not in stored
        for path in (EVENTS_FILE, *(f"{LOGS_DIR}/{record.remote.node}/{each}" for each in _STREAMS))
    )


def _digest_here(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _first_step(folder: Path, record: RunRecord) -> float | None:
    """Return when a run's first step began, by labctl's clock."""
    try:
        with (folder / STEPS_FILE).open(encoding="utf-8") as file:
            data: Any = json.loads(file.readline() or "null")
        start_s = float(data["start_s"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return start_s - record.offset_s(record.remote.node)
