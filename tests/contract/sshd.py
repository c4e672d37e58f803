"""A private OpenSSH server on 127.0.0.1 for tests: own keys, own port, own log; nothing of the system's."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from labctl.lab.model import SshTarget

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def keygen(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair and return the private file."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)],
        check=True,
    )
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Sshd:
    """One server. Its client's view is `target()`: no file of the user's own ssh takes part."""

    folder: Path
    extra: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        if SSHD is None:
            pytest.skip("not installed: sshd (make host-packages)")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keygen(self.folder / "host_key")
        keygen(self.folder / "id")
        shutil.copy(self.folder / "id.pub", self.folder / "authorized_keys")
        (self.folder / "sshd_config").write_text(
            "\n".join(
                [
                    *self.extra,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.folder}/host_key",
                    f"AuthorizedKeysFile {self.folder}/authorized_keys",
                    f"PidFile {self.folder}/pid",
                    "StrictModes no",
                    "UsePAM no",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "Subsystem sftp internal-sftp",
                    "",
                ]
            )
        )
        (self.folder / "ssh_config").write_text("")
        self.record_key()

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        return self.folder / "id"

    def record_key(self) -> None:
        kind, blob, _ = (self.folder / "host_key.pub").read_text().split()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {blob}\n")

    def renew_host_key(self) -> None:
        (self.folder / "host_key").unlink()
        (self.folder / "host_key.pub").unlink()
        keygen(self.folder / "host_key")

    def start(self, *, wait: bool = True) -> Sshd:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 20
        while wait:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                break
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)
        return self

    def children(self) -> list[int]:
        """Processes of the server's connections, the server itself left out."""
        assert self.process is not None
        found, layer = [], [self.process.pid]
        while layer:
            layer = [pid for parent in layer for pid in _children(parent)]
            found += layer
        return [pid for pid in found if b"sshd" in _cmdline(pid)]

    def stop(self) -> None:
        if self.process is None:
            return
        for pid in [*self.children(), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def target(self, *, key: Path | None = None, options: tuple[str, ...] = ()) -> SshTarget:
        return SshTarget(
            host="127.0.0.1",
            user=getpass.getuser(),
            port=self.port,
            key_file=key or self.key,
            options=(
                "-F",
                str(self.folder / "ssh_config"),
                "-o",
                f"UserKnownHostsFile={self.known_hosts}",
                "-o",
                "GlobalKnownHostsFile=/dev/null",
                "-o",
                "IdentityAgent=none",
                *options,
            ),
        )

    def ssh_config(self, alias: str, *lines: str) -> str:
        """Return a Host block that reaches this server under another name."""
        settings = [
            f"Host {alias}",
            "HostName 127.0.0.1",
            f"Port {self.port}",
            f"User {getpass.getuser()}",
            f"IdentityFile {shlex.quote(str(self.key))}",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null",
            *lines,
        ]
        return "\n    ".join(settings) + "\n"


@contextlib.contextmanager
def running_sshd(folder: Path, *extra: str) -> Iterator[Sshd]:
    server = Sshd(folder, extra).start()
    try:
        yield server
    finally:
        server.stop()


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
