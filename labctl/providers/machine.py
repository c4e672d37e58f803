"""One rehearsal machine: a systemd-nspawn container with a file system, an address and SSH keys of its own."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from labctl.errors import ConfigError, RemoteCommandError
from labctl.providers import host, mounts
from labctl.providers.cgroup import LabCgroup
from labctl.providers.identity import LabIdentity, MachinePaths, node_name
from labctl.providers.image import ADMIN
from labctl.providers.network import host_address, node_address
from labctl.remote.daemon import Daemon, find_processes, start_daemon

UV_CACHE = "/var/cache/labctl/uv"
STOP_TIMEOUT_S = 5.0
NSPAWN = "systemd-nspawn"
_NSPAWN_DIR = Path("/run/systemd/nspawn")
_NSPAWN_SOURCE = "labctl"
_HOST_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_LOCAL_CAS = Path("/usr/local/share/ca-certificates")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r|[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """What a machine is.

    Attributes:
        index: Its task.
        subnet: The lab's address range.
        nodes: Number of machines in the lab.
        cpus: CPUs of this host that it may use.
        memory_bytes: Bound of its memory, None for none.
        image: Root directory of the image.
    """

    index: int
    subnet: IPv4Network
    nodes: int
    cpus: tuple[int, ...]
    memory_bytes: int | None
    image: Path

    @property
    def node(self) -> str:
        return node_name(self.index)

    @property
    def address(self) -> IPv4Address:
        return node_address(self.subnet, self.index)


def cpu_share(
    cpus: tuple[int, ...], index: int, nodes: int, per_node: int | None
) -> tuple[int, ...]:
    """Return the CPUs of a machine: consecutive shares, from the start again when all are given.

    Args:
        cpus: Those that labctl itself may use.
        index: The machine's index.
        nodes: Number of machines.
        per_node: CPUs of each, default an equal share, at least one.
    """
    count = min(per_node or max(1, len(cpus) // nodes), len(cpus))
    return tuple(sorted({cpus[(index * count + each) % len(cpus)] for each in range(count)}))


def nspawn_argv(identity: LabIdentity, spec: MachineSpec) -> list[str]:
    """Return the command that runs a machine until it powers off."""
    return [
        "taskset",
        "--cpu-list",
        ",".join(map(str, spec.cpus)),
        NSPAWN,
        "--quiet",
        "--boot",
        f"--directory={identity.paths(spec.node).root}",
        f"--machine={identity.machine(spec.node)}",
        f"--hostname={spec.node}",
        f"--network-bridge={identity.bridge}",
        f"--bind={identity.uv_cache}:{UV_CACHE}",
        "--console=read-only",
        "--settings=no",
        "--register=no",
        "--keep-unit",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
    ]


def nspawn_env() -> dict[str, str]:
    """Return the environment of systemd-nspawn."""
    return {
        "PATH": host.PATH,
        "LC_ALL": "C.UTF-8",
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "SYSTEMD_NSPAWN_TMPFS_TMP": "0",  # /tmp on the disk, as on a server
        "TERM": "dumb",
    }


def network_text(spec: MachineSpec) -> str:
    """Return the systemd-networkd file of a machine's only interface."""
    return f"""\
# Written by labctl.
[Match]
Name=host0

[Network]
Address={spec.address}/{spec.subnet.prefixlen}
Gateway={host_address(spec.subnet)}
LinkLocalAddressing=no
IPv6AcceptRA=no
LLMNR=no
LLDP=no
EmitLLDP=no
"""


def hosts_text(subnet: IPv4Network, nodes: int) -> str:
    """Return a machine's /etc/hosts; each name stands for the address that its peers use."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{node_address(subnet, index)} {node_name(index)}" for index in range(nodes)]
    return "\n".join(lines) + "\n"


def resolver_text(candidates: list[tuple[str, str]]) -> str:
    """Return the first resolv.conf whose servers a machine can reach: none on the loopback.

    Args:
        candidates: (path, content).

    Raises:
        ConfigError: There is none.
    """
    for _, text in candidates:
        servers = re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
        usable = [each for each in servers if not each.startswith("127.") and each != "::1"]
        if usable:
            kept = [
                line
                for line in text.splitlines()
                if re.match(r"\s*(search|domain|options)\s", line)
            ]
            return "\n".join([*(f"nameserver {each}" for each in usable), *kept]) + "\n"
    raise ConfigError(
        "this host has no name server that a machine could ask",
        expected=f"a nameserver off the loopback in one of {', '.join(path for path, _ in candidates)}",
        do="add one to /etc/resolv.conf of this host",
    )


def host_resolver() -> str:
    """Return the resolv.conf for machines on this host.

    Raises:
        ConfigError: The host has no usable name server.
    """
    files = (
        Path("/etc/resolv.conf"),
        Path("/run/systemd/resolve/resolv.conf"),
        Path("/run/NetworkManager/no-stub-resolv.conf"),
    )
    return resolver_text([(str(file), file.read_text()) for file in files if file.is_file()])


def mount_root(identity: LabIdentity, spec: MachineSpec) -> None:
    """Mount a machine's file system: the image below, what it writes above.

    Raises:
        RemoteCommandError: It could not be mounted.
    """
    paths = identity.paths(spec.node)
    for folder in (paths.upper, paths.work, paths.root):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if any(mount.point == paths.root.resolve() for mount in mounts.below(paths.root)):
        return
    options = f"lowerdir={spec.image},upperdir={paths.upper},workdir={paths.work}"
    host.run(
        ["mount", "-t", "overlay", identity.machine(spec.node), "-o", options, str(paths.root)],
        f"mounting the file system of {spec.node}",
    )


def fill_root(paths: MachinePaths, spec: MachineSpec, public_key: str, resolver: str) -> None:
    """Write into a mounted file system what makes it this machine.

    Host key, machine id and trust in the host's certificates are made once; the rest is written at every start.

    Args:
        paths: Of the machine.
        spec: Of the machine.
        public_key: The admin user's only authorized key.
        resolver: Text of its resolv.conf.

    Raises:
        RemoteCommandError: A program failed.
    """
    etc = paths.root / "etc"
    _put(etc / "hostname", spec.node + "\n")
    _put(etc / "hosts", hosts_text(spec.subnet, spec.nodes))
    _put(etc / "resolv.conf", resolver)
    _put(etc / "systemd/network/10-labctl.network", network_text(spec))
    home = paths.root / "home" / ADMIN
    owner = home.stat()
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    _put(ssh / "authorized_keys", public_key, mode=0o600)
    for each in (ssh, ssh / "authorized_keys"):
        os.chown(each, owner.st_uid, owner.st_gid)
    (paths.root / UV_CACHE.lstrip("/")).mkdir(mode=0o755, parents=True, exist_ok=True)
    if paths.complete.exists():
        return
    _put(etc / "machine-id", secrets.token_hex(16) + "\n", mode=0o444)
    key = etc / "ssh/ssh_host_ed25519_key"
    for old in (key, key.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    host.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"root@{spec.node}", "-f", str(key)],
        f"making the SSH host key of {spec.node}",
    )
    _trust_host_certificates(paths.root)
    paths.complete.touch()


def host_key(paths: MachinePaths) -> str:
    """Return the public host key of a machine: type and base64."""
    text = (paths.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    return " ".join(text.split()[:2])


def _trust_host_certificates(root: Path) -> None:
    """Make a machine trust what this host trusts, also after its next update-ca-certificates."""
    local = sorted(_LOCAL_CAS.rglob("*.crt")) if _LOCAL_CAS.is_dir() else []
    if local:
        shutil.copytree(_LOCAL_CAS, root / "usr/local/share/ca-certificates", dirs_exist_ok=True)
        host.run(
            ["chroot", str(root), "update-ca-certificates"], "adding certificates", timeout_s=120
        )
    if _HOST_CA.is_file():
        target = root / "etc/ssl/certs/ca-certificates.crt"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_HOST_CA, target)


def _put(file: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file anew; a link in its place is replaced, not followed out of the machine's file system."""
    if file.is_symlink():
        file.unlink()
    fresh = file.with_name(file.name + ".labctl-new")
    fresh.unlink(missing_ok=True)
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(file)


def ensure_nspawn_dir() -> None:
    """Put a tmpfs on /run/systemd/nspawn where /run is a disk, as systemd-nspawn refuses to run there."""
    _NSPAWN_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    covering = [mount for mount in mounts.mounts() if _NSPAWN_DIR.is_relative_to(mount.point)]
    if max(covering, key=lambda mount: len(mount.point.parts)).fstype != "tmpfs":
        host.run(
            ["mount", "-t", "tmpfs", "-o", "mode=0755", _NSPAWN_SOURCE, str(_NSPAWN_DIR)],
            "mounting a tmpfs for systemd-nspawn",
        )


def remove_nspawn_dir() -> bool:
    """Unmount the tmpfs if it is labctl's and no container runs on this host; returns whether it did."""
    ours = [
        mount
        for mount in mounts.mounts()
        if mount.point == _NSPAWN_DIR and mount.source == _NSPAWN_SOURCE
    ]
    if not ours or find_processes(NSPAWN):
        return False
    return all(host.try_run(["umount", str(_NSPAWN_DIR)]).ok for _ in ours)


def processes(identity: LabIdentity, node: str) -> tuple[Daemon, ...]:
    """Return the systemd-nspawn process of a machine; empty when it does not run."""
    word = f"--machine={identity.machine(node)}"
    return tuple(daemon for daemon, words in find_processes(NSPAWN) if word in words)


def running_nodes(identity: LabIdentity) -> set[str]:
    """Return the names of all machines of a lab that run."""
    prefix = f"--machine={identity.machine('')}"
    return {
        word.removeprefix(prefix)
        for _, words in find_processes(NSPAWN)
        for word in words
        if word.startswith(prefix)
    }


def start(identity: LabIdentity, spec: MachineSpec, groups: tuple[Path, ...]) -> Daemon:
    """Start a machine whose file system is mounted and filled.

    Raises:
        RemoteCommandError: systemd-nspawn ended at once.
    """
    paths = identity.paths(spec.node)
    identity.uv_cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    return start_daemon(
        nspawn_argv(identity, spec),
        log=paths.console,
        env=nspawn_env(),
        groups=groups,
    )


def stop(identity: LabIdentity, node: str, cgroup: LabCgroup, *, orderly: bool = True) -> bool:
    """Power a machine off, or kill it when that takes too long; returns whether nothing of it runs any more."""
    found = processes(identity, node)
    if orderly:
        for daemon in found:
            daemon.signal(signal.SIGTERM)  # systemd-nspawn asks the machine's systemd to power off
        for daemon in found:
            daemon.wait(STOP_TIMEOUT_S)
    for daemon in found:
        daemon.signal(signal.SIGKILL)
    gone = [daemon.wait(STOP_TIMEOUT_S) for daemon in found]
    return cgroup.kill(node) and all(gone)


def console_tail(paths: MachinePaths, lines: int = 12) -> list[str]:
    """Return the last lines of a machine's console, without terminal codes."""
    try:
        text = paths.console.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return []
    plain = [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()]
    return [line for line in plain if line][-lines:]


def failed_to_start(identity: LabIdentity, node: str, why: str) -> RemoteCommandError:
    """Return the error for a machine that does not come up, with the end of its console."""
    paths = identity.paths(node)
    tail = "\n".join(f"    {line}" for line in console_tail(paths)) or "    (nothing)"
    return RemoteCommandError(
        f"{node} did not come up: {why}; its console ends with\n{tail}",
        do=f"read {paths.console}, then labctl up again",
    )
