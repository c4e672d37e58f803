"""The `filter` of list calls, as far as it is used: equality of labels and fields, and `name eq REGEX`.

The API's own rules: expressions in parentheses or joined by AND must all hold; `eq` takes an RE2 pattern for the
whole value.
"""

from __future__ import annotations

import re
from typing import Any

_EQUALS = re.compile(r"(?P<field>[A-Za-z][\w.-]*)\s*=\s*(?P<value>\"[^\"]*\"|[^\s()]+)")
_MATCHES = re.compile(r"(?P<field>[A-Za-z]\w*)\s+eq\s+(?P<value>\"[^\"]*\"|'[^']*'|\S+)")


def matches(text: str, resource: dict[str, Any]) -> bool:
    """Say whether a resource passes a filter.

    Raises:
        ValueError: The filter is none that the stand-in knows.
    """
    single = _MATCHES.fullmatch(text.strip())
    if single is not None:
        pattern = single["value"].strip("'\"")
        return re.fullmatch(pattern, str(resource.get(single["field"], ""))) is not None
    return all(_equal(part, resource) for part in _parts(text))


def _parts(text: str) -> list[str]:
    parts = [each.strip(" ()") for each in re.split(r"\)\s*(?:AND\s*)?\(|\s+AND\s+", text)]
    return [each for each in parts if each]


def _equal(part: str, resource: dict[str, Any]) -> bool:
    found = _EQUALS.fullmatch(part)
    if found is None:
        raise ValueError(f"Invalid list filter expression: {part}")
    at: Any = resource
    for key in found["field"].split(".", 1):
        at = at.get(key, {}) if isinstance(at, dict) else {}
    return bool(at == found["value"].strip('"'))
