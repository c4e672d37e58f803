#!/usr/bin/env python3
"""What a machine's GPUs can do without TensorFlow: the steps of a cold start, products, copies, compiling PTX.

`labctl check --gpu-probe` sends it to the nodes as text and runs it there; labctl never imports it. It also runs by
itself, on any machine with NVIDIA's driver and a cuBLAS library:

    python3 gpu_probe.py            one JSON document
    python3 gpu_probe.py --table    the same for people

Standard library only, Python 3.9 or newer. Every GPU is measured in a process of its own, which touches nothing of
the driver before the first timed step. Times are of the monotonic clock, those of warm products of CUDA's events.
A step that does not end is ended, whatever the driver does; all that was allocated is freed. docs/gpu.md says how
to read each figure.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import json
import os
import pwd
import random
import re
import select
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

FORMAT = 1
SIZE = 1000
MOST_SIZE = 8192  # the host's part of the check is plain Python: 3 L^2 multiplications
STEP_S = 60.0
TOTAL_S = 280.0
ENVIRONMENT_FILE = "/etc/labctl/cuda.env"
VENV = "/opt/labctl/venv"
BLAS_MAJORS = (13, 12, 11)
COPY_SIZES = (1 << 16, 1 << 20, 1 << 26)
WAYS = (("h2d", "cuMemcpyHtoD_v2"), ("d2h", "cuMemcpyDtoH_v2"))
# Of L / 12, the spread of a row of C x with x of +-1: float32 leaves 1e-6, TF32 3e-4, one wrong element 1e-2.
TOLERANCE = 1e-4
PEDANTIC_MATH = 2  # cublasMath_t
SM_COUNT, MAJOR, MINOR = 16, 75, 76  # CUdevice_attribute
NO_DEVICE = 100  # CUresult
PR_SET_PDEATHSIG = 1

# One thread, x = x / 2 + 1 from memory to memory, often enough for a compiler to have something to do.
PTX = (
    ".version 4.0\n.target sm_50\n.address_size 64\n.visible .entry settle(.param .u64 where)\n{\n"
    ".reg .u64 %rd<3>;\n.reg .f32 %f<2>;\nld.param.u64 %rd1, [where];\n"
    "cvta.to.global.u64 %rd2, %rd1;\nld.global.f32 %f1, [%rd2];\n"
    + "fma.rn.f32 %f1, %f1, 0f3F000000, 0f3F800000;\n" * 512
    + "st.global.f32 [%rd2], %f1;\nret;\n}\n"
).encode()
PTX_LEAST = 5.0  # compute capability that it is for

_NODES = "nvidia-smi; ls -l /dev/nvidia* for this user; CUDA_VISIBLE_DEVICES hides GPUs too"
_DMESG = "dmesg | grep -e NVRM -e Xid says what the driver met; a reboot resets the GPU"
_PTX = "a newer driver; a card of compute capability 5.0 or more"
# Of a CUresult: what should have been, and what helps. Numbers as cuda.h has them; names come from the driver.
ADVICE: dict[tuple[int, ...], tuple[str, str]] = {
    (1,): ("arguments that this driver takes", "a driver for CUDA 11 or newer"),
    (2,): (
        "free memory for three L x L matrices and 64 MiB",
        "nvidia-smi shows who holds it: end that, or measure with a smaller --size",
    ),
    (34,): ("the driver's own libcuda.so.1", "take stubs directories out of LD_LIBRARY_PATH"),
    (46,): ("a GPU that takes another process", "end the one nvidia-smi shows; nvidia-smi -c 0"),
    (100, 101, 304, 800): ("an NVIDIA GPU that this user may open", _NODES),
    (200, 209, 218, 222): ("PTX that the driver can compile", _PTX),
    (214,): ("sound memory", "nvidia-smi -q -d ECC; a GPU that repeats it is broken"),
    (221, 303): ("the driver's libraries, whole", "install the driver anew, all its packages"),
    (802,): ("a fabric that is up", "systemctl start nvidia-fabricmanager"),
    (803,): (
        "kernel module and libcuda.so.1 of one version",
        "reboot: the driver was upgraded, the module that is loaded is still the old one",
    ),
    (804,): (
        "a driver as new as the CUDA library",
        "take cuda-compat out of LD_LIBRARY_PATH, or upgrade the driver",
    ),
}


class ProbeError(Exception):
    """A step that did not succeed: what was found, what was expected, what helps; whether for want of a GPU."""

    def __init__(self, found: str, expected: str, do: str, *, absent: bool = False) -> None:
        super().__init__(found)
        self.lines = {"found": found, "expected": expected, "do": do, "absent": absent}


class Teller:
    """A child's way to its parent: a JSON line when a step begins, one for each set of figures."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def tell(self, **line: Any) -> None:
        os.write(self.handle, (json.dumps(line) + "\n").encode())

    def figures(self, **figures: Any) -> None:
        self.tell(figures=figures)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step; its figure is told only if it succeeds."""
        self.tell(begin=name)
        begun = time.perf_counter()
        yield
        self.figures(**{f"{name}_s": time.perf_counter() - begun})


class Library:
    """A C library whose functions return a status, 0 for success."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            ProbeError: It is not there, or returns another status than 0.
        """
        try:
            status = getattr(self.open, function)(*arguments)
        except AttributeError:
            told = f"{self.name} has no {function}"
            raise ProbeError(told, "the functions of CUDA 11 or newer", "upgrade it") from None
        if status:
            raise self.problem(function, status)

    def problem(self, function: str, status: int) -> ProbeError:
        name = b""
        with suppress(AttributeError):
            self.open.cublasGetStatusName.restype = ctypes.c_char_p
            name = self.open.cublasGetStatusName(status) or b""
        return ProbeError(
            f"{function}: {name.decode() or 'cuBLAS status'} ({status})",
            "a cuBLAS that fits driver and GPU, and free memory for it",
            "nvidia-smi shows the driver's CUDA version and who holds memory; --cublas PATH takes another library",
        )

    @contextmanager
    def held(self, make: str, free: str, *arguments: Any) -> Iterator[ctypes.c_void_p]:
        """Have something made, and freed at the end."""
        what = ctypes.c_void_p()
        self.call(make, ctypes.byref(what), *arguments)
        try:
            yield what
        finally:
            getattr(self.open, free)(what)


class Driver(Library):
    """The CUDA driver's own library, woken.

    Raises:
        ProbeError: It is not there, or does not wake.
    """

    def __init__(self) -> None:
        try:
            super().__init__("libcuda.so.1")
        except OSError as error:
            told = f"the driver's library cannot be opened: {error}"
            do = "install the driver, or put its directory into LD_LIBRARY_PATH"
            raise ProbeError(told, "libcuda.so.1, of NVIDIA's driver", do, absent=True) from None
        self.call("cuInit", 0)

    def problem(self, function: str, status: int) -> ProbeError:
        name = ctypes.c_char_p()
        with suppress(AttributeError):
            self.open.cuGetErrorName(status, ctypes.byref(name))
        fitting = (advice for codes, advice in ADVICE.items() if status in codes)
        expected, do = next(fitting, ("CUDA_SUCCESS", _DMESG))
        told = (name.value or b"CUDA error").decode()
        closed = [node for node, is_open in device_nodes().items() if not is_open]
        do = f"{do}; this user may not open {', '.join(closed)}" if closed else do
        absent = status == NO_DEVICE and "CUDA_VISIBLE_DEVICES" not in os.environ
        return ProbeError(f"{function}: {told} ({status})", expected, do, absent=absent)

    def whole(self, function: str, *arguments: Any) -> int:
        """Return the int that a function writes to its first argument."""
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    def memory(self, size_bytes: int, *, host: bool = False) -> Any:
        """Hold memory on the GPU, or page-locked memory on the host."""
        make, free = ("cuMemAlloc_v2", "cuMemFree_v2")
        if host:
            make, free = ("cuMemAllocHost_v2", "cuMemFreeHost")
        return self.held(make, free, ctypes.c_size_t(size_bytes))

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """Hold a GPU's primary context."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        try:
            yield
        finally:
            self.open.cuDevicePrimaryCtxRelease_v2(device)

    def describe(self, device: int) -> Facts:
        """Return what a GPU is, with the CUDA version of the driver."""
        name, pci = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        self.call("cuDeviceGetName", name, 256, device)
        self.call("cuDeviceGetPCIBusId", pci, 32, device)
        ask = partial(self.whole, "cuDeviceGetAttribute")
        version = self.whole("cuDriverGetVersion")
        return {
            "name": name.value.decode("utf-8", "replace"),
            "compute_capability": f"{ask(MAJOR, device)}.{ask(MINOR, device)}",
            "pci_bus_id": pci.value.decode("utf-8", "replace"),
            "multiprocessors": ask(SM_COUNT, device),
            "driver": f"{version // 1000}.{version % 1000 // 10}",
        }


def blas_paths(request: Facts) -> list[tuple[int, str]]:
    """Return where cuBLAS may lie, best place first: major version, and path or bare name."""
    if request.get("cublas"):
        return [(0, request["cublas"])]
    folders: list[Path] = []
    for base in (request.get("venv"), os.environ.get("VIRTUAL_ENV"), sys.prefix):
        for part in ("cublas", "cu1*") if base else ():
            folders += Path(str(base)).glob(f"lib/python3*/site-packages/nvidia/{part}/lib")
    folders += [Path(each) for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    for pattern in ("cuda*/lib64", "cuda*/targets/*/lib"):
        folders += sorted(Path("/usr/local").glob(pattern), reverse=True)
    names = [(major, f"libcublas.so.{major}") for major in BLAS_MAJORS]
    found = [
        (m, str(each / name)) for each in folders for m, name in names if (each / name).exists()
    ]
    return [*found, *names]


def open_blas(request: Facts, driver_major: int) -> Library:
    """Open the first cuBLAS that can be; those newer than the driver come last.

    Raises:
        ProbeError: None can be opened.
    """
    problems = []
    for _, path in sorted(blas_paths(request), key=lambda each: each[0] > driver_major):
        try:
            with suppress(OSError):  # that of the same directory: cuBLAS finds no other then
                Library(path.replace("libcublas.so", "libcublasLt.so"))
            return Library(path)
        except OSError as error:
            problems.append(str(error))
    raise ProbeError(
        f"no cuBLAS can be opened: {problems[0]}",
        "libcublas.so.11, .12 or .13 in a venv, LD_LIBRARY_PATH, /usr/local/cuda* or ldconfig's list",
        "provision with tensorflow_build: gpu, pip install nvidia-cublas-cu12, or --cublas PATH",
    )


class Product:
    """L x L float32 matrices on a GPU, and C = A B by cuBLAS."""

    def __init__(self, driver: Driver, blas: Library, handle: ctypes.c_void_p, size: int) -> None:
        self.driver, self.blas, self.handle, self.size = driver, blas, handle, size
        self.bytes = 4 * size * size
        chance = random.Random(1)  # noqa: S311 no secret
        # Of a prime length, so that no rows are alike; centred, so that sums stay small.
        pool = array.array("f", (chance.random() - 0.5 for _ in range(99991)))
        values = pool * (2 * size * size // len(pool) + 1)
        self.a, self.b = values[: size * size], values[size * size : 2 * size * size]
        self.places: tuple[ctypes.c_void_p, ...] = ()

    def fill(self, *places: ctypes.c_void_p) -> None:
        """Bring A and B to the first two of three places."""
        self.places = places
        for place, values in zip(places, (self.a, self.b)):  # noqa: B905 Python 3.9 has no strict
            source = ctypes.c_void_p(values.buffer_info()[0])
            self.driver.call("cuMemcpyHtoD_v2", place, source, ctypes.c_size_t(self.bytes))

    def start(self) -> None:
        """Start one product. cuBLAS counts by columns: its B A is C by rows."""
        (a, b, c), size = self.places, self.size
        one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
        shape = (0, 0, size, size, size)
        self.blas.call("cublasSgemm_v2", self.handle, *shape, one, b, size, a, size, zero, c, size)

    def error(self) -> float:
        """Return the largest error of a row of C x against A (B x), x of +-1, relative to L / 12."""
        size = self.size
        c = array.array("f", bytes(self.bytes))
        target = ctypes.c_void_p(c.buffer_info()[0])
        self.driver.call("cuMemcpyDtoH_v2", target, self.places[2], ctypes.c_size_t(self.bytes))
        chance = random.Random(2)  # noqa: S311 no secret
        x = [chance.choice((-1.0, 1.0)) for _ in range(size)]

        def times(matrix: Sequence[float], vector: Sequence[float]) -> list[float]:
            rows = (matrix[start : start + size] for start in range(0, size * size, size))
            return [sum(map(mul, row, vector)) for row in rows]

        pairs = zip(times(c, x), times(self.a, times(self.b, x)))  # noqa: B905
        errors = [abs(found - right) for found, right in pairs]
        return max(min(float("inf"), each) for each in errors) * 12 / size

    def repeat(self, most: int, most_s: float) -> tuple[list[float], list[float]]:
        """Return the times of repeated products: by CUDA's events, and by the host until each is back."""
        on_gpu: list[float] = []
        on_host: list[float] = []
        make = partial(self.driver.held, "cuEventCreate", "cuEventDestroy_v2", 0)
        with make() as begin, make() as end:
            give_up = time.perf_counter() + most_s
            while len(on_host) < most and (len(on_host) < 5 or time.perf_counter() < give_up):
                begun = time.perf_counter()
                self.driver.call("cuEventRecord", begin, None)
                self.start()
                self.driver.call("cuEventRecord", end, None)
                self.driver.call("cuCtxSynchronize")
                on_host.append(time.perf_counter() - begun)
                took_ms = ctypes.c_float()
                self.driver.call("cuEventElapsedTime", ctypes.byref(took_ms), begin, end)
                on_gpu.append(took_ms.value / 1e3)
        return sorted(on_gpu), sorted(on_host)


def copy_rates(driver: Driver, matrix_bytes: int, free_bytes: int) -> Iterator[Facts]:
    """Measure copies of several sizes, both ways, to and from page-locked and ordinary memory."""
    sizes = sorted({matrix_bytes, *(each for each in COPY_SIZES if each <= free_bytes // 2)})
    ordinary = ctypes.create_string_buffer(sizes[-1])
    ctypes.memset(ordinary, 1, sizes[-1])
    pageable = ctypes.cast(ordinary, ctypes.c_void_p)
    with driver.memory(sizes[-1]) as there, driver.memory(sizes[-1], host=True) as locked:
        for memory, host in (("page-locked", locked), ("pageable", pageable)):
            for size, (way, function) in ((size, way) for size in sizes for way in WAYS):
                ends = (there, host) if way == "h2d" else (host, there)
                times: list[float] = []
                give_up = time.perf_counter() + 0.12
                while len(times) < 21 and (len(times) < 4 or time.perf_counter() < give_up):
                    begun = time.perf_counter()
                    driver.call(function, *ends, ctypes.c_size_t(size))
                    driver.call("cuCtxSynchronize")
                    times.append(time.perf_counter() - begun)
                median_s = statistics.median(times[1:])  # the first one warms
                rate = size / median_s
                yield {"way": way, "memory": memory, "size_bytes": size, "bytes_per_s": rate}


def persistence(pci_bus_id: str) -> bool | None:
    """Return whether the driver keeps a GPU awake, as NVML says; None where it does not answer."""
    with suppress(OSError, AttributeError, ProbeError):
        nvml = Library("libnvidia-ml.so.1")
        handle, mode = ctypes.c_void_p(), ctypes.c_int()
        nvml.call("nvmlInit_v2")
        by_pci = "nvmlDeviceGetHandleByPciBusId_v2"
        nvml.call(by_pci, pci_bus_id.encode(), ctypes.byref(handle))
        nvml.call("nvmlDeviceGetPersistenceMode", handle, ctypes.byref(mode))
        return mode.value == 1
    return None


def measure(index: int, request: Facts, child: Teller) -> None:
    """Measure one GPU from the driver's waking on; runs in a process of its own."""
    size = request["size"]
    with child.step("wake"):
        driver = Driver()
    child.tell(count=driver.whole("cuDeviceGetCount"))
    device = driver.whole("cuDeviceGet", index)
    about = driver.describe(device)
    child.figures(**about)
    child.tell(begin="context")
    begun = time.perf_counter()
    with driver.context(device):
        child.figures(context_s=time.perf_counter() - begun)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        child.figures(memory_bytes=total.value, memory_free_bytes=free.value)
        with child.step("libraries"):
            blas = open_blas(request, int(about["driver"].split(".")[0]))
        child.figures(library=Path(blas.name).name, library_path=blas.name)
        child.tell(begin="handle")
        begun = time.perf_counter()
        with blas.held("cublasCreate_v2", "cublasDestroy_v2") as handle:
            child.figures(handle_s=time.perf_counter() - begun)
            multiply(Product(driver, blas, handle, size), child)
        child.tell(begin="copies")
        copies = list(copy_rates(driver, 4 * size * size, free.value))
        child.figures(copies=copies)
        for each in copies:
            if each["size_bytes"] == 4 * size * size:
                kind = each["way"] + ("" if each["memory"] == "page-locked" else "_pageable")
                child.figures(**{f"{kind}_bytes_per_s": each["bytes_per_s"]})
        child.tell(begin="release")
        begun = time.perf_counter()
    child.figures(release_s=time.perf_counter() - begun)
    child.tell(begin="persistence mode")
    child.figures(persistence=persistence(about["pci_bus_id"]))


def multiply(product: Product, child: Teller) -> None:
    """Measure the first product, check it, and measure later ones.

    Raises:
        ProbeError: A product is wrong, or CUDA's own errors.
    """
    driver, blas, size = product.driver, product.blas, product.size
    with suppress(ProbeError):  # a cuBLAS that does not know the mode has no other than float32
        blas.call("cublasSetMathMode", product.handle, PEDANTIC_MATH)
    amount = product.bytes
    with driver.memory(amount) as a, driver.memory(amount) as b, driver.memory(amount) as c:
        with child.step("memory"):
            product.fill(a, b, c)
        with child.step("first_product"):
            product.start()
            driver.call("cuCtxSynchronize")
        child.tell(begin="check of the product")
        error = product.error()
        if error > TOLERANCE:
            raise ProbeError(
                f"the product of {size} x {size} is wrong: off by {error:.1e} of its spread",
                f"at most {TOLERANCE:g}: float32 leaves some 1e-6, TF32 3e-4",
                f"NVIDIA_TF32_OVERRIDE=0 where it is set; else trust nothing of this GPU: {_DMESG}",
            )
        child.figures(relative_error=error, size=size)
        child.tell(begin="warm_product")
        on_gpu, on_host = product.repeat(30, 2.0)
        median_s = statistics.median(on_gpu)
        child.figures(
            warm_product_s=median_s,
            warm_low_s=on_gpu[len(on_gpu) // 20],
            warm_high_s=on_gpu[-1 - len(on_gpu) // 20],
            warm_host_s=statistics.median(on_host),
            warm_n=len(on_gpu),
            gflops=2 * size**3 / median_s / 1e9 if median_s > 0 else None,
        )


def compile_ptx(index: int, variables: dict[str, str], name: str, child: Teller) -> None:
    """Load and run a kernel that the driver must compile, under variables of its cache; a process of its own.

    With the last variables also launch it again and again: the least that any kernel takes.
    """
    os.environ.pop("CUDA_CACHE_MAXSIZE", None)
    os.environ.update(variables)
    child.tell(begin=name)
    driver = Driver()
    value, module, kernel = ctypes.c_float(0), ctypes.c_void_p(), ctypes.c_void_p()
    with driver.context(driver.whole("cuDeviceGet", index)), driver.memory(4) as where:
        driver.call("cuMemcpyHtoD_v2", where, ctypes.byref(value), ctypes.c_size_t(4))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(where))

        def launch() -> float:
            begun = time.perf_counter()
            driver.call("cuLaunchKernel", kernel, *(1,) * 6, 0, None, arguments, None)
            driver.call("cuCtxSynchronize")
            return time.perf_counter() - begun

        with child.step(name):
            driver.call("cuModuleLoadData", ctypes.byref(module), PTX)
            driver.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"settle")
            launch()
        if name == "jit_cached":
            child.figures(launch_s=statistics.median(launch() for _ in range(50)))
        driver.call("cuModuleUnload", module)


def become(user: str) -> None:
    """Give root's rights up for those of the user who will hold the GPUs."""
    account = pwd.getpwnam(user)
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.environ["HOME"] = account.pw_dir


def in_child(
    work: Callable[[Teller], None], user: str | None, step_s: float, end_s: float
) -> Facts:
    """Run work in a process of its own, no step of it longer than it may be, and return what it told."""
    told: Facts = {"figures": {}, "begin": "start"}
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        child = Teller(writer)
        try:
            os.dup2(2, 1)  # a library may print
            if user is not None:
                become(user)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            work(child)
        except ProbeError as error:
            child.tell(error=error.lines)
        except Exception as error:  # noqa: BLE001 the parent tells it
            told_s = f"{type(error).__name__}: {error}"
            child.tell(error=ProbeError(told_s, "no such error", _DMESG).lines)
        finally:
            os._exit(0)
    os.close(writer)
    problem, rest = "", b""
    while not problem:
        left_s = max(0.0, min(step_s, end_s - time.monotonic()))
        if not select.select([reader], [], [], left_s)[0]:
            problem = f"did not end within {left_s:.3g} s"
            os.kill(pid, signal.SIGKILL)
        elif data := os.read(reader, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in map(json.loads, lines):
                told["figures"].update(line.pop("figures", {}))
                told.update(line)
        else:
            break
    os.close(reader)
    return _ended(pid, problem, told)


def _ended(pid: int, problem: str, told: Facts) -> Facts:
    """Wait a while for a child that has closed its pipe or was killed, and say how it ended."""
    give_up = time.monotonic() + 2
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < give_up:
        time.sleep(0.01)
    if ended == (0, 0):
        problem += f"; its process {pid} hangs in the kernel and cannot be ended"
    elif not problem and os.WIFSIGNALED(ended[1]):
        problem = f"its process died of {signal.Signals(os.WTERMSIG(ended[1])).name}"
    if problem:
        told["error"] = ProbeError(f"{told['begin']}: {problem}", "an end", _DMESG).lines
    return told


def device_nodes() -> dict[str, bool]:
    """Return NVIDIA's device nodes, and whether this user may open each."""
    nodes = [node for name in ("nvidia[0-9]*", "nvidia*ctl") for node in Path("/dev").glob(name)]
    return {str(each): os.access(each, os.R_OK | os.W_OK) for each in sorted(nodes)}


def look() -> Facts:
    """Return what can be read of the machine without waking the driver."""
    version = ""
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        version = (re.search(r"\b\d{3,}\.\d+(\.\d+)*", text) or [""])[0]
    pci = 0
    for each in Path("/sys/bus/pci/devices").glob("*"):
        with suppress(OSError):
            is_nvidia = (each / "vendor").read_text(encoding="ascii").startswith("0x10de")
            pci += is_nvidia and (each / "class").read_text(encoding="ascii").startswith("0x03")
    holders, blind, daemon = set(), 0, False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            daemon |= (process / "comm").read_text(encoding="utf-8").startswith("nvidia-persist")
            files = [str(each.readlink()) for each in (process / "fd").iterdir()]
            holders |= {process.name} if any(e.startswith("/dev/nvidia") for e in files) else set()
        except PermissionError:
            blind += 1
        except OSError:
            continue  # it has ended
    return {
        "kernel_module": version, "pci_gpus": pci, "device_nodes": device_nodes(), "persistenced": daemon,
        "held_by": sorted(map(int, holders)), "all_processes_seen": blind == 0,
    }  # fmt: skip


def apply_environment() -> dict[str, str]:
    """Take over the node's variables for CUDA where this process has none, and return all that there are."""
    with suppress(OSError):
        for line in Path(ENVIRONMENT_FILE).read_text(encoding="utf-8").splitlines():
            name, _, value = line.strip().partition("=")
            if name.startswith("CUDA_") or name == "LD_LIBRARY_PATH":
                os.environ.setdefault(name, value.strip("\"'"))
    of_cuda = ("CUDA_", "NVIDIA_", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(of_cuda)}


def probe(request: Facts) -> Facts:
    """Measure the GPUs that are asked for, all by default, one after the other."""
    environment, before = apply_environment(), look()
    answer: Facts = {
        "format": FORMAT,
        "environment": environment,
        "before": before,
        "missing": None,
    }
    gpus, errors = answer.setdefault("gpus", []), answer.setdefault("errors", [])
    user = request.get("user") if os.geteuid() == 0 else None
    end_s = time.monotonic() + request["total_s"]
    run = partial(in_child, user=user, step_s=request["step_s"], end_s=end_s)
    chosen = request.get("gpus") or []
    waiting = list(chosen or [0])
    while waiting:
        index = waiting.pop(0)
        told = run(partial(measure, index, request))
        if not chosen and index == 0:
            waiting = list(range(1, told.get("count", 1)))
        figures = {"index": index, **told["figures"]}
        problems = [told["error"]] if "error" in told else []
        if not problems and float(figures["compute_capability"]) >= PTX_LEAST:
            problems = _compile(index, run, user, figures)
        awake = bool(before["persistenced"] or before["held_by"] or figures.get("persistence"))
        unsure = not before["all_processes_seen"] or figures.get("persistence") is None
        figures["awake"] = None if not awake and unsure else awake
        gpus += [figures] if "name" in figures else []
        errors += [{"gpu": index, **each} for each in problems]
    is_absent = [each.pop("absent") for each in errors]
    # Of root's own making is nvidiactl, wherever libcuda.so.1 is: only nvidia0 and so on count.
    has_node = any(each[-1].isdigit() for each in before["device_nodes"])
    if any(is_absent) and not before["pci_gpus"] and not has_node:
        answer["missing"] = f"no NVIDIA GPU here: {errors[0]['found']}"
        errors.clear()
    return answer


def _compile(
    index: int, run: Callable[..., Facts], user: str | None, figures: Facts
) -> list[Facts]:
    """Measure how long PTX takes: without a cache, with an empty one, with what that left."""
    with tempfile.TemporaryDirectory(prefix="gpu-probe-") as cache:
        os.chown(cache, pwd.getpwnam(user).pw_uid if user is not None else -1, -1)
        kept = {"CUDA_CACHE_DISABLE": "0", "CUDA_CACHE_PATH": cache}
        ways = (("jit", {"CUDA_CACHE_DISABLE": "1"}), ("jit_fill", kept), ("jit_cached", kept))
        for name, variables in ways:
            told = run(partial(compile_ptx, index, variables, name))
            figures.update(told["figures"])
            if "error" in told:
                return [told["error"]]
        figures["jit_cache_files"] = sum(each.is_file() for each in Path(cache).rglob("*"))
    return []


def table(answer: Facts) -> str:
    """Return an answer for people."""
    lines = [answer["missing"]] if answer["missing"] else []
    for gpu in answer["gpus"]:
        lines.append(
            f"GPU {gpu['index']}: {gpu['name']}, compute capability {gpu['compute_capability']}"
        )
        for name, value in gpu.items():
            told = ""
            if name.endswith("bytes_per_s"):
                told = f"{value / 1e9:.3g} GB/s"
            elif name.endswith("_s"):
                told = f"{value * 1e3:.4g} ms"
            elif name.endswith("_bytes"):
                told = f"{value >> 20} MiB"
            elif name not in {"index", "name", "compute_capability", "copies"}:
                told = f"{value:.4g}" if isinstance(value, float) else f"{value}"
            lines += [f"  {name:<28}{told}"] if told else []
        for each in gpu.get("copies", ()):
            size, rate = each["size_bytes"] / 1024, each["bytes_per_s"] / 1e9
            lines.append(f"  {each['way']} {each['memory']:<12}{size:>10.0f} KiB  {rate:.3g} GB/s")
    for each in answer["errors"]:
        lines.append(f"GPU {each['gpu']} failed: {each['found']}")
        lines += [f"  expected  {each['expected']}", f"  do        {each['do']}"]
    return "\n".join(lines)


def main(message: Facts) -> None:
    """Print the answer to a message."""
    sys.stdout.write(json.dumps(probe(message["request"])) + "\n")


def command() -> int:
    """Run as a program; 0 if every GPU was measured, 1 if not, or if there is none."""
    parser = argparse.ArgumentParser(description="Measure a machine's GPUs without TensorFlow.")
    add = parser.add_argument
    add("--size", type=int, default=SIZE, help="L of the L x L float32 product")
    add("--gpu", type=int, action="append", dest="gpus", help="only this one, by CUDA's order")
    add("--table", action="store_true", help="print a table, not JSON")
    add("--cublas", metavar="PATH", help="take this libcublas")
    add("--venv", metavar="DIR", default=VENV, help="look for cuBLAS there first")
    add("--step", type=float, default=STEP_S, dest="step_s", help="longest step, seconds")
    add("--total", type=float, default=TOTAL_S, dest="total_s", help="longest in all, seconds")
    request = vars(parser.parse_args())
    if not 1 <= request["size"] <= MOST_SIZE:
        parser.error(f"--size {request['size']}: expected 1 to {MOST_SIZE}")
    if min(request["gpus"] or [0]) < 0:
        parser.error("--gpu: expected 0 or more")
    if not (0 < request["step_s"] <= 3600 and 0 < request["total_s"] <= 3600):
        parser.error("--step and --total: expected more than 0, at most 3600 seconds")
    try:
        answer = probe(request)
    except KeyboardInterrupt:
        return 130
    shown = table(answer) if request["table"] else json.dumps(answer, indent=2)
    sys.stdout.write(shown + "\n")
    return 1 if answer["errors"] or not answer["gpus"] else 0


if __name__ == "__main__":
    sys.exit(command())
