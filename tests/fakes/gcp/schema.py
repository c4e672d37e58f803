"""Holds resources and request bodies against the published description of the API.

`schema.json` is an excerpt of the discovery document: names, types and enums of the resources that the stand-in
answers, without texts; README.md says of which revision.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("schema.json")
_OPEN = {"object", "any"}
_INTEGERS = {"int64", "uint64"}


@cache
def excerpt() -> dict[str, Any]:
    """Return the excerpt: source, revision and schemas."""
    loaded: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def faults(name: str, value: object, where: str = "") -> list[str]:
    """Return what is wrong with a value of a named schema; [] when it conforms.

    Args:
        name: Schema, e.g. `Instance`.
        value: Parsed JSON.
        where: Path to the value, for the messages.
    """
    schemas = excerpt()["schemas"]
    where = where or name
    if not isinstance(value, dict):
        return [f"{where} is {type(value).__name__}, not an object"]
    found = []
    for key, each in value.items():
        if key not in schemas[name]:
            found.append(f"{where} has no field {key}")
        else:
            found += _typed(schemas[name][key], each, f"{where}.{key}")
    return found


def _typed(kind: Any, value: object, where: str) -> list[str]:
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where} is {type(value).__name__}, not a list"]
        return [
            each for n, item in enumerate(value) for each in _typed(kind[0], item, f"{where}[{n}]")
        ]
    if kind in excerpt()["schemas"]:
        return faults(kind, value, where)
    if kind == "map":
        right = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        return [] if right else [f"{where} is no map of strings"]
    if kind in _OPEN:
        return [] if isinstance(value, dict) else [f"{where} is no object"]
    return [] if _scalar(kind, value) else [f"{where} is {value!r}, not {kind}"]


def _scalar(kind: str, value: object) -> bool:
    base, _, form = kind.partition(":")
    if base == "boolean":
        return isinstance(value, bool)
    if base in {"integer", "number"} or (form in _INTEGERS and isinstance(value, int)):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str):
        return False
    if base == "string":
        return form not in _INTEGERS or value.isdigit()
    return value in kind.split("|")
