"""What labctl does with a cloud, through its real playbooks: AWS's, on moto's server. Only SSH is in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from labctl.lab.home import Home
from labctl.providers.base import MachineOptions
from labctl.providers.cloud import books
from labctl.providers.cloud.model import CloudOptions
from labctl.providers.cloud.plays import AnsibleRunner
from labctl.providers.cloud.provider import CloudProvider
from tests.fakes.aws.cloud import NEWEST_IMAGE, REGION, AwsCloud, aws_cloud
from tests.unit.cloud_worlds import Worlds

SECRET = "a-secret-that-nothing-may-show"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsCloud]:
    with aws_cloud(tmp_path) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield running


def test_a_lab_comes_stands_and_goes(cloud: AwsCloud, tmp_path: Path) -> None:
    worlds = Worlds(Home(tmp_path / "home"))
    world = replace(worlds.world, runner=AnsibleRunner(worlds.home), unix_s=worlds.clock.time)
    labs = CloudProvider(worlds.home, "aws", world)
    options = MachineOptions(cloud=CloudOptions(region=REGION, admin_cidrs=("192.0.2.1/32",)))

    plan = labs.plan("demo", options, worlds.tell)
    assert cloud.machines() == {}
    assert [each.image.split()[0] for each in plan.machines] == [NEWEST_IMAGE] * 2
    status = labs.carry_out(plan, worlds.tell)
    assert status.state == "up"
    there = cloud.machines()
    hosts = yaml.safe_load((worlds.home.inventory("demo") / "hosts.yml").read_text())
    client = hosts["tf_cluster"]["children"]["tf_client"]["hosts"]["tf0"]
    assert client["ansible_host"] == there["tf0"]["PublicIpAddress"]
    assert client["tf_data_address"] == there["tf0"]["PrivateIpAddress"] == "10.132.0.10"
    local = worlds.home.local_dir("demo")
    public = (local / "host_keys/tf0_ed25519.pub").read_text().split()[1]
    assert public in (local / "known_hosts").read_text()

    again = labs.plan("demo", options, worlds.tell)
    assert (again.costs, again.changes) == (False, ())

    state = books.Books(worlds.home, "demo").state()
    assert state is not None
    kept = all_text(worlds.home.root)

    # All that is known here is lost: the cloud, asked by label, still has it and gives it up.
    shutil.rmtree(local)
    shutil.rmtree(worlds.home.inventory("demo"))
    receipt = labs.remove("demo", CloudOptions(region=REGION), force=False, report=worlds.tell)
    assert receipt.left == ()
    assert cloud.labelled(state.wish.lab_id) == []
    assert [each.node for each in receipt.machines] == ["tf0", "tf1"]

    kept += all_text(worlds.home.root)
    assert "TASK" in kept
    assert SECRET not in kept


def all_text(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
