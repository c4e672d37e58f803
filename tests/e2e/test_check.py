"""`labctl check` on two machines: well, and with one fault after the other, each mended again."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from labctl.checks.doctor import GPU_NAMES
from labctl.node.wire import spec_text

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

SPEC = "/etc/tf-join-server/cluster.json"
UNIT = "tf-join-server.service"
# Makes the connection and never says a word.
MUTE = (
    "import socket, time; s = socket.create_server(('', 2222)); time.sleep(120)  # a mute program"
)
Checks = dict[tuple[str, str], dict[str, Any]]


def check(lab: RehearsalLab, *args: str) -> tuple[int, Checks]:
    begun = time.monotonic()
    done = lab.labctl("check", "--json", *args)
    assert time.monotonic() - begun < 60, "labctl check must be quick, whatever is wrong"
    assert "Traceback" not in done.stderr
    results = json.loads(done.stdout)
    return done.returncode, {(each["name"], each["node"]): each for each in results}


def failing(checks: Checks) -> set[tuple[str, str]]:
    return {key for key, each in checks.items() if each["status"] == "fail"}


def root(lab: RehearsalLab, node: str, command: str) -> str:
    return lab.ssh(node, ["sudo", "sh", "-c", command]).stdout


def restart(lab: RehearsalLab) -> None:
    root(lab, "tf1", f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}")


@contextmanager
def mended(repair: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    finally:
        repair()


@pytest.fixture(scope="module", autouse=True)
def _left_as_found(lab: RehearsalLab) -> Iterator[None]:
    """The tests mend what they break."""
    yield
    status, checks = check(lab)
    assert (status, failing(checks)) == (0, set())


def test_a_healthy_lab_passes_every_check(lab: RehearsalLab) -> None:
    status, checks = check(lab)
    assert failing(checks) == set()
    assert status == 0
    skipped = {name for (name, _), each in checks.items() if each["status"] == "skipped"}
    assert skipped == {*GPU_NAMES, "running-spec"}
    assert all(
        set(each) == {"name", "node", "status", "found", "expected", "do"}
        for each in checks.values()
    )
    assert "labctl-listen" not in root(lab, "tf0", "cat /proc/[0-9]*/comm")
    table = lab.labctl("check", "--node", "tf1")
    assert table.returncode == 0
    assert "next: labctl run" in table.stdout


def test_a_stopped_server_and_then_a_mute_program_on_its_port(lab: RehearsalLab) -> None:
    root(lab, "tf1", f"systemctl stop {UNIT}")
    with mended(lambda: restart(lab)):
        status, checks = check(lab)
        assert status == 1
        assert failing(checks) == {("unit", "tf1"), ("port", "tf1")}
        assert "inactive" in checks["unit", "tf1"]["found"]
        assert "refused the connection from tf0" in checks["port", "tf1"]["found"]
        assert "systemctl restart tf-join-server" in checks["port", "tf1"]["do"]
        program = shlex.join(["systemd-run", "--unit=mute", "/usr/bin/python3", "-c", MUTE])
        root(lab, "tf1", program)
        with mended(lambda: root(lab, "tf1", "systemctl stop mute")):
            root(lab, "tf1", f"systemctl start {UNIT} || true")
            status, checks = check(lab)
            assert status == 1
            assert failing(checks) == {("unit", "tf1"), ("port", "tf1")}
            pid = root(lab, "tf1", "systemctl show -P MainPID mute").strip()
            assert f"pid {pid}" in checks["unit", "tf1"]["found"]
            assert f"sudo kill {pid}" in checks["unit", "tf1"]["do"]
            assert "timed out from tf0" in checks["port", "tf1"]["found"]


def test_a_spec_that_changed_and_one_that_is_wrong(lab: RehearsalLab) -> None:
    addresses = tuple(node.tf_address for node in lab.lab.nodes)
    wrong = spec_text((addresses[0], "192.0.2.9:2222"))

    def write(text: str) -> None:
        root(lab, "tf1", f"printf '%s\\n' {shlex.quote(text)} > {SPEC}")

    def mend() -> None:
        write(spec_text(addresses))
        restart(lab)

    with mended(mend):
        write(spec_text(addresses))
        status, checks = check(lab)
        assert (status, failing(checks)) == (1, {("running-spec", "tf1")})
        write(wrong)
        status, checks = check(lab)
        assert (status, failing(checks)) == (1, {("running-spec", "tf1"), ("spec", "tf1")})
        assert "has task:1 at 192.0.2.9:2222" in checks["spec", "tf1"]["found"]


def test_a_proxy_that_reaches_the_server_and_one_that_does_not(lab: RehearsalLab) -> None:
    folder = f"/run/systemd/system/{UNIT}.d"
    dropin = (
        "[Service]\\nUnsetEnvironment=\\nEnvironment=http_proxy=http://me:secret@127.0.0.1:9\\n"
    )

    def mend() -> None:
        root(lab, "tf1", f"rm -r {folder}; systemctl daemon-reload")
        restart(lab)
        root(lab, "tf0", "systemctl unset-environment https_proxy")

    root(lab, "tf1", f"mkdir -p {folder}; printf '{dropin}' > {folder}/proxy.conf")
    with mended(mend):
        root(lab, "tf1", "systemctl daemon-reload")
        restart(lab)
        root(lab, "tf0", "systemctl set-environment https_proxy=http://127.0.0.1:9")
        status, checks = check(lab)
    assert (status, failing(checks)) == (1, {("proxies", "tf1")})
    assert "http_proxy=http://***@127.0.0.1:9" in checks["proxies", "tf1"]["found"]
    assert "systemd's environment" in checks["proxies", "tf0"]["found"]


def test_ports_closed_to_a_peer_and_open_to_strangers(lab: RehearsalLab) -> None:
    first = "nft insert rule inet lab_firewall input tcp dport 2222"
    peer = lab.lab.node("tf1").data_address
    root(lab, "tf0", f"{first} ip saddr {peer} drop")
    with mended(lambda: root(lab, "tf0", "systemctl reload lab-firewall")):
        root(lab, "tf1", f"{first} accept")
        with mended(lambda: root(lab, "tf1", "systemctl reload lab-firewall")):
            status, checks = check(lab)
    assert (status, failing(checks)) == (1, {("port", "tf0"), ("exposure", "tf1")})
    assert "timed out from tf1" in checks["port", "tf0"]["found"]
    assert "authentication" in checks["exposure", "tf1"]["expected"]


def test_the_clients_port_taken_by_another_program(lab: RehearsalLab) -> None:
    program = shlex.join(["systemd-run", "--unit=mute", "/usr/bin/python3", "-c", MUTE])
    root(lab, "tf0", program)
    with mended(lambda: root(lab, "tf0", "systemctl stop mute")):
        status, checks = check(lab)
    assert (status, failing(checks)) == (1, {("leftovers", "tf0")})
    assert "port 2222 of tf0 is held by python3" in checks["leftovers", "tf0"]["found"]
    assert "sudo kill" in checks["leftovers", "tf0"]["do"]


def test_a_changed_host_key_fails_its_node_and_the_other_is_checked(lab: RehearsalLab) -> None:
    known = lab.lab.local_dir / "known_hosts"
    before = known.read_text(encoding="utf-8")
    address = lab.lab.node("tf1").data_address
    keys = [line.split()[1:3] for line in before.splitlines() if line.strip()]
    ours = [line.split()[1:3] for line in before.splitlines() if line.startswith(address)]
    other = next(key for key in keys if key not in ours and key[0] == ours[0][0])
    known.write_text(before.replace(ours[0][1], other[1]), encoding="utf-8")
    with mended(lambda: known.write_text(before, encoding="utf-8")):
        status, checks = check(lab)
    assert (status, failing(checks)) == (1, {("ssh", "tf1")})
    assert checks["unit", "tf1"]["status"] == "skipped"
    assert checks["spec", "tf0"]["status"] == "ok"


def test_gpus_are_missed_by_name_and_a_node_must_exist(lab: RehearsalLab) -> None:
    status, checks = check(lab, "--gpu")
    missed = {(name, node) for name in ("gpu", "cuda-versions") for node in ("tf0", "tf1")}
    assert (status, failing(checks)) == (1, missed)
    assert checks["gpu", "tf1"]["found"].startswith("tf1 has no GPU driver")
    assert checks["cuda-versions", "tf1"]["found"] == "TensorFlow on tf1 is the CPU build"
    assert checks["gpu-memory", "tf1"]["found"] == "gpu failed"
    wrong = lab.labctl("check", "--node", "tf9")
    assert wrong.returncode == 2
    assert "tf9" in wrong.stderr
