"""Starts the stand-in, and runs commands that take it for Compute Engine.

The modules have the API's address fixed in their code. So a command runs in a mount namespace of its own, in
which `/etc/hosts` leads the API's names to the stand-in on a loopback address. That needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import CHECKOUT
from tests.fakes.gcp.__main__ import NAMES

PROJECT = "labctl-test"
_START_TIMEOUT_S = 30.0


def why_not() -> str:
    """Return why the stand-in cannot be reached on this machine, "" when it can."""
    if os.geteuid() != 0:
        return "port 443 and a mount namespace need root"
    missing = [each for each in ("unshare", "mount") if shutil.which(each) is None]
    if missing:
        return f"{', '.join(missing)} missing"
    probe = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, timeout=30, check=False
    )
    return f"no mount namespace: {probe.stderr.strip()}" if probe.returncode != 0 else ""


@dataclass(frozen=True)
class Gcp:
    """A running stand-in.

    Attributes:
        folder: Certificates and the hosts file.
        address: Where it listens, port 443.
        token: The access token that it takes.
    """

    folder: Path
    address: str
    token: str

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs argv where the API's names lead to the stand-in."""
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        inside = ["sh", "-c", script, str(self.folder / "hosts"), *argv]
        return ["unshare", "--mount", "--propagation", "private", "--", *inside]

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables under which a command trusts the stand-in and is let in."""
        kept = dict(os.environ if base is None else base)
        for name in list(kept):
            if name.startswith(("GCP_", "GOOGLE_", "CLOUDSDK_")) or name.lower().endswith("_proxy"):
                del kept[name]
        return {
            **kept,
            "GCP_AUTH_KIND": "accesstoken",
            "GCP_ACCESS_TOKEN": self.token,
            "REQUESTS_CA_BUNDLE": str(self.folder / "ca.pem"),
            "SSL_CERT_FILE": str(self.folder / "ca.pem"),
        }

    def order(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Give the stand-in an order of the test, e.g. `POST /stand-in/faults`."""
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        context.check_hostname = False  # asked by its address
        request = urllib.request.Request(
            f"https://{self.address}{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)

    def fault(self, kind: str, **more: Any) -> None:
        """Let calls go wrong; see `faults.Fault`."""
        self.order("POST", "/stand-in/faults", {"kind": kind, **more})

    def resources(self, collection: str = "") -> list[dict[str, Any]]:
        """Return what the stand-in holds, of one collection or all."""
        held = self.order("GET", "/stand-in/state")["resources"]
        return [each["resource"] for each in held if collection in {"", each["collection"]}]

    def calls(self) -> list[tuple[str, str, int]]:
        """Return (method, path, status) of all calls so far."""
        made = self.order("GET", "/stand-in/state")["calls"]
        return [(str(method), str(path), int(status)) for method, path, status in made]

    def machines(self) -> dict[str, dict[str, Any]]:
        """Return the instances by node, each with State and PrivateIpAddress as EC2 has them."""
        return {
            each["labels"]["labctl-node"]: {
                "State": {"Name": each["status"].lower()},
                "PrivateIpAddress": each["networkInterfaces"][0]["networkIP"],
            }
            for each in self.resources("instances")
        }

    def user_data(self, node: str) -> str:
        """Return what cloud-init of a node would read."""
        found = next(
            each for each in self.resources("instances") if each["labels"]["labctl-node"] == node
        )
        items = found["metadata"]["items"]
        return next(str(each["value"]) for each in items if each["key"] == "user-data")


@contextlib.contextmanager
def running(*, operation_s: float = 0.2) -> Iterator[Gcp]:
    """Start the stand-in on a loopback address of its own, and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="labctl-gcp-") as scratch:
        folder = Path(scratch)
        address = _free_address()
        token = f"token-{secrets.token_hex(16)}"
        known = Path("/etc/hosts").read_text(encoding="utf-8", errors="replace")
        (folder / "hosts").write_text(f"{address} {' '.join(NAMES)}\n{known}", encoding="utf-8")
        argv = [sys.executable, "-m", "tests.fakes.gcp", str(folder), address]
        argv += ["--project", PROJECT, "--operation-s", str(operation_s)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=CHECKOUT,
                env={**os.environ, "STAND_IN_TOKEN": token},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _await(folder / "ready", process, folder / "log")
            yield Gcp(folder, address, token)
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)


def _await(ready: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the stand-in did not start: {log.read_text(errors='replace')}")
        time.sleep(0.05)


def _free_address() -> str:
    """Return a loopback address on which nothing listens at port 443."""
    for _ in range(50):
        low, middle, high = (secrets.randbelow(200) + 20 for _ in range(3))
        address = f"127.{low}.{middle}.{high}"
        with socket.socket() as probe:
            try:
                probe.bind((address, 443))
            except OSError:
                continue
            return address
    raise RuntimeError("no loopback address has port 443 free")
