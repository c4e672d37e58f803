"""What every step of a run has at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labctl.drive.interrupts import Interrupts
from labctl.drive.links import Links
from labctl.drive.places import Places, places
from labctl.drive.timing import Clock, Timeline
from labctl.lab.model import Lab
from labctl.runs import owner
from labctl.runs.observer import Observer
from labctl.runs.record import RunRecord, write_record
from labctl.runs.store import RunStore


@dataclass(frozen=True, slots=True)
class Session:
    """One command that works on a run.

    Attributes:
        lab: The lab.
        links: Its nodes.
        clock: Where time comes from.
        timeline: Seconds after the command's start, and labctl's own phases.
        observer: Is told of everything.
        interrupts: Ctrl-C.
    """

    lab: Lab
    links: Links
    clock: Clock
    timeline: Timeline
    observer: Observer
    interrupts: Interrupts

    @property
    def store(self) -> RunStore:
        """The lab's run store."""
        return RunStore(self.lab.local_dir)

    @property
    def where(self) -> Places:
        """Where the lab's runs live on their node."""
        return places(self.lab)


@dataclass(slots=True)
class Writer:
    """The record of the run at hand: the one place that writes `run.json`.

    Attributes:
        folder: The record's directory.
        record: Its content, as written last.
        warnings: Warnings that go into the record with its end.
    """

    folder: Path
    record: RunRecord
    warnings: list[str] = field(default_factory=list)

    def write(self, **changed: Any) -> RunRecord:
        """Change fields of the record and write it, whole."""
        self.record = replace(self.record, **changed)
        write_record(self.folder, self.record)
        return self.record

    def take_over(self) -> None:
        """Make this process the run's owner."""
        self.write(outcome="running", owner=owner.this_process(), failure=None, wall_s=None)

    def warn(self, text: str) -> None:
        """Keep a warning for the record."""
        self.warnings.append(text)

    @contextmanager
    def tolerating(self, *errors: type[Exception]) -> Iterator[None]:
        """Turn errors of what is good to have into warnings."""
        try:
            yield
        except errors as error:
            self.warn(str(getattr(error, "found", error)))
