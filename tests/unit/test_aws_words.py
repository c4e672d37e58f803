"""What AWS answered in the lab's words, and what it would refuse: pure functions of the playbooks of `aws`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

FILTERS = Path(__file__).resolve().parents[2] / "playbooks/cloud/filter_plugins"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FILTERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


words, refusals, wishes = _load("lab_aws"), _load("lab_aws_refusals"), _load("lab_cloud")

VARIABLES: dict[str, Any] = {
    "lab_name": "demo",
    "lab_owner": "somebody",
    "lab_id": "0123abcd",
    "lab_provider": "aws",
    "lab_local_dir": "/labs/demo",
    "lab_cloud_nodes": 2,
    "lab_cloud_region": "eu-central-1",
    "lab_cloud_zone": "eu-central-1a",
    "lab_cloud_machine_type": "g4dn.xlarge",
    "lab_cloud_gpu_type": "T4",
    "lab_cloud_gpu_count": 1,
    "lab_cloud_image": "debian-12-amd64-*",
    "lab_cloud_image_owner": "136693071363",
    "lab_cloud_disk_gb": 100,
    "lab_cloud_subnet_cidr": "10.132.0.0/24",
    "lab_cloud_network": "",
    "lab_admin_cidrs": ["198.51.100.7/32"],
    "lab_max_hours": 8,
}
IMAGE = {
    "id": "ami-1",
    "name": "debian-12",
    "architecture": "x86_64",
    "root_device": "/dev/xvda",
    "size_gb": 8,
}
T4 = {
    "vcpus": 4,
    "architectures": ["x86_64"],
    "gpus": [{"name": "T4", "count": 1}],
    "zones": ["eu-central-1a"],
}


def machines(**changed: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = wishes.lab_cloud_machines({**VARIABLES, **changed})
    return made


def offers(**changed: Any) -> dict[str, Any]:
    return {
        "machine_types": {"g4dn.xlarge": T4},
        "quotas": {"L-DB2E81BA": {"name": "Running G", "value": 8.0}},
        "in_use": [],
        "unchecked": [],
        **changed,
    }


def problems(**changed: Any) -> list[dict[str, str]]:
    looked = {
        "region": "eu-central-1",
        "zone": "eu-central-1a",
        "zones": ["eu-central-1a", "eu-central-1b"],
        "machines": machines(),
        "offers": offers(),
        "images": {"tf0": IMAGE, "tf1": IMAGE},
        "network": [],
        **changed,
    }
    found: list[dict[str, str]] = refusals.lab_aws_problems(looked)
    return found


def test_a_lab_that_fits_has_no_problem() -> None:
    assert problems() == []
    assert wishes.lab_cloud_problems(VARIABLES) == []


@pytest.mark.parametrize(
    ("changed", "subject", "found"),
    [
        ({"zones": []}, "region", "eu-central-1 has no zone"),
        ({"zone": "eu-central-1z"}, "zone", "no zone eu-central-1z"),
        ({"zone": "eu-central-1b"}, "zone", "tf0, tf1: eu-central-1b does not offer g4dn.xlarge"),
        ({"offers": offers(machine_types={})}, "machine-type", "no machine type g4dn.xlarge"),
        (
            {"machines": machines(lab_cloud_gpu_count=4)},
            "machine-type",
            "tf0, tf1: g4dn.xlarge has 1 x T4",
        ),
        (
            {"offers": offers(machine_types={"g4dn.xlarge": {**T4, "architectures": ["arm64"]}})},
            "machine-type",
            "g4dn.xlarge is arm64",
        ),
        ({"images": {"tf0": IMAGE, "tf1": None}}, "image", "tf1: eu-central-1 has no image"),
        (
            {"images": {"tf0": {**IMAGE, "size_gb": 200}, "tf1": IMAGE}},
            "image",
            "tf0: ami-1 is 200 GB, its disk 100 GB",
        ),
        (
            {"offers": offers(quotas={"L-DB2E81BA": {"name": "G", "value": 7.0}})},
            "quota",
            "G (L-DB2E81BA): 7 vCPUs, 0 in use",
        ),
    ],
)
def test_what_aws_would_refuse_is_one_problem(
    changed: dict[str, Any], subject: str, found: str
) -> None:
    (problem,) = problems(**changed)
    assert problem["subject"] == subject
    assert found in problem["found"]
    assert problem["expected"]
    assert problem["do"]


def test_a_quota_counts_others_of_the_family_and_not_the_labs_own_machines() -> None:
    other = {"machine_type": "g5.xlarge", "vcpus": 4, "spot": False, "lab_id": "", "node": ""}
    own = {**other, "machine_type": "g4dn.xlarge", "lab_id": "0123abcd", "node": "tf0"}
    assert problems(offers=offers(in_use=[own])) == []
    (problem,) = problems(offers=offers(in_use=[other]))
    assert "8 vCPUs, 4 in use" in problem["found"]
    assert problem["expected"] == "room for 8 more"
    assert problems(offers=offers(in_use=[{**other, "spot": True}])) == []


@pytest.mark.parametrize(
    ("machine_type", "spot", "code"),
    [
        ("g4dn.xlarge", False, "L-DB2E81BA"),
        ("g6.xlarge", True, "L-3819A6DF"),
        ("p4d.24xlarge", False, "L-417A185B"),
        ("p5.48xlarge", True, "L-C4BD4855"),
        ("t3.medium", False, "L-1216C47A"),
        ("inf2.xlarge", False, ""),
    ],
)
def test_each_family_has_its_quota(machine_type: str, spot: bool, code: str) -> None:
    assert refusals.lab_aws_quota_code({"machine_type": machine_type, "spot": spot}) == code


def test_a_family_without_a_known_quota_is_said_to_be_unchecked() -> None:
    wanted = machines(
        lab_cloud_machine_type="inf2.xlarge", lab_cloud_gpu_type="", lab_cloud_gpu_count=0
    )
    said = refusals.lab_aws_unchecked(wanted, offers(unchecked=["quota L-1: AccessDenied"]))
    assert said == [
        "quota L-1: AccessDenied",
        "quota of inf2.xlarge: labctl knows no quota of this family",
    ]


def test_the_newest_available_image_is_taken() -> None:
    def image(number: int, day: str, state: str = "available") -> dict[str, Any]:
        return {
            "image_id": f"ami-{number}",
            "creation_date": f"2026-{day}T00:00:00.000Z",
            "state": state,
            "architecture": "x86_64",
        }

    wanted = machines()
    (asked,) = refusals.lab_aws_image_wishes(wanted)
    assert asked["owners"] == ["136693071363"]
    result = {
        "item": asked,
        "images": [image(1, "09-01"), image(2, "08-01"), image(3, "10-01", "pending")],
    }
    chosen = refusals.lab_aws_images(wanted, [result])
    assert {node: each["id"] for node, each in chosen.items()} == {"tf0": "ami-1", "tf1": "ami-1"}
    assert refusals.lab_aws_images(wanted, [{"item": asked, "images": []}]) == {
        "tf0": None,
        "tf1": None,
    }


VPC = {"vpc_id": "vpc-1", "cidr_block_association_set": [{"cidr_block": "10.132.0.0/16"}]}
SUBNET = {
    "vpc_id": "vpc-1",
    "subnet_id": "subnet-1",
    "cidr_block": "10.132.0.0/24",
    "availability_zone": "eu-central-1a",
}


@pytest.mark.parametrize(
    ("network", "cidr", "vpcs", "subnets", "found"),
    [
        ("vpc-1", "10.132.0.0/24", [], [], "no VPC vpc-1 here"),
        ("mine", "10.132.0.0/24", [VPC, VPC], [], "2 VPCs mine here"),
        ("subnet-1", "", [], [], "no subnet subnet-1 here"),
        ("vpc-1", "", [VPC], [], "lab_cloud_subnet_cidr is empty"),
        ("vpc-1", "10.9.0.0/24", [VPC], [], "vpc-1 has 10.132.0.0/16"),
        ("vpc-1", "10.132.0.0/25", [VPC], [SUBNET], "subnet-1 of vpc-1 has 10.132.0.0/24 already"),
        ("subnet-1", "10.9.0.0/24", [], [SUBNET], "subnet-1 has 10.132.0.0/24"),
        (
            "subnet-1",
            "",
            [],
            [{**SUBNET, "availability_zone": "eu-central-1c"}],
            "in eu-central-1c",
        ),
    ],
)
def test_a_named_network_that_cannot_take_the_lab_is_a_problem(
    network: str, cidr: str, vpcs: list[Any], subnets: list[Any], found: str
) -> None:
    wish = {"network": network, "cidr": cidr, "zone": "eu-central-1a"}
    answer = refusals.lab_aws_network(wish, vpcs, subnets)
    (problem,) = answer["problems"]
    assert problem["subject"] == "network"
    assert found in problem["found"]
    assert answer["vpc_id"] == answer["subnet_id"] == ""


def test_a_named_network_is_used_as_it_is() -> None:
    wish = {"network": "subnet-1", "cidr": "", "zone": "eu-central-1a"}
    assert refusals.lab_aws_network(wish, [], [SUBNET]) == {
        "vpc_id": "vpc-1",
        "subnet_id": "subnet-1",
        "problems": [],
    }
    wish = {"network": "vpc-1", "cidr": "10.132.0.0/24", "zone": "eu-central-1a"}
    assert refusals.lab_aws_network(wish, [VPC], [SUBNET])["subnet_id"] == "subnet-1"
    assert refusals.lab_aws_network(wish, [VPC], []) == {
        "vpc_id": "vpc-1",
        "subnet_id": "",
        "problems": [],
    }


@pytest.mark.parametrize(
    ("code", "message", "word"),
    [
        ("ExpiredToken", "The security token included in the request is expired", "credentials"),
        (
            "AuthFailure",
            "AWS was not able to validate the provided access credentials",
            "credentials",
        ),
        ("", "Unable to locate credentials", "credentials"),
        ("RequestLimitExceeded", "Request limit exceeded.", "throttled"),
        ("VcpuLimitExceeded", "You have requested more vCPU capacity than allowed", "quota"),
        ("VpcLimitExceeded", "The maximum number of VPCs has been reached.", "quota"),
        (
            "InsufficientInstanceCapacity",
            "We currently do not have sufficient capacity",
            "capacity",
        ),
        ("UnauthorizedOperation", "You are not authorized", "rights"),
        ("InvalidAMIID.NotFound", "The image id does not exist", "image"),
        ("InvalidIPAddress.InUse", "Address 10.132.0.10 is in use.", "network"),
        ("DependencyViolation", "resource sg-1 has a dependent object", "network"),
        ("Unsupported", "Your requested instance type is not supported", "machine-type"),
        ("", "Could not connect to the endpoint URL", "unreachable"),
        ("", "Timed out after 90 second(s).", "unreachable"),
        ("Strange", "nobody knows", "aws"),
    ],
)
def test_each_failure_begins_with_a_stable_word_and_has_three_parts(
    code: str, message: str, word: str
) -> None:
    result: dict[str, Any] = {"failed": True, "msg": f"Unable: {message}"}
    if code:
        result["error"] = {"code": code, "message": message}
    first, expected, do = words.lab_aws_failure(result, "Machines | Make tf0").split("\n")
    assert first.startswith(f"{word}: Make tf0: ")
    assert message.rstrip(".") in first
    assert expected.startswith("  expected  ")
    assert do.startswith("  do        ")


def test_a_failure_says_each_part_of_a_loop_once_and_no_secret() -> None:
    denied = "You are not authorized. Encoded authorization failure message: " + "x" * 3000
    part = {"failed": True, "error": {"code": "UnauthorizedOperation", "message": denied}}
    key = {"failed": True, "msg": "key AKIAIOSFODNN7EXAMPLE was refused"}
    text = words.lab_aws_failure({"results": [part, part, {"failed": False}, key]}, "Make")
    assert text.count("You are not authorized") == 1
    assert "xxx" not in text
    assert "AKIA" not in text
    assert len(text) < 700


def test_what_a_play_says_itself_is_not_said_anew() -> None:
    said = "machine: tf0 is terminated\n  expected  it to run\n  do        labctl up again"
    assert words.lab_aws_failure({"msg": said}, "Say") == said


def test_only_refused_credentials_are_a_problem_of_validate() -> None:
    problem = words.lab_aws_refusal({"msg": "Unable to locate credentials"})
    assert problem["subject"] == "credentials"
    assert problem["expected"].startswith("credentials that AWS accepts")
    assert problem["do"].startswith("renew them")
    assert words.lab_aws_refusal({"msg": "Could not connect to the endpoint URL"}) is None


def instance(state: str, **more: Any) -> dict[str, Any]:
    return {
        "instance_id": "i-1",
        "state": {"name": state},
        "tags": {"labctl-node": "tf0", "Name": "labctl-demo-tf0"},
        "instance_type": "g4dn.xlarge",
        "placement": {"availability_zone": "eu-central-1a"},
        "private_ip_address": "10.132.0.10",
        "public_ip_address": "198.51.100.9",
        "launch_time": "2026-11-30T21:00:00+00:00",
        **more,
    }


NOTHING: dict[str, list[Any]] = {
    name: []
    for name in (
        "instances",
        "volumes",
        "addresses",
        "vpcs",
        "subnets",
        "gateways",
        "groups",
        "keys",
    )
}


def test_a_machine_is_told_in_the_words_of_an_answer() -> None:
    stopped = "User initiated (2026-11-30 21:30:00 GMT)"
    (machine,) = words.lab_aws_resources(
        {**NOTHING, "instances": [instance("stopped", state_transition_reason=stopped)]}
    )
    assert machine == {
        "kind": "machine",
        "id": "i-1",
        "name": "labctl-demo-tf0",
        "node": "tf0",
        "state": "stopped",
        "billable": False,
        "zone": "eu-central-1a",
        "machine_type": "g4dn.xlarge",
        "private_address": "10.132.0.10",
        "public_address": "198.51.100.9",
        "created_unix_s": 1796072400.0,
        "stopped_unix_s": 1796074200.0,
    }


@pytest.mark.parametrize(
    ("state", "listed", "billable"),
    [
        ("pending", True, True),
        ("running", True, True),
        ("stopping", True, False),
        ("shutting-down", True, False),
        ("stopped", True, False),
        ("terminated", False, False),
    ],
)
def test_a_machine_counts_until_it_is_terminated(state: str, listed: bool, billable: bool) -> None:
    found = words.lab_aws_resources({**NOTHING, "instances": [instance(state)]})
    assert [each["billable"] for each in found] == ([billable] if listed else [])


def test_what_is_left_is_named_with_the_reason() -> None:
    (disk,) = words.lab_aws_resources(
        {**NOTHING, "volumes": [{"volume_id": "vol-1", "state": "in-use", "tags": {}}]}
    )
    refused = {"failed": True, "error": {"code": "VolumeInUse", "message": "vol-1 is attached"}}
    text = words.lab_aws_left([disk], [refused, {"changed": False}])
    assert text.splitlines()[0] == (
        "left: disk vol-1 (in-use), billed: VolumeInUse: vol-1 is attached"
    )


def test_a_machine_that_does_not_run_is_named_with_the_reason() -> None:
    assert words.lab_aws_unfit([instance("running")], 60) == ""
    ended = instance(
        "terminated", state_reason={"message": "Server.InternalError: Internal error on launch"}
    )
    text = words.lab_aws_unfit([ended], 60)
    assert text.startswith(
        "machine: tf0 (i-1) is terminated: Server.InternalError: Internal error on launch\n"
    )
    assert "tf0 (i-1) is pending: AWS gives no reason" in words.lab_aws_unfit(
        [instance("pending")], 60
    )


def test_ssh_is_open_to_the_admins_only_and_the_rest_inside_the_group() -> None:
    rules = words.lab_aws_rules(["198.51.100.7/32", "2001:db8::/64"], [2222, 5201], "group")
    assert [
        (each.get("cidr_ip") or each.get("cidr_ipv6") or each["group_name"], each.get("ports"))
        for each in rules
    ] == [
        ("198.51.100.7/32", [22]),
        ("2001:db8::/64", [22]),
        ("group", [2222, 5201]),
        ("group", None),
    ]


def test_a_task_may_differ_from_the_others() -> None:
    first, second = machines(
        lab_cloud_tasks={"1": {"machine_type": "g5.xlarge", "gpu_type": "A10G", "spot": True}}
    )
    assert (first["machine_type"], first["spot"], first["private_address"]) == (
        "g4dn.xlarge",
        False,
        "10.132.0.10",
    )
    assert (second["machine_type"], second["gpu_type"], second["spot"]) == (
        "g5.xlarge",
        "A10G",
        True,
    )
    assert second["labels"] == {
        "labctl-lab": "demo",
        "labctl-owner": "somebody",
        "labctl-id": "0123abcd",
        "labctl-node": "tf1",
    }


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"lab_provider": "azure"}, "lab_provider is 'azure'"),
        ({"lab_name": "Demo Lab"}, "lab_name is 'Demo Lab'"),
        ({"lab_id": "xyz"}, "lab_id is 'xyz'"),
        ({"lab_cloud_zone": ""}, "lab_cloud_zone is not set"),
        ({"lab_cloud_nodes": 0}, "lab_cloud_nodes is 0"),
        ({"lab_cloud_nodes": True}, "lab_cloud_nodes is True"),
        ({"lab_cloud_machine_type": None}, "lab_cloud_machine_type is not set"),
        ({"lab_cloud_disk_gb": 1}, "lab_cloud_disk_gb is 1"),
        ({"lab_cloud_spot": "maybe"}, "lab_cloud_spot is 'maybe'"),
        ({"lab_cloud_subnet_cidr": "8.8.8.0/24"}, "lab_cloud_subnet_cidr is '8.8.8.0/24'"),
        ({"lab_cloud_subnet_cidr": "10.132.0.1/24"}, "lab_cloud_subnet_cidr is '10.132.0.1/24'"),
        ({"lab_cloud_tasks": {"2": {}}}, "a task of lab_cloud_tasks is '2'"),
        ({"lab_cloud_tasks": {"1": {"gpus": 2}}}, "lab_cloud_tasks, task 1: gpus"),
        ({"lab_cloud_tasks": {"1": {"private_address": "10.132.0.3"}}}, "task 1 is 10.132.0.3"),
        (
            {"lab_cloud_tasks": {"1": {"private_address": "10.132.0.10"}}},
            "tf0, tf1 share the private address 10.132.0.10",
        ),
        ({"lab_admin_cidrs": []}, "lab_admin_cidrs is []"),
        ({"lab_admin_cidrs": ["0.0.0.0/0"]}, "the whole internet"),
        ({"lab_admin_cidrs": ["here"]}, "lab_admin_cidrs has 'here'"),
        ({"lab_max_hours": -1}, "lab_max_hours is -1"),
        ({"lab_idle_minutes": "soon"}, "lab_idle_minutes is 'soon'"),
    ],
)
def test_a_variable_that_no_cloud_can_use_is_named(changed: dict[str, Any], found: str) -> None:
    (problem,) = wishes.lab_cloud_problems({**VARIABLES, **changed})
    first, expected, do = problem.split("\n")
    assert found in first
    assert expected.startswith("  expected  ")
    assert do.startswith("  do        ")


def test_who_looks_or_removes_needs_no_networks_of_administrators() -> None:
    lost = {**VARIABLES, "lab_admin_cidrs": [], "lab_max_hours": -1}
    for answer in ("find", "destroy"):
        assert wishes.lab_cloud_problems(lost, answer) == []
    for answer in ("validate", "create"):
        assert len(wishes.lab_cloud_problems(lost, answer)) == 2


def test_networks_that_make_up_the_whole_internet_are_refused_together() -> None:
    halves = {**VARIABLES, "lab_admin_cidrs": ["128.0.0.0/1", "0.0.0.0/1"]}
    (problem,) = wishes.lab_cloud_problems(halves)
    assert "the whole internet" in problem


def test_host_keys_are_pinned_to_every_address_of_their_machine(tmp_path: Path) -> None:
    (tmp_path / "host_keys").mkdir()
    (tmp_path / "host_keys/tf0_ed25519.pub").write_text("ssh-ed25519 AAAAkey labctl-demo-tf0\n")
    resources = words.lab_aws_resources({**NOTHING, "instances": [instance("running")]})
    assert wishes.lab_cloud_known_hosts(resources, str(tmp_path)) == (
        "10.132.0.10,198.51.100.9 ssh-ed25519 AAAAkey\n"
    )
    stopped = [{**resources[0], "public_address": ""}]
    assert (
        wishes.lab_cloud_known_hosts(stopped, str(tmp_path)) == "10.132.0.10 ssh-ed25519 AAAAkey\n"
    )


def test_the_example_can_be_used_as_it_is() -> None:
    folder = FILTERS.parents[2] / "inventory/example-aws"
    variables = yaml.safe_load((folder / "group_vars/all/cloud.yml").read_text())
    assert wishes.lab_cloud_problems(variables) == []
    dynamic = yaml.safe_load((folder / "aws_ec2.yml").read_text())
    assert dynamic["regions"] == [variables["lab_cloud_region"]]
    assert dynamic["filters"]["tag:labctl-lab"] == variables["lab_name"]
    assert dynamic["filters"]["tag:labctl-id"] == variables["lab_id"]
