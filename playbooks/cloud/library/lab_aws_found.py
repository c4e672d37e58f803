#!/usr/bin/python
"""Ansible module: all that EC2 has with some labels, asked in one process; a question without an answer fails it.

The `*_info` modules of amazon.aws tell the same, eight processes and as many seconds later.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from ansible.module_utils.common.dict_transformations import camel_dict_to_snake_dict
from ansible_collections.amazon.aws.plugins.module_utils.modules import AnsibleAWSModule
from ansible_collections.amazon.aws.plugins.module_utils.tagging import (
    boto3_tag_list_to_ansible_dict,
)

with suppress(ImportError):  # AnsibleAWSModule says it
    from botocore.exceptions import BotoCoreError, ClientError

DOCUMENTATION = r"""
module: lab_aws_found
short_description: All that EC2 has with some labels
description: Lists machines (ended ones too), disks, addresses, networks, subnets, gateways, firewalls and keys.
author: labctl
options:
  filters:
    description: Filters that each kind of thing knows, such as tags.
    type: dict
    required: true
extends_documentation_fragment:
  - amazon.aws.common.modules
  - amazon.aws.region.modules
  - amazon.aws.boto3
"""

RETURN = r"""
asked_unix_s:
  description: When the first question was asked.
  type: float
  returned: always
found:
  description: Lists by kind; each thing as EC2 describes it, in snake case, its tags as a dictionary.
  type: dict
  returned: always
"""

# Kind, call, key of its answer.
_QUESTIONS = (
    ("volumes", "describe_volumes", "Volumes"),
    ("addresses", "describe_addresses", "Addresses"),
    ("vpcs", "describe_vpcs", "Vpcs"),
    ("subnets", "describe_subnets", "Subnets"),
    ("gateways", "describe_internet_gateways", "InternetGateways"),
    ("groups", "describe_security_groups", "SecurityGroups"),
    ("keys", "describe_key_pairs", "KeyPairs"),
)


def _things(client: Any, call: str, key: str, filters: list[dict[str, Any]]) -> list[Any]:
    if not client.can_paginate(call):
        return list(getattr(client, call)(Filters=filters)[key])
    pages = client.get_paginator(call).paginate(Filters=filters)
    return [each for page in pages for each in page[key]]


def _plain(thing: dict[str, Any]) -> dict[str, Any]:
    tags = boto3_tag_list_to_ansible_dict(thing.get("Tags", []))
    return {**camel_dict_to_snake_dict(thing, ignore_list=["Tags"]), "tags": tags}


def main() -> None:
    module = AnsibleAWSModule(
        argument_spec={"filters": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    filters = [
        {"Name": name, "Values": [value]} for name, value in module.params["filters"].items()
    ]
    asked_unix_s = time.time()
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        client = module.client("ec2")
        reservations = _things(client, "describe_instances", "Reservations", filters)
        found["instances"] = [
            _plain(each) for reservation in reservations for each in reservation["Instances"]
        ]
        for kind, call, key in _QUESTIONS:
            found[kind] = [_plain(each) for each in _things(client, call, key, filters)]
    except (BotoCoreError, ClientError) as error:
        module.fail_json_aws(error, msg="Cannot list what there is")
    module.exit_json(changed=False, asked_unix_s=asked_unix_s, found=found)


if __name__ == "__main__":
    main()
