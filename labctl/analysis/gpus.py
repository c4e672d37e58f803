"""What events tell of GPUs: the devices, their use while the run went on, the kernel cache, the libraries. Pure.

An event may hold anything; what is no figure is None here, and nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.node import wire
from labctl.runs.data import RunData
from labctl.runs.events import Event

_MOST = 1e18  # of any unit: beyond it a figure is damaged
# Reasons that hold no clock down: nothing runs, or the user set the clock.
RESTING = frozenset({"gpu-idle", "applications-clocks-setting"})


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A device as NVML described it to a process when that started; None or "" where it did not say.

    Attributes:
        index: Its number for NVML.
        name: Product name.
        compute_capability: E.g. `8.0`.
        driver: Driver version.
        memory_bytes: In all.
        persistence: Persistence mode is on.
        sm_clock_max_mhz: The highest clock of its multiprocessors.
        power_limit_w: In force.
    """

    index: int
    name: str
    compute_capability: str
    driver: str
    memory_bytes: float | None
    persistence: bool | None
    sm_clock_max_mhz: float | None
    power_limit_w: float | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A device at one moment; None where NVML did not say.

    Attributes:
        index: Its number for NVML.
        unix_s: When, on the node's clock.
        utilisation_percent: Part of NVML's last sample period in which a kernel ran.
        memory_used_bytes: In use, by whomever.
        sm_clock_mhz: Clock of the multiprocessors.
        memory_clock_mhz: Clock of the memory.
        power_w: Drawn.
        temperature_c: Of the chip.
        throttle: What held its clocks down, those of rest included.
        others: Processes of others on it, by id, with what they hold; None where NVML did not list them.
    """

    index: int
    unix_s: float
    utilisation_percent: float | None
    memory_used_bytes: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: tuple[str, ...] | None
    others: Mapping[int, float | None] | None

    @property
    def held_down(self) -> tuple[str, ...]:
        """Reasons of its clocks that are none of rest."""
        return tuple(each for each in self.throttle or () if each not in RESTING)


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The driver's cache of compiled kernels at one moment.

    Attributes:
        when: `begin`, `server`, `first_step` or `end`.
        path: Its directory.
        files: None if it could not be read.
        size_bytes: None if it could not be read.
    """

    when: str
    path: str
    files: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class LibraryOpened:
    """One CUDA library that was opened before TensorFlow asked for it.

    Attributes:
        name: Its soname.
        path: Where it was found, "" if unknown.
        duration_s: Seconds.
        error: The loader's words, "" if it was opened.
    """

    name: str
    path: str
    duration_s: float | None
    error: str


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What one process of the run told of its node's GPUs.

    Attributes:
        node: Node name.
        devices: By index; () where none was listed.
        error: What NVML said instead, "" if it answered or nobody asked.
        use: In order of time.
        cache: In order of time.
        libraries: As opened.
    """

    node: str
    devices: tuple[GpuFacts, ...]
    error: str
    use: tuple[GpuUse, ...]
    cache: tuple[CacheReading, ...]
    libraries: tuple[LibraryOpened, ...]

    @property
    def grown(self) -> CacheGrowth | None:
        """How the kernel cache changed from the first reading to the last; None without two that could be read."""
        known = [each for each in self.cache if each.files is not None]
        return growth(known[0], known[-1]) if len(known) > 1 else None

    def grown_in(self, first: str, last: str) -> CacheGrowth | None:
        """Return how the kernel cache changed between two moments; None where either was not read."""
        begin = next((each for each in self.cache if each.when == first), None)
        end = next((each for each in reversed(self.cache) if each.when == last), None)
        return None if begin is None or end is None else growth(begin, end)


@dataclass(frozen=True, slots=True)
class CacheGrowth:
    """A change of the kernel cache.

    Attributes:
        path: Its directory.
        files_before: Files at first.
        files: More files afterwards; negative where the driver dropped some.
        bytes_before: Bytes at first.
        size_bytes: More bytes afterwards.
    """

    path: str
    files_before: int
    files: int
    bytes_before: int
    size_bytes: int

    @property
    def compiled(self) -> bool:
        """Whether kernels were compiled: the driver wrote into it."""
        return self.files > 0 or self.size_bytes > 0


def growth(begin: CacheReading, end: CacheReading) -> CacheGrowth | None:
    """Return the change between two readings, None where one could not be read."""
    if begin.files is None or end.files is None:
        return None
    if begin.size_bytes is None or end.size_bytes is None:
        return None
    return CacheGrowth(
        end.path,
        begin.files,
        end.files - begin.files,
        begin.size_bytes,
        end.size_bytes - begin.size_bytes,
    )


def node_gpus(data: RunData) -> tuple[NodeGpus, ...]:
    """Return what the client and each join server told of GPUs, those that told anything."""
    client = [event for event in data.events if event.source == "client"]
    told = [read(data.record.remote.node, client)]
    told += [read(node, events) for node, events in sorted(data.server_events.items())]
    return tuple(each for each in told if each is not None)


def read(node: str, events: Iterable[Event]) -> NodeGpus | None:
    """Return what one process's events tell of GPUs, None where they tell nothing."""
    devices: tuple[GpuFacts, ...] = ()
    error = ""
    use: list[GpuUse] = []
    cache: list[CacheReading] = []
    libraries: tuple[LibraryOpened, ...] = ()
    for event in events:
        if event.kind == wire.GPUS:
            error = event.text("error")
            devices = tuple(map(_facts, objects(event, "devices")))
        elif event.kind == wire.GPU_USAGE:
            use += [gpu_use(each, event.t_s) for each in objects(event, "devices")]
        elif event.kind == wire.KERNEL_CACHE:
            cache.append(_cache(event))
        elif event.kind == wire.LIBRARIES:
            libraries = tuple(map(_library, objects(event, "libraries")))
    if not (devices or error or use or cache or libraries):
        return None
    return NodeGpus(node, devices, error, tuple(use), tuple(cache), libraries)


def objects(event: Event, key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list in an event, [] if it has none."""
    value = event.data.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def gpu_use(each: Mapping[str, Any], unix_s: float) -> GpuUse:
    """Return the use of one device from its object in a `gpu_usage` event."""
    throttle = each.get("throttle")
    others = each.get("others")
    return GpuUse(
        index=int(_number(each, "index") or 0),
        unix_s=unix_s,
        utilisation_percent=_number(each, "utilisation_percent", 100.0),
        memory_used_bytes=_number(each, "memory_used_bytes"),
        sm_clock_mhz=_number(each, "sm_clock_mhz", 1e5),
        memory_clock_mhz=_number(each, "memory_clock_mhz", 1e5),
        power_w=_number(each, "power_w", 1e5),
        temperature_c=_number(each, "temperature_c", 1e3),
        throttle=_names(throttle) if isinstance(throttle, list) else None,
        others={
            int(pid): _number(one, "memory_bytes")
            for one in others
            if isinstance(one, dict) and (pid := _number(one, "pid")) is not None
        }
        if isinstance(others, list)
        else None,
    )


def _facts(each: Mapping[str, Any]) -> GpuFacts:
    persistence = each.get("persistence")
    return GpuFacts(
        index=int(_number(each, "index") or 0),
        name=_text(each, "name"),
        compute_capability=_text(each, "compute_capability"),
        driver=_text(each, "driver"),
        memory_bytes=_number(each, "memory_bytes"),
        persistence=persistence if isinstance(persistence, bool) else None,
        sm_clock_max_mhz=_number(each, "sm_clock_max_mhz", 1e5),
        power_limit_w=_number(each, "power_limit_w", 1e5),
    )


def _cache(event: Event) -> CacheReading:
    return CacheReading(
        event.text("when"), event.text("path"), event.whole("files"), event.whole("bytes")
    )


def _library(each: Mapping[str, Any]) -> LibraryOpened:
    duration_ns = _number(each, "duration_ns")
    return LibraryOpened(
        _text(each, "name"),
        _text(each, "path"),
        None if duration_ns is None else duration_ns / 1e9,
        _text(each, "error"),
    )


def _number(each: Mapping[str, Any], key: str, most: float = _MOST) -> float | None:
    value = each.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= most else None


def _text(each: Mapping[str, Any], key: str) -> str:
    value = each.get(key)
    return value if isinstance(value, str) else ""


def _names(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(each for each in values if isinstance(each, str))
