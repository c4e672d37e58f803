"""Compile the fake libraries, once a process."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "libraries"

# By source: the names under which each is found.
DRIVER = {"nvml": ("libnvidia-ml.so.1",), "cuda": ("libcuda.so.1",)}
# What TensorFlow 2.21 opens (roles/cuda/vars/main.yml), and what those libraries open in turn.
TOOLKIT = {
    "cublas": ("libcublas.so.12",),
    "stub": (
        "libcublasLt.so.12",
        "libcudart.so.12",
        "libcudnn.so.9",
        "libcufft.so.11",
        "libcupti.so.12",
        "libcurand.so.10",
        "libcusolver.so.11",
        "libcusparse.so.12",
        "libnccl.so.2",
        "libnvJitLink.so.12",
        "libnvrtc.so.12",
    ),
}

_FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
)


def compiler_refused() -> str | None:
    """Return why the libraries cannot be compiled here, None when they can."""
    return None if shutil.which("gcc") else "not installed: gcc (make host-packages)"


@functools.cache
def libraries() -> Path:
    """Return a directory with all libraries, in `driver/` and `toolkit/`; removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="labctl-fakes-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for below, sources in (("driver", DRIVER), ("toolkit", TOOLKIT)):
        (folder / below).mkdir()
        for source, names in sources.items():
            for name in names:
                _compile(SOURCES / f"{source}.c", folder / below / name)
    return folder


def _compile(source: Path, target: Path) -> None:
    argv = ["gcc", *_FLAGS, f"-Wl,-soname,{target.name}", "-o", str(target), str(source), "-ldl"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name}: {done.stderr}")
