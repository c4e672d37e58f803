from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import ConfigError, InventoryError
from labctl.lab.cluster import check_cluster, cluster_addresses
from labctl.lab.home import Home, check_lab_name, remove_empty
from labctl.lab.inventory import (
    ConnectionDefaults,
    cluster_hosts,
    lab_from_listing,
    loopback_lab,
    needs_rendering,
)
from labctl.lab.model import Lab, Node

WHERE = Path("/labs/one")


def listing(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"_meta": {"hostvars": hosts}, "tf_cluster": {"hosts": list(hosts)}}


def lab_of(given: dict[str, Any], defaults: ConnectionDefaults | None = None) -> Lab:
    return lab_from_listing(
        "one",
        given,
        inventory=WHERE,
        local_dir=Path("/labs/.lab/one"),
        defaults=defaults or ConnectionDefaults(),
    )


def test_nodes_come_in_task_order_whatever_the_order_of_hosts() -> None:
    lab = lab_of(listing(b={"tf_task_index": 1}, c={"tf_task_index": "2"}, a={"tf_task_index": 0}))
    assert [node.name for node in lab.nodes] == ["a", "b", "c"]
    assert cluster_addresses(lab) == ("a:2222", "b:2222", "c:2222")
    assert (lab.client.name, [node.name for node in lab.workers]) == ("a", ["b", "c"])


def test_children_of_the_group_are_found_once() -> None:
    given = {
        "tf_cluster": {"children": ["tf_client", "tf_workers"], "hosts": ["x"]},
        "tf_client": {"hosts": ["x"]},
        "tf_workers": {"hosts": ["y"], "children": ["tf_cluster"]},
        "other": {"hosts": ["z"]},
    }
    assert cluster_hosts(given) == ["x", "y"]


def test_connection_is_what_ansible_would_use() -> None:
    lab = lab_of(
        listing(
            a={
                "tf_task_index": 0,
                "ansible_host": "192.0.2.10",
                "ansible_port": "2200",
                "ansible_ssh_private_key_file": "~/key",
                "ansible_ssh_common_args": "-o ProxyJump=me@192.0.2.1:2222 -o 'ServerAliveInterval 5'",
                "tf_data_address": "10.0.0.2",
                "tf_port": "2333",
            },
            b={"tf_task_index": 1, "ansible_ssh_user": "ann"},
        ),
        ConnectionDefaults(
            user="tom", port="2022", key_file="/k", common_args="-o Compression=yes"
        ),
    )
    a, b = lab.nodes
    assert a.ssh is not None
    assert b.ssh is not None
    assert (a.ssh.host, a.ssh.user, a.ssh.port) == ("192.0.2.10", "tom", 2200)
    assert a.ssh.key_file == Path.home() / "key"
    assert a.ssh.options == (
        "-o",
        "ProxyJump=me@192.0.2.1:2222",
        "-o",
        "ServerAliveInterval 5",
    )
    assert a.tf_address == "10.0.0.2:2333"
    assert (b.ssh.user, b.ssh.port, b.ssh.key_file) == ("ann", 2022, Path("/k"))
    assert b.ssh.options == ("-o", "Compression=yes")


@pytest.mark.parametrize(
    ("hosts", "part"),
    [
        ({}, "has 0 hosts"),
        ({"a": {"tf_task_index": 0}}, "has 1 host in"),
        ({"a": {"tf_task_index": 0}, "b": {}}, "b has no tf_task_index"),
        ({"a": {"tf_task_index": 0}, "b": {"tf_task_index": 0}}, "given to both a and b"),
        ({"a": {"tf_task_index": 0}, "b": {"tf_task_index": 2}}, "values are 0, 2"),
        ({"a": {"tf_task_index": -1}, "b": {"tf_task_index": 0}}, "tf_task_index of a is -1"),
        ({"a": {"tf_task_index": True}, "b": {"tf_task_index": 0}}, "tf_task_index of a is True"),
        (
            {
                "a": {"tf_task_index": 0, "ansible_host": "192.0.2.10"},
                "b": {"tf_task_index": 1, "ansible_host": "192.0.2.10"},
            },
            "a and b share the address 192.0.2.10:2222",
        ),
        ({"a": {"tf_task_index": 0, "tf_port": 99999}, "b": {"tf_task_index": 1}}, "is 99999"),
        ({"a": {"tf_task_index": 0, "tf_port": 0}, "b": {"tf_task_index": 1}}, "tf_port of a is 0"),
        (
            {
                "a": {"tf_task_index": 0, "tf_data_address": "bob@192.0.2.1"},
                "b": {"tf_task_index": 1},
            },
            "'bob@192.0.2.1'",
        ),
        (
            {"a": {"tf_task_index": 0, "tf_data_address": "grpc://h"}, "b": {"tf_task_index": 1}},
            "'grpc://h'",
        ),
        (
            {"a": {"tf_task_index": 0, "tf_data_address": " h"}, "b": {"tf_task_index": 1}},
            "' h'",
        ),
        (
            {"a": {"tf_task_index": 0, "ansible_connection": "local"}, "b": {"tf_task_index": 1}},
            "ansible_connection of a is 'local'",
        ),
        (
            {"a": {"tf_task_index": 0, "ansible_password": "x"}, "b": {"tf_task_index": 1}},
            "ansible_password is set for a",
        ),
        (
            {"a": {"tf_task_index": 0, "ansible_ssh_common_args": "'"}, "b": {"tf_task_index": 1}},
            "SSH arguments of a cannot be read",
        ),
        (
            {
                "a": {"tf_task_index": 0, "lab_provider": "aws"},
                "b": {"tf_task_index": 1, "lab_provider": "gcp"},
            },
            "lab_provider differs",
        ),
    ],
)
def test_what_is_no_lab_is_refused_by_name(hosts: dict[str, Any], part: str) -> None:
    with pytest.raises(InventoryError) as caught:
        lab_of(listing(**hosts))
    assert part in caught.value.found
    assert caught.value.do
    assert caught.value.exit_code == 3


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(InventoryError) as caught:
        lab_of(
            listing(a={"tf_task_index": 0, "ansible_password": "hunter2"}, b={"tf_task_index": 1})
        )
    assert "hunter2" not in str(caught.value)


def test_ipv6_and_names_may_stand_in_the_spec() -> None:
    nodes = [
        Node("a", 0, "[2001:db8::1]", 2222, None),
        Node("b", 1, "gpu-1.example.test", 2222, None),
    ]
    assert check_cluster(nodes, where="x") == tuple(nodes)


def test_templates_and_vaulted_values_need_ansible() -> None:
    assert needs_rendering("{{ x }}")
    assert needs_rendering({"__ansible_vault": "..."})
    assert needs_rendering({"__ansible_unsafe": "192.0.2.1"})
    assert not needs_rendering({"key": "192.0.2.1"})
    assert not needs_rendering("192.0.2.1")
    assert not needs_rendering(3)


def test_loopback_lab_has_a_task_for_each_port() -> None:
    lab = loopback_lab(Path("/x"), (4001, 4002, 4003))
    assert cluster_addresses(lab) == ("127.0.0.1:4001", "127.0.0.1:4002", "127.0.0.1:4003")
    assert all(node.ssh is None for node in lab.nodes)


@pytest.mark.parametrize(
    "name", ["", "A", "1a", "a_b", "../x", "active", "example", "a" * 40, "a/b"]
)
def test_lab_names_that_could_not_be_one(name: str) -> None:
    with pytest.raises(ConfigError):
        check_lab_name(name)


def test_home_is_the_nearest_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABCTL_HOME")
    (tmp_path / "a/.lab").mkdir(parents=True)
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert Home.find(tmp_path / "a/b/c").root == tmp_path / "a"
    assert Home.find(tmp_path).root == tmp_path


def test_active_lab_switches_and_a_dangling_link_is_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for name in ("one", "two"):
        home.inventory(name).mkdir(parents=True)
        (home.inventory(name) / "hosts.yml").touch()
    assert home.active() is None
    with pytest.raises(ConfigError, match="no lab is active"):
        home.choose(None)
    home.activate("one")
    home.activate("two")
    assert (home.active(), home.choose(None), home.choose("one")) == ("two", "two", "one")
    home.deactivate("one")
    assert home.active() == "two"
    shutil.rmtree(home.inventory("two"))
    assert home.active() is None
    with pytest.raises(ConfigError, match="no lab 'three'"):
        home.activate("three")
    assert home.labs() == ["one"]


def test_variables_alone_are_no_lab(tmp_path: Path) -> None:
    home = Home(tmp_path)
    variables = home.inventory("kept") / "group_vars/all.yml"
    variables.parent.mkdir(parents=True)
    variables.touch()
    (home.inventory("kept") / "hosts.yml.orig").touch()
    assert home.labs() == []
    with pytest.raises(ConfigError, match="no inventory file") as caught:
        home.activate("kept")
    assert "labctl up --lab kept" in str(caught.value.do)
    assert home.active() is None


def test_home_is_made_or_refused_with_nothing_left(tmp_path: Path) -> None:
    home = Home(tmp_path / "new")
    made = home.prepare("one")
    assert {each.name for each in made} == {"new", ".lab", "one", "inventory"}
    assert home.prepare("one") == []
    remove_empty(made)
    assert not home.root.exists()

    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/inventory").write_text("a file")
    with pytest.raises(ConfigError, match=f"{tmp_path}/bad/inventory cannot be written"):
        Home(tmp_path / "bad").prepare("one")
    assert [each.name for each in (tmp_path / "bad").iterdir()] == ["inventory"]


def test_a_home_where_nothing_can_be_made_is_named() -> None:
    for work in (Home.prepare, Home.make_local_dir):
        with pytest.raises(ConfigError, match=r"/proc/\.lab cannot be written"):
            work(Home(Path("/proc")), "one")


def test_local_dir_is_private(tmp_path: Path) -> None:
    folder = Home(tmp_path).make_local_dir("one")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
