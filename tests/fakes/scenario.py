"""What a machine's GPUs and driver are to say: one scenario file, read strictly."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

FOLDER = Path(__file__).parent / "scenarios"
HOLDER = "holder"  # in place of a process id: a process that the installer starts on the machine

# Names of NVML's clocks event reasons and their bits (nvml.h, nvmlClocksEventReason*).
CLOCKS_EVENT_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


class ScenarioError(Exception):
    """A scenario file that says something else than the schema knows."""


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU.

    Attributes:
        pid: Its id, or `holder`: the installer starts one and puts its id here.
        name: What `nvidia-smi` calls it.
        memory_mib: What it holds.
    """

    pid: int | Literal["holder"]
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: Product name.
        chip: As lspci's database names it, e.g. `TU104GL [Tesla T4]`.
        pci_id: `vendor:device`, hex.
        pci_address: `domain:bus:device.function`.
        pci_class: `0300` (VGA) or `0302` (3D controller).
        uuid: NVIDIA's.
        compute_capability: E.g. `7.5`.
        memory_mib: In all.
        memory_reserved_mib: Of the driver itself.
        persistence: Persistence mode is on.
        sm_clock_mhz: Now.
        sm_clock_max_mhz: At most.
        memory_clock_mhz: Now.
        memory_clock_max_mhz: At most.
        power_w: Now.
        power_limit_w: In force.
        temperature_c: Of the chip.
        utilisation_percent: Now.
        clocks_event_reasons: Names of `CLOCKS_EVENT_REASONS`.
        processes: Who holds memory.
    """

    name: str
    chip: str
    pci_id: str
    pci_address: str
    uuid: str
    compute_capability: str
    memory_mib: int
    sm_clock_max_mhz: int
    memory_clock_max_mhz: int
    power_limit_w: float
    pci_class: str = "0302"
    memory_reserved_mib: int = 0
    persistence: bool = True
    sm_clock_mhz: int = 300
    memory_clock_mhz: int = 405
    power_w: float = 12.0
    temperature_c: int = 34
    utilisation_percent: int = 0
    clocks_event_reasons: tuple[str, ...] = ("gpu_idle",)
    processes: tuple[Process, ...] = ()

    @property
    def memory_used_mib(self) -> int:
        return self.memory_reserved_mib + sum(each.memory_mib for each in self.processes)

    @property
    def reasons_mask(self) -> int:
        return sum(CLOCKS_EVENT_REASONS[name] for name in self.clocks_event_reasons)


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        version: Of its libraries and tools, "" where they are not installed.
        loaded: Of the kernel module that is loaded, "" for none.
        built: Of the kernel module on disk (`modinfo`), "" for none.
        cuda: Newest CUDA version that it supports.
        flavour: Of the kernel module.
        persistenced: What systemd says of nvidia-persistenced.service.
    """

    version: str = ""
    loaded: str = ""
    built: str = ""
    cuda: str = ""
    flavour: Literal["open", "closed"] = "closed"
    persistenced: Literal["active", "inactive", "absent"] = "absent"


@dataclass(frozen=True)
class DeviceNodes:
    """The files `nvidiactl`, `nvidia-uvm` and `nvidia<k>` in /dev.

    Attributes:
        mode: Permission bits, octal; they belong to root.
        missing: Names that are not there.
    """

    mode: str = "0666"
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """The rest of the machine.

    Attributes:
        release: What `uname -r` says, "" for the true one.
        secure_boot: What `mokutil --sb-state` says; `none` without UEFI.
        modules: Loaded ones beside NVIDIA's, as `lsmod` lists them.
    """

    release: str = ""
    secure_boot: Literal["enabled", "disabled", "none"] = "none"
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class CloudInit:
    """What `cloud-init status --wait` says.

    Attributes:
        status: Its word.
        takes_s: How long it makes wait.
        detail: With `error`, the reason.
    """

    status: Literal["done", "error", "disabled"] = "done"
    takes_s: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Cuda:
    """How the fake driver API and cuBLAS behave.

    Attributes:
        wake_s: What the first client pays where persistence mode is off and no client is left.
        linger_s: How long a device stays awake without a client. Real drivers let go at once.
        context_s: Making a context.
        libraries_s: Opening libcublas.
        handle_s: `cublasCreate_v2`.
        first_product_s: The first product of a process.
        product_s: A later one, on the device's own clock.
        pinned_bytes_per_s: Copies from and to page-locked memory.
        pageable_bytes_per_s: Copies from and to other memory.
        jit_s: Compiling a module from PTX.
        jit_bytes: What that leaves in the kernel cache.
        wrong_product: Products come out wrong.
        hang: Functions that never return.
        errors: Function to the error code that it returns.
        tensorflow_sees_gpus: False: `cuInit` says 100 (no device) to a process with TensorFlow's library in it,
            because a fake cannot run TensorFlow's kernels.
        missing: CUDA libraries, by file name, that the toolkit lacks.
    """

    wake_s: float = 0.0
    linger_s: float = 5.0
    context_s: float = 0.02
    libraries_s: float = 0.0
    handle_s: float = 0.01
    first_product_s: float = 0.02
    product_s: float = 0.001
    pinned_bytes_per_s: float = 12e9
    pageable_bytes_per_s: float = 4e9
    jit_s: float = 0.05
    jit_bytes: int = 4096
    wrong_product: bool = False
    hang: tuple[str, ...] = ()
    errors: dict[str, int] = field(default_factory=dict)
    tensorflow_sees_gpus: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A machine.

    Attributes:
        name: Of its file.
        description: One line.
        driver: NVIDIA's driver.
        gpus: On the PCI bus, driver or not.
        device_nodes: In /dev; none where no module is loaded.
        kernel: The rest of the machine.
        cloud_init: Its state.
        cuda: Fake libraries' behaviour.
    """

    name: str
    description: str
    driver: Driver
    gpus: tuple[Gpu, ...] = ()
    device_nodes: DeviceNodes = DeviceNodes()
    kernel: Kernel = Kernel()
    cloud_init: CloudInit = CloudInit()
    cuda: Cuda = field(default_factory=Cuda)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names in /dev."""
        if not self.driver.loaded:
            return ()
        names = ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(len(self.gpus))))
        return tuple(name for name in names if name not in self.device_nodes.missing)

    def as_data(self) -> dict[str, Any]:
        """Return what the tools read, for `scenario.json`."""
        return dataclasses.asdict(self)

    def as_lines(self) -> str:
        """Return what the libraries read: lines `key=value`, for `scenario.env`."""
        rows: dict[str, object] = {
            "driver_version": self.driver.version,
            "module_version": self.driver.loaded,
            "cuda_version": cuda_number(self.driver.cuda),
            "gpu_count": len(self.gpus),
        }
        for name, value in dataclasses.asdict(self.cuda).items():
            if isinstance(value, bool):
                rows[name] = int(value)
            elif isinstance(value, int | float):
                rows[name] = value
        rows |= {f"error_{name}": code for name, code in self.cuda.errors.items()}
        rows |= {f"hang_{name}": 1 for name in self.cuda.hang}
        for index, gpu in enumerate(self.gpus):
            major, minor = gpu.compute_capability.split(".")
            vendor, device = gpu.pci_id.split(":")
            own: dict[str, object] = {
                "name": gpu.name,
                "uuid": gpu.uuid,
                "pci": gpu.pci_address.upper(),
                "pci_device_id": int(device + vendor, 16),
                "major": major,
                "minor": minor,
                "memory_bytes": gpu.memory_mib << 20,
                "used_bytes": gpu.memory_used_mib << 20,
                "persistence": int(gpu.persistence),
                "sm_clock_mhz": gpu.sm_clock_mhz,
                "sm_clock_max_mhz": gpu.sm_clock_max_mhz,
                "memory_clock_mhz": gpu.memory_clock_mhz,
                "memory_clock_max_mhz": gpu.memory_clock_max_mhz,
                "power_mw": round(gpu.power_w * 1000),
                "power_limit_mw": round(gpu.power_limit_w * 1000),
                "temperature_c": gpu.temperature_c,
                "utilisation_percent": gpu.utilisation_percent,
                "reasons": gpu.reasons_mask,
                "processes": len(gpu.processes),
            }
            for number, process in enumerate(gpu.processes):
                own[f"process{number}_pid"] = process.pid
                own[f"process{number}_bytes"] = process.memory_mib << 20
            rows |= {f"gpu{index}_{name}": value for name, value in own.items()}
        return "".join(f"{name}={value}\n" for name, value in rows.items())

    def with_gpu(self, index: int = 0, **changes: Any) -> Scenario:
        """Return the scenario with one GPU's fields changed."""
        gpus = list(self.gpus)
        gpus[index] = dataclasses.replace(gpus[index], **changes)
        return dataclasses.replace(self, gpus=tuple(gpus))

    def with_cuda(self, **changes: Any) -> Scenario:
        """Return the scenario with the fake libraries' behaviour changed."""
        return dataclasses.replace(self, cuda=dataclasses.replace(self.cuda, **changes))


def cuda_number(version: str) -> int:
    """Return a CUDA version as the driver API numbers it: `12.9` is 12090."""
    major, _, minor = version.partition(".")
    return int(major or 0) * 1000 + int(minor or 0) * 10


def names() -> tuple[str, ...]:
    """Return the names of all scenarios."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yml")))


def load(name: str) -> Scenario:
    """Return one of the scenarios beside this module.

    Raises:
        ScenarioError: There is none of that name, or it does not fit the schema.
    """
    path = FOLDER / f"{name}.yml"
    if not path.is_file():
        raise ScenarioError(f"no scenario {name}; there are {', '.join(names())}")
    return read(path)


def read(path: Path) -> Scenario:
    """Return the scenario of a file; its name is the file's.

    Raises:
        ScenarioError: It does not fit the schema.
    """
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ScenarioError(f"{path.name}: {data!r}, expected a mapping")
    found = _value(Scenario, {"name": path.stem, **data}, path.name)
    assert isinstance(found, Scenario)
    for gpu in found.gpus:
        unknown = set(gpu.clocks_event_reasons) - set(CLOCKS_EVENT_REASONS)
        if unknown:
            raise ScenarioError(f"{path.name}: clocks_event_reasons {', '.join(sorted(unknown))}")
    return found


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _object(kind, value, where)
    if origin in {types.UnionType, typing.Union}:
        for each in args:
            try:
                return _value(each, value, where)
            except ScenarioError:
                continue
        raise ScenarioError(f"{where}: {value!r}, expected {kind}")
    if origin is Literal:
        if value in args and isinstance(value, str):
            return value
        raise ScenarioError(f"{where}: {value!r}, expected one of {', '.join(map(str, args))}")
    if origin is tuple and isinstance(value, list):
        return tuple(_value(args[0], each, f"{where}[{n}]") for n, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {
            _value(args[0], key, where): _value(args[1], each, f"{where}.{key}")
            for key, each in value.items()
        }
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise ScenarioError(f"{where}: {value!r}, expected {kind}")


def _object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ScenarioError(f"{where}: {value!r}, expected a mapping")
    hints = typing.get_type_hints(kind)
    unknown = set(value) - set(hints)
    if unknown:
        raise ScenarioError(f"{where}: unknown {', '.join(sorted(map(str, unknown)))}")
    fields = {name: _value(hints[name], each, f"{where}.{name}") for name, each in value.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise ScenarioError(f"{where}: {error}") from error
