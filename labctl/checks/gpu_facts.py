"""What a node says of its GPUs and of what its TensorFlow has for them, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labctl.runs.gpus import GpuState


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """GPUs are wanted on every node.

    Attributes:
        size: L of the matrices that must fit, None where that is not known (a script).
    """

    size: int | None = None


@dataclass(frozen=True, slots=True)
class SmiFacts:
    """How `nvidia-smi` answered.

    Attributes:
        code: Exit status; 127 if there is no such program, None if it did not end in time.
        said: Its own words where it did not end well.
        first_s: Seconds that the first call took, which may have woken the driver; None if it did not end.
        second_s: Seconds of the same call once more.
    """

    code: int | None
    said: str
    first_s: float | None
    second_s: float | None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One GPU that `nvidia-smi` lists.

    Attributes:
        state: What goes into a record.
        free_bytes: Memory that nobody holds, None if unknown.
    """

    state: GpuState
    free_bytes: int | None

    @property
    def label(self) -> str:
        """Its name with its number."""
        return f"GPU {self.state.index} ({self.state.name})"


@dataclass(frozen=True, slots=True)
class HolderFacts:
    """A process that has memory on a GPU.

    Attributes:
        gpu: The GPU's number, None if it could not be told.
        pid: Its process id.
        command: Its command line, or its name.
        unit: Its systemd unit, "" if unknown.
        memory_bytes: What it holds, None if unknown.
    """

    gpu: int | None
    pid: int
    command: str
    unit: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """What the user who runs TensorFlow may do, tried in a process of that user's.

    Attributes:
        user: Who was tried; "" if the node does not have that user.
        denied: Why a device node cannot be opened, by path.
        hidden: Device nodes that the running join server's own view of /dev lacks.
        cuda: CUDA version that the driver's library supports, e.g. `12.2`; "" if it did not say.
        init: What `cuInit` returned, None if it could not be called.
        count: GPUs that CUDA shows, None if it did not say.
        error: Why nothing could be tried, else None.
    """

    user: str
    denied: Mapping[str, str]
    hidden: tuple[str, ...]
    cuda: str
    init: int | None
    count: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class WheelFacts:
    """The build info of the node's TensorFlow, read without importing it.

    Attributes:
        error: Why there is none, else None.
        is_cuda: It was built for CUDA.
        capabilities: Targets of its build, e.g. `sm_60`, `compute_90`.
        cuda: CUDA version of its build, "" if it does not say.
        cudnn: cuDNN version of its build, "" if it does not say.
    """

    error: str | None
    is_cuda: bool
    capabilities: tuple[str, ...]
    cuda: str
    cudnn: str


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The driver's cache of compiled kernels, of the user who runs TensorFlow.

    Attributes:
        path: Its directory, "" if unknown.
        files: Files in it, None if it cannot be read.
        size_bytes: Bytes in it, None if it cannot be read.
        max_bytes: Its bound, None where the driver's own holds.
    """

    path: str
    files: int | None
    size_bytes: int | None
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """A library that TensorFlow will open.

    Attributes:
        name: As TensorFlow asks for it.
        error: Why it cannot be opened, "" if it can.
    """

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All of a node's GPU part.

    Attributes:
        persistenced: State of the unit `nvidia-persistenced`, "" without one; read before anything woke the GPU.
        smi: How `nvidia-smi` answered.
        devices: GPUs that it lists, by number.
        holders: Processes with memory on them.
        on_bus: NVIDIA's display devices on the PCI bus, one line each.
        modules: Kernel modules loaded of those that drive or seize NVIDIA's GPUs.
        secure_boot: Secure Boot is on; None if that cannot be told.
        loaded_version: Version of the kernel module that is loaded, "" if none is.
        dev_nodes: Names in /dev.
        access: What the user who runs TensorFlow may do.
        wheel: TensorFlow's build.
        cache: The kernel cache.
        libraries: Those that were tried; None if they were not.
        libraries_error: Why they were not.
    """

    persistenced: str
    smi: SmiFacts
    devices: tuple[DeviceFacts, ...]
    holders: tuple[HolderFacts, ...]
    on_bus: tuple[str, ...]
    modules: tuple[str, ...]
    secure_boot: bool | None
    loaded_version: str
    dev_nodes: tuple[str, ...]
    access: AccessFacts
    wheel: WheelFacts
    cache: CacheFacts
    libraries: tuple[LibraryFacts, ...] | None
    libraries_error: str

    @property
    def answers(self) -> bool:
        """The driver answers and lists a GPU."""
        return self.smi.code == 0 and bool(self.devices)
