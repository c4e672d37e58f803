"""The playbooks of `aws` against moto's server, with faults of the cloud between them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import CHECKOUT
from tests.fakes.aws.cloud import DEBIAN, IMAGE, NEWEST_IMAGE, REGION, ZONE, AwsCloud, aws_cloud
from tests.fakes.aws.proxy import Fault

if TYPE_CHECKING:
    from types_boto3_ec2.client import EC2Client

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
            timeout=550,
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
            "lab_cloud_timeout_s": 60,
        },
    )


def _dynamic(lab: Lab) -> subprocess.CompletedProcess[str]:
    """List the hosts of the example's dynamic inventory, edited for this lab."""
    folder = lab.folder / "mylab"
    shutil.copytree(CHECKOUT / "inventory/example-aws", folder, dirs_exist_ok=True)
    for path in folder.rglob("*.yml"):
        path.write_text(path.read_text().replace("mylab", "demo").replace("00c0ffee", LAB_ID))
    return subprocess.run(
        [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(folder), "--list"],
        cwd=CHECKOUT,
        env={**lab.cloud.environment, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
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


def _check_rules(ec2: EC2Client, group_id: str) -> None:
    rules = ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"][0]
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


def _check_dynamic(lab: Lab, machines: dict[str, Any]) -> None:
    listed = _dynamic(lab)
    assert listed.returncode == 0, listed.stderr
    hosts = json.loads(listed.stdout)
    assert sorted(hosts["tf_cluster"]["hosts"]) == ["tf0", "tf1"]
    assert hosts["tf_client"]["hosts"] == ["tf0"]
    assert hosts["tf_workers"]["hosts"] == ["tf1"]
    # What came from outside is marked, so that Ansible takes no template from it.
    seen = hosts["_meta"]["hostvars"]["tf1"]
    assert seen["ansible_host"] == {"__ansible_unsafe": machines["tf1"]["PublicIpAddress"]}
    assert seen["tf_data_address"] == {"__ansible_unsafe": "10.132.7.99"}
    assert seen["tf_task_index"] == 1
    lab.cloud.proxy.faults.append(Fault("DescribeInstances", code="UnauthorizedOperation"))
    assert _dynamic(lab).returncode != 0
    lab.cloud.proxy.faults.clear()


def _check_pause(lab: Lab) -> None:
    stopped = lab.play("stop")
    assert stopped.returncode == 0, stopped.stdout
    machines = _by_kind(lab.answer("find"))["machine"]
    assert [each["state"] for each in machines] == ["stopped", "stopped"]
    assert not any(each["billable"] for each in machines)
    assert all(each["stopped_unix_s"] for each in machines)

    started = lab.play("start")
    assert started.returncode == 0, started.stdout
    machines = _by_kind(lab.answer("find"))["machine"]
    assert [each["state"] for each in machines] == ["running", "running"]
    known = (lab.folder / "known_hosts").read_text()
    assert all(each["private_address"] in known for each in machines)


def test_a_lab_is_made_once_paused_and_removed_with_nothing_left(lab: Lab) -> None:
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

    _check_rules(ec2, kinds["firewall"][0]["id"])
    _check_dynamic(lab, machines)

    again = lab.play("create")
    assert again.returncode == 0, again.stdout + again.stderr
    assert _changed(again) == 0

    _check_pause(lab)

    removed = lab.play("destroy")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert lab.answer("destroy")["resources"] == []
    assert lab.cloud.labelled(LAB_ID) == []

    twice = lab.play("destroy")
    assert twice.returncode == 0, twice.stdout + twice.stderr
    assert _changed(twice) == 0


def _message(done: subprocess.CompletedProcess[str]) -> str:
    """Return what the last failed task says: the three parts that labctl shows."""
    assert done.returncode != 0, done.stdout
    last = done.stdout.rsplit("fatal: [localhost]", 1)[1].split("PLAY RECAP")[0]
    assert "  expected  " in last, done.stdout
    assert "  do        " in last, done.stdout
    return last


@pytest.mark.parametrize(
    ("variables", "subject", "found"),
    [
        ({"lab_cloud_image": "debian-99-*"}, "image", "no image 'debian-99-*'"),
        ({"lab_cloud_region": "eu-nowhere-1"}, "region", "AWS has no region eu-nowhere-1"),
    ],
)
def test_what_does_not_exist_is_found_before_anything_is_made(
    lab: Lab, variables: dict[str, Any], subject: str, found: str
) -> None:
    done = lab.play("validate", **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (problem,) = lab.answer("validate")["problems"]
    assert problem["subject"] == subject
    assert found in problem["found"]
    assert lab.cloud.labelled(LAB_ID) == []


def test_a_quota_is_counted_before_anything_is_made(lab: Lab) -> None:
    lab.cloud.proxy.quotas["L-DB2E81BA"] = 4.0
    assert lab.play("validate").returncode == 0
    (problem,) = lab.answer("validate")["problems"]
    assert problem["subject"] == "quota"
    assert problem["expected"] == "room for 8 more"


def test_expired_credentials_are_a_problem_and_never_an_empty_lab(lab: Lab) -> None:
    lab.cloud.proxy.faults.append(Fault.expired())
    done = lab.play("validate")
    assert done.returncode == 0, done.stdout
    (problem,) = lab.answer("validate")["problems"]
    assert problem["subject"] == "credentials"
    assert "ExpiredToken" in problem["found"]

    found = lab.play("find")
    assert "credentials: " in _message(found)
    assert not (lab.folder / "cloud/find.json").exists()


@pytest.mark.parametrize("action", ["DescribeInstances", "DescribeKeyPairs"])
def test_a_list_that_aws_does_not_answer_fails_and_leaves_no_answer(lab: Lab, action: str) -> None:
    lab.cloud.proxy.faults.append(Fault(action, kind="hang"))
    done = lab.play("find", lab_cloud_timeout_s=5)
    assert "unreachable: " in _message(done)
    assert not (lab.folder / "cloud/find.json").exists()


def test_a_throttled_api_is_asked_again_and_named_when_it_stays(lab: Lab) -> None:
    lab.cloud.proxy.faults.append(Fault.throttled("DescribeVolumes", times=2))
    done = lab.play("find")
    assert done.returncode == 0, done.stdout
    assert lab.cloud.proxy.calls.count("DescribeVolumes") == 3
    assert lab.answer("find")["resources"] == []

    lab.cloud.proxy.faults.append(Fault.throttled("DescribeInstances"))
    assert "throttled: " in _message(lab.play("find"))


def test_a_machine_that_never_runs_is_named_completed_and_removed(lab: Lab) -> None:
    lab.cloud.proxy.held["tf1"] = ("pending", "")
    done = lab.play("create", "-e", "__aws_start_timeout_s=12")
    assert "machine: tf1 (i-" in _message(done)
    assert ") is pending" in _message(done)
    assert set(lab.cloud.machines()) == {"tf0", "tf1"}

    # The cloud ends it; the next create makes another and leaves the one that runs.
    lab.cloud.proxy.reset()
    before = lab.cloud.machines()
    lab.cloud.client.terminate_instances(InstanceIds=[before["tf1"]["InstanceId"]])
    completed = lab.play("create")
    assert completed.returncode == 0, completed.stdout
    after = lab.cloud.machines()
    assert after["tf0"]["InstanceId"] == before["tf0"]["InstanceId"]
    assert after["tf1"]["InstanceId"] != before["tf1"]["InstanceId"]

    # One that was stopped, and one that hangs at its start, are removed all the same; so are a disk and an
    # address that nothing uses.
    lab.cloud.proxy.held["tf1"] = ("pending", "")
    lab.cloud.client.stop_instances(InstanceIds=[after["tf0"]["InstanceId"]])
    tags: Any = [
        {"Key": "labctl-lab", "Value": "demo"},
        {"Key": "labctl-id", "Value": LAB_ID},
    ]
    lab.cloud.client.create_volume(
        AvailabilityZone=ZONE,
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    lab.cloud.client.allocate_address(
        TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tags}]
    )
    removed = lab.play("destroy")
    assert removed.returncode == 0, removed.stdout
    assert lab.cloud.labelled(LAB_ID) == []
    assert lab.answer("destroy")["resources"] == []


def test_what_aws_keeps_is_named_and_of_a_named_subnet_all_but_the_subnet_goes(lab: Lab) -> None:
    ec2 = lab.cloud.client
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone=ZONE)
    named = {
        "lab_cloud_network": subnet["Subnet"]["SubnetId"],
        "lab_cloud_subnet_cidr": "",
        "lab_cloud_tasks": {},
        "lab_cloud_nodes": 1,
        "lab_cloud_spot": True,
        "lab_cloud_ssh_by": "private",
    }
    done = lab.play("create", **named)
    assert done.returncode == 0, done.stdout
    machine = lab.cloud.machines()["tf0"]
    # moto ignores what a template says of the market; what AWS would be told is in the template.
    (version,) = ec2.describe_launch_template_versions(
        LaunchTemplateName=f"labctl-demo-{LAB_ID}-spot", Versions=["$Latest"]
    )["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert machine["SubnetId"] == named["lab_cloud_network"]
    assert {each["kind"] for each in lab.answer("create")["resources"]} == {
        "machine",
        "disk",
        "firewall",
        "key",
    }
    lab.cloud.proxy.faults.append(
        Fault("TerminateInstances", code="OperationNotPermitted", message="disableApiTermination")
    )
    kept = _message(lab.play("destroy", "-e", "__aws_poll_s=1", **named))
    assert "left: machine i-" in kept
    assert "billed" in kept
    assert "disableApiTermination" in kept
    kinds = [each["kind"] for each in lab.answer("destroy")["resources"]]
    assert "machine" in kinds
    assert "key" not in kinds
    lab.cloud.proxy.reset()

    removed = lab.play("destroy", **named)
    assert removed.returncode == 0, removed.stdout
    assert lab.cloud.labelled(LAB_ID) == []
    assert [each["VpcId"] for each in ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]] == [vpc]


def test_labctl_tells_each_fault_by_message_and_exit_code_and_loses_nothing(
    cloud: AwsCloud, tmp_path: Path
) -> None:
    cloud.proxy.reset()
    cloud.forget()

    def labctl(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "labctl"), *argv, "--lab", "demo"],
            cwd=tmp_path,
            env={**cloud.environment, "LABCTL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=550,
            check=False,
        )

    where = ("--provider", "aws", "--region", REGION, "--zone", ZONE, "--yes")
    up = ("up", *where, "--gpu", "T4", "--ssh-by", "private", "--admin-cidr", "198.51.100.7/32")

    cloud.proxy.quotas["L-DB2E81BA"] = 4.0
    quota = labctl(*up)
    assert (quota.returncode, cloud.machines()) == (3, {}), quota.stderr
    assert "L-DB2E81BA" in quota.stderr
    cloud.proxy.reset()

    image = labctl(*up, "--image", f"{DEBIAN}/debian-99-*")
    assert (image.returncode, cloud.machines()) == (3, {}), image.stderr
    assert "no image 'debian-99-*'" in image.stderr

    cloud.proxy.faults.append(Fault.expired())
    expired = labctl(*up)
    assert expired.returncode == 3, expired.stderr
    assert "ExpiredToken" in expired.stderr
    cloud.proxy.reset()

    # AWS has no room for the second machine: the first one costs, and nobody loses sight of it.
    cloud.proxy.faults.append(
        Fault("RunInstances", code="InstanceLimitExceeded", containing="labctl-demo-tf1")
    )
    half = labctl(*up)
    assert half.returncode == 7, half.stderr
    assert "InstanceLimitExceeded" in half.stderr
    assert "labctl down --lab demo" in half.stderr
    (machine,) = cloud.machines().values()
    cloud.proxy.reset()

    cloud.proxy.faults.append(Fault.throttled("DescribeInstances"))
    deaf = labctl("down", "--force")
    assert "forgotten  machine tf0" in deaf.stdout
    assert "it may be BILLED until it is gone" in deaf.stderr
    assert set(cloud.machines()) == {"tf0"}
    cloud.proxy.reset()

    cloud.client.stop_instances(InstanceIds=[machine["InstanceId"]])
    gone = labctl("down", "--force", "--json")
    assert gone.returncode == 0, gone.stderr
    receipt = json.loads(gone.stdout)
    assert (receipt["left"], receipt["forgotten"]) == ([], [])
    assert cloud.machines() == {}
    assert (
        cloud.client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["false"]}])["Vpcs"]
        == []
    )
