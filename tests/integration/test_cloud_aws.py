"""The playbooks of `aws` against moto's server, with faults of the cloud between them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import CHECKOUT
from tests.fakes.aws.cloud import DEBIAN, IMAGE, NEWEST_IMAGE, REGION, ZONE, AwsCloud, aws_cloud

LAB_ID = "0123abcd"


@dataclass
class Lab:
    """A lab of these tests and what its playbooks answered."""

    cloud: AwsCloud
    folder: Path
    variables: dict[str, Any] = field(default_factory=dict)

    def play(self, name: str, *args: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run a playbook on the lab as labctl would, with some variables changed."""
        inventory = self.folder / "hosts.json"
        inventory.write_text(
            json.dumps(
                {
                    "all": {
                        "hosts": {"localhost": {"ansible_connection": "local"}},
                        "vars": {**self.variables, **variables},
                    }
                }
            )
        )
        return subprocess.run(
            [
                str(Path(sys.executable).parent / "ansible-playbook"),
                "-i",
                str(inventory),
                str(CHECKOUT / f"playbooks/cloud/aws_{name}.yml"),
                *args,
            ],
            cwd=CHECKOUT,
            env={**self.cloud.environment, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=400,
            check=False,
        )

    def answer(self, name: str) -> Any:
        return json.loads((self.folder / "cloud" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsCloud]:
    with aws_cloud(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture
def lab(cloud: AwsCloud, tmp_path: Path) -> Lab:
    cloud.proxy.reset()
    cloud.forget()
    return Lab(
        cloud,
        tmp_path,
        {
            "lab_name": "demo",
            "lab_owner": "somebody",
            "lab_id": LAB_ID,
            "lab_provider": "aws",
            "lab_local_dir": str(tmp_path),
            "lab_cloud_nodes": 2,
            "lab_cloud_region": REGION,
            "lab_cloud_zone": ZONE,
            "lab_cloud_machine_type": "g4dn.xlarge",
            "lab_cloud_gpu_type": "T4",
            "lab_cloud_gpu_count": 1,
            "lab_cloud_image": IMAGE,
            "lab_cloud_image_owner": DEBIAN,
            "lab_cloud_disk_gb": 100,
            "lab_cloud_spot": False,
            "lab_cloud_tasks": {"1": {"private_address": "10.132.7.99"}},
            "lab_cloud_network": "",
            "lab_cloud_subnet_cidr": "10.132.7.0/24",
            "lab_cloud_ssh_by": "public",
            "lab_cloud_user": "admin",
            "lab_admin_cidrs": ["198.51.100.7/32"],
            "lab_max_hours": 8,
            "lab_idle_minutes": 30,
            "lab_cloud_timeout_s": 20,
        },
    )


def _changed(done: subprocess.CompletedProcess[str]) -> int:
    found = re.search(r"localhost +: ok=\d+ +changed=(\d+) ", done.stdout)
    assert found, done.stdout + done.stderr
    return int(found[1])


def _by_kind(answer: Any) -> dict[str, list[dict[str, Any]]]:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in answer["resources"]:
        kinds.setdefault(each["kind"], []).append(each)
    return kinds


def test_a_lab_is_made_once_and_removed_with_nothing_left(lab: Lab) -> None:
    done = lab.play("create")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PRIVATE KEY" not in done.stdout

    machines = lab.cloud.machines()
    assert {node: each["PrivateIpAddress"] for node, each in machines.items()} == {
        "tf0": "10.132.7.10",
        "tf1": "10.132.7.99",
    }
    assert {each["ImageId"] for each in machines.values()} == {NEWEST_IMAGE}
    assert {each["InstanceType"] for each in machines.values()} == {"g4dn.xlarge"}
    assert {each["MetadataOptions"]["HttpTokens"] for each in machines.values()} == {"required"}
    ec2 = lab.cloud.client
    for node, machine in machines.items():
        behaviour = ec2.describe_instance_attribute(
            Attribute="instanceInitiatedShutdownBehavior", InstanceId=machine["InstanceId"]
        )
        assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
        assert machine["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
        given = yaml.safe_load(lab.cloud.user_data(node))
        host_key = lab.folder / "host_keys" / f"{node}_ed25519"
        assert given["ssh_keys"]["ed25519_private"].strip() == host_key.read_text().strip()
        assert given["ssh_authorized_keys"] == [(lab.folder / "id_ed25519.pub").read_text().strip()]
        assert given["runcmd"] == [["shutdown", "-P", "+480"]]
        assert host_key.stat().st_mode & 0o777 == 0o600

    kinds = _by_kind(lab.answer("create"))
    assert {kind: len(found) for kind, found in kinds.items()} == {
        "machine": 2,
        "disk": 2,
        "network": 1,
        "subnet": 1,
        "gateway": 1,
        "firewall": 1,
        "key": 1,
    }
    assert all(each["billable"] for each in kinds["machine"] + kinds["disk"])
    assert sorted(each["node"] for each in kinds["disk"]) == ["tf0", "tf1"]
    assert (lab.folder / "cloud/create.json").stat().st_mode & 0o777 == 0o600
    known = (lab.folder / "known_hosts").read_text()
    for each in kinds["machine"]:
        public = (lab.folder / f"host_keys/{each['node']}_ed25519.pub").read_text().split()[1]
        line = next(line for line in known.splitlines() if public in line)
        assert line.split()[0] == f"{each['private_address']},{each['public_address']}"

    rules = ec2.describe_security_groups(GroupIds=[kinds["firewall"][0]["id"]])["SecurityGroups"][0]
    opened = {
        (
            rule["IpProtocol"],
            rule.get("FromPort"),
            *(each["CidrIp"] for each in rule["IpRanges"]),
            *(each["GroupId"] for each in rule["UserIdGroupPairs"]),
        )
        for rule in rules["IpPermissions"]
    }
    own = rules["GroupId"]
    assert opened == {
        ("tcp", 22, "198.51.100.7/32"),
        ("tcp", 2222, own),
        ("tcp", 5201, own),
        ("icmp", -1, own),
    }

    again = lab.play("create")
    assert again.returncode == 0, again.stdout + again.stderr
    assert _changed(again) == 0

    removed = lab.play("destroy")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert lab.answer("destroy")["resources"] == []
    assert lab.cloud.labelled(LAB_ID) == []

    twice = lab.play("destroy")
    assert twice.returncode == 0, twice.stdout + twice.stderr
    assert _changed(twice) == 0
