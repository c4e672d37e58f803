"""`labctl report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption, RecordArgument

if TYPE_CHECKING:
    from labctl.runs.store import Entry


def report(
    *,
    run: RecordArgument = "last",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to. [default: .lab/LAB/reports/RUN.html]"
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Write a run as one HTML page that needs no network: verdicts, waterfall, ledger, steps, nodes."""
    from labctl.analysis.causes.rules import judge_all
    from labctl.cli.explaining import explained_of
    from labctl.cli.why import find_record
    from labctl.console import out, out_json, say
    from labctl.drive.prove import read_proofs, with_proofs
    from labctl.runs.atomic import check_output
    from labctl.views.report.page import render

    entry = find_record(lab, run)
    file = (output or _default_file(entry, lab)).absolute()
    check_output(file)
    explained = explained_of(entry)
    proofs, problem = read_proofs(entry.path.parent.parent, entry.run_id)
    if problem:
        say(problem)
    verdicts = with_proofs(judge_all(explained), proofs)
    page = render(explained, verdicts, entry.state).encode()
    _write(file, page)
    if json:
        out_json({"run_id": entry.run_id, "file": str(file), "size_bytes": len(page)})
    else:
        out(str(file))
    if show:
        _open(file)
    return 0


def _default_file(entry: Entry, lab: str | None) -> Path:
    """Return the file beside the run's store; for a record that lies elsewhere, in the named lab."""
    from labctl.cli.runs import store_of

    name = f"{entry.run_id}.html"
    if entry.path.parent.name == "runs":
        return entry.path.parent.parent / "reports" / name
    return store_of(lab).root.parent / "reports" / name


def _write(file: Path, page: bytes) -> None:
    """Write the page, whole or not at all.

    Raises:
        UsageError: There can be no such file.
    """
    from labctl.errors import UsageError
    from labctl.runs import atomic

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(
            f"cannot write {file}: {file.parent} is no directory",
            expected="a file's name in a directory",
            do="name another file",
        ) from error
    atomic.check_output(file)
    try:
        atomic.write_bytes(file, page)
    except OSError as error:
        raise atomic.cannot_write(file, error) from error


def _open(file: Path) -> None:
    """Ask the desktop to show a file; say so where there is none."""
    import webbrowser

    from labctl.console import say

    if not webbrowser.open(file.as_uri()):
        say("no browser could be started here; open the file in yours")
