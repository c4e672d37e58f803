"""Causes on the side of the servers: one that went away or came back in mid-run, other versions, no memory left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from labctl.analysis.causes.common import Cause, error_text, has_words, quoted
from labctl.analysis.causes.contact import (
    ended_well,
    error_kind,
    error_line,
    is_open,
    log_lines,
    not_reached,
    own,
    peers,
    stall,
    workers,
)
from labctl.analysis.causes.diagnosis import PROTOCOL_SKEW, diagnose
from labctl.analysis.causes.model import Confidence, Rule, Verdict
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.record import ServerState

SERVER_RESTARTED = Cause("server-restarted", "once", "A join server was restarted in mid-run", "A")
SERVER_KILLED = Cause("server-killed", "once", "A join server ended in mid-run", "A")
NODE_REBOOTED = Cause("node-rebooted", "once", "A node restarted in mid-run", "A")
OUT_OF_MEMORY = Cause("out-of-memory", "once", "A node ran out of memory", "A")
# Each step runs on it, so it is told with the step's causes, though it has no price of its own.
VERSION_SKEW = Cause("version-skew", "step", "The tasks run different versions of TensorFlow", "C")

Change = Literal["restarted", "killed", "rebooted", "out of memory"]

_OOM_WORDS = ("oom-kill", "oom killer", "out of memory", "std::bad_alloc", "cannot allocate memory")
_OOM_ERRORS = ("resourceexhausted", "memoryerror", "oom when allocating")
# What systemd says of a process that was not asked to stop.
_KILLED_WORDS = ("code=killed, status=9/kill", "code=dumped", "status=11/segv", "status=6/abrt")
_MANAGER_WORDS = (
    "main process exited",
    "failed with result",
    "stopping tf-join",
    "stopping tensor",
)
_GONE = frozenset({"inactive", "failed", "deactivating"})


@dataclass(frozen=True, slots=True)
class Departure:
    """A server, or the client itself, that was not the same to the end.

    Attributes:
        node: Its node.
        change: What happened.
        evidence: One line each.
        confidence: How sure.
        remedy: What helps instead of its cause's usual remedy, "" for that.
    """

    node: str
    change: Change
    evidence: tuple[str, ...]
    confidence: Confidence
    remedy: str = ""


def departures(run: Explained) -> tuple[Departure, ...]:
    """Return who went away in mid-run, at most one line of events for each node."""
    found = [change for node in workers(run) if (change := _departure(run, node.name)) is not None]
    failure = run.data.record.failure
    client = run.data.record.remote.node
    if failure is not None and failure.kind == "node-rebooted":
        found.append(Departure(client, "rebooted", (failure.message,), "high"))
    elif (words := _client_out_of_memory(run)) and not ended_well(run):
        found.append(Departure(client, "out of memory", tuple(words), "high"))
    return tuple(found)


def _departure(run: Explained, node: str) -> Departure | None:
    record = run.data.record
    before = _state(record.servers_before, node)
    after = _state(record.servers_after, node)
    if before is not None and before.active != "active":
        return None  # it was no part of the run
    manager = [line for line in log_lines(run, *_MANAGER_WORDS) if line.node == node]
    lines: list[str] = []
    change = None
    confidence: Confidence = "high"
    if before is not None and after is not None:
        change = _compare(before, after)
        if change is not None:
            lines.append(_looks(run, before, after))
    if change is None and (change := _by_words(run, node)) is not None:
        confidence = "medium"
    if change is None:
        return None
    memory = [line for line in log_lines(run, *_OOM_WORDS) if line.node == node]
    if change != "rebooted" and memory:
        return Departure(node, "out of memory", (quoted(memory[0]), *lines), "high")
    remedy = ""
    ends = [line.text for line in manager if has_words(line.text, *_KILLED_WORDS)]
    if change == "restarted" and ends:
        lines.insert(0, f"its process was killed{_signal(ends[0])}; systemd started it anew")
        remedy = f"run it again; labctl logs last --node {node} has the last words of the old one"
    lines.extend(quoted(line) for line in manager[:2])
    lines.extend(peer.said for peer in peers(run) if peer.node == node and peer.lost)
    if error_text(run) and not ended_well(run):
        lines.append(error_line(run, "incarnation", "restarted", "failed to connect"))
    if ended_well(run):
        lines.append("the run ended all the same")
        confidence = "low"
    return Departure(node, change, tuple(lines), confidence, remedy)


def _signal(text: str) -> str:
    """Return the signal that systemd's line on a process's end names, for people; "" if it names none."""
    found = re.search(r"status=\d+/([A-Z]+)", text)
    return "" if found is None else f" (signal {found[1]})"


def _state(states: Sequence[ServerState], node: str) -> ServerState | None:
    return next((state for state in states if state.node == node), None)


def _compare(before: ServerState, after: ServerState) -> Change | None:
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        return "rebooted"
    if after.active in _GONE:
        return "killed"
    if before.invocation_id != after.invocation_id or after.active == "activating":
        return "restarted"
    return None


def _looks(run: Explained, before: ServerState, after: ServerState) -> str:
    """Return what two looks at a server saw, as evidence."""
    node = before.node
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        return f"{node} was in boot {before.boot_id[:8]} at the start, in {after.boot_id[:8]} at the end"
    same = before.invocation_id == after.invocation_id
    if after.active != before.active and (same or after.active in _GONE):
        return (
            f"tf-join-server on {node} was {before.active} at the start, {after.active} at the end"
        )
    if same:
        return f"the server on {node} was the same process (invocation {before.invocation_id[:8]}) to the end"
    when = ""
    if after.started_at_s is not None:
        since_s = run.data.record.since_origin_s(node, after.started_at_s)
        when = f", started {since_s:.1f} s after labctl"
    return (
        f"the server on {node} was invocation {before.invocation_id[:8]} at the start, "
        f"{after.invocation_id[:8]} at the end{when}"
    )


def _by_words(run: Explained, node: str) -> Change | None:
    """Return what the failure and TensorFlow's words say of a server whose two looks do not tell."""
    failure = run.data.record.failure
    kinds: dict[str, Change] = {
        "server-restarted": "restarted",
        "server-stopped": "killed",
        "server-rebooted": "rebooted",
    }
    if failure is not None and failure.kind in kinds and f"on {node} " in failure.message:
        return kinds[failure.kind]
    if ended_well(run):
        return None
    if any(peer.node == node and peer.lost and peer.state == "refused" for peer in peers(run)):
        return "killed"
    if len(workers(run)) == 1 and "incarnation" in error_text(run).lower():
        return "restarted"
    return None


def _client_out_of_memory(run: Explained) -> list[str]:
    """Return what says that the client, or TensorFlow on its behalf, had no memory left."""
    record, lines = run.data.record, []
    if record.unit_end is not None and record.unit_end.result == "oom-kill":
        lines.append(f"systemd ended the client with result oom-kill on {record.remote.node}")
    if error_kind(run) == "out-of-memory" or has_words(error_text(run), *_OOM_ERRORS):
        lines.append(error_line(run, *_OOM_ERRORS, "memory"))
    lines.extend(
        quoted(line) for line in log_lines(run, *_OOM_WORDS) if line.node == record.remote.node
    )
    return lines


def _rule_of(cause: Cause, change: Change, remedy: str) -> Rule:
    """Return the rule of a cause that is one kind of departure."""

    def judge(run: Explained) -> Verdict:
        all_of_them = departures(run)
        mine = [each for each in all_of_them if each.change == change]
        if not mine:
            return _stayed(cause, run, all_of_them)
        hung = stall(run)
        lines = [line for each in mine for line in each.evidence]
        return cause.found(
            None if hung is None else hung.seconds,
            [*lines, *([] if hung is None else [hung.text])],
            remedy=mine[0].remedy or remedy.format(node=mine[0].node),
            confidence=mine[0].confidence,
            title=_TITLES[change].format(node=mine[0].node),
        )

    return cause.rule(judge)


_TITLES: dict[Change, str] = {
    "restarted": "The join server on {node} was restarted in mid-run",
    "killed": "The join server on {node} ended in mid-run",
    "rebooted": "{node} restarted in mid-run",
    "out of memory": "{node} ran out of memory",
}


def _stayed(cause: Cause, run: Explained, others: Sequence[Departure]) -> Verdict:
    """Return why it was no departure of this kind."""
    if others:
        return cause.ruled_out(*others[0].evidence[:2])
    nodes = workers(run)
    if cause is OUT_OF_MEMORY:
        return _memory_was_enough(cause, run)
    if not nodes:
        return cause.ruled_out("0 join servers take part")
    lines, unknown = [], []
    for node in nodes:
        before = _state(run.data.record.servers_before, node.name)
        after = _state(run.data.record.servers_after, node.name)
        if before is not None and before.active != "active":
            lines.append(f"tf-join-server on {node.name} was {before.active} from the start")
        elif before is None or after is None:
            unknown.append(node.name)
        elif cause is NODE_REBOOTED and before.boot_id:
            lines.append(f"{node.name} stayed in boot {before.boot_id[:8]}")
        else:
            lines.append(_looks(run, before, after))
    if unknown and is_open(run):
        return cause.not_measured(*not_reached(run, "its end"))
    if unknown:
        return cause.not_measured(
            f"the server on {', '.join(unknown)} was not looked at before and after the run",
            f"labctl logs last --node {unknown[0]}",
        )
    return cause.ruled_out(*lines)


def _memory_was_enough(cause: Cause, run: Explained) -> Verdict:
    used = [
        (size, node)
        for node, events in (
            (run.data.record.remote.node, own(run)),
            *run.data.server_events.items(),
        )
        for event in events
        if event.kind == wire.USAGE and (size := event.whole("rss_bytes")) is not None
    ]
    if used:
        most, node = max(used)
        return cause.ruled_out(f"at most {most / 2**20:.0f} MiB in use by a task, on {node}")
    if ended_well(run):
        return cause.ruled_out("no process was ended for memory: all ran to the end")
    failure = run.data.record.failure
    if failure is not None and failure.kind == "signal":
        return cause.not_measured(
            f"{failure.message}; the kernel's own log is not in the record",
            f"ssh {run.data.record.remote.node} sudo journalctl -k | grep -i oom",
        )
    if not run.data.log:
        return cause.not_measured(
            "the record has no log and no use of memory", "labctl logs last shows what there is"
        )
    return cause.ruled_out(f"0 of {len(run.data.log)} log lines speak of memory")


def _judge_versions(run: Explained) -> Verdict:
    versions = _loaded_versions(run)
    if not workers(run):
        return VERSION_SKEW.ruled_out("0 other nodes take part")
    silent = [node.name for node in run.data.record.nodes if node.name not in versions]
    text = ", ".join(f"{version} on {node}" for node, version in versions.items())
    minors = {".".join(version.split(".")[:2]) for version in versions.values()}
    if len(minors) > 1:
        others = [fault for fault in diagnose(run) if fault.cause is not PROTOCOL_SKEW]
        if not ended_well(run) and (others or departures(run)):
            return VERSION_SKEW.ruled_out(
                f"TensorFlow {text}, but something else ended the run", confidence="low"
            )
        return VERSION_SKEW.found(
            None,
            [f"TensorFlow {text}"],
            remedy="labctl provision",
            confidence="medium",
            title=f"The tasks run different TensorFlows: {text}",
        )
    if silent:
        return VERSION_SKEW.not_measured(
            f"{', '.join(silent)} did not say which TensorFlow it has", "labctl check compares them"
        )
    return VERSION_SKEW.ruled_out(f"TensorFlow {text}")


def _loaded_versions(run: Explained) -> dict[str, str]:
    """Return TensorFlow's version by node: what a running server loaded, else what is installed."""
    versions = {
        node.name: node.versions["tensorflow"]
        for node in run.data.record.nodes
        if node.versions.get("tensorflow")
    }
    for node, events in run.data.server_events.items():
        said = [e.text("tensorflow") for e in events if e.kind == wire.HELLO]
        if said and said[-1]:
            versions[node] = said[-1]
    return dict(sorted(versions.items()))


RULES: tuple[Rule, ...] = (
    _rule_of(
        SERVER_RESTARTED,
        "restarted",
        "run it again; labctl logs last --node {node} says who restarted it",
    ),
    _rule_of(
        SERVER_KILLED,
        "killed",
        "on {node}: sudo systemctl start tf-join-server; labctl logs last --node {node} has its last words",
    ),
    _rule_of(NODE_REBOOTED, "rebooted", "labctl check, then run it again"),
    _rule_of(OUT_OF_MEMORY, "out of memory", "a smaller --size, or machines with more memory"),
    VERSION_SKEW.rule(_judge_versions),
)
