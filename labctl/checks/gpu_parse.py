"""The GPU part of a node's answer, checked before anything believes it: JSON in, frozen values out."""

from __future__ import annotations

import math
import re

from labctl.checks.gpu_facts import (
    AccessFacts,
    CacheFacts,
    DeviceFacts,
    GpuFacts,
    HolderFacts,
    LibraryFacts,
    SmiFacts,
    WheelFacts,
)
from labctl.checks.kernels import kernels_for
from labctl.checks.reader import Reader
from labctl.runs.gpus import CudaState, GpuHolder, GpuState

_MIB = 1 << 20
# Bits of NVML's clocks event reasons (nvml.h, `nvmlClocksEventReason*`), by their names in kebab-case.
REASONS = {
    0x1: "gpu-idle",
    0x2: "applications-clocks-setting",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal-slowdown",
    0x40: "hw-thermal-slowdown",
    0x80: "hw-power-brake-slowdown",
    0x100: "display-clock-setting",
}


def gpu_facts(top: Reader) -> GpuFacts:
    """Return the GPU part of a facts probe's answer.

    Raises:
        FactsError: It is not such an answer.
    """
    smi = _smi(top.object("smi"))
    rows = [dict(row) for row in top.each("devices", lambda each: each.all_words())]
    numbers = {
        row.get("uuid", ""): number
        for n, row in enumerate(rows)
        if (number := _whole(row, "index", n)) is not None
    }
    holders = top.each("apps", lambda each: _holder(each, numbers))
    libraries = top.object("libraries")
    tried = libraries.list_or_none("tried")
    return GpuFacts(
        persistenced=top.text("persistenced"),
        smi=smi,
        devices=tuple(_device(row, n, holders, smi) for n, row in enumerate(rows)),
        holders=holders,
        on_bus=top.texts("on_bus"),
        modules=top.texts("modules"),
        secure_boot=top.flag_or_none("secure_boot"),
        loaded_version=top.text("loaded_version"),
        dev_nodes=top.texts("dev_nodes"),
        access=_access(top.object("access")),
        wheel=_wheel(top.object("wheel")),
        cache=_cache(top.object("cache")),
        libraries=None if tried is None else libraries.each("tried", _library),
        libraries_error=libraries.text("error"),
    )


def gpu_states(facts: GpuFacts) -> tuple[GpuState, ...]:
    """Return a node's GPUs as they go into a record."""
    return tuple(each.state for each in facts.devices)


def cuda_state(facts: GpuFacts) -> CudaState | None:
    """Return what a node's TensorFlow brings for GPUs as it goes into a record; None if its build is unknown."""
    wheel, cache = facts.wheel, facts.cache
    if wheel.error is not None:
        return None
    return CudaState(
        is_cuda_build=wheel.is_cuda,
        capabilities=wheel.capabilities,
        cuda=wheel.cuda,
        cudnn=wheel.cudnn,
        missing=tuple(each.name for each in facts.libraries or () if each.error),
        cache_path=cache.path,
        cache_files=cache.files,
        cache_bytes=cache.size_bytes,
        cache_max_bytes=cache.max_bytes,
        compiles=compiles(facts),
    )


def compiles(facts: GpuFacts) -> bool | None:
    """Say whether the first run will compile PTX for a GPU of the node; None if that cannot be told.

    A kernel cache that holds anything may hold just these kernels: then it cannot be told.
    """
    kinds = {
        kernels_for(each.state.compute_capability, facts.wheel.capabilities)
        for each in facts.devices
    }
    if not kinds or "unknown" in kinds or not facts.wheel.is_cuda:
        return None
    if not kinds & {"small", "all"}:
        return False
    return True if facts.cache.files == 0 else None


def throttle_reasons(mask: str) -> tuple[str, ...]:
    """Return the names of a mask as `nvidia-smi` prints it, e.g. `0x0000000000000004`; () if it prints none."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return ()
    if not 0 <= bits < 1 << 64:
        return ()
    set_bits = [1 << place for place in range(64) if bits >> place & 1]
    return tuple(REASONS.get(bit, f"reason-{bit:#x}") for bit in set_bits)


def _smi(each: Reader) -> SmiFacts:
    code = each.value("code")
    if code is not None and (isinstance(code, bool) or not isinstance(code, int)):
        raise each.wrong("code", "exit status")
    return SmiFacts(
        code, each.text("said"), each.number_or_none("first_s"), each.number_or_none("second_s")
    )


def _device(
    row: dict[str, str], number: int, holders: tuple[HolderFacts, ...], smi: SmiFacts
) -> DeviceFacts:
    index = _whole(row, "index", number) or 0
    mode = row.get("persistence_mode", "").lower()
    woke_s = None
    if smi.first_s is not None and smi.second_s is not None:
        woke_s = max(0.0, smi.first_s - smi.second_s)
    reasons = row.get("clocks_event_reasons.active", "")
    return DeviceFacts(
        GpuState(
            index=index,
            name=row.get("name", ""),
            uuid=row.get("uuid", ""),
            driver=row.get("driver_version", ""),
            compute_capability=_match(r"\d{1,3}\.\d", row.get("compute_cap", "")),
            memory_bytes=_bytes(row.get("memory.total", "")),
            memory_used_bytes=_bytes(row.get("memory.used", "")),
            persistence={"enabled": True, "disabled": False}.get(mode),
            sm_clock_mhz=_number(row.get("clocks.sm", ""), 1e5),
            sm_clock_max_mhz=_number(row.get("clocks.max.sm", ""), 1e5),
            power_limit_w=_number(row.get("power.limit", ""), 1e5),
            temperature_c=_number(row.get("temperature.gpu", ""), 1e3),
            throttle=throttle_reasons(reasons),
            holders=tuple(
                GpuHolder(each.pid, each.command, each.memory_bytes)
                for each in holders
                if each.gpu == index
            ),
            woke_s=woke_s,
        ),
        _bytes(row.get("memory.free", "")),
    )


def _holder(each: Reader, numbers: dict[str, int]) -> HolderFacts:
    return HolderFacts(
        gpu=numbers.get(each.text("uuid")),
        pid=each.whole("pid"),
        command=each.text("command"),
        unit=each.text("unit"),
        memory_bytes=_bytes(each.text("memory_mib")),
    )


def _access(each: Reader) -> AccessFacts:
    return AccessFacts(
        user=each.text("user"),
        denied=each.words("denied"),
        hidden=each.texts("hidden"),
        cuda=_match(r"\d+\.\d+", each.text("cuda")),
        init=each.whole_or_none("init"),
        count=each.whole_or_none("count"),
        error=each.text_or_none("error"),
    )


def _wheel(each: Reader) -> WheelFacts:
    build = each.object("build")
    known = build.names()
    return WheelFacts(
        error=each.text_or_none("error"),
        is_cuda="is_cuda_build" in known and build.flag("is_cuda_build"),
        capabilities=build.texts("cuda_compute_capabilities")
        if "cuda_compute_capabilities" in known
        else (),
        cuda=build.text("cuda_version") if "cuda_version" in known else "",
        cudnn=build.text("cudnn_version") if "cudnn_version" in known else "",
    )


def _cache(each: Reader) -> CacheFacts:
    return CacheFacts(
        path=each.text("path"),
        files=each.whole_or_none("files"),
        size_bytes=each.whole_or_none("bytes"),
        max_bytes=each.whole_or_none("max_bytes"),
    )


def _library(each: Reader) -> LibraryFacts:
    return LibraryFacts(each.text("name"), each.text_or_none("error") or "")


def _whole(row: dict[str, str], key: str, default: int) -> int | None:
    """Return a small whole number, the default where the field is missing, None where it is none."""
    text = row.get(key, str(default))
    return int(text) if re.fullmatch(r"\d{1,4}", text) else None


def _number(text: str, most: float) -> float | None:
    """Return a figure of `nvidia-smi`'s, None for `[N/A]` and the like."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= most else None


def _bytes(text: str) -> int | None:
    """Return MiB as bytes."""
    value = _number(text, 1e9)
    return None if value is None else int(value * _MIB)


def _match(pattern: str, text: str) -> str:
    return text if re.fullmatch(pattern, text) else ""
