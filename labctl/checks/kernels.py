"""Which of TensorFlow's kernels a GPU can run as they are, and which the driver must compile first. Pure.

A cubin runs on the same major compute capability with an equal or higher minor one; else the driver compiles PTX of
an equal or lower capability at run time (NVIDIA's compatibility guides; TensorFlow's own check in `gpu_device.cc`
holds majors and minors to the same rule). `compute_NN` in TensorFlow's build info stands for cubin *and* PTX of its
ordinary sources, while the generated element-wise kernels of that target are PTX only: seen in the wheel of
TensorFlow 2.21, 249 fat binaries with sm_90 code and 1149 without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

# `ready`: machine code for all; `small`: for products, not for element-wise kernels; `all`: for none, all of it is
# compiled; `none`: neither machine code nor PTX that fits; `unknown`: one side does not say.
Kernels = Literal["ready", "small", "all", "none", "unknown"]

_TARGET = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?\Z")
_CAPABILITY = re.compile(r"(\d{1,3})\.(\d)\Z")


def kernels_for(capability: str, targets: Sequence[str]) -> Kernels:
    """Return what a build has for a GPU.

    Args:
        capability: The GPU's compute capability, e.g. `8.6`.
        targets: Of the build, e.g. `sm_60`, `compute_90`.
    """
    device = _CAPABILITY.match(capability)
    built = [match for each in targets if (match := _TARGET.match(each)) is not None]
    if device is None or not built:
        return "unknown"
    own = (int(device[1]), int(device[2]))
    fitting = {match[1] for match in built if int(match[2]) == own[0] and int(match[3]) <= own[1]}
    if fitting:
        return "ready" if "sm" in fitting else "small"
    lower = [m for m in built if m[1] == "compute" and (int(m[2]), int(m[3])) <= own]
    return "all" if lower else "none"
