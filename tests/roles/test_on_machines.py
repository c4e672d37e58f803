"""The roles on two machines, in the order of a lab's life: each test leaves what the next one starts from."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

pytestmark = pytest.mark.e2e

UNIT = "tf-join-server.service"
HOLD_S = 15
LOCKS = {"tf0": "/var/lib/dpkg/lock-frontend", "tf1": "/var/lib/apt/lists/lock"}
HOLD_LOCK = "import fcntl, time; f = open('{path}', 'a'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep({hold_s})"
HOLD_PORT = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
KILL = """
import glob, os, signal, subprocess, time

def kill(name):
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            found = open(path).read().strip()
        except OSError:
            continue
        if found == name:
            os.kill(int(path.split("/")[2]), signal.SIGKILL)
"""
KILL_UV = f"""{KILL}
while not glob.glob("/opt/labctl/venv/lib/python3*/site-packages/tensorflow"):
    time.sleep(0.1)
kill("uv")
"""
SILENT_S = 20
# A connection that Ansible kept open ends with the sshd behind it.
SILENCE_SSH = f"""{KILL}
time.sleep(1)
subprocess.run(["systemctl", "stop", "ssh.service"])
kill("sshd")
time.sleep({SILENT_S})
subprocess.run(["systemctl", "start", "ssh.service"])
"""
LEFT = (
    "( -name labctl -o -name tf-join* -o -name lab-firewall* -o -path */journald.conf.d/*labctl* )"
)


def root(lab: RehearsalLab, node: str, *argv: str, check: bool = True) -> str:
    """Run a command as root and return what it printed."""
    return lab.ssh(node, ["sudo", *argv], check=check).stdout.strip()


def in_background(lab: RehearsalLab, node: str, unit: str, *argv: str) -> None:
    root(lab, node, "systemd-run", "--quiet", "--collect", f"--unit={unit}", *argv)


def recap(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, int]]:
    """Return Ansible's counts by node."""
    rows = re.findall(r"^(\S+)\s+: (ok=.*)$", done.stdout, re.MULTILINE)
    assert rows, done.stdout + done.stderr
    return {
        host: {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", counts)}
        for host, counts in rows
        if host != "localhost"
    }


def changed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the tasks that changed something."""
    tasks = re.split(r"^(?:TASK|RUNNING HANDLER) \[", done.stdout, flags=re.MULTILINE)[1:]
    return [
        task.partition("]")[0] for task in tasks if re.search(r"^changed: ", task, re.MULTILINE)
    ]


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done


def listening_ports(lab: RehearsalLab, node: str) -> set[int]:
    rows = lab.ssh(node, ["ss", "-Hltn"]).stdout.splitlines()
    return {int(row.split()[3].rpartition(":")[2]) for row in rows}


def unit_property(lab: RehearsalLab, node: str, name: str) -> str:
    return lab.ssh(
        node, ["systemctl", "show", UNIT, f"--property={name}", "--value"]
    ).stdout.strip()


def test_check_mode_passes_on_bare_nodes(lab: RehearsalLab) -> None:
    done = succeeded(lab.playbook("provision.yml", "--check", "--diff"))
    assert all(counts["changed"] > 0 for counts in recap(done).values())
    assert "No such file" in lab.ssh("tf0", ["ls", "/opt/labctl"], check=False).stderr


def test_wheel_folder_that_is_not_there_is_named_before_anything_is_made(lab: RehearsalLab) -> None:
    done = lab.playbook(
        "provision.yml",
        "--tags",
        "tensorflow_install",
        "--extra-vars",
        "tensorflow_wheel_dir=/nowhere",
    )
    assert done.returncode == 2
    assert "tf0: /nowhere is no directory" in done.stdout
    assert "No such file" in lab.ssh("tf0", ["ls", "/opt/labctl"], check=False).stderr


def test_provision_waits_for_apt_and_names_the_holder(lab: RehearsalLab) -> None:
    """Half-made environments and an interrupted dpkg stand in its way; tf0's installer is killed in mid-work."""
    root(lab, "tf1", "touch", "/var/lib/dpkg/updates/0001")
    for node in ("tf0", "tf1"):
        root(lab, node, "mkdir", "-p", "/opt/labctl/venv/bin", "/opt/labctl/uv/bin")
    root(lab, "tf0", "ln", "-s", "/usr/bin/python9", "/opt/labctl/venv/bin/python")
    root(lab, "tf1", "ln", "-s", "/usr/bin/python3", "/opt/labctl/uv/bin/python")
    for node, path in LOCKS.items():
        hold = HOLD_LOCK.format(path=path, hold_s=HOLD_S)
        in_background(lab, node, "hold-lock", "/usr/bin/python3", "-c", hold)
    in_background(lab, "tf0", "kill-uv", "/usr/bin/python3", "-c", KILL_UV)
    done = lab.playbook("provision.yml")
    for node, path in LOCKS.items():
        assert re.search(rf"{node}: {path} by process \d+ \(/usr/bin/python3 -c", done.stdout)
    assert "lab_base : Install | Finish what dpkg was stopped in" in changed(done)
    assert "tf1: TensorFlow 2." in done.stdout
    assert done.returncode == 2
    counts = recap(done)
    assert (counts["tf0"]["failed"], counts["tf1"]["failed"]) == (1, 0)


def test_run_after_a_killed_installer_converges(lab: RehearsalLab) -> None:
    done = succeeded(lab.playbook("provision.yml"))
    assert "tf0: /opt/labctl/venv: its installation did not end" in done.stdout
    assert "tf0: TensorFlow 2." in done.stdout
    assert unit_property(lab, "tf1", "ActiveState") == "active"
    assert unit_property(lab, "tf0", "LoadState") == "not-found"


def test_second_run_changes_nothing(lab: RehearsalLab) -> None:
    assert changed(succeeded(lab.playbook("provision.yml"))) == []


def test_check_mode_after_a_run_reports_no_change(lab: RehearsalLab) -> None:
    assert changed(succeeded(lab.playbook("provision.yml", "--check", "--diff"))) == []


def test_installed_units_are_valid_and_closed(lab: RehearsalLab) -> None:
    for unit in (UNIT, "lab-firewall.service"):
        path = f"/etc/systemd/system/{unit}"
        verified = lab.ssh("tf1", ["systemd-analyze", "verify", path])
        assert (verified.stdout, verified.stderr) == ("", "")
        argv = [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--threshold=25",
            "--no-pager",
            path,
        ]
        lab.ssh("tf1", argv)


def test_port_is_open_to_peers_only_whatever_nftables_does(lab: RehearsalLab) -> None:
    root(lab, "tf1", "systemctl", "restart", "nftables.service")
    root(
        lab, "tf1", "systemctl", "start", "lab-firewall.service"
    )  # waits for the restart under way
    address = lab.lab.node("tf1").data_address
    with pytest.raises(TimeoutError):
        socket.create_connection((address, 2222), timeout=3).close()
    connect = f"import socket; socket.create_connection(('{address}', 2222), timeout=3)"
    lab.ssh("tf0", ["/usr/bin/python3", "-c", connect])


def test_stop_takes_less_than_five_seconds(lab: RehearsalLab) -> None:
    began = time.monotonic()
    succeeded(lab.playbook("playbooks/stop.yml"))
    assert unit_property(lab, "tf1", "ActiveState") == "inactive"
    assert unit_property(lab, "tf1", "Result") == "success"
    root(lab, "tf1", "systemctl", "start", UNIT)
    began = time.monotonic()
    root(lab, "tf1", "systemctl", "stop", UNIT)
    assert time.monotonic() - began < 5


def test_taken_port_is_named_and_ends_the_unit(lab: RehearsalLab) -> None:
    in_background(lab, "tf1", "hold-port", "/usr/bin/python3", "-c", HOLD_PORT.format(port=2222))
    try:
        done = lab.playbook("provision.yml")
        assert done.returncode == 2
        assert re.search(
            r"tf1: port 2222 is held by process \d+ \(/usr/bin/python3 -c", done.stdout
        )
        assert changed(done) == []
        root(lab, "tf1", "systemctl", "start", UNIT, check=False)
        assert unit_property(lab, "tf1", "ActiveState") == "failed"
        assert unit_property(lab, "tf1", "NRestarts") == "0"
    finally:
        root(lab, "tf1", "systemctl", "stop", "hold-port.service")


def test_run_after_a_cut_off_one_applies_its_changes(lab: RehearsalLab) -> None:
    root(lab, "tf1", "systemctl", "reset-failed", UNIT)
    root(lab, "tf1", "systemctl", "start", UNIT)
    cut_off = ["--tags", "lab_firewall_configure,tf_join_server_configure"]
    succeeded(lab.playbook("provision.yml", "-e", "tf_port=2333", *cut_off))
    assert 2333 not in listening_ports(lab, "tf1")
    succeeded(lab.playbook("provision.yml", "-e", "tf_port=2333"))
    assert 2333 in listening_ports(lab, "tf1")
    assert 2222 not in listening_ports(lab, "tf1")
    rules = root(lab, "tf1", "nft", "list", "table", "inet", "lab_firewall")
    assert "tcp dport 2333" in rules
    assert "2222" not in rules


def test_teardown_goes_on_past_a_dead_node_and_names_it(lab: RehearsalLab) -> None:
    in_background(lab, "tf1", "silence-ssh", "/usr/bin/python3", "-c", SILENCE_SSH)
    time.sleep(3)
    done = lab.playbook("teardown.yml")
    assert done.returncode == 2
    assert "Not torn down: tf1\n" in done.stdout
    assert "No such file" in lab.ssh("tf0", ["ls", "/opt/labctl"], check=False).stderr
    deadline = time.monotonic() + SILENT_S + 30
    while lab.ssh("tf1", ["true"], check=False).returncode != 0:
        assert time.monotonic() < deadline, "sshd of tf1 did not come back"
        time.sleep(1)


def test_teardown_leaves_nothing_and_works_twice(lab: RehearsalLab) -> None:
    assert "Torn down: tf0, tf1" in succeeded(lab.playbook("teardown.yml")).stdout
    for node in ("tf0", "tf1"):
        left = root(lab, node, "find", "/etc", "/opt", "/var/lib", *LEFT.split())
        assert left == ""
        assert lab.ssh(node, ["getent", "passwd", "labctl", "tf-join"], check=False).stdout == ""
        assert "lab_firewall" not in root(lab, node, "nft", "list", "tables")
        units = ["list-unit-files", "--no-legend", UNIT, "lab-firewall.service"]
        assert root(lab, node, "systemctl", *units, check=False) == ""
    assert changed(succeeded(lab.playbook("teardown.yml"))) == []


def test_lab_can_be_provisioned_anew(lab: RehearsalLab) -> None:
    succeeded(lab.playbook("provision.yml"))
    assert unit_property(lab, "tf1", "ActiveState") == "active"
