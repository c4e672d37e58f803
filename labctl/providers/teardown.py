"""Removing a rehearsal lab: what is there, the host itself is asked; a lost or damaged record hides nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from labctl.errors import LabctlError, RemoteCommandError
from labctl.lab.home import Home
from labctl.providers import inventory, keys, machine, mounts, network
from labctl.providers.base import Receipt, Report
from labctl.providers.cgroup import LabCgroup
from labctl.providers.identity import (
    HOST_LOCK,
    LabIdentity,
    is_node_name,
    node_index,
)
from labctl.providers.lock import hold
from labctl.runs.lab_files import BASELINE_FILE, PHASES_FILE


def find_nodes(identity: LabIdentity, cgroup: LabCgroup) -> list[str]:
    """Return the nodes of which anything is on this host, in order."""
    found = cgroup.nodes()
    if identity.machines.is_dir():
        found |= {entry.name for entry in identity.machines.iterdir()}
    found |= machine.running_nodes(identity)
    return sorted((node for node in found if is_node_name(node)), key=node_index)


def remove_machine(
    identity: LabIdentity, node: str, cgroup: LabCgroup, *, lazily: bool = False
) -> bool:
    """Power a machine off and remove all that is its own; returns whether there was anything.

    Raises:
        RemoteCommandError: Something stays; the message says what.
    """
    base = identity.paths(node).base
    there = base.exists() or node in cgroup.nodes() or bool(machine.processes(identity, node))
    if not machine.stop(identity, node, cgroup):
        raise RemoteCommandError(f"machine {node}: a process of it cannot be killed")
    if base.exists():
        mounted = mounts.unmount_below(base, lazily=lazily)
        if mounted:
            raise RemoteCommandError(
                f"machine {node}: {mounted[0]} is in use and cannot be unmounted"
            )
        mounts.remove_tree(base, within=identity.machines)
    if not cgroup.remove(node):
        raise RemoteCommandError(f"machine {node}: its control group cannot be removed")
    return there


def remove_lab(identity: LabIdentity, home: Home, *, force: bool, report: Report) -> Receipt:
    """Remove a lab, its lock held; each thing by itself, so that one that sticks does not save the others."""
    removed: list[str] = []
    stuck: list[str] = []
    cgroup = LabCgroup(identity.cgroup)
    nodes = find_nodes(identity, cgroup)
    if nodes:
        report(f"{', '.join(nodes)}: powering off")
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            tasks = [
                pool.submit(remove_machine, identity, node, cgroup, lazily=force) for node in nodes
            ]
        for node, task in zip(nodes, tasks, strict=True):
            error = task.exception()
            if isinstance(error, LabctlError):
                stuck.append(error.found)
            elif error is not None:
                raise error
            else:
                removed.append(f"machine {node}")

    def attempt(what: str, work: Callable[[], object]) -> None:
        try:
            if work():
                removed.append(what)
        except (LabctlError, OSError) as error:
            stuck.append(f"{what}: {error}".splitlines()[0])

    with hold(HOST_LOCK, f"labctl down for lab {identity.lab}", wait=report):
        attempt(f"bridge {identity.bridge}", lambda: network.remove_bridge(identity.bridge))
        attempt(f"NAT table {identity.nft_table}", lambda: network.remove_nat(identity.nft_table))
        attempt("rules in the host's packet filter", lambda: network.remove_filter(identity.bridge))
        attempt(f"control group {identity.cgroup}", lambda: _remove_cgroup(cgroup))
        attempt("packet forwarding, as it was before", network.restore_forwarding)
        attempt("tmpfs on /run/systemd/nspawn", machine.remove_nspawn_dir)
    if stuck and not force:
        return Receipt(removed=tuple(removed), left=tuple(stuck))

    attempt(f"state {identity.base}", lambda: _remove_state(identity, force=force))
    folder = home.local_dir(identity.lab)
    for name in (*keys.FILES, BASELINE_FILE, PHASES_FILE):
        attempt(f"{folder / name}", partial(_unlink, folder / name))
    target = home.inventory(identity.lab)
    kept: list[str] = []

    def remove_inventory() -> bool:
        gone, own = inventory.remove(target)
        kept.extend(str(path) for path in own)
        return gone

    attempt(f"{target}", remove_inventory)
    home.deactivate(identity.lab)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return Receipt(tuple(removed), (), tuple(stuck), kept=tuple(kept))


def undo(identity: LabIdentity, home: Home) -> tuple[str, ...]:
    """Remove a lab that could not be made, its lock held; returns what stays. Raises nothing labctl expects."""
    try:
        return remove_lab(identity, home, force=False, report=lambda _: None).left
    except (LabctlError, OSError) as error:
        return (str(error).splitlines()[0],)


def _remove_cgroup(cgroup: LabCgroup) -> bool:
    there = cgroup.exists()
    if not cgroup.remove():
        raise RemoteCommandError("a process is still in it")
    return there


def _remove_state(identity: LabIdentity, *, force: bool) -> bool:
    if force:
        identity.state_file.unlink(missing_ok=True)
    if identity.base.is_dir():
        mounts.unmount_below(identity.base, lazily=force)
    return mounts.remove_tree(identity.base, within=identity.base.parent)


def _unlink(file: Path) -> bool:
    there = file.is_symlink() or file.exists()
    file.unlink(missing_ok=True)
    return there
