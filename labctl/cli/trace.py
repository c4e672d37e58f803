"""`labctl trace`: a run as one file for a trace viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption, RecordArgument


def trace(
    *,
    run: RecordArgument = "last",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to. [default: ./RUN.trace.json]"
        ),
    ] = None,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Write a run as one file that ui.perfetto.dev opens: all nodes' phases, ops, transfers and counters."""
    from labctl.cli.explaining import explained_of
    from labctl.cli.why import find_record
    from labctl.console import out, out_json, say
    from labctl.runs.atomic import check_output
    from labctl.views.trace_export import write_trace

    entry = find_record(lab, run)
    file = (output or Path(f"{entry.run_id}.trace.json")).absolute()
    check_output(file)
    explained = explained_of(entry)
    size, events = write_trace(explained, file)
    if json:
        out_json({"run_id": entry.run_id, "file": str(file), "size_bytes": size, "events": events})
        return 0
    for problem in explained.problems:
        say(f"warning {problem}")
    out(str(file))
    say(f"{events} events; open it at https://ui.perfetto.dev, which reads it in your browser")
    return 0
