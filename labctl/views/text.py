"""Bytes of unknown origin as text that a terminal may be given."""

from __future__ import annotations

import re

# C0 without tab, DEL, C1: a terminal obeys them; and the marks that reorder a line.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe_text(data: bytes | str) -> str:
    r"""Return printable text: bytes that are no UTF-8 and control characters become `\xNN` or `\uNNNN`."""
    text = data if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return _UNSAFE.sub(_escaped, text.removesuffix("\r"))


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
