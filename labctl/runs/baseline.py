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
class GpuBaseline:
    """One GPU's own figures, as `labctl check --gpu-probe` measures them without TensorFlow.

    Each of the first five is the time of one step of a cold start, in this order, in a process of its own.

    Attributes:
        node: Node name.
        index: The GPU's number in CUDA's order.
        name: Product name.
        compute_capability: E.g. `8.0`.
        driver: CUDA version that the driver supports, e.g. `12.9`.
        library: cuBLAS that computed, e.g. `libcublas.so.12`.
        size: L of the L x L float32 product.
        wake_s: `cuInit`: the driver wakes the device.
        context_s: Making the primary context.
        libraries_s: Opening cuBLAS.
        handle_s: `cublasCreate`.
        first_product_s: The first product, which loads its kernel.
        warm_product_s: A later one, median.
        gflops: 2 L^3 / warm_product_s / 10^9.
        h2d_bytes_per_s: Host to device, page-locked memory, one L x L matrix; median.
        d2h_bytes_per_s: Device to host, likewise.
        h2d_pageable_bytes_per_s: Host to device from ordinary memory; None if not measured.
        at_unix_s: When, Unix time on labctl's clock.
        d2h_pageable_bytes_per_s: Device to host, likewise.
        warm_low_s: Later products, 5th percentile; None if not measured.
        warm_high_s: Later products, 95th percentile.
        launch_s: A kernel of one thread, from its launch until it is back; None if not measured.
        jit_s: Loading a small kernel that the driver compiles from PTX, without its cache; None if not measured.
        jit_cached_s: The same from the driver's cache.
        awake: Something kept the driver awake, so that `wake_s` is no waking; None if that could not be told.
    """

    node: bounds.Name
    index: bounds.Count
    name: str
    compute_capability: str
    driver: str
    library: str
    size: bounds.Size
    wake_s: bounds.Seconds
    context_s: bounds.Seconds
    libraries_s: bounds.Seconds
    handle_s: bounds.Seconds
    first_product_s: bounds.Seconds
    warm_product_s: bounds.Seconds
    gflops: bounds.Gflops
    h2d_bytes_per_s: bounds.BytesPerS
    d2h_bytes_per_s: bounds.BytesPerS
    h2d_pageable_bytes_per_s: bounds.BytesPerS | None
    at_unix_s: bounds.Unix
    d2h_pageable_bytes_per_s: bounds.BytesPerS | None = None
    warm_low_s: bounds.Seconds | None = None
    warm_high_s: bounds.Seconds | None = None
    launch_s: bounds.Seconds | None = None
    jit_s: bounds.Seconds | None = None
    jit_cached_s: bounds.Seconds | None = None
    awake: bool | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """All that was measured of a lab.

    Attributes:
        boot_ids: Boot of each node when it was measured; another boot makes it stale.
        links: By direction; empty where no tool could measure.
        compute: By node.
        gpus: By node and GPU; empty where none was measured.
        missing: Why a figure could not be had, one line each.
    """

    boot_ids: dict[str, str]
    links: tuple[LinkBaseline, ...] = ()
    compute: tuple[ComputeBaseline, ...] = ()
    missing: tuple[str, ...] = ()
    gpus: tuple[GpuBaseline, ...] = ()

    def link(self, source: str, target: str) -> LinkBaseline | None:
        """Return one direction, None if it was not measured."""
        return next((e for e in self.links if (e.source, e.target) == (source, target)), None)

    def peak(self, node: str) -> ComputeBaseline | None:
        """Return a node's peak, None if it was not measured."""
        return next((each for each in self.compute if each.node == node), None)

    def gpu(self, node: str, index: int = 0) -> GpuBaseline | None:
        """Return a GPU's own figures, None if it was not measured."""
        return next((each for each in self.gpus if (each.node, each.index) == (node, index)), None)
