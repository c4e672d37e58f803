"""The role nvidia_driver on two machines, with made-up packages; each test leaves what the next one starts from."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.conftest import LAB_NAME, RehearsalLab
from tests.e2e.driver_repository import Package, Repository, Server, driver, served, support
from tests.fakes import install
from tests.fakes.scenario import Scenario, load

NAME = "driver"
NEW, OLD = "535.261.03-1", "535.216.01-1"
PLAY = """
- hosts: tf_cluster
  become: true
  gather_facts: false
  roles: [nvidia_driver]
"""
# What a kernel package's trigger would have; it leaves a mark.
INITRAMFS = "#!/bin/sh\ntouch /run/initramfs-rebuilt\n"


@dataclass
class Driver:
    """Two machines with nothing but the repository as their source of packages.

    Attributes:
        lab: The machines.
        repository: Its content.
        server: Its network side.
        variables: Of every run of the role.
    """

    lab: RehearsalLab
    repository: Repository
    server: Server
    variables: dict[str, Any] = field(default_factory=dict)

    def fake(self, node: str, scenario: Scenario | str) -> None:
        executor = self.lab.open(node)
        try:
            install.on_machine(executor, scenario)
        finally:
            executor.close()

    def run(self, *options: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        given = self.lab.root / "driver_vars.json"
        given.write_text(json.dumps({**self.variables, **variables}))
        return self.lab.playbook(
            "driver.yml", "-i", f"inventory/{NAME}", "-e", f"@{given}", *options
        )

    def root(self, node: str, command: str, *, check: bool = True) -> str:
        return self.lab.ssh(node, ["sudo", "sh", "-c", command], check=check).stdout.strip()

    def packages(self, node: str) -> dict[str, tuple[str, str]]:
        """Return the driver's packages of a machine: what dpkg wants with them, and their version."""
        rows = self.root(
            node, "dpkg-query -W -f '${Package} ${db:Status-Want} ${Version}\\n'"
        ).splitlines()
        found = (row.split() for row in rows)
        return {
            name: (want, version) for name, want, version in found if re.search("nvidia|cuda", name)
        }


@pytest.fixture(scope="module")
def machines(bare_lab: RehearsalLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    lab = replace(bare_lab, name=NAME)
    lab.labctl("up", "--lab", NAME, "--nodes", "2", check=True)
    lab.labctl("use", LAB_NAME, check=True)
    (lab.root / "driver.yml").write_text(PLAY)
    repository = Repository(tmp_path_factory.mktemp("repository"))
    gateway = lab.lab.node("tf0").data_address.rpartition(".")[0] + ".1"
    with served(repository, gateway) as server:
        made = Driver(lab, repository, server)
        kernel = made.root("tf0", "uname -r")
        made.repository.publish(everything(kernel, NEW, OLD))
        made.variables = {
            "nvidia_driver_enabled": True,
            "nvidia_driver_modules_managed": True,
            "nvidia_driver_repository_uri": server.uri,
            "nvidia_driver_repository_key": repository.key,
            "nvidia_driver_repository_fingerprint": "",
            "nvidia_driver_repository_delay_s": 0.2,
        }
        for node in ("tf0", "tf1"):
            made.root(
                node,
                "rm -f /etc/apt/sources.list.d/* /etc/apt/sources.list; apt-get update -qq",
            )
            made.fake(node, "no-driver")
        yield made
    lab.labctl("down", "--lab", NAME, "--force")


def everything(kernel: str, *versions: str) -> list[Package]:
    packages = [*support(), Package(f"linux-headers-{kernel}", "1")]
    return packages + [package for version in versions for package in driver(version)]


def untouched(machines: Driver, node: str) -> bool:
    left = machines.root(
        node,
        "ls /etc/apt/sources.list.d /etc/apt/preferences.d /etc/modprobe.d | grep lab-",
        check=False,
    )
    return left == "" and machines.packages(node) == {}


def told(done: subprocess.CompletedProcess[str], node: str) -> str:
    """Return the message that ended the role on a node, without the way Ansible breaks lines."""
    match = re.search(
        rf"^fatal: \[{node}\].*?(?=^(?:fatal|ok|changed|skipping|TASK|PLAY|NO MORE))",
        done.stdout,
        re.MULTILINE | re.DOTALL,
    )
    assert match is not None, done.stdout[-3000:]
    return " ".join(match[0].split())


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    return done.stdout


def test_check_mode_names_what_would_be_installed(machines: Driver) -> None:
    machines.fake("tf1", "no-gpu")
    said = " ".join(succeeded(machines.run("--check")).split())
    assert "tf0: Tesla T4; driver branch 535, closed kernel modules" in said
    assert re.search(r"Would install [^']*nvidia-smi", said)
    assert "tf1: no NVIDIA device on the PCI bus; nothing to install" in said
    assert untouched(machines, "tf0")


@pytest.mark.parametrize(
    ("first", "second", "variables", "found"),
    [
        (
            "pre-turing",
            "no-kernels",
            {"nvidia_driver_branch": "590", "nvidia_driver_flavour": "closed"},
            ("set nvidia_driver_branch: 580", "runs with no others"),
        ),
        (
            "secure-boot",
            "nouveau",
            {},
            ("mokutil --import", "nouveau is loaded and holds the device"),
        ),
        (
            "nova",
            "kernel",
            {},
            ("playbooks/reboot.yml", "linux-headers-6.1.0-99-cloud-amd64"),
        ),
    ],
)
def test_refused_before_anything_is_touched(
    machines: Driver,
    first: str,
    second: str,
    variables: dict[str, str],
    found: tuple[str, str],
) -> None:
    bare = load("no-driver")
    other = replace(bare, kernel=replace(bare.kernel, release="6.1.0-99-cloud-amd64"))
    for node, name in (("tf0", first), ("tf1", second)):
        machines.fake(node, other if name == "kernel" else name)
    done = machines.run(**variables)
    assert done.returncode == 2
    for node, text in zip(("tf0", "tf1"), found, strict=True):
        message = told(done, node)
        assert text in message
        assert "expected" in message
        assert "do " in message
        assert untouched(machines, node)
    assert "changed=0" in done.stdout


def test_lasting_faults_of_the_repository_end_with_its_name(machines: Driver) -> None:
    for node in ("tf0", "tf1"):
        machines.fake(node, "no-driver")
    machines.server.cut["Packages.gz"] = machines.server.cut["Packages"] = 1000
    done = machines.run(nvidia_driver_repository_tries=3)
    machines.server.cut.clear()
    assert machines.server.uri.rstrip("/") in told(done, "tf0")
    assert "(3 times)" in told(done, "tf0")

    other = Repository(machines.lab.root / "other")
    done = machines.run(nvidia_driver_repository_key=other.key)
    assert machines.server.uri.rstrip("/") in told(done, "tf0")
    assert "NO_PUBKEY" in told(done, "tf1")
    assert untouched(machines, "tf0")


def test_install_waits_for_the_mirror_and_clears_a_second_entry(machines: Driver) -> None:
    """tf1's nouveau is put on the blacklist, and waits for a reboot."""
    uri = machines.server.uri
    machines.root("tf0", f"echo 'deb [trusted=yes] {uri} /' > /etc/apt/sources.list.d/cuda.list")
    machines.fake("tf1", "nouveau")
    for node in ("tf0", "tf1"):
        machines.root(
            node,
            f"printf '%s' '{INITRAMFS}' > /usr/sbin/update-initramfs; chmod 755 /usr/sbin/update-initramfs",
        )
    machines.server.cut["Packages.gz"] = machines.server.cut["Packages"] = 2
    machines.server.requests.clear()
    done = machines.run(nvidia_driver_blacklist_managed=True)
    assert machines.server.requests["InRelease"] > 2
    counts = next(row for row in done.stdout.splitlines() if row.startswith("tf0 "))
    assert "failed=0" in counts, done.stdout[-6000:]

    found = machines.packages("tf0")
    assert {"libcuda1", "nvidia-smi", "nvidia-kernel-dkms", "nvidia-persistenced"} <= set(found)
    assert {want for want, _ in found.values()} == {"hold"}
    assert found["nvidia-smi"][1] == NEW
    entries = machines.root("tf0", "ls /etc/apt/sources.list.d")
    assert entries == "lab-nvidia-driver.sources"
    assert machines.root("tf0", "systemctl is-active nvidia-persistenced") == "active"
    assert "nvidia" in machines.root("tf0", "apt-config dump Unattended-Upgrade::Package-Blacklist")

    assert "nouveau is still loaded" in told(done, "tf1")
    assert "playbooks/reboot.yml" in told(done, "tf1")
    assert "blacklist nova_core" in machines.root(
        "tf1", "cat /etc/modprobe.d/lab-nvidia-driver.conf"
    )
    machines.root("tf1", "test -e /run/initramfs-rebuilt")


def switch_on_again(lab: RehearsalLab, node: str) -> None:
    """Wait until a machine has ended, and start it."""
    give_up_s = time.monotonic() + 200
    while time.monotonic() < give_up_s:
        try:
            socket.create_connection((lab.lab.node(node).data_address, 22), timeout=2).close()
        except OSError:
            break
        time.sleep(1)
    # sshd goes before the machine does.
    while lab.labctl("up", "--lab", NAME).returncode != 0 and time.monotonic() < give_up_s:
        time.sleep(2)
    while time.monotonic() < give_up_s:
        rows = lab.labctl("labs").stdout.splitlines()
        if "partly" not in next(row for row in rows if f" {NAME} " in row):
            break
        lab.labctl("up", "--lab", NAME)
    lab.labctl("use", LAB_NAME, check=True)


def test_reboot_takes_only_the_node_that_needs_it(machines: Driver) -> None:
    boots = {
        node: machines.root(node, "cat /proc/sys/kernel/random/boot_id") for node in ("tf0", "tf1")
    }
    local = [
        "-e",
        "ansible_connection=local",
        "-e",
        "reboot_forced=true",
        "-e",
        "ansible_become=false",
    ]
    refused = machines.lab.playbook("playbooks/reboot.yml", "-i", f"inventory/{NAME}", *local)
    assert refused.returncode == 2
    assert "connection local" in told(refused, "tf1")
    # A rehearsal machine that reboots ends: somebody has to switch it on again, as a cloud's host does.
    with ThreadPoolExecutor(1) as switch:
        on_again = switch.submit(switch_on_again, machines.lab, "tf1")
        said = succeeded(
            machines.lab.playbook(
                "playbooks/reboot.yml", "-i", f"inventory/{NAME}", "-e", "reboot_timeout_s=300"
            )
        )
        on_again.result()
    assert "tf0: no reboot is needed" in said
    assert "nouveau is on the blacklist and still loaded" in " ".join(said.split())
    now = {
        node: machines.root(node, "cat /proc/sys/kernel/random/boot_id") for node in ("tf0", "tf1")
    }
    assert now["tf0"] == boots["tf0"]
    assert now["tf1"] != boots["tf1"]
    machines.fake("tf1", "no-driver")


def test_second_run_changes_nothing_and_upgrades_leave_the_pin(machines: Driver) -> None:
    machines.run(nvidia_driver_blacklist_managed=True)  # tf1, after its reboot
    said = succeeded(machines.run(nvidia_driver_blacklist_managed=True))
    assert len(re.findall(r"\bchanged=0\b", said)) == 2
    kernel = machines.root("tf0", "uname -r")
    machines.repository.publish(everything(kernel, "535.300.01-1", NEW, OLD))
    machines.root("tf0", "apt-get update -qq; apt-get -y -qq dist-upgrade")
    assert machines.packages("tf0")["nvidia-smi"] == ("hold", NEW)


def test_pin_changes_when_it_is_asked_for_and_holds_again(machines: Driver) -> None:
    for run in (1, 2):
        said = succeeded(machines.run("--limit", "tf0", nvidia_driver_version=OLD))
        assert ("changed=0" in said) == (run == 2)
    found = machines.packages("tf0")
    assert found["nvidia-smi"] == found["libcuda1"] == found["libnvidia-ml1"] == ("hold", OLD)
    assert {want for want, _ in found.values()} == {"hold"}


def test_module_of_another_version_is_told(machines: Driver) -> None:
    machines.root("tf0", "touch /etc/test-driver-mismatch")
    done = machines.run("--limit", "tf0", nvidia_driver_version=OLD)
    machines.root("tf0", "rm /etc/test-driver-mismatch")
    assert "version mismatch" in told(done, "tf0")
    assert "playbooks/reboot.yml" in told(done, "tf0")


def test_teardown_lets_the_driver_go(machines: Driver) -> None:
    play = PLAY.replace(
        "  roles: [nvidia_driver]",
        "  tasks:\n    - ansible.builtin.import_role: {name: nvidia_driver, tasks_from: teardown}",
    )
    (machines.lab.root / "driver_teardown.yml").write_text(play)
    succeeded(
        machines.lab.playbook("driver_teardown.yml", "-i", f"inventory/{NAME}", "--limit", "tf0")
    )
    assert {want for want, _ in machines.packages("tf0").values()} == {"install"}
    left = machines.root("tf0", "find /etc/apt /etc/systemd -name '*lab*driver*' -o -name lab.conf")
    assert left == ""
