"""Putting the dead-man timers of a lab's nodes off, each by itself: one that does not answer holds up no other."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from labctl.drive.links import Links, Machine, Opener, RealOpener
from labctl.errors import LabctlError, RemoteCommandError, UsageError
from labctl.lab.model import Lab

DEADMAN = "/opt/lab-deadman/deadman.py"
MOST_HOURS = 24 * 366.0
_COMMAND_S = 30.0
_NOT_FOUND = 2  # python3's exit status for a program that is not there


@dataclass(frozen=True, slots=True)
class Extended:
    """What became of one node's timer.

    Attributes:
        node: Node name.
        deadline_unix_s: When it ends itself now at the latest, by its own clock; None without a deadline.
        armed: A timer runs.
        error: Why it was not put off, None if it was.
    """

    node: str
    deadline_unix_s: float | None
    armed: bool
    error: LabctlError | None = None


def check_hours(hours: float) -> float:
    """Return the hours unchanged if a timer can be put off by them.

    Raises:
        UsageError: It cannot.
    """
    if not (math.isfinite(hours) and 0 < hours <= MOST_HOURS):
        raise UsageError(
            f"{hours:g} hours",
            expected=f"more than 0, at most {MOST_HOURS:g}",
            do="labctl extend 2",
        )
    return hours


def extend(lab: Lab, hours: float, opener: Opener | None = None) -> list[Extended]:
    """Put the deadline of each node off to so many hours from now, never to an earlier one.

    Args:
        lab: The lab.
        hours: From now.
        opener: Makes executors.

    Returns:
        One for each node, in task order.
    """
    links = Links(lab, opener or RealOpener())
    try:
        futures = [link.submit(lambda machine: _extend(machine, hours)) for link in links.all]
        found = []
        for node, future in zip(lab.nodes, futures, strict=True):
            error = future.exception()
            if error is None:
                found.append(future.result())
            elif isinstance(error, LabctlError):
                found.append(Extended(node.name, None, armed=False, error=error))
            else:
                raise error
        return found
    finally:
        links.close()


def _extend(machine: Machine, hours: float) -> Extended:
    name = machine.node.name
    done = machine.executor.run(
        ["python3", DEADMAN, "extend", f"{hours:g}"], timeout_s=_COMMAND_S, sudo=True
    )
    if done.returncode == _NOT_FOUND and not done.stdout:
        raise RemoteCommandError(
            f"{name} has no dead-man timer ({DEADMAN} is not there, or refuses)",
            expected="a node that labctl provision has armed",
            do="labctl provision, with lab_max_hours or lab_idle_minutes set",
        )
    done.check(name, "putting the dead-man timer off")
    try:
        data: Any = json.loads(done.stdout)
        deadline = data["deadline_unix_s"]
        return Extended(name, None if deadline is None else float(deadline), bool(data["armed"]))
    except (ValueError, TypeError, KeyError) as error:
        raise RemoteCommandError(
            f"the dead-man timer of {name} answered {done.text[:80]!r}",
            expected="one JSON object with deadline_unix_s and armed",
            do="labctl provision renews it",
        ) from error
