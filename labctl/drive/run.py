"""A run from its request to its record; attach enters where the run is followed, cancel where it is ended."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from labctl import __version__
from labctl.analysis.causes.device import products_on
from labctl.analysis.explain import explain
from labctl.drive import collect, push, start, stop
from labctl.drive.baseline import better_than
from labctl.drive.follow import Follow, Followed
from labctl.drive.links import Machine, Opener
from labctl.drive.outcome import Ending, judge
from labctl.drive.places import RUN_UNIT
from labctl.drive.plan import Request
from labctl.drive.preflight import Gate, Ready, doctor_gate, prepare
from labctl.drive.servers import read_own_server
from labctl.drive.session import Session, Writer
from labctl.drive.watch import ServerWatch, changes
from labctl.errors import (
    ConnectionLostError,
    LabBusyError,
    LabctlError,
    UnreachableError,
    UserInterruptError,
)
from labctl.lab.cluster import cluster_addresses
from labctl.node import bundle, wire
from labctl.runs import lab_files, owner
from labctl.runs.data import load
from labctl.runs.events import read_events
from labctl.runs.record import (
    RUN_FILE,
    Failure,
    RemoteRun,
    RunRecord,
    ServerState,
    UnitEnded,
    read_record,
)
from labctl.runs.store import Entry, owned
from labctl.views.terminal import head_line


def run(session: Session, request: Request, opener: Opener, gate: Gate = doctor_gate) -> RunRecord:
    """Do a run and return its record; with `detach`, return when it has started.

    Args:
        session: The command.
        request: What is to run.
        opener: Makes executors.
        gate: Runs the checks before the start.

    Raises:
        LabctlError: Nothing was started: a check failed, the lab is busy, or the start failed. The record of a
            start that failed is kept.
    """
    ready = prepare(session, request, opener, gate)
    session.observer.stage("checks", _checks_text(session, ready))
    for text in ready.notes:
        session.observer.note(f"warning {text}")
    folder = session.store.create_new(session.timeline.origin.unix_s)
    with owned(folder), _not_left_empty(session, folder):
        first = _first_record(session, request, ready, folder.name)
        writer = Writer(folder, first, list(ready.warnings))
        head = head_line(session.lab.name, request.parameters, writer.record.tasks, folder.name)
        session.observer.note(head)
        _start(session, request, writer)
        if request.detach:
            return writer.write(owner=None, spans=tuple(session.timeline.spans))
        return _to_the_end(session, writer)


def attach(session: Session, entry: Entry) -> RunRecord:
    """Follow a run again from where it was left, and return its record.

    Args:
        session: The command.
        entry: A run of this lab that is open.

    Raises:
        LabBusyError: Another labctl follows it.
    """
    with owned(entry.path):
        writer = _taken_over(session, entry)
        return _to_the_end(session, writer)


def cancel(session: Session, entry: Entry) -> RunRecord | None:
    """End a run on its node.

    Args:
        session: The command.
        entry: A run of this lab that is open.

    Returns:
        Its record, or None when another labctl follows it: that one brings it to its end.
    """
    run_id, where = entry.run_id, session.where
    session.links.client.call(lambda machine: stop.cancel_client(machine, where, run_id))
    try:
        return attach(session, entry)
    except LabBusyError:
        return None


def _checks_text(session: Session, ready: Ready) -> str:
    connect_s = next(each.duration_s for each in session.timeline.spans if each.phase == "connect")
    skipped = ready.checks.get("skipped", 0)
    counts = [f"{ready.checks.get('ok', 0)} ok"]
    if ready.failed_checks:
        names = ", ".join(f"{each.name} on {each.node}" for each in ready.failed_checks)
        counts.append(f"{len(ready.failed_checks)} failed ({names})")
    if skipped:
        counts.append(f"{skipped} skipped")
    parts = [", ".join(counts)]
    parts.append(f"connected in {connect_s:.1f} s")
    return " · ".join(parts)


def _first_record(session: Session, request: Request, ready: Ready, run_id: str) -> RunRecord:
    lab = session.lab
    return RunRecord(
        run_id=run_id,
        lab=lab.name,
        provider=lab.provider,
        outcome="running",
        parameters=request.parameters,
        tasks=request.tasks(lab),
        origin=session.timeline.origin,
        remote=RemoteRun(lab.client.name, session.where.directory(run_id), RUN_UNIT),
        nodes=ready.nodes,
        labctl_version=__version__,
        payload_sha256=hashlib.sha256(bundle.payload_bytes()).hexdigest(),
        spec_sha256=wire.spec_hash(cluster_addresses(lab)),
        tags=request.tags,
        owner=owner.this_process(),
        checks=ready.checks,
        clock=ready.clock,
        servers_before=ready.servers,
        failed_checks=ready.failed_checks,
        baseline=ready.baseline,
        lab_phases=lab_files.read_phases(lab.local_dir),
    )


def _start(session: Session, request: Request, writer: Writer) -> None:
    """Bring the client to its node and start it, or keep why not."""
    try:
        writer.write(spans=tuple(session.timeline.spans))
        with _alone(session):
            _push_and_start(session, request, writer)
    except BaseException as error:
        _not_started(session, writer, error)
        raise


def _not_started(session: Session, writer: Writer, error: BaseException) -> None:
    """Leave nothing behind on this machine, and in the record why there is no run."""
    run_id, where = writer.folder.name, session.where
    if isinstance(error, ConnectionLostError) and session.interrupts.run_id is not None:
        failure = Failure("connection-lost", error.found, "labctl attach goes on with it")
        writer.write(outcome="lost", failure=failure, **_closing(session))
        return
    if where.loopback:
        with suppress(LabctlError):
            start.stop_servers(session.links)
    if isinstance(error, LabBusyError):
        # Nothing of this run exists: it leaves no record either.
        with suppress(LabctlError):
            session.links.client.call(lambda machine: push.remove(machine, where, run_id))
        session.store.discard(writer.folder)
    elif isinstance(error, UserInterruptError):
        writer.write(
            outcome="cancelled", failure=Failure("cancelled", error.found), **_closing(session)
        )
    elif isinstance(error, LabctlError):
        failure = Failure("start-failed", error.found, error.do)
        writer.write(outcome="failed", failure=failure, **_closing(session))


def _push_and_start(session: Session, request: Request, writer: Writer) -> None:
    run_id, where, links = writer.folder.name, session.where, session.links
    plan = request.plan(run_id, session.lab)
    timeout_s = request.parameters.timeout_s
    with session.timeline.span("push"):
        links.client.call(start.refuse_if_busy)
        files = {
            wire.PLAN_FILE: (plan.to_json() + "\n").encode(),
            wire.PAYLOAD_FILE: bundle.payload_bytes(),
            start.SPEC_FILE: (wire.spec_text(plan.cluster) + "\n").encode(),
            **request.files,
        }
        links.client.call(lambda machine: push.forget_old_runs(machine, where))
        links.client.call(lambda machine: push.push(machine, where, run_id, files))
    if where.loopback and request.peers:
        with session.timeline.span("start_servers"):
            session.observer.stage("starting join servers")
            start.start_servers(links, where, run_id, timeout_s)
            writer.write(servers_before=_own_servers(session, run_id))
    with session.timeline.span("start"):
        session.interrupts.run_id = run_id  # from here on something may be running there
        state = links.client.call(
            lambda machine: start.start_client(machine, where, run_id, timeout_s)
        )
    remote = writer.record.remote
    writer.write(
        remote=RemoteRun(
            remote.node, remote.directory, remote.unit, state.boot_id, state.started_at_s
        ),
        spans=tuple(session.timeline.spans),
    )


def _own_servers(session: Session, run_id: str) -> tuple[ServerState, ...]:
    """Return the join servers of a loopback run, which are ready."""
    where = session.where

    def look(machine: Machine) -> ServerState:
        stdout = f"{where.join_directory(run_id, machine.node)}/{wire.STDOUT_FILE}"
        return read_own_server(machine, stdout)

    return tuple(link.call(look) for link in session.links.workers)


@contextmanager
def _not_left_empty(session: Session, folder: Path) -> Iterator[None]:
    """Take a run's directory back when an interrupt comes before there is anything to say of the run."""
    try:
        yield
    except BaseException:
        if not (folder / RUN_FILE).exists() and folder.exists():
            session.store.discard(folder)
        raise


@contextmanager
def _alone(session: Session) -> Iterator[None]:
    """Hold the loopback lab while join servers and client are started: units of two runs share their names."""
    if not session.where.loopback:
        yield
        return
    handle = os.open(session.lab.local_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _taken_over(session: Session, entry: Entry) -> Writer:
    record = read_record(entry.path)
    session.timeline.continue_from(record.origin, record.spans)
    writer = Writer(entry.path, record, [*record.warnings])
    writer.take_over()
    return writer


def _to_the_end(session: Session, writer: Writer) -> RunRecord:
    """Follow the run, collect what it left and finish its record."""
    record, timeline = writer.record, session.timeline
    session.interrupts.run_id = record.run_id
    remote, timeout_s = record.remote, record.parameters.timeout_s
    started_unix_s = record.origin.unix_s
    if remote.started_at_s is not None:
        started_unix_s = remote.started_at_s - record.offset_s(remote.node)
    began_s = timeline.now_s()
    ending = Follow(
        Followed(
            run_id=record.run_id,
            remote=remote,
            folder=writer.folder,
            where=session.where,
            deadline_unix_s=started_unix_s + timeout_s,
            timeout_s=timeout_s,
        ),
        session.links.client,
        ServerWatch(session.links, record.servers_before, session.clock),
        observer=session.observer,
        interrupts=session.interrupts,
        clock=session.clock,
    ).to_the_end()
    heard_s = _last_heard_s(writer, ending)
    timeline.add("notice", max(began_s, heard_s), timeline.now_s())
    if ending.why == "lost":
        return _lost(session, writer, ending)
    session.observer.stage("collecting")
    with timeline.span("collect"):
        try:
            collected = _collected(session, writer)
        except UnreachableError as error:
            ending = replace(ending, why="lost", detail=error.found)
        else:
            ending = _with_reboot(session, remote, ending)
    if ending.why == "lost":
        return _lost(session, writer, ending)
    return _finish(session, writer, ending, collected)


def _last_heard_s(writer: Writer, ending: Ending) -> float:
    """Return when the client ended, or when it was heard last if it left no end, seconds after the origin."""
    record = writer.record
    node = record.remote.node
    if ending.end is not None:
        return record.since_origin_s(node, ending.end.ended_at_s)
    events = read_events(writer.folder)
    return record.since_origin_s(node, events[-1].t_s) if events else 0.0


def _collected(session: Session, writer: Writer) -> dict[str, Any]:
    """Collect what the run left, over a new connection if the first one breaks."""
    try:
        return collect.collect(session, writer)
    except UnreachableError:
        session.links.client.reopen()
        return collect.collect(session, writer)


def _with_reboot(session: Session, remote: RemoteRun, ending: Ending) -> Ending:
    """Tell a client that went down with its node from one that a signal ended."""
    by_signal = ending.end is not None and ending.end.exit_code != "exited"
    if not (ending.why == "ended" and by_signal and remote.boot_id):
        return ending
    with suppress(LabctlError):
        state = session.links.client.call(lambda machine: machine.units.state(RUN_UNIT))
        if state.boot_id != remote.boot_id:
            return replace(ending, why="rebooted", detail=f"{remote.node} restarted in mid-run")
    return ending


def _lost(session: Session, writer: Writer, ending: Ending) -> RunRecord:
    verdict = judge(ending, (), (), has_result=False)
    return writer.write(outcome="lost", failure=verdict.failure, **_closing(session))


def _finish(
    session: Session, writer: Writer, ending: Ending, collected: dict[str, Any]
) -> RunRecord:
    verdict = judge(
        ending,
        read_events(writer.folder),
        changes(writer.record.servers_before, collected["servers_after"]),
        has_result=writer.record.parameters.experiment == "matpow",
    )
    writer.warnings += verdict.warnings
    end = ending.end
    record = writer.write(
        outcome=verdict.outcome,
        failure=verdict.failure,
        warnings=tuple(dict.fromkeys(writer.warnings)),
        unit_end=None
        if end is None
        else UnitEnded(end.result, end.exit_code, end.exit_status, end.ended_at_s),
        **collected,
        **_closing(session),
    )
    if record.outcome != "ok":
        return record
    beaten = _beaten(writer) if record.parameters.trace else ()
    if beaten:
        with suppress(OSError):
            lab_files.forget_baseline(session.lab.local_dir, keep_gpus=True)
    more = (*_gave_way(writer), *beaten)
    return writer.write(warnings=(*record.warnings, *more)) if more else record


def _gave_way(writer: Writer) -> tuple[str, ...]:
    """Return where products ran that were asked for on a GPU and allowed to run elsewhere."""
    parameters = writer.record.parameters
    if parameters.device != "gpu" or not parameters.soft_placement:
        return ()
    counts = products_on(explain(load(writer.folder, writer.record)))
    if not counts:
        return (
            (
                "a GPU was asked for with soft placement: without a traced step it is not known "
                "where the products ran"
            ),
        )
    elsewhere = sum(number for device, number in counts.items() if device != "GPU")
    told = f"a GPU was asked for, and {elsewhere} of {sum(counts.values())} products of a step ran elsewhere"
    return (f"{told}: soft placement gave way",) if elsewhere else ()


def _beaten(writer: Writer) -> tuple[str, ...]:
    """Return where the run did better than the lab's baseline says that it can: the baseline is too low."""
    if writer.record.baseline is None:
        return ()
    run = explain(load(writer.folder, writer.record))
    figures = better_than(writer.record.baseline, run.traces)
    told = (
        f"the baseline is too low ({', '.join(figures)}): the next run that traces measures it anew"
    )
    return (told,) if figures else ()


def _closing(session: Session) -> dict[str, Any]:
    """Return the fields that say that no labctl works on the run any more."""
    return {
        "owner": None,
        "spans": tuple(session.timeline.spans),
        "wall_s": session.timeline.now_s(),
    }
