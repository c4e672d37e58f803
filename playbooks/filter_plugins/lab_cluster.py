"""The cluster that an inventory describes: checked before anything is touched, then handed to the roles.

Runs inside `ansible-playbook` on the control machine; standard library, PyYAML and Ansible only.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Undefined

GROUP = "tf_cluster"
DEFAULT_PORT = 2222
PORT_MIN, PORT_MAX = 1024, 65535
ROLES = Path(__file__).resolve().parents[2] / "roles"

# Variables of the lab as a whole; every role's own stand in its meta/argument_specs.yml.
LAB_VARIABLES = frozenset(
    {
        "lab_admin_cidrs",
        "lab_cloud_disk_gb",
        "lab_cloud_gpu_count",
        "lab_cloud_gpu_type",
        "lab_cloud_image",
        "lab_cloud_image_owner",
        "lab_cloud_machine_type",
        "lab_cloud_network",
        "lab_cloud_nodes",
        "lab_cloud_project",
        "lab_cloud_region",
        "lab_cloud_spot",
        "lab_cloud_ssh_by",
        "lab_cloud_subnet_cidr",
        "lab_cloud_tasks",
        "lab_cloud_timeout_s",
        "lab_cloud_user",
        "lab_cloud_zone",
        "lab_id",
        "lab_idle_minutes",
        "lab_local_dir",
        "lab_max_hours",
        "lab_name",
        "lab_owner",
        "lab_provider",
        "lab_proxy_env",
        "tf_data_address",
        "tf_port",
        "tf_task_index",
    }
)
_OWN_NAMESPACES = ("lab_", "tf_")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\Z")
_ABSENT = object()


def _problem(found: str, expected: str, do: str) -> str:
    return f"{found}\n  expected  {expected}\n  do        {do}"


class _NotEvaluatedError(Exception):
    """A variable is an expression that has no value yet."""


def _value(variables: Mapping[str, Any], name: str) -> Any:
    """Return a host's variable, `_ABSENT` without it."""
    if name not in variables:
        return _ABSENT
    value = variables[name]
    if isinstance(value, Undefined):
        raise _NotEvaluatedError(name)
    return value


def _whole_number(value: Any) -> int | None:
    """Return the number that Ansible means by 2222, "2222" or " 2222"; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else None


def _data_address(host: str, variables: Mapping[str, Any]) -> Any:
    for name in ("tf_data_address", "ansible_host", "ansible_ssh_host"):
        value = _value(variables, name)
        if value is not _ABSENT and value not in {"", None}:
            return value
    return host


def _address_problem(address: Any) -> tuple[str, str] | None:
    """Return what is expected and what to do, or None for an address that TensorFlow peers can use."""
    expected = "an IPv4 address, an IPv6 address in brackets or a host name, nothing around it"
    if not isinstance(address, str):
        return expected, "set tf_data_address to the private address alone"
    if "://" in address:
        return expected, "remove the scheme"
    if "@" in address:
        return expected, "remove the user; the login user is ansible_user"
    bare = re.sub(r"\A\[(.*:.*)\]\Z", r"\1", address)
    name = address.lower()
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        is_own = name == "localhost" or name.startswith("localhost.")
        is_usable = _HOST_NAME.match(address) and not re.fullmatch(r"[0-9.]+", address)
    else:
        is_own = parsed.is_loopback or parsed.is_unspecified
        is_usable = (parsed.version == 6) == (bare != address)
    if is_own:
        return (
            "an address that its peers can reach",
            "set tf_data_address to the node's private address",
        )
    return None if is_usable else (expected, "set tf_data_address to the private address alone")


def _admin_problem(networks: Any) -> tuple[str, str] | None:
    expected = "a list of one network or more, such as 198.51.100.0/24"
    do = "set lab_admin_cidrs in the inventory to the networks that you log in from"
    if networks is _ABSENT or not isinstance(networks, list) or not networks:
        return expected, do
    for network in networks:
        try:
            ipaddress.ip_network(network, strict=False)
        except (ValueError, TypeError):
            return expected, f"{do}; {network!r} is none"
    return None


def _known_variables() -> frozenset[str]:
    names = set(LAB_VARIABLES)
    for path in ROLES.glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            names.update(entry.get("options", {}))
    return frozenset(names)


def _own_prefixes() -> tuple[str, ...]:
    roles = (path.parent.parent.name for path in ROLES.glob("*/meta/argument_specs.yml"))
    return (*_OWN_NAMESPACES, *(f"{role}_" for role in roles))


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Return the names in the lab's namespaces that no role or playbook reads, with the nearest known one or ""."""
    known, prefixes = _known_variables(), _own_prefixes()
    unknown = sorted(name for name in set(names) if name.startswith(prefixes) and name not in known)
    return {
        name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")
        for name in unknown
    }


def _host_problems(host: str, variables: Mapping[str, Any]) -> list[str]:
    problems = []
    index, port = _value(variables, "tf_task_index"), _value(variables, "tf_port")
    if index is _ABSENT:
        problems.append(
            _problem(
                f"{host}: tf_task_index is not set", "0, 1, 2, ... each once", "set it in hosts.yml"
            )
        )
    elif _whole_number(index) is None or int(index) < 0:
        problems.append(
            _problem(
                f"{host}: tf_task_index is {index!r}",
                "0, 1, 2, ... each once",
                "correct it in hosts.yml",
            )
        )
    if port is not _ABSENT and not PORT_MIN <= (_whole_number(port) or 0) <= PORT_MAX:
        problems.append(
            _problem(
                f"{host}: tf_port is {port!r}",
                f"{PORT_MIN} to {PORT_MAX}; the servers run without root's rights",
                f"correct it, or drop it for {DEFAULT_PORT}",
            )
        )
    address = _data_address(host, variables)
    if (wrong := _address_problem(address)) is not None:
        problems.append(_problem(f"{host}: its data address is {address!r}", *wrong))
    networks = _value(variables, "lab_admin_cidrs")
    if (wrong := _admin_problem(networks)) is not None:
        shown = "not set" if networks is _ABSENT else repr(networks)
        problems.append(_problem(f"{host}: lab_admin_cidrs is {shown}", *wrong))
    for name, nearest in misspelt(variables).items():
        problems.append(
            _problem(
                f"{host}: no role or playbook reads the variable {name}",
                nearest or "a variable of a README below roles/, or of inventory/example",
                f"rename it to {nearest}"
                if nearest
                else "remove it, or give it a prefix of your own",
            )
        )
    return problems


def _index_problems(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Return problems of the indices together; each is a whole number already."""
    by_index: dict[int, list[str]] = {}
    for host in hosts:
        by_index.setdefault(int(hostvars[host]["tf_task_index"]), []).append(host)
    problems = [
        _problem(
            f"tf_task_index {index} is given to {', '.join(same)}",
            "each index once",
            "number the tasks anew",
        )
        for index, same in sorted(by_index.items())
        if len(same) > 1
    ]
    if not problems and sorted(by_index) != list(range(len(hosts))):
        found = ", ".join(str(index) for index in sorted(by_index))
        problems.append(
            _problem(
                f"tf_task_index of the {len(hosts)} hosts: {found}",
                f"0 to {len(hosts) - 1} without a gap",
                "number the tasks anew",
            )
        )
    return problems


def _address_clashes(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> list[str]:
    by_address: dict[str, list[str]] = {}
    for host in hosts:
        by_address.setdefault(str(_data_address(host, hostvars[host])).lower(), []).append(host)
    return [
        _problem(
            f"{', '.join(same)} share the data address {address}",
            "an address of its own for each task",
            "set tf_data_address of each host to its own private address",
        )
        for address, same in by_address.items()
        if len(same) > 1
    ]


def _group_problems(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return where the groups tf_client and tf_workers, if the inventory has them, contradict the indices."""
    problems = []
    for group in ("tf_client", "tf_workers"):
        if not groups.get(group):
            continue
        wanted = [
            host
            for host in groups[GROUP]
            if (int(hostvars[host]["tf_task_index"]) == 0) == (group == "tf_client")
        ]
        if sorted(wanted) != sorted(groups[group]):
            problems.append(
                _problem(
                    f"group {group} holds {', '.join(groups[group])}",
                    f"{', '.join(wanted)}, as tf_task_index says",
                    "move the hosts, or remove the group: only tf_cluster is needed",
                )
            )
    return problems


def lab_problems(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an inventory, each entry with found, expected and do; empty when it can be used."""
    hosts = list(groups.get(GROUP, []))
    if len(hosts) < 2:
        return [
            _problem(
                f"group {GROUP} has {len(hosts)} host{'' if len(hosts) == 1 else 's'}",
                "two or more, each with its tf_task_index",
                "labctl up, or copy inventory/example to inventory/<lab>, edit it and link inventory/active to it",
            )
        ]
    problems = []
    for host in hosts:
        try:
            problems += _host_problems(host, hostvars[host])
        except _NotEvaluatedError as error:
            problems.append(
                _problem(
                    f"{host}: the expression of {error} cannot be evaluated",
                    "a value that needs no facts",
                    "write the value itself into the inventory",
                )
            )
    if problems:
        return problems
    problems = _index_problems(hosts, hostvars)
    return (
        problems
        + _address_clashes(hosts, hostvars)
        + ([] if problems else _group_problems(groups, hostvars))
    )


def lab_tasks(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the tasks of a valid inventory in task order: host, index, data_address, port, tf_address."""
    tasks = []
    for host in groups[GROUP]:
        variables = hostvars[host]
        port = int(variables["tf_port"]) if "tf_port" in variables else DEFAULT_PORT
        address = str(_data_address(host, variables))
        tasks.append(
            {
                "host": host,
                "index": int(variables["tf_task_index"]),
                "data_address": address,
                "port": port,
                "tf_address": f"{address}:{port}",
            }
        )
    return sorted(tasks, key=lambda task: task["index"])


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"lab_problems": lab_problems, "lab_tasks": lab_tasks}
