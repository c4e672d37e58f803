"""The command line: one module per group, each function parses, calls and prints.

Nothing here may import paramiko, numpy, ansible or tensorflow when a command is only listed or completed:
`tests/integration/test_cli_imports.py` holds that.
"""

from __future__ import annotations

from typing import Annotated

import typer

from labctl import __version__
from labctl.cli import (
    answer,
    check,
    clouds,
    machines,
    plan,
    provision,
    report,
    run,
    runs,
    trace,
    why,
)

app = typer.Typer(
    name="labctl",
    help="A lab for TensorFlow on two or more machines that says where the time went.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"labctl {__version__}")
        raise typer.Exit


@app.callback()
def labctl(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options before the command."""


app.command()(machines.up)
app.command(context_settings={"allow_extra_args": True})(provision.provision)
app.command()(check.check)
app.command()(run.run)
app.command()(run.attach)
app.command()(run.cancel)
app.command()(run.logs)
app.command()(why.why)
app.command()(report.report)
app.command()(trace.trace)
app.command()(answer.answer)
app.command()(plan.plan)
app.add_typer(runs.runs_app, name="runs")
app.command()(clouds.stop)
app.command()(clouds.start)
app.command()(clouds.extend)
app.command()(machines.down)
app.command()(machines.use)
app.command()(machines.labs)
