"""Measuring a lab: TCP between task 0 and each other task by iperf3, float32 products on each node by numpy.

What cannot be measured is named, never raised.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from labctl.checks.collect import NODE_PYTHON, bare, probe
from labctl.checks.facts import LinkFacts, MeansFacts
from labctl.checks.parse import compute_facts, link_facts, means_facts, serve_error
from labctl.checks.reader import FactsError
from labctl.drive.links import Links, Machine, NodeLink
from labctl.drive.timing import Clock
from labctl.errors import LabctlError
from labctl.lab.model import LOOPBACK, Lab
from labctl.runs.baseline import ComputeBaseline, LinkBaseline

PORT = 5201  # roles/lab_base opens it to the lab's peers
UNIT = "labctl-baseline.service"
SIZE = 1000

_PROBE = "baseline_probe"
_TRIES = (
    2  # of each, the best one counts: another's work on the host makes it slower, nothing faster
)
_STREAM_S = 1
_REPEATS = 10
_REPEATS_S = 0.5
# The far end of a measurement: without rights, and ended by systemd even when labctl has died.
_FAR_END = (
    "systemd-run",
    "--quiet",
    "--wait",
    "--pipe",
    "--collect",
    f"--unit={UNIT}",
    "--description=labctl measures the network",
    *(
        f"--property={each}"
        for each in (
            "DynamicUser=yes",
            "RuntimeMaxSec=10",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "ProtectHome=yes",
            "ProtectKernelTunables=yes",
            "ProtectControlGroups=yes",
            "PrivateDevices=yes",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX",
            "RestrictNamespaces=yes",
            "SystemCallArchitectures=native",
            "SystemCallFilter=@system-service",
        )
    ),
    "--",
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Bench:
    """A lab that can be measured.

    Attributes:
        lab: The lab.
        links: Its nodes.
        clock: Where time comes from.
        means: What each node has for it; nodes that could not be asked are absent.
    """

    lab: Lab
    links: Links
    clock: Clock
    means: Mapping[str, MeansFacts]

    @property
    def is_local(self) -> bool:
        return self.lab.name == LOOPBACK


def _python(machine: Machine) -> str:
    return sys.executable if machine.node.ssh is None else NODE_PYTHON


def ask_means(links: Links) -> tuple[dict[str, MeansFacts], list[str]]:
    """Ask every node what it has; returns the answers by node, and why others gave none."""

    def look(machine: Machine) -> MeansFacts:
        answer = probe(machine.executor, _PROBE, {"kind": "look"}, python=_python(machine))
        return means_facts(answer)

    found, problems = {}, []
    for link, future in [(link, link.submit(look)) for link in links.all]:
        try:
            found[link.node.name] = future.result()
        except (LabctlError, FactsError) as error:
            problems.append(f"{link.node.name} could not be asked: {_text(error)}")
    return found, problems


def measure_network(bench: Bench, progress: Progress) -> tuple[tuple[LinkBaseline, ...], list[str]]:
    """Measure both directions between task 0 and each other task, one after the other."""
    without = [name for name, means in bench.means.items() if not means.iperf3]
    problems = [f"iperf3 is not installed on {name}: {_install(bench)}" for name in without]
    found = []
    client = bench.links.client
    for worker in bench.links.workers:
        names = {client.node.name, worker.node.name}
        if names & set(without) or not names <= set(bench.means):
            continue
        for source, target in ((client, worker), (worker, client)):
            progress(f"measuring the network from {source.node.name} to {target.node.name}")
            try:
                found.append(_best(bench, source, target))
            except (LabctlError, FactsError) as error:
                problems.append(
                    f"{source.node.name} to {target.node.name} failed: {_text(error)}; "
                    "labctl check --network tries again"
                )
    return tuple(found), problems


def _install(bench: Bench) -> str:
    return "apt install iperf3" if bench.is_local else f"labctl provision --lab {bench.lab.name}"


def _best(bench: Bench, source: NodeLink, target: NodeLink) -> LinkBaseline:
    """Measure one direction, more than once; a later try may fail.

    Raises:
        LabctlError: A node did not answer the first time.
        FactsError: It could not be measured then.
    """
    best = _direction(bench, source, target)
    for _ in range(_TRIES - 1):
        with suppress(LabctlError, FactsError):
            again = _direction(bench, source, target)
            best = max(best, again, key=lambda each: each.bits_per_s)
    return best


def _direction(bench: Bench, source: NodeLink, target: NodeLink) -> LinkBaseline:
    """Measure one direction.

    Raises:
        LabctlError: A node did not answer.
        FactsError: It could not be measured; the message is what both ends say.
    """
    address = bare(target.node.data_address)
    port = _free_port() if bench.is_local else PORT
    ends = {"address": address, "port": port, "seconds": _STREAM_S}
    far = target.submit(partial(_serve, ends))
    near = source.submit(partial(_link, ends))
    trouble = _outcome(far)
    measured = near.result()
    if measured.error is not None or measured.bits_per_s is None:
        said = [each for each in (measured.error, trouble) if each]
        raise FactsError("; ".join(said) or "iperf3 gave no report")
    return LinkBaseline(
        source=source.node.name,
        target=target.node.name,
        bits_per_s=measured.bits_per_s,
        rtt_s=measured.rtt_s,
        retransmits=measured.retransmits,
        at_unix_s=bench.clock.unix_s(),
        tool=bench.means[source.node.name].iperf3,
        load_1min=_load(bench, source, target),
    )


def _load(bench: Bench, *links: NodeLink) -> float | None:
    loads = [bench.means[link.node.name].load_1min for link in links]
    return max((each for each in loads if each is not None), default=None)


def _serve(ends: Mapping[str, object], machine: Machine) -> str | None:
    is_local = machine.node.ssh is None
    return serve_error(
        probe(
            machine.executor,
            _PROBE,
            {"kind": "serve", **ends},
            python=_python(machine),
            sudo=not is_local,
            within=() if is_local else _FAR_END,
        )
    )


def _link(ends: Mapping[str, object], machine: Machine) -> LinkFacts:
    return link_facts(
        probe(machine.executor, _PROBE, {"kind": "link", **ends}, python=_python(machine))
    )


def _outcome(future: Future[str | None]) -> str | None:
    """Return what went wrong at the far end, None for nothing."""
    try:
        return future.result()
    except (LabctlError, FactsError) as error:
        return _text(error)


def measure_compute(
    bench: Bench, progress: Progress
) -> tuple[tuple[ComputeBaseline, ...], list[str]]:
    """Measure each node's product, at the same time only where nodes share no CPU."""

    def peak(machine: Machine) -> ComputeBaseline:
        request = {"kind": "compute", "size": SIZE, "repeats": _REPEATS, "seconds": _REPEATS_S}
        python = sys.executable if bench.is_local else machine.node.python
        tries = (
            compute_facts(probe(machine.executor, _PROBE, request, python=python))
            for _ in range(_TRIES)
        )
        found = max(tries, key=lambda each: each.gflops)
        name = machine.node.name
        return ComputeBaseline(
            node=name,
            size=SIZE,
            gflops=found.gflops,
            threads=found.threads,
            library=found.library,
            at_unix_s=bench.clock.unix_s(),
            load_1min=bench.means[name].load_1min,
        )

    peaks, problems = {}, []
    progress("measuring the nodes' own products")
    for wave in _waves(bench):
        for link, future in [(link, link.submit(peak)) for link in wave]:
            try:
                peaks[link.node.name] = future.result()
            except (LabctlError, FactsError) as error:
                problems.append(f"{link.node.name} failed: {_text(error)}")
    return tuple(peaks[node.name] for node in bench.lab.nodes if node.name in peaks), problems


def _waves(bench: Bench) -> list[list[NodeLink]]:
    """Return the nodes in groups whose members have CPUs of their own.

    Only nodes of one kernel can share them: rehearsal machines and the loopback lab.
    """
    links = [link for link in bench.links.all if link.node.name in bench.means]
    if bench.lab.provider not in {"rehearsal", LOOPBACK}:
        return [links]
    waves: list[list[NodeLink]] = []
    for link in links:
        mine = bench.means[link.node.name].cpus
        fitting = (
            wave
            for wave in waves
            if all(mine.isdisjoint(bench.means[other.node.name].cpus) for other in wave)
        )
        wave = next(fitting, None)
        if wave is None:
            waves.append([link])
        else:
            wave.append(link)
    return waves


def _free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _text(error: LabctlError | FactsError) -> str:
    return error.found if isinstance(error, LabctlError) else str(error)
