"""What goes wrong ends in bounded time, with a message that names it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labctl.node import wire
from labctl.node.cluster import Peers, wait_for_peers
from labctl.node.events import EventLog
from labctl.node.wire import MatpowPlan, RunPlan, ScriptPlan

if TYPE_CHECKING:
    from tests.integration.node.conftest import Nodes


def test_absent_peer_is_named_and_refused(nodes: Nodes) -> None:
    addresses = nodes.addresses(2)
    plan = RunPlan("r", addresses, matpow=MatpowPlan(), peer_timeout_s=1)
    run = nodes.client(plan)
    error = run.one("error")
    assert run.status == wire.EXIT_PEER_LOST
    assert error["kind"] == "peer-lost"
    assert f"task 1 at {addresses[1]}: refused" in error["message"]
    assert addresses[1].encode() in run.stderr
    assert "import_tensorflow" not in run.phases
    assert [peer["state"] for peer in run.of("peer")] == ["refused"]


def test_mute_port_times_out_and_other_programs_are_told_apart(nodes: Nodes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        subprocess.Popen(
            [sys.executable, "-c", _BANNER], stdout=subprocess.PIPE, text=True
        ) as other,
    ):
        assert other.stdout is not None
        ports = mute.getsockname()[1], int(other.stdout.readline())
        own = nodes.addresses(1)
        addresses = (*own, *(f"127.0.0.1:{port}" for port in ports), "tf9.invalid:2222")
        run = nodes.client(RunPlan("r", addresses, matpow=MatpowPlan(), peer_timeout_s=1))
        other.kill()
    assert run.status == wire.EXIT_PEER_LOST
    states = {peer["peer_task"]: peer["state"] for peer in run.of("peer")}
    assert states == {1: "timed out", 2: "not gRPC", 3: "not resolvable"}


_BANNER = textwrap.dedent("""
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    while True:
        server.accept()[0].sendall(b"SSH-2.0-OpenSSH_9.2p1\\r\\n")
""")


@pytest.mark.parametrize(
    ("matpow", "words"),
    [
        (MatpowPlan(size=30_000), "gRPC message"),
        (MatpowPlan(size=10**6, placement="one-process"), "are available"),
        (MatpowPlan(algorithm="listing", power=15), "overflows float32"),
        (MatpowPlan(size=0), "size is 0"),
    ],
)
def test_impossible_plan_is_refused_at_once(nodes: Nodes, matpow: MatpowPlan, words: str) -> None:
    run = nodes.client(RunPlan("r", nodes.addresses(2), matpow=matpow))
    error = run.one("error")
    assert run.status == wire.EXIT_BAD_PLAN
    assert words in error["message"]
    assert error["expected"]
    assert error["do"]
    assert run.phases == ["interpreter"]
    assert run.one("bye")["exit"] == wire.EXIT_BAD_PLAN


def test_plan_that_is_none_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    command = [sys.executable, str(nodes.payload), "client", "--plan", "plan.json"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == wire.EXIT_BAD_PLAN
    assert "plan plan.json" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("text", "task", "words"),
    [
        ('{"cluster": {"local": ["bob@127.0.0.1:2222", "b:1"]}}', 0, "bob@"),
        ('{"cluster": {"local": ["127.0.0.1:99999", "b:1"]}}', 0, "99999"),
        ('{"cluster": {"local": ["grpc://a:1", "b:1"]}}', 0, "grpc://"),
        ('{"cluster": {"my-task": ["a:1", "b:1"]}}', 0, "my-task"),
        ('{"cluster": {"local": ["a:1", "a:1"]}}', 1, "same address"),
        ('{"cluster": {"local": ["a:1", "b:1"]}}', 2, "task 2"),
        ("not json", 1, "not JSON"),
    ],
)
def test_server_refuses_a_malformed_spec(
    nodes: Nodes, tmp_path: Path, text: str, task: int, words: str
) -> None:
    spec = tmp_path / "cluster.json"
    spec.write_text(text)
    status, stderr = _serve(nodes, spec, task)
    assert status == wire.EXIT_BAD_SPEC
    assert words in stderr
    assert "Traceback" not in stderr


def test_server_without_a_spec_file_says_so(nodes: Nodes, tmp_path: Path) -> None:
    status, stderr = _serve(nodes, tmp_path / "none.json", 1)
    assert status == wire.EXIT_BAD_SPEC
    assert "No such file" in stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 either kind of squatter
def test_port_in_use_names_its_holder(nodes: Nodes, host: str) -> None:
    with socket.create_server((host, 0)) as squatter:
        port = squatter.getsockname()[1]
        addresses = (f"127.0.0.1:{port}", *nodes.addresses(1))
        status, stderr = _serve(nodes, nodes.spec_file(addresses), 0)
        assert status == wire.EXIT_PORT_IN_USE
        assert f"port {port} is in use by" in stderr.splitlines()[0]
        assert f"(pid {os.getpid()})" in stderr.splitlines()[0]
        run = nodes.client(RunPlan("r", addresses, matpow=MatpowPlan(), peer_timeout_s=1))
    assert run.one("error")["kind"] == "port-in-use"
    assert run.phases == ["interpreter"]


def _serve(nodes: Nodes, spec: Path, task: int) -> tuple[int, str]:
    command = [
        sys.executable,
        str(nodes.payload),
        "serve",
        "--spec",
        str(spec),
        "--task",
        str(task),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return run.returncode, run.stderr


def test_server_is_ready_when_its_port_answers_and_ends_by_sigterm(
    nodes: Nodes, tmp_path: Path
) -> None:
    addresses = nodes.addresses(2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "https_proxy": "http://127.0.0.1:9"}
        server = nodes.serve(nodes.spec_file(addresses), 1, "--inter-op", "2", **notify)
        message = systemd.recv(4096).decode()
        host, _, port = addresses[1].partition(":")
        socket.create_connection((host, int(port)), timeout=2).close()
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(4096)
    assert message.splitlines()[0] == "READY=1"
    assert addresses[1] in message
    server.terminate()
    assert server.wait(5) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("api", "blow", "state", "within_s"),
    [
        ("session", signal.SIGKILL, "refused", 30),
        ("session", signal.SIGSTOP, "timed out", 60),
        ("tf2", signal.SIGKILL, "refused", 30),
    ],
)
def test_peer_that_goes_and_stays_away_ends_the_run(
    nodes: Nodes, api: wire.Api, blow: signal.Signals, state: str, within_s: float
) -> None:
    addresses = nodes.addresses(2)
    server = nodes.ready_server(nodes.spec_file(addresses), 1)
    plan = RunPlan("r", addresses, matpow=MatpowPlan(size=100, repeat=10_000_000, api=api))
    running = nodes.start(plan)
    running.until(lambda events: any(event.get("index") == 5 for event in events))
    server.send_signal(blow)
    run = running.finish(within_s)
    assert run.status == wire.EXIT_PEER_LOST
    error = run.one("error")
    assert error["kind"] == "peer-lost"
    assert f"task 1 at {addresses[1]}: {state}" in error["message"]
    assert run.events[-1]["event"] == "bye"
    server.kill()


def test_peer_that_cannot_reach_task_0_is_told_from_a_lost_one(nodes: Nodes) -> None:
    addresses, stale = nodes.addresses(2), nodes.addresses(1)
    server = nodes.ready_server(nodes.spec_file((*stale, addresses[1])), 1)
    run = nodes.client(RunPlan("r", addresses, matpow=MatpowPlan(size=100, feed="fed")))
    server.kill()
    error = run.one("error")
    assert (run.status, error["kind"]) == (wire.EXIT_FAILED, "peer-unavailable")
    assert stale[0] in error["message"]
    assert "task 0's port included" in error["expected"]
    assert error["do"].startswith("labctl run --fresh")


def test_a_proxy_that_was_asked_for_stays_and_the_hang_is_told_from_a_dead_peer(
    nodes: Nodes, cluster: tuple[str, ...]
) -> None:
    asked = {"grpc_proxy": "http://me:secret@127.0.0.1:9", "TF_CPP_MIN_LOG_LEVEL": "0"}
    plan = RunPlan("r", cluster, matpow=MatpowPlan(size=8), environment=asked)
    running = nodes.start(plan, https_proxy="http://127.0.0.1:9")
    running.until(lambda events: sum(event["event"] == "peer" for event in events) == 4)
    running.process.kill()
    run = running.finish()
    environment = run.one("hello")["environment"]
    assert (environment["TF_CPP_MIN_LOG_LEVEL"], environment["grpc_proxy"]) == ("0", None)
    assert "https_proxy" not in environment
    assert "secret" not in json.dumps(run.events)
    assert run.of("note")[0]["text"].startswith("cleared https_proxy")
    late = run.of("peer")[2:]
    assert {(peer["peer_task"], peer["state"]) for peer in late} == {
        (1, "answers"),
        (2, "answers"),
    }
    began = next(e["mono"] for e in run.events if e.get("phase") == "first_step")
    assert late[0]["mono"] - began >= wire.STALL_S * 1e9
    assert not run.of("step")


def test_restarted_peer_is_told_from_a_lost_one(nodes: Nodes) -> None:
    addresses = nodes.addresses(2)
    spec = nodes.spec_file(addresses)
    with subprocess.Popen(
        [sys.executable, "-c", _RESTARTS, str(spec)], stdin=subprocess.PIPE, text=True
    ) as server:
        running = nodes.start(
            RunPlan("r", addresses, script=ScriptPlan("twice.py"), peer_timeout_s=60),
            {"twice.py": _RUNS_TWICE},
        )
        running.until_file("first")
        assert server.stdin is not None
        server.stdin.write("restart\n")
        server.stdin.flush()
        wait_for_peers(
            Peers({1: addresses[1]}), EventLog(os.open(os.devnull, os.O_WRONLY), "client", 0), 60
        )
        (running.directory / "again").touch()
        run = running.finish(60)
        server.stdin.close()
    error = run.one("error")
    assert (run.status, error["kind"]) == (wire.EXIT_FAILED, "peer-restarted"), error
    assert error["script_exit"] == 1


# Imports TensorFlow once and forks servers, so that a restart is over before a watchdog can notice it.
_RESTARTS = textwrap.dedent("""
    import json, os, signal, sys
    import tensorflow as tf

    cluster = json.load(open(sys.argv[1]))["cluster"]

    def start():
        child = os.fork()
        if child == 0:
            spec = tf.train.ClusterSpec(cluster)
            tf.distribute.Server(spec, job_name="local", task_index=1).join()
        return child

    child = start()
    for _ in sys.stdin:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        child = start()
    os.kill(child, signal.SIGKILL)
""")

_RUNS_TWICE = textwrap.dedent("""
    import json, os, pathlib, time
    import tensorflow as tf

    v1 = tf.compat.v1
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name="local", task_index=0)
    with tf.Graph().as_default(), v1.device("/job:local/task:1/cpu:0"):
        x = v1.placeholder(tf.float32, [])
        session = v1.Session(server.target)
        assert session.run(x + 1, {x: 1}) == 2
        pathlib.Path("first").touch()
        while not pathlib.Path("again").exists():
            time.sleep(0.02)
        for _ in range(100):
            session.run(x + 1, {x: 1})
""")


def test_script_that_hangs_on_a_lost_peer_is_ended(nodes: Nodes) -> None:
    addresses = nodes.addresses(2)
    server = nodes.ready_server(nodes.spec_file(addresses), 1)
    plan = RunPlan("r", addresses, script=ScriptPlan("twice.py"))
    running = nodes.start(plan, {"twice.py": _RUNS_TWICE})
    running.until_file("first")
    server.kill()
    run = running.finish(60)
    assert run.status == wire.EXIT_PEER_LOST
    assert addresses[1] in run.one("error")["message"]
    assert "the run ends in 10 s" in run.of("note")[-1]["text"]


def test_usage_errors_exit_2(nodes: Nodes) -> None:
    for arguments in ([], ["serve"], ["serve", "--spec", "x", "--task", "1", "--inter-op", "0"]):
        command = [sys.executable, str(nodes.payload), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 2, arguments
        assert "usage: labctl_node" in run.stderr
