"""Rehearsal labs: systemd machines on this host, made and healed. `teardown` removes them.

Everything on the host is named after the lab's id, so what is there can be found, and removed, without any record.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

from labctl.errors import ConfigError, DeadlineError
from labctl.lab.home import Home, remove_empty
from labctl.providers import host, inventory, keys, machine, network, rootfs, state, teardown
from labctl.providers.base import LabStatus, MachineOptions, MachineStatus, Receipt, Report
from labctl.providers.cgroup import LabCgroup
from labctl.providers.identity import HOST_LOCK, LabIdentity, node_index, node_name
from labctl.providers.image import ADMIN, DEFAULT_RELEASE, ensure_image, host_recipe
from labctl.providers.lock import hold
from labctl.providers.machine import MachineSpec
from labctl.providers.phases import PhaseLog
from labctl.runs.record import LabPhase

DEFAULT_NODES = 2
READY_TIMEOUT_S = 120.0  # eight machines booting on two cores take a fraction of it
_ANSWER_TIMEOUT_S = 20.0  # a machine that ran before and is mute for so long is started anew
# Waits for the end of the boot, then tells when that was on the monotonic clock.
_ASK_READY = [
    "systemctl",
    "is-system-running",
    "--wait;",
    "systemctl",
    "show",
    "--property=FinishTimestampMonotonic",
    "--value",
]
_SLICE_S = 3.0  # of waiting in one ssh; between two the machine's process is looked at


class RehearsalProvider:
    """Makes labs of local machines.

    Args:
        home: Whose labs.
    """

    name = "rehearsal"

    def __init__(self, home: Home) -> None:
        self._home = home

    def owns(self, lab: str) -> bool:
        identity = LabIdentity.of(self._home.root, lab)
        return (
            identity.base.exists()
            or network.has_bridge(identity.bridge)
            or inventory.is_ours(self._home.inventory(lab))
        )

    def half_made(self) -> list[str]:
        """Return the labs of this home that have something on this host and no inventory, sorted."""
        names = {*state.labs_of(self._home.root), *self._home.local_names()}
        return sorted(
            name
            for name in names - set(self._home.labs()) - {"active", "example"}
            if self.owns(name)
        )

    def status(self, lab: str) -> LabStatus:
        identity = LabIdentity.of(self._home.root, lab)
        now = state.load(identity.state_file)
        if now is None:
            return LabStatus(())
        return LabStatus(
            tuple(
                MachineStatus(
                    node_name(index),
                    str(network.node_address(now.subnet, index)),
                    bool(machine.processes(identity, node_name(index))),
                )
                for index in range(now.nodes)
            )
        )

    def down(self, lab: str, *, force: bool, report: Report) -> Receipt:
        host.require_root()
        identity = LabIdentity.of(self._home.root, lab)
        with hold(identity.lock_file, f"labctl down for lab {lab}"):
            return teardown.remove_lab(identity, self._home, force=force, report=report)

    def up(self, lab: str, options: MachineOptions, report: Report) -> LabStatus:
        host.require_root()
        host.require_programs()
        resolver = rootfs.host_resolver()
        inventory.check_writable(self._home.inventory(lab))
        identity = LabIdentity.of(self._home.root, lab)
        identity.check_state_dir()
        umask = os.umask(0o022)  # machines have users of their own; what is private is made so
        try:
            with hold(identity.lock_file, f"labctl up for lab {lab}"):
                phases = self._build(identity, resolver, options, report)
        finally:
            os.umask(umask)
        return replace(self.status(lab), phases=phases)

    def _build(
        self, identity: LabIdentity, resolver: str, options: MachineOptions, report: Report
    ) -> tuple[LabPhase, ...]:
        """Make or heal a lab; where a new one fails before a machine was started, nothing of it stays.

        Returns:
            What it took.
        """
        is_new = not self.owns(identity.lab)
        made = self._home.prepare(identity.lab)
        build = _Build(identity, self._home, resolver, report)
        try:
            build.run(options)
        except BaseException as error:
            left: tuple[str, ...] = ()
            if is_new and not build.has_started:
                left = teardown.undo(identity, self._home)
                remove_empty(made)
            elif is_new or isinstance(error, KeyboardInterrupt):
                left = ("what was made so far",)
            if left:
                report(
                    f"{'; '.join(left)} stays: labctl up --lab {identity.lab} completes it, "
                    f"labctl down --lab {identity.lab} removes it"
                )
            raise
        return build.log.phases()


class _Build:
    """One `labctl up`, the lab's lock held.

    Args:
        identity: Of the lab.
        home: Whose lab.
        resolver: resolv.conf for the machines.
        report: Progress.
    """

    def __init__(self, identity: LabIdentity, home: Home, resolver: str, report: Report) -> None:
        self._identity = identity
        self._home = home
        self._resolver = resolver
        self._report = report
        self._cgroup = LabCgroup(identity.cgroup)
        self._given_up = threading.Event()
        self._memory_before: int | None = None
        self._booted_s: dict[str, float] = {}
        self.has_started = False
        self.log = PhaseLog()

    def run(self, options: MachineOptions) -> None:
        identity = self._identity
        before = state.load(identity.state_file)
        self._memory_before = before.memory_bytes if before else None
        wanted, moved = self._settle(before, options)
        self._remove_surplus(before, wanted)
        folder = self._home.make_local_dir(identity.lab)
        public_key = keys.ensure_key(folder, f"labctl lab {identity.lab}")
        specs = _specs(wanted, identity)

        if moved:
            self._each(specs, lambda spec: machine.stop(identity, spec.node, self._cgroup))
        self._each(specs, lambda spec: self._prepare(spec, public_key))
        known = [(spec.address, rootfs.host_key(identity.paths(spec.node))) for spec in specs]
        keys.write_private(folder / keys.KNOWN_HOSTS, keys.known_hosts_text(known))
        self.has_started = True
        self._each(specs, lambda spec: self._bring_up(spec, folder))
        self._publish(wanted, folder)

    def _settle(
        self, before: state.LabState | None, options: MachineOptions
    ) -> tuple[state.LabState, bool]:
        """Decide what the lab shall be, record it, and make its network.

        Returns:
            The decision, and whether machines that run must be connected anew.

        Raises:
            ConfigError: The release differs from that of the machines there are, or no address range is left.
        """
        identity = self._identity
        wanted = self._decide(before, options)
        with hold(HOST_LOCK, f"labctl up for lab {identity.lab}", wait=self._report):
            taken = network.taken_networks(identity.bridge)
            subnet = network.choose_subnet(taken, before.subnet if before else None)
            wanted = replace(wanted, subnet=subnet)
            if (before.subnet if before else network.FIRST_SUBNET) != subnet:
                self._report(
                    f"network: {subnet}, as another network of this host has the usual one"
                )
            identity.base.mkdir(mode=0o755, parents=True, exist_ok=True)
            state.save(identity.state_file, wanted)  # first, as it says whose lab this is
            identity.uv_cache.mkdir(mode=0o755, parents=True, exist_ok=True)
            identity.machines.mkdir(mode=0o700, exist_ok=True)
            had_bridge = network.has_bridge(identity.bridge)
            with self.log.timed("network", counts=not had_bridge):
                self._make_network(subnet)
            machine.ensure_nspawn_dir()
        return wanted, before is not None and (before.subnet != subnet or not had_bridge)

    def _make_network(self, subnet: IPv4Network) -> None:
        identity = self._identity
        network.ensure_bridge(identity.bridge, subnet)
        network.ensure_nat(identity.nft_table, identity.bridge, subnet)
        network.ensure_forwarding()
        for chain in network.ensure_filter(identity.bridge):
            self._report(
                f"network: this host's {chain} drops forwarded packets; the lab's are accepted"
            )
        for note in network.other_filters(identity.bridge):
            self._report(f"network: {note}")

    def _decide(self, before: state.LabState | None, options: MachineOptions) -> state.LabState:
        lab, images = self._identity.lab, self._identity.images
        release = options.release or (before.release if before else DEFAULT_RELEASE)
        if before is not None and before.release != release:
            raise ConfigError(
                f"lab {lab} runs {before.release}, --release says {release}",
                expected="one release for the life of a lab",
                do=f"labctl down --lab {lab}, then labctl up --lab {lab} --release {release}",
            )
        if before is not None and (images / before.image).is_dir():
            image = before.image
        else:
            there = {each.name for each in images.glob("*")}
            started = time.monotonic()
            image = ensure_image(images, host_recipe(release), self._report).name
            if image not in there:
                self.log.add("image", "", started, time.monotonic())
        return state.LabState(
            lab=lab,
            root=str(self._home.root),
            nodes=options.nodes or (before.nodes if before else DEFAULT_NODES),
            release=release,
            image=image,
            subnet=before.subnet if before else network.FIRST_SUBNET,
            memory_bytes=options.memory_bytes or (before.memory_bytes if before else None),
            cpus_per_node=options.cpus_per_node or (before.cpus_per_node if before else None),
        )

    def _remove_surplus(self, before: state.LabState | None, wanted: state.LabState) -> None:
        """Remove machines beyond the number wanted, and all whose image is not the lab's."""
        identity = self._identity
        strange = before is None or before.image != wanted.image
        for node in teardown.find_nodes(identity, self._cgroup):
            if strange or node_index(node) >= wanted.nodes:
                teardown.remove_machine(identity, node, self._cgroup)
                self._report(f"{node}: removed")

    def _prepare(self, spec: MachineSpec, public_key: str) -> None:
        paths = self._identity.paths(spec.node)
        with self.log.timed("make", spec.node, counts=not paths.base.is_dir()):
            paths.base.mkdir(mode=0o700, exist_ok=True)
            rootfs.mount_root(self._identity, spec)
            rootfs.fill_root(paths, spec, public_key, self._resolver)

    def _bring_up(self, spec: MachineSpec, folder: Path) -> None:
        """Return once a machine takes logins: at once, or after it was started (anew).

        Raises:
            DeadlineError: It runs and does not answer in time.
            RemoteCommandError: It does not run.
        """
        identity, node = self._identity, spec.node
        groups, bound = self._cgroup.make(node, memory_bytes=spec.memory_bytes)
        if not bound:
            self._report(f"{node}: no memory bound, this host's control groups let labctl set none")
        found = machine.processes(identity, node)
        if found:
            if self._wait_ready(spec, folder, lambda: found[0].alive, _ANSWER_TIMEOUT_S) is None:
                with suppress(ProcessLookupError):
                    new = machine.changes(
                        spec,
                        cpus=os.sched_getaffinity(found[0].pid),
                        memory_before=self._memory_before,
                        bound=bound,
                    )
                    self._report("; ".join([f"{node}: {spec.address}, runs", *new]))
                return
            self._report(f"{node}: runs but does not answer; it is started anew")
        machine.stop(identity, node, self._cgroup, orderly=False)
        started = time.monotonic()
        daemon = machine.start(identity, spec, groups)
        problem = self._wait_ready(spec, folder, lambda: daemon.alive, READY_TIMEOUT_S)
        if problem is not None:
            raise machine.failed_to_start(identity, node, problem)
        ready = time.monotonic()
        # Until its systemd had started all, then until a login saw that; the machine has this host's clock.
        booted = min(max(started, self._booted_s.get(node, ready)), ready)
        self.log.add("boot", node, started, booted)
        self.log.add("ssh", node, booted, ready)
        cpus = ",".join(map(str, spec.cpus))
        self._report(f"{node}: {spec.address}, CPU {cpus}, up in {ready - started:.1f} s")

    def _wait_ready(
        self, spec: MachineSpec, folder: Path, alive: Callable[[], bool], timeout_s: float
    ) -> str | None:
        """Wait until a machine's systemd has started all; returns what is wrong instead, None for nothing."""
        argv = keys.login_argv(folder, ADMIN, spec.address, _ASK_READY)
        deadline, problem = time.monotonic() + timeout_s, "it did not answer"
        while time.monotonic() < deadline and not self._given_up.is_set():
            if not alive():
                return "systemd-nspawn ended"
            try:
                answer = host.try_run(argv, timeout_s=_SLICE_S)
            except DeadlineError:
                problem = "its systemd is still starting units"
                continue
            state, _, finished_us = answer.text.partition("\n")
            if state in {"running", "degraded"}:
                if finished_us.isdecimal():
                    self._booted_s[spec.node] = int(finished_us) / 1e6
                if state == "degraded":
                    self._report(f"{spec.node}: a unit has failed there: systemctl --failed")
                return None
            said = answer.stderr.decode("utf-8", "replace").strip().splitlines()
            problem = said[-1] if said else state or problem
            time.sleep(0.2)
        return f"not ready after {timeout_s:.0f} s: {problem}"

    def _each(self, specs: list[MachineSpec], work: Callable[[MachineSpec], object]) -> None:
        """Do something for all machines at once; the first error is raised when all have ended."""
        with ThreadPoolExecutor(max_workers=len(specs)) as pool:
            tasks = [pool.submit(work, spec) for spec in specs]
            try:
                errors = [task.exception() for task in tasks]
            except BaseException:
                self._given_up.set()
                raise
        for error in errors:
            if error is not None:
                raise error

    def _publish(self, wanted: state.LabState, folder: Path) -> None:
        """Write the inventory and make the lab the active one if it is new or none is."""
        target = self._home.inventory(self._identity.lab)
        is_new = not inventory.is_ours(target)
        for note in inventory.write(target, folder, wanted.subnet, wanted.nodes):
            self._report(note)
        if is_new or self._home.active() is None:
            self._home.activate(self._identity.lab)
        _give_to_owner(
            self._home, [folder, *(folder / name for name in keys.FILES), *inventory.files(target)]
        )


def _specs(wanted: state.LabState, identity: LabIdentity) -> list[MachineSpec]:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return [
        MachineSpec(
            index=index,
            subnet=wanted.subnet,
            nodes=wanted.nodes,
            cpus=machine.cpu_share(cpus, index, wanted.nodes, wanted.cpus_per_node),
            memory_bytes=wanted.memory_bytes,
            image=identity.images / wanted.image,
        )
        for index in range(wanted.nodes)
    ]


def _give_to_owner(home: Home, paths: list[Path]) -> None:
    """Give files to the owner of the labs' root: with sudo, the user who will use them."""
    owner = home.root.stat()
    if owner.st_uid == 0:
        return
    for path in (home.inventories, home.inventories / "active", home.root / ".lab", *paths):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
