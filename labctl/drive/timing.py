"""Clocks of a run: monotonic for spans, UTC for stamps; and the time line that labctl's own phases go on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from labctl.runs import owner
from labctl.runs.record import Origin, Span

LABCTL = "labctl"
PHASE_STARTUP = "startup"
PHASE_UNATTENDED = "unattended"


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def mono_s(self) -> float:
        """Return the monotonic clock, seconds; the same for all processes of one boot."""
        ...

    def unix_s(self) -> float:
        """Return Unix time, seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """This machine's clocks."""

    def mono_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def process_age_s() -> float:
    """Return how long ago this process was started, seconds, to 10 ms."""
    ticks = owner.start_ticks(os.getpid())
    if ticks is None:
        return 0.0
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, since_boot - ticks / os.sysconf("SC_CLK_TCK"))


class Timeline:
    """Seconds after the command's start, and the phases of labctl itself.

    Args:
        clock: Where time comes from.
        age_s: How long ago the command started; that time becomes the phase `startup`.
    """

    def __init__(self, clock: Clock, *, age_s: float = 0.0) -> None:
        self._clock = clock
        self.origin = Origin(clock.unix_s() - age_s, clock.mono_s() - age_s, owner.boot_id())
        self._mono_zero_s = self.origin.mono_s
        self.spans: list[Span] = []
        if age_s > 0:
            self.add(PHASE_STARTUP, 0.0, age_s)

    def now_s(self) -> float:
        """Return seconds after the origin."""
        return self._clock.mono_s() - self._mono_zero_s

    def add(self, phase: str, start_s: float, end_s: float) -> None:
        """Add a phase that has passed."""
        self.spans.append(Span(phase, LABCTL, start_s, max(0.0, end_s - start_s), "labctl"))

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Add what happens inside as a phase, also when it fails."""
        start_s = self.now_s()
        try:
            yield
        finally:
            self.add(phase, start_s, self.now_s())

    def continue_from(self, origin: Origin, spans: tuple[Span, ...]) -> None:
        """Go on with the time line of an earlier command.

        Phases so far move along; the time in which no labctl looked becomes the phase `unattended`.

        Args:
            origin: The earlier command's start.
            spans: Its phases.
        """
        same_boot = origin.boot_id == self.origin.boot_id
        later_s = (
            self.origin.mono_s - origin.mono_s
            if same_boot
            else max(0.0, self.origin.unix_s - origin.unix_s)
        )
        own = [
            Span(each.phase, each.node, each.start_s + later_s, each.duration_s, each.source)
            for each in self.spans
        ]
        left_at_s = max((each.start_s + each.duration_s for each in spans), default=0.0)
        self._mono_zero_s = self.origin.mono_s - later_s
        self.origin = origin
        self.spans = [*spans]
        if later_s > left_at_s:
            self.add(PHASE_UNATTENDED, left_at_s, later_s)
        self.spans.extend(own)
