"""One rehearsal machine: a systemd-nspawn container with a file system, an address and SSH keys of its own."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from labctl.errors import RemoteCommandError
from labctl.providers import host, mounts
from labctl.providers.cgroup import LabCgroup
from labctl.providers.identity import LabIdentity, MachinePaths, node_name
from labctl.providers.network import lab_bridges, node_address
from labctl.remote.daemon import Daemon, find_processes, start_daemon

UV_CACHE = "/var/cache/labctl/uv"
STOP_TIMEOUT_S = 5.0
NSPAWN = "systemd-nspawn"
_NSPAWN_DIR = Path("/run/systemd/nspawn")
_NSPAWN_SOURCE = "labctl"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r|[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """What a machine is.

    Attributes:
        index: Its task.
        subnet: The lab's address range.
        nodes: Number of machines in the lab.
        cpus: CPUs of this host that it may use.
        memory_bytes: Bound of its memory, None for none.
        image: Root directory of the image.
    """

    index: int
    subnet: IPv4Network
    nodes: int
    cpus: tuple[int, ...]
    memory_bytes: int | None
    image: Path

    @property
    def node(self) -> str:
        return node_name(self.index)

    @property
    def address(self) -> IPv4Address:
        return node_address(self.subnet, self.index)


def cpu_share(
    cpus: tuple[int, ...], index: int, nodes: int, per_node: int | None
) -> tuple[int, ...]:
    """Return the CPUs of a machine: consecutive shares, from the start again when all are given.

    Args:
        cpus: Those that labctl itself may use.
        index: The machine's index.
        nodes: Number of machines.
        per_node: CPUs of each, default an equal share, at least one.
    """
    count = min(per_node or max(1, len(cpus) // nodes), len(cpus))
    return tuple(sorted({cpus[(index * count + each) % len(cpus)] for each in range(count)}))


def changes(
    spec: MachineSpec, *, cpus: set[int], memory_before: int | None, bound: bool
) -> list[str]:
    """Return what of a machine's wanted bounds is new to it while it runs, and when it applies.

    Args:
        spec: What it shall be.
        cpus: CPUs that it runs on.
        memory_before: Its bound so far, in bytes, None for none.
        bound: The wanted bound is set.
    """
    found = []
    if bound and spec.memory_bytes is None and memory_before is not None:
        found.append("memory no longer bounded, as of now")
    elif bound and spec.memory_bytes is not None and spec.memory_bytes != memory_before:
        found.append(f"memory bound {spec.memory_bytes / 2**20:g} MiB, as of now")
    if cpus != set(spec.cpus):
        wanted, now = (",".join(map(str, sorted(each))) for each in (spec.cpus, cpus))
        found.append(
            f"CPU {wanted} from its next start, {now} until then (poweroff there, then labctl up)"
        )
    return found


def nspawn_argv(identity: LabIdentity, spec: MachineSpec) -> list[str]:
    """Return the command that runs a machine until it powers off."""
    return [
        "taskset",
        "--cpu-list",
        ",".join(map(str, spec.cpus)),
        NSPAWN,
        "--quiet",
        "--boot",
        f"--directory={identity.paths(spec.node).root}",
        f"--machine={identity.machine(spec.node)}",
        f"--hostname={spec.node}",
        f"--network-bridge={identity.bridge}",
        f"--bind={identity.uv_cache}:{UV_CACHE}",
        "--console=read-only",
        "--settings=no",
        "--register=no",
        "--keep-unit",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
    ]


def nspawn_env() -> dict[str, str]:
    """Return the environment of systemd-nspawn."""
    return {
        "PATH": host.PATH,
        "LC_ALL": "C.UTF-8",
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "SYSTEMD_NSPAWN_TMPFS_TMP": "0",  # /tmp on the disk, as on a server
        "TERM": "dumb",
    }


def ensure_nspawn_dir() -> None:
    """Put a tmpfs on /run/systemd/nspawn where /run is a disk, as systemd-nspawn refuses to run there."""
    _NSPAWN_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    covering = [mount for mount in mounts.mounts() if _NSPAWN_DIR.is_relative_to(mount.point)]
    if max(covering, key=lambda mount: len(mount.point.parts)).fstype != "tmpfs":
        host.run(
            ["mount", "-t", "tmpfs", "-o", "mode=0755", _NSPAWN_SOURCE, str(_NSPAWN_DIR)],
            "mounting a tmpfs for systemd-nspawn",
        )


def remove_nspawn_dir() -> bool:
    """Unmount the tmpfs if it is labctl's and nobody needs it any more; returns whether it did.

    A lab that is about to start machines has its bridge already.
    """
    ours = [
        mount
        for mount in mounts.mounts()
        if mount.point == _NSPAWN_DIR and mount.source == _NSPAWN_SOURCE
    ]
    if not ours or lab_bridges() or find_processes(NSPAWN):
        return False
    return all(host.try_run(["umount", str(_NSPAWN_DIR)]).ok for _ in ours)


def processes(identity: LabIdentity, node: str) -> tuple[Daemon, ...]:
    """Return the systemd-nspawn process of a machine; empty when it does not run."""
    word = f"--machine={identity.machine(node)}"
    return tuple(daemon for daemon, words in find_processes(NSPAWN) if word in words)


def running_nodes(identity: LabIdentity) -> set[str]:
    """Return the names of all machines of a lab that run."""
    prefix = f"--machine={identity.machine('')}"
    return {
        word.removeprefix(prefix)
        for _, words in find_processes(NSPAWN)
        for word in words
        if word.startswith(prefix)
    }


def start(identity: LabIdentity, spec: MachineSpec, groups: tuple[Path, ...]) -> Daemon:
    """Start a machine whose file system is mounted and filled; it may end at once and say why on its console."""
    paths = identity.paths(spec.node)
    identity.uv_cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    return start_daemon(
        nspawn_argv(identity, spec),
        log=paths.console,
        env=nspawn_env(),
        groups=groups,
    )


def stop(identity: LabIdentity, node: str, cgroup: LabCgroup, *, orderly: bool = True) -> bool:
    """Power a machine off, or kill it when that takes too long; returns whether nothing of it runs any more."""
    found = processes(identity, node)
    if orderly:
        for daemon in found:
            daemon.signal(signal.SIGTERM)  # systemd-nspawn asks the machine's systemd to power off
        for daemon in found:
            daemon.wait(STOP_TIMEOUT_S)
    for daemon in found:
        daemon.signal(signal.SIGKILL)
    gone = [daemon.wait(STOP_TIMEOUT_S) for daemon in found]
    return cgroup.kill(node) and all(gone)


def console_tail(paths: MachinePaths, lines: int = 12) -> list[str]:
    """Return the last lines of a machine's console, without terminal codes."""
    try:
        text = paths.console.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return []
    plain = [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()]
    return [line for line in plain if line][-lines:]


def failed_to_start(identity: LabIdentity, node: str, why: str) -> RemoteCommandError:
    """Return the error for a machine that does not come up, with the end of its console."""
    paths = identity.paths(node)
    tail = "\n".join(f"    {line}" for line in console_tail(paths)) or "    (nothing)"
    return RemoteCommandError(
        f"{node} did not come up: {why}; its console ends with\n{tail}",
        do=f"read {paths.console}; labctl down and labctl up make the machine anew",
    )
