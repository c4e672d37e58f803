"""An inventory that cannot be a lab is refused before anything is touched."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, CHECKOUT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cluster = load("playbooks/filter_plugins/lab_cluster.py")


def hosts(*changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return variables of a valid cluster, a change for each host; None removes a variable."""
    made = {}
    for index, change in enumerate(changes):
        variables = {
            "ansible_host": f"192.0.2.{10 + index}",
            "tf_task_index": index,
            "lab_admin_cidrs": ["203.0.113.0/24"],
            **change,
        }
        made[f"vm{index}"] = {name: value for name, value in variables.items() if value is not None}
    return made


def problems(hostvars: dict[str, dict[str, Any]], **groups: list[str]) -> str:
    return "\n".join(cluster.lab_problems({"tf_cluster": list(hostvars), **groups}, hostvars))


@pytest.mark.parametrize(
    "changes",
    [
        ({}, {}),
        ({}, {}, {}, {}, {}),
        ({"tf_task_index": 1}, {"tf_task_index": 0}),
        ({"tf_port": "2333", "tf_task_index": "0"}, {"tf_port": 65535}),
        ({"tf_data_address": "tf-0.lab_a.example"}, {"tf_data_address": "[2001:db8::1]"}),
        ({"lab_admin_cidrs": ["203.0.113.7", "2001:db8::/32"]}, {"lab_proxy_env": {}}),
    ],
)
def test_usable_inventories_pass(changes: tuple[dict[str, Any], ...]) -> None:
    assert problems(hosts(*changes)) == ""


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ((), "group tf_cluster has 0 hosts"),
        (({},), "group tf_cluster has 1 host\n"),
        (({}, {"tf_task_index": None}), "vm1: tf_task_index is not set"),
        (({}, {"tf_task_index": "one"}), "vm1: tf_task_index is 'one'"),
        (({}, {"tf_task_index": True}), "vm1: tf_task_index is True"),
        (({}, {"tf_task_index": -1}), "vm1: tf_task_index is -1"),
        (({}, {"tf_task_index": 0}), "tf_task_index 0 is given to vm0, vm1"),
        (({}, {"tf_task_index": 2}), "tf_task_index of the 2 hosts: 0, 2"),
        (({}, {"tf_port": 0}), "vm1: tf_port is 0"),
        (({}, {"tf_port": 443}), "vm1: tf_port is 443"),
        (({}, {"tf_port": 99999}), "vm1: tf_port is 99999"),
        (({}, {"tf_port": "ssh"}), "vm1: tf_port is 'ssh'"),
        (({}, {"ansible_host": "192.0.2.10"}), "vm0, vm1 share the data address 192.0.2.10"),
        (({}, {"tf_data_address": "bob@192.0.2.11"}), "its data address is 'bob@192.0.2.11'"),
        (({}, {"tf_data_address": "grpc://192.0.2.11"}), "its data address is 'grpc://192.0.2.11'"),
        (({}, {"tf_data_address": " 192.0.2.11"}), "its data address is ' 192.0.2.11'"),
        (({}, {"tf_data_address": "192.0.2.11:2222"}), "its data address is '192.0.2.11:2222'"),
        (({}, {"tf_data_address": "192.0.2.256"}), "its data address is '192.0.2.256'"),
        (({}, {"tf_data_address": "2001:db8::1"}), "its data address is '2001:db8::1'"),
        (({}, {"tf_data_address": "127.0.0.1"}), "its data address is '127.0.0.1'"),
        (({}, {"tf_data_address": "[::1]"}), "its data address is '[::1]'"),
        (({}, {"tf_data_address": "localhost"}), "its data address is 'localhost'"),
        (({}, {"tf_data_address": "0.0.0.0"}), "its data address is '0.0.0.0'"),  # noqa: S104 refused
        (({}, {"lab_admin_cidrs": None}), "vm1: lab_admin_cidrs is not set"),
        (({}, {"lab_admin_cidrs": []}), "vm1: lab_admin_cidrs is []"),
        (({}, {"lab_admin_cidrs": "203.0.113.0/24"}), "vm1: lab_admin_cidrs is '203.0.113.0/24'"),
        (({}, {"lab_admin_cidrs": ["203.0.113.0/33"]}), "'203.0.113.0/33' is none"),
    ],
)
def test_bad_inventory_is_refused(changes: tuple[dict[str, Any], ...], found: str) -> None:
    message = problems(hosts(*changes))
    assert found in message
    assert "\n  expected  " in message
    assert "\n  do        " in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tensorflow_buld", "rename it to tensorflow_build"),
        ("tf_join_server_inter_op_thread", "rename it to tf_join_server_inter_op_threads"),
        ("lab_admin_cidr", "rename it to lab_admin_cidrs"),
        ("tf_prt", "rename it to tf_port"),
        ("lab_zzzzzzz", "remove it, or give it a prefix of your own"),
    ],
)
def test_misspelt_variable_is_named_with_the_nearest(name: str, nearest: str) -> None:
    message = problems(hosts({}, {name: 1}))
    assert f"vm1: no role or playbook reads the variable {name}" in message
    assert nearest in message


def test_groups_that_contradict_the_indices_are_refused() -> None:
    assert problems(hosts({}, {}), tf_client=["vm0"], tf_workers=["vm1"]) == ""
    message = problems(hosts({}, {}), tf_client=["vm1"], tf_workers=["vm0"])
    assert "group tf_client holds vm1" in message
    assert "group tf_workers holds vm0" in message


def test_tasks_come_in_task_order() -> None:
    hostvars = hosts({"tf_task_index": 1, "tf_port": "2300"}, {"tf_task_index": "0"})
    tasks = cluster.lab_tasks({"tf_cluster": list(hostvars)}, hostvars)
    assert [(task["host"], task["tf_address"]) for task in tasks] == [
        ("vm1", "192.0.2.11:2222"),
        ("vm0", "192.0.2.10:2300"),
    ]


def playbook(
    name: str, inventory: Path, *arguments: str, cwd: Path = CHECKOUT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PLAYBOOK), "-i", str(inventory), name, *arguments],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.integration
class TestThroughAnsible:
    """The same through `ansible-playbook provision.yml`, which must never end 0 on nothing."""

    def write(self, folder: Path, content: str) -> Path:
        (folder / "hosts.yml").write_text(content)
        return folder

    def test_example_is_valid(self) -> None:
        done = playbook("playbooks/validate.yml", CHECKOUT / "inventory/example")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 tasks" in done.stdout

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("tf_cluster:\n  hosts:\n", "group tf_cluster has 0 hosts"),
            ("other:\n  hosts:\n    vm0:\n", "group tf_cluster has 0 hosts"),
            ("tf_cluster:\n  hosts:\n    101:\n", "inventory"),
            ("tf_cluster:\n\thosts:\n", "inventory"),
        ],
    )
    def test_empty_and_broken_inventories_fail(
        self, tmp_path: Path, content: str, said: str
    ) -> None:
        done = playbook("provision.yml", self.write(tmp_path, content))
        assert done.returncode != 0
        assert said in done.stdout + done.stderr
        assert "Preflight" not in done.stdout

    def test_missing_inventory_fails(self, tmp_path: Path) -> None:
        assert playbook("provision.yml", tmp_path / "none").returncode != 0

    @pytest.mark.parametrize("name", ["provision.yml", "playbooks/stop.yml"])
    def test_every_entry_validates_first(self, tmp_path: Path, name: str) -> None:
        inventory = self.write(
            tmp_path, yaml.safe_dump({"tf_cluster": {"hosts": hosts({}, {"tf_port": 0})}})
        )
        done = playbook(name, inventory)
        assert done.returncode == 2
        assert "vm1: tf_port is 0" in done.stdout
        assert "UNREACHABLE" not in done.stdout

    @pytest.mark.parametrize("arguments", [["--limit", "vm1"], ["--tags", "tensorflow_install"]])
    def test_partial_runs_validate_too(self, tmp_path: Path, arguments: list[str]) -> None:
        inventory = self.write(
            tmp_path, yaml.safe_dump({"tf_cluster": {"hosts": hosts({}, {"tf_port": 0})}})
        )
        assert "vm1: tf_port is 0" in playbook("provision.yml", inventory, *arguments).stdout

    def test_value_that_needs_facts_is_named(self, tmp_path: Path) -> None:
        fact = "{{ ansible_facts['default_ipv4']['address'] }}"
        made = {"tf_cluster": {"hosts": hosts({}, {"tf_data_address": fact})}}
        done = playbook("provision.yml", self.write(tmp_path, yaml.safe_dump(made)))
        assert done.returncode == 2
        assert "vm1: the expression of tf_data_address cannot be evaluated" in done.stdout

    def test_extra_variable_that_is_misspelt_is_refused(self, tmp_path: Path) -> None:
        inventory = self.write(tmp_path, yaml.safe_dump({"tf_cluster": {"hosts": hosts({}, {})}}))
        done = playbook("provision.yml", inventory, "-e", "tensorflow_buld=gpu")
        assert "rename it to tensorflow_build" in done.stdout

    def test_teardown_of_nothing_fails(self, tmp_path: Path) -> None:
        done = playbook("teardown.yml", self.write(tmp_path, "tf_cluster:\n  hosts:\n"))
        assert done.returncode == 2
        assert "Group tf_cluster has no host" in done.stdout
