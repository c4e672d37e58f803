# ruff: noqa: INP001 a single file beside the playbooks, loaded by Ansible
"""What Compute Engine would refuse of a lab, from what it said of zones, types, images, quotas and networks.

Runs inside `ansible-playbook` on the control machine; standard library only.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Names of accelerators by the card's name, and the quota that one counts against; as the documentation's "GPU
# machine types" and the enum Quota.metric of the API's description have them. No metric there: not looked at.
_ACCELERATORS = {
    "T4": ("nvidia-tesla-t4", "NVIDIA_T4_GPUS"),
    "L4": ("nvidia-l4", "NVIDIA_L4_GPUS"),
    "A100": ("nvidia-tesla-a100", "NVIDIA_A100_GPUS"),
    "A100-80GB": ("nvidia-a100-80gb", "NVIDIA_A100_80GB_GPUS"),
    "H100": ("nvidia-h100-80gb", ""),
    "H200": ("nvidia-h200-141gb", ""),
    "B200": ("nvidia-b200", ""),
    "V100": ("nvidia-tesla-v100", "NVIDIA_V100_GPUS"),
    "P100": ("nvidia-tesla-p100", "NVIDIA_P100_GPUS"),
    "P4": ("nvidia-tesla-p4", "NVIDIA_P4_GPUS"),
}
_METRICS = dict(_ACCELERATORS.values())
# Families whose CPUs count against the metric CPUS; another family has <FAMILY>_CPUS where the region lists it.
_SHARED_CPUS = frozenset({"e2", "f1", "g1", "g2", "n1"})


def _problem(subject: str, found: str, expected: str, do: str) -> dict[str, str]:
    return {"subject": subject, "found": found, "expected": expected, "do": do}


def _accelerator(gpu_type: str) -> str:
    return _ACCELERATORS.get(gpu_type.upper(), (gpu_type.lower(), ""))[0]


def _carried(machine_type: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [
        (str(each["guestAcceleratorType"]), int(each["guestAcceleratorCount"]))
        for each in machine_type.get("accelerators") or ()
    ]


def lab_gcp_questions(
    machines: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return all that is asked to judge a lab, as lab_gcp_api takes it.

    Args:
        machines: Of lab_cloud_machines.
        variables: `lab_*` of `playbooks/cloud/README.md`.
    """
    zone = f"zones/{variables['lab_cloud_zone']}"
    region = f"regions/{variables['lab_cloud_region']}"
    absent = [400, 403, 404]
    asked: dict[str, dict[str, Any]] = {
        "project": {"path": ""},
        "region": {"path": region, "absent": absent},
        "zone": {"path": zone, "absent": absent},
        "accelerators": {
            "path": f"{zone}/acceleratorTypes",
            "list": "acceleratorTypes",
            "absent": absent,
        },
    }
    asked["standing"] = {"path": "aggregated/instances", "list": "instances"}
    for each in machines:
        name = each["machine_type"]
        asked[f"type/{name}"] = {"path": f"{zone}/machineTypes/{name}", "absent": absent}
        owner, image = each["image_owner"] or variables["lab_cloud_project"], each["image"]
        images = f"projects/{owner}/global/images"
        asked[f"family/{owner}/{image}"] = {"path": f"{images}/family/{image}", "absent": absent}
        asked[f"image/{owner}/{image}"] = {"path": f"{images}/{image}", "absent": absent}
    network = str(variables["lab_cloud_network"]).partition("/")[0]
    if network:
        asked["network"] = {"path": f"global/networks/{network}", "absent": absent}
        asked["subnets"] = {
            "path": f"{region}/subnetworks",
            "list": "subnetworks",
            "absent": absent,
        }
    return asked


def lab_gcp_images(
    machines: Iterable[Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> dict[str, dict[str, Any] | None]:
    """Return the image that fits each machine's wish, None where none does, by node."""
    chosen: dict[str, dict[str, Any] | None] = {}
    for each in machines:
        owner, image = each["image_owner"] or variables["lab_cloud_project"], each["image"]
        answer = next(
            (
                answers[f"{kind}/{owner}/{image}"]["answer"]
                for kind in ("family", "image")
                if answers[f"{kind}/{owner}/{image}"]["found"]
            ),
            None,
        )
        chosen[each["node"]] = answer and {
            "name": str(answer["name"]),
            "link": f"projects/{owner}/global/images/{answer['name']}",
            "architecture": str(answer.get("architecture") or ""),
            "size_gb": int(answer.get("diskSizeGb") or 0),
            "status": str(answer.get("status") or ""),
        }
    return chosen


def lab_gcp_gpus(
    machine: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return accelerator (to ask for, "" for none) and has_gpu of a machine."""
    carried = _carried(answers[f"type/{machine['machine_type']}"]["answer"])
    wanted = bool(machine["gpu_type"]) and machine["gpu_count"] > 0
    return {
        "accelerator": _accelerator(machine["gpu_type"]) if wanted and not carried else "",
        "has_gpu": bool(carried) or wanted,
    }


def lab_gcp_subnet(
    variables: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return network and subnet (links) of a named network, and why it cannot take the lab.

    Args:
        variables: `lab_*`; lab_cloud_network is NETWORK, or NETWORK/SUBNET where it has several in the region.
        answers: To lab_gcp_questions.
    """
    given, region = str(variables["lab_cloud_network"]), variables["lab_cloud_region"]
    wanted, _, subnet_name = given.partition("/")
    nothing = {"network": "", "subnet": "", "problems": []}
    if not wanted:
        return nothing
    do = "correct lab_cloud_network or lab_cloud_region"
    if not answers["network"]["found"]:
        return {
            **nothing,
            "problems": [
                _problem(
                    "network",
                    f"the project has no network {wanted}",
                    "the name of a network of lab_cloud_project",
                    do,
                )
            ],
        }
    network = str(answers["network"]["answer"]["selfLink"])
    fit = [
        each
        for each in answers["subnets"]["listed"]
        if each["network"] == network and subnet_name in {"", each["name"]}
    ]
    if len(fit) != 1:
        names = ", ".join(sorted(str(each["name"]) for each in fit))
        return {
            **nothing,
            "problems": [
                _problem(
                    "network",
                    f"{given} has {names or 'no such subnet'} in {region}",
                    "one subnet",
                    f"name it: lab_cloud_network: {wanted}/SUBNET, or use another region",
                )
            ],
        }
    problems = []
    cidr = str(variables.get("lab_cloud_subnet_cidr") or "")
    if cidr and cidr != fit[0]["ipCidrRange"]:
        problems.append(
            _problem(
                "network",
                f"{fit[0]['name']} has {fit[0]['ipCidrRange']}, lab_cloud_subnet_cidr is {cidr}",
                "the same range",
                f'set lab_cloud_subnet_cidr to {fit[0]["ipCidrRange"]}, or to "" and the cloud chooses addresses',
            )
        )
    return {"network": network, "subnet": str(fit[0]["selfLink"]), "problems": problems}


def _type_problems(
    machine: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]], zone: str
) -> Iterable[dict[str, str]]:
    name, node = machine["machine_type"], machine["node"]
    offer = answers[f"type/{name}"]
    if not offer["found"]:
        yield _problem(
            "machine-type",
            f"{node}: {zone} has no machine type {name}",
            "a machine type of this zone, e.g. n1-standard-8",
            "correct lab_cloud_machine_type, or use another lab_cloud_zone",
        )
        return
    if offer["answer"].get("architecture") == "ARM64":
        yield _problem(
            "machine-type",
            f"{node}: {name} is ARM64",
            "X86_64, as TensorFlow's GPU wheel is built for it",
            "correct lab_cloud_machine_type",
        )
    carried = _carried(offer["answer"])
    wanted = (_accelerator(machine["gpu_type"]), int(machine["gpu_count"]))
    if not machine["gpu_type"]:
        return
    if carried and carried != [wanted]:
        yield _problem(
            "machine-type",
            f"{node}: {name} has {' + '.join(f'{count} x {gpu}' for gpu, count in carried)}",
            f"{wanted[1]} x {wanted[0]}",
            "correct lab_cloud_machine_type, or lab_cloud_gpu_type and lab_cloud_gpu_count",
        )
    elif not carried:
        yield from _accelerator_problems(machine, answers["accelerators"]["listed"], zone)


def _accelerator_problems(
    machine: Mapping[str, Any], offered: Iterable[Mapping[str, Any]], zone: str
) -> Iterable[dict[str, str]]:
    name, node, wanted = (
        machine["machine_type"],
        machine["node"],
        _accelerator(machine["gpu_type"]),
    )
    known = {str(each["name"]): int(each.get("maximumCardsPerInstance") or 0) for each in offered}
    if not name.startswith("n1-"):
        yield _problem(
            "machine-type",
            f"{node}: {name} takes no GPU",
            "n1 for T4, P4, P100 and V100; g2 has L4, a2 A100, a3 H100",
            "correct lab_cloud_machine_type or lab_cloud_gpu_type",
        )
    elif wanted not in known:
        yield _problem(
            "zone",
            f"{node}: {zone} does not offer {wanted}",
            f"one of {', '.join(sorted(known)) or 'no GPU of this zone'}",
            "correct lab_cloud_zone or lab_cloud_gpu_type",
        )
    elif machine["gpu_count"] > known[wanted]:
        yield _problem(
            "machine-type",
            f"{node}: {machine['gpu_count']} x {wanted}",
            f"{known[wanted]} at most on one machine",
            "correct lab_cloud_gpu_count",
        )


def _image_problems(
    machine: Mapping[str, Any], image: Mapping[str, Any] | None
) -> Iterable[dict[str, str]]:
    node, owner = machine["node"], machine["image_owner"] or "lab_cloud_project"
    do = "correct lab_cloud_image and lab_cloud_image_owner"
    if image is None:
        yield _problem(
            "image",
            f"{node}: {owner} has no image or family {machine['image']!r} that you may use",
            "a family such as ubuntu-2404-lts-amd64 of ubuntu-os-cloud, or an image's name",
            do,
        )
    elif image["architecture"] not in {"X86_64", ""} or image["status"] not in {"READY", ""}:
        yield _problem(
            "image",
            f"{node}: {image['name']} is {image['architecture']}, {image['status']}",
            "an X86_64 image that is READY",
            do,
        )
    elif image["size_gb"] > machine["disk_gb"]:
        yield _problem(
            "image",
            f"{node}: {image['name']} is {image['size_gb']} GB, its disk {machine['disk_gb']} GB",
            "a disk that the image fits on",
            f"set lab_cloud_disk_gb to {image['size_gb']} or more",
        )
    elif machine["image_owner"] == "debian-cloud":
        yield _problem(
            "image",
            f"{node}: {image['name']} of debian-cloud has no cloud-init",
            "an image with cloud-init, which gives the machine its host key and your login key",
            "use ubuntu-2404-lts-amd64 of ubuntu-os-cloud, or an image of your own with cloud-init",
        )


def _needs(
    machine: Mapping[str, Any],
    answers: Mapping[str, Mapping[str, Any]],
    limits: Mapping[str, Mapping[str, Any]],
    *,
    public: bool,
) -> dict[str, float]:
    """Return what a machine counts against the region's and the project's quotas, by metric."""
    offer = answers[f"type/{machine['machine_type']}"]["answer"]
    family = str(machine["machine_type"]).partition("-")[0]
    own = f"{family.upper()}_CPUS"
    cpus = own if family not in _SHARED_CPUS and own in limits else "CPUS"
    gpus = _carried(offer)
    if not gpus and machine["gpu_type"] and machine["gpu_count"]:
        gpus = [(_accelerator(machine["gpu_type"]), int(machine["gpu_count"]))]
    needs: dict[str, float] = {"INSTANCES": 1, "SSD_TOTAL_GB": machine["disk_gb"]}
    if public:
        needs["IN_USE_ADDRESSES"] = 1
    wanted = [(cpus, float(offer.get("guestCpus") or 0))]
    wanted += [(_METRICS[gpu], float(count)) for gpu, count in gpus if _METRICS.get(gpu)]
    for metric, amount in wanted:
        preemptible = f"PREEMPTIBLE_{metric}"
        # Spot machines count against the ordinary quota where the project has none for them.
        granted = machine["spot"] and float((limits.get(preemptible) or {}).get("limit") or 0) > 0
        needs[preemptible if granted else metric] = amount
    needs["GPUS_ALL_REGIONS"] = float(sum(count for _, count in gpus))
    return needs


def _limits(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {
        str(each["metric"]): each
        for part in ("project", "region")
        for each in answers[part]["answer"].get("quotas") or ()
    }


def _quota_problems(
    machines: Iterable[Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> Iterable[dict[str, str]]:
    limits = _limits(answers)
    public = variables["lab_cloud_ssh_by"] == "public" or not variables["lab_cloud_network"]
    # Machines of the lab that stand count as used already.
    mine = {"labctl-id": variables["lab_id"], "labctl-lab": variables["lab_name"]}
    standing = {
        each["labels"].get("labctl-node")
        for each in answers["standing"]["listed"]
        if all((each.get("labels") or {}).get(key) == value for key, value in mine.items())
    }
    wanted: dict[str, float] = {}
    for machine in machines:
        known = answers[f"type/{machine['machine_type']}"]["found"]
        if known and machine["node"] not in standing:
            for metric, amount in _needs(machine, answers, limits, public=public).items():
                wanted[metric] = wanted.get(metric, 0) + amount
    for metric, amount in wanted.items():
        quota = limits.get(metric)
        if quota is not None and amount and float(quota["usage"]) + amount > float(quota["limit"]):
            where = "the project" if metric == "GPUS_ALL_REGIONS" else variables["lab_cloud_region"]
            yield _problem(
                "quota",
                f"{metric} of {where}: {float(quota['limit']):g}, {float(quota['usage']):g} in use",
                f"room for {amount:g} more",
                "ask for more in the console's Quotas page (it may take a day), or use fewer machines",
            )


def _place_problems(
    answers: Mapping[str, Mapping[str, Any]], variables: Mapping[str, Any]
) -> list[dict[str, str]]:
    region, zone = variables["lab_cloud_region"], variables["lab_cloud_zone"]
    if not answers["region"]["found"]:
        return [
            _problem(
                "region",
                f"Google Cloud has no region {region}",
                "a region, e.g. europe-west4",
                "correct lab_cloud_region",
            )
        ]
    zones = sorted(str(each).rsplit("/", 1)[-1] for each in answers["region"]["answer"]["zones"])
    if zone not in zones or not answers["zone"]["found"]:
        return [
            _problem(
                "zone",
                f"{region} has no zone {zone}",
                f"one of {', '.join(zones)}",
                "correct lab_cloud_zone",
            )
        ]
    if answers["zone"]["answer"].get("status") == "DOWN":
        return [_problem("zone", f"{zone} is down", "a zone that is up", "correct lab_cloud_zone")]
    return []


def lab_gcp_problems(
    machines: Sequence[Mapping[str, Any]],
    answers: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, Any],
) -> list[dict[str, str]]:
    """Return why Compute Engine would refuse a lab's missing machines.

    Args:
        machines: Those to be made.
        answers: To lab_gcp_questions.
        variables: `lab_*` of `playbooks/cloud/README.md`.
    """
    places = _place_problems(answers, variables)
    if places:
        return places
    images = lab_gcp_images(machines, answers, variables)
    problems: list[dict[str, str]] = []
    for machine in machines:
        problems += _type_problems(machine, answers, variables["lab_cloud_zone"])
        problems += _image_problems(machine, images[machine["node"]])
    problems += _quota_problems(machines, answers, variables)
    problems += _source_problems(variables)
    return problems + list(lab_gcp_subnet(variables, answers)["problems"])


def _source_problems(variables: Mapping[str, Any]) -> list[dict[str, str]]:
    networks = [
        ipaddress.ip_network(str(each), strict=False) for each in variables["lab_admin_cidrs"]
    ]
    if any(each.version == 4 for each in networks):
        return []
    return [
        _problem(
            "network",
            f"lab_admin_cidrs has IPv6 networks only: {', '.join(map(str, networks))}",
            "an IPv4 network: the lab's machines have IPv4 addresses",
            "add the IPv4 address that you log in from",
        )
    ]


def lab_gcp_unchecked(
    machines: Iterable[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return what could not be looked at, with the reason."""
    limits = _limits(answers)
    unknown = set()
    for machine in machines:
        gpus = [gpu for gpu, _ in _carried(answers[f"type/{machine['machine_type']}"]["answer"])]
        if not gpus and machine["gpu_type"]:
            gpus = [_accelerator(machine["gpu_type"])]
        unknown |= {gpu for gpu in gpus if _METRICS.get(gpu, "") not in limits}
    notes = [f"quota of {gpu}: the region lists none" for gpu in sorted(unknown)]
    return [*notes, "whether the zone has such machines free now: only making them shows it"]


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "lab_gcp_gpus": lab_gcp_gpus,
            "lab_gcp_images": lab_gcp_images,
            "lab_gcp_problems": lab_gcp_problems,
            "lab_gcp_questions": lab_gcp_questions,
            "lab_gcp_subnet": lab_gcp_subnet,
            "lab_gcp_unchecked": lab_gcp_unchecked,
        }
