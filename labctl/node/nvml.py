"""What NVIDIA's driver says of this node's GPUs, through `pynvml` (nvidia-ml-py), imported only when asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Figures = dict[str, Any]

# At most this part of the time goes into reading; a driver that takes long is asked less often.
_COST_SHARE = 0.02

# NVML's clocks event reasons by bit (nvml.h, nvmlClocksEventReasons), named as nvidia-smi names them.
THROTTLE_REASONS = {
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


class NvmlError(Exception):
    """NVML does not answer; the text says why, in its own words."""


def load() -> Any:
    """Return the module pynvml.

    Raises:
        NvmlError: It is not installed.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise NvmlError(f"nvidia-ml-py is not installed: {error}") from error
    return pynvml


class Nvml:
    """This node's GPUs, through one initialised NVML.

    Args:
        pynvml: The module.
        handles: Of each device, in NVML's order.
        head: Process id of the run's first process here: it and its children are no others.
    """

    def __init__(self, pynvml: Any, handles: Sequence[Any], head: int) -> None:
        self._nvml = pynvml
        self._handles = list(handles)
        self._head = head
        self._next_s = 0.0

    @classmethod
    def open(cls, pynvml: Any, head: int) -> Nvml:
        """Initialise NVML and find the devices: the driver wakes what sleeps.

        Args:
            pynvml: The module.
            head: Process id of the run's first process here.

        Raises:
            NvmlError: There is no library, no driver, or it refuses.
        """
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            return cls(pynvml, handles, head)
        except Exception as error:  # its own errors, and functions that this version does not have
            raise NvmlError(f"NVML: {error}") from error

    def __len__(self) -> int:
        return len(self._handles)

    def facts(self) -> list[Figures]:
        """Return the objects of a `gpus` event; a figure that NVML does not give is None."""
        driver = self._ask("nvmlSystemGetDriverVersion")
        return [self._facts_of(index, handle, driver) for index, handle in enumerate(self._handles)]

    def _facts_of(self, index: int, handle: Any, driver: Any) -> Figures:
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        persistence = self._ask("nvmlDeviceGetPersistenceMode", handle)
        sm, other = self._nvml.NVML_CLOCK_SM, self._nvml.NVML_CLOCK_MEM
        return {
            "index": index,
            "name": self._ask("nvmlDeviceGetName", handle),
            "uuid": self._ask("nvmlDeviceGetUUID", handle),
            "pci": None if pci is None else _text(pci.busId),
            "driver": driver,
            "compute_capability": None if capability is None else "{}.{}".format(*capability),
            "memory_bytes": None if memory is None else int(memory.total),
            "persistence": None if persistence is None else bool(persistence),
            "sm_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, sm),
            "memory_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, other),
            "power_limit_w": _milli(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        }

    def usage(self) -> list[Figures] | None:
        """Return the objects of a `gpu_usage` event; None where it is too early to ask again.

        A driver that takes long to answer is asked so seldom that asking takes 2 % of the time at most.
        """
        begin_s = time.monotonic()
        if begin_s < self._next_s:
            return None
        found = [self._use_of(index, handle) for index, handle in enumerate(self._handles)]
        end_s = time.monotonic()
        self._next_s = end_s + (end_s - begin_s) * (1 / _COST_SHARE - 1)
        return found

    def _use_of(self, index: int, handle: Any) -> Figures:
        nvml = self._nvml
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return {
            "index": index,
            "utilisation_percent": None if rates is None else int(rates.gpu),
            "memory_used_bytes": None if memory is None else int(memory.used),
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "power_w": _milli(self._ask("nvmlDeviceGetPowerUsage", handle)),
            "temperature_c": self._ask(
                "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU
            ),
            "throttle": self._throttle(handle),
            "others": None if processes is None else foreign(processes, self._head),
        }

    def _throttle(self, handle: Any) -> list[str] | None:
        # The first name came with driver 535; older libraries have the second alone.
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if mask is None:
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if mask is None else throttle_names(mask)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return what a function of NVML says; None where it refuses, or this version does not have it."""
        try:
            value = getattr(self._nvml, function)(*arguments)
        except Exception:  # noqa: BLE001 pynvml has a class of its own for each error
            return None
        return _text(value) if isinstance(value, bytes) else value


def throttle_names(mask: int) -> list[str]:
    """Return the names of the reasons in a mask, a bit without a name as `reason-0x…`."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return [THROTTLE_REASONS.get(bit, f"reason-{bit:#x}") for bit in bits]


def foreign(processes: Sequence[Any], head: int) -> list[Figures]:
    """Return the processes on a device that are not of this run, as pid and memory.

    Args:
        processes: As NVML lists them.
        head: The run's first process here; those that it started are of the run, too.
    """
    return [
        {"pid": each.pid, "memory_bytes": _memory(each)}
        for each in processes
        if head not in {each.pid, _parent(each.pid)}
    ]


def _parent(pid: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _memory(process: Any) -> int | None:
    """Return what a process holds; NVML says all ones where it does not know, which pynvml turns into None."""
    used = process.usedGpuMemory
    return None if used is None else int(used)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _milli(value: int | None) -> float | None:
    return None if value is None else value / 1000
