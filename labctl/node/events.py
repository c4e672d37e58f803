"""Events as JSON lines: each line is one write to a descriptor opened for appending, so lines never mix."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from . import wire

Source = Literal["client", "join-server"]


class EventLog:
    """Writes the events of one process. Its methods may be called from any thread.

    Args:
        descriptor: File descriptor that lines go to.
        source: Who writes.
        task: Index of this process's task.
    """

    def __init__(self, descriptor: int, source: Source, task: int) -> None:
        self._descriptor = descriptor
        self._source = source
        self._task = task
        self._lock = threading.Lock()

    @classmethod
    def to_file(cls, path: str, source: Source, task: int) -> EventLog:
        """Return a log that appends to a file, made when it does not exist.

        Raises:
            OSError: It cannot be opened for writing.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return cls(descriptor, source, task)

    def emit(
        self, event: str, *, t: int | None = None, mono: int | None = None, **fields: Any
    ) -> None:
        """Write one event.

        Args:
            event: Its kind, see `wire`.
            t: Unix time in ns, for an event of the past; now by default.
            mono: Monotonic time in ns that belongs to `t`.
            fields: Its other fields; values that JSON can hold, no NaN.

        Raises:
            OSError: The line could not be written (disk full, pipe closed).
        """
        with self._lock:
            self._write(event, t, mono, fields)

    def end(self, status: int) -> int:
        """Write `bye` and keep the lock, so that it stays the last event; return the status."""
        self._lock.acquire()
        self._write(wire.BYE, None, None, {"exit": status})
        return status

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Write `phase_begin` and, however the body ends, `phase_end`."""
        self.emit(wire.PHASE_BEGIN, phase=name)
        begin = time.monotonic_ns()
        failed: dict[str, bool] = {"failed": True}
        try:
            yield
            failed = {}
        finally:
            self.emit(wire.PHASE_END, phase=name, duration_ns=time.monotonic_ns() - begin, **failed)

    def _write(self, event: str, t: int | None, mono: int | None, fields: dict[str, Any]) -> None:
        head = {
            "event": event,
            "t": time.time_ns() if t is None else t,
            "mono": time.monotonic_ns() if mono is None else mono,
            "source": self._source,
            "task": self._task,
        }
        line = json.dumps({**head, **fields}, ensure_ascii=True, allow_nan=False) + "\n"
        rest = memoryview(line.encode("ascii"))
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
