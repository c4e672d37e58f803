"""What the command line says of a cloud, checked as far as that needs no lab."""

from __future__ import annotations

from typing import Any

from labctl.errors import UsageError
from labctl.providers.cloud.catalogue import parse_gpu
from labctl.providers.cloud.model import CloudOptions


def cloud_options(
    *, gpu: str | None = None, disk: int | None = None, **others: Any
) -> CloudOptions:
    """Return the options of `up`.

    Args:
        gpu: `T4`, `T4:2` or `none`.
        disk: Boot disk, GB.
        others: Fields of CloudOptions as they are.

    Raises:
        UsageError: One cannot be meant.
    """
    for name, option in (("max_hours", "--max-hours"), ("idle_minutes", "--idle-minutes")):
        value = others.get(name)
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{option} {value}", expected="0 or more; 0 is never")
    gpu_type, gpu_count = (None, None) if gpu is None else parse_gpu(gpu)
    return CloudOptions(gpu_type=gpu_type, gpu_count=gpu_count, disk_gb=disk, **others)
