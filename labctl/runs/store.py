"""The run store of a lab: `.lab/<lab>/runs/`, one directory a run."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from labctl.errors import LabBusyError, RecordError, RecordTooNewError, RefusedError
from labctl.runs import owner
from labctl.runs.record import RunRecord, read_record

LAST = "last"
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}\Z")


def new_run_id(unix_s: float) -> str:
    """Return a run id: UTC stamp and 6 random hex digits, e.g. `20261130T141502Z-3fa9c1`."""
    stamp = datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{secrets.token_hex(3)}"


def is_run_id(text: str) -> bool:
    """Return whether a text has the form of a run id."""
    return _RUN_ID.match(text) is not None


@dataclass(frozen=True, slots=True)
class Entry:
    """One directory of the store.

    Attributes:
        run_id: Its name.
        path: The directory.
        record: Its record, None if it cannot be read.
        problem: Why not, one line; "" if it can.
        too_new: It cannot because a newer labctl wrote it.
    """

    run_id: str
    path: Path
    record: RunRecord | None
    problem: str = ""
    too_new: bool = False

    def readable(self) -> RunRecord:
        """Return the record.

        Raises:
            RecordError: It cannot be read.
        """
        return read_record(self.path) if self.record is None else self.record

    @property
    def state(self) -> str:
        """`damaged`, `too-new`, `interrupted` (its labctl died), `detached`, or the record's outcome."""
        if self.record is None:
            return "too-new" if self.too_new else "damaged"
        if self.record.outcome != "running":
            return self.record.outcome
        if self.record.owner is None:
            return "detached"
        return "running" if owner.is_alive(self.record.owner) else "interrupted"


class RunStore:
    """The runs of one lab.

    Args:
        local_dir: `.lab/<lab>`; `runs/` below it need not exist.
    """

    def __init__(self, local_dir: Path) -> None:
        self.root = local_dir / "runs"

    def create(self, run_id: str) -> Path:
        """Make the directory of a new run and return it.

        Raises:
            FileExistsError: There is one of that id.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.root / run_id
        folder.mkdir(mode=0o700)
        return folder

    def create_new(self, unix_s: float) -> Path:
        """Make the directory of a new run under a fresh id; two made in one second differ."""
        while True:
            try:
                return self.create(new_run_id(unix_s))
            except FileExistsError:
                continue

    def entries(self) -> list[Entry]:
        """Return all runs, oldest first. A directory that cannot be read is an entry with its problem."""
        return sorted((self._entry(self.root / name) for name in self._names()), key=_age)

    def entry(self, run: str) -> Entry:
        """Return the run that an id, a unique prefix or `last` means, readable or not.

        Only the records that this takes are read.

        Raises:
            RecordError: There is none, or a prefix fits several.
        """
        names = self._names()
        if not names:
            raise RecordError(
                f"no run is stored in {self.root}",
                expected="at least one",
                do="labctl run, or choose another lab with --lab",
            )
        if run == LAST:
            return self._last(names)
        fitting = [each for each in names if each.startswith(run)] if run else []
        exact = [each for each in fitting if each == run]
        if len(exact or fitting) == 1:
            return self._entry(self.root / (exact or fitting)[0])
        if fitting:
            shown = ", ".join(fitting[:5])
            more = f" and {len(fitting) - 5} more" if len(fitting) > 5 else ""
            raise RecordError(
                f"{run!r} fits {len(fitting)} runs: {shown}{more}",
                expected="a run id, a prefix of only one, or `last`",
                do="give more of the id",
            )
        hint = "labctl runs list shows the ids"
        raise RecordError(
            f"no run {run!r} in {self.root}", expected="a run id, a prefix, or `last`", do=hint
        )

    def find(self, run: str) -> Entry:
        """Return a run that can be read.

        Raises:
            RecordError: There is none, a prefix fits several, or its record cannot be read.
        """
        found = self.entry(run)
        found.readable()
        return found

    def remove(self, run: str, *, force: bool = False) -> Path:
        """Remove a run's directory and return where it was.

        Args:
            run: Its id, a unique prefix or `last`.
            force: Also one that may still go on at its node, with no labctl that follows it.

        Raises:
            RecordError: There is no such run.
            RefusedError: A labctl follows it, or it may still go on.
        """
        found = self.entry(run)
        if found.state == "running":
            raise RefusedError(
                f"run {found.run_id} is running",
                expected="a run that has ended",
                do=f"labctl cancel {found.run_id}, or wait for its end",
            )
        if found.record is not None and found.record.open and not force:
            raise RefusedError(
                f"run {found.run_id} is {found.state}: it may still go on at {found.record.remote.node}",
                expected="a run that was brought to its end",
                do=f"labctl attach {found.run_id} or labctl cancel {found.run_id} first; "
                "--force if its lab is gone",
            )
        self.discard(found.path)
        return found.path

    def discard(self, folder: Path) -> None:
        """Remove a run's directory, whoever owns it.

        It is renamed first: what is left of a removal that was interrupted is no run any more.
        """
        doomed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def _names(self) -> list[str]:
        """Return the ids of all runs, sorted: oldest first, those of one second in any order."""
        try:
            with os.scandir(self.root) as found:
                return sorted(each.name for each in found if is_run_id(each.name) and each.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _last(self, names: Sequence[str]) -> Entry:
        """Return the newest run that can be read, else the newest."""
        newest = None
        for _, second in groupby(reversed(names), key=_second):
            entries = sorted((self._entry(self.root / name) for name in second), key=_age)
            newest = newest or entries[-1]
            readable = [each for each in entries if each.record is not None]
            if readable:
                return readable[-1]
        assert newest is not None  # noqa: S101 there is a name
        return newest

    def _entry(self, path: Path) -> Entry:
        try:
            return Entry(path.name, path, read_record(path))
        except RecordError as error:
            problem = "empty directory" if _is_empty(path) else error.found
            too_new = isinstance(error, RecordTooNewError)
            return Entry(path.name, path, None, problem, too_new)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold a run for this process; the kernel lets go of it when the process dies.

    Raises:
        LabBusyError: Another process holds it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LabBusyError(
                f"another labctl follows run {folder.name}",
                expected="one at a time",
                do=f"wait for it, or labctl cancel {folder.name}",
            ) from error
        yield
    finally:
        os.close(handle)


def _second(run_id: str) -> str:
    """Return the stamp of a run id: two runs may have the same."""
    return run_id[:16]


def _age(entry: Entry) -> tuple[str, float, str]:
    origin = entry.record.origin.unix_s if entry.record is not None else 0.0
    return _second(entry.run_id), origin, entry.run_id


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False
