"""What two machines can do by themselves, and what a record says of the lab it comes from."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

UNIT = "tf-join-server.service"
# Whoever listens on the port that is open for measuring is reached by peers alone.
LISTEN = "import socket, time; s = socket.create_server(('', 5201)); time.sleep(60)"
CONNECT = "import socket; socket.create_connection(('{}', 5201), timeout=3)"


def root(lab: RehearsalLab, node: str, *argv: str) -> str:
    return lab.ssh(node, ["sudo", *argv], check=False).stdout


def run_json(lab: RehearsalLab, *options: str) -> dict[str, Any]:
    found = lab.labctl_json("run", "--size", "200", "--repeat", "2", *options)
    record: dict[str, Any] = json.loads((Path(found["record"]) / "run.json").read_text())
    return record


def test_check_measures_network_and_nodes_and_leaves_nothing_behind(lab: RehearsalLab) -> None:
    checks = lab.labctl_json("check", "--network", "--compute")
    found = {
        (each["name"], each["node"]): each
        for each in checks
        if each["name"] in {"network", "compute"}
    }
    assert set(found) == {("network", "tf1"), ("compute", "tf0"), ("compute", "tf1")}
    assert {each["status"] for each in found.values()} == {"ok"}
    assert "bit/s from tf0" in found["network", "tf1"]["found"]
    assert "round trip" in found["network", "tf1"]["found"]
    assert "GFLOP/s" in found["compute", "tf0"]["found"]
    file = lab.root / ".lab" / lab.name / "baseline.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = json.loads(file.read_text())
    assert kept["missing"] == []
    assert {(each["source"], each["target"]) for each in kept["links"]} == {
        ("tf0", "tf1"),
        ("tf1", "tf0"),
    }
    for node in ("tf0", "tf1"):
        assert root(lab, node, "pgrep", "iperf3") == ""
        shown = root(lab, node, "systemctl", "show", "--property=LoadState", "labctl-baseline")
        assert shown.strip() == "LoadState=not-found"


def test_the_measuring_port_is_open_to_peers_only(lab: RehearsalLab) -> None:
    argv = ("systemd-run", "--unit=held", "--property=DynamicUser=yes", "/usr/bin/python3", "-c")
    lab.ssh("tf1", ["sudo", *argv, LISTEN])
    address = lab.lab.node("tf1").data_address
    try:
        with pytest.raises(TimeoutError):
            socket.create_connection((address, 5201), timeout=3).close()
        lab.ssh("tf0", ["/usr/bin/python3", "-c", CONNECT.format(address)])
        (network,) = (
            each
            for each in lab.labctl_json("check", "--network", "--node", "tf1")
            if each["name"] == "network"
        )
    finally:
        root(lab, "tf1", "systemctl", "stop", "held.service")
    assert network["status"] == "skipped"
    assert "Address already in use" in network["found"]


def test_the_first_run_that_traces_measures_and_every_record_tells_of_the_lab(
    lab: RehearsalLab,
) -> None:
    (lab.root / ".lab" / lab.name / "baseline.json").unlink(missing_ok=True)
    first, second = run_json(lab), run_json(lab, "--no-trace")
    assert "baseline" in {each["phase"] for each in first["spans"]}
    assert "baseline" not in {each["phase"] for each in second["spans"]}
    assert second["baseline"] == first["baseline"]
    assert len(first["baseline"]["links"]) == 2
    assert first["warnings"] == []
    phases = {(each["command"], each["phase"], each["node"]) for each in first["lab_phases"]}
    assert {("up", "boot", "tf0"), ("up", "ssh", "tf1")} <= phases
    (before,), (after,) = first["servers_before"], first["servers_after"]
    assert {"import_tensorflow", "server"} <= {each["phase"] for each in before["phases"]}
    assert before["spec_sha256"] == first["spec_sha256"]
    assert before["inter_op"] == 2
    assert (before["process_state"], after["process_state"]) == ("S", "S")
    assert 0 < before["cpu_s"] < after["cpu_s"]
    assert 0 <= before["wait_s"] <= after["wait_s"]
    assert all(each["load_1min"] is not None for each in first["nodes"])


def test_a_run_may_start_although_a_check_fails(lab: RehearsalLab) -> None:
    root(lab, "tf1", "systemctl", "stop", UNIT)
    try:
        assert lab.labctl("run", "--size", "50").returncode == 4
        record = run_json(lab, "--skip-checks", "--timeout", "30")
    finally:
        root(lab, "tf1", "systemctl", "start", UNIT)
    assert record["outcome"] in {"failed", "timeout"}
    assert {(each["name"], each["node"]) for each in record["failed_checks"]} >= {("unit", "tf1")}
    assert record["servers_after"][0]["active"] == "inactive"
