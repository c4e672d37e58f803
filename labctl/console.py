"""What the user sees: data on stdout, talk and progress on stderr."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


# C0 without tab, DEL, C1: a terminal obeys them; and the marks that reorder a line.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def out(text: str) -> None:
    """Print one piece of data on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def out_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    out(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """Print lines of talk on stderr; whatever they quote, the terminal obeys none of it."""
    sys.stderr.write("\n".join(safe_text(line) for line in text.split("\n")) + "\n")
    sys.stderr.flush()


def stderr_console() -> Console:
    """Return a rich console on stderr, for progress and tables that accompany work."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def stdout_console() -> Console:
    """Return a rich console on stdout, for tables that are the data of a command."""
    from rich.console import Console

    return Console(highlight=False)


def safe_text(data: bytes | str) -> str:
    r"""Return printable text: bytes that are no UTF-8 and control characters become `\xNN` or `\uNNNN`."""
    text = data if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return _UNSAFE.sub(_escaped, text.removesuffix("\r"))


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
