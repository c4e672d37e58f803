"""What a node is: versions and CPUs, for the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labctl.drive.links import Machine
from labctl.drive.places import Places
from labctl.errors import DeadlineError
from labctl.node import wire
from labctl.runs.events import Event
from labctl.runs.record import NodeFacts

_TIMEOUT_S = 20.0
# Runs on the node under the TensorFlow venv's interpreter; importing TensorFlow itself would take seconds.
_SCRIPT = r"""
import importlib.metadata, json, os, platform, re
def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""
def first(pattern, string):
    match = re.search(pattern, string, re.MULTILINE)
    return match.group(1).strip() if match else ""
print(json.dumps({
    "python": platform.python_version(), "kernel": platform.release(),
    "tensorflow": version("tensorflow", "tensorflow-cpu"), "numpy": version("numpy"),
    "cuda": version("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
    "driver": first(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text("/proc/driver/nvidia/version")),
    "cpus": len(os.sched_getaffinity(0)), "cpu_model": first(r"^model name\s*:(.*)$", text("/proc/cpuinfo")),
    "boot_id": text("/proc/sys/kernel/random/boot_id").strip(),
}))
"""
VERSIONS = ("python", "tensorflow", "numpy", "kernel", "cuda", "driver")


def read_facts(machine: Machine, where: Places) -> NodeFacts:
    """Return what a node is; fields stay empty where the node cannot say (it is not provisioned)."""
    node = machine.node
    plain = NodeFacts(node.name, node.task_index, node.tf_address)
    python = where.python if where.loopback else node.python
    try:
        done = machine.executor.run([python, "-I", "-c", _SCRIPT], timeout_s=_TIMEOUT_S)
        said: Any = json.loads(done.stdout) if done.ok else None
    except (ValueError, DeadlineError):
        return plain
    if not isinstance(said, dict):
        return plain
    cpus = said.get("cpus")
    return replace(
        plain,
        versions={key: str(said[key]) for key in VERSIONS if said.get(key)},
        cpus=cpus if isinstance(cpus, int) else None,
        cpu_model=str(said.get("cpu_model", "")),
        boot_id=str(said.get("boot_id", "")),
    )


def with_hello(facts: NodeFacts, events: Sequence[Event]) -> NodeFacts:
    """Return a node's facts with what its own client said about the versions that it really loaded."""
    for event in events:
        if event.kind == wire.HELLO and event.source == "client" and event.task == facts.task:
            told = {key: event.text(key) for key in VERSIONS if event.text(key)}
            cpus, model = event.whole("cpus"), event.text("cpu_model")
            return replace(
                facts,
                versions={**facts.versions, **told},
                cpus=facts.cpus if cpus is None else cpus,
                cpu_model=model or facts.cpu_model,
            )
    return facts
