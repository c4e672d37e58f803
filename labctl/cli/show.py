"""Printing a stored run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labctl.runs.record import RunRecord
    from labctl.runs.store import RunStore


def print_run(store: RunStore, run: str, *, json: bool, head: bool) -> RunRecord:
    """Print a run of the store on stdout and return its record.

    Args:
        store: The lab's runs.
        run: Id, prefix or `last`.
        json: One object instead of text.
        head: Begin with the line that says what the run is.

    Raises:
        RecordError: There is no such run, or it cannot be read.
    """
    from labctl.console import out, out_json
    from labctl.views.run_object import run_object
    from labctl.views.terminal import head_line, run_lines

    entry = store.find(run)
    record = entry.readable()
    if json:
        out_json(run_object(entry))
        return record
    lines = run_lines(entry)
    if head:
        lines.insert(0, head_line(record.lab, record.parameters, record.tasks, record.run_id))
    out("\n".join(lines))
    return record
