"""Ctrl-C: the first is a wish that the follower reads, the second leaves at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

from labctl.errors import UserInterruptError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Handles SIGINT and SIGTERM while a run is driven.

    Args:
        reads: The command only reads: there is no start that it could have come to.

    Attributes:
        wanted: The user has asked to stop; whoever follows a run looks at it.
        run_id: The run that goes on when labctl leaves; None while nothing has been started on a node, and
            then the first signal leaves at once.
    """

    def __init__(self, *, reads: bool = False) -> None:
        self._reads = reads
        self.wanted = False
        self.run_id: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 the signal module's form
        if self.run_id is None:
            raise UserInterruptError(
                "interrupted" if self._reads else "interrupted before the start"
            )
        if self.wanted:
            raise UserInterruptError(
                f"left at once; run {self.run_id} may still be running",
                do=f"labctl attach {self.run_id}, or labctl cancel {self.run_id}",
            )
        self.wanted = True
