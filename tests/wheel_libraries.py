#!/usr/bin/env python3
"""Print the CUDA libraries that an installed TensorFlow opens, by name: its own loader is called and watched.

Run by the interpreter of an environment with TensorFlow's build for CUDA. The loader's functions are exported by
libtensorflow_framework.so.2 (tsl/platform/default/dso_loader.cc); the dynamic linker tells, under LD_DEBUG=libs,
which names they look for. Prints JSON: needed (by TryDlopenCUDALibraries: without one there is no GPU device), all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

LIBRARY = "tensorflow/libtensorflow_framework.so.2"
NEEDED = "_ZN3tsl8internal9DsoLoader22TryDlopenCUDALibrariesEv"
EACH = (
    "_ZN3tsl8internal9DsoLoader22GetCudaDriverDsoHandleEv",
    "_ZN3tsl8internal9DsoLoader23GetCudaRuntimeDsoHandleEv",
    "_ZN3tsl8internal9DsoLoader16GetNvmlDsoHandleEv",
    "_ZN3tsl8internal9DsoLoader17GetCuptiDsoHandleEv",
    "_ZN3tsl8internal9DsoLoader16GetNcclDsoHandleEv",
)
# They return a status through a pointer. The CUDA runtime is opened as soon as the library itself is.
CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    function = getattr(library, name)
    function.restype = None
    function(ctypes.create_string_buffer(256))
"""
NAMES = re.compile(r"find library=(lib(?:cu|nv|nccl)\S+)")


def names(*functions: str) -> list[str]:
    """Return the libraries that functions of TensorFlow's loader look for."""
    path = Path(sysconfig.get_path("purelib")) / LIBRARY
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(path), *functions],
        env={**os.environ, "LD_DEBUG": "libs"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{path}: the loader could not be called:\n{done.stderr[-2000:]}")
    return sorted(set(NAMES.findall(done.stderr)))


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"needed": names(NEEDED), "all": names(NEEDED, *EACH)}) + "\n")
