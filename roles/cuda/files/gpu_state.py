"""Print what the cuda role needs to know of a node, as JSON.

Arguments: TensorFlow's interpreter, the directory of the kernel cache.

Keys: wheel (the build info of TensorFlow, {} where it is not installed: is_cuda_build, cuda_version, cudnn_version,
cuda_compute_capabilities), devices (lines `name, compute capability` of nvidia-smi), driver (its version, "" where
it does not answer), cache_files (in the kernel cache, 0 where it does not exist).
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

WITHIN_S = 60
WANTED = ("is_cuda_build", "cuda_version", "cudnn_version", "cuda_compute_capabilities")


def build_info(python: str) -> dict[str, object]:
    """Return what TensorFlow's build_info.py says, without importing TensorFlow."""
    for path in sorted(
        Path(python).parent.parent.glob(
            "lib/python3*/site-packages/tensorflow/python/platform/build_info.py"
        )
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "OrderedDict":
                found = dict(ast.literal_eval(node.args[0]))
                return {name: found[name] for name in WANTED if name in found}
    return {}


def asked(fields: str) -> list[str]:
    """Return nvidia-smi's lines about some fields, [] where it does not answer."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def main() -> None:
    python, cache = sys.argv[1:]
    print(
        json.dumps(
            {
                "wheel": build_info(python),
                "devices": asked("name,compute_cap"),
                "driver": next(iter(asked("driver_version")), ""),
                "cache_files": sum(len(names) for _, _, names in os.walk(cache)),
            }
        )
    )


main()
