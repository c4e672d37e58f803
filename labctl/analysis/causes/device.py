"""Rules on where the work is: soft placement, and why a GPU that was asked for is not there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    LOG_LEVEL,
    Cause,
    ended_ok,
    error_text,
    gpu_asked,
    has_words,
    log_hidden,
    log_line,
    no_trace,
    quoted,
)
from labctl.analysis.causes.contact import own
from labctl.analysis.causes.gpu_signals import client_variable, devices, errors, missing_libraries
from labctl.analysis.causes.model import Rule, Verdict
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

SOFT_PLACEMENT = Cause(
    "soft-placement", "step", "Products run on another device than asked, without a word", "A"
)
LIBRARIES_MISSING = Cause(
    "cuda-libraries-missing", "once", "TensorFlow cannot load CUDA's libraries", "A"
)
DRIVER_MISMATCH = Cause(
    "driver-mismatch",
    "once",
    "NVIDIA's kernel module and its library are of different versions",
    "A",
)
NO_DRIVER = Cause("no-driver", "once", "NVIDIA's driver is not loaded", "A")
TOO_OLD = Cause("gpu-too-old", "once", "The GPU is too old for this TensorFlow", "A")
HIDDEN = Cause("gpu-hidden", "once", "CUDA_VISIBLE_DEVICES hides the GPU", "A")
MEMORY_TAKEN = Cause("gpu-memory-taken", "once", "Another process holds the GPU's memory", "A")

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIBRARY_WORDS = (
    "cannot dlopen some gpu libraries",
    "skipping registering gpu devices",
    "could not load dynamic library 'libcu",
    "could not find cuda drivers on your machine",
    "is the cpu build",
)
_INSTALL_DRIVER = "labctl provision installs the driver; ls /dev/nvidia* on the node"
_MISMATCH_WORDS = ("does not match dso version", "version mismatch")
_DRIVER_WORDS = (
    "nvml shared library not found",  # NVML's own words
    "driver not loaded",
    "failed call to cuinit",
    "kernel driver does not appear to be running",
    "cuda_error_no_device",
    "has no gpu driver",
    "but no /dev/nvidia",
)
_OLD_WORDS = ("minimum required cuda capability",)
_HIDDEN_WORDS = ("hides all gpus from cuda",)
_MEMORY_WORDS = ("cuda_error_out_of_memory",)
# Checks that fail for one cause alone, whatever words they have for it.
_CHECKS = {
    "cuda-libraries-missing": "cuda-libraries",
    "gpu-too-old": "gpu-capability",
    "gpu-memory-taken": "gpu-holders",
}
_OUT_OF_MEMORY = ("resourceexhausted", "out of memory")

OF_SCRIPT = ("a script does not say whether it asks for a GPU", "labctl run --gpu SCRIPT")
NOT_ASKED = ("no GPU was asked for", "labctl run --gpu on nodes with GPUs")


def by_words(run: Explained, cause: Cause, words: tuple[str, ...], remedy: str) -> Verdict | None:
    """Return what a failed check's and TensorFlow's own words say of a fault with a GPU.

    A host without GPUs prints some of them in a healthy run: they count only where a GPU was asked for.

    Args:
        run: The run.
        cause: The fault.
        words: Those that name it, in lower case.
        remedy: What helps.

    Returns:
        None where the words decide nothing and the caller must look further.
    """
    asked = gpu_asked(run)
    if asked is False:
        return cause.not_measured(*NOT_ASKED)
    for check in run.data.record.failed_checks:
        worded = check.name.startswith(("gpu", "cuda")) and has_words(check.found, *words)
        if worded or check.name == _CHECKS.get(cause.name):
            return cause.found(None, [f"labctl check: {check.found}"], remedy=check.do)
    if asked:
        if (line := log_line(run, *words)) is not None:
            return cause.found(None, [quoted(line)], remedy=remedy)
        if (word := has_words(error_text(run), *words)) is not None:
            return cause.found(None, [f"the client's error says: {word}"], remedy=remedy)
        for node, error in errors(run).items():
            if has_words(error, *words):
                return cause.found(None, [f"NVML on {node} said: {error}"], remedy=remedy)
    return None


def silent(run: Explained, cause: Cause) -> Verdict:
    """Return what the absence of a fault's words says."""
    on_gpu = products_on(run).get("GPU", 0)
    if on_gpu:
        return cause.ruled_out(f"{on_gpu} products ran on a GPU")
    if log_hidden(run) or not run.data.log:
        return cause.not_measured(
            "there is no log of TensorFlow's to look for its words in",
            f"a run without {LOG_LEVEL} in --env",
        )
    return cause.ruled_out(f"0 of {len(run.data.log)} log lines name it", confidence="medium")


def products_on(run: Explained) -> dict[str, int]:
    """Return how many products of the traced step ran on each type of device, e.g. `CPU`."""
    counts: dict[str, int] = {}
    for task in run.trace.tasks if run.trace is not None else ():
        for device, number in task.products.items():
            kind = "GPU" if "GPU" in device.upper() else device.partition(":")[0].upper()
            counts[kind] = counts.get(kind, 0) + number
    return counts


def _soft_placement(run: Explained) -> Verdict:
    cause = SOFT_PLACEMENT
    asked = gpu_asked(run)
    if asked is None:
        return cause.not_measured(
            "a script does not say which device it asks for",
            "tf.debugging.set_log_device_placement",
        )
    counts = products_on(run)
    if not counts:
        if run.data.record.parameters.soft_placement is False:
            return cause.ruled_out("0 ops may move: soft placement is off")
        return cause.not_measured(*no_trace(run))
    kind = "GPU" if asked else "CPU"
    elsewhere = {device: number for device, number in counts.items() if device != kind}
    if not elsewhere:
        return cause.ruled_out(
            f"{counts[kind]} of {counts[kind]} products ran on a {kind}, as asked"
        )
    told = ", ".join(f"{number} on a {device}" for device, number in sorted(elsewhere.items()))
    evidence = [f"products were asked for on a {kind}; {told} in the traced step"]
    for task in run.trace.tasks if run.trace is not None else ():
        where = ", ".join(
            f"{number} on {device}" for device, number in sorted(task.products.items())
        )
        evidence.append(f"task:{task.task} on {task.node}: {where or 'no product'}")
    return cause.found(
        None,
        evidence,
        remedy="without --soft-placement TensorFlow refuses instead; labctl check says what the GPU lacks",
        title=f"Products run on a {', '.join(sorted(elsewhere))} though a {kind} was asked for",
    )


def _libraries_missing(run: Explained) -> Verdict:
    cause = LIBRARIES_MISSING
    remedy = "labctl provision with a GPU inventory: it installs tensorflow[and-cuda] on every node"
    said = by_words(run, cause, _LIBRARY_WORDS, remedy)
    if said is not None:
        return said
    if gpu_asked(run) and (missing := missing_libraries(run)) and not products_on(run).get("GPU"):
        return cause.found(
            None,
            [f"{', '.join(names)} cannot be opened on {node}" for node, names in missing.items()],
            remedy=remedy,
        )
    plain = [
        node.name for node in run.data.record.nodes if node.cuda and not node.cuda.is_cuda_build
    ]
    if gpu_asked(run) and plain and not products_on(run).get("GPU"):
        return cause.found(
            None,
            [f"TensorFlow on {', '.join(plain)} is built for CPUs alone"],
            remedy="tensorflow_build: gpu in the inventory, then labctl provision",
        )
    without = [
        node.name
        for node in run.data.record.nodes
        if node.cuda is None and node.versions.get("tensorflow") and not node.versions.get("cuda")
    ]
    if gpu_asked(run) and without and not products_on(run).get("GPU"):
        return cause.found(
            None,
            [f"no CUDA libraries are installed beside TensorFlow on {', '.join(without)}"],
            remedy=remedy,
            confidence="medium",
        )
    return silent(run, cause) if gpu_asked(run) else cause.not_measured(*OF_SCRIPT)


def _driver_mismatch(run: Explained) -> Verdict:
    return _worded(
        run, DRIVER_MISMATCH, _MISMATCH_WORDS, "reboot the node, and hold the driver's packages"
    )


def _no_driver(run: Explained) -> Verdict:
    cause = NO_DRIVER
    nodes = run.data.record.nodes
    told = {gpu.driver for node in nodes for gpu in node.gpus if gpu.driver}
    drivers = sorted(
        told | {node.versions["driver"] for node in nodes if "driver" in node.versions}
    )
    loaded = f"driver {', '.join(drivers)} is loaded"
    if gpu_asked(run) and all(node.gpus for node in nodes):  # whatever words TensorFlow has
        return cause.ruled_out(loaded, "it listed a GPU of each node right before the run")
    said = by_words(
        run,
        cause,
        _DRIVER_WORDS,
        _INSTALL_DRIVER,
    )
    if said is not None:
        return said
    without = _without_driver(run)
    if gpu_asked(run) and without and not products_on(run).get("GPU"):
        return cause.found(
            None,
            [f"no NVIDIA driver is loaded on {', '.join(without)}"],
            remedy=_INSTALL_DRIVER,
        )
    if gpu_asked(run) and drivers:
        return cause.ruled_out(loaded)
    return silent(run, cause) if gpu_asked(run) else cause.not_measured(*OF_SCRIPT)


def _without_driver(run: Explained) -> list[str]:
    """Return the nodes that told their versions and have no driver among them."""
    record = run.data.record
    driven = devices(run)  # a GPU that was listed has a driver
    lacking = {
        node.name
        for node in record.nodes
        if node.versions.get("tensorflow") and not node.versions.get("driver")
    }
    hello = next((event for event in own(run) if event.kind == wire.HELLO), None)
    if hello is not None and "driver" in hello.data:
        client = {record.remote.node}
        lacking = lacking - client if hello.text("driver") else lacking | client
    return sorted(lacking - driven.keys())


def _too_old(run: Explained) -> Verdict:
    return _worded(run, TOO_OLD, _OLD_WORDS, "a newer GPU, or an older TensorFlow (docs/causes.md)")


def _hidden(run: Explained) -> Verdict:
    cause = HIDDEN
    remedy = f"unset {VISIBLE}, or set it to the GPU's index"
    said = by_words(run, cause, _HIDDEN_WORDS, remedy)
    if said is not None:
        return said
    if not gpu_asked(run):
        return cause.not_measured(*OF_SCRIPT)
    value = client_variable(run, VISIBLE)
    if value is not None and value.strip() in {"", "-1"}:
        return cause.found(None, [f"the client had {VISIBLE}={value}"], remedy=remedy)
    count = len(devices(run).get(run.data.record.remote.node, ()))
    numbers = [each.strip() for each in (value or "").split(",")]
    # An index that is not there hides itself and all after it.
    if count and numbers[0].isdecimal() and int(numbers[0]) >= count:
        return cause.found(
            None,
            [f"the client had {VISIBLE}={value}, and its node has {count}, numbered from 0"],
            remedy=remedy,
        )
    if VISIBLE in run.data.record.parameters.environment and not products_on(run).get("GPU"):
        return cause.found(
            None,
            [f"{VISIBLE} was set for the client, and no product ran on a GPU"],
            remedy=remedy,
            confidence="low",
        )
    return silent(run, cause)


def _memory_taken(run: Explained) -> Verdict:
    remedy = (
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv names the process: end it"
    )
    said = by_words(run, MEMORY_TAKEN, _MEMORY_WORDS, remedy)
    if said is not None or not gpu_asked(run):
        return MEMORY_TAKEN.not_measured(*OF_SCRIPT) if said is None else said
    known = [(node.name, gpu) for node in run.data.record.nodes for gpu in node.gpus]
    holders = [
        f"{each.command or 'a process'} ({each.pid}) held {_mib(each.memory_bytes)} of GPU {gpu.index} on {name} "
        "before the run"
        for name, gpu in known
        for each in gpu.holders
    ]
    out = not ended_ok(run) and has_words(error_text(run), *_OUT_OF_MEMORY)
    if holders and out:
        return MEMORY_TAKEN.found(
            None, [f"the client's error says: {out}", *holders], remedy=remedy, confidence="medium"
        )
    if known and not holders:
        return MEMORY_TAKEN.ruled_out(
            f"0 processes held memory of {len(known)} GPUs before the run"
        )
    if holders and ended_ok(run):
        return MEMORY_TAKEN.ruled_out(f"the run had room beside {len(holders)} processes", *holders)
    return silent(run, MEMORY_TAKEN)


def _mib(size_bytes: int | None) -> str:
    return "an unknown part" if size_bytes is None else f"{size_bytes / 2**20:.0f} MiB"


def _worded(run: Explained, cause: Cause, words: tuple[str, ...], remedy: str) -> Verdict:
    said = by_words(run, cause, words, remedy)
    if said is not None:
        return said
    return silent(run, cause) if gpu_asked(run) else cause.not_measured(*OF_SCRIPT)


RULES: tuple[Rule, ...] = (
    SOFT_PLACEMENT.rule(_soft_placement),
    NO_DRIVER.rule(_no_driver),  # without it nothing else of a GPU can be there
    LIBRARIES_MISSING.rule(_libraries_missing),
    DRIVER_MISMATCH.rule(_driver_mismatch),
    TOO_OLD.rule(_too_old),
    HIDDEN.rule(_hidden),
    MEMORY_TAKEN.rule(_memory_taken),
)
