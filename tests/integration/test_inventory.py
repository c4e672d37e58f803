"""labctl's view of an inventory equals Ansible's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.errors import InventoryError
from labctl.lab.home import Home, inventory_sources
from labctl.playbook import ansible_environment, load_lab


def write(root: Path, files: dict[str, str]) -> Home:
    for name, text in files.items():
        path = root / "inventory/one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Home(root)


RANGES = {
    "hosts.yml": """
tf_cluster:
  children:
    tf_client:
      hosts:
        "198.51.100.7:2200": {tf_task_index: 0}
    tf_workers:
      hosts:
        gpu[01:03].example.test:
""",
    "group_vars/tf_workers.yml": """
tf_task_index: "{{ inventory_hostname[3:5] | int }}"
ansible_port: "2022"
ansible_ssh_common_args: -o ProxyJump=labuser@192.0.2.1:2222
""",
    "group_vars/all.yml": "ansible_user: tom\nlab_provider: none\n",
}


def test_ranges_ports_children_group_vars_and_templates(tmp_path: Path) -> None:
    lab = load_lab(write(tmp_path, RANGES), "one")
    assert [node.name for node in lab.nodes] == [
        "198.51.100.7",
        "gpu01.example.test",
        "gpu02.example.test",
        "gpu03.example.test",
    ]
    assert [node.task_index for node in lab.nodes] == [0, 1, 2, 3]
    assert [node.ssh.port for node in lab.nodes if node.ssh] == [2200, 2022, 2022, 2022]
    assert {node.ssh.user for node in lab.nodes if node.ssh} == {"tom"}
    assert lab.nodes[1].ssh is not None
    assert lab.nodes[1].ssh.options == ("-o", "ProxyJump=labuser@192.0.2.1:2222")


def test_sources_are_the_files_that_ansible_reads(tmp_path: Path) -> None:
    names = ["hosts", "a.ini", ".hidden", "a~", "README.md", "notes.txt", "x_group_vars"]
    names += [f"hosts.yml{each}" for each in (".orig", ".2.orig", ".bak", ".cfg", ".retry", ".swp")]
    home = write(tmp_path, {name: f"node{index}\n" for index, name in enumerate(names)})
    (home.inventory("one") / "group_vars").mkdir()
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-inventory", "-i", home.inventory("one"), "--list"],
        env={**os.environ, **ansible_environment(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    read = (
        json.loads(done.stdout)["_meta"]["hostvars"]
        or json.loads(done.stdout)["ungrouped"]["hosts"]
    )
    hosts = {f"node{names.index(name)}" for name in inventory_sources(home.inventory("one"))}
    assert hosts == set(read) == {"node0", "node1", "node6"}


def test_the_host_list_equals_ansibles(tmp_path: Path) -> None:
    home = write(tmp_path, RANGES)
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible"),
            "tf_cluster",
            "-i",
            str(tmp_path / "inventory/one"),
            "--list-hosts",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=ansible_environment(home),
    )
    hosts = [line.strip() for line in done.stdout.splitlines()[1:]]
    assert sorted(hosts) == sorted(node.name for node in load_lab(home, "one").nodes)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tf_cluster:\n  hosts:\n    101:\n", "Host pattern 101 must be a string"),
        ("tf_cluster:\n\thosts:\n", "Tabs are usually invalid"),
        ("tf_cluster:\n  hosts:\n", "has 0 hosts"),
        ("other:\n  hosts:\n    a:\n", "has 0 hosts"),
    ],
)
def test_broken_or_empty_is_an_error(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(InventoryError) as caught:
        load_lab(write(tmp_path, {"hosts.yml": text}), "one")
    assert part in caught.value.found


def test_one_bad_file_beside_a_good_one_is_an_error(tmp_path: Path) -> None:
    home = write(tmp_path, {**RANGES, "more.yml": "tf_cluster:\n  hosts:\n    101:\n"})
    with pytest.raises(InventoryError, match="101"):
        load_lab(home, "one")


def test_a_template_that_cannot_be_rendered_is_an_error(tmp_path: Path) -> None:
    hosts = (
        "tf_cluster:\n  hosts:\n"
        "    a: {tf_task_index: 0, ansible_host: '{{ nosuch }}'}\n    b: {tf_task_index: 1}\n"
    )
    with pytest.raises(InventoryError, match="cannot render"):
        load_lab(write(tmp_path, {"hosts.yml": hosts}), "one")


def test_plays_see_the_same_variables(tmp_path: Path) -> None:
    """A port in group_vars beside the inventory is the one that ansible-playbook has too."""
    home = write(
        tmp_path,
        {
            "hosts.yml": "tf_cluster:\n  hosts:\n    a: {tf_task_index: 0}\n    b: {tf_task_index: 1}\n",
            "group_vars/tf_cluster.yml": "tf_port: 2333\n",
        },
    )
    assert {node.tf_port for node in load_lab(home, "one").nodes} == {2333}
    play = tmp_path / "show.yml"
    play.write_text(
        "- hosts: tf_cluster\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.debug:\n        var: tf_port\n      delegate_to: localhost\n"
    )
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            str(tmp_path / "inventory/one"),
            str(play),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={
            **ansible_environment(home),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        },
    )
    tasks = json.loads(done.stdout)["plays"][0]["tasks"]
    assert {result["tf_port"] for result in tasks[0]["hosts"].values()} == {2333}
