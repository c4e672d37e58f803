"""What a process that uses a GPU does beside TensorFlow: wake the driver, open the libraries, watch, count kernels.

A process that uses none never comes here: no import, no phase, no event.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import host, wire
from .events import EventLog
from .nvml import Nvml, NvmlError, load

# What TensorFlow 2.21 opens before it makes a GPU device (tsl/platform/default/dso_loader.cc and
# MaybeTryDlopenGPULibraries), each after those that it needs itself; and the folder of each in NVIDIA's wheels.
LIBRARIES = {
    "libcuda.so.1": "",
    "libcudart.so.12": "cuda_runtime",
    "libcublasLt.so.12": "cublas",
    "libcublas.so.12": "cublas",
    "libcufft.so.11": "cufft",
    "libnvJitLink.so.12": "nvjitlink",
    "libcusparse.so.12": "cusparse",
    "libcusolver.so.11": "cusolver",
    "libcudnn.so.9": "cudnn",
}

VISIBLE = "CUDA_VISIBLE_DEVICES"
CACHE_PATH = "CUDA_CACHE_PATH"
_OWN_CACHE = ".nv/ComputeCache"  # below the home directory: the driver's default


def may_use_gpus(environment: Mapping[str, str]) -> bool:
    """Return whether a join server of this environment may have GPUs: TensorFlow is built for them, none is hidden.

    A lab whose TensorFlow is for GPUs gives its servers a kernel cache; elsewhere the build itself tells.
    """
    if environment.get(VISIBLE) in {"", "-1"}:
        return False
    return CACHE_PATH in environment or host.cuda_version() is not None


class Gpu:
    """One process's dealings with its GPUs.

    Args:
        events: Where they are told.
        head: Process id of the run's first process here, by default this one's.
    """

    def __init__(self, events: EventLog, head: int | None = None) -> None:
        self._events = events
        self._head = os.getpid() if head is None else head
        self._nvml: Nvml | None = None
        self.error: str | None = None
        self._cache = cache_path(os.environ)
        self.kernel_cache("begin")

    def wake(self) -> None:
        """Wake the driver and write what NVML says of the devices; where it does not answer, say so and go on."""
        try:
            with self._events.phase(wire.PHASE_IMPORT_NVML):
                pynvml = load()
            with self._events.phase(wire.PHASE_GPU_WAKE):
                self._nvml = Nvml.open(pynvml, self._head)
        except NvmlError as error:
            self.error = str(error)
            self._events.emit(wire.GPUS, error=self.error)
            self._events.emit(wire.NOTE, text=f"the GPUs of this node are not watched: {error}")
        else:
            self._events.emit(wire.GPUS, devices=self._nvml.facts())

    def open_libraries(self) -> None:
        """Open the CUDA libraries, so that TensorFlow finds them loaded and their time has a row of its own."""
        with self._events.phase(wire.PHASE_GPU_LIBRARIES):
            opened = [_open(name, folder) for name, folder in LIBRARIES.items()]
        self._events.emit(wire.LIBRARIES, libraries=opened)

    def usage(self) -> list[dict[str, Any]] | None:
        """Return the objects of a `gpu_usage` event; None where nothing can be read, or not again so soon."""
        return None if self._nvml is None else self._nvml.usage()

    def kernel_cache(self, when: str) -> None:
        """Write what the driver's cache of compiled kernels holds."""
        files, size_bytes = cache_size(self._cache)
        self._events.emit(
            wire.KERNEL_CACHE, path=str(self._cache), files=files, bytes=size_bytes, when=when
        )


def cache_path(environment: Mapping[str, str]) -> Path:
    """Return the directory of the driver's kernel cache; the CUDA programming guide has the rule."""
    given = environment.get(CACHE_PATH)
    return Path(given) if given else Path(environment.get("HOME", "/")) / _OWN_CACHE


def cache_size(folder: Path) -> tuple[int | None, int | None]:
    """Return files and bytes below a directory: 0 where it does not exist, None where it cannot be read."""
    files = size_bytes = 0
    try:
        if not folder.exists():
            return 0, 0
        os.listdir(folder)  # noqa: PTH208 to be refused, where `walk` passes over it
        for root, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):  # the driver has just dropped it
                    size_bytes += os.lstat(f"{root}/{name}").st_size
                    files += 1
    except OSError:
        return None, None
    return files, size_bytes


def _open(name: str, folder: str) -> dict[str, Any]:
    """Open one library where TensorFlow would find it: on the search path, beside it, or known to the system."""
    begin_ns = time.monotonic_ns()
    place = _place(name, folder)
    error = None
    try:
        ctypes.CDLL(place)
    except OSError as refusal:
        error = str(refusal)
    duration_ns = time.monotonic_ns() - begin_ns
    path = place if "/" in place else None if error else _mapped(name)
    return {"name": name, "path": path, "duration_ns": duration_ns, "error": error}


def _place(name: str, folder: str) -> str:
    """Return a library's path, or its bare name for the loader to find."""
    given = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    wheels = [f"{each}/nvidia/{folder}/lib" for each in sys.path if folder and each]
    places = (f"{each}/{name}" for each in (*given, *wheels))
    return next((each for each in places if os.path.exists(each)), name)  # noqa: PTH110 many, and only names


def _mapped(name: str) -> str | None:
    """Return where the loader found a library, by the kernel's list of what this process has mapped."""
    stem = name.partition(".so")[0] + ".so"
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = (line.partition("/")[1] + line.partition("/")[2] for line in lines if "/" in line)
    return next((path for path in paths if path.rpartition("/")[2].startswith(stem)), None)
