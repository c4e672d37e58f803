"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from labctl.errors import LabctlError
from labctl.lab.model import Node

Status = Literal["ok", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check on one node.

    Attributes:
        name: The check, kebab-case; stable, scripts rely on it.
        node: The node that it is about.
        status: `skipped` was not or could not be looked at; `found` says why.
        found: What was found, one line.
        expected: What was expected instead; None unless it failed.
        do: What helps; None unless it failed.
        error: What a run must raise over it; None unless it failed. Not part of the JSON.
        warns: It failed, and a run starts all the same and says so. Not part of the JSON.
    """

    name: str
    node: str
    status: Status
    found: str
    expected: str | None = None
    do: str | None = None
    error: LabctlError | None = field(default=None, compare=False, repr=False)
    warns: bool = False

    def to_json(self) -> dict[str, str | None]:
        """Return the object of `labctl check --json`."""
        return {
            "name": self.name,
            "node": self.node,
            "status": self.status,
            "found": self.found,
            "expected": self.expected,
            "do": self.do,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one node; the doctor adds the names.

    Attributes:
        status: As in CheckResult.
        found: As in CheckResult.
        expected: As in CheckResult.
        do: As in CheckResult.
        error: As in CheckResult; None on a fail means the check's own class with the same three parts.
        warns: As in CheckResult.
    """

    status: Status
    found: str
    expected: str | None = None
    do: str | None = None
    error: LabctlError | None = None
    warns: bool = False


def ok(found: str) -> Verdict:
    return Verdict("ok", found)


def skipped(why: str) -> Verdict:
    return Verdict("skipped", why)


def fail(found: str, expected: str, do: str, error: LabctlError | None = None) -> Verdict:
    return Verdict("fail", found, expected, do, error)


def warn(found: str, expected: str, do: str) -> Verdict:
    """Return a failure that costs time or precision, but keeps no run from its result."""
    return Verdict("fail", found, expected, do, warns=True)


def on(node: Node, command: str) -> str:
    """Return the advice to run a command on a node."""
    return f"on {node.name}: {command}"


def ago(seconds: float | None) -> str:
    """Return an age in words, e.g. `2 min ago`."""
    return "at an unknown time" if seconds is None else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """Return a length of time in its largest fitting unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def mib(size_bytes: int) -> str:
    """Return a size with its unit."""
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.0f} MiB"
