# ruff: noqa: INP001 a single file beside the playbooks, loaded by Ansible
"""What a cloud lab's variables ask for: checked before the cloud is asked, then one entry for each machine.

Runs inside `ansible-playbook` on the control machine; standard library only.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MAX_NODES = 64
_FIRST_ADDRESS = 10
# Addresses of a subnet that the cloud keeps for itself: at its start, at its end.
_RESERVED = {"aws": (4, 1), "gcp": (2, 2)}
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")
_LAB_ID = re.compile(r"[0-9a-f]{8}\Z")
_TASK_KEYS = frozenset(
    {
        "machine_type",
        "gpu_type",
        "gpu_count",
        "image",
        "image_owner",
        "disk_gb",
        "spot",
        "private_address",
    }
)


class _WrongError(ValueError):
    """A variable has a value that no cloud can use: found, expected, do."""

    def __init__(self, found: str, expected: str, do: str) -> None:
        super().__init__(f"{found}\n  expected  {expected}\n  do        {do}")


def _text(variables: Mapping[str, Any], name: str) -> str:
    value = variables.get(name)
    return "" if value is None else str(value).strip()


def _whole(value: Any, name: str, low: int, high: int) -> int:
    text = str(value).strip()
    if (
        isinstance(value, bool)
        or not re.fullmatch(r"[0-9]{1,9}", text)
        or not low <= int(text) <= high
    ):
        raise _WrongError(
            f"{name} is {value!r}",
            f"a whole number, {low} to {high}",
            "correct it in group_vars/all/cloud.yml",
        )
    return int(text)


def _truth(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in {"true", "false"}:
        return str(value).lower() == "true"
    raise _WrongError(
        f"{name} is {value!r}", "true or false", "correct it in group_vars/all/cloud.yml"
    )


def _check_names(variables: Mapping[str, Any]) -> None:
    provider = _text(variables, "lab_provider")
    if provider not in _RESERVED:
        raise _WrongError(
            f"lab_provider is {provider!r}",
            " or ".join(_RESERVED),
            "set it in group_vars/all/cloud.yml",
        )
    name, lab_id = _text(variables, "lab_name"), _text(variables, "lab_id")
    if not _NAME.match(name):
        raise _WrongError(
            f"lab_name is {name!r}",
            "a small letter, then small letters, digits and dashes, 31 at most",
            "give the lab another name",
        )
    if not _LAB_ID.match(lab_id):
        raise _WrongError(
            f"lab_id is {lab_id!r}",
            "8 hex digits in quotes, small letters",
            "set it in group_vars/all/cloud.yml to a number of your own, and never change it while the lab stands",
        )
    for needed in ("lab_local_dir", "lab_owner", "lab_cloud_region", "lab_cloud_zone"):
        if not _text(variables, needed):
            raise _WrongError(
                f"{needed} is not set", "a value", "set it in group_vars/all/cloud.yml"
            )


def _check_admins(variables: Mapping[str, Any]) -> None:
    networks = variables.get("lab_admin_cidrs")
    do = "set lab_admin_cidrs to the networks that you log in from, e.g. [198.51.100.7/32]"
    if not isinstance(networks, list) or not networks:
        raise _WrongError(f"lab_admin_cidrs is {networks!r}", "a list of one network or more", do)
    parsed: list[Any] = []
    for network in networks:
        try:
            parsed.append(ipaddress.ip_network(str(network), strict=False))
        except ValueError:
            raise _WrongError(
                f"lab_admin_cidrs has {network!r}", "networks such as 198.51.100.0/24", do
            ) from None
    for version in (4, 6):
        joined = ipaddress.collapse_addresses(each for each in parsed if each.version == version)
        if any(each.prefixlen == 0 for each in joined):
            raise _WrongError(
                f"lab_admin_cidrs has {', '.join(map(str, networks))}, the whole internet",
                "the networks you log in from",
                do,
            )


def _check_timer(variables: Mapping[str, Any]) -> None:
    for name in ("lab_max_hours", "lab_idle_minutes"):
        value = variables.get(name)
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not 0 <= number <= 10_000:
            raise _WrongError(
                f"{name} is {value!r}",
                "a number from 0 (never) to 10000",
                "correct it in group_vars/all/cloud.yml",
            )


def _subnet(variables: Mapping[str, Any]) -> ipaddress.IPv4Network | None:
    """Return the subnet that is made; None where an existing network is named and no range is."""
    cidr = _text(variables, "lab_cloud_subnet_cidr")
    if not cidr and _text(variables, "lab_cloud_network"):
        return None
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError:
        network = ipaddress.IPv4Network("0.0.0.0/0")
    if not network.is_private or not 16 <= network.prefixlen <= 28:
        raise _WrongError(
            f"lab_cloud_subnet_cidr is {cidr!r}",
            "a private range of /16 to /28 with no bit set behind its prefix, e.g. 10.132.0.0/24",
            "correct it in group_vars/all/cloud.yml",
        )
    return network


def _private_address(
    chosen: str, task: int, subnet: ipaddress.IPv4Network | None, provider: str
) -> str:
    """Return a machine's private address, "" where the cloud shall choose it."""
    if subnet is None and not chosen:
        return ""
    name = f"private address of task {task}"
    do = "choose another in lab_cloud_tasks, or a larger lab_cloud_subnet_cidr"
    try:
        address = (
            ipaddress.IPv4Address(chosen)
            if chosen
            else ipaddress.IPv4Address(
                int(subnet.network_address if subnet else 0) + _FIRST_ADDRESS + task
            )
        )
    except ValueError:
        raise _WrongError(f"the {name} is {chosen!r}", "an IPv4 address", do) from None
    if subnet is not None:
        first, last = _RESERVED[provider]
        low = int(subnet.network_address) + first
        high = int(subnet.broadcast_address) - last
        if not low <= int(address) <= high:
            raise _WrongError(
                f"the {name} is {address}",
                f"one of {subnet} that {provider} does not keep for itself: "
                f"{ipaddress.IPv4Address(low)} to {ipaddress.IPv4Address(high)}",
                do,
            )
    return str(address)


def _of_tasks(variables: Mapping[str, Any], nodes: int) -> dict[int, dict[str, Any]]:
    """Return what single tasks have of their own, by task index."""
    given = variables.get("lab_cloud_tasks") or {}
    do = 'write e.g. lab_cloud_tasks: {"1": {machine_type: g5.xlarge}}'
    if not isinstance(given, Mapping):
        raise _WrongError(f"lab_cloud_tasks is {given!r}", "a mapping by task index", do)
    result = {}
    for key, own in given.items():
        task = _whole(key, "a task of lab_cloud_tasks", 0, nodes - 1)
        unknown = sorted(set(own) - _TASK_KEYS) if isinstance(own, Mapping) else [repr(own)]
        if unknown:
            raise _WrongError(
                f"lab_cloud_tasks, task {task}: {', '.join(map(str, unknown))}",
                ", ".join(sorted(_TASK_KEYS)),
                do,
            )
        result[task] = dict(own)
    return result


def lab_cloud_labels(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of everything that is made for a lab."""
    return {
        "labctl-lab": _text(variables, "lab_name"),
        "labctl-owner": _text(variables, "lab_owner"),
        "labctl-id": _text(variables, "lab_id"),
    }


def lab_cloud_machines(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the machines that a lab's variables ask for, in task order.

    Args:
        variables: `lab_*` of `playbooks/cloud/README.md`.

    Returns:
        Each with node, task, name, machine_type, gpu_type ("" for none), gpu_count, image, image_owner, disk_gb,
        spot, private_address ("" where the cloud chooses) and labels.

    Raises:
        ValueError: A variable cannot be used; the text has what was found, what is expected and what to do.
    """
    _check_names(variables)
    provider = _text(variables, "lab_provider")
    nodes = _whole(variables.get("lab_cloud_nodes", ""), "lab_cloud_nodes", 1, MAX_NODES)
    subnet = _subnet(variables)
    of_tasks = _of_tasks(variables, nodes)
    machines = []
    for task in range(nodes):

        def asked(name: str, default: Any = "", *, own: Mapping[str, Any]) -> Any:
            value = own.get(name, variables.get(f"lab_cloud_{name}"))
            return default if value is None else value

        own = of_tasks.get(task, {})
        node = f"tf{task}"
        gpu_type = str(asked("gpu_type", own=own)).strip()
        machine = {
            "node": node,
            "task": task,
            "name": f"labctl-{_text(variables, 'lab_name')}-{node}",
            "machine_type": str(asked("machine_type", own=own)).strip(),
            "gpu_type": gpu_type,
            "gpu_count": _whole(asked("gpu_count", 0, own=own), "lab_cloud_gpu_count", 0, 16)
            if gpu_type
            else 0,
            "image": str(asked("image", own=own)).strip(),
            "image_owner": str(asked("image_owner", own=own)).strip(),
            "disk_gb": _whole(asked("disk_gb", own=own), "lab_cloud_disk_gb", 8, 16_384),
            "spot": _truth(asked("spot", False, own=own), "lab_cloud_spot"),
            "private_address": _private_address(
                str(own.get("private_address", "")).strip(), task, subnet, provider
            ),
            "labels": {**lab_cloud_labels(variables), "labctl-node": node},
        }
        for needed in ("machine_type", "image"):
            if not machine[needed]:
                raise _WrongError(
                    f"lab_cloud_{needed} is not set",
                    "a value",
                    "set it in group_vars/all/cloud.yml",
                )
        machines.append(machine)
    _check_apart(machines)
    return machines


def _check_apart(machines: Iterable[Mapping[str, Any]]) -> None:
    by_address: dict[str, list[str]] = {}
    for machine in machines:
        if machine["private_address"]:
            by_address.setdefault(machine["private_address"], []).append(machine["node"])
    for address, same in by_address.items():
        if len(same) > 1:
            raise _WrongError(
                f"{', '.join(same)} share the private address {address}",
                "an address of its own for each task",
                "choose others in lab_cloud_tasks",
            )


def lab_cloud_problems(variables: Mapping[str, Any], answer: str = "create") -> list[str]:
    """Return what is wrong with a lab's variables, with found, expected and do; empty when they can be used.

    Args:
        variables: The lab's.
        answer: What the playbook answers with: who only looks or removes needs no networks of administrators, so
            that a lab whose files are lost can be found and removed.
    """
    problems = []
    looks = (lab_cloud_machines, _check_admins, _check_timer)
    for look in looks if answer in {"validate", "create"} else (lab_cloud_machines,):
        try:
            look(variables)
        except _WrongError as error:
            problems.append(str(error))
    return problems


def lab_cloud_known_hosts(resources: Iterable[Mapping[str, Any]], local_dir: str) -> str:
    """Return a known_hosts file that pins each machine's host key to its addresses.

    Args:
        resources: Of an answer; only machines count.
        local_dir: Where `host_keys/<node>_ed25519.pub` are.
    """
    lines = []
    for each in sorted(resources, key=lambda resource: str(resource["node"])):
        public = Path(local_dir) / "host_keys" / f"{each['node']}_ed25519.pub"
        addresses = [each[name] for name in ("private_address", "public_address") if each[name]]
        if each["kind"] == "machine" and addresses and public.is_file():
            kind, key, *_ = public.read_text().split()
            lines.append(f"{','.join(addresses)} {kind} {key}\n")
    return "".join(lines)


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "lab_cloud_known_hosts": lab_cloud_known_hosts,
            "lab_cloud_labels": lab_cloud_labels,
            "lab_cloud_machines": lab_cloud_machines,
            "lab_cloud_problems": lab_cloud_problems,
        }
