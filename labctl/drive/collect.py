"""Bringing home what a run left: its files with equal digests, join servers' journals, clocks, steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from labctl.analysis.steps import steps_of
from labctl.drive import start
from labctl.drive.clock import clock_sample
from labctl.drive.facts import with_hello
from labctl.drive.follow import STREAMS
from labctl.drive.links import Machine
from labctl.drive.places import JOIN_SERVICE, STATE_DIR, Places
from labctl.drive.servers import read_server_and_process
from labctl.drive.session import Session, Writer
from labctl.errors import LabctlError, UnreachableError
from labctl.node import wire
from labctl.remote.follow import Follower
from labctl.remote.journal import save_journal
from labctl.remote.units import EXIT_FILE
from labctl.runs import atomic
from labctl.runs.codec import encode
from labctl.runs.events import Event, read_events
from labctl.runs.record import (
    EVENTS_FILE,
    JOIN_PREFIX,
    JOURNAL_FILE,
    LOGS_DIR,
    STEPS_FILE,
    TRACE_DIR,
    ClockSample,
    RunRecord,
    StoredFile,
)

_LIST_S = 30.0
_JOURNAL_LEAD_S = 5.0
_MAX_TRACE_FILES = 1_000


@dataclass(frozen=True, slots=True)
class _Job:
    """What the nodes' threads need to know.

    Attributes:
        folder: The record.
        record: Its content.
        where: The lab's places.
    """

    folder: Path
    record: RunRecord
    where: Places


@dataclass(slots=True)
class _Haul:
    """What one node gave: files, and why others could not be had."""

    files: list[StoredFile] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect(session: Session, writer: Writer) -> dict[str, Any]:
    """Copy all that the run left on the nodes into its record.

    What cannot be had becomes a warning: a run is stored with what there is.

    Returns:
        The fields of the record that this changes.

    Raises:
        UnreachableError: Task 0's node is out of reach: its files can still be had later.
    """
    links, record = session.links, writer.record
    clock = [*record.clock, *_clocks(session, writer)]
    took_part = {state.node for state in record.servers_before}
    workers = [link for link in links.workers if link.node.name in took_part]
    after = []
    for future in [link.submit(read_server_and_process) for link in workers]:
        with writer.tolerating(LabctlError):
            after.append(future.result())
    if session.where.loopback:
        with writer.tolerating(LabctlError):
            start.stop_servers(links)
    record = replace(record, clock=tuple(clock))
    job = _Job(writer.folder, record, session.where)
    own = links.client.submit(lambda machine: _client_files(machine, job))
    theirs = [link.submit(lambda machine: _server_files(machine, job)) for link in workers]
    hauls = []
    for fetch in theirs:
        with writer.tolerating(LabctlError):
            hauls.append(fetch.result())
    hauls.insert(0, own.result())
    files = [file for haul in hauls for file in haul.files]
    writer.warnings += [problem for haul in hauls for problem in haul.problems]
    events = read_events(writer.folder)
    write_steps(writer.folder, events)
    return {
        "clock": record.clock,
        "servers_after": tuple(after),
        "files": tuple(files),
        "nodes": tuple(with_hello(node, events) for node in record.nodes),
    }


def write_steps(folder: Path, events: Sequence[Event]) -> None:
    """Write `steps.jsonl`: every step that the client reported, one a line."""
    text = "".join(json.dumps(encode(step)) + "\n" for step in steps_of(events))
    atomic.write_text(folder / STEPS_FILE, text)


def _clocks(session: Session, writer: Writer) -> list[ClockSample]:
    samples = []
    timeline = session.timeline
    for future in [link.submit(lambda m: clock_sample(m, timeline)) for link in session.links.all]:
        with writer.tolerating(LabctlError):
            samples.append(future.result())
    return samples


def _client_files(machine: Machine, job: _Job) -> _Haul:
    """Copy the client's events, streams, end and trace files, and compare digests."""
    node, directory = job.record.remote.node, job.record.remote.directory
    logs = job.folder / LOGS_DIR / node
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    haul = _Haul()
    wanted = {wire.EVENTS_FILE: job.folder / EVENTS_FILE}
    wanted |= {name: logs / name for name in (*STREAMS, EXIT_FILE)}
    with _noting(haul):
        for name in _trace_files(machine, directory):
            wanted[name] = job.folder / name
    for name, local in wanted.items():
        with _noting(haul):
            if machine.executor.size(f"{directory}/{name}") is not None:
                haul.files.append(_copy(machine, f"{directory}/{name}", local, job.folder))
    return haul


def _server_files(machine: Machine, job: _Job) -> _Haul:
    """Copy a join server's journal over the run; in the loopback lab its streams."""
    node = machine.node
    logs = job.folder / LOGS_DIR / node.name
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    haul = _Haul()
    with _noting(haul):
        if job.where.loopback:
            directory = job.where.join_directory(job.record.run_id, node)
            for name in STREAMS:
                local = logs / f"{JOIN_PREFIX}{name}"
                haul.files.append(_copy(machine, f"{directory}/{name}", local, job.folder))
        else:
            haul.files.append(_copy_journal(machine, job, logs / JOURNAL_FILE))
    return haul


def _copy_journal(machine: Machine, job: _Job, local: Path) -> StoredFile:
    """Have the node write the journal over the run to a file, copy that, and remove it there."""
    since_s = job.record.origin.unix_s + job.record.offset_s(machine.node.name) - _JOURNAL_LEAD_S
    distant = f"{STATE_DIR}/journal-{job.record.run_id}.jsonl"
    executor = machine.executor
    save_journal(executor, JOIN_SERVICE, distant, since_s=since_s, output="json")
    try:
        return _copy(machine, distant, local, job.folder)
    finally:
        executor.run(["rm", "-f", "--", distant], timeout_s=_LIST_S, sudo=True)


def _copy(machine: Machine, remote: str, local: Path, folder: Path) -> StoredFile:
    local.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    copied = Follower(machine.executor, remote, local).finish()
    path = local.relative_to(folder).as_posix()
    return StoredFile(path, machine.node.name, copied.size, copied.sha256)


def _trace_files(machine: Machine, directory: str) -> list[str]:
    """Return the names below trace/, relative to the run's directory; none when there is no such folder."""
    executor = machine.executor
    argv = ["find", f"{directory}/{TRACE_DIR}", "-type", "f", "-printf", f"{TRACE_DIR}/%P\\0"]
    found = executor.run(argv, timeout_s=_LIST_S)
    names = found.stdout.decode("utf-8", "surrogateescape").split("\0")
    safe = [each for each in names if each and ".." not in PurePosixPath(each).parts]
    return sorted(safe)[:_MAX_TRACE_FILES]


@contextmanager
def _noting(haul: _Haul) -> Iterator[None]:
    """Note what cannot be had of a node; that the node itself is out of reach goes on up."""
    try:
        yield
    except UnreachableError:
        raise
    except LabctlError as error:
        haul.problems.append(error.found)
