"""Progress on stderr: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from labctl.console import safe_text, say
from labctl.runs.observer import Progress

if TYPE_CHECKING:
    from rich.status import Status

_PLAIN_EVERY_S = 10.0
_MAX_LINE = 64 * 1024


class PlainProgress:
    """One line a change, for logs and pipes.

    Args:
        show_output: Print what the client writes too.
    """

    def __init__(self, *, show_output: bool = False) -> None:
        self._phase = ""
        self._said_s = 0.0
        self._output = OutputLines() if show_output else None

    def stage(self, name: str, detail: str = "") -> None:
        say(f"{name:<8}{detail}".rstrip())

    def progress(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if progress.phase != self._phase or (
            progress.phase and now_s - self._said_s >= _PLAIN_EVERY_S
        ):
            self._phase, self._said_s = progress.phase, now_s
            say(f"running {line_of(progress)}")

    def output(self, node: str, stream: str, data: bytes) -> None:
        if self._output is not None:
            for line in self._output.feed(node, stream, data):
                say(line)

    def note(self, text: str) -> None:
        say(text)

    def close(self) -> None:
        """Print a last line that did not end."""
        if self._output is not None:
            for line in self._output.rest():
                say(line)


class LiveProgress(PlainProgress):
    """A line that is redrawn in place; all else is printed above it."""

    def __init__(self, *, show_output: bool = False) -> None:
        super().__init__(show_output=show_output)
        self._status: Status | None = None

    def stage(self, name: str, detail: str = "") -> None:
        if detail:
            super().stage(name, detail)
        else:
            self._show(name)

    def progress(self, progress: Progress) -> None:
        self._show(f"running {line_of(progress)}")

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        super().close()

    def _show(self, text: str) -> None:
        from rich.markup import escape

        if self._status is None:
            from labctl.console import stderr_console

            # rich takes sys.stderr over while the line is live, so that say() prints above it.
            self._status = stderr_console().status(escape(text))
            self._status.start()
        else:
            self._status.update(escape(text))


def make_progress(*, show_output: bool) -> PlainProgress:
    """Return the progress that fits stderr."""
    kind = LiveProgress if sys.stderr.isatty() else PlainProgress
    return kind(show_output=show_output)


def line_of(progress: Progress) -> str:
    """Return progress as one line: phase, step k of m, the last step's time, elapsed time."""
    parts = [progress.phase or "starting"]
    if progress.total:
        parts.append(f"step {progress.step}/{progress.total}")
    if progress.last_step_ms is not None:
        parts.append(f"last {progress.last_step_ms:.0f} ms")
    parts.append(f"{progress.elapsed_s:.0f} s")
    return " · ".join(parts)


class OutputLines:
    """Turns pieces of streams into whole printable lines, each with its node."""

    def __init__(self) -> None:
        self._rest: dict[tuple[str, str], bytes] = {}

    def feed(self, node: str, stream: str, data: bytes) -> list[str]:
        """Return the lines that these bytes complete; an endless line is cut."""
        key = (node, stream)
        *lines, rest = (self._rest.get(key, b"") + data).split(b"\n")
        while len(rest) > _MAX_LINE:
            lines.append(rest[:_MAX_LINE])
            rest = rest[_MAX_LINE:]
        self._rest[key] = rest
        return [_printed(node, stream, line) for line in lines]

    def rest(self) -> list[str]:
        """Return what has not ended with a newline."""
        left = [_printed(*key, line) for key, line in self._rest.items() if line]
        self._rest.clear()
        return left


def _printed(node: str, stream: str, line: bytes) -> str:
    return f"{node} {stream}  {safe_text(line)}"
