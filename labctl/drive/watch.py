"""Join servers under watch: a run does not outlive a server that went away or came back as another process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from labctl.drive.links import Links, NodeLink
from labctl.drive.servers import read_server
from labctl.drive.timing import Clock
from labctl.errors import ConnectionLostError, LabctlError
from labctl.runs.record import ServerState

PERIOD_S = 5.0  # each look costs a worker some milliseconds of CPU, which a run may be measuring


@dataclass(frozen=True, slots=True)
class ServerChange:
    """A join server that is not the one it was.

    Attributes:
        node: Its node.
        kind: What happened.
        at_s: Unix time on the node's clock of the new start; None where only the end is known.
    """

    node: str
    kind: Literal["restarted", "stopped", "rebooted"]
    at_s: float | None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.kind == "stopped":
            return f"server on {self.node} stopped in mid-run"
        when = ""
        if self.at_s is not None:
            when = f" at {datetime.fromtimestamp(self.at_s, UTC).strftime('%H:%M:%S')} UTC"
        what = "restarted" if self.kind == "restarted" else "restarted with its node"
        return f"server on {self.node} {what}{when}"


def compare(before: ServerState, now: ServerState) -> ServerChange | None:
    """Return what happened to a server between two looks, None if it is the same process."""
    if before.active != "active":
        return None  # it was no part of the run
    # Until a unit's new process starts, systemd still tells the start of the old one.
    again = now.started_at_s is not None and now.started_at_s != before.started_at_s
    started_at_s = now.started_at_s if again and now.active in {"active", "activating"} else None
    if now.boot_id != before.boot_id:
        return ServerChange(before.node, "rebooted", started_at_s)
    if now.active in {"inactive", "failed"}:
        return ServerChange(before.node, "stopped", None)
    if now.invocation_id != before.invocation_id or now.active == "activating":
        return ServerChange(before.node, "restarted", started_at_s)
    return None


def changes(before: Sequence[ServerState], after: Sequence[ServerState]) -> list[ServerChange]:
    """Return what happened to all servers between two looks."""
    latest = {state.node: state for state in after}
    found = [compare(state, latest[state.node]) for state in before if state.node in latest]
    return [change for change in found if change is not None]


class ServerWatch:
    """Looks at every join server every few seconds without ever waiting for one.

    Args:
        links: The lab's nodes.
        before: The servers as they were when the run started; none for a run without peers.
        clock: Where time comes from.
    """

    def __init__(self, links: Links, before: Sequence[ServerState], clock: Clock) -> None:
        self._clock = clock
        self._before = {state.node: state for state in before}
        self._links = [link for link in links.workers if link.node.name in self._before]
        self._asked: dict[NodeLink, Future[ServerState]] = {}
        self._next_s = clock.mono_s()

    def look(self) -> ServerChange | None:
        """Return the first change that is known by now."""
        found = None
        for link, future in list(self._asked.items()):
            if future.done():
                del self._asked[link]
                found = found or self._judge(link, future)
        if self._clock.mono_s() >= self._next_s and not self._asked:
            self._next_s = self._clock.mono_s() + PERIOD_S
            self._asked = {link: link.submit(read_server) for link in self._links}
        return found

    def _judge(self, link: NodeLink, future: Future[ServerState]) -> ServerChange | None:
        error = future.exception()
        if isinstance(error, ConnectionLostError):
            link.reopen()
        if isinstance(error, LabctlError):
            return None  # a node that cannot be asked is no proof of anything
        return compare(self._before[link.node.name], future.result())
