"""A CPU quota on a rehearsal machine from outside, where the machine itself cannot see it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labctl.providers.cgroup import LabCgroup
from labctl.providers.identity import LabIdentity
from labctl.providers.mounts import mounts

PERIOD_US = 20_000


@contextmanager
def cpu_quota(root: Path, lab: str, node: str, share: float) -> Iterator[None]:
    """Grant a machine only a share of one CPU.

    Args:
        root: The lab's root directory.
        lab: Its name.
        node: The machine.
        share: Of one CPU.
    """
    own = LabIdentity.of(root, lab).cgroup
    v1 = next(
        (m.point for m in mounts() if m.fstype == "cgroup" and "cpu" in m.options.split(",")), None
    )
    quota_us = round(share * PERIOD_US)
    if v1 is None:
        unified = next(m.point for m in mounts() if m.fstype == "cgroup2")
        for parent in (unified, unified / own):
            (parent / "cgroup.subtree_control").write_text("+cpu")
        limit = unified / own / node / "cpu.max"
        limit.write_text(f"{quota_us} {PERIOD_US}")
        try:
            yield
        finally:
            limit.write_text("max")
        return
    group = v1 / f"{own}-{node}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        _move(LabCgroup(own).pids(node), group)
        yield
    finally:
        _empty(group, v1)


def _move(pids: set[int], group: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, OSError):  # it has just ended
            (group / "cgroup.procs").write_text(str(pid))


def _empty(group: Path, parent: Path) -> None:
    give_up_s = time.monotonic() + 10
    while True:
        _move({int(pid) for pid in (group / "cgroup.procs").read_text().split()}, parent)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.1)
        else:
            return
