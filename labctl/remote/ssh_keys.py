"""Which private keys to offer to a host, and why one cannot be used."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.pkey import UnknownKeyType

from labctl.remote.known_hosts import fingerprint

if TYPE_CHECKING:
    from labctl.remote.ssh_config import Hop

_AGENT_S = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A key that can be offered.

    Attributes:
        label: Where it is from, with its fingerprint.
        key: The key; it signs by itself or through the agent.
    """

    label: str
    key: paramiko.PKey


class _Agent(AgentSSH):
    """An agent at any socket."""

    def open(self, path: str) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(_AGENT_S)
            link.connect(path)
            self._connect(link)  # type: ignore[attr-defined]
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


class Identities:
    """The keys for one connection, in the order in which they are offered.

    Args:
        hop: The connection.

    Attributes:
        offered: Keys that can be used.
        problems: One line, path and cause, for each key that cannot be.
    """

    def __init__(self, hop: Hop) -> None:
        self.offered: list[Identity] = []
        self.problems: list[str] = []
        self._agent = _Agent()
        held = self._agent_keys(hop.agent)
        for path in hop.key_files:
            self._add_file(path, held, named=path in hop.named_keys)
        if not hop.identities_only:
            self.offered += [Identity(_label("agent key", each), each) for each in held.values()]

    def close(self) -> None:
        """Leave the agent."""
        self._agent.close()

    def _agent_keys(self, path: str | None) -> dict[bytes, paramiko.PKey]:
        if path is None:
            return {}
        try:
            self._agent.open(path)
        except (OSError, paramiko.SSHException) as error:
            self.problems.append(f"the SSH agent at {path} does not answer ({error})")
            return {}
        return {each.asbytes(): each for each in self._agent.get_keys()}

    def _add_file(self, path: Path, held: dict[bytes, paramiko.PKey], *, named: bool) -> None:
        public = _public_blob(path)
        if public in held:
            key = held.pop(public)
            self.offered.append(Identity(_label(f"{path} by the agent", key), key))
            return
        loaded = load_key(path)
        if isinstance(loaded, paramiko.PKey):
            held.pop(loaded.asbytes(), None)
            self.offered.append(Identity(_label(str(path), loaded), loaded))
        elif named or path.exists():
            self.problems.append(f"{path}: {loaded}")


def _label(text: str, key: paramiko.PKey) -> str:
    return f"{text} ({fingerprint(key.asbytes())})"


def _public_blob(path: Path) -> bytes | None:
    """Return the public half of a key file: of itself if it is public, else of the `.pub` beside it."""
    for each in (path, path.with_name(f"{path.name}.pub")):
        try:
            words = each.read_bytes()[:16384].split()
        except OSError:
            continue
        if len(words) >= 2 and words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
            try:
                return base64.b64decode(words[1], validate=True)
            except (ValueError, binascii.Error):
                continue
    return None


def load_key(path: Path) -> paramiko.PKey | str:
    """Return the private key of a file, or in a few words why there is none."""
    try:
        info = path.stat()
        head = path.read_bytes()[:64]
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return error.strerror or str(error)
    if head.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        return f"a public key; give the private one ({path.name.removesuffix('.pub')})"
    if info.st_uid == os.getuid() and info.st_mode & 0o077:
        return f"others may read it (mode {info.st_mode & 0o777:04o}), so OpenSSH refuses it: chmod 600 {path}"
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        return f"encrypted, and labctl never asks for a passphrase: ssh-add {path}"
    except (UnknownKeyType, UnsupportedAlgorithm):
        return "a type of key that only an agent can use: ssh-add it"
    except (ValueError, UnicodeDecodeError, paramiko.SSHException):
        return "not a private key that OpenSSH would read"
