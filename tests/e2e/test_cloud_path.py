"""The whole way of a lab on AWS, from plan to receipt; the cloud is moto's, its machines rehearsal machines.

`make rehearse-aws` shows it: what was asked, what came, and what the cloud holds afterwards.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import BIN, LAB_ROOT, RehearsalLab, copy_content, machines_refused
from tests.fakes import build, install
from tests.fakes.aws.cloud import REGION, ZONE, AwsCloud, aws_cloud
from tests.fakes.aws.hardware import boots

if TYPE_CHECKING:
    from labctl.remote.base import Executor

# One fixed place, so that a later run finds and clears what a broken-off one left.
ROOT = LAB_ROOT.with_name(f"{LAB_ROOT.name}-cloud")
HARDWARE, LAB = "hardware", "cloud"
USER = "admin"
SMALL = ("-L", "64", "--repeat", "2", "--no-trace")

pytestmark = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=f"fake GPUs: {build.compiler_refused()}"
)


def _clear(hardware: RehearsalLab) -> None:
    if (ROOT / "labctl").is_dir():
        done = hardware.labctl("down", "--lab", HARDWARE, "--force")
        assert done.returncode in {0, 3}, done.stderr
    shutil.rmtree(ROOT, ignore_errors=True)


@pytest.fixture(scope="module")
def hardware() -> Iterator[RehearsalLab]:
    """Two machines that nothing was provisioned on, in a root of their own."""
    refused = machines_refused()
    if refused is not None:
        pytest.skip(refused)
    made = RehearsalLab(ROOT, HARDWARE)
    with ROOT.with_name(f"{ROOT.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail("another test run holds these machines")
        _clear(made)
        ROOT.mkdir(mode=0o700)
        try:
            copy_content(ROOT)
            made.labctl("up", "--lab", HARDWARE, "--nodes", "2", timeout_s=900, check=True)
            yield made
        finally:
            _clear(made)


@pytest.fixture(scope="module")
def cloud(hardware: RehearsalLab) -> Iterator[AwsCloud]:
    folder = ROOT / "aws"
    folder.mkdir()
    with aws_cloud(folder) as running:
        yield running


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _user(hardware: RehearsalLab, cloud: AwsCloud, *argv: str, timeout_s: float = 600) -> Any:
    """Do what a user of this cloud does, and show it."""
    _say(f"\n$ {' '.join(argv)}")
    done = subprocess.run(
        [str(BIN / argv[0]), *argv[1:]],
        cwd=ROOT,
        env={**hardware.environment, **cloud.environment, **_own(hardware)},
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


def _own(hardware: RehearsalLab) -> dict[str, str]:
    return {name: hardware.environment[name] for name in ("LABCTL_HOME", "PATH")}


def _wish(network: IPv4Network) -> dict[str, Any]:
    """Return what stands in the lab's cloud.yml beforehand; labctl's options say the rest."""
    return {
        "lab_cloud_subnet_cidr": str(network),
        "lab_cloud_tasks": {"1": {"private_address": str(network[77])}},
        "tensorflow_build": "gpu",
        "cuda_libraries": "system",
        "tensorflow_uv_cache_dir": "/var/cache/labctl/uv",
    }


@pytest.mark.timeout(1500)  # nothing in it waits; machines that are shared are slow
def test_a_lab_on_aws_from_plan_to_receipt(hardware: RehearsalLab, cloud: AwsCloud) -> None:
    nodes: dict[str, Executor] = {
        node.name: hardware.open(node.name) for node in hardware.lab.nodes
    }
    network = IPv4Network(f"{hardware.lab.node('tf0').data_address}/24", strict=False)
    variables = ROOT / "inventory" / LAB / "group_vars/all/cloud.yml"
    variables.parent.mkdir(parents=True)
    variables.write_text(yaml.safe_dump(_wish(network)))
    asked = (
        *("labctl", "up", "--lab", LAB, "--provider", "aws", "--region", REGION, "--zone", ZONE),
        *("--gpu", "T4", "--ssh-by", "private", "--admin-cidr", f"{network[1]}/32"),
        *("--owner", "somebody", "--max-hours", "8"),
    )

    dry = _user(hardware, cloud, *asked, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert cloud.machines() == {}

    with boots(cloud, nodes, USER) as booted:
        up = _user(hardware, cloud, *asked, "--yes")
    assert up.returncode == 0, (up.stderr, booted)
    machines = cloud.machines()
    assert {node: each["PrivateIpAddress"] for node, each in machines.items()} == {
        "tf0": str(network[10]),
        "tf1": str(network[77]),
    }
    (lab_id,) = {
        tag["Value"]
        for each in machines.values()
        for tag in each["Tags"]
        if tag["Key"] == "labctl-id"
    }
    _say("\nthe cloud has now:\n  " + "\n  ".join(cloud.labelled(lab_id)))

    calls = len(cloud.proxy.calls)
    again = _user(hardware, cloud, *asked, "--yes")
    assert again.returncode == 0, again.stderr
    changes = ("Create", "Run", "Delete", "Terminate", "Modify", "Authorize", "Revoke", "Import")
    assert [each for each in cloud.proxy.calls[calls:] if each.startswith(changes)] == []

    lab = RehearsalLab(ROOT, LAB)
    for node in lab.lab.nodes:
        executor = lab.open(node.name)
        install.on_machine(executor, "healthy-t4")
        executor.close()
    provisioned = _user(
        hardware,
        cloud,
        "ansible-playbook",
        "-i",
        f"inventory/{LAB}",
        "provision.yml",
        timeout_s=900,
    )
    assert provisioned.returncode == 0, provisioned.stdout[-4000:]
    timers = [lab.ssh(node, ["sudo", "/opt/lab-deadman/deadman.py", "status"]) for node in machines]
    assert all(json.loads(each.stdout)["armed"] for each in timers)

    check = _user(hardware, cloud, "labctl", "check", "--lab", LAB)
    assert check.returncode == 0, check.stdout
    run = _user(hardware, cloud, "labctl", "run", "--lab", LAB, *SMALL)
    assert run.returncode == 0, run.stderr
    # TensorFlow itself cannot compute on the fakes; all before it can be gone through.
    on_gpu = _user(hardware, cloud, "labctl", "run", "--lab", LAB, "--gpu", *SMALL)
    assert on_gpu.returncode == 5, on_gpu.stderr
    assert "GPU" in on_gpu.stderr

    labs = _user(hardware, cloud, "labctl", "labs")
    assert labs.returncode == 0, labs.stderr
    assert "aws" in labs.stdout

    down = _user(hardware, cloud, "labctl", "down", "--lab", LAB, "--json")
    assert down.returncode == 0, down.stderr
    receipt = json.loads(down.stdout)
    assert receipt["left"] == []
    assert receipt["forgotten"] == []
    assert cloud.labelled(lab_id) == []
    assert cloud.machines() == {}
    _say(f"\nthe cloud has now: {cloud.labelled(lab_id) or 'nothing with the label of the lab'}")

    twice = _user(hardware, cloud, "labctl", "labs")
    assert LAB not in [line.split()[0] for line in twice.stdout.splitlines() if line.split()]
    for executor in nodes.values():
        executor.close()
