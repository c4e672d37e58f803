# ruff: noqa: INP001 a single file beside the playbooks, loaded by Ansible
"""What Compute Engine is asked to make, start, stop and remove for a lab.

Runs inside `ansible-playbook` on the control machine; standard library only.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from typing import Any

# Bounds of scheduling.maxRunDuration, as "Limit the run time of a VM" of the documentation states them.
_LIMIT_S = (30, 120 * 86_400)


def lab_gcp_sources(networks: Iterable[Any]) -> list[str]:
    """Return the IPv4 networks of lab_admin_cidrs: the lab's machines have no IPv6 address."""
    parsed = [ipaddress.ip_network(str(each), strict=False) for each in networks]
    return [str(each) for each in parsed if each.version == 4]


def lab_gcp_limit_s(variables: Mapping[str, Any]) -> int | None:
    """Return after how many seconds the cloud itself removes a machine; None for never.

    `lab_cloud_limit_hours` if set, else twice `lab_max_hours`: the nodes' own timer comes first, and there is room
    to extend it, since the cloud's limit cannot be moved while a machine runs.
    """
    own = variables.get("lab_cloud_limit_hours")
    hours = float(own) if own is not None else 2 * float(variables.get("lab_max_hours") or 0)
    if hours <= 0:
        return None
    low, high = _LIMIT_S
    return min(max(math.ceil(hours * 3600), low), high)


def lab_gcp_instance(
    machine: Mapping[str, Any], variables: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body that asks for one machine.

    Args:
        machine: Of lab_cloud_machines.
        variables: `lab_*` of `playbooks/cloud/README.md`.
        made: name (the lab's), image and subnet (links), user_data, labels, accelerator ("" where the machine type
            has its GPUs, or has none) and has_gpu.
    """
    zone = f"zones/{variables['lab_cloud_zone']}"
    interface: dict[str, Any] = {"subnetwork": made["subnet"]}
    if machine["private_address"]:
        interface["networkIP"] = machine["private_address"]
    if variables["lab_cloud_ssh_by"] == "public" or not variables["lab_cloud_network"]:
        # In a network of the lab's own it is also the way out, to where packages come from.
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    body: dict[str, Any] = {
        "name": f"{made['name']}-{machine['node']}",
        "description": f"labctl lab {variables['lab_name']}, {machine['node']}",
        "machineType": f"{zone}/machineTypes/{machine['machine_type']}",
        "labels": made["labels"],
        "tags": {"items": [made["name"]]},
        "metadata": {
            "items": [
                {"key": "user-data", "value": made["user_data"]},
                {"key": "enable-oslogin", "value": "FALSE"},
                {"key": "block-project-ssh-keys", "value": "TRUE"},
                {"key": "serial-port-enable", "value": "FALSE"},
            ]
        },
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "diskSizeGb": str(machine["disk_gb"]),
                    "diskType": f"{zone}/diskTypes/{variables.get('lab_cloud_disk_type') or 'pd-balanced'}",
                    "sourceImage": made["image"],
                    "labels": made["labels"],
                },
            }
        ],
        "networkInterfaces": [interface],
        "scheduling": _scheduling(machine, variables, has_gpu=made["has_gpu"]),
        # NVIDIA's modules carry no signature that Secure Boot would take.
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }
    if made["accelerator"]:
        body["guestAccelerators"] = [
            {
                "acceleratorType": f"{zone}/acceleratorTypes/{made['accelerator']}",
                "acceleratorCount": int(machine["gpu_count"]),
            }
        ]
    account = str(variables.get("lab_cloud_service_account") or "")
    if account:
        body["serviceAccounts"] = [
            {"email": account, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ]
    return body


def _scheduling(
    machine: Mapping[str, Any], variables: Mapping[str, Any], *, has_gpu: bool
) -> dict[str, Any]:
    scheduling: dict[str, Any] = {
        # A machine that the cloud ended stays off: the timer that `shutdown` armed is gone after a restart.
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE" if has_gpu or machine["spot"] else "MIGRATE",
        "provisioningModel": "SPOT" if machine["spot"] else "STANDARD",
    }
    limit_s = lab_gcp_limit_s(variables)
    if limit_s is not None:
        scheduling["maxRunDuration"] = {"seconds": str(limit_s)}
    if limit_s is not None or machine["spot"]:
        scheduling["instanceTerminationAction"] = "DELETE"
    return scheduling


def lab_gcp_removals(resources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the orders that remove the machines of an answer; one that is gone meanwhile is no failure."""
    return [
        {
            "name": each["node"] or each["name"],
            "method": "DELETE",
            "path": f"zones/{each['zone']}/instances/{each['name']}",
            "absent": [404],
        }
        for each in resources
        if each["kind"] == "machine"
    ]


def lab_gcp_power(resources: Iterable[Mapping[str, Any]], verb: str) -> list[dict[str, Any]]:
    """Return the orders that stop or start the machines of an answer, those that are so already left out.

    Args:
        resources: Of an answer.
        verb: `stop` or `start`.
    """
    done = {"stop": {"stopped", "stopping"}, "start": {"running", "pending"}}[verb]
    return [
        {
            "name": each["node"] or each["name"],
            "method": "POST",
            "path": f"zones/{each['zone']}/instances/{each['name']}/{verb}",
            # A stop keeps no local SSD, and is refused where the machine has one and it is not said.
            "query": {"discardLocalSsd": "true"} if verb == "stop" else {},
        }
        for each in resources
        if each["kind"] == "machine" and each["state"] not in done
    ]


class FilterModule:
    """Names the filters for Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "lab_gcp_instance": lab_gcp_instance,
            "lab_gcp_limit_s": lab_gcp_limit_s,
            "lab_gcp_power": lab_gcp_power,
            "lab_gcp_removals": lab_gcp_removals,
            "lab_gcp_sources": lab_gcp_sources,
        }
