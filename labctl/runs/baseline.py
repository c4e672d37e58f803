"""What a lab's machines and network can do by themselves: the measure that runs are held against.

Measured once for a lab as it stands (`labctl check --network --compute`, or the first run that traces) and kept
in `.lab/<lab>/baseline.json`; each run's record holds a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from labctl.runs import bounds


@dataclass(frozen=True, slots=True)
class LinkBaseline:
    """One direction between two nodes.

    Attributes:
        source: Sending node.
        target: Receiving node.
        bits_per_s: TCP throughput of one stream, as iperf3's receiver reports it.
        rtt_s: Median round trip of a TCP message of one byte, seconds; None if not measured.
        retransmits: TCP segments sent again, None if unknown.
        at_unix_s: When, Unix time on labctl's clock.
        tool: Program and version that measured.
        load_1min: The larger load average of the two nodes just before, None if unknown.
    """

    source: bounds.Name
    target: bounds.Name
    bits_per_s: bounds.BitsPerS
    rtt_s: bounds.RoundTrip | None
    retransmits: bounds.Count | None
    at_unix_s: bounds.Unix
    tool: str
    load_1min: bounds.Load | None = None


@dataclass(frozen=True, slots=True)
class ComputeBaseline:
    """One node's own peak.

    Attributes:
        node: Node name.
        size: L of the L x L float32 product.
        gflops: 2 L^3 / time / 10^9 of numpy's product, best of its repetitions, one process alone on the node.
        threads: CPUs that it could use.
        library: BLAS that computed, as numpy names it.
        at_unix_s: When, Unix time on labctl's clock.
        load_1min: The node's load average just before, None if unknown.
    """

    node: bounds.Name
    size: bounds.Size
    gflops: bounds.Gflops
    threads: bounds.Threads
    library: str
    at_unix_s: bounds.Unix
    load_1min: bounds.Load | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """All that was measured of a lab.

    Attributes:
        boot_ids: Boot of each node when it was measured; another boot makes it stale.
        links: By direction; empty where no tool could measure.
        compute: By node.
        missing: Why a figure could not be had, one line each.
    """

    boot_ids: dict[str, str]
    links: tuple[LinkBaseline, ...] = ()
    compute: tuple[ComputeBaseline, ...] = ()
    missing: tuple[str, ...] = ()

    def link(self, source: str, target: str) -> LinkBaseline | None:
        """Return one direction, None if it was not measured."""
        return next((e for e in self.links if (e.source, e.target) == (source, target)), None)

    def peak(self, node: str) -> ComputeBaseline | None:
        """Return a node's peak, None if it was not measured."""
        return next((each for each in self.compute if each.node == node), None)
