"""What a node is: versions and CPUs, for the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labctl.drive.links import Machine
from labctl.drive.places import JOIN_SERVICE, Places
from labctl.errors import DeadlineError
from labctl.node import wire
from labctl.runs.events import Event
from labctl.runs.record import NodeFacts

_TIMEOUT_S = 20.0
# Runs on the node under the TensorFlow venv's interpreter; importing TensorFlow itself would take seconds.
_SCRIPT = r"""
import importlib.metadata, json, os, platform, re, sys
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
def limits(base, path):
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = "/".join([base, *parts[:depth]])
        quota, _, period = text(folder + "/cpu.max").partition(" ")
        quota = quota or text(folder + "/cpu.cfs_quota_us")
        period = period or text(folder + "/cpu.cfs_period_us")
        if quota.strip().isdigit() and period.strip().isdigit() and int(period):
            yield int(quota) / int(period)
def cpu_limit(unit):
    found = []
    for line in text("/proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        base = "/sys/fs/cgroup" if number == "0" else "/sys/fs/cgroup/cpu"
        if number == "0" or "cpu" in names.split(","):
            found += [*limits(base, path), *limits(base, "/system.slice/" + unit)]
    return min(found, default=None)
def proxies():
    lines = [f"{name}={value}" for name, value in os.environ.items()]
    lines += text("/etc/environment").splitlines()
    lines += os.popen("systemctl show-environment 2>/dev/null").read().splitlines()
    names = {line.partition("=")[0].replace("export ", "").strip() for line in lines}
    return sorted(names & {"http_proxy", "https_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy"})
print(json.dumps({
    "cpu_limit": cpu_limit(sys.argv[1]), "load_1min": os.getloadavg()[0], "proxies": proxies(),
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
        argv = [python, "-I", "-c", _SCRIPT, JOIN_SERVICE]
        done = machine.executor.run(argv, timeout_s=_TIMEOUT_S)
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
        cpu_limit=_number(said.get("cpu_limit")),
        load_1min=_number(said.get("load_1min")),
        proxies=tuple(map(str, said.get("proxies") or ())),
    )


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None


def with_hello(facts: NodeFacts, events: Sequence[Event]) -> NodeFacts:
    """Return a node's facts with what its own client said about the versions that it really loaded."""
    for event in events:
        if event.kind == wire.HELLO and event.source == "client" and event.task == facts.task:
            told = {key: event.text(key) for key in VERSIONS if event.text(key)}
            cpus, model = event.whole("cpus"), event.text("cpu_model")
            limits = [each for each in (facts.cpu_limit, event.number("cpu_limit")) if each]
            return replace(
                facts,
                versions={**facts.versions, **told},
                cpus=facts.cpus if cpus is None else cpus,
                cpu_model=model or facts.cpu_model,
                cpu_limit=min(limits, default=None),
            )
    return facts
