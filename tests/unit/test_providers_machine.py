"""A machine's command line, CPUs and files; a lab's record."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import ConfigError
from labctl.providers import keys, machine, rootfs, state
from labctl.providers.identity import LabIdentity, MachinePaths
from labctl.providers.machine import MachineSpec, cpu_share

SUBNET = IPv4Network("10.132.3.0/24")
SPEC = MachineSpec(
    index=1, subnet=SUBNET, nodes=2, cpus=(1, 3), memory_bytes=None, image=Path("/i")
)
IDENTITY = LabIdentity("demo", "0123abcd", Path("/s"))


def test_nspawn_command() -> None:
    argv = machine.nspawn_argv(IDENTITY, SPEC)
    assert argv[:4] == ["taskset", "--cpu-list", "1,3", "systemd-nspawn"]
    for word in (
        "--boot",
        "--directory=/s/labs/0123abcd/machines/tf1/root",
        "--machine=labctl-0123abcd-tf1",
        "--hostname=tf1",
        "--network-bridge=lab-0123abcd",
        "--bind=/s/cache/uv:/var/cache/labctl/uv",
        "--register=no",
        "--keep-unit",
        "--settings=no",
    ):
        assert word in argv


@pytest.mark.parametrize(
    ("cpus", "nodes", "per_node", "shares"),
    [
        ((0, 1), 2, None, [(0,), (1,)]),
        ((0, 1), 3, None, [(0,), (1,), (0,)]),
        ((0, 1, 2, 3, 6), 2, None, [(0, 1), (2, 3)]),
        ((4, 5), 2, 2, [(4, 5), (4, 5)]),
        ((0, 1, 2), 2, 2, [(0, 1), (0, 2)]),
        ((0,), 1, 5, [(0,)]),
    ],
)
def test_cpus_go_round(
    cpus: tuple[int, ...], nodes: int, per_node: int | None, shares: list[tuple[int, ...]]
) -> None:
    assert [cpu_share(cpus, index, nodes, per_node) for index in range(nodes)] == shares


def test_what_applies_now_and_what_at_the_next_start() -> None:
    bounded = replace(SPEC, memory_bytes=512 * 2**20)
    same = partial(machine.changes, cpus={1, 3}, bound=True)
    assert same(SPEC, memory_before=None) == []
    assert same(bounded, memory_before=512 * 2**20) == []
    assert same(bounded, memory_before=None) == ["memory bound 512 MiB, as of now"]
    assert same(SPEC, memory_before=2**30) == ["memory no longer bounded, as of now"]
    assert machine.changes(bounded, memory_before=None, cpus={0}, bound=False) == [
        "CPU 1,3 from its next start, 0 until then (poweroff there, then labctl up)"
    ]


def test_network_is_static() -> None:
    text = rootfs.network_text(SPEC)
    assert "Address=10.132.3.3/24\nGateway=10.132.3.1\n" in text
    assert "DHCP" not in text


def test_each_name_stands_for_the_address_that_peers_use() -> None:
    text = rootfs.hosts_text(SUBNET, 2)
    assert "10.132.3.2 tf0\n10.132.3.3 tf1\n" in text
    assert "127.0.1.1" not in text


def test_resolver_is_the_first_that_a_machine_can_reach() -> None:
    stub = ("/etc/resolv.conf", "nameserver 127.0.0.53\noptions edns0\n")
    real = ("/run/systemd/resolve/resolv.conf", "nameserver 192.0.2.53\nsearch lan\n")
    assert rootfs.resolver_text([stub, real]) == "nameserver 192.0.2.53\nsearch lan\n"
    mixed = ("/etc/resolv.conf", "nameserver 2001:db8::53\nnameserver 192.0.2.53\n")
    assert rootfs.resolver_text([mixed]) == "nameserver 192.0.2.53\n"
    with pytest.raises(ConfigError, match="no name server"):
        rootfs.resolver_text([stub])


def test_console_tail_is_plain(tmp_path: Path) -> None:
    paths = MachinePaths(tmp_path)
    assert machine.console_tail(paths) == []
    paths.console.write_bytes(
        b"old\n" * 40 + b"\x1b[0;1;31mFailed\x1b[0m to \xff mount\r\n\n\x1b[K  \n"
    )
    assert machine.console_tail(paths, 2) == ["old", "Failed to \ufffd mount"]
    error = machine.failed_to_start(LabIdentity("demo", "0", tmp_path), "tf0", "it ended")
    assert "tf0 did not come up: it ended" in str(error)


def test_login_takes_the_pinned_key_and_nothing_of_the_user_s() -> None:
    argv = keys.login_argv(Path("/l"), "admin", SPEC.address, ["true"])
    assert argv[:3] == ["ssh", "-F", "none"]
    assert "UserKnownHostsFile=/l/known_hosts" in argv
    assert "StrictHostKeyChecking=yes" in argv
    assert argv[-3:] == ["admin@10.132.3.3", "--", "true"]


def test_known_hosts_has_a_line_a_machine() -> None:
    pairs = [(SUBNET[2], "ssh-ed25519 AAA"), (SUBNET[3], "ssh-ed25519 BBB")]
    text = keys.known_hosts_text(pairs)
    assert text == "10.132.3.2 ssh-ed25519 AAA\n10.132.3.3 ssh-ed25519 BBB\n"


def test_private_files_are_private(tmp_path: Path) -> None:
    file = tmp_path / ".lab" / "known_hosts"
    file.parent.mkdir()
    file.write_text("old")
    file.chmod(0o644)
    keys.write_private(file, "new")
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]


STATE = state.LabState(
    lab="demo",
    root="/r",
    nodes=2,
    release="bookworm",
    image="bookworm-0123456789ab",
    subnet=SUBNET,
    memory_bytes=2**30,
    cpus_per_node=None,
)


def test_state_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert state.load(file) is None
    state.save(file, STATE)
    assert state.load(file) == STATE


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"nodes": "2"},
        {"nodes": 0},
        {"nodes": True},
        {"nodes": 9},
        {"image": "../../etc"},
        {"image": None},
        {"release": "sid"},
        {"subnet": "10.132.0.0/8"},
        {"subnet": "everywhere"},
        {"memory_bytes": -1},
        {"more": 1},
    ],
)
def test_a_state_that_makes_no_sense_is_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    file = tmp_path / "state.json"
    state.save(file, STATE)
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    assert state.load(file) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00"])
def test_a_broken_state_file_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    assert state.load(file) is None
