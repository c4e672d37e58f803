"""SSH as users meet it: unknown and changed keys, jumps, configuration, mute and frozen peers."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from labctl.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    HostKeyError,
    HostUnreachableError,
    InventoryError,
    RemoteCommandError,
)
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote import ssh_channel
from labctl.remote.clock import clock_offset
from labctl.remote.connect import open_executor, open_units
from labctl.remote.local import LocalExecutor
from labctl.remote.probe import tcp_probe
from labctl.remote.ssh import SshExecutor
from labctl.remote.ssh_config import resolve
from labctl.remote.units_process import ProcessUnits
from labctl.remote.units_systemd import SystemdUnits
from tests.contract.sshd import Sshd, free_port, keygen, running_sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "own") as server:
        yield server


def hello(target: SshTarget, *, timeout_s: float = 15, known_hosts: tuple[Path, ...] = ()) -> str:
    executor = SshExecutor("tf1", target, known_hosts=known_hosts, connect_timeout_s=timeout_s)
    try:
        return executor.run(["echo", "hello"], timeout_s=20).text
    finally:
        executor.close()


def send(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        os.kill(pid, number)


def config_target(folder: Path, text: str, host: str = "node") -> SshTarget:
    path = folder / "config"
    path.write_text(text)
    return SshTarget(host, options=("-F", str(path)))


# Host keys


def test_unknown_host_key_is_refused_at_once(own_sshd: Sshd) -> None:
    own_sshd.known_hosts.write_text("")
    started = time.monotonic()
    with pytest.raises(HostKeyError) as caught:
        hello(own_sshd.target(), timeout_s=60)
    assert time.monotonic() - started < 30
    listed = subprocess.run(
        ["ssh-keygen", "-lf", str(own_sshd.folder / "host_key.pub")],
        capture_output=True,
        text=True,
        check=True,
    )
    text = str(caught.value)
    assert caught.value.exit_code == 4
    assert listed.stdout.split()[1] in text
    assert f"host key of tf1 ([127.0.0.1]:{own_sshd.port}) is not known" in text
    assert str(own_sshd.known_hosts) in text
    assert f"ssh -p {own_sshd.port}" in text


def test_changed_host_key_names_line_fingerprints_and_a_command_that_helps(own_sshd: Sshd) -> None:
    own_sshd.stop()
    own_sshd.known_hosts.write_text("# a comment\n" + own_sshd.known_hosts.read_text())
    old = (own_sshd.folder / "host_key.pub").read_text().split()[1]
    own_sshd.renew_host_key()
    own_sshd.start()
    with pytest.raises(HostKeyError, match="has changed") as caught:
        hello(own_sshd.target())
    assert f"{own_sshd.known_hosts}:2" in (caught.value.expected or "")
    assert "ED25519 SHA256:" in caught.value.found
    assert "ED25519 SHA256:" in (caught.value.expected or "")
    command = (caught.value.do or "").rpartition(": ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert old not in own_sshd.known_hosts.read_text()
    with pytest.raises(HostKeyError, match="is not known"):
        hello(own_sshd.target())


def test_no_host_key_checking_in_the_configuration_is_not_honoured(own_sshd: Sshd) -> None:
    own_sshd.known_hosts.write_text("")
    with pytest.raises(HostKeyError):
        hello(own_sshd.target(options=("-o", "StrictHostKeyChecking=no")))


def test_hashed_and_broken_and_foreign_lines_do_not_disturb(own_sshd: Sshd) -> None:
    blob = (own_sshd.folder / "host_key.pub").read_text().split()[1]
    subprocess.run(
        ["ssh-keygen", "-q", "-H", "-f", str(own_sshd.known_hosts)], check=True, capture_output=True
    )
    hashed = own_sshd.known_hosts.read_text()
    assert hashed.startswith("|1|")
    own_sshd.known_hosts.write_text(
        f"@cert-authority * ssh-ed25519 {blob}\nnonsense\n* ssh-rsa AAAA!\n\xff\n{hashed}",
        encoding="latin-1",
    )
    assert hello(own_sshd.target()) == "hello"


def test_revoked_key_is_refused(own_sshd: Sshd) -> None:
    line = own_sshd.known_hosts.read_text()
    own_sshd.known_hosts.write_text(f"{line}@revoked * {line.split(maxsplit=1)[1]}")
    with pytest.raises(HostKeyError, match="is revoked"):
        hello(own_sshd.target())


def test_key_type_that_is_known_is_asked_for(tmp_path: Path) -> None:
    keygen(tmp_path / "ecdsa", kind="ecdsa")
    with running_sshd(tmp_path / "two", f"HostKey {tmp_path}/ecdsa") as server:
        kind, blob, _ = (tmp_path / "ecdsa.pub").read_text().split()
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {blob}\n")
        assert hello(server.target()) == "hello"


def test_known_hosts_of_the_lab_is_enough(own_sshd: Sshd, tmp_path: Path) -> None:
    labs = tmp_path / "known_hosts_of_the_lab"
    labs.write_text(own_sshd.known_hosts.read_text())
    own_sshd.known_hosts.write_text("")
    assert hello(own_sshd.target(), known_hosts=(labs,)) == "hello"


# Keys


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("encrypted", "encrypted, and labctl never asks for a passphrase: ssh-add"),
        ("public", r"a public key; give the private one \(key\)"),
        ("missing", "no such file"),
        ("open", r"others may read it \(mode 0644\), so OpenSSH refuses it: chmod 600"),
        ("nonsense", "not a private key that OpenSSH would read"),
        ("foreign", "refused .*key"),
    ],
)
def test_key_that_cannot_be_used_gets_its_path_and_cause(
    sshd: Sshd, tmp_path: Path, case: str, cause: str
) -> None:
    key = tmp_path / "key"
    if case == "encrypted":
        keygen(key, passphrase="not empty")
    elif case in {"public", "foreign"}:
        keygen(key)
        key = key.with_name("key.pub") if case == "public" else key
    elif case == "open":
        key.write_bytes(sshd.key.read_bytes())
        key.chmod(0o644)
    elif case == "nonsense":
        key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
        key.chmod(0o600)
    started = time.monotonic()
    with pytest.raises(AuthenticationError, match=cause) as caught:
        hello(sshd.target(key=key), timeout_s=60)
    assert str(key) in caught.value.found
    assert "\n" not in caught.value.found
    assert time.monotonic() - started < 30


def test_agent_lends_an_encrypted_key(sshd: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "key", passphrase="secret")
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(key.with_name("key.pub").read_text())
    address = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.DEVNULL)
    try:
        while not address.exists():
            time.sleep(0.02)
        ask = tmp_path / "ask"
        ask.write_text("#!/bin/sh\necho secret\n")
        ask.chmod(0o700)
        subprocess.run(
            ["ssh-add", str(key)],
            env={
                **os.environ,
                "SSH_AUTH_SOCK": str(address),
                "SSH_ASKPASS": str(ask),
                "SSH_ASKPASS_REQUIRE": "force",
            },
            check=True,
            capture_output=True,
        )
        text = sshd.ssh_config("node").replace("IdentityAgent none", f"IdentityAgent {address}")
        text = text.replace(str(sshd.key), str(key)) + "    IdentitiesOnly yes\n"
        assert hello(config_target(tmp_path, text)) == "hello"
    finally:
        agent.kill()
        agent.wait()


# OpenSSH's configuration


def test_include_and_unknown_match_are_read_as_openssh_reads_them(
    sshd: Sshd, tmp_path: Path
) -> None:
    (tmp_path / "included").write_text(sshd.ssh_config("node"))
    text = f"Include {tmp_path}/included\nMatch localnetwork 192.0.2.0/24\n    ProxyJump nowhere\n"
    target = config_target(tmp_path, text)
    accepted = subprocess.run(
        ["ssh", "-G", *target.options, "node"], capture_output=True, check=False
    )
    if accepted.returncode == 0:
        assert hello(target) == "hello"
    else:  # OpenSSH before 9.4 knows no `localnetwork` and refuses the whole file
        with pytest.raises(ConfigError, match="OpenSSH refuses its configuration for tf1"):
            hello(target)
        (tmp_path / "config").write_text(f"Include {tmp_path}/included\n")
        assert hello(target) == "hello"


def test_match_that_does_not_apply_is_not_applied(sshd: Sshd, tmp_path: Path) -> None:
    text = sshd.ssh_config("node") + "Match host other\n    ProxyJump nowhere\n    Port 1\n"
    assert hello(config_target(tmp_path, text)) == "hello"


def test_resolution_equals_ssh(sshd: Sshd, tmp_path: Path) -> None:
    text = (
        sshd.ssh_config("node", "HostKeyAlias other-name", "ConnectTimeout 7")
        + "\nHost *\n  User x\n"
    )
    hop = resolve(config_target(tmp_path, text), "tf1")
    assert (hop.host, hop.port, hop.user) == ("127.0.0.1", sshd.port, getpass.getuser())
    assert (hop.key_alias, hop.connect_timeout_s, hop.agent) == ("other-name", 7.0, None)
    assert hop.key_files == (sshd.key,)
    assert hop.known_hosts == (sshd.known_hosts, Path("/dev/null"))
    given = SshTarget(
        "node", user="me", port=2022, key_file=Path("/k"), options=("-F", str(tmp_path / "config"))
    )
    hop = resolve(given, "tf1")
    assert (hop.user, hop.port, hop.key_files[0]) == ("me", 2022, Path("/k"))


def test_option_that_cannot_be_honoured_is_refused_by_name(sshd: Sshd) -> None:
    with pytest.raises(InventoryError, match="SSH option pkcs11provider of tf1 is not supported"):
        hello(sshd.target(options=("-o", "PKCS11Provider=/lib/x.so")))


def test_jump_through_one_and_two_hosts(tmp_path: Path) -> None:
    with (
        running_sshd(tmp_path / "a", "LogLevel VERBOSE") as first,
        running_sshd(tmp_path / "b") as second,
        running_sshd(tmp_path / "c") as third,
    ):
        text = "".join(
            [
                first.ssh_config("gate"),
                second.ssh_config("inner"),
                third.ssh_config("one", "ProxyJump gate"),
                third.ssh_config("two", "ProxyJump gate,inner"),
                second.ssh_config("via", "ProxyJump gate"),
                third.ssh_config("nested", "ProxyJump via"),
            ]
        )
        for alias in ("one", "two", "nested"):
            assert hello(config_target(tmp_path, text, alias)) == "hello"
        assert (first.folder / "log").read_text().count("Accepted publickey") == 3
        first.stop()
        with pytest.raises(HostUnreachableError, match=f"127.0.0.1:{first.port}"):
            hello(config_target(tmp_path, text, "one"), timeout_s=1)
        first.start()
        first.known_hosts.write_text("")
        with pytest.raises(HostKeyError, match=f"127.0.0.1]:{first.port}"):
            hello(config_target(tmp_path, text, "one"))


def test_jump_given_by_the_inventory_is_used(sshd: Sshd, tmp_path: Path) -> None:
    with running_sshd(tmp_path / "gate", "LogLevel VERBOSE") as gate:
        path = tmp_path / "config"
        path.write_text(gate.ssh_config("gate") + sshd.ssh_config("node"))
        target = SshTarget("node", options=("-F", str(path), "-o", "ProxyJump=gate"))
        assert hello(target) == "hello"
        assert "Accepted publickey" in (gate.folder / "log").read_text()


def test_jump_in_a_circle_ends(sshd: Sshd, tmp_path: Path) -> None:
    text = sshd.ssh_config("a", "ProxyJump b") + sshd.ssh_config("b", "ProxyJump a")
    started = time.monotonic()
    with pytest.raises(ConfigError, match="in a circle"):
        hello(config_target(tmp_path, text, "a"))
    assert time.monotonic() - started < 30


def test_proxy_command_is_the_connection(sshd: Sshd, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        "link = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    for end in select.select([0, link], [], [])[0]:\n"
        "        data = os.read(0, 65536) if end == 0 else link.recv(65536)\n"
        "        if not data: sys.exit()\n"
        "        link.sendall(data) if end == 0 else os.write(1, data)\n"
    )
    text = sshd.ssh_config("node", f"ProxyCommand python3 {relay} %h %p")
    assert hello(config_target(tmp_path, text)) == "hello"
    text = sshd.ssh_config("node", "ProxyCommand sh -c \"echo 'gate is shut' >&2; exit 3\"")
    with pytest.raises(HostUnreachableError, match=r"ProxyCommand ended with 3: gate is shut"):
        hello(config_target(tmp_path, text), timeout_s=2)
    text = sshd.ssh_config("node", "ProxyCommand labctl-no-such-program")
    started = time.monotonic()
    with pytest.raises(HostUnreachableError, match=r"ProxyCommand ended with 127: .*not found"):
        hello(config_target(tmp_path, text), timeout_s=60)
    assert time.monotonic() - started < 30


# Peers that are not there, not yet, or no more


def test_refused_port_is_tried_until_the_deadline(sshd: Sshd, tmp_path: Path) -> None:
    target = sshd.target()
    closed = SshTarget(target.host, target.user, free_port(), target.key_file, target.options)
    started = time.monotonic()
    with pytest.raises(HostUnreachableError, match=r"tf1 .*connection refused \(tried for 2 s\)"):
        hello(closed, timeout_s=2)
    assert 1 < time.monotonic() - started < 15


def test_mute_port_is_given_up_at_the_deadline(
    sshd: Sshd, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        target = sshd.target()
        port = mute.getsockname()[1]
        there = SshTarget(target.host, target.user, port, target.key_file, target.options)
        with pytest.raises(HostUnreachableError, match="no SSH server speaks there"):
            hello(there, timeout_s=2)
    assert capfd.readouterr() == ("", "")


def test_server_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    server = Sshd(tmp_path / "late")
    timer = threading.Timer(5, lambda: server.start(wait=False))
    timer.start()
    try:
        assert hello(server.target(), timeout_s=60) == "hello"
    finally:
        timer.join()
        server.stop()


def test_name_that_does_not_resolve_is_not_tried_again(sshd: Sshd) -> None:
    started = time.monotonic()
    with pytest.raises(HostUnreachableError, match=r"nowhere\.invalid, is not known by name"):
        hello(SshTarget("nowhere.invalid", options=sshd.target().options), timeout_s=60)
    assert time.monotonic() - started < 40


def test_frozen_peer_is_noticed(own_sshd: Sshd) -> None:
    executor = SshExecutor("tf1", own_sshd.target())
    assert executor.run(["true"], timeout_s=20).ok
    children = own_sshd.children()
    assert children
    freezer = threading.Timer(1, lambda: send(children, signal.SIGSTOP))
    freezer.start()
    started = time.monotonic()
    with pytest.raises(ConnectionLostError, match="whether it ended is not known"):
        executor.run(["sleep", "300"], timeout_s=250)
    assert time.monotonic() - started < 40
    freezer.join()
    assert executor.run(["echo", "again"], timeout_s=20).text == "again"
    executor.close()


def test_frozen_peer_is_noticed_while_reading_a_file(own_sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    executor = SshExecutor("tf1", own_sshd.target())
    assert executor.size(str(tmp_path / "file")) == 1000
    send(own_sshd.children(), signal.SIGSTOP)
    with pytest.raises(ConnectionLostError):
        executor.read(str(tmp_path / "file"))
    executor.close()


def test_lost_link_is_neither_exit_nor_signal(own_sshd: Sshd) -> None:
    executor = SshExecutor("tf1", own_sshd.target())
    assert executor.run(["true"], timeout_s=20).ok
    killer = threading.Timer(1, lambda: send(own_sshd.children(), signal.SIGKILL))
    killer.start()
    with pytest.raises(ConnectionLostError, match="broke while sh ran there"):
        executor.run(["sh", "-c", "trap '' HUP; sleep 5"], timeout_s=60)
    killer.join()
    assert executor.run(["echo", "again"], timeout_s=20).text == "again"
    executor.close()


def test_connection_that_ended_meanwhile_is_made_anew(own_sshd: Sshd) -> None:
    executor = SshExecutor("tf1", own_sshd.target())
    assert executor.run(["true"], timeout_s=20).ok
    own_sshd.stop()
    own_sshd.start()
    assert executor.run(["echo", "again"], timeout_s=20).text == "again"
    executor.close()


def test_one_connection_serves_all_calls(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "verbose", "LogLevel VERBOSE") as server:
        executor = SshExecutor("tf1", server.target())
        path = str(tmp_path / "file")
        for number in range(5):
            executor.run(["true"], timeout_s=20)
            executor.put(b"x" * number, path)
            assert executor.size(path) == number
        executor.close()
        assert (server.folder / "log").read_text().count("Accepted publickey") == 1


def test_one_session_at_a_time_is_enough(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "one", "MaxSessions 1") as server:
        executor = SshExecutor("tf1", server.target())
        path = str(tmp_path / "file")
        executor.put(b"data", path)
        assert executor.run(["cat", path], timeout_s=20).stdout == b"data"
        assert executor.read(path) == b"data"
        executor.close()


def test_account_that_may_not_run_commands_is_named(tmp_path: Path) -> None:
    with (
        running_sshd(tmp_path / "sftp", "ForceCommand echo files only >&2; false") as server,
        pytest.raises(RemoteCommandError, match="did not run the command: files only"),
    ):
        hello(server.target())


def test_output_of_the_login_shells_files_is_kept_out(tmp_path: Path) -> None:
    noisy = "ForceCommand printf 'Welcome!\\\\n'; printf 'motd\\\\n' >&2; eval \"$SSH_ORIGINAL_COMMAND\""
    with running_sshd(tmp_path / "noisy", noisy) as server:
        executor = SshExecutor("tf1", server.target())
        result = executor.run(["sh", "-c", "echo out; echo err >&2"], timeout_s=20)
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
        executor.close()


# What is built on it


def test_nodes_of_labs_get_the_executor_and_units_that_fit(sshd: Sshd, tmp_path: Path) -> None:
    remote = Node("tf0", 0, "127.0.0.1", 2222, sshd.target())
    local = Node("tf1", 1, "127.0.0.1", 2223, None)
    lab = Lab("x", (remote, local), None, "rehearsal", tmp_path)
    (tmp_path / "known_hosts").write_text("")
    executor = open_executor(remote, lab)
    assert executor.run(["echo", "x"], timeout_s=20).text == "x"
    assert isinstance(open_units(remote, executor, lab), SystemdUnits)
    executor.close()
    here = open_executor(local, lab)
    assert isinstance(here, LocalExecutor)
    assert isinstance(open_units(local, here, lab), ProcessUnits)


@pytest.mark.parametrize(
    ("provider", "advice"), [("rehearsal", "labctl up --lab x"), ("none", "ssh-keygen")]
)
def test_who_made_the_machine_says_how_a_changed_key_is_mended(
    own_sshd: Sshd, tmp_path: Path, provider: str, advice: str
) -> None:
    other = tmp_path / "other"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, timeout=30
    )
    kind, blob = other.with_suffix(".pub").read_text().split()[:2]
    own_sshd.known_hosts.write_text(f"[127.0.0.1]:{own_sshd.port} {kind} {blob}\n")
    node = Node("tf0", 0, "127.0.0.1", 2222, own_sshd.target())
    executor = open_executor(node, Lab("x", (node,), None, provider, tmp_path))
    with pytest.raises(HostKeyError, match="has changed") as caught:
        executor.run(["true"], timeout_s=20)
    assert advice in str(caught.value.do)


def test_clock_offset_of_the_same_machine_is_within_its_bound(sshd: Sshd) -> None:
    executor = SshExecutor("tf1", sshd.target())
    for each in (executor, LocalExecutor()):
        offset = clock_offset(each)
        assert abs(offset.seconds) <= offset.error_bound_s + 0.01
        assert 0 < offset.rtt_s == pytest.approx(2 * offset.error_bound_s)
    executor.close()


def test_answer_arrives_though_its_wake_up_was_lost(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko's two streams share one pipe, and a wake-up may be lost between them."""

    def never_ready(*args: object) -> tuple[list[int], list[int], list[int]]:
        time.sleep(0.05)
        return [], [], []

    monkeypatch.setattr(ssh_channel, "select", SimpleNamespace(select=never_ready))
    executor = SshExecutor("tf1", sshd.target())
    try:
        program = "import sys; [print(line, end='', flush=True) for line in sys.stdin]"
        answers = executor.ask(["python3", "-c", program], [b"a\n", b"b\n"], timeout_s=10)
    finally:
        executor.close()
    assert [answer.line for answer in answers] == [b"a", b"b"]


def test_port_is_tried_from_the_node(sshd: Sshd) -> None:
    executor = SshExecutor("tf1", sshd.target())
    assert tcp_probe(executor, "localhost", sshd.port, 5).state == "answers"
    assert tcp_probe(executor, "127.0.0.1", free_port(), 5).state == "refused"
    unknown = tcp_probe(executor, "nowhere.invalid", 80, 5)
    assert (unknown.state, unknown.address) == ("not resolvable", "")
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        for _ in range(4):  # fill the queue, so that a further one is not answered
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
            waiting.append(each)
        assert tcp_probe(executor, "127.0.0.1", port, 1).state == "timed out"
        for each in waiting:
            each.close()
    executor.close()
