"""Whether what `up` was asked for goes with the lab as it stands, and what is said about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labctl.errors import ConfigError
from labctl.providers.base import Report
from labctl.providers.cloud import usage
from labctl.providers.cloud.books import State
from labctl.providers.cloud.model import Found, Resource, Validated
from labctl.providers.cloud.wish import FIXED, VARIABLES, Wish
from labctl.providers.identity import node_index, node_name


def taken(lab: str, whose: str) -> ConfigError:
    """Return the error for a name that another lab has."""
    return ConfigError(
        f"lab {lab} has {whose}",
        expected="a name that no other lab has",
        do="labctl up --lab NAME with another name",
    )


def missing(wish: Wish, found: Found, *, reuse: bool) -> tuple[list[str], list[str]]:
    """Return the nodes that have no machine, and those whose machine is stopped.

    Raises:
        ConfigError: There are more machines than wished, two of one node, or stopped ones that may not be started.
    """
    there: dict[str, Resource] = {}
    for each in usage.serving(found):
        if each.node in there:
            raise ConfigError(
                f"lab {wish.lab} has two machines {each.node}: {there[each.node].id} and {each.id}",
                expected="one",
                do="remove one in the cloud's console, or labctl down and up",
            )
        there[each.node] = each
    surplus = sorted((node for node in there if node_index(node) >= wish.nodes), key=node_index)
    if surplus:
        raise ConfigError(
            f"lab {wish.lab} has {len(there)} machines, {wish.nodes} are asked for",
            expected=f"--nodes {max(map(node_index, surplus)) + 1}: single machines are not taken away",
            do=f"labctl down --lab {wish.lab}, then labctl up with fewer",
        )
    wanted = [node_name(index) for index in range(wish.nodes)]
    stopped = [
        node
        for node in wanted
        if node in there and usage.doing_of(there[node], wish.provider) == "stopped"
    ]
    if stopped and not reuse:
        raise ConfigError(
            f"{', '.join(stopped)} of lab {wish.lab} is stopped",
            expected="a lab that runs, or --reuse to start its machines",
            do=f"labctl start --lab {wish.lab}, or labctl up --lab {wish.lab} --reuse",
        )
    return [node for node in wanted if node not in there], stopped


def refuse(validated: Validated, report: Report) -> None:
    """Raise the last of the problems, after the others were told.

    Raises:
        ConfigError: There is one.
    """
    errors = [
        ConfigError(f"{each.subject}: {each.found}", expected=each.expected, do=each.do)
        for each in validated.problems
    ]
    for error in errors[:-1]:
        report(f"labctl: {error}")
    if errors:
        raise errors[-1]


def check_fixed(old: Wish, new: Wish) -> None:
    """Check that what holds for the life of machines has not changed.

    Raises:
        ConfigError: It has.
    """
    for name, option in FIXED.items():
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise ConfigError(
                f"lab {old.lab} has {name.replace('_', ' ')} {before or 'none'}, "
                f"{option} says {after or 'none'}",
                expected="what holds for the life of a lab's machines",
                do=f"labctl down --lab {old.lab}, then labctl up --lab {old.lab} with the new one",
            )


def check_edited(wish: Wish, given: dict[str, Any], file: Path) -> None:
    """Check that no option contradicts a file that is the user's to edit.

    Raises:
        ConfigError: One does.
    """
    for variable, name in VARIABLES.items():
        if name in given and given[name] != getattr(wish, name):
            raise ConfigError(
                f"{file} has {variable}: {given[name]}, the options ask for {getattr(wish, name)}",
                expected="one of them: the file is yours, labctl does not change it",
                do=f"set {variable} there, or leave the option out",
            )


def changes(old: Wish, new: Wish) -> list[str]:
    """Return what a standing lab would get that costs nothing, in words."""
    names = {
        "admin_cidrs": "SSH is open to",
        "ssh_by": "SSH goes to addresses that are",
        "max_hours": "hours of the dead-man timer:",
        "idle_minutes": "idle minutes of the dead-man timer:",
        "nodes": "machines:",
    }
    found = []
    for name, words in names.items():
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            text = ", ".join(after) if isinstance(after, tuple) else f"{after}"
            found.append(f"{words} {text}")
    return found


def after_start(
    state: State, before: dict[str, str], after: dict[str, str], now_unix_s: float
) -> Iterator[str]:
    """Say what the user has to do after a start."""
    lab = state.wish.lab
    moved = [node for node, address in after.items() if before.get(node) != address]
    if moved:
        yield (
            f"the private address of {', '.join(moved)} is another: labctl provision --lab {lab} "
            "gives the nodes the new cluster"
        )
    else:
        yield "private addresses are what they were: no provision is needed"
    if state.deadline_unix_s is not None and state.deadline_unix_s < now_unix_s + 600:
        yield (
            "the dead-man deadline has passed: the nodes power off again in ten minutes; "
            f"labctl extend --lab {lab} HOURS puts that off"
        )
