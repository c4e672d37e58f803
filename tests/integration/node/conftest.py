"""The payload run for real: join servers and clients as processes of this machine, on 127.0.0.1."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.node.bundle import payload_bytes
from labctl.node.ports import free_local_ports
from labctl.node.wire import EVENTS_FILE, RunPlan, spec_text

DEADLINE_S = 120.0  # for what takes seconds on an idle machine
# Each of these alone makes a peer unreachable for gRPC; the payload must not care.
PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")


@dataclass(frozen=True)
class Finished:
    """A client that has ended.

    Attributes:
        status: Exit status, negative for a signal.
        events: Its events, in order; those of its own join servers are among them.
        stdout: All bytes.
        stderr: All bytes.
        directory: Its run directory.
    """

    status: int
    events: list[dict[str, Any]]
    stdout: bytes
    stderr: bytes
    directory: Path

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        found = self.of(kind)
        assert len(found) == 1, (kind, self.events, self.stderr[-3000:])
        return found[0]

    @property
    def phases(self) -> list[str]:
        """Phases of the client, in the order in which they began."""
        return [each["phase"] for each in self.of("phase_begin") if each["source"] == "client"]


@dataclass
class Running:
    """A started client.

    Attributes:
        process: The client.
        directory: Its run directory.
    """

    process: subprocess.Popen[bytes]
    directory: Path

    def events(self) -> list[dict[str, Any]]:
        path = self.directory / EVENTS_FILE
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def until(self, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the events so far meet a condition."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition(self.events()):
            assert self.process.poll() is None, (self.events(), self._stream("stderr")[-3000:])
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.05)

    def until_file(self, name: str) -> None:
        """Wait until the client's script has made a file in its run directory."""
        self.until(lambda _: (self.directory / name).exists())

    def finish(self, within_s: float = DEADLINE_S) -> Finished:
        status = self.process.wait(within_s)
        streams = self._stream("stdout"), self._stream("stderr")
        return Finished(status, self.events(), *streams, self.directory)

    def _stream(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()


@dataclass
class Nodes:
    """Starts the payload and ends what it started.

    Attributes:
        root: Where the payload and the run directories are.
        payload: The payload's zip file.
        started: All processes so far.
    """

    root: Path
    payload: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    runs: int = 0

    def addresses(self, tasks: int) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in free_local_ports(tasks))

    def spec_file(self, addresses: tuple[str, ...]) -> Path:
        path = self.root / f"{addresses[0].rpartition(':')[2]}.json"
        path.write_text(spec_text(addresses) + "\n")
        return path

    def serve(
        self, spec: Path, task: int, *more: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a join server; its events are its standard output."""
        process = subprocess.Popen(
            [sys.executable, str(self.payload), "serve", "--spec", str(spec), "--task", str(task), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.started.append(process)
        return process

    def ready_server(self, spec: Path, task: int, **environment: str) -> subprocess.Popen[bytes]:
        process = self.serve(spec, task, **environment)
        await_event(process, "ready")
        return process

    def start(
        self, plan: RunPlan, files: dict[str, str] | None = None, **environment: str
    ) -> Running:
        """Start a client in a new run directory."""
        self.runs += 1
        directory = self.root / f"run{self.runs}"
        directory.mkdir()
        (directory / "plan.json").write_text(plan.to_json())
        for name, text in (files or {}).items():
            (directory / name).write_text(text)
        with (directory / "stdout").open("wb") as out, (directory / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, str(self.payload), "client", "--plan", "plan.json"],
                cwd=directory,
                stdout=out,
                stderr=err,
                env={**os.environ, **environment},
            )
        self.started.append(process)
        return Running(process, directory)

    def client(
        self, plan: RunPlan, files: dict[str, str] | None = None, **environment: str
    ) -> Finished:
        return self.start(plan, files, **environment).finish()

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def await_event(process: subprocess.Popen[bytes], kind: str) -> dict[str, Any]:
    """Read a join server's events up to one of a kind."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == kind:
            return event
    raise AssertionError(f"ended with {process.wait()} before {kind!r}")


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed: pip install 'labctl[loopback]'")
    root = tmp_path_factory.mktemp("nodes")
    payload = root / "payload.pyz"
    payload.write_bytes(payload_bytes())
    started = Nodes(root, payload)
    yield started
    started.end()


@pytest.fixture(scope="session")
def cluster(nodes: Nodes) -> tuple[str, ...]:
    """Three tasks, the join servers of two of them running, with proxies in their environment."""
    addresses = nodes.addresses(3)
    spec = nodes.spec_file(addresses)
    servers = [nodes.serve(spec, task, **PROXIES) for task in (1, 2)]
    for server in servers:
        await_event(server, "ready")
    return addresses
