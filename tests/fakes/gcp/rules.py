"""What the API makes of a request's body, and when it refuses one."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from tests.fakes.gcp import catalogue
from tests.fakes.gcp.words import (
    HOST,
    ApiError,
    Json,
    Key,
    invalid,
    is_spot,
    last_part,
    needed_quota,
)

if TYPE_CHECKING:
    from tests.fakes.gcp.cloud import Cloud


def plain(cloud: Cloud, key: Key, body: Json) -> Json:
    """Return a disk or an address as it is made."""
    made = {**body, "status": "READY" if key[0] == "disks" else "RESERVED"}
    if key[0] == "addresses":
        made.setdefault("address", f"203.0.113.{cloud.counter % 250 + 1}")
    return made


def network(cloud: Cloud, _key: Key, body: Json) -> Json:
    """Return a network as it is made."""
    _within(cloud, "NETWORKS", len(cloud.listed("networks")) + 1, cloud.project_quotas, "global")
    return {
        "autoCreateSubnetworks": True,
        "routingConfig": {"routingMode": "REGIONAL"},
        "mtu": 1460,
        **body,
    }


def subnetwork(cloud: Cloud, key: Key, body: Json) -> Json:
    """Return a subnet as it is made, and note it at its network."""
    network = _target(cloud, "networks", "global", body.get("network"), "network")
    try:
        wanted = ipaddress.ip_network(str(body.get("ipCidrRange")))
    except ValueError as error:
        raise invalid("ipCidrRange", body.get("ipCidrRange"), str(error)) from error
    for _, other in cloud.listed("subnetworks"):
        if other["network"] == network and wanted.overlaps(
            ipaddress.ip_network(other["ipCidrRange"])
        ):
            raise invalid("ipCidrRange", wanted, f"IP range conflicts with {other['name']}")
    made = {
        **body,
        "network": network,
        "gatewayAddress": str(wanted[1]),
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
    }
    made.setdefault("privateIpGoogleAccess", False)
    link = f"{cloud.base}/{key[1]}/subnetworks/{key[2]}"
    cloud.get("networks", "global", network.rsplit("/", 1)[1]).setdefault("subnetworks", []).append(
        link
    )
    return made


def firewall(cloud: Cloud, _key: Key, body: Json) -> Json:
    """Return a firewall rule as it is made."""
    network = _target(cloud, "networks", "global", body.get("network"), "network")
    if not body.get("allowed") and not body.get("denied"):
        raise invalid("allowed", None, "At least one of allowed or denied must be set")
    return {
        "direction": "INGRESS",
        "priority": 1000,
        "disabled": False,
        **body,
        "network": network,
    }


def instance(cloud: Cloud, key: Key, body: Json) -> Json:
    """Return an instance as it is made, and make its boot disk."""
    _, scope, name = key
    zone = scope.partition("/")[2]
    machine_type = last_part(body.get("machineType"))
    if not catalogue.offered(zone, machine_type):
        raise invalid(
            "machineType",
            body.get("machineType"),
            f"The referenced resource does not exist in {zone}",
        )
    gpus = [
        (last_part(each.get("acceleratorType")), int(each.get("acceleratorCount", 0)))
        for each in body.get("guestAccelerators") or ()
    ]
    for gpu, count in gpus:
        if not catalogue.offered(zone, gpu) or not 0 < count <= catalogue.ACCELERATORS[gpu]:
            raise invalid("guestAccelerators", f"{count} x {gpu}", f"Not offered in {zone}")
    _scheduling(
        cloud, body.get("scheduling") or {}, bool(gpus or catalogue.MACHINE_TYPES[machine_type][2])
    )
    disk = _boot_disk(cloud, zone, name, body)
    interface = _interface(cloud, zone, body)
    _quota(cloud, zone, machine_type, gpus, preemptible=is_spot(body))
    disk_key = ("disks", scope, name)
    cloud.put(disk_key, {**disk, "users": [f"{cloud.base}/{scope}/instances/{name}"]})
    carried = catalogue.MACHINE_TYPES[machine_type][2]
    if carried is not None:
        gpus = [carried]
    made = {
        **{k: v for k, v in body.items() if k != "kind"},
        "status": "PROVISIONING",
        "machineType": f"{cloud.base}/zones/{zone}/machineTypes/{machine_type}",
        "cpuPlatform": "Unknown CPU Platform",
        "disks": [
            {
                "kind": "compute#attachedDisk",
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "boot": True,
                "index": 0,
                "interface": "SCSI",
                "deviceName": "persistent-disk-0",
                "autoDelete": bool(body["disks"][0].get("autoDelete")),
                "source": f"{cloud.base}/{scope}/disks/{name}",
                "diskSizeGb": disk["sizeGb"],
            }
        ],
        "networkInterfaces": [interface],
        "fingerprint": "aW5zdGFuY2U=",
        "deletionProtection": bool(body.get("deletionProtection")),
        "canIpForward": bool(body.get("canIpForward")),
        "startRestricted": False,
    }
    if gpus:
        made["guestAccelerators"] = [
            {
                "acceleratorType": f"{cloud.base}/zones/{zone}/acceleratorTypes/{gpu}",
                "acceleratorCount": count,
            }
            for gpu, count in gpus
        ]
    return made


def _scheduling(cloud: Cloud, wanted: Json, with_gpu: bool) -> None:
    if with_gpu and wanted.get("onHostMaintenance") != "TERMINATE":
        raise invalid(
            "scheduling.onHostMaintenance",
            wanted.get("onHostMaintenance", "MIGRATE"),
            "Instances with guest accelerators do not support live migration",
        )
    spot = wanted.get("provisioningModel") == "SPOT"
    if spot and wanted.get("automaticRestart", True):
        raise invalid(
            "scheduling.automaticRestart", True, "Spot instances must not restart automatically"
        )
    limit = wanted.get("maxRunDuration")
    if limit is not None:
        if not 30 <= int(limit.get("seconds", 0)) <= 120 * 86400:
            raise invalid(
                "scheduling.maxRunDuration", limit, "Must be between 30 seconds and 120 days"
            )
        if wanted.get("preemptible") and not spot:
            raise invalid(
                "scheduling.maxRunDuration", limit, "Not for legacy preemptible instances"
            )
    if wanted.get("instanceTerminationAction") and not (limit or spot):
        raise invalid(
            "scheduling.instanceTerminationAction",
            wanted["instanceTerminationAction"],
            "Only for Spot instances or with a limit of the run time",
        )


def _boot_disk(cloud: Cloud, zone: str, name: str, body: Json) -> Json:
    disks = [each for each in body.get("disks") or () if each.get("boot")]
    if len(disks) != 1:
        raise invalid("disks", len(disks), "One boot disk is needed")
    asked = disks[0].get("initializeParams") or {}
    image = str(asked.get("sourceImage", ""))
    known = {
        f"projects/{project}/global/images/{each}": name_
        for project, family, name_, _ in catalogue.IMAGES
        for each in (name_, f"family/{family}")
    }
    found = known.get(
        image.removeprefix(HOST + "/").removeprefix("https://compute.googleapis.com/compute/v1/")
    )
    if found is None:
        raise ApiError(404, "notFound", f"The resource '{image}' was not found")
    return {
        "name": name,
        "sizeGb": str(asked.get("diskSizeGb", 10)),
        "status": "READY",
        "type": f"{cloud.base}/zones/{zone}/diskTypes/{last_part(asked.get('diskType')) or 'pd-standard'}",
        "sourceImage": image,
        "labels": asked.get("labels") or {},
        "physicalBlockSizeBytes": "4096",
    }


def _interface(cloud: Cloud, zone: str, body: Json) -> Json:
    wanted = (body.get("networkInterfaces") or [{}])[0]
    region = zone.rsplit("-", 1)[0]
    link = _target(
        cloud, "subnetworks", f"regions/{region}", wanted.get("subnetwork"), "subnetwork"
    )
    subnet = cloud.get("subnetworks", f"regions/{region}", link.rsplit("/", 1)[1])
    inside = ipaddress.ip_network(subnet["ipCidrRange"])
    taken = {
        each["networkInterfaces"][0]["networkIP"]
        for _, each in cloud.listed("instances")
        if each["networkInterfaces"][0]["subnetwork"] == link
    }
    address = wanted.get("networkIP") or next(
        str(each) for each in list(inside.hosts())[1:] if str(each) not in taken
    )
    if ipaddress.ip_address(address) not in inside or address == subnet["gatewayAddress"]:
        raise invalid("networkInterfaces[0].networkIP", address, f"Not within {inside}")
    if address in taken:
        raise ApiError(
            400,
            "ipInUseByAnotherResource",
            f"IP '{address}' is already being used by another resource.",
        )
    made = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": subnet["network"],
        "subnetwork": link,
        "networkIP": address,
        "stackType": "IPV4_ONLY",
        "fingerprint": "bmlj",
    }
    if wanted.get("accessConfigs"):
        made["accessConfigs"] = [
            {
                "kind": "compute#accessConfig",
                "name": "External NAT",
                "type": "ONE_TO_ONE_NAT",
                "networkTier": "PREMIUM",
            }
        ]
    return made


def _target(cloud: Cloud, collection: str, scope: str, link: object, named: str) -> str:
    name = last_part(link)
    if (collection, scope, name) not in cloud.resources:
        raise invalid(named, link, "The referenced resource does not exist")
    return f"{cloud.base}/{scope}/{collection}/{name}"


def _quota(
    cloud: Cloud, zone: str, machine_type: str, gpus: list[tuple[str, int]], *, preemptible: bool
) -> None:
    region = zone.rsplit("-", 1)[0]
    used = cloud.used(region)
    for metric, amount in needed_quota(machine_type, gpus, preemptible=preemptible).items():
        _within(cloud, metric, used.get(metric, 0) + amount, cloud.region_quotas, region)


def _within(cloud: Cloud, metric: str, wanted: float, quotas: dict[str, float], where: str) -> None:
    limit = quotas.get(metric)
    if limit is not None and wanted > limit:
        raise ApiError(
            403,
            "quotaExceeded",
            f"Quota '{metric}' exceeded.  Limit: {limit} in region {where}.",
        )
