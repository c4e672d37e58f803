"""Strict placement: a GPU run computes on GPUs, on every task, or ends with one error that says where it cannot."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import host, wire
from .errors import NO_GPU_DEVICE, OP_ON_CPU, NodeError

_GPU = re.compile(r"(?:/task:(?P<task>\d+))?/device:(?:XLA_)?GPU:\d+\Z", re.IGNORECASE)
_LOG_BYTES = 256 * 1024

# TensorFlow's own words for why it makes no GPU device, the most telling first, and what helps. Its sources:
# gpu_device.cc, gpu_init.cc, cuda_diagnostics.cc and cuda_executor.cc.
_WORDS = (
    (
        r"kernel version [\d.]+ does not match DSO version [\d.]+",
        "reboot the node, so that kernel module and library are of one version",
    ),
    (
        r"Ignoring visible gpu device.*minimum required Cuda capability is [\d.]+",
        "a newer GPU, or an older TensorFlow: docs/causes.md says which",
    ),
    (
        r"Cannot dlopen some GPU libraries",
        "labctl provision installs CUDA's libraries on every node; labctl check --gpu names the missing one",
    ),
    (
        r"Could not load dynamic library '[^']+'",
        "labctl provision installs CUDA's libraries on every node",
    ),
    (
        r"failed call to cuInit: \S+.*",
        "labctl check --gpu says what the driver lacks; labctl provision installs it",
    ),
    (
        r"Could not find cuda drivers on your machine",
        "labctl provision installs the driver",
    ),
    (
        r"CUDA_ERROR_OUT_OF_MEMORY",
        "nvidia-smi names the process that holds the GPU's memory: end it",
    ),
)


def tasks_without_gpu(devices: Iterable[str], tasks: int, *, cluster: bool) -> list[int]:
    """Return the tasks that have no GPU device.

    Args:
        devices: TensorFlow's names of all devices.
        tasks: Number of tasks.
        cluster: Each task is a process of its own; else all of them are this one.
    """
    matches = [match for match in map(_GPU.search, devices) if match is not None]
    if not cluster:
        return [] if matches else list(range(tasks))
    have = {int(match["task"] or 0) for match in matches}
    return [task for task in range(tasks) if task not in have]


def require_gpus(
    devices: Iterable[str],
    tasks: int,
    addresses: Sequence[str],
    log: str = wire.STDERR_FILE,
    nvml_error: str | None = None,
) -> None:
    """Check that every task has a GPU device.

    Args:
        devices: TensorFlow's names of all devices.
        tasks: Number of tasks.
        addresses: Of the tasks, empty without a cluster.
        log: File with this process's own log, for TensorFlow's reason.
        nvml_error: What NVML said on this node, None if it answers.

    Raises:
        NodeError: Of kind `no-gpu-device`.
    """
    missing = tasks_without_gpu(devices, tasks, cluster=bool(addresses))
    if not missing:
        return
    first = missing[0]
    who = f"task {first} at {addresses[first]} has" if addresses else "TensorFlow has"
    if addresses and len(missing) > 1:
        *others, last = (f"{task} at {addresses[task]}" for task in missing)
        who = f"task {', '.join(others)} and {last} have"
    here = first == 0
    reason, do = reason_of(_tail(log), nvml_error) if here else ("", "")
    if reason:
        reason = f": {reason}" if len(missing) == 1 or not addresses else f"; on task 0: {reason}"
    raise NodeError(
        f"{who} no GPU device{reason}",
        expected="a GPU that TensorFlow can use on every task",
        do=do
        or "labctl why reads what TensorFlow said on that node; labctl check --gpu looks for the fault",
        kind=NO_GPU_DEVICE,
    )


def reason_of(log: str, nvml_error: str | None = None) -> tuple[str, str]:
    """Return why this process has no GPU device, in TensorFlow's words, and what helps; "" where nothing tells.

    Args:
        log: This process's log.
        nvml_error: What NVML said, None if it answers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in {"", "-1"}:
        return (
            f"CUDA_VISIBLE_DEVICES={visible} hides all GPUs",
            "unset CUDA_VISIBLE_DEVICES, or set it to the GPU's index",
        )
    for words, do in _WORDS:
        found = re.search(words, log)
        if found is not None:
            return f"TensorFlow said: {found[0].strip()}", do
    if host.cuda_version() is None:
        return (
            "this TensorFlow is built for CPUs alone",
            "tensorflow_build: gpu in the inventory, then labctl provision; or labctl run --cpu",
        )
    if nvml_error is not None:
        return nvml_error, "labctl check --gpu says what the driver lacks"
    return "", ""


def misplaced_products(step_stats: Any) -> list[tuple[str, str]]:
    """Return name and device of each product of a traced step that ran on a CPU.

    Args:
        step_stats: TensorFlow's `StepStats`.
    """
    return [
        (node.node_name, device.device)
        for device in step_stats.dev_stats
        if "/device:CPU:" in device.device
        for node in device.node_stats
        if re.search(r" = _?(?:Mkl)?MatMul\(", node.timeline_label)
    ]


def require_on_gpu(misplaced: Sequence[tuple[str, str]]) -> None:
    """Check that no product of a GPU run ran on a CPU.

    Args:
        misplaced: As `misplaced_products` returns.

    Raises:
        NodeError: Of kind `op-on-cpu`.
    """
    if not misplaced:
        return
    name, device = misplaced[0]
    more = f", and {len(misplaced) - 1} more" if len(misplaced) > 1 else ""
    raise NodeError(
        f"the product {name} ran on {device}{more}",
        expected="every product of a GPU run on a GPU",
        do="labctl run --gpu --soft-placement allows it; --feed fed keeps TensorFlow from computing it beforehand",
        kind=OP_ON_CPU,
    )


def _tail(path: str) -> str:
    """Return the end of a log, "" if there is none."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
