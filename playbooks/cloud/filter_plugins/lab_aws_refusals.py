# ruff: noqa: INP001 a single file beside the playbooks, loaded by Ansible
"""What AWS would refuse of a lab, from what it said of zones, machine types, images, quotas and networks.

Runs inside `ansible-playbook` on the control machine; standard library, and botocore's list of regions.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FAMILY = re.compile(r"([a-z]+)[0-9]")
# Quotas of running vCPUs by family of machine types, on demand and spot. Codes as in
# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
_STANDARD = frozenset({"a", "c", "d", "h", "i", "m", "r", "t", "z"})
_QUOTAS = {
    "standard": ("L-1216C47A", "L-34B43A08"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "p5": ("L-417A185B", "L-C4BD4855"),
}


def lab_aws_quota_code(machine: Mapping[str, Any]) -> str:
    """Return the code of the quota that a machine counts against, "" where none is known."""
    family = _FAMILY.match(str(machine["machine_type"]))
    letters = family[1] if family else ""
    if letters in _STANDARD:
        kind = "standard"
    elif letters in {"g", "gr", "vt"}:
        kind = "g"
    elif letters == "p":
        kind = "p5" if str(machine["machine_type"]).startswith("p5") else "p"
    else:
        return ""
    if machine["spot"] and str(machine["machine_type"]).startswith("p6"):
        return ""
    return _QUOTAS[kind][bool(machine["spot"])]


def lab_aws_image_wishes(machines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each image that machines ask for once, with the owners and filters of ec2_ami_info for it."""
    wishes = dict.fromkeys((each["image"], each["image_owner"]) for each in machines)
    return [
        {
            "image": image,
            "owner": owner,
            # An id says all; a name pattern may be anybody's.
            "owners": [owner] if owner and not image.startswith("ami-") else [],
            "filters": {"image-id": image}
            if image.startswith("ami-")
            else {"name": image, "architecture": "x86_64", "state": "available"},
        }
        for image, owner in wishes
    ]


def lab_aws_images(
    machines: Iterable[Mapping[str, Any]], results: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, Any] | None]:
    """Return the newest image that fits each machine's wish, None where none does, by node.

    Args:
        machines: The machines.
        results: Of ec2_ami_info in a loop over `lab_aws_image_wishes`.
    """
    found = {
        (each["item"]["image"], each["item"]["owner"]): each.get("images") or [] for each in results
    }
    chosen = {}
    for machine in machines:
        images = [
            each
            for each in found[machine["image"], machine["image_owner"]]
            if each.get("state") == "available"
        ]
        newest = max(
            images,
            key=lambda each: (str(each.get("creation_date")), each["image_id"]),
            default=None,
        )
        chosen[machine["node"]] = newest and {
            "id": newest["image_id"],
            "name": newest.get("name") or "",
            "architecture": newest.get("architecture") or "",
            "root_device": newest.get("root_device_name") or "/dev/xvda",
            "size_gb": max(
                (
                    int(device["ebs"].get("volume_size") or 0)
                    for device in newest.get("block_device_mappings") or ()
                    if device.get("ebs")
                ),
                default=0,
            ),
        }
    return chosen


def _problem(subject: str, found: str, expected: str, do: str) -> dict[str, str]:
    return {"subject": subject, "found": found, "expected": expected, "do": do}


def _type_problems(
    machine: Mapping[str, Any], offers: Mapping[str, Any], zone: str
) -> Iterable[dict[str, str]]:
    name, offer = machine["machine_type"], offers.get(machine["machine_type"])
    if offer is None:
        yield _problem(
            "machine-type",
            f"this region has no machine type {name}",
            "a machine type of this region, e.g. g4dn.xlarge",
            "correct lab_cloud_machine_type, or use another lab_cloud_region",
        )
        return
    if zone not in offer["zones"]:
        yield _problem(
            "zone",
            f"{zone} does not offer {name}",
            f"one of {', '.join(offer['zones']) or 'no zone of this region'}",
            "correct lab_cloud_zone, or use another machine type",
        )
    if "x86_64" not in offer["architectures"]:
        yield _problem(
            "machine-type",
            f"{name} is {', '.join(offer['architectures'])}",
            "x86_64, as TensorFlow's GPU wheel is built for it",
            "correct lab_cloud_machine_type",
        )
    has = " + ".join(f"{gpu['count']} x {gpu['name']}" for gpu in offer["gpus"]) or "no GPU"
    wanted = f"{machine['gpu_count']} x {machine['gpu_type']}" if machine["gpu_type"] else ""
    if wanted and [(gpu["name"].lower(), gpu["count"]) for gpu in offer["gpus"]] != [
        (machine["gpu_type"].lower(), machine["gpu_count"])
    ]:
        yield _problem(
            "machine-type",
            f"{name} has {has}",
            wanted,
            "correct lab_cloud_machine_type, or lab_cloud_gpu_type and lab_cloud_gpu_count",
        )


def _image_problems(
    machine: Mapping[str, Any], image: Mapping[str, Any] | None, region: str
) -> Iterable[dict[str, str]]:
    owner = machine["image_owner"] or "any owner"
    do = "correct lab_cloud_image and lab_cloud_image_owner"
    if image is None:
        yield _problem(
            "image",
            f"{region} has no image {machine['image']!r} of {owner}",
            "an id, or a name pattern that an available x86_64 image has",
            do,
        )
    elif image["architecture"] not in {"x86_64", ""}:
        yield _problem(
            "image",
            f"{image['id']} is {image['architecture']}",
            "an x86_64 image",
            do,
        )
    elif image["size_gb"] > machine["disk_gb"]:
        yield _problem(
            "image",
            f"{image['id']} is {image['size_gb']} GB, its disk {machine['disk_gb']} GB",
            "a disk that the image fits on",
            f"set lab_cloud_disk_gb to {image['size_gb']} or more",
        )


def _quota_problems(
    machines: Iterable[Mapping[str, Any]], offers: Mapping[str, Any]
) -> Iterable[dict[str, str]]:
    wanted: dict[str, int] = {}
    running = {(each["lab_id"], each["node"]) for each in offers["in_use"]}
    for machine in machines:
        if (machine["labels"]["labctl-id"], machine["node"]) in running:
            continue
        code, offer = (
            lab_aws_quota_code(machine),
            offers["machine_types"].get(machine["machine_type"]),
        )
        if code in offers["quotas"] and offer is not None:
            wanted[code] = wanted.get(code, 0) + offer["vcpus"]
    for code, vcpus in wanted.items():
        quota = offers["quotas"][code]
        used = sum(each["vcpus"] for each in offers["in_use"] if lab_aws_quota_code(each) == code)
        if used + vcpus > quota["value"]:
            yield _problem(
                "quota",
                f"{quota['name']} ({code}): {quota['value']:.0f} vCPUs, {used} in use",
                f"room for {vcpus} more",
                "ask for more in the console's Service Quotas (it may take a day), or use fewer machines",
            )


def _network_problems(
    wish: Mapping[str, Any],
    vpcs: Sequence[Mapping[str, Any]],
    subnets: Sequence[Mapping[str, Any]],
) -> list[dict[str, str]]:
    """Return why a named network cannot take the lab; () where none is named or it can.

    Args:
        wish: network (id or name), cidr, zone.
        vpcs: Those that the name fits; () where a subnet is named.
        subnets: The named one, or those of the named VPC.
    """
    name, zone = str(wish["network"]), str(wish["zone"])
    if not name:
        return []
    do = "correct lab_cloud_network"
    is_subnet = name.startswith("subnet-")
    if len(subnets if is_subnet else vpcs) != 1:
        count = len(subnets if is_subnet else vpcs)
        return [
            _problem(
                "network",
                f"{count or 'no'} {'subnet' if is_subnet else 'VPC'}{'s' if count > 1 else ''} {name} here",
                "the id of a VPC or subnet of this region, or a VPC's Name",
                do,
            )
        ]
    if is_subnet:
        return _subnet_problems(subnets[0], str(wish["cidr"]), zone)
    if not wish["cidr"]:
        return [
            _problem(
                "network",
                f"{name} is a VPC and lab_cloud_subnet_cidr is empty",
                "the range of a subnet in it",
                "set lab_cloud_subnet_cidr, or name a subnet",
            )
        ]
    wanted = ipaddress.ip_network(str(wish["cidr"]))
    same = [each for each in subnets if each["cidr_block"] == str(wanted)]
    if same:
        return _subnet_problems(same[0], str(wanted), zone)
    blocks = [str(each["cidr_block"]) for each in vpcs[0]["cidr_block_association_set"]]
    if not any(_holds(block, wanted) for block in blocks):
        return [
            _problem(
                "network",
                f"{name} has {', '.join(blocks)}",
                f"a range that holds {wanted}",
                "correct lab_cloud_subnet_cidr",
            )
        ]
    return [
        _problem(
            "network",
            f"{each['subnet_id']} of {name} has {each['cidr_block']} already",
            f"{wanted} free, or a subnet with just this range",
            "correct lab_cloud_subnet_cidr, or name that subnet",
        )
        for each in subnets
        if ipaddress.ip_network(each["cidr_block"]).overlaps(wanted)
    ]


def lab_aws_network(
    wish: Mapping[str, Any],
    vpcs: Sequence[Mapping[str, Any]],
    subnets: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what a named network means: vpc_id and subnet_id ("" where it is to be made), and problems.

    Args:
        wish: network (id or name, "" for one of the lab's own), cidr, zone.
        vpcs: Those that the name fits; () where a subnet is named.
        subnets: The named one, or those of the named VPC.
    """
    problems = _network_problems(wish, vpcs, subnets)
    if problems or not wish["network"]:
        return {"vpc_id": "", "subnet_id": "", "problems": problems}
    if str(wish["network"]).startswith("subnet-"):
        chosen = subnets[0]
    else:
        same = [each for each in subnets if each["cidr_block"] == wish["cidr"]]
        chosen = same[0] if same else {"vpc_id": vpcs[0]["vpc_id"], "subnet_id": ""}
    return {"vpc_id": chosen["vpc_id"], "subnet_id": chosen["subnet_id"], "problems": []}


def lab_aws_chosen(
    machines: Iterable[Mapping[str, Any]],
    images: Mapping[str, Mapping[str, Any] | None],
    zone: str,
) -> list[list[str]]:
    """Return node, machine type, image and zone of each machine whose image was found."""
    return [
        [each["node"], each["machine_type"], f"{image['id']} {image['name']}".strip(), zone]
        for each in machines
        if (image := images.get(each["node"])) is not None
    ]


def _holds(block: str, wanted: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    whole = ipaddress.ip_network(block)
    return (
        isinstance(whole, ipaddress.IPv4Network)
        and isinstance(wanted, ipaddress.IPv4Network)
        and wanted.subnet_of(whole)
    )


def _subnet_problems(subnet: Mapping[str, Any], cidr: str, zone: str) -> list[dict[str, str]]:
    problems: list[dict[str, str]] = []
    if subnet["availability_zone"] != zone:
        problems.append(
            _problem(
                "network",
                f"{subnet['subnet_id']} is in {subnet['availability_zone']}",
                f"a subnet in {zone}",
                "correct lab_cloud_network or lab_cloud_zone",
            )
        )
    if cidr and cidr != subnet["cidr_block"]:
        problems.append(
            _problem(
                "network",
                f"{subnet['subnet_id']} has {subnet['cidr_block']}, lab_cloud_subnet_cidr is {cidr}",
                "the same range",
                f'set lab_cloud_subnet_cidr to {subnet["cidr_block"]}, or to "" and the cloud chooses addresses',
            )
        )
    return problems


def lab_aws_region_problems(region: str) -> list[dict[str, str]]:
    """Return the problem that a region has which does not exist; its endpoint would just not answer."""
    try:
        from botocore.session import Session
    except ImportError:
        return []  # the modules of amazon.aws say it
    session = Session()
    known = {
        each
        for partition in session.get_available_partitions()
        for each in session.get_available_regions("ec2", partition)
    }
    if region in known:
        return []
    near = difflib.get_close_matches(region, known, n=1, cutoff=0.6)
    return [
        _problem(
            "region",
            f"AWS has no region {region}",
            f"an AWS region, e.g. {near[0] if near else 'eu-central-1'}",
            "correct lab_cloud_region and lab_cloud_zone; a region newer than botocore needs a newer botocore",
        )
    ]


def lab_aws_problems(looked: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return why AWS would refuse a lab's machines.

    Args:
        looked: region, zone, zones (names there are), machines (the wanted ones), offers (of
            lab_aws_offers), images (of lab_aws_images) and network (problems of lab_aws_network).
    """
    zone, zones = looked["zone"], list(looked["zones"])
    if not zones:
        return [
            _problem(
                "region",
                f"{looked['region']} has no zone that this account may use",
                "an AWS region, e.g. eu-central-1",
                "correct lab_cloud_region, or enable the region for the account",
            )
        ]
    if zone not in zones:
        return [
            _problem(
                "zone",
                f"{looked['region']} has no zone {zone}",
                f"one of {', '.join(sorted(zones))}",
                "correct lab_cloud_zone",
            )
        ]
    offers = looked["offers"]
    by_problem: dict[tuple[str, ...], list[str]] = {}
    for machine in looked["machines"]:
        image = looked["images"][machine["node"]]
        for each in (
            *_type_problems(machine, offers["machine_types"], zone),
            *_image_problems(machine, image, looked["region"]),
        ):
            by_problem.setdefault(tuple(each.values()), []).append(machine["node"])
    of_machines = [
        _problem(subject, f"{', '.join(nodes)}: {found}", expected, do)
        for (subject, found, expected, do), nodes in by_problem.items()
    ]
    return [*of_machines, *_quota_problems(looked["machines"], offers), *looked["network"]]


def lab_aws_unchecked(
    machines: Iterable[Mapping[str, Any]], offers: Mapping[str, Any]
) -> list[str]:
    """Return what could not be looked at, with the reason."""
    unknown = sorted({each["machine_type"] for each in machines if not lab_aws_quota_code(each)})
    return [
        *map(str, offers["unchecked"]),
        *(f"quota of {name}: labctl knows no quota of this family" for name in unknown),
    ]


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "lab_aws_chosen": lab_aws_chosen,
            "lab_aws_image_wishes": lab_aws_image_wishes,
            "lab_aws_images": lab_aws_images,
            "lab_aws_network": lab_aws_network,
            "lab_aws_problems": lab_aws_problems,
            "lab_aws_quota_code": lab_aws_quota_code,
            "lab_aws_region_problems": lab_aws_region_problems,
            "lab_aws_unchecked": lab_aws_unchecked,
        }
