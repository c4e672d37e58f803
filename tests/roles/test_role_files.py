"""What the roles say of themselves is true, and what they render is what the other side expects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.node.bundle import payload_files
from labctl.node.wire import spec_text

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
ROLES = sorted(path.parent for path in (CHECKOUT / "roles").glob("*/tasks"))
UNITS = ("tf-join-server.service", "lab-firewall.service")
EXPOSURE_MAX = 25  # tenths of systemd-analyze's points

# Three tasks whose addresses are of all three kinds; two of them in the wrong order.
HOSTS: dict[str, dict[str, Any]] = {
    "vm1": {"tf_task_index": 1, "tf_data_address": "198.51.100.11", "tf_port": "2300"},
    "vm0": {"tf_task_index": 0, "ansible_host": "198.51.100.10"},
    "vm2": {"tf_task_index": 2, "tf_data_address": "[2001:db8::12]"},
}
ADDRESSES = ("198.51.100.10:2222", "198.51.100.11:2300", "[2001:db8::12]:2222")

RENDER = """
- name: Render
  hosts: tf_cluster
  connection: local
  gather_facts: false
  vars_files: ["{checkout}/playbooks/vars/cluster.yml"]
  vars:
    ansible_facts: {{env: {{}}}}
    __lab_firewall_mark: mark
    __tf_join_server_mark: mark
  roles: [lab_base, lab_firewall, tensorflow, cuda, tf_join_server]
  post_tasks:
    - name: Render the templates
      ansible.builtin.template:
        src: "{checkout}/roles/{{{{ item }}}}.j2"
        dest: "{out}/{{{{ inventory_hostname }}}}-{{{{ item | basename }}}}"
        mode: "0644"
      loop:
        - tf_join_server/templates/tf-join-server.service
        - lab_firewall/templates/lab-firewall.service
        - lab_firewall/templates/lab-firewall.nft
      tags: [render]

    - name: Render the values
      ansible.builtin.copy:
        content: "{{{{ item.value }}}}"
        dest: "{out}/{{{{ inventory_hostname }}}}-{{{{ item.name }}}}"
        mode: "0644"
      vars:
        role_path: "{checkout}/roles/tf_join_server"
      loop:
        - {{name: cluster.json, value: "{{{{ __tf_join_server_spec }}}}"}}
        - {{name: payload.json, value: "{{{{ __tf_join_server_payload | to_json }}}}"}}
      tags: [render]
"""


def named(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("role", ROLES, ids=named)
class TestEveryRole:
    def test_defaults_equal_the_argument_spec(self, role: Path) -> None:
        options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"][
            "main"
        ]["options"]
        defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
        assert defaults == {
            name: option["default"]
            for name, option in options.items()
            if not option.get("required")
        }

    def test_variables_carry_the_roles_name(self, role: Path) -> None:
        defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
        internals = yaml.safe_load((role / "vars/main.yml").read_text())
        assert all(name.startswith(f"{role.name}_") for name in defaults)
        assert all(name.startswith(f"__{role.name}_") for name in internals)

    def test_main_only_includes_and_tags(self, role: Path) -> None:
        tasks = yaml.safe_load((role / "tasks/main.yml").read_text())
        files = []
        for task in tasks:
            include = (
                task.get("ansible.builtin.include_tasks") or task["ansible.builtin.import_tasks"]
            )
            files.append(include["file"] if isinstance(include, dict) else include)
            assert role.name in task["tags"]
        assert files == [
            name
            for name in ("preflight.yml", "install.yml", "configure.yml", "service.yml")
            if (role / "tasks" / name).is_file()
        ]
        verbs = {tag for task in tasks for tag in task["tags"]} - {role.name}
        assert verbs == {f"{role.name}_{Path(name).stem}" for name in files[1:]}

    def test_every_task_states_when_a_command_changes_something(self, role: Path) -> None:
        for path in sorted((role / "tasks").glob("*.yml")):
            prefix = path.stem.capitalize()
            for task in flattened(yaml.safe_load(path.read_text())):
                if "ansible.builtin.command" in task:
                    assert "changed_when" in task, f"{path}: {task['name']}"
                if path.stem != "main":
                    assert task["name"].startswith(f"{prefix} | "), f"{path}: {task['name']}"


def flattened(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tasks and those in their blocks; a block itself may go without a name."""
    found = []
    for entry in entries:
        inner = [*entry.get("block", []), *entry.get("rescue", []), *entry.get("always", [])]
        found += flattened(inner) if inner else []
        if "name" in entry or not inner:
            found.append(entry)
    return found


def test_readme_tables_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/role_docs.py", "--check"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["requirements-cpu", "requirements-gpu", "requirements-gpu-system", "requirements-uv"]
)
def test_requirements_are_pinned_hashed_and_name_no_index(name: str) -> None:
    folder = CHECKOUT / "roles/tensorflow/files"
    text = (folder / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines
    assert all(re.match(r"[a-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    for wanted in (folder / f"{name}.in").read_text().split():
        assert any(line.startswith(re.sub(r"\[.*\]", "", wanted)) for line in lines)


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param)
    everyone = {"lab_admin_cidrs": ["203.0.113.0/25", "203.0.113.128/25", "2001:db8:1::/64"]}
    (out / "hosts.yml").write_text(
        yaml.safe_dump(
            {
                "tf_cluster": {
                    "hosts": HOSTS,
                    "vars": {
                        **everyone,
                        "tensorflow_build": request.param,
                        "ansible_python_interpreter": sys.executable,
                    },
                }
            }
        )
    )
    (out / "render.yml").write_text(RENDER.format(checkout=CHECKOUT, out=out))
    done = subprocess.run(
        [
            str(BIN / "ansible-playbook"),
            "-i",
            str(out / "hosts.yml"),
            str(out / "render.yml"),
            "--tags",
            "render",
        ],
        cwd=CHECKOUT,
        env={
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_FILTER_PLUGINS": str(CHECKOUT / "playbooks/filter_plugins"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.integration
class TestEnvironmentState:
    """What files/node_state.py says of a virtual environment."""

    STAMP = "abc"

    def state(self, venv: Path) -> str:
        script = CHECKOUT / "roles/tensorflow/files/node_state.py"
        done = subprocess.run(
            [sys.executable, "-I", str(script), "/none", "x", str(venv), self.STAMP],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        assert found["uv"] == "absent"
        return str(found["venv"])

    @pytest.fixture
    def complete(self, tmp_path: Path) -> Path:
        """Return a complete environment with one package of two files."""
        folder = tmp_path / "venv"
        venv.create(folder, symlinks=True)
        site = next(folder.glob("lib/python3*/site-packages"))
        (site / "one.dist-info").mkdir()
        (site / "one.py").write_text("ONE = 1\n")
        rows = [
            "one.py,sha256=x,8",
            "one.pyc,,",
            "one.dist-info/RECORD,,",
            "../../../bin/one,sha256=x,3",
        ]
        (site / "one.dist-info/RECORD").write_text("\n".join(rows))
        (folder / "bin/one").write_text("abc")
        (folder / "complete").write_text(f"{self.STAMP}\n")
        return folder

    def test_complete_one_is_kept(self, complete: Path) -> None:
        assert self.state(complete) == ""

    def test_absent_one(self, tmp_path: Path) -> None:
        assert self.state(tmp_path / "none") == "absent"

    def test_one_whose_python_does_not_run(self, complete: Path) -> None:
        for link in (complete / "bin").glob("python*"):
            link.unlink()
        (complete / "bin/python").symlink_to("/usr/bin/python9")
        assert self.state(complete) == "its Python does not run"

    def test_one_whose_installation_was_cut_off(self, complete: Path) -> None:
        (complete / "complete").unlink()
        assert self.state(complete) == "its installation did not end"

    def test_one_of_other_requirements(self, complete: Path) -> None:
        (complete / "complete").write_text("abd\n")
        assert self.state(complete) == "made from other requirements"

    @pytest.mark.parametrize("name", ["one.py", "../../../bin/one"])
    def test_one_with_a_lost_or_cut_file(self, complete: Path, name: str) -> None:
        file = next(complete.glob("lib/python3*/site-packages")) / name
        file.write_text("")
        assert self.state(complete) == f"{name} is missing or damaged"
        file.unlink()
        assert self.state(complete) == f"{name} is missing or damaged"


@pytest.mark.integration
class TestRendered:
    """Templates rendered by Ansible itself, with undefined variables as errors."""

    def test_spec_is_the_one_that_labctl_hashes(self, rendered: Path) -> None:
        for host in HOSTS:
            assert (rendered / f"{host}-cluster.json").read_text() == spec_text(ADDRESSES) + "\n"

    def test_payload_is_the_one_that_labctl_pushes(self, rendered: Path) -> None:
        found = json.loads((rendered / "vm1-payload.json").read_text())
        assert found == {name: content.decode() for name, content in payload_files().items()}

    def test_unit_serves_its_own_task(self, rendered: Path) -> None:
        for host, variables in HOSTS.items():
            unit = (rendered / f"{host}-tf-join-server.service").read_text()
            start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
            assert start is not None
            assert start[1] == (
                "/opt/labctl/venv/bin/python /opt/labctl/lib/join_server serve"
                f" --spec /etc/tf-join-server/cluster.json --task {variables['tf_task_index']} --inter-op 2"
            )
            assert "IPAddressAllow=localhost 198.51.100.10 198.51.100.11 2001:db8::12\n" in unit

    def test_filter_opens_the_tasks_and_the_measuring_port_to_peers_only(
        self, rendered: Path
    ) -> None:
        rules = (rendered / "vm1-lab-firewall.nft").read_text()
        accepted = [line.strip() for line in rules.splitlines() if "dport" in line]
        assert accepted == [
            "ip6 saddr fe80::/10 udp sport 547 udp dport 546 accept",
            "tcp dport { 22 } ip saddr { 203.0.113.0/24 } accept",
            "tcp dport { 22 } ip6 saddr { 2001:db8:1::/64 } accept",
            "tcp dport { 5201 } ip saddr { 198.51.100.10 } accept",
            "tcp dport { 5201 } ip6 saddr { 2001:db8::12 } accept",
            "tcp dport { 2300 } ip saddr { 198.51.100.10 } accept",
            "tcp dport { 2300 } ip6 saddr { 2001:db8::12 } accept",
        ]
        assert "policy drop;" in rules

    @pytest.mark.parametrize("name", UNITS)
    def test_unit_is_valid_and_closed(self, rendered: Path, tmp_path: Path, name: str) -> None:
        if not shutil.which("systemd-analyze"):
            pytest.skip("systemd-analyze is not installed")
        unit = tmp_path / name
        # The programs are not on this machine; everything else is judged as it stands.
        unit.write_text(
            re.sub(
                r"^(Exec\w+=-?)\S+",
                r"\1/bin/true",
                (rendered / f"vm1-{name}").read_text(),
                flags=re.MULTILINE,
            )
        )
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")
        judged = subprocess.run(
            [
                "systemd-analyze",
                "security",
                "--offline=true",
                f"--threshold={EXPOSURE_MAX}",
                "--no-pager",
                str(unit),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert judged.returncode == 0, judged.stdout[-400:] + judged.stderr

    def test_gpu_unit_may_use_the_devices(self, rendered: Path) -> None:
        unit = (rendered / "vm1-tf-join-server.service").read_text()
        with_devices = "gpu" in rendered.name
        assert ("DeviceAllow=char-nvidia rw" in unit) == with_devices
        assert ("PrivateDevices=yes" in unit) != with_devices
        assert "MemoryDenyWriteExecute" not in unit

    def test_gpu_unit_has_the_shared_environment_and_may_write_to_the_kernel_cache(
        self, rendered: Path
    ) -> None:
        unit = (rendered / "vm1-tf-join-server.service").read_text().splitlines()
        with_devices = "gpu" in rendered.name
        for line in (
            "EnvironmentFile=-/etc/labctl/cuda.env",
            "ReadWritePaths=-/var/cache/labctl/cuda",
        ):
            assert (line in unit) == with_devices
        after = next(line for line in unit if line.startswith("After="))
        assert ("nvidia-persistenced.service" in after) == with_devices
