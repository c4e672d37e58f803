"""`labctl runs`: the store of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labctl.cli.options import DebugOption, JsonOption, LabOption

if TYPE_CHECKING:
    from labctl.runs.store import RunStore

runs_app = typer.Typer(help="List, show, export and remove stored runs.", no_args_is_help=True)

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id, unique prefix, or `last`.")
]


@runs_app.command("list")
def list_runs(
    *,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """List the lab's runs, newest last; damaged and interrupted ones are named as such."""
    from labctl.console import out, out_json, say
    from labctl.views.run_object import run_head
    from labctl.views.terminal import runs_table

    store = _store(lab)
    entries = store.entries()
    if json:
        out_json([run_head(entry) for entry in entries])
    elif entries:
        out("\n".join(runs_table(entries)))
    else:
        say(f"no run is stored in {store.root}\nnext: labctl run")
    return 0


@runs_app.command("show")
def show(
    *,
    run: RunArgument = "last",
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Show a run: its result, where its time went, its steps."""
    from labctl.cli.show import print_run

    print_run(_store(lab), run, json=json, head=True)
    return 0


@runs_app.command("export")
def export_run(
    *,
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file; ends in .tar.gz.")],
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Write a run to one file; the same record gives the same bytes."""
    from labctl.console import out, out_json
    from labctl.runs.export import export

    entry = _store(lab).entry(run)
    size = export(entry.path, file)
    if json:
        out_json({"run_id": entry.run_id, "file": str(file.absolute()), "size_bytes": size})
    else:
        out(f"{file}  {size:,} bytes".replace(",", " "))
    return 0


@runs_app.command("rm")
def remove(
    *,
    run: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run ids, prefixes, or `last`.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also runs that may still go on, their lab being gone.")
    ] = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Remove runs from the store; one that runs, or may still, is refused."""
    import sys

    from labctl.console import out, out_json, say
    from labctl.errors import UsageError

    store = _store(lab)
    entries = {entry.run_id: entry for entry in (store.entry(each) for each in run)}
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"removing {', '.join(entries)} needs a yes, and there is no terminal to ask on",
                do="give --yes",
            )
        for entry in entries.values():
            say(f"  {entry.run_id}  {entry.state}")
        if not typer.confirm(f"remove {len(entries)} of them for good?", err=True):
            say("nothing was removed")
            return 0
    removed = [str(store.remove(run_id, force=force)) for run_id in entries]
    if json:
        out_json({"removed": removed})
    else:
        out("\n".join(f"removed {path}" for path in removed))
    return 0


def _store(lab: str | None) -> RunStore:
    from labctl.lab.home import Home
    from labctl.runs.store import RunStore

    home = Home.find()
    return RunStore(home.local_dir(home.choose(lab)))
