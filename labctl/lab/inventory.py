"""What Ansible says of an inventory, turned into a Lab. Pure: `labctl.playbook` asks Ansible."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.errors import InventoryError
from labctl.lab.cluster import check_cluster
from labctl.lab.model import DEFAULT_PORT, LOOPBACK, Lab, Node, SshTarget

GROUP = "tf_cluster"

HOST_VARS = ("ansible_host", "ansible_ssh_host")
USER_VARS = ("ansible_user", "ansible_ssh_user")
PORT_VARS = ("ansible_port", "ansible_ssh_port")
KEY_VARS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
ARGS_VARS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
PASSWORD_VARS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
LAB_VARS = ("tf_task_index", "tf_data_address", "tf_port", "lab_provider", "ansible_connection")
READ_VARS = (*HOST_VARS, *USER_VARS, *PORT_VARS, *KEY_VARS, *ARGS_VARS, *LAB_VARS)


@dataclass(frozen=True, slots=True)
class ConnectionDefaults:
    """Connection settings of `ansible.cfg` and the environment, below the inventory's own.

    Attributes:
        user: `remote_user`.
        port: `remote_port`.
        key_file: `private_key_file`.
        common_args: `ssh_common_args`.
    """

    user: str | None = None
    port: str | None = None
    key_file: str | None = None
    common_args: str = ""


_MARKS = ("__ansible_vault", "__ansible_unsafe")


def cluster_hosts(listing: Mapping[str, Any]) -> list[str]:
    """Return the hosts of group tf_cluster and its children, in Ansible's order, each once.

    Args:
        listing: `ansible-inventory --list`.
    """
    found: dict[str, None] = {}
    seen: set[str] = set()

    def visit(group: str) -> None:
        if group in seen:
            return
        seen.add(group)
        members = listing.get(group) or {}
        for host in members.get("hosts", ()):
            found[str(host)] = None
        for child in members.get("children", ()):
            visit(str(child))

    visit(GROUP)
    return list(found)


def needs_rendering(value: object) -> bool:
    """Return whether a value of `ansible-inventory` is a template, vaulted, or marked as from outside."""
    return (isinstance(value, str) and ("{{" in value or "{%" in value)) or (
        isinstance(value, Mapping) and not value.keys().isdisjoint(_MARKS)
    )


def lab_from_listing(
    name: str,
    listing: Mapping[str, Any],
    *,
    inventory: Path,
    local_dir: Path,
    defaults: ConnectionDefaults,
) -> Lab:
    """Return the lab that an inventory describes.

    Args:
        name: The lab's name.
        listing: `ansible-inventory --list`, templates rendered.
        inventory: The inventory directory, for messages.
        local_dir: `.lab/<name>`.
        defaults: What `ansible.cfg` says.

    Raises:
        InventoryError: The description is not that of a lab.
    """
    hostvars: Mapping[str, Any] = (listing.get("_meta") or {}).get("hostvars") or {}
    nodes = [
        _node(host, hostvars.get(host) or {}, inventory=inventory, defaults=defaults)
        for host in cluster_hosts(listing)
    ]
    ordered = check_cluster(nodes, where=str(inventory))
    providers = {
        str((hostvars.get(node.name) or {}).get("lab_provider", "none")) for node in ordered
    }
    if len(providers) > 1:
        raise InventoryError(
            f"lab_provider differs between hosts of {inventory}: {', '.join(sorted(providers))}",
            expected="one provider for a lab",
            do="set lab_provider in group_vars/all.yml only",
        )
    return Lab(name, ordered, inventory, providers.pop(), local_dir)


def loopback_lab(local_dir: Path, ports: tuple[int, ...]) -> Lab:
    """Return the lab of processes on this machine, one task for each port."""
    nodes = tuple(
        Node(f"tf{index}", index, "127.0.0.1", port, ssh=None) for index, port in enumerate(ports)
    )
    return Lab(LOOPBACK, check_cluster(nodes, where="the loopback lab"), None, LOOPBACK, local_dir)


def _node(
    host: str, hostvars: Mapping[str, Any], *, inventory: Path, defaults: ConnectionDefaults
) -> Node:
    def first(names: tuple[str, ...]) -> Any:
        for each in names:
            value = hostvars.get(each)
            if value is not None and value != "":
                return value
        return None

    connection = hostvars.get("ansible_connection", "ssh")
    if connection not in {"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"}:
        raise InventoryError(
            f"ansible_connection of {host} is {connection!r} in {inventory}",
            expected="ssh: labctl reaches its nodes over SSH only",
            do=f"remove ansible_connection of {host}",
        )
    if (used := next((each for each in PASSWORD_VARS if hostvars.get(each)), None)) is not None:
        raise InventoryError(
            f"{used} is set for {host} in {inventory}: labctl does not log in by password",
            expected="a key (ansible_ssh_private_key_file) or an agent",
            do=f"ssh-copy-id to {host}, then remove {used}",
        )
    if "tf_task_index" not in hostvars:
        raise InventoryError(
            f"{host} has no tf_task_index in {inventory}",
            expected="a number from 0, unique in tf_cluster; 0 is the client's",
            do=f"add tf_task_index to {host} in hosts.yml",
        )
    address = str(first(HOST_VARS) or host)
    user, key = first(USER_VARS) or defaults.user, first(KEY_VARS) or defaults.key_file
    port = first(PORT_VARS) or defaults.port
    options = [defaults.common_args, *(str(hostvars.get(each) or "") for each in ARGS_VARS)]
    if hostvars.get(ARGS_VARS[0]):
        options[0] = (
            ""  # the inventory's ssh_common_args replace those of ansible.cfg, as in Ansible
        )
    return Node(
        name=host,
        task_index=_number(host, "tf_task_index", hostvars["tf_task_index"], inventory),
        data_address=str(hostvars.get("tf_data_address") or address),
        tf_port=_number(host, "tf_port", hostvars.get("tf_port", DEFAULT_PORT), inventory),
        ssh=SshTarget(
            host=address,
            user=None if user is None else str(user),
            port=None if port is None else _number(host, "ansible_port", port, inventory),
            key_file=None if key is None else Path(str(key)).expanduser(),
            options=tuple(_split(host, " ".join(options), inventory)),
        ),
    )


def _number(host: str, variable: str, value: object, inventory: Path) -> int:
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise InventoryError(
            f"{variable} of {host} is {value!r} in {inventory}",
            expected="a whole number",
            do=f"correct it for {host}",
        )
    return int(str(value))


def _split(host: str, options: str, inventory: Path) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise InventoryError(
            f"the SSH arguments of {host} cannot be read in {inventory}: {error}",
            expected="arguments of ssh, quoted as in a shell",
            do=f"correct ansible_ssh_common_args of {host}",
        ) from error
