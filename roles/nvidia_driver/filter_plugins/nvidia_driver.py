"""Which driver a node's devices can have, and what of it the node lacks; functions of what it said of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# From this branch on NVIDIA installs the open kernel modules wherever the device takes them
# (developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules, for R560).
OPEN_BY_DEFAULT = 560
OPEN_FIRST = 515  # the first branch that has them


def _problem(found: str, expected: str, do: str) -> dict[str, str]:
    return {"found": found, "expected": expected, "do": do}


def branch_of(version: str) -> int | None:
    """Return the branch of a driver's or package's version: 535 of `535.261.03-1`; None where there is none."""
    match = re.match(r"(?:[0-9]+:)?([0-9]{3})\.", version)
    return int(match[1]) if match else None


def with_architecture(
    devices: Sequence[Mapping[str, str]], table: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return devices with the name and the architecture that their ids stand for (None: not in the table)."""
    found = []
    for device in devices:
        number = int(device["id"], 16)
        row = next(
            (
                {"name": name, **each}
                for name, each in table["architectures"].items()
                if any(int(low, 16) <= number <= int(high, 16) for low, high in each["ids"])
            ),
            None,
        )
        name = table["names"].get(device["id"].lower(), f"device 10de:{device['id']}")
        found.append({**device, "name": name, "architecture": row})
    return found


def _device_problem(
    device: Mapping[str, Any], branch: int, flavour: str, own_branch: bool
) -> dict[str, str] | None:
    row = device["architecture"]
    if row is None:
        return None
    what = f"{device['name']} ({row['name']}, 10de:{device['id']})"
    last, first = row.get("last_branch"), row["first_branch"]
    if last is not None and branch > last:
        return _problem(
            f"{what}, with driver branch {branch}",
            f"branch {last} or older: newer ones no longer know {row['name']}",
            f"set nvidia_driver_branch: {last}",
        )
    if branch < first:
        return _problem(
            f"{what}, with driver branch {branch}{'' if own_branch else ' (the default here)'}",
            f"branch {first} or newer: older ones do not know {row['name']} yet",
            f"set nvidia_driver_branch: {max(first, 580)}"
            + ("" if own_branch else " and nvidia_driver_source: nvidia"),
        )
    if flavour == "open" and row["modules"] == "closed":
        return _problem(
            f"{what}, with open kernel modules",
            f"closed ones: the open ones need Turing or newer, {row['name']} is older",
            "set nvidia_driver_flavour: closed (or auto)",
        )
    if flavour == "closed" and row["modules"] == "open":
        return _problem(
            f"{what}, with closed kernel modules",
            f"open ones: {row['name']} runs with no others",
            "set nvidia_driver_flavour: open (or auto)",
        )
    return None


def _flavour(wanted: str, rows: Sequence[Mapping[str, Any] | None], branch: int) -> str:
    if wanted != "auto":
        return wanted
    kinds = {"open" if row is None else row["modules"] for row in rows}
    if "closed" in kinds:
        return "closed"
    if "open" in kinds:
        return "open"
    return "open" if branch >= OPEN_BY_DEFAULT else "closed"


def driver_plan(
    state: Mapping[str, Any],
    table: Mapping[str, Any],
    *,
    branch: str,
    version: str,
    flavour: str,
    default_branch: str,
    forced: bool,
    modules: bool,
) -> dict[str, Any]:
    """Return what the role has to do for a node.

    Args:
        state: What files/node_state.py printed.
        table: `__nvidia_driver_table`.
        branch: That is asked for, "" for none.
        version: Exact version that is asked for, "" for none.
        flavour: Of the kernel modules: `auto`, `open` or `closed`.
        default_branch: Of the source, "" where it has none.
        forced: Install without a device too.
        modules: Kernel modules are this node's own.

    Returns:
        devices: Those found, with their architecture.
        wanted: There is something to drive.
        keep: A driver that answers is left as it is.
        branch, flavour: That are to be there.
        problem: found, expected and do; None when it would go.
    """
    devices = with_architecture(state["devices"], table)
    rows = [device["architecture"] for device in devices]
    plan: dict[str, Any] = {
        "devices": devices,
        "wanted": bool(devices) or forced,
        "keep": False,
        "branch": 0,
        "flavour": flavour,
        "problem": None,
    }
    if not plan["wanted"]:
        return plan
    asked = branch or str(branch_of(version) or "")
    if branch and version and branch_of(version) != int(branch):
        plan["problem"] = _problem(
            f"nvidia_driver_version {version} with nvidia_driver_branch {branch}",
            "a version of that branch",
            "unset one of them",
        )
        return plan
    answering = branch_of(state["driver"]["version"]) if state["driver"]["answers"] else None
    if answering is not None and not asked and flavour == "auto":
        plan |= {"keep": True, "branch": answering}
        return plan
    chosen = asked or default_branch
    if not re.fullmatch(r"[0-9]{3}", chosen):
        plan["problem"] = _problem(
            f"driver branch {chosen!r}"
            if chosen
            else "no driver branch is known for this distribution",
            "three digits, such as 535 or 580",
            "set nvidia_driver_branch",
        )
        return plan
    number = int(chosen)
    plan |= {"branch": number, "flavour": _flavour(flavour, rows, number)}
    problems = (
        _device_problem(device, number, plan["flavour"] if modules else "", bool(asked))
        for device in devices
    )
    plan["problem"] = next((each for each in problems if each), None)
    if plan["problem"] is None and modules and plan["flavour"] == "open" and number < OPEN_FIRST:
        plan["problem"] = _problem(
            f"open kernel modules of branch {number}",
            f"branch {OPEN_FIRST} or newer, which have them",
            "set nvidia_driver_flavour: closed, or a newer nvidia_driver_branch",
        )
    return plan


def packages_missing(
    state: Mapping[str, Any], packages: Sequence[Mapping[str, Any]], branch: int, version: str
) -> list[str]:
    """Return the names of those packages that are absent, of another branch, or not of the exact version."""
    missing = []
    for package in packages:
        there = state["packages"].get(package["name"])
        if not package.get("pinned", False):
            # Support packages that the node's state does not list are left to apt.
            continue
        if (
            there is None
            or branch_of(there["version"]) != branch
            or (version and there["version"] != version)
        ):
            missing.append(package["name"])
    return missing


def packages_of(
    pinned: Sequence[str], support: Sequence[str], headers: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return what is to be installed: packages of the branch, others of any version, and the kernel's headers."""
    return [
        *({"name": name, "pinned": True} for name in pinned),
        *({"name": name} for name in support),
        *([dict(headers)] if headers else []),
    ]


def not_held(state: Mapping[str, Any]) -> list[str]:
    """Return the driver's packages that an upgrade may move."""
    return sorted(name for name, package in state["packages"].items() if not package["held"])


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "nvidia_driver_plan": driver_plan,
            "nvidia_packages": packages_of,
            "nvidia_packages_missing": packages_missing,
            "nvidia_not_held": not_held,
        }
