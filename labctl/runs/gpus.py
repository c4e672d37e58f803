"""A node's GPUs and what its TensorFlow has for them, as they stand in a record."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.runs import bounds


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process that has memory on a GPU.

    Attributes:
        pid: Its process id on the node.
        command: Its name, "" if unknown.
        memory_bytes: What it holds, None if unknown.
    """

    pid: bounds.Count
    command: str
    memory_bytes: bounds.Count | None = None


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as `nvidia-smi` described it before the run; None or "" where it did not say.

    Attributes:
        index: Its number there.
        name: Product name.
        uuid: Of the device.
        driver: Driver version.
        compute_capability: E.g. `8.0`.
        memory_bytes: In all.
        memory_used_bytes: In use.
        persistence: Persistence mode is on.
        sm_clock_mhz: Clock of the multiprocessors then.
        sm_clock_max_mhz: The highest that it can have.
        power_limit_w: Power limit in force.
        temperature_c: Of the chip.
        throttle: Reasons that held its clocks down, by NVML's names in kebab-case, e.g. `sw-power-cap`.
        holders: Processes that had memory on it.
        woke_s: Seconds that the first `nvidia-smi` took beyond a second one: what the driver needed to wake.
    """

    index: bounds.Count
    name: str
    uuid: str = ""
    driver: str = ""
    compute_capability: str = ""
    memory_bytes: bounds.Count | None = None
    memory_used_bytes: bounds.Count | None = None
    persistence: bool | None = None
    sm_clock_mhz: bounds.Clock | None = None
    sm_clock_max_mhz: bounds.Clock | None = None
    power_limit_w: bounds.Watts | None = None
    temperature_c: bounds.Celsius | None = None
    throttle: tuple[str, ...] = ()
    holders: tuple[GpuHolder, ...] = ()
    woke_s: bounds.Seconds | None = None


@dataclass(frozen=True, slots=True)
class CudaState:
    """What a node's TensorFlow brings for GPUs.

    Attributes:
        is_cuda_build: The wheel was built for CUDA.
        capabilities: Targets of its build as its build info states them, e.g. `sm_60`, `compute_90`.
        cuda: CUDA version that it was built for, "" if it does not say.
        cudnn: cuDNN version that it was built for, "" if it does not say.
        missing: Libraries that it will open and that cannot be opened on the node.
        cache_path: Directory of the driver's kernel cache for the user who runs TensorFlow.
        cache_files: Files in it, None if it cannot be read.
        cache_bytes: Bytes in it, None if it cannot be read.
        cache_max_bytes: Its bound, None where the driver's own holds.
        compiles: The first run will compile PTX for a GPU of the node; None if that cannot be told.
    """

    is_cuda_build: bool
    capabilities: tuple[str, ...] = ()
    cuda: str = ""
    cudnn: str = ""
    missing: tuple[str, ...] = ()
    cache_path: str = ""
    cache_files: bounds.Count | None = None
    cache_bytes: bounds.Count | None = None
    cache_max_bytes: bounds.Count | None = None
    compiles: bool | None = None
