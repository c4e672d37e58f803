"""An AWS of our own on loopback: moto's server behind a proxy that fails as it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.aws.proxy import FaultProxy

if TYPE_CHECKING:
    from types_boto3_ec2.client import EC2Client

REGION = "eu-central-1"
ZONE = "eu-central-1a"
DEBIAN = "136693071363"  # Debian's own account
IMAGE = "debian-12-amd64-*"
NEWEST_IMAGE = "ami-0000000000000de12"
CHECKOUT = Path(__file__).resolve().parents[3]


def _image(ami_id: str, name: str, created: str, **other: str) -> dict[str, Any]:
    return {
        "ami_id": ami_id,
        "name": name,
        "description": name,
        "owner_id": DEBIAN,
        "public": True,
        "virtualization_type": "hvm",
        "architecture": "x86_64",
        "state": "available",
        "creation_date": created,
        "root_device_type": "ebs",
        "root_device_name": "/dev/xvda",
        "hypervisor": "xen",
        **other,
    }


IMAGES = [
    _image("ami-0000000000000de11", "debian-12-amd64-20250210-2019", "2025-02-10T10:00:00.000Z"),
    _image(NEWEST_IMAGE, "debian-12-amd64-20260914-2602", "2026-09-14T10:00:00.000Z"),
    # Newer, and not what is meant: another architecture, and another's account.
    _image(
        "ami-0000000000000de13",
        "debian-12-arm64-20261001-2610",
        "2026-10-01T10:00:00.000Z",
        architecture="arm64",
    ),
    _image(
        "ami-0000000000000de14",
        "debian-12-amd64-20261111-evil",
        "2026-11-11T10:00:00.000Z",
        owner_id="999999999999",
    ),
]


@dataclass(frozen=True)
class AwsCloud:
    """The cloud, as a test sees it.

    Attributes:
        proxy: What clients talk to.
        client: Straight to moto, past all faults: what is really there.
    """

    proxy: FaultProxy
    client: EC2Client

    @property
    def environment(self) -> dict[str, str]:
        """What a user of this cloud has in the environment, nothing of the real one beside it."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {
            **own,
            "AWS_ENDPOINT_URL": self.proxy.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "no_proxy": "127.0.0.1",
        }

    def machines(self) -> dict[str, dict[str, Any]]:
        """Return the machines that are not terminated, by node."""
        made: dict[str, Any] = {}
        for page in self.client.get_paginator("describe_instances").paginate():
            for reservation in page["Reservations"]:
                for each in reservation["Instances"]:
                    tags = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
                    if each["State"]["Name"] != "terminated" and "labctl-node" in tags:
                        made[tags["labctl-node"]] = each
        return made

    def user_data(self, node: str) -> str:
        """Return what cloud-init of a node would read."""
        import base64

        got = self.client.describe_instance_attribute(
            Attribute="userData", InstanceId=self.machines()[node]["InstanceId"]
        )
        return base64.b64decode(got["UserData"].get("Value", "")).decode()

    def forget(self) -> None:
        """Begin anew with an empty account."""
        import urllib.request

        url = f"http://127.0.0.1:{self.proxy.upstream_port}/moto-api/reset"
        with urllib.request.urlopen(
            urllib.request.Request(url, method="POST"),
            timeout=30,
        ):
            pass

    def labelled(self, lab_id: str) -> list[str]:
        """Return `kind id` of everything with a lab's label that the cloud still has, sorted."""
        label: Any = [{"Name": "tag:labctl-id", "Values": [lab_id]}]
        ec2 = self.client
        found = [
            f"machine {each['InstanceId']}"
            for reservation in ec2.describe_instances(Filters=label)["Reservations"]
            for each in reservation["Instances"]
            if each["State"]["Name"] != "terminated"
        ]
        found += [
            f"disk {each['VolumeId']}" for each in ec2.describe_volumes(Filters=label)["Volumes"]
        ]
        found += [
            f"address {each['AllocationId']}"
            for each in ec2.describe_addresses(Filters=label)["Addresses"]
        ]
        found += [f"network {each['VpcId']}" for each in ec2.describe_vpcs(Filters=label)["Vpcs"]]
        found += [
            f"subnet {each['SubnetId']}" for each in ec2.describe_subnets(Filters=label)["Subnets"]
        ]
        found += [
            f"gateway {each['InternetGatewayId']}"
            for each in ec2.describe_internet_gateways(Filters=label)["InternetGateways"]
        ]
        found += [
            f"firewall {each['GroupId']}"
            for each in ec2.describe_security_groups(Filters=label)["SecurityGroups"]
        ]
        found += [
            f"key {each['KeyName']}" for each in ec2.describe_key_pairs(Filters=label)["KeyPairs"]
        ]
        found += [
            f"template {each['LaunchTemplateName']}"
            for each in ec2.describe_launch_templates(Filters=label)["LaunchTemplates"]
        ]
        return sorted(found)


@contextmanager
def aws_cloud(folder: Path) -> Iterator[AwsCloud]:
    """Run an empty AWS.

    Args:
        folder: For its list of images and its log.
    """
    images = folder / "amis.json"
    images.write_text(json.dumps(IMAGES))
    with (folder / "moto.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.aws.server"],
            cwd=CHECKOUT,
            env={**os.environ, "MOTO_AMIS_PATH": str(images)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            said = server.stdout.readline().strip()
            assert said.isdigit(), (folder / "moto.log").read_text()
            with FaultProxy(int(said)) as proxy:
                yield AwsCloud(proxy, _client(int(said)))
        finally:
            server.stdin.close()
            server.wait(timeout=30)
            server.stdout.close()


def _client(port: int) -> EC2Client:
    import boto3

    return boto3.client(
        "ec2",
        region_name=REGION,
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
