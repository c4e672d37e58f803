"""Options that every command takes, stated once."""

from __future__ import annotations

import os
from typing import Annotated

import typer

LabOption = Annotated[
    str | None,
    typer.Option(
        "--lab", metavar="NAME", help="The lab; default: LABCTL_LAB, else the active one."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def _set_debug(value: bool) -> bool:
    if value:
        os.environ["LABCTL_DEBUG"] = "1"
    return value


DebugOption = Annotated[
    bool,
    typer.Option(
        "--debug",
        callback=_set_debug,
        is_eager=True,
        help="Show tracebacks of expected errors too.",
    ),
]

# The experiment, as `run` takes it and `plan` foresees it.
SizeOption = Annotated[
    int | None, typer.Option("--size", "-L", help="L of the L x L matrices. [default: 1000]")
]
PowerOption = Annotated[
    int | None, typer.Option("--power", "-n", help="n, factors of each product. [default: 5]")
]
PlacementOption = Annotated[
    str | None, typer.Option(help="lab, one-host or one-process. [default: lab]")
]
InterOpOption = Annotated[
    str | None,
    typer.Option(
        "--inter-op",
        metavar="N|default",
        help="Inter-op threads of the client's server. [default: 2]",
    ),
]
RepeatOption = Annotated[
    int | None, typer.Option(help="Warm steps after the cold one. [default: 10]")
]

# A run of the store, or a record that lies elsewhere.
RecordArgument = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="Run id, unique prefix, `last`, or a path with a slash: a record's directory.",
    ),
]
