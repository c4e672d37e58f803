"""SSH keys and pinned host keys of a rehearsal lab, in `.lab/<lab>`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path

from labctl.providers import host

KEY = "id_ed25519"
KNOWN_HOSTS = "known_hosts"
FILES = (KEY, f"{KEY}.pub", KNOWN_HOSTS)


def ensure_key(folder: Path, comment: str) -> str:
    """Return the lab's public key, made with its private one if either is missing.

    Raises:
        RemoteCommandError: ssh-keygen failed.
    """
    key, public = folder / KEY, folder / f"{KEY}.pub"
    if not (key.is_file() and public.is_file()):
        key.unlink(missing_ok=True)
        public.unlink(missing_ok=True)
        host.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)],
            "making the lab's SSH key",
        )
    key.chmod(0o600)
    return public.read_text()


def known_hosts_text(keys: Iterable[tuple[IPv4Address, str]]) -> str:
    """Return a known_hosts file of (address, "type base64") pairs."""
    return "".join(f"{address} {key}\n" for address, key in keys)


def ssh_options(folder: Path) -> tuple[str, ...]:
    """Return the `ssh` options that hold for every machine of a lab."""
    return (
        "-o",
        f"UserKnownHostsFile={folder / KNOWN_HOSTS}",
        "-o",
        "GlobalKnownHostsFile=/dev/null",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "IdentitiesOnly=yes",
    )


def login_argv(folder: Path, user: str, address: IPv4Address, command: list[str]) -> list[str]:
    """Return the `ssh` command line that runs a command on a machine, nobody's own configuration in between."""
    return [
        "ssh",
        "-F",
        "none",
        "-i",
        str(folder / KEY),
        *ssh_options(folder),
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=5",
        f"{user}@{address}",
        "--",
        *command,
    ]


def write_private(file: Path, text: str) -> None:
    """Write a file with mode 0600, atomically."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    fresh.replace(file)
