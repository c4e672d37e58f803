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
