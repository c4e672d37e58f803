#!/usr/bin/python
"""Ansible module: terminate machines on AWS, whatever state they are in, without waiting.

`amazon.aws.ec2_instance` first waits for one that starts to run, so it never ends one that never runs.
"""

from __future__ import annotations

from contextlib import suppress

from ansible_collections.amazon.aws.plugins.module_utils.modules import AnsibleAWSModule

with suppress(ImportError):  # AnsibleAWSModule says it
    from botocore.exceptions import BotoCoreError, ClientError

DOCUMENTATION = r"""
module: lab_aws_terminate
short_description: Terminate machines
description: Asks EC2 to terminate each machine; one that is gone already is no error.
author: labctl
options:
  instance_ids:
    description: Ids of the machines.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - amazon.aws.common.modules
  - amazon.aws.region.modules
  - amazon.aws.boto3
"""

RETURN = r"""
terminated:
  description: Ids that EC2 took the request for.
  type: list
  returned: always
"""


def main() -> None:
    module = AnsibleAWSModule(
        argument_spec={"instance_ids": {"type": "list", "elements": "str", "required": True}},
        supports_check_mode=True,
    )
    wanted = module.params["instance_ids"]
    if module.check_mode:
        module.exit_json(changed=bool(wanted), terminated=[])
    terminated, refused = [], None
    client = module.client("ec2")
    for instance_id in wanted:
        # One by one: a single refusal would keep all of them.
        try:
            client.terminate_instances(InstanceIds=[instance_id])
        except (BotoCoreError, ClientError) as error:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", "")
            if code != "InvalidInstanceID.NotFound":
                refused = refused or error
        else:
            terminated.append(instance_id)
    if refused is not None:
        module.fail_json_aws(refused, msg="Cannot terminate", terminated=terminated)
    module.exit_json(changed=bool(terminated), terminated=terminated)


if __name__ == "__main__":
    main()
