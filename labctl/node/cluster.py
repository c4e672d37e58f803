"""The other tasks, seen from this one: waiting until they answer, and saying which do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import wire
from .errors import PEER_LOST, NodeError
from .events import EventLog
from .ports import Answer, probe

_PROBE_TIMEOUT_S = 5.0
_PAUSE_S = 0.25


@dataclass(frozen=True)
class Peers:
    """The peers of a task.

    Attributes:
        addresses: `host:port` of each peer, by task index; this process's own task is not among them.
    """

    addresses: Mapping[int, str]

    def probe(self, timeout_s: float = _PROBE_TIMEOUT_S) -> dict[int, Answer]:
        """Return each peer's answer, all asked at once."""
        if not self.addresses:
            return {}
        with ThreadPoolExecutor(len(self.addresses)) as pool:
            answers = pool.map(lambda address: probe(address, timeout_s), self.addresses.values())
            return dict(zip(self.addresses, answers, strict=True))

    def silent(self, timeout_s: float = _PROBE_TIMEOUT_S) -> dict[int, Answer]:
        """Return the answers of those peers that do not answer as they should."""
        return {task: answer for task, answer in self.probe(timeout_s).items() if not answer.ok}


def wait_for_peers(
    peers: Peers, events: EventLog, timeout_s: float, *, between: Callable[[], None] | None = None
) -> None:
    """Return once every peer answers; writes one `peer` event for each.

    Args:
        peers: Whom to wait for.
        events: Where the events go.
        timeout_s: Deadline for all of them.
        between: Called before each round; may raise to end the wait.

    Raises:
        NodeError: The deadline passed; names each silent peer's address and state.
    """
    deadline = time.monotonic() + timeout_s
    waiting = dict(peers.addresses)
    while waiting:
        if between is not None:
            between()
        left_s = deadline - time.monotonic()
        answers = Peers(waiting).probe(min(_PROBE_TIMEOUT_S, max(0.2, left_s)))
        for task, answer in answers.items():
            if answer.ok:
                report_peer(events, task, waiting.pop(task), answer)
        if waiting and time.monotonic() + _PAUSE_S >= deadline:
            for task, address in waiting.items():
                report_peer(events, task, address, answers[task])
            raise peers_lost(waiting, answers, f"for {timeout_s:g} s")
        if waiting:
            time.sleep(_PAUSE_S)


def report_peer(events: EventLog, task: int, address: str, answer: Answer) -> None:
    """Write one `peer` event."""
    events.emit(
        wire.PEER, peer_task=task, address=address, state=answer.state, detail=answer.detail
    )


def peers_lost(
    addresses: Mapping[int, str], answers: Mapping[int, Answer], since: str
) -> NodeError:
    """Return the error for peers that do not answer.

    Args:
        addresses: `host:port` by task index.
        answers: By task index; only those that are not ok are named.
        since: Words for how long, e.g. "for 10 s".
    """
    named = "; ".join(
        f"task {task} at {addresses[task]}: {answer.state}"
        + (f" ({answer.detail})" if answer.detail else "")
        for task, answer in answers.items()
        if not answer.ok
    )
    return NodeError(
        f"no TensorFlow server answers {since}: {named}",
        expected="every task's join server running and its port open to this node",
        do="labctl check, then on that node: systemctl status tf-join-server",
        kind=PEER_LOST,
        status=wire.EXIT_PEER_LOST,
    )
