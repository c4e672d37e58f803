"""A machine's file system: an image below, its own writes above, and the files that make it this machine."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from ipaddress import IPv4Network
from pathlib import Path

from labctl.errors import ConfigError
from labctl.providers import host, mounts
from labctl.providers.identity import LabIdentity, MachinePaths, node_name
from labctl.providers.image import ADMIN
from labctl.providers.machine import UV_CACHE, MachineSpec
from labctl.providers.network import host_address, node_address

_HOST_CA = Path("/etc/ssl/certs/ca-certificates.crt")
_LOCAL_CAS = Path("/usr/local/share/ca-certificates")


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
    """Return the first resolv.conf with servers that a machine can reach: IPv4, not on the loopback.

    Args:
        candidates: (path, content).

    Raises:
        ConfigError: There is none.
    """
    for _, text in candidates:
        servers = re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
        usable = [each for each in servers if ":" not in each and not each.startswith("127.")]
        if usable:
            kept = [
                line
                for line in text.splitlines()
                if re.match(r"\s*(search|domain|options)\s", line)
            ]
            return "\n".join([*(f"nameserver {each}" for each in usable), *kept]) + "\n"
    raise ConfigError(
        "this host has no name server that a machine could ask",
        expected=f"an IPv4 nameserver off the loopback in one of {', '.join(path for path, _ in candidates)}",
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
    argv = ["mount", "-t", "overlay", identity.machine(spec.node), "-o", options, str(paths.root)]
    host.try_run(argv).check(
        host.HERE,
        f"mounting the file system of {spec.node}",
        do="set LABCTL_STATE_DIR to a directory on a disk of this host (ext4, xfs, btrfs)",
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
    key = etc / "ssh/ssh_host_ed25519_key"
    if paths.complete.exists() and key.with_suffix(".pub").exists():
        return
    _put(etc / "machine-id", secrets.token_hex(16) + "\n", mode=0o444)
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
