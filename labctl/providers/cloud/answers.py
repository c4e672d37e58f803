"""What the clouds' playbooks answered, checked: what cannot be believed is an error, not an empty list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from labctl.errors import ConfigError, LabctlError, PlaybookError
from labctl.providers.cloud.model import Found, Validated
from labctl.providers.identity import is_node_name
from labctl.runs.codec import decode

FORMAT = 1
_MOST_BYTES = 16 * 2**20

T = TypeVar("T")


def read_found(file: Path, provider: str) -> Found:
    """Return what a cloud has of a lab.

    Args:
        file: `create.json`, `find.json` or `destroy.json`.
        provider: The cloud that was asked.

    Raises:
        PlaybookError: The answer is missing or damaged.
        ConfigError: It is of another cloud, or of a newer format.
    """
    data = _read(file, provider)
    _unpack(data)
    found = _decode(Found, data, file)
    seen: set[tuple[str, str]] = set()
    for each in found.resources:
        if not each.id or (each.kind, each.id) in seen:
            raise _damaged(file, f"{each.kind} {each.id!r} has no id, or is there twice")
        if each.node and not is_node_name(each.node):
            raise _damaged(file, f"{each.node!r} is no node's name")
        seen.add((each.kind, each.id))
    return found


def read_validated(file: Path, provider: str) -> Validated:
    """Return what a cloud says of a plan.

    Raises:
        PlaybookError: The answer is missing or damaged.
        ConfigError: It is of another cloud, or of a newer format.
    """
    data = _read(file, provider)
    machines = data.get("machines", [])
    rows = isinstance(machines, list) and all(
        isinstance(row, list) and len(row) == 4 and all(isinstance(cell, str) for cell in row)
        for row in machines
    )
    if not rows:
        raise _damaged(file, "`machines` is no list of (node, machine type, image, zone)")
    data["machines"] = []
    found = _decode(Validated, data, file)
    return Validated(
        found.account,
        tuple((row[0], row[1], row[2], row[3]) for row in machines),
        found.problems,
        found.unchecked,
    )


def _read(file: Path, provider: str) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _damaged(file, "it is larger than any answer")
        data: Any = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise PlaybookError(
            f"the playbook ended well but left no answer in {file}",
            expected=f"{file.name} as playbooks/cloud/README.md describes it",
            do="see the playbook's log in .lab/<lab>/logs",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(data, dict):
        raise _damaged(file, "it is no JSON object")
    version = data.get("format")
    if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT:
        raise ConfigError(
            f"{file} has format {version}", expected=f"format {FORMAT}", do="update labctl"
        )
    if version != FORMAT:
        raise _damaged(file, f"its format is {version!r}")
    if data.get("provider") != provider:
        raise ConfigError(
            f"{file} is an answer of {data.get('provider')!r}",
            expected=provider,
            do="labctl labs; another playbook seems to write into this lab's directory",
        )
    return data


def _unpack(data: dict[str, Any]) -> None:
    """Turn what Ansible's templates make of an unset value, an empty text, into nothing."""
    resources = data.get("resources")
    for each in resources if isinstance(resources, list) else ():
        if isinstance(each, dict):
            for name in ("created_unix_s", "stopped_unix_s"):
                if each.get(name) == "":
                    each[name] = None


def _decode(kind: type[T], data: dict[str, Any], file: Path) -> T:
    try:
        return decode(kind, data)
    except ValueError as error:
        raise _damaged(file, str(error)) from error


def _damaged(file: Path, why: str) -> LabctlError:
    return PlaybookError(
        f"the answer {file} is damaged: {why}",
        expected="JSON as playbooks/cloud/README.md describes it",
        do="the same command again, which asks the cloud anew",
    )
