"""What a run came to: from how following ended, how the unit ended and what the client said. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from labctl.drive.watch import ServerChange
from labctl.node import wire
from labctl.remote.units import UnitEnd
from labctl.runs.events import Event
from labctl.runs.record import Failure, Outcome

_AGAIN = "labctl check, then run it again"

Why = Literal["ended", "cancelled", "timeout", "server", "lost", "vanished", "rebooted"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How following a run ended.

    Attributes:
        why: `ended` by itself; stopped by labctl because it was `cancelled`, passed its `timeout` or lost a
            join `server`; `lost` from sight; `vanished` without an end although its node did not restart;
            or its node `rebooted`.
        end: The unit's end; None where there is none.
        detail: What goes with `timeout`, `lost`, `vanished` and `rebooted`, one line.
        server: The join server that was seen to change.
    """

    why: Why
    end: UnitEnd | None = None
    detail: str = ""
    server: ServerChange | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run came to.

    Attributes:
        outcome: Its outcome.
        failure: Why it is not `ok`.
        warnings: What a reader should know although it is.
    """

    outcome: Outcome
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()


def judge(
    ending: Ending,
    events: Sequence[Event],
    servers: Sequence[ServerChange],
    *,
    has_result: bool,
) -> Judgement:
    """Return what a run came to.

    Args:
        ending: How following ended.
        events: The client's events.
        servers: Join servers that are not those from the start when all is over.
        has_result: The experiment reports a result (a script need not).
    """
    if ending.why == "lost":
        failure = Failure("connection-lost", ending.detail, "labctl attach goes on with it")
        return Judgement("lost", failure)
    if ending.server is not None:
        servers = [_better_known(ending.server, servers), *servers]
    if succeeded(ending.end):
        return _ended_well(events, servers, has_result=has_result)
    if exit_status(ending.end) == wire.EXIT_WRONG:
        return Judgement("wrong", Failure("wrong-result", _wrong_text(events)))
    if (stopped := _stopped(ending, events)) is not None:
        return stopped
    if ending.why == "rebooted":
        return _failed("node-rebooted", ending.detail, _AGAIN)
    if servers:
        change = servers[0]
        return _failed(f"server-{change.kind}", change.text, _AGAIN)
    if ending.end is None:
        return _failed("no-end", ending.detail or "the client is gone and left no end")
    return _client_failed(ending.end, events)


def _better_known(first: ServerChange, after: Sequence[ServerChange]) -> ServerChange:
    """Return the change that was seen first, as it looks when all is over if that tells its time."""
    same = [each for each in after if each.node == first.node and each.at_s is not None]
    return same[0] if first.at_s is None and first.kind != "stopped" and same else first


def _ended_well(
    events: Sequence[Event], servers: Sequence[ServerChange], *, has_result: bool
) -> Judgement:
    if has_result and last(events, wire.RESULT) is None:
        return _failed("no-result", "the client ended without a result")
    return Judgement(
        "ok",
        warnings=tuple(
            dict.fromkeys(f"{change.text}; the run did not notice" for change in servers)
        ),
    )


def _stopped(ending: Ending, events: Sequence[Event]) -> Judgement | None:
    """Return what a run came to that was ended on purpose."""
    if ending.why == "cancelled":
        return Judgement("cancelled", Failure("cancelled", "cancelled by the user"))
    if ending.why == "timeout" or (ending.end is not None and ending.end.result == "timeout"):
        failure = Failure("timeout", _timeout_text(ending, events), "a larger --timeout")
        return Judgement("timeout", failure)
    return None


def succeeded(end: UnitEnd | None) -> bool:
    """Return whether a unit's program ended by itself with status 0; an end by a clean signal is none."""
    return end is not None and exit_status(end) == wire.EXIT_OK


def exit_status(end: UnitEnd | None) -> int | None:
    """Return a unit's exit status, None if a signal ended it or it has no end."""
    if end is None or end.exit_code != "exited" or not end.exit_status.isdecimal():
        return None
    return int(end.exit_status)


def last(events: Sequence[Event], kind: str) -> Event | None:
    """Return the client's last event of a kind."""
    return next(
        (each for each in reversed(events) if each.kind == kind and each.source == "client"), None
    )


def phase_of(events: Sequence[Event]) -> str:
    """Return the phase that has begun and not ended, "" if there is none."""
    current = ""
    for event in events:
        if event.kind == wire.PHASE_BEGIN:
            current = event.text("phase")
        elif event.kind == wire.PHASE_END and event.text("phase") == current:
            current = ""
    return current


def _client_failed(end: UnitEnd, events: Sequence[Event]) -> Judgement:
    error = last(events, wire.ERROR)
    status = exit_status(end)
    if status is None:
        if end.result == "oom-kill":
            return _failed("out-of-memory", "the client was killed: its node ran out of memory")
        text = f"the client was ended by signal {end.exit_status}"
        hint = (
            "perhaps its node ran out of memory: see the kernel log"
            if end.exit_status == "KILL"
            else None
        )
        return _failed("signal", text, hint)
    if error is None:
        kind = {wire.EXIT_BAD_PLAN: "bad-plan", wire.EXIT_PEER_LOST: "peer-lost"}.get(
            status, "exit-status"
        )
        return _failed(kind, f"the client ended with status {status} and said nothing")
    kind = error.text("kind") or error.text("type") or "client-error"
    message = (
        error.text("message") or error.text("found") or f"the client ended with status {status}"
    )
    return _failed(kind, message, error.text("do") or None)


def _timeout_text(ending: Ending, events: Sequence[Event]) -> str:
    phase = phase_of(events)
    inside = f" in phase {phase}" if phase else ""
    return (ending.detail or "the node ended the run at its deadline") + inside


def _wrong_text(events: Sequence[Event]) -> str:
    result = last(events, wire.RESULT)
    error = result.number("relative_error") if result is not None else None
    tolerance = result.number("tolerance") if result is not None else None
    if error is None:
        return "the result differs from float64"
    bound = "" if tolerance is None else f", tolerance {tolerance:.1e}"
    return f"the result differs from float64: relative error {error:.1e}{bound}"


def _failed(kind: str, message: str, do: str | None = None) -> Judgement:
    return Judgement("failed", Failure(kind, message, do))
