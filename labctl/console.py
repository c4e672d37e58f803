"""What the user sees: data on stdout, talk and progress on stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def out(text: str) -> None:
    """Print one piece of data on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def out_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    out(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """Print one line of talk on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def stderr_console() -> Console:
    """Return a rich console on stderr, for progress and tables that accompany work."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout_console() -> Console:
    """Return a rich console on stdout, for tables that are the data of a command."""
    from rich.console import Console

    return Console(highlight=False)
