"""`labctl why`: the causes of a run's time or of its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption

if TYPE_CHECKING:
    from labctl.runs.store import Entry


def why(
    *,
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="Run id, unique prefix, `last`, or a record's directory."
        ),
    ] = "last",
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Say why a run was slow, failed or hung: each cause with its evidence, its price and its remedy."""
    from labctl.analysis.causes.rules import judge_all
    from labctl.analysis.explain import explain
    from labctl.console import out, out_json
    from labctl.runs.data import load
    from labctl.views.why import why_lines, why_object

    entry = find_record(lab, run)
    explained = explain(load(entry.path, entry.readable()))
    verdicts = judge_all(explained)
    if json:
        out_json(why_object(verdicts))
    else:
        out("\n".join(why_lines(explained, verdicts, state=entry.state, name=run)))
    return 0


def find_record(lab: str | None, run: str) -> Entry:
    """Return a run of the store, or the record in a directory that is given by its path.

    Args:
        lab: The lab, None for the active one; a path needs none.
        run: Id, unique prefix, `last`, or a path: a text with a slash, or a directory that holds a record.

    Raises:
        RecordError: There is no such run, or it cannot be read.
    """
    from pathlib import Path

    from labctl.lab.home import Home
    from labctl.runs.record import RUN_FILE, read_record
    from labctl.runs.store import Entry, RunStore

    path = Path(run)
    if "/" in run or (path / RUN_FILE).is_file():
        path = path.resolve()
        return Entry(path.name, path, read_record(path))
    home = Home.find()
    return RunStore(home.local_dir(home.choose(lab))).find(run)
