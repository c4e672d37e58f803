"""`labctl runs`: the store of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from labctl.cli.options import DebugOption, JsonOption, LabOption

if TYPE_CHECKING:
    from labctl.runs.store import RunStore

runs_app = typer.Typer(
    help="List, show, compare, export and remove stored runs.", no_args_is_help=True
)
_BETWEEN = "\0--"  # stands for `--`, which the parser would swallow; no argument can hold a NUL

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

    store = store_of(lab)
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

    print_run(store_of(lab), run, json=json, head=True)
    return 0


class _TwoSides(TyperCommand):
    """A command whose arguments are two lists with `--` between them; options may stand on either side."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_BETWEEN if each == "--" else each for each in args])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 the parent's form
        return [self.options_metavar or "", "A...", "--", "B..."]


@runs_app.command("compare", cls=_TwoSides)
def compare(
    *,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Runs of side A, --, runs of side B: ids, prefixes, `last`, or `tag:key=value`.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Show it even where there can be no verdict.")
    ] = False,
    lab: LabOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001 acts in its callback
) -> int:
    """Compare two sets of runs phase by phase; exit 1 if B is slower, or if no verdict may be given."""
    from labctl.console import out, out_json
    from labctl.drive.compare import compare_runs, raise_for
    from labctl.errors import UsageError
    from labctl.views.compare import compare_lines, compare_object

    if runs.count(_BETWEEN) != 1:
        raise UsageError(
            f"{runs.count(_BETWEEN)} times -- among the runs",
            expected="once, between the two sides",
            do="labctl runs compare A... -- B...",
        )
    middle = runs.index(_BETWEEN)
    found = compare_runs(store_of(lab), runs[:middle], runs[middle + 1 :])
    if json:
        out_json(compare_object(found))
    elif force or not found.refused:
        out("\n".join(compare_lines(found)))
    raise_for(found, force=force)
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

    entry = store_of(lab).entry(run)
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
    from labctl.drive.prove import forget_proofs
    from labctl.errors import UsageError

    store = store_of(lab)
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
    removed = []
    for run_id in entries:
        removed.append(str(store.remove(run_id, force=force)))
        forget_proofs(store.root.parent, run_id)
    if json:
        out_json({"removed": removed})
    else:
        out("\n".join(f"removed {path}" for path in removed))
    return 0


def store_of(lab: str | None) -> RunStore:
    """Return the store of a lab, which may hold no run yet.

    Raises:
        ConfigError: There is no such lab, or none is meant.
    """
    from labctl.errors import ConfigError
    from labctl.lab.home import Home
    from labctl.lab.model import LOOPBACK
    from labctl.runs.store import RunStore

    home = Home.find()
    name = home.choose(lab)
    folder = home.local_dir(name)
    if name != LOOPBACK and not folder.is_dir() and not home.inventory(name).is_dir():
        raise ConfigError(
            f"no lab {name!r}: neither {home.inventory(name)} nor {folder} exists",
            expected=f"one of {', '.join(sorted({*home.labs(), *home.local_names()})) or '(none yet)'}",
            do=f"labctl up --lab {name} makes it; --lab NAME chooses another",
        )
    return RunStore(folder)
