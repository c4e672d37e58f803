#!/usr/bin/python
"""Ansible module: what an AWS region offers for some machine types, and how much of it this account may use.

No module of amazon.aws reads machine types, their zones or quotas.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ansible_collections.amazon.aws.plugins.module_utils.modules import AnsibleAWSModule

with suppress(ImportError):  # AnsibleAWSModule says it
    from botocore.exceptions import BotoCoreError, ClientError

DOCUMENTATION = r"""
module: lab_aws_offers
short_description: Machine types, their zones, quotas and their use
description: Asks EC2 for machine types and the zones that offer them, and Service Quotas for this account's limits.
author: labctl
options:
  machine_types:
    description: Names of machine types; one that does not exist is left out of the answer.
    type: list
    elements: str
    required: true
  quota_codes:
    description: Quotas of the service ec2.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - amazon.aws.common.modules
  - amazon.aws.region.modules
  - amazon.aws.boto3
"""

RETURN = r"""
machine_types:
  description: By name, with vcpus, architectures, gpus (a list of name and count) and zones that offer it.
  type: dict
  returned: always
quotas:
  description: By code, with name and value (vCPUs).
  type: dict
  returned: always
in_use:
  description: Machines that run or start, with machine_type, vcpus, spot, lab_id and node (of those of labs).
  type: list
  returned: always
unchecked:
  description: What this account may not look at, with the reason.
  type: list
  returned: always
"""


def _pages(client: Any, call: str, key: str, **asked: Any) -> list[dict[str, Any]]:
    return [each for page in client.get_paginator(call).paginate(**asked) for each in page[key]]


def _types(ec2: Any, names: list[str]) -> dict[str, dict[str, Any]]:
    wanted = [{"Name": "instance-type", "Values": names}]
    found = _pages(ec2, "describe_instance_types", "InstanceTypes", Filters=wanted)
    offers = _pages(
        ec2,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=wanted,
    )
    return {
        each["InstanceType"]: {
            "vcpus": each["VCpuInfo"]["DefaultVCpus"],
            "architectures": each["ProcessorInfo"]["SupportedArchitectures"],
            "gpus": [
                {"name": gpu["Name"], "count": gpu["Count"]}
                for gpu in each.get("GpuInfo", {}).get("Gpus", [])
            ],
            "zones": sorted(
                offer["Location"]
                for offer in offers
                if offer["InstanceType"] == each["InstanceType"]
            ),
        }
        for each in found
    }


def _tag(machine: dict[str, Any], key: str) -> str:
    return next((tag["Value"] for tag in machine.get("Tags", []) if tag["Key"] == key), "")


def _in_use(ec2: Any) -> list[dict[str, Any]]:
    reservations = _pages(
        ec2,
        "describe_instances",
        "Reservations",
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}],
    )
    machines = [each for reservation in reservations for each in reservation["Instances"]]
    types = _types(ec2, sorted({each["InstanceType"] for each in machines})) if machines else {}
    return [
        {
            "machine_type": each["InstanceType"],
            "vcpus": types.get(each["InstanceType"], {}).get("vcpus", 0),
            "spot": each.get("InstanceLifecycle") == "spot",
            "lab_id": _tag(each, "labctl-id"),
            "node": _tag(each, "labctl-node"),
        }
        for each in machines
    ]


def _quotas(client: Any, codes: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the quotas that may be read, and why others may not."""
    quotas, unchecked = {}, []
    for code in codes:
        try:
            quota = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
        except (BotoCoreError, ClientError) as error:
            reason = getattr(error, "response", {}).get("Error", {}).get("Code", "")
            unchecked.append(f"quota {code}: {reason or str(error)[:200]}")
        else:
            quotas[code] = {"name": quota.get("QuotaName", code), "value": quota["Value"]}
    return quotas, unchecked


def main() -> None:
    module = AnsibleAWSModule(
        argument_spec={
            "machine_types": {"type": "list", "elements": "str", "required": True},
            "quota_codes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        ec2 = module.client("ec2")
        types = _types(ec2, module.params["machine_types"])
        in_use = _in_use(ec2)
    except (BotoCoreError, ClientError) as error:
        module.fail_json_aws(error, msg="Cannot read machine types")
    quotas, unchecked = _quotas(module.client("service-quotas"), module.params["quota_codes"])
    module.exit_json(
        changed=False, machine_types=types, quotas=quotas, in_use=in_use, unchecked=unchecked
    )


if __name__ == "__main__":
    main()
