"""What the commands that work on a run share: opening a session, finding a run, reporting its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from labctl.cli.runs import store_of
from labctl.cli.show import print_run
from labctl.console import out, out_json, say
from labctl.drive.interrupts import Interrupts
from labctl.drive.links import Links, RealOpener
from labctl.drive.live import RunTail, require_followed, server_lines
from labctl.drive.plan import RunOptions
from labctl.drive.session import Session
from labctl.drive.timing import SystemClock, Timeline, process_age_s
from labctl.errors import (
    ConnectionLostError,
    DeadlineError,
    LabctlError,
    RemoteCommandError,
    UsageError,
    UserInterruptError,
    WrongResultError,
)
from labctl.lab.home import Home
from labctl.playbook import load_lab
from labctl.runs.record import RunRecord
from labctl.runs.store import Entry, RunStore
from labctl.views.logs import LogLine, record_lines
from labctl.views.progress import make_progress
from labctl.views.since import parse_since

_OWNER_ENDS_S = 60.0
_POLL_S = 0.25


@contextmanager
def open_session(
    lab: str | None, *, show_output: bool = False, reads: bool = False
) -> Iterator[Session]:
    """Read the lab, take Ctrl-C over, and open links to all nodes.

    Args:
        lab: Its name, None for the active one.
        show_output: Show what the client writes.
        reads: The command starts and ends nothing.

    Raises:
        ConfigError: There is no such lab.
    """
    clock = SystemClock()
    timeline = Timeline(clock, age_s=process_age_s())
    observer = make_progress(show_output=show_output)
    home = Home.find()
    name = home.choose(lab)
    with Interrupts(reads=reads) as interrupts:
        with timeline.span("inventory"):
            observer.stage("reading the inventory")
            model = load_lab(home, name)
            home.make_local_dir(name)
        links = Links(model, RealOpener())
        try:
            yield Session(model, links, clock, timeline, observer, interrupts)
        finally:
            observer.close()
            links.close()


def find_run(lab: str | None, run: str) -> tuple[RunStore, Entry]:
    """Return the store of a lab and one of its runs.

    Raises:
        ConfigError: There is no such lab.
        RecordError: There is no such run, or it cannot be read.
    """
    store = store_of(lab)
    return store, store.find(run)


def report(store: RunStore, run_id: str, *, json: bool) -> None:
    """Print a run's result, then raise what its outcome means for the exit code.

    Raises:
        LabctlError: The outcome is neither `ok` nor `running`.
    """
    record = print_run(store, run_id, json=json, head=False)
    if (error := error_of(record)) is not None:
        raise error


def run_both(lab: str | None, options: RunOptions, pairs: int | None, *, json: bool) -> None:
    """Run on both devices, print their comparison, then raise what ended a run or kept one from starting.

    Raises:
        LabctlError: A run could not be started, or did not end ok.
    """
    from labctl.drive.pair import DEFAULT_PAIRS, run_pairs
    from labctl.views.pair import pair_lines, pair_object

    home = Home.find()
    progress = make_progress(show_output=False)
    try:
        paired = run_pairs(
            home,
            home.choose(lab),
            options,
            DEFAULT_PAIRS if pairs is None else pairs,
            observer=progress,
        )
    finally:
        progress.close()
    if json:
        out_json(pair_object(paired.found))
    else:
        out("\n".join(pair_lines(paired.found)))
    error = paired.error
    if error is None and paired.failed is not None:
        error = error_of(paired.failed)
    if error is not None:
        raise error


def error_of(record: RunRecord) -> LabctlError | None:
    """Return the error that an outcome amounts to, None for `ok` and `running`."""
    kinds: dict[str, type[LabctlError]] = {
        "wrong": WrongResultError,
        "failed": RemoteCommandError,
        "timeout": DeadlineError,
        "lost": ConnectionLostError,
        "cancelled": UserInterruptError,
    }
    kind = kinds.get(record.outcome)
    if kind is None:
        return None
    failure, run_id = record.failure, record.run_id
    message = failure.message if failure is not None else record.outcome
    do = failure.do if failure is not None else None
    if record.outcome == "cancelled":
        return kind(
            f"run {run_id} was cancelled on {record.remote.node}; its logs are kept",
            do=f"labctl logs {run_id}",
        )
    if record.outcome == "lost":
        do = f"labctl attach {run_id}"
    return kind(f"run {run_id}: {message}", do=do or f"labctl logs {run_id}")


def wait_for_end(store: RunStore, run_id: str) -> None:
    """Wait until the labctl that follows a run has brought it to its end.

    Raises:
        DeadlineError: It has not after a minute.
    """
    say("the labctl that follows the run collects its logs")
    give_up_s = time.monotonic() + _OWNER_ENDS_S
    while store.find(run_id).state == "running":
        if time.monotonic() > give_up_s:
            raise DeadlineError(
                f"the labctl that follows run {run_id} has not finished after {_OWNER_ENDS_S:g} s",
                do=f"labctl runs show {run_id}",
            )
        time.sleep(_POLL_S)


def live_logs(
    lab: str | None, nodes: tuple[str, ...], *, follow: bool, since: str | None, json: bool
) -> None:
    """Print the join servers' journals.

    Raises:
        UsageError: The lab has no such node, or no standing join servers.
    """
    since_s = None if since is None else parse_since(since, time.time())
    with open_session(lab, reads=True) as session:
        check_nodes(nodes, [node.name for node in session.lab.nodes])
        if session.where.loopback:
            raise UsageError(
                "the loopback lab has join servers only while a run lasts", do="labctl logs last"
            )
        if nodes == (session.lab.client.name,):
            say(f"{nodes[0]} has no join server; labctl logs RUN has what its runs wrote")
        lines = server_lines(
            session.links,
            session.timeline,
            session.clock,
            nodes=nodes,
            since_s=since_s,
            follow=follow,
        )
        print_lines(lines, since_s, json=json, follow=follow)


def run_logs(
    lab: str | None,
    run: str,
    nodes: tuple[str, ...],
    *,
    follow: bool,
    since: str | None,
    json: bool,
) -> None:
    """Print the logs of a run.

    Raises:
        RecordError: There is no such run, or nobody follows it.
        UsageError: It had no such node.
    """
    since_s = None if since is None else parse_since(since, time.time())
    store, entry = find_run(lab, run)
    check_nodes(nodes, [node.name for node in entry.readable().nodes])
    if follow and entry.readable().open:
        require_followed(entry)
        lines = RunTail(store, entry, nodes, SystemClock()).lines()
    else:
        lines = record_lines(entry, nodes)
    print_lines(lines, since_s, json=json, follow=follow)


def print_lines(
    lines: Iterator[LogLine], since_s: float | None, *, json: bool, follow: bool
) -> None:
    """Print log lines on stdout, one a line, as JSON or as text; at once when they are followed."""
    for line in lines:
        if since_s is None or line.t_s >= since_s:
            sys.stdout.write((line.to_json() if json else line.printed()) + "\n")
            if follow:
                sys.stdout.flush()
    sys.stdout.flush()


def check_nodes(asked: tuple[str, ...], known: list[str]) -> None:
    """Check that `--node` names nodes.

    Raises:
        UsageError: One is none.
    """
    for name in asked:
        if name not in known:
            raise UsageError(f"--node {name}", expected=f"one of {', '.join(known)}")
