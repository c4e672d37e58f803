"""Signals of the rules of connection and server: what the peers' ports said, and where a run stood still. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import error_text, is_matpow
from labctl.node import wire
from labctl.runs.record import OPEN_OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from labctl.analysis.explained import Explained
    from labctl.runs.data import LogLine
    from labctl.runs.events import Event
    from labctl.runs.record import NodeFacts

ANSWERS = "answers"
STILL_WAITING = "CreateSession still waiting for response from worker"

_HUNG_S = 1.0  # what takes less did not stand still
_ENDED_WELL = frozenset({"ok", "wrong"})
_ONE_NODE = frozenset({"one-host", "one-process"})
# Phases whose end shows that a session reached every task.
_AFTER_CONTACT = frozenset({wire.PHASE_STAGE, wire.PHASE_FIRST_STEP})


@dataclass(frozen=True, slots=True)
class Peer:
    """A task as the client saw its port.

    Attributes:
        task: Task index.
        node: Its node.
        address: `host:port`.
        answered_after_s: Seconds from the first look to its first good answer, None if there was none.
        state: What its port said last.
        detail: The system's own words with it.
    """

    task: int
    node: str
    address: str
    answered_after_s: float | None
    state: str
    detail: str

    @property
    def lost(self) -> bool:
        """Whether it had answered before it fell silent."""
        return self.answered_after_s is not None and self.state != ANSWERS

    @property
    def where(self) -> str:
        """Which task it is, for people."""
        return f"task:{self.task} at {self.address} ({self.node})"

    @property
    def said(self) -> str:
        """What its port said last, for people."""
        return f"{self.where}: {self.state}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Stall:
    """Where a run that did not end well stood still.

    Attributes:
        phase: The client's phase, "" between two.
        since_s: Its last sign of progress, Unix time on the client's clock.
        seconds: From then to the client's end.
        steps: Steps that it had done.
    """

    phase: str
    since_s: float
    seconds: float
    steps: int

    @property
    def text(self) -> str:
        """One line for people."""
        where = f"in phase {self.phase}" if self.phase else "between two phases"
        return f"no progress for {self.seconds:.1f} s {where}, after {self.steps} steps"


def ended_well(run: Explained) -> bool:
    """Return whether the client came to its end by itself, with a result, right or wrong."""
    return run.data.record.outcome in _ENDED_WELL


def is_open(run: Explained) -> bool:
    """Return whether the run goes on, so that more may yet be written."""
    return run.data.record.outcome in OPEN_OUTCOMES


def not_reached(run: Explained, what: str) -> tuple[str, str]:
    """Return that a run did not come to a part of it, and what would measure it."""
    if is_open(run):
        return f"the run has not come to {what} yet", "labctl why, once it has"
    return f"the run ended before {what}", "a run that ends"


def no_warm_step(run: Explained) -> tuple[str, str]:
    """Return what a run without a warm step lacks, and what would measure it."""
    if is_open(run):
        return not_reached(run, "a warm step")
    return "the run has no warm step", "a run of the experiment that ends"


def node_of(run: Explained, task: int) -> str:
    """Return the name of a task's node."""
    record = run.data.record
    if record.parameters.placement in _ONE_NODE:
        return record.remote.node
    return next((node.name for node in record.nodes if node.task == task), f"task:{task}")


def workers(run: Explained) -> tuple[NodeFacts, ...]:
    """Return the nodes whose join servers take part."""
    if run.data.record.parameters.placement in _ONE_NODE:
        return ()
    return tuple(node for node in run.data.record.nodes if node.task != 0)


def own(run: Explained) -> list[Event]:
    """Return the events of the client itself, in order."""
    return [event for event in run.data.events if event.source == "client" and event.task == 0]


def peers(run: Explained) -> tuple[Peer, ...]:
    """Return each peer whose port the client asked, in task order."""
    begun = [each for each in own(run) if _is_phase(each, wire.PHASE_BEGIN, wire.PHASE_PEERS)]
    looks: dict[int, list[Event]] = {}
    for event in own(run):
        task = event.whole("peer_task")
        if event.kind == wire.PEER and task is not None:
            looks.setdefault(task, []).append(event)
    found = []
    for task, events in sorted(looks.items()):
        asked_s = (begun or events)[0].t_s
        good = next((event.t_s for event in events if event.text("state") == ANSWERS), None)
        after_s = None if good is None else max(0.0, good - asked_s)
        last = events[-1]
        found.append(
            Peer(
                task,
                node_of(run, task),
                last.text("address"),
                after_s,
                last.text("state"),
                last.text("detail"),
            )
        )
    return tuple(found)


def _is_phase(event: Event, kind: str, phase: str) -> bool:
    return event.kind == kind and event.text("phase") == phase


def made_contact(run: Explained) -> bool:
    """Return whether a session of the client reached every task: it did a step, or staged its inputs."""
    return any(
        event.kind == wire.STEP
        or (
            event.kind == wire.PHASE_END
            and event.text("phase") in _AFTER_CONTACT
            and not event.flag("failed")
        )
        for event in own(run)
    )


def reached_all(run: Explained) -> bool:
    """Return whether a session is known to have reached every task; that a script ended well does not say it."""
    return made_contact(run) or (ended_well(run) and is_matpow(run))


def stall(run: Explained) -> Stall | None:
    """Return where a run stood still until it was ended.

    None if it ended well, at once, or if its end is not known.
    """
    events = own(run)
    progress = [event for event in events if _is_progress(event)]
    if ended_well(run) or not progress:
        return None
    end = run.data.record.unit_end
    end_s = max(event.t_s for event in events) if end is None else end.ended_at_s
    since_s = progress[-1].t_s
    if end_s - since_s < _HUNG_S:
        return None
    steps = sum(event.kind == wire.STEP for event in events)
    return Stall(_open_phase(progress), since_s, end_s - since_s, steps)


def _is_progress(event: Event) -> bool:
    if event.kind == wire.PHASE_END:
        return not event.flag("failed")
    return event.kind in {wire.HELLO, wire.PHASE_BEGIN, wire.STEP, wire.GRAPH, wire.RESULT}


def _open_phase(events: Sequence[Event]) -> str:
    current = ""
    for event in events:
        if event.kind == wire.PHASE_BEGIN:
            current = event.text("phase")
        elif _is_phase(event, wire.PHASE_END, current):
            current = ""
    return current


def log_lines(run: Explained, *words: str) -> list[LogLine]:
    """Return the lines of TensorFlow's logs that have one of some words, whatever their case."""
    low = [word.lower() for word in words]
    return [line for line in run.data.log if any(word in line.text.lower() for word in low)]


def still_waiting(run: Explained) -> tuple[str, ...]:
    """Return TensorFlow's repeated complaint that it waits for a task as evidence, () if there is none."""
    lines = log_lines(run, STILL_WAITING)
    if not lines:
        return ()
    target = lines[-1].text.partition(STILL_WAITING)[2].strip(" :.")
    return (f"{lines[-1].node} wrote: {STILL_WAITING}: {target} ({len(lines)} times)",)


def failed_checks(run: Explained, node: str, *names: str) -> list[str]:
    """Return what checks of a node found that failed before the start, as evidence."""
    return [
        f"check {each.name} on {each.node}: {each.found}"
        for each in run.data.record.failed_checks
        if each.node == node and each.name in names
    ]


def error_kind(run: Explained) -> str:
    """Return the kind of what ended the run, "" if it ended well."""
    error = next((event for event in reversed(own(run)) if event.kind == wire.ERROR), None)
    if error is not None and error.text("kind"):
        return error.text("kind")
    failure = run.data.record.failure
    return "" if failure is None else failure.kind


def error_line(run: Explained, *words: str) -> str:
    """Return the telling line of the client's error as evidence: the first with some words, else the first."""
    lines = [" ".join(line.split()) for line in error_text(run).splitlines() if line.strip()]
    low = [word.lower() for word in words]
    telling = [line for line in lines if any(word in line.lower() for word in low)]
    line = (telling or [each for each in lines if " " in each] or lines or ["nothing"])[0]
    return f"the client said: {line if len(line) <= 240 else line[:239] + '…'}"
