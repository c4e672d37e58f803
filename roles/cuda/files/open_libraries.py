"""Open every CUDA library that TensorFlow opens, once by name, as TensorFlow would find it; print what came of it.

Run by the interpreter of TensorFlow's environment, as the user and with the variables that TensorFlow runs with.
`--json` prints a list of objects: name, path (that the loader mapped, null if it was not opened), error (null if it
was), needed (TensorFlow computes on the CPU without it). `--all` adds the libraries that single features open.
Standard library only, Python 3.9 or newer.

The names are TensorFlow 2.21's. They are compiled into its wheel; calling `tsl::internal::DsoLoader::
TryDlopenCUDALibraries()` and `Get*DsoHandle()` of libtensorflow_framework.so.2 under LD_DEBUG=libs shows them. The
wheel looks for each in LD_LIBRARY_PATH, in `nvidia/<package>/lib` beside itself (its RUNPATH), then where the
system's loader looks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sysconfig
from pathlib import Path

# Name to the folder of NVIDIA's wheels that has it, "" for the driver's; each after those that it needs itself.
NEEDED = {
    "libcuda.so.1": "",
    "libcudart.so.12": "cuda_runtime",
    "libcublasLt.so.12": "cublas",
    "libcublas.so.12": "cublas",
    "libcufft.so.11": "cufft",
    "libnvJitLink.so.12": "nvjitlink",  # of libcusparse and libcusolver
    "libcusparse.so.12": "cusparse",
    "libcusolver.so.11": "cusolver",
    "libcudnn.so.9": "cudnn",
}
FOR_FEATURES = {
    "libnvidia-ml.so.1": "",  # watching the GPU
    "libcupti.so.12": "cuda_cupti",  # GPU rows in traces
    "libnccl.so.2": "nccl",  # collective operations
}


def place_of(name: str, folder: str, site: str) -> str:
    """Return the path of a library, or its bare name where only the system's loader may find it."""
    folders = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    if folder:
        folders.append(f"{site}/nvidia/{folder}/lib")
    paths = (f"{each}/{name}" for each in folders)
    return next((path for path in paths if Path(path).exists()), name)


def mapped(name: str) -> str | None:
    """Return the path under which the loader has a library, links followed."""
    stem = name.split(".so", maxsplit=1)[0] + ".so"
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(stem):
                return "/" + path
    return None


def opened(name: str, folder: str, site: str) -> tuple[str | None, str | None]:
    """Open a library; return its path and why it was not opened, one of them None."""
    try:
        ctypes.CDLL(place_of(name, folder, site))
    except OSError as error:
        return None, str(error)
    return mapped(name), None


def main() -> None:
    parser = argparse.ArgumentParser(description="Open the CUDA libraries that TensorFlow opens.")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_argument("--all", action="store_true", help="also those of single features")
    asked = parser.parse_args()
    site = sysconfig.get_path("purelib")
    wanted = {**NEEDED, **(FOR_FEATURES if asked.all else {})}
    rows = []
    for name, folder in wanted.items():
        path, error = opened(name, folder, site)
        rows.append({"name": name, "path": path, "error": error, "needed": name in NEEDED})
    if asked.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['name']:<20} {row['path'] or row['error']}")


if __name__ == "__main__":
    main()
