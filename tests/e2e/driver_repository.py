"""A signed repository of made-up packages under the driver's names, served over HTTP with chosen faults."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

SMI = """#!/bin/sh
# Answers as the driver's own tool does, as far as the role asks.
[ "$1" = --query-gpu=driver_version ] || exit 64
if [ -e /etc/test-driver-mismatch ]; then
    echo "Failed to initialize NVML: Driver/library version mismatch"
    exit 18
fi
echo VERSION
"""
PERSISTENCED = """[Unit]
Description=Stands for nvidia-persistenced

[Service]
ExecStart=/bin/sleep infinity
"""


@dataclass(frozen=True)
class Package:
    """A package with no content but what the role looks at.

    Attributes:
        name: Of it.
        version: Of it.
        depends: As control files write it.
        files: Path to text, executable where it starts with `#!`.
    """

    name: str
    version: str
    depends: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


def driver(version: str) -> list[Package]:
    """Return the packages of one driver version, as Debian splits them."""
    upstream = version.partition("-")[0]
    smi = SMI.replace("VERSION", upstream)
    return [
        Package("libcuda1", version, f"libnvidia-ml1 (= {version})"),
        Package("libnvidia-ml1", version),
        Package("nvidia-smi", version, f"libnvidia-ml1 (= {version})", {"usr/bin/nvidia-smi": smi}),
        Package("nvidia-kernel-dkms", version),
        Package("nvidia-open-kernel-dkms", version),
    ]


def support() -> list[Package]:
    """Return what has no branch of its own."""
    unit = {"lib/systemd/system/nvidia-persistenced.service": PERSISTENCED}
    return [Package("nvidia-persistenced", "535.171.04-1", files=unit)]


class Repository:
    """A flat repository in a directory.

    Attributes:
        root: What is served.
        key: Its public key, ASCII-armoured.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self._work = folder
        self.root.mkdir(parents=True)
        self.key = ""
        self.rotate_key()

    def rotate_key(self) -> None:
        """Take a new key; what is published from now on is signed with it."""
        self._home = self._work / f"gnupg{len(list(self._work.glob('gnupg*')))}"
        self._home.mkdir(mode=0o700)
        self._gpg("--quick-generate-key", "--passphrase", "", "driver@example.invalid", "rsa2048")
        self.key = self._gpg("--armor", "--export").decode()

    def publish(self, packages: list[Package]) -> None:
        """Build the packages, and write a signed index of them alone."""
        for old in self.root.glob("*"):
            old.unlink()
        rows = [self._build(package) for package in packages]
        index = "\n".join(rows).encode()
        (self.root / "Packages").write_bytes(index)
        (self.root / "Packages.gz").write_bytes(gzip.compress(index, mtime=0))
        sums = "".join(
            f" {hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_size} {path.name}\n"
            for path in (self.root / "Packages", self.root / "Packages.gz")
        )
        (self._work / "Release").write_text(
            f"Origin: test\nLabel: test\nDate: {formatdate(usegmt=True)}\nSHA256:\n{sums}"
        )
        signed = self._gpg("--clearsign", "--output", "-", str(self._work / "Release"))
        (self.root / "InRelease").write_bytes(signed)

    def _build(self, package: Package) -> str:
        """Build one package and return its paragraph of the index."""
        tree = self._work / "tree" / f"{package.name}_{package.version}"
        control = (
            f"Package: {package.name}\nVersion: {package.version}\nArchitecture: all\n"
            "Maintainer: test <driver@example.invalid>\n"
            + (f"Depends: {package.depends}\n" if package.depends else "")
            + "Description: made-up package of a test\n"
        )
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        (tree / "DEBIAN/control").write_text(control)
        for name, text in package.files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if text.startswith("#!") else 0o644)
        target = self.root / f"{tree.name}_all.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(target)],
            check=True,
            capture_output=True,
        )
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        return (
            f"{control}Filename: ./{target.name}\nSize: {target.stat().st_size}\nSHA256: {digest}\n"
        )

    def _gpg(self, *argv: str) -> bytes:
        """Run gpg, and end the agent that it leaves behind."""
        try:
            return subprocess.run(
                ["gpg", "--homedir", str(self._home), "--batch", "--quiet", *argv],
                check=True,
                capture_output=True,
            ).stdout
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", str(self._home), "--kill", "gpg-agent"],
                check=True,
                capture_output=True,
            )


@dataclass
class Server:
    """The repository on the network.

    Attributes:
        uri: With a trailing slash.
        requests: How often each name was asked for.
        cut: Name of a file to how many of its next answers end in other bytes than the index says.
        gone: Every answer is 503.
    """

    uri: str
    requests: Counter[str] = field(default_factory=Counter)
    cut: dict[str, int] = field(default_factory=dict)
    gone: bool = False


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: object, server_state: Server, directory: str) -> None:
        self._state = server_state
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = self.path.strip("/").removeprefix("./")
        self._state.requests[name] += 1
        path = Path(self.directory) / name
        if self._state.gone:
            self.send_error(503)
        elif self._state.cut.get(name, 0) > 0 and path.is_file():
            self._state.cut[name] -= 1
            content = path.read_bytes() + b"more than the index says"
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(repository: Repository, address: str) -> Iterator[Server]:
    """Serve a repository on an address of this machine, at a port that is free."""
    state = Server("")
    handler = functools.partial(_Handler, server_state=state, directory=str(repository.root))
    with http.server.ThreadingHTTPServer((address, 0), handler) as server:
        state.uri = f"http://{address}:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
