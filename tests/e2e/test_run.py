"""Runs on two machines: the experiment in its forms, a user's script, and what goes wrong in mid-run."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

WORKER = "tf1"
UNIT = "tf-join-server.service"
REFUSED_WITHIN_S = 20.0
WAIT_S = 60.0
MUTE = (
    "import socket, time; s = socket.socket(); "
    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('', 2222)); s.listen(64); time.sleep(300)"
)
NAP = """
import sys, time
print("begun", sys.argv[1], flush=True)
for second in range(int(sys.argv[2])):
    time.sleep(1)
    print("second", second, flush=True)
"""


@pytest.fixture
def nap(tmp_path: Path) -> str:
    script = tmp_path / "nap.py"
    script.write_text(NAP)
    return str(script)


@contextmanager
def started(lab: RehearsalLab, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run labctl beside the test; it is ended with Ctrl-C if it is still there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "labctl", *args],
        cwd=lab.root,
        env=lab.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)


def record_with(lab: RehearsalLab, text: str) -> Path:
    """Wait until the client of a run has written this, and return the run's record."""
    give_up_s = time.monotonic() + WAIT_S
    while time.monotonic() < give_up_s:
        for path in (lab.root / ".lab" / lab.name / "runs").glob("2*/logs/tf0/stdout"):
            if text in path.read_text():
                return path.parents[2]
        time.sleep(0.2)
    pytest.fail(f"no {text!r} within {WAIT_S:g} s")


def client_processes(lab: RehearsalLab) -> list[str]:
    return lab.ssh("tf0", ["pgrep", "-u", "labctl", "-a"], check=False).stdout.splitlines()


def digests_match(run: dict[str, Any]) -> bool:
    folder = Path(run["record"])
    return all(
        hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest() == file["sha256"]
        for file in run["files"]
    )


@pytest.mark.parametrize(
    ("options", "power"),
    [
        (["--algorithm", "chain", "--feed", "staged"], 5),
        (["--algorithm", "squaring", "--feed", "fed"], 5),
        (["--algorithm", "chain", "--api", "tf2"], 5),
        (["--algorithm", "listing", "--fresh"], 6),
    ],
    ids=["chain-staged", "squaring-fed", "tf2", "listing-fresh"],
)
def test_the_experiment_is_right_and_its_time_explained(
    lab: RehearsalLab, options: list[str], power: int
) -> None:
    run = lab.labctl_json("run", "-L", "1000", "-n", "5", "--repeat", "3", *options)
    assert run["outcome"] == "ok", run["error"]
    assert run["relative_error"] < 1e-5
    assert (run["tasks"], run["power"], run["power_computed"]) == (2, 5, power)
    assert run["step_ms"]["n"] == 3
    assert run["step_ms"]["cold"] > 0
    assert run["section_ms"] > 0
    assert run["end_to_end_us"] > 1000 * run["section_ms"]
    explained = sum(row["duration_s"] for row in run["ledger"])
    assert explained + run["unexplained_s"] == pytest.approx(run["wall_s"], abs=1e-3)
    assert run["unexplained_s"] < 0.1 * run["wall_s"]
    assert {"tensorflow", "python", "kernel"} <= set(run["versions"][WORKER])
    assert digests_match(run)
    assert client_processes(lab) == []


def test_logs_of_both_nodes_are_interleaved(lab: RehearsalLab) -> None:
    script = "print('from the client', flush=True)\nimport tensorflow as tf, json, os\n"
    script += "tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec("
    script += "json.loads(os.environ['TF_CONFIG'])['cluster']), job_name='local', task_index=0)\n"
    path = lab.root / "connect.py"
    path.write_text(script)
    run = lab.labctl_json("run", str(path))
    assert run["outcome"] == "ok", run["error"]
    lines = lab.labctl("logs", "last", check=True).stdout.splitlines()
    assert {line.split()[1] for line in lines} == {"tf0", WORKER}
    assert any("stdout" in line and "from the client" in line for line in lines)
    stamps = [line.split()[0] for line in lines]
    assert stamps == sorted(stamps)
    live = lab.labctl("logs", "--node", WORKER, check=True).stdout
    assert "ready" in live


def test_neither_a_broken_link_nor_a_dead_labctl_loses_anything(
    lab: RehearsalLab, nap: str
) -> None:
    with started(lab, "run", nap, "--", "first", "20") as labctl:
        record = record_with(lab, "begun first")
        busy = lab.labctl("run", nap, "--", "second", "1")
        assert busy.returncode == 9
        assert record.name in busy.stderr
        lab.ssh("tf0", ["sudo", "pkill", "-f", "sshd: .*@notty"], check=False)
        record_with(lab, "second 5")
        labctl.send_signal(signal.SIGKILL)
    assert lab.labctl_json("runs", "list")[-1]["outcome"] == "interrupted"
    run = lab.labctl_json("attach", "last")
    assert (run["run_id"], run["outcome"]) == (record.name, "ok")
    expected = "begun first\n" + "".join(f"second {n}\n" for n in range(20))
    assert (record / "logs/tf0/stdout").read_text() == expected
    assert digests_match(run)
    assert client_processes(lab) == []


def test_ctrl_c_ends_the_run_on_its_node(lab: RehearsalLab, nap: str) -> None:
    with started(lab, "run", nap, "--json", "--", "long", "600") as labctl:
        record_with(lab, "begun long")
        labctl.send_signal(signal.SIGINT)
        out, err = labctl.communicate(timeout=WAIT_S)
    assert labctl.returncode == 130
    run = json.loads(out)
    assert run["outcome"] == "cancelled"
    assert "its logs are kept" in err
    assert client_processes(lab) == []
    assert lab.ssh("tf0", ["systemctl", "is-active", "labctl-run"], check=False).returncode != 0


def test_a_server_that_restarts_in_mid_run_is_named(lab: RehearsalLab, nap: str) -> None:
    with started(lab, "run", nap, "--json", "--", "restart", "600") as labctl:
        record_with(lab, "begun restart")
        lab.ssh(WORKER, ["sudo", "systemctl", "restart", UNIT])
        out, err = labctl.communicate(timeout=WAIT_S)
    assert labctl.returncode == 5
    assert json.loads(out)["error"]["kind"] == "server-restarted"
    assert re.search(rf"server on {WORKER} restarted at \d\d:\d\d:\d\d", err)
    assert client_processes(lab) == []


@pytest.fixture
def stopped_server(lab: RehearsalLab) -> Iterator[None]:
    lab.ssh(WORKER, ["sudo", "systemctl", "stop", UNIT])
    yield
    lab.ssh(WORKER, ["sudo", "systemctl", "stop", "mute"], check=False)
    lab.ssh(WORKER, ["sudo", "systemctl", "start", UNIT])


def test_a_peer_that_does_not_answer_is_named_in_time(
    lab: RehearsalLab, stopped_server: None
) -> None:
    address = lab.lab.node(WORKER).tf_address
    runs = lab.labctl_json("runs", "list")
    begun_s = time.monotonic()
    refused = lab.labctl("run")
    assert time.monotonic() - begun_s < REFUSED_WITHIN_S
    assert refused.returncode == 4
    assert f"{address} refused" in refused.stderr
    assert "found inactive" in refused.stderr

    mute = ["systemd-run", "--quiet", "--unit=mute", "/usr/bin/python3", "-c", MUTE]
    lab.ssh(WORKER, ["sudo", *mute])
    begun_s = time.monotonic()
    silent = lab.labctl("run")
    assert time.monotonic() - begun_s < REFUSED_WITHIN_S
    assert silent.returncode == 4
    assert f"{address} timed out" in silent.stderr
    assert lab.labctl_json("runs", "list") == runs
