"""What `labctl up` spent its time on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from labctl.runs.record import LabPhase

COMMAND = "up"


class PhaseLog:
    """Phases as they pass; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._unix_minus_mono_s = time.time() - time.monotonic()
        self._phases: list[LabPhase] = []

    def add(self, phase: str, node: str, start_mono_s: float, end_mono_s: float) -> None:
        """Add a phase by its ends on the monotonic clock."""
        started_s = start_mono_s + self._unix_minus_mono_s
        duration_s = max(0.0, end_mono_s - start_mono_s)
        self._phases.append(LabPhase(phase, node, COMMAND, started_s, duration_s))

    @contextmanager
    def timed(self, phase: str, node: str = "", *, counts: bool = True) -> Iterator[None]:
        """Add what happens inside unless it fails, or does not count because all was there already."""
        started_s = time.monotonic()
        yield
        if counts:
            self.add(phase, node, started_s, time.monotonic())

    def phases(self) -> tuple[LabPhase, ...]:
        """Return all phases in the order of their starts."""
        return tuple(sorted(self._phases, key=lambda each: (each.started_unix_s, each.node)))
