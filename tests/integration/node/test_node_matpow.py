"""The experiment on real TensorFlow servers: right results by every way through it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from labctl.node import wire
from labctl.node.experiments.power import power_computed, product_count
from labctl.node.wire import MatpowPlan, RunPlan

if TYPE_CHECKING:
    from tests.integration.node.conftest import Nodes

BEFORE = ["interpreter", "wait_for_peers", "import_numpy", "import_tensorflow", "server"]
AFTER = ["first_step", "warm_steps", "traced_step", "probe_steps", "verify"]


@pytest.mark.parametrize(
    "matpow",
    [
        MatpowPlan(size=120, algorithm="listing", feed="fed", repeat=3),
        MatpowPlan(size=64, algorithm="squaring", feed="staged", power=11, repeat=3),
        MatpowPlan(size=100, algorithm="chain", feed="fed", power=1, repeat=0, inter_op=None),
        MatpowPlan(size=1, algorithm="chain", feed="staged", power=7, repeat=1, api="tf2"),
        MatpowPlan(size=80, algorithm="squaring", feed="fed", repeat=3, api="tf2", fetch="none"),
        MatpowPlan(size=70, algorithm="recursive", feed="fed", repeat=2, sum_task=2, fetch="none"),
        MatpowPlan(size=70, algorithm="recursive", feed="staged", repeat=2, sum_task=1, api="tf2"),
        MatpowPlan(size=60, algorithm="chain", feed="constant", repeat=2),
        MatpowPlan(size=60, algorithm="chain", feed="constant", repeat=2, api="tf2"),
    ],
    ids=lambda plan: f"{plan.algorithm}-{plan.feed}-{plan.api}-{plan.fetch}-{plan.size}",
)
def test_every_way_gives_the_right_sum(
    nodes: Nodes, cluster: tuple[str, ...], matpow: MatpowPlan
) -> None:
    plan = RunPlan("r", cluster, matpow=matpow, trace=True)
    run = nodes.client(plan, http_proxy="http://127.0.0.1:9", grpc_proxy="http://127.0.0.1:9")

    assert run.status == wire.EXIT_OK, (run.events, run.stderr[-3000:])
    assert "http_proxy" in run.of("note")[0]["text"]
    result = run.one("result")
    assert result["ok"] is True
    assert result["relative_error"] <= 1e-5
    assert result["checked_by"] == "float64"
    assert result["power_computed"] == power_computed(matpow.power, matpow.algorithm)
    assert result["products"] == 3 * product_count(matpow.power, matpow.algorithm)
    assert 0 < result["section_us"] < result["end_to_end_us"]

    session = ["session"] if matpow.api == "session" else []
    stage = ["stage_inputs"] if matpow.feed == "staged" else []
    late = [*session, "inputs"]
    if matpow.feed == "constant":
        assert run.phases == [*BEFORE, "inputs", "graph", "describe_graph", *session, *AFTER]
    else:
        assert run.phases == [*BEFORE, "graph", "describe_graph", *late, *stage, *AFTER]
    _assert_steps(run.of("step"), matpow)
    _assert_graph(run.one("graph"), matpow)
    assert [(peer["peer_task"], peer["state"]) for peer in run.of("peer")] == [
        (1, "answers"),
        (2, "answers"),
    ]
    assert run.events[0]["event"] == "hello"
    assert run.events[0]["tensorflow"]
    assert run.events[-1]["event"] == "bye"
    usage = run.of("usage")
    assert usage[0]["cpu_ns"] < usage[-1]["cpu_ns"]
    assert usage[-1]["rss_bytes"] > 100_000_000
    _assert_phases_follow_each_other(run.events)

    traces = sorted((run.directory / "trace").glob("*"))
    if matpow.api == "tf2":
        notes = [note["text"] for note in run.of("note")]
        assert "no trace: this API has no step stats" in notes
        assert "no null steps: not with this API" in notes
        assert not traces
        return
    indices = range(matpow.repeat + 1, matpow.repeat + 1 + wire.TRACED_STEPS)
    names = sorted(wire.TRACE_FILE.format(index) for index in indices)
    assert [str(path.relative_to(run.directory)) for path in traces] == names
    # Constants were folded; otherwise each task formed its own products.
    count = 0 if matpow.feed == "constant" else product_count(matpow.power, matpow.algorithm)
    expected = dict.fromkeys(range(3), count)
    for path in traces:
        assert _products_by_task(path.read_bytes()) == {t: n for t, n in expected.items() if n}


def _assert_steps(steps: list[dict[str, Any]], matpow: MatpowPlan) -> None:
    """Samples first, then the extra steps of each kind, each with an index of its own."""
    session = matpow.api == "session"
    kinds = ["cold"] + ["warm"] * matpow.repeat
    kinds += ["traced"] * wire.TRACED_STEPS * session
    kinds += ["no_fetch"] * wire.PROBE_STEPS + ["null"] * wire.PROBE_STEPS * session
    assert [step["kind"] for step in steps] == kinds
    assert [step["index"] for step in steps] == list(range(len(kinds)))
    assert {step["total"] for step in steps} == {matpow.repeat + 1}
    assert all(step["duration_ns"] > 0 for step in steps)


def _assert_graph(graph: dict[str, Any], matpow: MatpowPlan) -> None:
    products = 3 * product_count(matpow.power, matpow.algorithm)
    matrix_bytes = 4 * matpow.size * matpow.size
    assert graph["ops"].get("MatMul", 0) == products
    placeholders = 0 if matpow.feed == "constant" else 3  # or a captured variable of a function
    assert graph["ops"].get("Placeholder", 0) == placeholders
    assert sum(graph["ops"].values()) == graph["nodes"]
    constants = 3 * matrix_bytes if matpow.feed == "constant" else 0
    assert constants <= graph["constant_bytes"] <= constants + 300
    assert graph["bytes"] > graph["constant_bytes"]
    assert re.fullmatch("[0-9a-f]{64}", graph["sha256"])


def test_recursion_and_loop_build_the_same_graph_to_the_byte() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _GRAPHS], capture_output=True, text=True, check=True, timeout=120
    )
    graphs = json.loads(found.stdout)
    assert graphs["recursive"] == graphs["chain"]
    assert graphs["squaring"]["sha256"] != graphs["chain"]["sha256"]
    products = {name: graph["ops"]["MatMul"] for name, graph in graphs.items()}
    assert products == {"listing": 14, "chain": 12, "recursive": 12, "squaring": 8}


_GRAPHS = textwrap.dedent("""
    import json
    import tensorflow as tf
    from labctl.node.experiments.description import describe
    from labctl.node.experiments.matpow import Setting
    from labctl.node.experiments.session_api import SessionComputation
    from labctl.node.wire import ALGORITHMS, MatpowPlan

    graphs = {}
    for algorithm in ALGORITHMS:
        plan = MatpowPlan(size=1000, power=7, algorithm=algorithm)
        computation = SessionComputation(tf, Setting(plan, 2, ("a:1", "b:1")))
        computation.build_graph(())
        graphs[algorithm] = describe(computation.graph_def())
    print(json.dumps(graphs))
""")


def test_join_server_tells_its_work_and_what_it_serves(nodes: Nodes) -> None:
    addresses = nodes.addresses(2)
    server = nodes.serve(nodes.spec_file(addresses), 1, "--inter-op", "3", TF_CPP_MIN_LOG_LEVEL="1")
    assert server.stdout is not None
    lines = iter(server.stdout)
    before = _until(lines, "ready")
    ready = before[-1]
    assert ready["spec_sha256"] == wire.spec_hash(addresses)
    assert ready["inter_op"] == 3
    assert before[0]["environment"]["TF_CPP_MIN_LOG_LEVEL"] == "1"
    started = [event["cpu_ns"] for event in before if event["event"] == "usage"]
    run = nodes.client(RunPlan("r", addresses, matpow=MatpowPlan(size=700, repeat=40)))
    assert run.status == wire.EXIT_OK, (run.events, run.stderr[-3000:])
    worked = _until(lines, "usage")[-1]
    assert started
    assert worked["cpu_ns"] > max(started)
    assert worked["rx_bytes"] is None or worked["rx_bytes"] >= 0
    server.terminate()


def _until(lines: Iterator[bytes], kind: str) -> list[dict[str, Any]]:
    """Return a join server's events up to the first of a kind."""
    events: list[dict[str, Any]] = []
    for line in lines:
        events.append(json.loads(line))
        if events[-1]["event"] == kind:
            return events
    raise AssertionError(f"no {kind!r} among {events}")


def test_one_host_starts_and_ends_its_own_servers(nodes: Nodes) -> None:
    nowhere = nodes.addresses(3)  # the lab's own servers are not needed
    matpow = MatpowPlan(size=64, placement="one-host", repeat=1)
    run = nodes.client(RunPlan("r", nowhere, matpow=matpow))
    assert run.status == wire.EXIT_OK, (run.events, run.stderr[-3000:])
    assert run.one("result")["products"] == 12
    servers = [hello for hello in run.of("hello") if hello["source"] == "join-server"]
    assert sorted(hello["task"] for hello in servers) == [1, 2]
    assert not [hello["pid"] for hello in servers if _alive(hello["pid"])]


def test_one_hosts_servers_end_with_a_killed_client(nodes: Nodes) -> None:
    matpow = MatpowPlan(size=64, placement="one-host", repeat=1_000_000)
    run = nodes.start(RunPlan("r", nodes.addresses(2), matpow=matpow))
    run.until(lambda events: any(event["event"] == "ready" for event in events))
    (pid,) = [e["pid"] for e in run.events() if e.get("source") == "join-server" and "pid" in e]
    assert _alive(pid)
    run.process.kill()
    assert run.finish().status == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, f"join server {pid} outlived its client"
        time.sleep(0.05)


@pytest.mark.parametrize("api", wire.APIS)
def test_one_process_needs_no_server(nodes: Nodes, api: wire.Api) -> None:
    matpow = MatpowPlan(size=64, placement="one-process", feed="staged", repeat=1, api=api)
    run = nodes.client(RunPlan("r", nodes.addresses(2), matpow=matpow))
    assert run.status == wire.EXIT_OK, (run.events, run.stderr[-3000:])
    assert run.one("result")["products"] == 8
    assert "wait_for_peers" not in run.phases
    assert not run.of("peer")


@pytest.mark.parametrize("api", wire.APIS)
def test_gpu_is_never_replaced_by_a_cpu(
    nodes: Nodes, cluster: tuple[str, ...], api: wire.Api
) -> None:
    matpow = MatpowPlan(size=8, device="gpu", repeat=0, api=api)
    run = nodes.client(RunPlan("r", cluster, matpow=matpow))
    if run.status == wire.EXIT_OK:
        pytest.skip("this machine has a GPU that TensorFlow can use")
    error = run.one("error")
    assert (run.status, error["kind"]) == (wire.EXIT_FAILED, "no-gpu-device")
    told = r"task 0 at \S+, 1 at \S+ and 2 at \S+ have no GPU device; on task 0: .*CPUs alone"
    assert re.fullmatch(told, error["message"])
    assert not run.of("result")


@pytest.mark.parametrize("api", wire.APIS)
def test_soft_placement_gives_way_to_the_cpu_of_the_same_task(
    nodes: Nodes, cluster: tuple[str, ...], api: wire.Api
) -> None:
    matpow = MatpowPlan(size=8, device="gpu", repeat=0, api=api, soft_placement=True)
    run = nodes.client(RunPlan("r", cluster, matpow=matpow, trace=True))
    assert run.status == wire.EXIT_OK, (run.events, run.stderr[-3000:])
    assert run.one("result")["ok"]
    for path in (run.directory / "trace").glob("*"):
        if b"GPU:0" in path.read_bytes():
            pytest.skip("this machine has a GPU that TensorFlow can use")
        assert _products_by_task(path.read_bytes()) == {0: 4, 1: 4, 2: 4}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _assert_phases_follow_each_other(events: list[dict[str, object]]) -> None:
    open_phase = None
    for event in events:
        if event["event"] == "phase_begin":
            assert open_phase is None, f"{event['phase']} began inside {open_phase}"
            open_phase = event["phase"]
        elif event["event"] == "phase_end":
            assert event["phase"] == open_phase
            open_phase = None
    assert open_phase is None


def _products_by_task(step_stats: bytes) -> dict[int, int]:
    """Return how many products each task ran, from serialised StepStats."""
    seen = set()
    for device_stats in _fields(step_stats, 1):
        (device,) = _fields(device_stats, 1)
        for node in _fields(device_stats, 2):
            name = next(_fields(node, 1)).decode()
            if re.fullmatch(r"MatMul(_\d+)?", name):
                seen.add((device, name))
    tasks = [int(re.findall(rb"task:(\d+)", device)[0]) for device, _ in seen]
    return dict(sorted(Counter(tasks).items()))


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the length-delimited fields of one number in a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            varint()
        elif kind == 2:
            size = varint()
            at += size
            if number == wanted:
                yield message[at - size : at]
        else:
            at += {1: 8, 5: 4}[kind]
