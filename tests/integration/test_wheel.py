"""`pip install .` gives a labctl that works from an empty directory: roles, playbooks and node code ship inside."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip would unpack it; dependencies are this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    variables = {
        key: value for key, value in os.environ.items() if key not in {"LABCTL_HOME", "LABCTL_LAB"}
    }
    variables["PYTHONPATH"] = str(installed)
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_everything_that_the_commands_need_is_inside(installed: Path) -> None:
    share = installed / "labctl/_share"
    for name in (
        "ansible.cfg",
        "provision.yml",
        "teardown.yml",
        "playbooks/provision.yml",
        "roles/tensorflow/files/requirements-cpu.txt",
        "playbooks/cloud/aws_create.yml",
        "playbooks/cloud/gcp_create.yml",
        "inventory/example/hosts.yml",
        "inventory/example-aws/group_vars/all/cloud.yml",
        "inventory/example-gcp/group_vars/all/cloud.yml",
    ):
        assert (share / name).is_file(), name
    assert (installed / "labctl/node/wire.py").is_file()
    assert not list(installed.rglob("*.pyc"))


def test_it_is_found_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    code = "from labctl.lab.home import Home; h = Home.find(); print(h.root); print(h.content)"
    done = run(installed, tmp_path, "-c", code)
    assert done.stdout.splitlines() == [str(tmp_path), str(installed / "labctl/_share")], (
        done.stderr
    )


def test_the_shipped_playbooks_parse_with_the_shipped_roles(
    installed: Path, tmp_path: Path
) -> None:
    hosts = tmp_path / "inventory/one/hosts.yml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text((installed / "labctl/_share/inventory/example/hosts.yml").read_text())
    done = run(
        installed,
        tmp_path,
        "-m",
        "labctl",
        "provision",
        "--lab",
        "one",
        "--",
        "--syntax-check",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_payload_is_the_same_as_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = (
        "import hashlib\nfrom labctl.node.bundle import payload_bytes\n"
        "print(hashlib.sha256(payload_bytes()).hexdigest())"
    )
    there = run(installed, tmp_path, "-c", code)
    here = run(CHECKOUT, tmp_path, "-c", code)
    assert there.stdout == here.stdout != "", there.stderr + here.stderr
