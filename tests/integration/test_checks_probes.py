"""The probes as they run on a node: real processes and sockets on this machine."""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from labctl.checks import facts_probe
from labctl.checks.collect import BOOT, _knock, facts_request, probe, see_from_here
from labctl.checks.doctor import run_checks
from labctl.checks.facts import NodeFacts
from labctl.checks.parse import answer_of, listener_facts, node_facts, reach_facts
from labctl.lab.inventory import loopback_lab
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote.local import LocalExecutor

HERE = LocalExecutor("here")


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def ports(request: dict[str, Any]) -> object:
    return probe(HERE, "ports_probe", request, python=sys.executable)


def reach(*targets: tuple[str, str, int], timeout_s: float = 3.0) -> dict[str, tuple[str, str]]:
    answer = ports({"kind": "reach", "targets": targets, "timeout_s": timeout_s})
    return {name: (view.state, view.detail) for name, view in reach_facts(answer).items()}


def facts(port: int, **changes: Any) -> NodeFacts:
    node = Node("here", 0, "127.0.0.1", port, ssh=None)
    gpu = bool(changes.get("gpu"))
    request = {**facts_request(node, gpu=gpu), **changes}
    parts = ("gpu_facts_probe",) if gpu else ()
    return node_facts(probe(HERE, "facts_probe", request, python=sys.executable, parts=parts))


@pytest.fixture
def mute() -> Iterator[int]:
    """A port whose connections are made by the kernel and answered by nobody."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def web() -> Iterator[int]:
    """A port that greets, but not as gRPC does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with closing(peer):
                peer.sendall(b"220 mail.test ESMTP\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(server.getsockname()[1])
        thread.join(10)


def test_ports_are_told_apart_within_the_deadline(mute: int, web: int) -> None:
    begun = time.monotonic()
    states = reach(
        ("mute", "127.0.0.1", mute),
        ("web", "127.0.0.1", web),
        ("closed", "127.0.0.1", free_port()),
        ("nowhere", "no such name", 1),
        timeout_s=1.0,
    )
    assert states["mute"] == ("timed out", "connected, but no answer")
    assert states["web"] == ("no gRPC server", "unknown greeting")
    assert states["closed"] == ("refused", "")
    assert states["nowhere"][0] == "not resolvable"
    assert time.monotonic() - begun < 10


def test_the_listener_answers_once_opened_and_is_gone_once_closed() -> None:
    port = free_port()
    listener = listener_facts(ports({"kind": "listen", "port": port, "seconds": 30}))
    assert listener.error is None
    assert reach(("client", "127.0.0.1", port))["client"] == ("answers", "")
    assert reach(("client", "::1", port))["client"][0] in {"answers", "unreachable"}
    assert [each.is_listener for each in facts(port).holders] == [True]
    another = listener_facts(ports({"kind": "listen", "port": port, "seconds": 30}))
    assert another.error is None
    ports({"kind": "close", "pid": another.pid, "start": another.start})
    stranger = {"kind": "close", "pid": os.getpid(), "start": listener.start}
    assert ports(stranger) == {"closed": True}  # another process of that number is left alone
    assert ports({"kind": "close", "pid": listener.pid, "start": listener.start}) == {
        "closed": True
    }
    assert reach(("client", "127.0.0.1", port))["client"] == ("refused", "")


def test_the_listener_ends_by_itself() -> None:
    port = free_port()
    assert listener_facts(ports({"kind": "listen", "port": port, "seconds": 1})).pid
    end = time.monotonic() + 20
    while reach(("client", "127.0.0.1", port))["client"][0] != "refused":
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_port_in_use_is_not_opened_even_if_held_on_loopback_only(mute: int) -> None:
    listener = listener_facts(ports({"kind": "listen", "port": mute, "seconds": 5}))
    assert (listener.pid, listener.error) == (0, "Address already in use")


def test_facts_of_this_machine(mute: int, tmp_path: Path) -> None:
    spec = tmp_path / "cluster.json"
    spec.write_text('{"cluster":{}}\n')
    (tmp_path / "runs/R-1").mkdir(parents=True)
    (tmp_path / "runs/R-2").mkdir()
    (tmp_path / "runs/R-2/exit.json").touch()
    found = facts(mute, spec=str(spec), runs=str(tmp_path / "runs"), disk=[str(tmp_path / "new")])
    assert [each.pid for each in found.holders] == [os.getpid()]
    assert found.spec.text == '{"cluster":{}}'
    assert found.spec.mtime_s == pytest.approx(spec.stat().st_mtime)
    assert {(each.name, each.ended) for each in found.runs} == {("R-1", False), ("R-2", True)}
    assert found.disk[0].free_bytes > 0
    assert "127.0.0.1" in found.addresses
    assert found.venv.error is None
    assert found.venv.python == ".".join(map(str, sys.version_info[:3]))
    assert found.machine == os.uname().machine


def test_a_venv_that_hangs_or_breaks_is_said_in_time(tmp_path: Path) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nsleep 600\n")
    hanging.chmod(0o755)
    begun = time.monotonic()
    assert facts(free_port(), python=str(hanging)).venv.error == "no end within 6 s"
    assert time.monotonic() - begun < 15
    missing = facts(free_port(), python=str(tmp_path / "none")).venv.error
    assert missing is not None
    assert "No such file" in missing
    hanging.write_text("#!/bin/sh\necho 'Fatal Python error: no encodings' >&2\nexit 1\n")
    assert facts(free_port(), python=str(hanging)).venv.error == "Fatal Python error: no encodings"


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's privileges")
def test_without_sudo_the_node_still_tells_what_it_may(mute: int) -> None:
    node = Node("here", 0, "127.0.0.1", mute, SshTarget("here"))
    request = {**facts_request(node, gpu=False), "units": []}
    source = Path(facts_probe.__file__).read_text(encoding="utf-8")
    result = HERE.run(
        [
            "setpriv",
            "--reuid=nobody",
            "--clear-groups",
            "/usr/bin/python3",
            "-I",
            "-c",
            BOOT,
        ],
        timeout_s=30,
        input=json.dumps({"source": source, "boot": BOOT, "request": request}).encode(),
    )
    found = node_facts(answer_of(result))
    assert found.user == "nobody"
    assert not found.root
    assert found.sudo_error
    assert [str(each) for each in found.holders] == ["a process of another user"]


SMI = """#!/bin/sh
case "$*" in
*--query-compute-apps*) echo "GPU-1, $HOLDER, python3, 512" ;;
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
*) echo "0, NVIDIA L4, GPU-1, 470.1, 23034, 515, 22519, Disabled, 300, 2040, 72.00, 41, 0x0000000000000001" ;;
esac
"""


def test_an_old_drivers_gpus_are_asked_for_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, wheel = tmp_path / "nvidia-smi", tmp_path / "tensorflow/python/platform"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("HOLDER", str(os.getpid()))
    tool.write_text(SMI)
    tool.chmod(0o755)
    wheel.mkdir(parents=True)
    (tmp_path / "tensorflow/__init__.py").write_text("raise SystemExit('imported')\n")
    (wheel / "build_info.py").write_text(
        "import collections\nbuild_info = collections.OrderedDict([('is_cuda_build', True), "
        "('cuda_compute_capabilities', ['sm_60', 'compute_90']), ('cuda_version', '12.5.1'), "
        "('cudnn_version', '9')])\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift; exec env PYTHONPATH={tmp_path} "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = tmp_path / "cuda.env"
    (tmp_path / "cache/a").mkdir(parents=True)
    (tmp_path / "cache/a/kernel").write_bytes(b"12345")
    environment.write_text(f"CUDA_CACHE_PATH={tmp_path}/cache\nCUDA_CACHE_MAXSIZE=1000\n")
    program = "import json; print(json.dumps([{'name': 'libx.so', 'error': 'no such file'}]))"
    found = facts(
        free_port(),
        gpu=True,
        python=str(python),
        gpu_environment=str(environment),
        gpu_libraries=program,
    ).gpu
    assert found is not None
    (device,) = found.devices
    assert (device.state.name, device.state.compute_capability) == ("NVIDIA L4", "")
    assert (device.state.persistence, device.state.throttle) == (False, ("gpu-idle",))
    assert (device.state.memory_bytes, device.free_bytes) == (23034 << 20, 22519 << 20)
    assert device.state.woke_s is not None
    (holder,) = device.state.holders
    assert (holder.pid, holder.memory_bytes) == (os.getpid(), 512 << 20)
    assert "pytest" in holder.command
    wanted = (None, True, ("sm_60", "compute_90"), "12.5.1", "9")
    assert astuple(found.wheel) == wanted
    assert astuple(found.cache) == (f"{tmp_path}/cache", 1, 5, 1000)
    assert [(each.name, each.error) for each in found.libraries or ()] == [
        ("libx.so", "no such file")
    ]
    assert (found.access.user, found.access.error) == (pwd.getpwuid(os.geteuid()).pw_name, None)


def test_a_drivers_complaint_is_kept_with_its_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    tool.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\n"
        "echo 'NVML library version: 550.90'\nexit 18\n"
    )
    tool.chmod(0o755)
    found = facts(free_port(), gpu=True).gpu
    assert found is not None
    assert (found.devices, found.smi.code, found.smi.second_s) == ((), 18, None)
    assert found.smi.said == (
        "Failed to initialize NVML: Driver/library version mismatch; NVML library version: 550.90"
    )


def test_the_client_without_its_user_is_no_reason_to_know_nothing() -> None:
    found = facts(free_port(), gpu=True, gpu_user="nobody-of-that-name").gpu
    assert found is not None
    if os.geteuid() == 0:
        assert (found.access.user, found.libraries) == ("", None)
        assert "does not have the user" in (found.access.error or "")


def test_ports_as_this_machine_sees_them(mute: int, tmp_path: Path) -> None:
    def lab(*addresses: str) -> Lab:
        nodes = tuple(
            Node(f"tf{k}", k, address, mute, SshTarget("gate"))
            for k, address in enumerate(addresses)
        )
        return Lab("far", nodes, None, "none", tmp_path)

    assert see_from_here(lab("127.0.0.1", "192.0.2.1")) == {}
    assert _knock("127.0.0.1", mute) == "open"
    assert _knock("127.0.0.1", free_port()) == "refused"


def test_the_loopback_lab_is_checked_without_ssh(mute: int, tmp_path: Path) -> None:
    lab = loopback_lab(tmp_path, (mute, free_port()))
    executors = {node.name: LocalExecutor(node.name) for node in lab.nodes}
    results = run_checks(lab, executors)
    states = {(each.name, each.node): each for each in results}
    assert states["leftovers", "tf0"].status == "fail"
    assert f"pid {os.getpid()}" in states["leftovers", "tf0"].found
    assert states["leftovers", "tf1"].status == "ok"
    assert states["unit", "tf1"].found == "does not apply to the loopback lab"
    assert {each.status for each in results if each.name in {"probe", "venv", "disk", "cpu"}} == {
        "ok"
    }
