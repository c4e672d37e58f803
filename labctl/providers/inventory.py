"""The inventory directory that `labctl up` writes, and which of its files are labctl's to remove."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from ipaddress import IPv4Address, IPv4Network
from itertools import chain, count
from pathlib import Path
from typing import Any

from labctl.errors import ConfigError
from labctl.lab.home import inventory_sources
from labctl.providers.identity import node_name
from labctl.providers.image import ADMIN
from labctl.providers.keys import KEY, ssh_options
from labctl.providers.machine import UV_CACHE
from labctl.providers.network import host_address, node_address

HOSTS = "hosts.yml"
GROUP_VARS = "group_vars/all.yml"
_HEAD = re.compile(r"# Written by labctl up(?: for (\w+))? \(sha256 ([0-9a-f]{64})\)[^\n]*\n")


def hosts_text(local_dir: Path, subnet: IPv4Network, nodes: int) -> str:
    """Return `hosts.yml` of a lab: `tf_cluster` with children `tf_client` (task 0) and `tf_workers`."""
    import yaml

    def host(index: int) -> dict[str, Any]:
        address = str(node_address(subnet, index))
        return {
            "ansible_host": address,
            "ansible_user": ADMIN,
            "ansible_ssh_private_key_file": str(local_dir / KEY),
            "ansible_ssh_common_args": ssh_arguments(local_dir),
            "ansible_python_interpreter": "/usr/bin/python3",
            "tf_task_index": index,
            "tf_data_address": address,
        }

    children = {
        "tf_client": {"hosts": {node_name(0): host(0)}},
        "tf_workers": {"hosts": {node_name(index): host(index) for index in range(1, nodes)}},
    }
    body: str = yaml.safe_dump(
        {"tf_cluster": {"children": children}}, sort_keys=False, width=10_000
    )
    return sealed(
        body, "labctl up writes it anew, labctl down removes it: put your own in group_vars"
    )


def group_vars_text(gateway: IPv4Address) -> str:
    """Return `group_vars/all.yml` of a lab."""
    import yaml

    body: str = yaml.safe_dump(
        {
            "lab_provider": "rehearsal",
            "lab_admin_cidrs": [f"{gateway}/32"],
            "tensorflow_uv_cache_dir": UV_CACHE,
        },
        sort_keys=False,
    )
    return sealed(body, "edit it and labctl leaves it alone from then on")


def ssh_arguments(local_dir: Path) -> str:
    """Return `ansible_ssh_common_args` of a lab's machines."""
    return " ".join(_quoted(word) for word in ssh_options(local_dir))


def _quoted(word: str) -> str:
    return f"'{word}'" if re.search(r"\s", word) else word


def sealed(body: str, remark: str, *, cloud: str = "") -> str:
    """Return a file's text with a first line by which labctl knows its own, unedited work.

    Args:
        body: The text.
        remark: What the user should know of the file.
        cloud: The cloud that the lab is in, "" for a rehearsal lab.
    """
    of = f" for {cloud}" if cloud else ""
    return f"# Written by labctl up{of} (sha256 {_digest(body)}): {remark}\n{body}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def is_sealed(text: str, *, unedited: bool = True, cloud: str = "") -> bool:
    """Return whether labctl wrote a text for a lab of this kind, and (`unedited`) nobody has changed it since."""
    match = _HEAD.match(text)
    if match is None or (match[1] or "") != cloud:
        return False
    return not unedited or match[2] == _digest(text[match.end() :])


def is_ours(folder: Path) -> bool:
    """Return whether an inventory directory was made by labctl for a rehearsal lab."""
    file = folder / HOSTS
    return file.is_file() and is_sealed(file.read_text(errors="replace"), unedited=False)


def foreign(folder: Path) -> list[str]:
    """Return the inventory files in a directory that labctl did not write; variables are not among them."""
    return [name for name in inventory_sources(folder) if not (name == HOSTS and is_ours(folder))]


def check_writable(folder: Path) -> None:
    """Check that labctl may write a lab's inventory.

    Raises:
        ConfigError: The directory holds an inventory that labctl did not write.
    """
    found = foreign(folder)
    if found:
        raise ConfigError(
            f"{folder / found[0]} was not written by labctl",
            expected="a lab's name that no inventory of yours has",
            do="labctl up --lab NAME with another name",
        )


def write(folder: Path, local_dir: Path, subnet: IPv4Network, nodes: int) -> list[str]:
    """Write a lab's inventory; what the user edited stays: group_vars as it is, hosts.yml under another name.

    Returns:
        Notes for the user.
    """
    (folder / "group_vars").mkdir(mode=0o755, parents=True, exist_ok=True)
    notes = write_hosts(folder, hosts_text(local_dir, subnet, nodes))
    variables = folder / GROUP_VARS
    text = group_vars_text(host_address(subnet))
    if not variables.exists() or is_sealed(variables.read_text(errors="replace")):
        _replace(variables, text)
        return notes
    cidr = f"{host_address(subnet)}/32"
    if cidr in variables.read_text(errors="replace"):
        return notes
    return [*notes, f"{variables} is yours and stays; lab_admin_cidrs there should have {cidr}"]


def write_hosts(folder: Path, text: str, *, cloud: str = "") -> list[str]:
    """Write `hosts.yml` anew; one that the user edited is kept beside it, where Ansible does not read it.

    Returns:
        Notes for the user.
    """
    file, notes = folder / HOSTS, []
    if file.exists():
        old = file.read_text(errors="replace")
        if old != text and not is_sealed(old, cloud=cloud):
            kept = _free_name(folder)
            shutil.copyfile(file, kept)
            notes = [
                f"{file} was edited and is written anew; your version is {kept.name} beside it"
            ]
    _replace(file, text)
    return notes


def _free_name(folder: Path) -> Path:
    """Return a name that Ansible passes over and no earlier version has."""
    names = chain([f"{HOSTS}.orig"], (f"{HOSTS}.{number}.orig" for number in count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def files(folder: Path) -> list[Path]:
    """Return an inventory directory and what labctl writes in it."""
    written = [folder / HOSTS, (folder / GROUP_VARS).parent, folder / GROUP_VARS]
    return [folder, *written, *folder.glob(f"{HOSTS}*.orig")]


def remove(folder: Path) -> tuple[bool, list[Path]]:
    """Remove the files that labctl wrote and nobody edited, and the directory if it is empty then.

    Returns:
        Whether something was removed, and the user's files that stay.
    """
    removed = False
    if not folder.is_dir():
        return False, []
    if is_ours(folder):
        (folder / HOSTS).unlink()
        removed = True
    variables = folder / GROUP_VARS
    if variables.is_file() and is_sealed(variables.read_text(errors="replace")):
        variables.unlink()
        removed = True
    for each in (variables.parent, folder) if removed else ():
        if each.is_dir() and not any(each.iterdir()):
            each.rmdir()
    return removed, sorted(path for path in folder.rglob("*") if not path.is_dir())


def _replace(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)
