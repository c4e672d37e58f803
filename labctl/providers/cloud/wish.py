"""What a lab in a cloud shall be: the variables of `playbooks/cloud/README.md`, read, checked and decided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from pathlib import Path
from typing import Any

from labctl.errors import ConfigError
from labctl.providers.cloud.model import CLOUDS
from labctl.providers.state import MAX_NODES
from labctl.runs.codec import decode, encode

MAX_HOURS = 24 * 31.0
_FIRST_HOST = 10  # task k gets the subnet's address number 10 + k
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+*-]{0,254}\Z")
_LABEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class TaskWish:
    """In what one task's machine differs; None as the others.

    Attributes:
        machine_type: Its machine type.
        gpu_type: Its GPUs' type.
        gpu_count: Their number.
        image: Its image.
        image_owner: Whose image.
        disk_gb: Its boot disk, GB.
        spot: Spot machine.
        private_address: Its address in the subnet.
    """

    machine_type: str | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    image: str | None = None
    image_owner: str | None = None
    disk_gb: int | None = None
    spot: bool | None = None
    private_address: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """A lab in a cloud as it shall be; every field has its final value.

    Attributes:
        lab: Its name.
        provider: `aws` or `gcp`.
        lab_id: 8 hex digits.
        owner: Who made it.
        nodes: Number of machines.
        project: Project that pays, `gcp` only.
        region: Where.
        zone: Where in the region.
        machine_type: Of each machine.
        gpu_type: "" for none.
        gpu_count: GPUs of each machine.
        image: Id, name pattern or family.
        image_owner: Whose image.
        disk_gb: Boot disk of each, GB.
        spot: Spot machines.
        network: An existing network, "" for one of its own.
        subnet_cidr: Subnet that is made.
        ssh_by: `public` or `private`.
        user: Login user.
        admin_cidrs: Networks that SSH is open to.
        max_hours: Dead-man timer, hours; 0 never.
        idle_minutes: Dead-man timer, minutes without a run; 0 never.
        tasks: Differences by task index, as text.
    """

    lab: str
    provider: str
    lab_id: str
    owner: str
    nodes: int
    project: str
    region: str
    zone: str
    machine_type: str
    gpu_type: str
    gpu_count: int
    image: str
    image_owner: str
    disk_gb: int
    spot: bool
    network: str
    subnet_cidr: str
    ssh_by: str
    user: str
    admin_cidrs: tuple[str, ...]
    max_hours: float
    idle_minutes: float
    tasks: dict[str, TaskWish] = field(default_factory=dict)

    def task(self, index: int) -> TaskWish:
        """Return what one task's machine shall be, every field but its address set."""
        own = self.tasks.get(str(index), TaskWish())
        return TaskWish(
            machine_type=own.machine_type or self.machine_type,
            gpu_type=self.gpu_type if own.gpu_type is None else own.gpu_type,
            gpu_count=self.gpu_count if own.gpu_count is None else own.gpu_count,
            image=own.image or self.image,
            image_owner=self.image_owner if own.image_owner is None else own.image_owner,
            disk_gb=own.disk_gb or self.disk_gb,
            spot=self.spot if own.spot is None else own.spot,
            private_address=own.private_address,
        )

    def variables(self, local_dir: Path) -> dict[str, Any]:
        """Return the variables of `playbooks/cloud/README.md`, and the build of TensorFlow that fits."""
        values: dict[str, Any] = {
            variable: encode(getattr(self, name)) for variable, name in VARIABLES.items()
        }
        values["lab_cloud_tasks"] = {
            index: {key: value for key, value in encode(task).items() if value is not None}
            for index, task in self.tasks.items()
        }
        values["lab_local_dir"] = str(local_dir)
        if any(self.task(index).gpu_count for index in range(self.nodes)):
            values["tensorflow_build"] = "gpu"
        return values


VARIABLES = {
    "lab_name": "lab",
    "lab_owner": "owner",
    "lab_id": "lab_id",
    "lab_provider": "provider",
    "lab_cloud_nodes": "nodes",
    "lab_cloud_project": "project",
    "lab_cloud_region": "region",
    "lab_cloud_zone": "zone",
    "lab_cloud_machine_type": "machine_type",
    "lab_cloud_gpu_type": "gpu_type",
    "lab_cloud_gpu_count": "gpu_count",
    "lab_cloud_image": "image",
    "lab_cloud_image_owner": "image_owner",
    "lab_cloud_disk_gb": "disk_gb",
    "lab_cloud_spot": "spot",
    "lab_cloud_tasks": "tasks",
    "lab_cloud_network": "network",
    "lab_cloud_subnet_cidr": "subnet_cidr",
    "lab_cloud_ssh_by": "ssh_by",
    "lab_cloud_user": "user",
    "lab_admin_cidrs": "admin_cidrs",
    "lab_max_hours": "max_hours",
    "lab_idle_minutes": "idle_minutes",
}
FIXED = {
    "project": "--project",
    "region": "--region",
    "zone": "--zone",
    "machine_type": "--machine-type",
    "gpu_type": "--gpu",
    "gpu_count": "--gpu",
    "image": "--image",
    "image_owner": "--image",
    "disk_gb": "--disk",
    "spot": "--spot",
    "network": "--network",
    "subnet_cidr": "lab_cloud_subnet_cidr",
    "owner": "--owner",
    "user": "lab_cloud_user",
    "lab_id": "lab_id",
}
"""Fields that hold for the life of a lab's machines, and what names them for the user."""


def known_values(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a wish that a file of variables sets.

    Args:
        data: What YAML made of the file.
        where: Its path, for messages.

    Raises:
        ConfigError: A value is not what its variable asks for.
    """
    values: dict[str, Any] = {}
    for variable, name in VARIABLES.items():
        if variable not in data or data[variable] is None:
            continue
        value = data[variable]
        if _has_template(value):
            raise _wrong(where, f"{variable} is a template; labctl reads this file without Ansible")
        if name in {"max_hours", "idle_minutes"} and isinstance(value, int):
            value = float(value)
        if name in {"project", "image_owner", "lab_id"} and type(value) is int:
            value = str(value)
        if name == "tasks" and isinstance(value, dict):
            value = {str(index): task for index, task in value.items()}
        values[name] = value
    _typed(values, where)
    return values


def checked(wish: Wish, where: str) -> Wish:
    """Return a wish whose every value can be.

    Raises:
        ConfigError: One cannot.
    """
    if wish.provider not in CLOUDS:
        raise _wrong(where, f"lab_provider is {wish.provider!r}")
    _range(where, "the number of nodes", wish.nodes, 1, MAX_NODES)
    _range(where, "lab_max_hours", wish.max_hours, 0.0, MAX_HOURS)
    _range(where, "lab_idle_minutes", wish.idle_minutes, 0.0, MAX_HOURS * 60)
    if wish.ssh_by not in {"public", "private"}:
        raise _wrong(where, f"lab_cloud_ssh_by is {wish.ssh_by!r}", "public or private")
    if not _LABEL.match(wish.owner):
        raise _wrong(where, f"the owner is {wish.owner!r}", "a-z, 0-9, - and _, at most 63")
    if not re.fullmatch(r"[0-9a-f]{8}", wish.lab_id):
        raise _wrong(where, f"lab_id is {wish.lab_id!r}", "8 hex digits, in quotes")
    if wish.provider == "gcp" and not wish.project:
        raise ConfigError(
            "no project of gcp is named",
            expected="the project that pays",
            do="--project ID, or set GOOGLE_CLOUD_PROJECT",
        )
    for name in ("region", "zone", "machine_type", "image"):
        _word(where, name, getattr(wish, name))
    for name in ("project", "gpu_type", "image_owner", "network", "user"):
        if getattr(wish, name):
            _word(where, name, getattr(wish, name))
    subnet = _network(where, "lab_cloud_subnet_cidr", wish.subnet_cidr)
    if not (subnet.is_private and 16 <= subnet.prefixlen <= 27):
        raise _wrong(where, f"lab_cloud_subnet_cidr is {subnet}", "a private range, /16 to /27")
    admins = [_network(where, "lab_admin_cidrs", each) for each in wish.admin_cidrs]
    if any(each.prefixlen == 0 for each in collapse_addresses(admins)):
        raise _wrong(
            where,
            f"lab_admin_cidrs has {', '.join(map(str, admins))}, the whole internet",
            "the networks that you log in from",
        )
    _check_tasks(wish, subnet, where)
    return wish


def _check_tasks(wish: Wish, subnet: IPv4Network, where: str) -> None:
    used: set[str] = set()
    for task_index in wish.tasks:
        if not task_index.isdecimal() or int(task_index) >= MAX_NODES:
            raise _wrong(where, f"lab_cloud_tasks has {task_index!r}", "task indices from 0")
    for index in range(wish.nodes):
        task = wish.task(index)
        _word(where, "machine_type", task.machine_type or "")
        _range(where, f"the disk of task {index}, GB,", task.disk_gb or 0, 10, 16_000)
        _range(where, f"the GPUs of task {index}", task.gpu_count or 0, 0, 16)
        if bool(task.gpu_type) != bool(task.gpu_count):
            raise _wrong(where, f"task {index} has {task.gpu_count} GPUs of type {task.gpu_type!r}")
        address = task.private_address or ("" if wish.network else str(subnet[_FIRST_HOST + index]))
        if task.private_address and not _inside(task.private_address, subnet):
            raise _wrong(
                where,
                f"the address of task {index} is {task.private_address}",
                f"one of {subnet}" if not wish.network else "an IPv4 address",
            )
        if address and address in used:
            raise _wrong(where, f"two tasks have the address {address}")
        used.add(address)


def _inside(text: str, subnet: IPv4Network) -> bool:
    try:
        return IPv4Address(text) in subnet
    except ValueError:
        return False


def _typed(values: dict[str, Any], where: str) -> None:
    """Check the types of known fields against those of a wish."""
    filled = {
        "lab": "a", "provider": "aws", "lab_id": "", "owner": "", "nodes": 1, "project": "",
        "region": "", "zone": "", "machine_type": "", "gpu_type": "", "gpu_count": 0, "image": "",
        "image_owner": "", "disk_gb": 1, "spot": False, "network": "", "subnet_cidr": "",
        "ssh_by": "", "user": "", "admin_cidrs": [], "max_hours": 1.0, "idle_minutes": 1.0,
    }  # fmt: skip
    try:
        read = decode(Wish, {**filled, **values})
    except ValueError as error:
        name = str(error).split(":")[0].split(".")[0].split("[")[0]
        variable = next((key for key, value in VARIABLES.items() if value == name), name)
        raise _wrong(where, f"{variable}{str(error).removeprefix(name)}") from error
    for name in values:
        values[name] = getattr(read, name)


def _has_template(value: Any) -> bool:
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, dict):
        return any(_has_template(each) for each in value.values())
    return isinstance(value, list) and any(_has_template(each) for each in value)


def _range(where: str, what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise _wrong(where, f"{what} is {value:g}", f"{least:g} to {most:g}")


def _word(where: str, what: str, value: str) -> None:
    if not _WORD.match(value):
        raise _wrong(where, f"{what} is {value!r}", "a name as the cloud has them, without blanks")


def _network(where: str, what: str, text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise _wrong(where, f"{what} has {text!r}", "an IPv4 network, e.g. 192.0.2.7/32") from error


def _wrong(where: str, found: str, expected: str | None = None) -> ConfigError:
    return ConfigError(
        f"{where}: {found}",
        expected=expected or "variables as playbooks/cloud/README.md describes them",
        do="correct it, then labctl up again",
    )
