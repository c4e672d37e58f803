"""Machines whose timers end them, each test from where the one before it left off."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import LAB_NAME, RehearsalLab

NAME = "timed"
DEADLINE_S = 25
IDLE_S = 6
ENDS_S = 90  # generously, from the end that was told until the machine is gone


@pytest.fixture(scope="module")
def timed(bare_lab: RehearsalLab) -> Iterator[RehearsalLab]:
    """Two machines of their own: these are lost."""
    lab = replace(bare_lab, name=NAME)
    lab.labctl("up", "--lab", NAME, "--nodes", "2", check=True)
    bare_lab.labctl("use", bare_lab.name, check=True)
    yield lab
    lab.labctl("down", "--lab", NAME, "--force")


def arm(lab: RehearsalLab, *options: str) -> subprocess.CompletedProcess[str]:
    return lab.playbook("playbooks/deadman.yml", "-i", f"inventory/{NAME}", *options, check=True)


def deadman(lab: RehearsalLab, node: str, *verb: str) -> dict[str, Any]:
    said = lab.ssh(node, ["sudo", "/opt/lab-deadman/deadman.py", *verb]).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def gone(lab: RehearsalLab, node: str, within_s: float) -> bool:
    """Wait until a machine's sshd no longer answers."""
    address = lab.lab.node(node).data_address
    give_up_s = time.monotonic() + within_s
    while time.monotonic() < give_up_s:
        try:
            socket.create_connection((address, 22), timeout=2).close()
        except OSError:
            return True
        time.sleep(1)
    return False


def test_check_mode_arms_nothing(timed: RehearsalLab) -> None:
    arm(timed, "--check", "--extra-vars", "lab_max_hours=4")
    assert timed.ssh("tf0", ["ls", "/opt/lab-deadman"], check=False).returncode != 0


def test_scheduled_shutdown_is_taken_over_once(timed: RehearsalLab) -> None:
    timed.ssh("tf0", ["sudo", "shutdown", "-P", "+30"])
    arm(timed, "--extra-vars", "lab_max_hours=4")
    assert timed.ssh("tf0", ["ls", "/run/systemd/shutdown"], check=False).stdout == ""
    left_s = {
        node: deadman(timed, node, "status")["deadline_unix_s"] - time.time()
        for node in ("tf0", "tf1")
    }
    assert left_s["tf0"] < 1800 < left_s["tf1"] < 4 * 3600
    assert "changed=0" in arm(timed, "--extra-vars", "lab_max_hours=4").stdout
    assert deadman(timed, "tf0", "extend", "6")["deadline_unix_s"] > time.time() + 5.9 * 3600


def test_disabled_timer_is_removed(timed: RehearsalLab) -> None:
    arm(timed, "--extra-vars", "lab_deadman_enabled=false")
    left = timed.ssh("tf0", ["ls", "/opt/lab-deadman", "/etc/lab-deadman.json"], check=False)
    assert left.stdout == ""
    assert "changed=0" in arm(timed).stdout


def test_deadline_ends_the_machine_and_warns_before(timed: RehearsalLab) -> None:
    target = timed.lab.node("tf0").ssh
    assert target is not None
    terminal = subprocess.Popen(
        [
            "ssh",
            "-tt",
            *target.options,
            "-i",
            str(target.key_file),
            f"{target.user}@{target.host}",
            f"sleep {DEADLINE_S + ENDS_S}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        time.sleep(2)  # until the login stands in the machine's list
        arm(timed, "--extra-vars", f"lab_max_hours={DEADLINE_S / 3600}")
        deadman(timed, "tf1", "extend", "2")
        assert gone(timed, "tf0", DEADLINE_S + ENDS_S)
        said = terminal.communicate(timeout=30)[0]
    finally:
        terminal.kill()
        terminal.wait()
    text = said.replace("\r\n", "")
    assert "This machine powers itself off in" in text
    assert "This machine powers itself off now: its deadline" in text
    assert timed.ssh("tf1", ["true"]).returncode == 0
    shown = timed.labctl("labs", check=True).stdout
    assert "partly" in next(row for row in shown.splitlines() if NAME in row)


def test_machine_that_is_started_again_leaves_time_to_extend(timed: RehearsalLab) -> None:
    timed.labctl("up", "--lab", NAME, check=True)
    timed.labctl("use", LAB_NAME, check=True)
    left_s = deadman(timed, "tf0", "status")["deadline_unix_s"] - time.time()
    assert 400 < left_s <= 600
    assert deadman(timed, "tf0", "extend", "1")["deadline_unix_s"] > time.time() + 3500


def test_idle_machine_ends_once_its_run_has(timed: RehearsalLab) -> None:
    timed.ssh(
        "tf1", ["sudo", "systemd-run", "--unit=labctl-run.service", "sleep", str(IDLE_S + 10)]
    )
    began = time.monotonic()
    arm(
        timed,
        "--limit",
        "tf1",
        "--extra-vars",
        f"lab_idle_minutes={IDLE_S / 60}",
        "--extra-vars",
        "lab_max_hours=4",
    )
    deadman(timed, "tf1", "touch")
    assert gone(timed, "tf1", 2 * IDLE_S + 10 + ENDS_S)
    assert time.monotonic() - began > IDLE_S + 10


def test_down_removes_what_has_ended(timed: RehearsalLab) -> None:
    shown = timed.labctl("labs", check=True).stdout
    assert "partly" in next(row for row in shown.splitlines() if NAME in row)
    receipt = timed.labctl_json("down", "--lab", NAME)
    assert receipt["left"] == []
    assert NAME not in timed.labctl("labs", check=True).stdout
