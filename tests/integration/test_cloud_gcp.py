"""The playbooks of `gcp` against a stand-in of Compute Engine, with faults of the cloud between them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import CHECKOUT
from tests.fakes.gcp import harness
from tests.fakes.gcp.harness import PROJECT, Gcp

pytestmark = [
    pytest.mark.skipif(bool(harness.why_not()), reason=harness.why_not()),
    pytest.mark.timeout(1200),  # several plays in a test
]

NAME = "labctl-demo-1a2b3c4d"


@dataclass
class Lab:
    """A lab of these tests and what its playbooks answered."""

    cloud: Gcp
    folder: Path
    variables: dict[str, Any]

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
        argv = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(inventory),
            str(CHECKOUT / f"playbooks/cloud/gcp_{name}.yml"),
            *args,
        ]
        environment = self.cloud.environment()
        return subprocess.run(
            self.cloud.wrap(argv),
            cwd=CHECKOUT,
            env={**environment, "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=400,
            check=False,
        )

    def done(self, name: str, *args: str, **variables: Any) -> int:
        """Run a playbook that has to go through; returns how many tasks changed something."""
        ended = self.play(name, *args, **variables)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        found = re.search(r"localhost +: ok=\d+ +changed=(\d+) ", ended.stdout)
        assert found, ended.stdout
        return int(found[1])

    def refused(self, name: str, **variables: Any) -> str:
        """Run a playbook that has to fail; returns the message of the task that ends it."""
        ended = self.play(name, **variables)
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stdout.rpartition("Say what")[2]
        said = yaml.safe_load(
            re.findall(r"(?ms)^(?:fatal|\[ERROR\]).*?\n\nPLAY RECAP", ended.stdout)[-1]
            .rpartition("=>")[2]
            .removesuffix("PLAY RECAP")
        )
        return str(said["msg"])

    def answer(self, name: str) -> Any:
        return json.loads((self.folder / "cloud" / f"{name}.json").read_text())

    def states(self, name: str = "find") -> dict[str, tuple[str, bool]]:
        """Return (state, billable) of each machine and disk of an answer."""
        return {
            f"{each['kind']} {each['node']}": (each["state"], each["billable"])
            for each in self.answer(name)["resources"]
            if each["kind"] in {"machine", "disk"}
        }


@pytest.fixture(scope="module")
def cloud() -> Iterator[Gcp]:
    """Operations end at once, as modules look after them once a second; one test has them last."""
    with harness.running(operation_s=0) as stand_in:
        yield stand_in


@pytest.fixture
def lab(cloud: Gcp, tmp_path: Path) -> Lab:
    cloud.order("POST", "/stand-in/reset", {"operation_s": 0})
    return Lab(
        cloud,
        tmp_path,
        {
            "lab_name": "demo",
            "lab_owner": "Ann.Other@example.com",
            "lab_id": "1a2b3c4d",
            "lab_provider": "gcp",
            "lab_local_dir": str(tmp_path),
            "lab_cloud_nodes": 2,
            "lab_cloud_project": PROJECT,
            "lab_cloud_region": "us-central1",
            "lab_cloud_zone": "us-central1-a",
            "lab_cloud_machine_type": "n1-standard-4",
            "lab_cloud_gpu_type": "T4",
            "lab_cloud_gpu_count": 1,
            "lab_cloud_image": "ubuntu-2404-lts-amd64",
            "lab_cloud_image_owner": "ubuntu-os-cloud",
            "lab_cloud_disk_gb": 50,
            "lab_cloud_spot": False,
            "lab_cloud_tasks": {"1": {"private_address": "10.132.7.99"}},
            "lab_cloud_network": "",
            "lab_cloud_subnet_cidr": "10.132.7.0/24",
            "lab_cloud_ssh_by": "public",
            "lab_cloud_user": "ubuntu",
            "lab_admin_cidrs": ["198.51.100.7/32"],
            "lab_max_hours": 4,
            "lab_idle_minutes": 60,
            "lab_cloud_timeout_s": 20,
        },
    )


def check_machines(lab: Lab) -> None:
    """Check that the cloud was asked for machines that are the lab's, safe, and end by themselves."""
    made = {each["name"]: each for each in lab.cloud.resources("instances")}
    assert sorted(made) == [f"{NAME}-tf0", f"{NAME}-tf1"]
    labels = {
        "labctl-lab": "demo",
        "labctl-owner": "ann-other-example-com",
        "labctl-id": "1a2b3c4d",
    }
    for node, machine in (("tf0", made[f"{NAME}-tf0"]), ("tf1", made[f"{NAME}-tf1"])):
        assert machine["status"] == "RUNNING"
        assert machine["labels"] == {**labels, "labctl-node": node}
        assert machine["tags"]["items"] == [NAME]
        # Twice lab_max_hours: the node's own timer comes first, and may be put off.
        assert machine["scheduling"] == {
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
            "provisioningModel": "STANDARD",
            "maxRunDuration": {"seconds": str(8 * 3600)},
            "instanceTerminationAction": "DELETE",
        }
        assert "serviceAccounts" not in machine
        assert machine["shieldedInstanceConfig"]["enableSecureBoot"] is False
        assert machine["disks"][0]["autoDelete"] is True
        gpu = machine["guestAccelerators"][0]
        assert gpu["acceleratorType"].endswith("/nvidia-tesla-t4")
        assert gpu["acceleratorCount"] == 1
        given = {each["key"]: each["value"] for each in machine["metadata"]["items"]}
        user_data = yaml.safe_load(given.pop("user-data"))
        assert given == {
            "enable-oslogin": "FALSE",
            "block-project-ssh-keys": "TRUE",
            "serial-port-enable": "FALSE",
        }
        host_key = lab.folder / "host_keys" / f"{node}_ed25519"
        assert user_data["ssh_keys"]["ed25519_private"].strip() == host_key.read_text().strip()
        assert any("set_host_keys = false" in part for part in user_data["bootcmd"][0])
    for disk in lab.cloud.resources("disks"):
        assert disk["sizeGb"] == "50"
        assert disk["labels"]["labctl-id"] == "1a2b3c4d"
        assert disk["type"].endswith("/pd-balanced")


def check_rules(lab: Lab) -> None:
    """Check that SSH is open to the administrators only, and TensorFlow's port to the machines only."""
    rules = {each["name"]: each for each in lab.cloud.resources("firewalls")}
    assert rules[f"{NAME}-ssh"]["sourceRanges"] == ["198.51.100.7/32"]
    assert rules[f"{NAME}-ssh"]["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert rules[f"{NAME}-inside"]["sourceTags"] == [NAME]
    assert "sourceRanges" not in rules[f"{NAME}-inside"]
    assert rules[f"{NAME}-inside"]["allowed"][0]["ports"] == ["2222", "5201"]
    assert all(each["targetTags"] == [NAME] for each in rules.values())


def check_inventory(lab: Lab) -> None:
    """Check that the shipped inventory finds the lab's hosts, and takes no key along."""
    folder = lab.folder / "mine"
    shutil.copytree(CHECKOUT / "inventory/example-gcp", folder)
    asked = folder / "gcp_compute.yml"
    text = asked.read_text()
    for old, new in (("mylab", "demo"), ("00c0ffee", "1a2b3c4d"), ("my-project", PROJECT)):
        text = text.replace(old, new)
    asked.write_text(text.replace("auth_kind: application", "auth_kind: accesstoken"))
    argv = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(folder)]
    argv += ["--list", "--yaml"]
    done = subprocess.run(
        lab.cloud.wrap(argv),
        cwd=CHECKOUT,
        env={**lab.cloud.environment(), "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PRIVATE KEY" not in done.stdout
    groups = yaml.safe_load(done.stdout)["all"]["children"]
    assert list(groups["tf_client"]["hosts"]) == ["tf0"]
    assert list(groups["tf_workers"]["hosts"]) == ["tf1"]
    machines = {
        each["node"]: each
        for each in lab.answer("create")["resources"]
        if each["kind"] == "machine"
    }
    for node, host in groups["tf_cluster"]["hosts"].items():
        assert _plain(host["ansible_host"]) == machines[node]["public_address"]
        assert _plain(host["tf_data_address"]) == machines[node]["private_address"]
        assert host["tf_task_index"] == int(node.removeprefix("tf"))
        assert "StrictHostKeyChecking=yes" in host["ansible_ssh_common_args"]


def _plain(value: Any) -> Any:
    """Return a value that ansible-inventory may have marked as not to be templated."""
    return value["__ansible_unsafe"] if isinstance(value, dict) else value


def test_a_lab_is_made_once_and_removed_with_nothing_left(lab: Lab) -> None:
    cloud = lab.cloud
    cloud.order("POST", "/stand-in/pace", {"operation_s": 0.2})
    ended = lab.play("create", "-vvv")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = ended.stdout + ended.stderr
    assert "PRIVATE KEY" not in said
    assert cloud.token not in said
    check_machines(lab)
    check_rules(lab)

    answer = lab.answer("create")
    machines = {each["node"]: each for each in answer["resources"] if each["kind"] == "machine"}
    assert machines["tf0"]["private_address"] == "10.132.7.10"
    assert machines["tf1"]["private_address"] == "10.132.7.99"
    assert (lab.folder / "cloud" / "create.json").stat().st_mode & 0o777 == 0o600
    known = (lab.folder / "known_hosts").read_text()
    for each in machines.values():
        assert f"{each['private_address']},{each['public_address']} ssh-ed25519 " in known

    check_inventory(lab)
    calls = len(cloud.calls())
    assert lab.done("create") == 0
    assert {method for method, _, _ in cloud.calls()[calls:]} == {"GET"}
    assert lab.done("create", lab_admin_cidrs=["203.0.113.9/32"]) == 1
    assert cloud.resources("firewalls")[1]["sourceRanges"] == ["203.0.113.9/32"]

    assert lab.done("destroy") > 0
    assert lab.answer("destroy")["resources"] == []
    assert cloud.resources() == []


def test_machines_pause_and_resume_and_are_never_lost_from_sight(lab: Lab) -> None:
    lab.done("create")
    before = {
        each["node"]: each
        for each in lab.answer("create")["resources"]
        if each["kind"] == "machine"
    }
    assert lab.done("stop") == 2  # the machines, and their public addresses in known_hosts
    paused = ("stopped", False)
    # A paused machine costs nothing, its disk does.
    assert lab.states() == {
        "machine tf0": paused,
        "machine tf1": paused,
        "disk tf0": ("ready", True),
        "disk tf1": ("ready", True),
    }
    stopped = [each for each in lab.answer("find")["resources"] if each["kind"] == "machine"]
    assert all(each["stopped_unix_s"] >= each["created_unix_s"] for each in stopped)
    assert lab.done("start") == 2
    after = {
        each["node"]: each for each in lab.answer("find")["resources"] if each["kind"] == "machine"
    }
    assert {each["state"] for each in after.values()} == {"running"}
    for node, each in after.items():
        assert each["private_address"] == before[node]["private_address"]
        assert each["public_address"] != before[node]["public_address"]
        assert each["public_address"] in (lab.folder / "known_hosts").read_text()

    # One powers itself off, one is deleted by hand, one stays behind as a disk.
    lab.cloud.order("POST", "/stand-in/power-off", {"name": f"{NAME}-tf0"})
    lab.cloud.order("POST", "/stand-in/remove", {"name": f"{NAME}-tf1", "keep_disk": True})
    assert lab.done("find") == 0
    assert lab.states() == {
        "machine tf0": paused,
        "disk tf0": ("ready", True),
        "disk tf1": ("ready", True),
    }

    # The network stays, as something else of the project uses it: named now, removed once that is gone.
    lab.cloud.fault(
        "error",
        method="DELETE",
        path="/global/networks/",
        status=400,
        reason="resourceInUseByAnotherResource",
        message="The network resource is already being used by 'projects/p/global/routes/office'",
    )
    said = lab.refused("destroy")
    assert said.startswith(f"left: network {NAME}-net: The network resource is already being used")
    assert [each["kind"] for each in lab.answer("destroy")["resources"]] == ["network"]
    assert lab.done("destroy") == 1
    assert lab.cloud.resources() == []
    assert lab.done("destroy") == 0


def test_a_lab_that_is_half_made_is_named_completed_and_removed(lab: Lab) -> None:
    lab.cloud.fault(
        "operation",
        method="POST",
        path="/instances$",
        times=1,
        code="ZONE_RESOURCE_POOL_EXHAUSTED",
        message="The zone does not have enough resources available to fulfill the request.",
    )
    said = lab.refused("create")
    assert said.startswith(
        "capacity: Machines | Make each machine that is missing: tf0: The zone does not have"
    )
    assert said.endswith("\n  do        another lab_cloud_zone or machine type, or try later")
    assert not (lab.folder / "cloud" / "create.json").exists()
    assert [each["name"] for each in lab.cloud.resources("instances")] == [f"{NAME}-tf1"]

    # The other one is there and stays; this one never gets to run.
    lab.cloud.fault("stuck", method="POST", path="/instances$", times=1)
    said = lab.refused("create", lab_cloud_timeout_s=4)
    assert said.startswith(
        "unreachable: Machines | Make each machine that is missing: tf0: insert is"
    )
    lab.done("find")
    assert lab.states()["machine tf0"] == ("pending", True)
    assert lab.states()["machine tf1"] == ("running", True)
    said = lab.refused("create", lab_cloud_timeout_s=2)
    assert said.splitlines()[0] == "machine: tf0 is pending"
    lab.done("destroy")
    assert lab.cloud.resources() == []


def test_validate_says_all_that_the_cloud_would_refuse_and_makes_nothing(lab: Lab) -> None:
    lab.done("validate")
    answer = lab.answer("validate")
    assert answer["account"] == PROJECT
    assert answer["problems"] == []
    assert answer["machines"] == [
        [node, "n1-standard-4", "ubuntu-2404-noble-amd64-v20261028", "us-central1-a"]
        for node in ("tf0", "tf1")
    ]
    lab.done(
        "validate",
        lab_cloud_tasks={
            "0": {"machine_type": "n9-huge"},
            "1": {"image": "ubuntu-1804-lts", "gpu_count": 9},
        },
        lab_cloud_network="office",
    )
    assert [(each["subject"], each["found"]) for each in lab.answer("validate")["problems"]] == [
        ("machine-type", "tf0: us-central1-a has no machine type n9-huge"),
        ("machine-type", "tf1: 9 x nvidia-tesla-t4"),
        (
            "image",
            "tf1: ubuntu-os-cloud has no image or family 'ubuntu-1804-lts' that you may use",
        ),
        ("quota", "NVIDIA_T4_GPUS of us-central1: 4, 0 in use"),
        ("quota", "GPUS_ALL_REGIONS of the project: 4, 0 in use"),
        ("network", "the project has no network office"),
    ]
    said = lab.refused("create", lab_cloud_zone="us-central1-z")
    assert said.startswith(
        "zone: us-central1 has no zone us-central1-z\n  expected  one of us-central1-a"
    )
    assert {method for method, _, _ in lab.cloud.calls()} == {"GET"}
    assert lab.cloud.resources() == []


def test_a_list_that_does_not_come_is_an_error_and_never_an_empty_list(lab: Lab) -> None:
    older = lab.folder / "cloud" / "find.json"
    older.parent.mkdir()
    older.write_text("{}")
    lab.cloud.fault("hang", path="aggregated/instances", times=None)
    said = lab.refused("find", lab_cloud_timeout_s=3)
    assert said.startswith("unreachable: Find | Ask for all that the lab has: instances: ")
    assert len(said.splitlines()) == 3
    assert not older.exists()


def test_credentials_that_are_refused_are_a_problem_of_validate_and_end_other_plays(
    lab: Lab,
) -> None:
    lab.cloud.order("POST", "/stand-in/token", {"token": "another"})
    lab.done("validate")
    problem = lab.answer("validate")["problems"][0]
    assert problem["subject"] == "credentials"
    assert "gcloud auth application-default login" in problem["do"]
    said = lab.refused("find")
    assert said.startswith("credentials: Find | Ask for all that the lab has: ")
    assert lab.cloud.token not in said


def test_a_named_network_is_used_and_left_alone(lab: Lab) -> None:
    root = f"/compute/v1/projects/{PROJECT}"
    link = f"https://www.googleapis.com{root}/global/networks/office"
    lab.cloud.order("POST", f"{root}/global/networks", {"name": "office"})
    subnet = {"name": "office-us", "network": link, "ipCidrRange": "10.132.7.0/24"}
    lab.cloud.order("POST", f"{root}/regions/us-central1/subnetworks", subnet)
    lab.done("create", lab_cloud_network="office", lab_cloud_ssh_by="private", lab_cloud_spot=True)
    machine = lab.cloud.resources("instances")[0]
    assert machine["networkInterfaces"][0]["network"] == link
    assert "accessConfigs" not in machine["networkInterfaces"][0]
    assert machine["scheduling"]["provisioningModel"] == "SPOT"
    lab.done("destroy", lab_cloud_network="office")
    assert [each["name"] for each in lab.cloud.resources()] == ["office", "office-us"]


def test_check_mode_makes_nothing(lab: Lab) -> None:
    lab.done("create", "--check")
    assert lab.cloud.resources() == []
    assert not (lab.folder / "id_ed25519").exists()
