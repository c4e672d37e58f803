"""What the user asked for, what is known of the lab and defaults, made into one wish."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from labctl.errors import ConfigError
from labctl.providers.cloud import catalogue
from labctl.providers.cloud.model import CloudOptions
from labctl.providers.cloud.wish import Wish, checked


def decide(
    cloud: catalogue.Cloud,
    known: Mapping[str, Any],
    options: CloudOptions,
    nodes: int | None,
    own: Mapping[str, Any],
) -> Wish:
    """Return the wish that defaults, what is known of the lab and options make together.

    Args:
        cloud: The cloud.
        known: Fields that the lab's file or its state has.
        options: What the command line says; it wins.
        nodes: `--nodes`.
        own: Fields found out for this user and machine: `lab`, `lab_id`, `owner`, `project`, `region`.

    Raises:
        ConfigError: They contradict each other, or a value cannot be.
    """
    values = {**_defaults(cloud, own), **known}
    if nodes is not None:
        values["nodes"] = nodes
    given = {
        each.name: getattr(options, each.name)
        for each in fields(options)
        if getattr(options, each.name) is not None
    }
    if not options.admin_cidrs:
        given.pop("admin_cidrs", None)
    values.update(_place(cloud, known, given, values))
    values.update(_machine(cloud, known, given))
    if "image" in given:
        values.update(_image(cloud, given.pop("image"), values))
    for name in ("region", "zone", "machine_type", "gpu_type", "gpu_count"):
        given.pop(name, None)
    values.update(given)
    if "image" in known and "user" not in known:
        values["user"] = cloud.user_of(str(values["image"]))
    if "disk_gb" not in {**known, **given}:
        values["disk_gb"] = catalogue.GPU_DISK_GB if values["gpu_count"] else catalogue.CPU_DISK_GB
    return checked(Wish(**values), "the options")


def _defaults(cloud: catalogue.Cloud, own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "provider": cloud.name,
        "nodes": catalogue.DEFAULT_NODES,
        "project": "",
        "image": cloud.image,
        "image_owner": cloud.image_owner,
        "disk_gb": catalogue.CPU_DISK_GB,
        "spot": False,
        "network": "",
        "subnet_cidr": catalogue.DEFAULT_SUBNET,
        "ssh_by": "public",
        "user": cloud.user_of(cloud.image),
        "admin_cidrs": (),
        "max_hours": catalogue.DEFAULT_MAX_HOURS,
        "idle_minutes": catalogue.DEFAULT_IDLE_MINUTES,
        "tasks": {},
        **own,
    }


def _place(
    cloud: catalogue.Cloud,
    known: Mapping[str, Any],
    given: Mapping[str, Any],
    values: Mapping[str, Any],
) -> dict[str, str]:
    """Return region and zone; what is given wins over what is known, and one names the other."""
    for source in (given, known):
        zone, region = source.get("zone"), source.get("region")
        if zone and region and cloud.region_of(zone) != region:
            raise ConfigError(
                f"zone {zone} is not in region {region}",
                expected=f"a zone of {region}, such as {cloud.default_zone(region)}",
                do="name the zone alone: its region follows",
            )
        if zone or region:
            place = region or cloud.region_of(str(zone))
            return {"region": place, "zone": zone or cloud.default_zone(place)}
    place = str(values.get("region") or cloud.region)
    return {"region": place, "zone": cloud.default_zone(place)}


def _machine(
    cloud: catalogue.Cloud, known: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return machine type and GPUs; one names the other."""
    for source in (given, known):
        machine = source.get("machine_type")
        has_gpu = "gpu_type" in source or "gpu_count" in source
        if machine is None and not has_gpu:
            continue
        gpu_type = str(source.get("gpu_type") or "").upper()
        count = int(source.get("gpu_count") or (1 if gpu_type else 0))
        if machine is None:
            machine = cloud.machine_for(gpu_type, count)
        of_itself = cloud.gpu_of(machine)
        attached = bool(cloud.attaches) and machine.startswith(cloud.attaches)
        if not has_gpu:
            gpu_type, count = of_itself or ("", 0)
        elif of_itself is not None and not attached and (gpu_type, count) != of_itself:
            having = f"{of_itself[1]} x {of_itself[0]}" if of_itself[1] else "no GPU"
            raise ConfigError(
                f"{machine} has {having}, --gpu asks for {count} x {gpu_type or 'none'}",
                expected="GPUs that the machine type has",
                do="name only one of --gpu and --machine-type",
            )
        return {"machine_type": machine, "gpu_type": gpu_type, "gpu_count": count}
    gpu_type, count = catalogue.DEFAULT_GPU
    machine = cloud.machine_for(gpu_type, count)
    return {"machine_type": machine, "gpu_type": gpu_type, "gpu_count": count}


def _image(cloud: catalogue.Cloud, text: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of `--image [OWNER/]NAME`; OWNER is an account's number or alias, or a project."""
    owner, slash, name = text.partition("/")
    is_owner = re.fullmatch(r"[0-9]{12}|amazon|self|aws-marketplace", owner) is not None
    if slash and (is_owner if cloud.name == "aws" else bool(owner)):
        return {"image": name, "image_owner": owner, "user": cloud.user_of(name)}
    return {
        "image": text,
        "image_owner": "" if text.startswith("ami-") else str(values["image_owner"]),
        "user": cloud.user_of(text),
    }
