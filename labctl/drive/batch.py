"""Many runs of several variants against one lab, interleaved, in one process; each is a normal record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from labctl.drive.interrupts import Interrupts
from labctl.drive.links import Links, Opener, RealOpener
from labctl.drive.plan import RunOptions, make_request
from labctl.drive.preflight import Gate, doctor_gate
from labctl.drive.run import run
from labctl.drive.session import Session
from labctl.drive.timing import Clock, SystemClock, Timeline
from labctl.errors import ConnectionLostError, LabBusyError, UsageError, UserInterruptError
from labctl.lab.home import Home
from labctl.lab.model import Lab
from labctl.playbook import load_lab
from labctl.runs.observer import Observer, Silent
from labctl.runs.record import RunRecord
from labctl.runs.store import Entry, RunStore

VARIANT_TAG = "variant"
BUSY_WAIT_S = 120.0
_BUSY_POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the experiment.

    Attributes:
        label: Its name in the result and in the tag `variant` of its runs.
        options: What is run; `tags` are kept, `detach` is not allowed.
    """

    label: str
    options: RunOptions


def run_batch(
    home: Home,
    lab_name: str,
    variants: Sequence[Variant],
    repeats: int,
    tags: Mapping[str, str],
    *,
    observer: Observer | None = None,
    on_run: Callable[[str, Entry], None] | None = None,
    opener: Opener | None = None,
    gate: Gate = doctor_gate,
    clock: Clock | None = None,
    lab: Lab | None = None,
) -> dict[str, list[Entry]]:
    """Run every variant `repeats` times and return the records by label, each list in order of time.

    The order turns round with every repeat (A B, B A, A B …), so that a slow drift of the machines falls on all
    variants alike. Inventory and SSH connections serve all runs; the checks are done before each. A lab that
    somebody else's run holds is waited for, up to `BUSY_WAIT_S`. A variant that did not end `ok` is not repeated.

    Args:
        home: Where the lab is.
        lab_name: Its name.
        variants: With different labels.
        repeats: At least 1.
        tags: For all records, beside `variant=<label>`.
        observer: Is told of each run's begin, and of nothing that goes on inside the runs.
        on_run: Gets label and record of each run that has ended; what it raises ends the batch.
        opener: Makes executors.
        gate: Runs the checks.
        clock: Where time comes from.
        lab: The lab, if it has been read already.

    Raises:
        UserInterruptError: Ctrl-C: the run at hand was ended on its node; the records so far are kept.
        ConnectionLostError: A run's node went out of reach in mid-run.
        UsageError: A variant's options do not fit the lab.
        LabctlError: A run could not be started.
    """
    _check(variants, repeats)
    clock = clock or SystemClock()
    opener = opener or RealOpener()
    watcher = observer or Silent()
    model = load_lab(home, lab_name) if lab is None else lab
    home.make_local_dir(lab_name)
    for each in variants:
        make_request(each.options).require_fits(model)
    order = interleaved([each.label for each in variants], repeats)
    by_label = {each.label: each for each in variants}
    done: dict[str, list[Entry]] = {each.label: [] for each in variants}
    links = Links(model, opener)
    try:
        for number, label in enumerate(order, 1):
            if any(entry.state != "ok" for entry in done[label]):
                continue
            watcher.stage(f"run {number} of {len(order)}  {label}")
            options = _tagged(by_label[label], tags)
            record = _one(model, links, options, watcher, opener, gate, clock)
            entry = RunStore(model.local_dir).find(record.run_id)
            done[label].append(entry)
            _stop_if_ended(record)
            if on_run is not None:
                on_run(label, entry)
    finally:
        links.close()
    return done


def interleaved(labels: Sequence[str], repeats: int) -> list[str]:
    """Return the order of the runs: forwards and backwards in turn (A B B A A B …)."""
    order: list[str] = []
    for number in range(repeats):
        order += labels if number % 2 == 0 else reversed(labels)
    return order


def _check(variants: Sequence[Variant], repeats: int) -> None:
    if repeats < 1:
        raise UsageError(f"{repeats} repeats", expected="1 or more")
    labels = [each.label for each in variants]
    if len(set(labels)) != len(labels):
        raise UsageError(f"two variants have one label among {', '.join(labels)}")
    for variant in variants:
        if variant.options.detach:
            raise UsageError("--detach does not fit a batch of runs", do="leave it out")


def _tagged(variant: Variant, tags: Mapping[str, str]) -> RunOptions:
    own = {VARIANT_TAG: variant.label, **tags}
    given = tuple(f"{key}={value}" for key, value in own.items())
    return replace(variant.options, tags=(*variant.options.tags, *given))


def _one(
    lab: Lab,
    links: Links,
    options: RunOptions,
    observer: Observer,
    opener: Opener,
    gate: Gate,
    clock: Clock,
) -> RunRecord:
    """Do one run, once the lab is free."""
    request = make_request(options)
    began_s = clock.mono_s()
    waits = False
    while True:
        with Interrupts() as interrupts:
            session = Session(lab, links, clock, Timeline(clock), Silent(), interrupts)
            try:
                return run(session, request, opener, gate)
            except LabBusyError:
                if clock.mono_s() - began_s > BUSY_WAIT_S:
                    raise
            if not waits:
                observer.stage("another run holds the lab: waiting for its end")
            waits = True
            clock.sleep(_BUSY_POLL_S)


def _stop_if_ended(record: RunRecord) -> None:
    if record.outcome == "cancelled":
        raise UserInterruptError(
            f"run {record.run_id} was cancelled on {record.remote.node}; the runs before it are kept",
            do="labctl runs list",
        )
    if record.outcome == "lost":
        raise ConnectionLostError(
            f"run {record.run_id}: {record.remote.node} went out of reach; the runs before it are kept",
            do=f"labctl attach {record.run_id}",
        )
