"""Known host keys, read as OpenSSH reads them, and the refusal of any other key."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from labctl.errors import HostKeyError

_SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file.

    Attributes:
        file: The file.
        line: Number of the line, from 1.
        revoked: The line forbids the key.
        names: Host patterns, comma separated, or a hash of a name.
        kind: Type of the key, e.g. `ssh-ed25519`.
        blob: The public key.
    """

    file: Path
    line: int
    revoked: bool
    names: str
    kind: str
    blob: bytes

    def is_for(self, name: str) -> bool:
        """Say whether the line is about a host, given as `host` or `[host]:port`."""
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        patterns = self.names.lower().split(",")
        # OpenSSH knows * and ? only; fnmatch would take [host] for a set of letters.
        escaped = [each.replace("[", "[[]") for each in patterns]
        refused = any(fnmatchcase(name, each[1:]) for each in escaped if each.startswith("!"))
        return not refused and any(fnmatchcase(name, each) for each in escaped)


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(each) for each in hashed[3:].split("|"))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def fingerprint(blob: bytes) -> str:
    """Return a public key's fingerprint as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_known_hosts(path: Path) -> list[KnownKey]:
    """Return a file's usable lines; one that is malformed or about an authority is passed over.

    A missing file has none.

    Raises:
        HostKeyError: The file may not be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise HostKeyError(f"{path}: {error.strerror}", do=f"chmod u+r {path}") from error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in {"", "@revoked"}:
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (ValueError, binascii.Error):
            continue
        kind = words[1].encode()
        if blob[4 : 4 + int.from_bytes(blob[:4], "big")] == kind:
            found.append(KnownKey(path, number, bool(marker), words[0], words[1], blob))
    return found


class KnownHosts:
    """What is known of one host.

    Args:
        files: known_hosts files, in order.
        host: Host name or address, or its HostKeyAlias.
        port: Port, None with an alias.
    """

    def __init__(self, files: Sequence[Path], host: str, port: int | None) -> None:
        self.files = tuple(dict.fromkeys(files))
        host = host.lower()
        self.name = host if port in {None, _SSH_PORT} else f"[{host}]:{port}"
        lines = [each for file in self.files for each in read_known_hosts(file)]
        self._known = [each for each in lines if each.is_for(self.name)]
        # As OpenSSH does: a key recorded without the port is good enough, if it is the same key.
        self._bare = [each for each in lines if self.name != host and each.is_for(host)]

    def kinds(self) -> list[str]:
        """Return the types of the keys known, to be asked for first."""
        usable = [each for each in (*self._known, *self._bare) if not each.revoked]
        return list(dict.fromkeys(each.kind for each in usable))

    def check(self, kind: str, blob: bytes, *, node: str, login: str) -> None:
        """Accept a host's key.

        Args:
            kind: Its type.
            blob: The public key.
            node: The node, for messages.
            login: `ssh` command that connects to it, for messages.

        Raises:
            HostKeyError: It is unknown, another than before, or revoked.
        """
        given = f"{_short(kind)} {fingerprint(blob)}"
        for each in (*self._known, *self._bare):
            if each.revoked and each.blob == blob:
                raise HostKeyError(
                    f"the host key of {node} ({self.name}), {given}, is revoked "
                    f"by {each.file}:{each.line}",
                    do="find out who runs that machine; do not connect to it",
                )
        if any(each.blob == blob for each in (*self._known, *self._bare) if not each.revoked):
            return
        others = [each for each in self._known if not each.revoked]
        same = [each for each in others if each.kind == kind]
        if same:
            old = same[0]
            name = f"'{self.name}'" if re.search(r"[\[\]*?]", self.name) else self.name
            raise HostKeyError(
                f"the host key of {node} ({self.name}) has changed: it is now {given}",
                expected=f"{_short(old.kind)} {fingerprint(old.blob)}, as {old.file}:{old.line} says",
                do="if the machine was made anew, forget its old key and connect again: "
                f"ssh-keygen -f {old.file} -R {name}",
            )
        known = f" (known: {', '.join(_short(each.kind) for each in others)})" if others else ""
        raise HostKeyError(
            f"the host key of {node} ({self.name}) is not known: {given}{known}",
            expected=f"a line for it in {' or '.join(str(each) for each in self.files[:2]) or '(none)'}",
            do="compare it with: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub on the machine; "
            f"then record it by connecting once: {login}",
        )


def _short(kind: str) -> str:
    """Return a key type as ssh-keygen names it."""
    if kind.startswith("ecdsa-"):
        return "ECDSA"
    return kind.removeprefix("ssh-").upper()
