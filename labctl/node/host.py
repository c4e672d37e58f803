"""Facts about this node and this process, read from the kernel; nothing here imports TensorFlow."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import wire
from .events import EventLog

_TENSORFLOW_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-aarch64",
    "tensorflow-rocm",
)
_TELLING_PREFIXES = ("TF_", "XLA_", "GRPC_", "CUDA_")
_NOT_TELLING_PREFIXES = ("TF_VAR_", "TF_TOKEN_", "TF_CLI_")  # Terraform's, which hold secrets


def drop_proxies(environment: MutableMapping[str, str]) -> list[str]:
    """Remove every `*_proxy` variable, in any case, and return the names removed.

    gRPC obeys them even for addresses of this machine and then never reaches a peer.
    """
    names = sorted(filter(_is_proxy, environment))
    for name in names:
        del environment[name]
    return names


def _is_proxy(name: str) -> bool:
    return name.lower().endswith("_proxy")


def telling_environment(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that steer TensorFlow, gRPC or CUDA; a proxy may hold a password, its value is None."""
    return {
        name: None if _is_proxy(name) else value
        for name, value in sorted(environment.items())
        if _is_proxy(name)
        or (name.startswith(_TELLING_PREFIXES) and not name.startswith(_NOT_TELLING_PREFIXES))
    }


def process_age_ns() -> int:
    """Return how long ago this process was started, in ns; the kernel counts in steps of 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_ns = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns)


def introduce(events: EventLog) -> None:
    """Write `hello` and the phase from this process's start up to here; call it once the environment is set."""
    known = {**facts(), "environment": telling_environment(os.environ)}
    age_ns, t, mono = process_age_ns(), time.time_ns(), time.monotonic_ns()
    begin = t - age_ns
    events.emit(wire.HELLO, t=t, mono=mono, pid=os.getpid(), process_start_t=begin, **known)
    phase = wire.PHASE_INTERPRETER
    events.emit(wire.PHASE_BEGIN, t=begin, mono=mono - age_ns, phase=phase)
    events.emit(wire.PHASE_END, t=t, mono=mono, phase=phase, duration_ns=age_ns)


def facts() -> dict[str, Any]:
    """Return what a run's record says about a node; a fact that cannot be read is None."""
    build = _tensorflow_build()
    return {
        "python": platform.python_version(),
        "tensorflow": _first_version(_TENSORFLOW_DISTRIBUTIONS),
        "numpy": _first_version(("numpy",)),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "driver": _driver_version(_read("/proc/driver/nvidia/version")),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "hostname": platform.node(),
        "boot_id": (_read("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": cpu_model(_read("/proc/cpuinfo") or ""),
        "cpu_limit": cpu_limit(),
        "memory_bytes": _meminfo("MemTotal"),
        "memory_available_bytes": available_memory(),
        "memory_limit_bytes": memory_limit(),
    }


def cpu_model(cpuinfo: str) -> str | None:
    """Return the model's name in the text of `/proc/cpuinfo`."""
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match.group(1).strip() if match else None


def cpu_limit(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> float | None:
    """Return how many CPUs' time this process's control groups grant, None when they set no limit."""
    limits = []
    for folder in _cgroup_folders(root, own, "cpu"):
        parts = (_read(f"{folder}/cpu.max") or "").split()
        if len(parts) == 2 and parts[0] != "max":
            limits.append(int(parts[0]) / int(parts[1]))
        quota, period = (
            _number(f"{folder}/cpu.cfs_quota_us"),
            _number(f"{folder}/cpu.cfs_period_us"),
        )
        if quota is not None and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int | None:
    """Return the bytes of memory that this process's control groups grant, None when they set no limit."""
    return min((limit for limit, _ in _memory_groups(root, own)), default=None)


def available_memory(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int | None:
    """Return the bytes that a process may still use: the kernel's estimate or what a control group leaves."""
    room = [limit - used for limit, used in _memory_groups(root, own)]
    kernel = _meminfo("MemAvailable")
    if kernel is not None:
        room.append(kernel)
    return max(0, min(room)) if room else None


def _memory_groups(root: str, own: str) -> list[tuple[int, int]]:
    """Return limit and use, in bytes, of each control group that has a limit."""
    total = _meminfo("MemTotal") or 1 << 62
    pairs = []
    for folder in _cgroup_folders(root, own, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(f"{folder}/{limit_name}"), _number(f"{folder}/{used_name}")
            if limit is not None and used is not None and limit < total:
                pairs.append((limit, used))
    return pairs


def _cgroup_folders(root: str, own: str, controller: str) -> list[str]:
    """Return this process's group and those above it, of cgroup v2 and of that v1 controller."""
    folders = []
    for line in (_read(own) or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and names == "":
            base = root
        elif controller in names.split(","):
            base = f"{root}/{controller}"
        else:
            continue
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        folders += ["/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return folders


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _number(path: str) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _meminfo(field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB$", _read("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _driver_version(text: str | None) -> str | None:
    match = re.search(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", text or "")
    return match.group(1) if match else None


def _first_version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def cuda_version() -> str | None:
    """Return the CUDA version that the installed TensorFlow was built for, None if it was built for none."""
    return _tensorflow_build().get("cuda_version")


def _tensorflow_build() -> dict[str, str]:
    """Return the versions that TensorFlow was built with, from its file, without importing it."""
    spec = find_spec("tensorflow")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    text = _read(f"{folders[0]}/python/platform/build_info.py") if folders else None
    return dict(re.findall(r"\('(\w+)', '([^']*)'\)", text or ""))
