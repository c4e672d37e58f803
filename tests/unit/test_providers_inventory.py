"""The inventory of a rehearsal lab: what is in it, and whose its files are."""

from __future__ import annotations

import shlex
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml

from labctl.errors import ConfigError
from labctl.providers import inventory

SUBNET = IPv4Network("10.132.0.0/24")
LOCAL = Path("/home/me/my labs/.lab/demo")


def test_hosts_file_has_all_that_ssh_and_the_tasks_need() -> None:
    data = yaml.safe_load(inventory.hosts_text(LOCAL, SUBNET, 3))
    children = data["tf_cluster"]["children"]
    assert list(children["tf_client"]["hosts"]) == ["tf0"]
    assert list(children["tf_workers"]["hosts"]) == ["tf1", "tf2"]
    host = children["tf_workers"]["hosts"]["tf2"]
    assert host["ansible_host"] == host["tf_data_address"] == "10.132.0.4"
    assert host["tf_task_index"] == 2
    assert host["ansible_user"] == "admin"
    assert host["ansible_ssh_private_key_file"] == f"{LOCAL}/id_ed25519"
    options = shlex.split(host["ansible_ssh_common_args"])
    assert f"UserKnownHostsFile={LOCAL}/known_hosts" in options
    assert "StrictHostKeyChecking=yes" in options


def test_variables_let_in_only_this_host() -> None:
    data = yaml.safe_load(inventory.group_vars_text(SUBNET[1]))
    assert data["lab_provider"] == "rehearsal"
    assert data["lab_admin_cidrs"] == ["10.132.0.1/32"]


def test_write_and_remove_leave_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "inventory" / "demo"
    inventory.check_writable(folder)
    assert inventory.write(folder, LOCAL, SUBNET, 2) == []
    assert inventory.is_ours(folder)
    inventory.check_writable(folder)
    assert inventory.remove(folder) == (True, [])
    assert not folder.exists()
    assert inventory.remove(folder) == (False, [])


def test_edited_variables_stay(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    inventory.write(folder, LOCAL, SUBNET, 2)
    variables = folder / inventory.GROUP_VARS
    variables.write_text(variables.read_text() + "tf_port: 3333\n")
    edited = variables.read_text()
    assert inventory.write(folder, LOCAL, SUBNET, 4) == []
    assert variables.read_text() == edited
    notes = inventory.write(folder, LOCAL, IPv4Network("10.132.5.0/24"), 4)
    assert "10.132.5.1/32" in notes[0]
    assert inventory.remove(folder) == (True, [variables])
    assert variables.read_text() == edited
    inventory.check_writable(folder)


def test_an_edited_hosts_file_is_kept_beside(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    inventory.write(folder, LOCAL, SUBNET, 2)
    hosts = folder / inventory.HOSTS
    assert inventory.write(folder, LOCAL, SUBNET, 3) == []
    for edit, kept in (("# mine\n", "hosts.yml.orig"), ("# again\n", "hosts.yml.2.orig")):
        edited = hosts.read_text() + edit
        hosts.write_text(edited)
        (note,) = inventory.write(folder, LOCAL, SUBNET, 3)
        assert kept in note
        assert (folder / kept).read_text() == edited
        assert hosts.read_text() == inventory.hosts_text(LOCAL, SUBNET, 3)
        assert folder / kept in inventory.files(folder)
    inventory.check_writable(folder)
    assert inventory.remove(folder) == (
        True,
        [folder / "hosts.yml.2.orig", folder / "hosts.yml.orig"],
    )


def test_unedited_variables_follow_the_lab(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    inventory.write(folder, LOCAL, SUBNET, 2)
    inventory.write(folder, LOCAL, IPv4Network("10.132.5.0/24"), 2)
    assert "10.132.5.1/32" in (folder / inventory.GROUP_VARS).read_text()


@pytest.mark.parametrize("name", ["hosts.yml", "hosts", "site.ini"])
def test_an_inventory_of_the_user_s_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("tf_cluster: {}\n")
    with pytest.raises(ConfigError, match="not written by labctl"):
        inventory.check_writable(folder)
    removed, kept = inventory.remove(folder)
    assert not removed
    assert kept == [folder / name]
    assert (folder / name).read_text() == "tf_cluster: {}\n"
