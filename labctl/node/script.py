"""A user's script, run as `__main__` in the client's process as if Python had been started with it."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from . import wire
from .errors import SCRIPT, UNEXPECTED, NodeError, classify, shorten, summarise
from .wire import ScriptPlan


class ScriptError(NodeError):
    """The script did not end with exit status 0.

    Args:
        found: One line.
        script_exit: The exit status that Python would have given.
        kind: A kind of `errors`.
        type_name: Name of the exception's class.
        detail: Its text.
    """

    def __init__(
        self, found: str, script_exit: int, kind: str, type_name: str, detail: str | None = None
    ) -> None:
        super().__init__(found, do="its output and traceback are in the run's logs", kind=kind)
        self.script_exit = script_exit
        self._type_name = type_name
        self._detail = detail

    def fields(self) -> dict[str, Any]:
        return {
            **super().fields(),
            "type": self._type_name,
            "detail": self._detail,
            "script_exit": self.script_exit,
        }


def script_environment(cluster: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that tell a script of its cluster."""
    spec = wire.cluster_spec(cluster)
    task = {"type": wire.JOB_NAME, "index": 0}
    return {
        "TF_CONFIG": json.dumps({"cluster": spec, "task": task}),
        "LABCTL_CLUSTER": wire.spec_text(cluster),
        "PYTHONUNBUFFERED": "1",
    }


def run_script(plan: ScriptPlan, cluster: tuple[str, ...], directory: Path) -> None:
    """Run a script to its end, its non-daemon threads and exit handlers included.

    Nothing but the buffering of standard output is changed: what the script prints passes as it is.

    Args:
        plan: The script and its arguments.
        cluster: `host:port` of each task.
        directory: Where the script lies; becomes `sys.path[0]`.

    Raises:
        ScriptError: It raised, or called `sys.exit` with anything but 0 or None.
    """
    os.environ.update(script_environment(cluster))
    path = str(directory / plan.file)
    sys.argv = [plan.file, *plan.args]
    sys.path[0] = str(directory)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # Python's own at this point
    try:
        try:
            runpy.run_path(path, run_name="__main__")
        finally:
            _finish_threads()
    except SystemExit as error:
        _check_exit(error.code)
    except BaseException as error:
        error.__traceback__ = _from_file(error.__traceback__, path)
        traceback.print_exception(error)
        detail, name = shorten(str(error)), type(error).__name__
        kind = classify(name, detail)
        raise ScriptError(
            f"{plan.file} raised {summarise(kind, name, detail)}",
            script_exit=1,
            kind=SCRIPT if kind == UNEXPECTED else kind,
            type_name=name,
            detail=detail,
        ) from error


def _finish_threads() -> None:
    """Do what Python does at its end: wait for threads, then call exit handlers."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001 the process is left by os._exit, which skips them


def _check_exit(code: object) -> None:
    if code is None or code == 0:
        return
    status = code if isinstance(code, int) else 1
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
    raise ScriptError(
        f"the script ended with exit status {status}"
        + ("" if isinstance(code, int) else f": {code}"),
        script_exit=status,
        kind=SCRIPT,
        type_name="SystemExit",
    )


def _from_file(trace: TracebackType | None, path: str) -> TracebackType | None:
    """Return the part of a traceback that begins in a file; nothing of it if the file did not even compile."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace
