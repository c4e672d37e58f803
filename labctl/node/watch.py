"""The peer watchdog: TensorFlow waits for a dead peer for ever, so a thread ends the process in bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import wire
from .cluster import Peers, peers_lost
from .errors import NodeError
from .ports import Answer


@dataclass(frozen=True)
class Patience:
    """How long a silent peer is borne.

    Attributes:
        interval_s: Between two probes.
        failures: Consecutive failed probes of one peer that make it lost.
        grace_s: From then to the end of the process, in which TensorFlow's own error may come first.
        probe_timeout_s: For one probe.
        forgiving: A peer that answers within the grace is taken back.
    """

    interval_s: float = 2.0
    failures: int = 2
    grace_s: float = 5.0
    probe_timeout_s: float = 5.0
    forgiving: bool = False


class Stall:
    """Whether TensorFlow has kept the main thread for long: entered around calls that need the peers.

    Its state is read from the watchdog's thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._told: tuple[float, dict[int, Answer]] | None = None

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *_: object) -> None:
        self._since = None

    def news(self, answers: Mapping[int, Answer]) -> bool:
        """Return whether the peers' answers should be told: after `STALL_S` once, then when they change."""
        since = self._since
        if since is None or self._clock() - since < wire.STALL_S:
            return False
        told, self._told = self._told, (since, dict(answers))
        return told != self._told


class Watchdog(threading.Thread):
    """Probes the peers until one is lost for good, then calls `on_lost` from its thread.

    Args:
        peers: Whom to watch.
        patience: How long to bear silence.
        on_answers: Called with all peers' answers after each round of probes.
        on_silent: Called with the error when a peer is found lost, before the grace.
        on_lost: Called with the error after the grace; expected to end the process.
    """

    def __init__(
        self,
        peers: Peers,
        patience: Patience,
        *,
        on_answers: Callable[[dict[int, Answer]], None],
        on_silent: Callable[[NodeError, dict[int, Answer]], None],
        on_lost: Callable[[NodeError], None],
    ) -> None:
        super().__init__(name="peer-watchdog", daemon=True)
        self._peers = peers
        self._patience = patience
        self._on_answers = on_answers
        self._on_silent = on_silent
        self._on_lost = on_lost
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop probing; returns at once."""
        self._stopped.set()

    def run(self) -> None:
        if not self._peers.addresses:
            return
        misses = dict.fromkeys(self._peers.addresses, 0)
        heard = time.monotonic()  # the last time that all of them answered
        while not self._stopped.wait(self._patience.interval_s):
            asked = time.monotonic()
            answers = self._peers.probe(self._patience.probe_timeout_s)
            self._on_answers(answers)
            if all(answer.ok for answer in answers.values()):
                heard = asked
            for task, answer in answers.items():
                misses[task] = 0 if answer.ok else misses[task] + 1
            lost = {
                task: answers[task] for task, n in misses.items() if n >= self._patience.failures
            }
            if lost and not self._stopped.is_set() and self._end(lost, heard):
                return

    def _end(self, lost: dict[int, Answer], heard: float) -> bool:
        """Return whether the peers stayed lost through the grace."""
        begin = time.monotonic()
        self._on_silent(self._error(lost, heard), lost)
        while (left_s := begin + self._patience.grace_s - time.monotonic()) > 0:
            if self._stopped.wait(min(1.0, left_s)):
                return True
            if self._patience.forgiving:
                answers = Peers({task: self._peers.addresses[task] for task in lost}).silent(2.0)
                if not answers:
                    return False
                lost = answers
        self._on_lost(self._error(lost, heard))
        return True

    def _error(self, lost: dict[int, Answer], heard: float) -> NodeError:
        since = f"for {time.monotonic() - heard:.0f} s"
        return peers_lost(self._peers.addresses, lost, since)
