"""Scripted faults: which calls go wrong, how often, and in what way."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["error", "operation", "stuck", "hang", "drop", "lost", "partial"]
KINDS = ("error", "operation", "stuck", "hang", "drop", "lost", "partial")


@dataclass
class Fault:
    """One scripted fault.

    Attributes:
        kind: `error` answers at once; `operation` lets the accepted work fail; `stuck` lets it never end; `hang`
            answers nothing; `drop` closes the connection; `lost` does the work, then closes it; `partial` leaves a
            zone out of a list over all zones, and says so.
        method: HTTP method, "" for any.
        path: Pattern that the path after the project must contain.
        times: How many calls; None for all.
        status: HTTP status of `error`.
        reason: E.g. `rateLimitExceeded`.
        code: Code of `operation`, e.g. `QUOTA_EXCEEDED`.
        message: What the API says.
    """

    kind: Kind
    method: str = ""
    path: str = ""
    times: int | None = 1
    status: int = 403
    reason: str = "forbidden"
    code: str = "INTERNAL_ERROR"
    message: str = "scripted fault"

    def hits(self, method: str, path: str) -> bool:
        """Say whether the fault is due for a call."""
        if self.times == 0 or (self.method and self.method != method):
            return False
        return re.search(self.path, path) is not None


@dataclass
class Script:
    """All scripted faults, the first that fits counting."""

    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, given: dict[str, Any]) -> None:
        """Add a fault from JSON.

        Raises:
            ValueError: It is none.
        """
        if given.get("kind") not in KINDS:
            raise ValueError(
                f"a fault's kind is one of {', '.join(KINDS)}, not {given.get('kind')!r}"
            )
        with self.lock:
            self.faults.append(Fault(**given))

    def clear(self) -> None:
        """Forget all faults."""
        with self.lock:
            self.faults.clear()

    def due(self, method: str, path: str) -> Fault | None:
        """Return the fault that a call meets, and count it."""
        with self.lock:
            for each in self.faults:
                if each.hits(method, path):
                    if each.times is not None:
                        each.times -= 1
                    return each
        return None
