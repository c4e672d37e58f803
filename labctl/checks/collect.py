"""Finds out all that the judges need: one facts probe on each node, then one of ports, all nodes at once."""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.checks.facts import (
    Contact,
    ListenerFacts,
    NodeFacts,
    Observed,
    ReachFacts,
)
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.parse import answer_of, listener_facts, node_facts, reach_facts
from labctl.checks.reader import FactsError
from labctl.errors import LabctlError
from labctl.lab.home import Home
from labctl.lab.model import Lab, Node
from labctl.remote.base import Executor
from labctl.remote.clock import Offset, clock_offset

SERVER_UNIT = "tf-join-server.service"
CLIENT_UNIT = "labctl-run.service"
FIREWALL_UNIT = "lab-firewall.service"
CLIENT_USER = "labctl"
SERVER_USER = "tf-join"
SPEC_FILE = "/etc/tf-join-server/cluster.json"
CUDA_ENVIRONMENT = "/etc/labctl/cuda.env"  # shared by join server, client and checks
DATA_DIR = "/var/lib/labctl"
RUNS_DIR = "/var/lib/labctl/runs"
TEMP_DIR = "/tmp"  # noqa: S108 a path on the nodes, looked at only

NODE_PYTHON = "/usr/bin/python3"
LIBRARIES_FILE = "roles/cuda/files/open_libraries.py"

REACH_S = 3.0
OUTSIDE_S = 2.0
LISTEN_S = 20
CLOCK_SAMPLES = 8
_CONTACT_S = 15.0
_PROBE_S = 18.0
_GPU_PROBE_S = 120.0  # a driver that wakes many GPUs takes tens of seconds
_MARGIN_S = 3.0
_MAX_ANSWER = 4 << 20

# Starts a probe: standard input is one JSON object with its text and what is asked of it.
BOOT = (
    "import json, sys; message = json.load(sys.stdin); space = {'__name__': 'labctl_probe'}; "
    "exec(compile(message['source'], 'labctl_probe', 'exec'), space); space['main'](message)"
)


def probe(
    executor: Executor,
    name: str,
    request: Mapping[str, Any],
    *,
    python: str,
    sudo: bool = False,
    within: Sequence[str] = (),
    parts: Sequence[str] = (),
    timeout_s: float = _PROBE_S,
) -> object:
    """Run a probe on a node and return its answer, not yet checked.

    Args:
        executor: The node.
        name: Module of the probe in this package.
        request: What is asked of it.
        python: Interpreter on the node.
        sudo: Run it as root.
        within: Command, with its arguments, that the interpreter is started by.
        parts: Further modules of this package that the probe loads, by name.
        timeout_s: Deadline in seconds.

    Raises:
        FactsError: It ended badly or printed no JSON.
        LabctlError: The executor's own errors.
    """
    message = {"source": _source(name), "boot": BOOT, "request": dict(request)}
    if parts:
        message["parts"] = {each: _source(each) for each in parts}
    result = executor.run(
        [*within, python, "-I", "-c", BOOT],
        timeout_s=timeout_s,
        input=json.dumps(message).encode(),
        sudo=sudo,
        max_output=_MAX_ANSWER,
    )
    return answer_of(result)


def _source(name: str) -> str:
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


def facts_request(node: Node, *, gpu: bool) -> dict[str, Any]:
    """Return what is asked of the facts probe about a node."""
    local = node.ssh is None
    asked = {} if not gpu else _gpu_request(node)
    return {
        "sudo": not local,
        "units": [] if local else [SERVER_UNIT, CLIENT_UNIT, FIREWALL_UNIT],
        "server_unit": SERVER_UNIT,
        "client_unit": CLIENT_UNIT,
        "client_user": CLIENT_USER,
        "python": sys.executable if local else node.python,
        "port": node.tf_port,
        "spec": SPEC_FILE,
        "disk": [TEMP_DIR] if local else [DATA_DIR, TEMP_DIR],
        "runs": RUNS_DIR,
        "gpu": gpu,
        **asked,
    }


def _gpu_request(node: Node) -> dict[str, Any]:
    """Return what is asked beside it about GPUs, which may take longer."""
    user = CLIENT_USER if node.task_index == 0 else SERVER_USER
    return {
        "deadline_s": _GPU_PROBE_S - _MARGIN_S,
        "gpu_user": "" if node.ssh is None else user,
        "gpu_server": user == SERVER_USER,
        "gpu_dev": "/dev",
        "gpu_environment": CUDA_ENVIRONMENT,
        "gpu_libraries": _libraries_source(),
    }


def _libraries_source() -> str:
    """Return the program of the role that installs CUDA's libraries, which opens each; "" if it is not at hand."""
    with suppress(OSError):
        return (Home.find().content / LIBRARIES_FILE).read_text(encoding="utf-8")
    return ""


@dataclass(frozen=True, slots=True)
class _Visit:
    contact: Contact
    facts: NodeFacts | None = None
    unreadable: str | None = None
    listener: ListenerFacts | None = None


@dataclass(frozen=True, slots=True)
class _View:
    """What one node sees of the others."""

    peers: Mapping[str, ReachFacts]
    offset: Offset | None


def observe(
    lab: Lab,
    executors: Mapping[str, Executor],
    *,
    gpu: GpuNeed | None = None,
    ports: bool = True,
    thorough: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Observed:
    """Look at every node at once; what cannot be found out is absent, nothing is raised for it.

    Args:
        lab: The lab.
        executors: One for each node, by its name; each is used by one thread at a time.
        gpu: Ask for GPUs too.
        ports: Try the nodes' TF ports from each other.
        thorough: Also measure clock offsets, and try the TF ports from this machine.
        progress: Told what is done next.
    """
    progress(f"asking {len(lab.nodes)} nodes")
    with ThreadPoolExecutor(max_workers=2 * len(lab.nodes)) as pool:
        visits = dict(
            pool.map(
                lambda node: (
                    node.name,
                    _visit(node, executors[node.name], gpu is not None, ports),
                ),
                lab.nodes,
            )
        )
        facts = {name: each.facts for name, each in visits.items() if each.facts is not None}
        listener = visits[lab.client.name].listener
        views: dict[str, _View] = {}
        outside: dict[str, Mapping[str, str]] = {}
        try:
            if ports and lab.client.ssh is not None:
                progress("trying the ports")
                seen = pool.submit(see_from_here, lab) if thorough else None
                views = dict(
                    pool.map(
                        lambda name: (name, _view(lab, name, executors[name], thorough)), facts
                    )
                )
                outside = seen.result() if seen is not None else {}
        finally:
            if listener is not None and listener.pid:
                root = facts[lab.client.name].root
                _close(executors[lab.client.name], listener, root=root)
    return Observed(
        lab=lab,
        gpu=gpu,
        contacts={name: each.contact for name, each in visits.items()},
        facts=facts,
        unreadable={n: each.unreadable for n, each in visits.items() if each.unreadable},
        listener=listener,
        reach={(n, peer): found for n, view in views.items() for peer, found in view.peers.items()},
        outside=outside,
        offsets={n: view.offset for n, view in views.items() if view.offset is not None},
    )


def _visit(node: Node, executor: Executor, gpu: bool, ports: bool) -> _Visit:
    begun = time.monotonic()
    try:
        executor.run(["true"], timeout_s=_CONTACT_S)
    except LabctlError as error:
        return _Visit(Contact(time.monotonic() - begun, error=error))
    contact = Contact(time.monotonic() - begun)
    python = sys.executable if node.ssh is None else NODE_PYTHON
    try:
        request = facts_request(node, gpu=gpu)
        parts, timeout_s = (("gpu_facts_probe",), _GPU_PROBE_S) if gpu else ((), _PROBE_S)
        answer = probe(
            executor, "facts_probe", request, python=python, parts=parts, timeout_s=timeout_s
        )
        facts = node_facts(answer)
    except FactsError as error:
        return _Visit(contact, unreadable=f"{python} with labctl's probe: {error}")
    except LabctlError as error:
        return _Visit(contact, unreadable=error.found)
    if facts.units_error is not None:
        return _Visit(contact, unreadable=f"systemd did not answer: {facts.units_error}")
    client = facts.units.get(CLIENT_UNIT)
    busy = client is not None and client.running
    held = any(not each.is_listener for each in facts.holders)
    if node.task_index != 0 or node.ssh is None or busy or held or not ports:
        return _Visit(contact, facts)
    # It must outlast the slowest of the other nodes' probes: they are asked at the same time.
    seconds = LISTEN_S + (int(_GPU_PROBE_S) if gpu else 0)
    return _Visit(
        contact, facts, listener=_listen(node, executor, root=facts.root, seconds=seconds)
    )


def _listen(node: Node, executor: Executor, *, root: bool, seconds: int) -> ListenerFacts:
    """Open the client's port for a while: outside a run nothing listens there."""
    request = {"kind": "listen", "port": node.tf_port, "seconds": seconds}
    try:
        answer = probe(executor, "ports_probe", request, python=NODE_PYTHON, sudo=root)
        return listener_facts(answer)
    except FactsError as error:
        return ListenerFacts(0, "", f"labctl's probe {error}")
    except LabctlError as error:
        return ListenerFacts(0, "", error.found)


def _close(executor: Executor, listener: ListenerFacts, *, root: bool) -> None:
    request = {"kind": "close", "pid": listener.pid, "start": listener.start}
    # It ends by itself in any case.
    with suppress(FactsError, LabctlError):
        probe(executor, "ports_probe", request, python=NODE_PYTHON, sudo=root)


def _view(lab: Lab, name: str, executor: Executor, thorough: bool) -> _View:
    targets = [
        (node.name, bare(node.data_address), node.tf_port)
        for node in lab.nodes
        if node.name != name
    ]
    request = {"kind": "reach", "targets": targets, "timeout_s": REACH_S}
    peers: Mapping[str, ReachFacts] = {}
    with suppress(FactsError, LabctlError):
        peers = reach_facts(probe(executor, "ports_probe", request, python=NODE_PYTHON))
    offset = None
    if thorough:
        with suppress(LabctlError):
            offset = clock_offset(executor, samples=CLOCK_SAMPLES)
    return _View(peers, offset)


def bare(address: str) -> str:
    """Return an address without the brackets that IPv6 has in a cluster spec."""
    return address[1:-1] if address.startswith("[") else address


def see_from_here(lab: Lab) -> dict[str, Mapping[str, str]]:
    """Return the state of each node's TF port as this machine sees it, by node and address.

    Empty when this machine is one of the nodes. `filtered` is no answer, `refused` and `open` are answers.
    """
    if any(_is_here(bare(node.data_address)) for node in lab.nodes):
        return {}
    pairs = [(node, address) for node in lab.nodes for address in _addresses(node)]
    found: dict[str, dict[str, str]] = {node.name: {} for node in lab.nodes}
    with ThreadPoolExecutor(max_workers=max(1, len(pairs))) as pool:
        states = pool.map(lambda pair: _knock(pair[1], pair[0].tf_port), pairs)
        for (node, address), state in zip(pairs, states, strict=True):
            found[node.name][address] = state
    return dict(found)


def _addresses(node: Node) -> list[str]:
    """Return where a stranger could find a node: its data address, and where SSH finds it."""
    found = [bare(node.data_address)]
    if node.ssh is not None and node.ssh.host not in found:
        with suppress(ValueError):
            found.append(str(ipaddress.ip_address(bare(node.ssh.host))))
    return found


def _is_here(address: str) -> bool:
    """Say whether an address belongs to this machine."""
    try:
        infos = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in infos:
        with suppress(OSError), socket.socket(family, kind, protocol) as one:
            one.bind(where)
            return True
    return False


def _knock(address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), timeout=OUTSIDE_S):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "filtered"
