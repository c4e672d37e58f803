"""What a run tells whoever watches it. Drawing it is `labctl.views`' business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the client is.

    Attributes:
        phase: Its current phase, "" before the first.
        step: Steps done.
        total: Steps planned, 0 while unknown.
        last_step_ms: Duration of the last step, None before the first.
        elapsed_s: Seconds since the unit's start.
    """

    phase: str = ""
    step: int = 0
    total: int = 0
    last_step_ms: float | None = None
    elapsed_s: float = 0.0


class Observer(Protocol):
    """Receives what happens, in order, from labctl's main thread."""

    def stage(self, name: str, detail: str = "") -> None:
        """Take that labctl has come to a stage, or what that stage found."""
        ...

    def progress(self, progress: Progress) -> None:
        """Take how far the client is; called a few times a second."""
        ...

    def output(self, node: str, stream: str, data: bytes) -> None:
        """Take what the client has written to `stdout` or `stderr`."""
        ...

    def note(self, text: str) -> None:
        """Take one line that the user should see."""
        ...


class Silent:
    """An observer that keeps nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """Keep nothing."""

    def progress(self, progress: Progress) -> None:
        """Keep nothing."""

    def output(self, node: str, stream: str, data: bytes) -> None:
        """Keep nothing."""

    def note(self, text: str) -> None:
        """Keep nothing."""
