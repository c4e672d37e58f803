"""How far a node's clock is from this machine's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.errors import RemoteCommandError

if TYPE_CHECKING:
    from labctl.remote.base import Executor

_PROGRAM = """
import sys, time
for _ in iter(sys.stdin.readline, ""):
    sys.stdout.write(f"{time.time_ns()}\\n")
    sys.stdout.flush()
"""
CLOCK_ARGV = ("python3", "-c", _PROGRAM)


@dataclass(frozen=True, slots=True)
class Offset:
    """A measured clock offset.

    Attributes:
        seconds: The node's clock minus this machine's.
        error_bound_s: The true offset is at most this far from it.
        rtt_s: Round trip of the sample it is from, the shortest one.
    """

    seconds: float
    error_bound_s: float
    rtt_s: float


def clock_offset(executor: Executor, *, samples: int = 16) -> Offset:
    """Measure a node's clock by round trips to one program there.

    Args:
        executor: The node; it has python3.
        samples: Round trips; the first one, with all its start-up, seldom counts.

    Raises:
        RemoteCommandError: The node did not answer with its time.
    """
    answers = executor.ask(CLOCK_ARGV, [b"\n"] * samples, timeout_s=60.0)
    best = min(answers, key=lambda answer: answer.received_ns - answer.sent_ns)
    try:
        there = int(best.line)
    except ValueError as error:
        raise RemoteCommandError(
            f"{executor.name} does not tell its time: {best.line[:80]!r}"
        ) from error
    rtt_ns = best.received_ns - best.sent_ns
    return Offset(
        seconds=(there - (best.sent_ns + best.received_ns) // 2) / 1e9,
        error_bound_s=rtt_ns / 2e9,
        rtt_s=rtt_ns / 1e9,
    )
