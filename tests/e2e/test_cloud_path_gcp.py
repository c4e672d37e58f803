"""The whole way of a lab on Google Cloud: the cloud is a stand-in of its API, its machines rehearsal machines.

`make rehearse-gcp` shows it: what was asked, what came, and what the cloud holds afterwards. On the way, one of the
machines powers itself off.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.conftest import BIN, RehearsalLab
from tests.e2e.test_cloud_path import ROOT, SMALL, USER, _say, hardware
from tests.fakes.aws.hardware import boots
from tests.fakes.gcp import harness
from tests.fakes.gcp.harness import PROJECT, Gcp

if TYPE_CHECKING:
    from labctl.remote.base import Executor

__all__ = ["hardware"]

LAB = "gcloud"

pytestmark = [
    pytest.mark.skipif(bool(harness.why_not()), reason=harness.why_not()),
    pytest.mark.timeout(1800),  # two provisioned machines and eight plays of the cloud in one test
]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Gcp]:
    with harness.running() as stand_in:
        yield stand_in


def _user(
    machines: RehearsalLab, cloud: Gcp, *argv: str, timeout_s: float = 900
) -> subprocess.CompletedProcess[str]:
    """Do what a user of this cloud does, and show it."""
    _say(f"\n$ {' '.join(argv)}")
    base = {**machines.environment, "GCP_PROJECT": PROJECT}
    own = {name: machines.environment[name] for name in ("LABCTL_HOME", "PATH")}
    done = subprocess.run(
        cloud.wrap([str(BIN / argv[0]), *argv[1:]]),
        cwd=ROOT,
        env={**cloud.environment(base), **own},
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )
    _say("\n".join((done.stdout + done.stderr).splitlines()[-40:]))
    _say(f"(exit {done.returncode})")
    return done


def _held(cloud: Gcp) -> list[str]:
    return [
        f"{each['kind'].removeprefix('compute#')} {each['name']} {each.get('status', '')}".strip()
        for each in cloud.resources()
    ]


def test_a_lab_on_google_cloud_from_plan_to_receipt(
    hardware: RehearsalLab,
    cloud: Gcp,
) -> None:
    nodes: dict[str, Executor] = {
        node.name: hardware.open(node.name) for node in hardware.lab.nodes
    }
    network = IPv4Network(f"{hardware.lab.node('tf0').data_address}/24", strict=False)
    variables = ROOT / "inventory" / LAB / "group_vars/all/cloud.yml"
    variables.parent.mkdir(parents=True)
    wish = {
        "lab_cloud_subnet_cidr": str(network),
        "lab_cloud_tasks": {"1": {"private_address": str(network[77])}},
        "lab_cloud_user": USER,
        "tensorflow_build": "cpu",
        "tensorflow_uv_cache_dir": "/var/cache/labctl/uv",
    }
    variables.write_text(yaml.safe_dump(wish))
    asked = (
        *("labctl", "up", "--lab", LAB, "--provider", "gcp", "--project", PROJECT),
        *("--region", "us-central1", "--zone", "us-central1-a", "--gpu", "T4"),
        *("--ssh-by", "private", "--admin-cidr", f"{network[1]}/32"),
        *("--owner", "somebody", "--max-hours", "8"),
    )

    dry = _user(hardware, cloud, *asked, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert cloud.resources() == []

    with boots(cloud, nodes, USER) as booted:
        up = _user(hardware, cloud, *asked, "--yes")
    assert up.returncode == 0, (up.stderr, booted)
    assert {node: each["PrivateIpAddress"] for node, each in cloud.machines().items()} == {
        "tf0": str(network[10]),
        "tf1": str(network[77]),
    }
    _say("\nthe cloud has now:\n  " + "\n  ".join(_held(cloud)))
    calls = len(cloud.calls())
    again = _user(hardware, cloud, *asked, "--yes")
    assert again.returncode == 0, again.stderr
    assert {method for method, _, _ in cloud.calls()[calls:]} == {"GET"}

    provisioned = _user(
        hardware, cloud, "ansible-playbook", "-i", f"inventory/{LAB}", "provision.yml"
    )
    assert provisioned.returncode == 0, provisioned.stdout[-4000:]
    lab = RehearsalLab(ROOT, LAB)
    timers = [lab.ssh(node, ["sudo", "/opt/lab-deadman/deadman.py", "status"]) for node in nodes]
    assert all(json.loads(each.stdout)["armed"] for each in timers)
    check = _user(hardware, cloud, "labctl", "check", "--lab", LAB)
    assert check.returncode == 0, check.stdout
    run = _user(hardware, cloud, "labctl", "run", "--lab", LAB, *SMALL)
    assert run.returncode == 0, run.stderr

    # Its timer fires: for the cloud the machine is off, and its disk is billed on.
    (name,) = [
        each["name"] for each in cloud.resources("instances") if each["name"].endswith("tf1")
    ]
    cloud.order("POST", "/stand-in/power-off", {"name": name})
    labs = _user(hardware, cloud, "labctl", "labs")
    assert labs.returncode == 0, labs.stderr
    assert "tf1" in labs.stdout + labs.stderr

    down = _user(hardware, cloud, "labctl", "down", "--lab", LAB, "--json")
    assert down.returncode == 0, down.stderr
    receipt = json.loads(down.stdout)
    assert receipt["left"] == []
    assert receipt["forgotten"] == []
    assert cloud.resources() == []
    _say("\nthe cloud has now: nothing with the labels or the name of the lab")
    for executor in nodes.values():
        executor.close()
