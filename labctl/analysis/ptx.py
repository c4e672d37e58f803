"""What a matrix product costs on a GPU by the instruction table of the question's answer: bounds, not measurements.

The table (`data/ptx_fermi.csv`) is of Fermi's time: for each class of PTX instructions the unit that runs it, the
clocks that one warp's instruction keeps that unit busy, and the clocks until its result is there. The GPUs
(`data/gpus.csv`) are from NVIDIA's data sheets and architecture papers. Both belong to the program; nothing
else is read here.

Assumptions, stated once:

* The column "throughput" is clocks for one warp of 32 threads on 16 lanes: it fits Fermi's 16 load/store lanes
  (32 / 16 = 2) and each of its two groups of 16 arithmetic lanes (2). A GPU with more lanes is faster in
  proportion. The table's row `Float_double` (1) contradicts this reading; the model does not use it.
* Latencies are the table's for every GPU: the claim is tested as it was made.
* Load/store and arithmetic lanes work side by side; addresses and loops cost nothing.
* Blocks of threads are spread evenly; the SM with the most of them decides.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

WARP = 32
TABLE_LANES = 16
LISTING_PRODUCTS = 5  # on each of the question's two machines
QUESTION_S = 15.0
LIBRARY_SHARES = (0.2, 0.8)  # of the peak, what GEMM libraries reach at L near 1000 and above


@dataclass(frozen=True, slots=True)
class Instruction:
    """A class of PTX instructions.

    Attributes:
        category: Its name in the table.
        unit: `LSU`, `ALU` or `SFU`.
        clocks_per_warp: Clocks that one warp's instruction occupies 16 lanes of the unit.
        latency_clocks: Clocks until the result can be used.
        instructions: PTX names.
        note: The table's own.
    """

    category: str
    unit: str
    clocks_per_warp: int
    latency_clocks: int
    instructions: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Attributes:
        name: Short name, as `labctl plan --device` takes it.
        title: Product name.
        architecture: NVIDIA's name of its generation.
        compute_capability: e.g. `3.7`.
        sms: Streaming multiprocessors.
        fp32_lanes: Lanes for float32 in each of them.
        load_lanes: Load/store lanes in each of them.
        max_warps: Warps that one of them can hold.
        clock_ghz: Clock that the peak assumes.
        memory_gb_per_s: Peak of its memory, 10^9 bytes a second.
        host_gb_per_s: Peak of its PCIe link, one direction, 10^9 bytes a second.
        note: What to know of the figures.
    """

    name: str
    title: str
    architecture: str
    compute_capability: str
    sms: int
    fp32_lanes: int
    load_lanes: int
    max_warps: int
    clock_ghz: float
    memory_gb_per_s: float
    host_gb_per_s: float
    note: str

    @property
    def peak_tflops(self) -> float:
        """2 x SMs x lanes x clock / 10^12: a multiply-add counts twice."""
        return 2 * self.sms * self.fp32_lanes * self.clock_ghz / 1e3


@dataclass(frozen=True, slots=True)
class Kernel:
    """A way to write the product.

    Attributes:
        name: Short name.
        what: In plain words.
        tile: Rows and columns of C that a block of threads computes.
        per_thread: Rows and columns of C that one thread keeps in registers.
        shared: Operands go through shared memory, a tile at a time; else each is loaded from global memory for each
            multiply-add.
    """

    name: str
    what: str
    tile: int
    per_thread: int
    shared: bool

    @property
    def warps_per_block(self) -> int:
        """Warps in a block of `(tile / per_thread)^2` threads."""
        return math.ceil((self.tile // self.per_thread) ** 2 / WARP)


KERNELS = (
    Kernel("naive", "two loads from global memory for each multiply-add", 16, 1, shared=False),
    Kernel("tiled", "tiles of 16 x 16 in shared memory", 16, 1, shared=True),
    Kernel("blocked", "tiles of 64 x 64 in shared memory, 4 x 4 in registers", 64, 4, shared=True),
)


@dataclass(frozen=True, slots=True)
class KernelBound:
    """What one L x L product costs by the model, seconds.

    Attributes:
        kernel: How it is written.
        resident_warps: Warps that the busiest SM holds at a time.
        issue_s: Its instructions, one after the other on their lanes, latency hidden.
        latency_s: Waiting for results, shared by the resident warps.
        traffic_s: The two operands read once and the result written once, at the memory's peak.
        lower_s: max(issue, traffic): written so, it cannot be faster by this table.
        resident_s: max(issue, traffic, latency): every warp waits for its own loads, the others hide it.
        alone_s: One warp on each SM, its loads one after the other, no data used twice: the worst that the table
            allows.
    """

    kernel: Kernel
    resident_warps: int
    issue_s: float
    latency_s: float
    traffic_s: float
    lower_s: float
    resident_s: float
    alone_s: float


@cache
def instruction_table() -> tuple[Instruction, ...]:
    """Return the table of the question's answer."""
    return tuple(
        Instruction(
            category=row["category"],
            unit=row["unit"],
            clocks_per_warp=int(row["clocks_per_warp"]),
            latency_clocks=int(row["latency_clocks"]),
            instructions=tuple(row["instructions"].split()),
            note=row["note"],
        )
        for row in _rows("ptx_fermi.csv")
    )


def instruction(category: str) -> Instruction:
    """Return one class of the table.

    Raises:
        KeyError: The table has no such class.
    """
    for each in instruction_table():
        if each.category == category:
            return each
    raise KeyError(category)


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that labctl knows figures of, oldest first."""
    return tuple(
        Gpu(
            name=row["name"],
            title=row["title"],
            architecture=row["architecture"],
            compute_capability=row["compute_capability"],
            sms=int(row["sms"]),
            fp32_lanes=int(row["fp32_lanes"]),
            load_lanes=int(row["load_lanes"]),
            max_warps=int(row["max_warps"]),
            clock_ghz=float(row["clock_ghz"]),
            memory_gb_per_s=float(row["memory_gb_per_s"]),
            host_gb_per_s=float(row["host_gb_per_s"]),
            note=row["note"],
        )
        for row in _rows("gpus.csv")
    )


def find_gpu(name: str) -> Gpu | None:
    """Return the GPU of a name, in capitals or not; None if there is none."""
    return next((each for each in gpus() if each.name.lower() == name.lower()), None)


def issue_clocks(category: str, gpu: Gpu) -> float:
    """Return the clocks that one warp's instruction occupies its unit on one SM: table clocks x 16 / lanes."""
    row = instruction(category)
    lanes = gpu.load_lanes if row.unit == "LSU" else gpu.fp32_lanes
    return row.clocks_per_warp * TABLE_LANES / lanes


def bound(gpu: Gpu, kernel: Kernel, size: int) -> KernelBound:
    r"""Return what one float32 product of two L x L matrices costs.

    With t the tile, r the rows and columns a thread keeps, w_b warps a block and S SMs, the busiest SM has
    W = ceil(ceil(L/t)^2 / S) w_b warps, of which w = min(W, whole blocks within `max_warps`) are resident.
    With c(x) = `issue_clocks` and l(x) = latency of the table's class x, and f the clock:

    * naive, each warp, L times: issue max(2 c(Load_global), c(Float_single)); waiting l(Load_global) +
      l(Float_single), the two loads side by side; alone 2 l(Load_global) + l(Float_single).
    * tiled, each warp, ceil(L/t) times: issue max(LSU, ALU), LSU = 2 r^2 (c(Load_global) + c(Store_shared)) +
      2 r t c(Load_shared), ALU = t r^2 c(Float_single) + 2 c(Synchronization); waiting l(Load_global) +
      l(Store_shared) + 2 l(Synchronization) + l(Load_shared) + t l(Float_single), all loads of a kind side by
      side, a thread's r^2 sums too; alone the same with every load and store after the other and before its
      multiply-adds: 2 r^2 (l(Load_global) + l(Store_shared)) + 2 l(Synchronization) +
      t (2 r l(Load_shared) + l(Float_single)).
    * issue_s = W x issue / f, latency_s = ceil(W / w) x waiting / f, alone_s = max(W x alone / f, issue_s, what
      memory takes when no operand is used twice by two warps), traffic_s = 12 L^2 / memory.

    Not reused, the naive kernel moves 128 bytes of B and a sector of 32 bytes of A for each warp and k; a tiled one
    8 L^3 / t bytes.

    Args:
        gpu: Where.
        kernel: How.
        size: L, at least 1.
    """
    blocks = math.ceil(size / kernel.tile) ** 2
    warps_per_block = kernel.warps_per_block
    warps = math.ceil(blocks / gpu.sms) * warps_per_block
    resident = min(warps, max(1, gpu.max_warps // warps_per_block) * warps_per_block)
    issue, waiting, alone = (_tiled if kernel.shared else _naive)(gpu, kernel, size)
    clock_hz = gpu.clock_ghz * 1e9
    memory = gpu.memory_gb_per_s * 1e9
    issue_s = warps * issue / clock_hz
    latency_s = math.ceil(warps / resident) * waiting / clock_hz
    traffic_s = 12 * size**2 / memory
    unshared_bytes = 8 * size**3 / kernel.tile if kernel.shared else (128 + 32) * size**3 / WARP
    lower_s = max(issue_s, traffic_s)
    resident_s = max(lower_s, latency_s)
    return KernelBound(
        kernel=kernel,
        resident_warps=resident,
        issue_s=issue_s,
        latency_s=latency_s,
        traffic_s=traffic_s,
        lower_s=lower_s,
        resident_s=resident_s,
        alone_s=max(resident_s, warps * alone / clock_hz, unshared_bytes / memory),
    )


def bounds(gpu: Gpu, size: int) -> tuple[KernelBound, ...]:
    """Return the bounds of every kernel."""
    return tuple(bound(gpu, kernel, size) for kernel in KERNELS)


def library_s(gpu: Gpu, size: int) -> tuple[float, float]:
    """Return the range of one product by a GEMM library: 2 L^3 / (share x peak), 80 % first, then 20 %.

    The shares are what public measurements of cuBLAS span at such sizes; the small grid of L = 1000 lowers it.
    """
    low, high = LIBRARY_SHARES
    peak = gpu.peak_tflops * 1e12
    return 2 * size**3 / (high * peak), 2 * size**3 / (low * peak)


def _naive(gpu: Gpu, _: Kernel, size: int) -> tuple[float, float, float]:
    """Return a warp's clocks of issue, of waiting, and of waiting alone."""
    load, fma = instruction("Load_global"), instruction("Float_single")
    issue = max(2 * issue_clocks("Load_global", gpu), issue_clocks("Float_single", gpu))
    waiting = load.latency_clocks + fma.latency_clocks
    return size * issue, size * waiting, size * (waiting + load.latency_clocks)


def _tiled(gpu: Gpu, kernel: Kernel, size: int) -> tuple[float, float, float]:
    """Return the same of a kernel that goes through shared memory."""
    t, r = kernel.tile, kernel.per_thread
    load, store = instruction("Load_global").latency_clocks, instruction("Store_shared")
    shared, fma = instruction("Load_shared").latency_clocks, instruction("Float_single")
    barrier = 2 * instruction("Synchronization").latency_clocks
    lsu = 2 * r * r * (issue_clocks("Load_global", gpu) + issue_clocks("Store_shared", gpu))
    lsu += 2 * r * t * issue_clocks("Load_shared", gpu)
    alu = t * r * r * issue_clocks("Float_single", gpu) + 2 * issue_clocks("Synchronization", gpu)
    waiting = load + store.latency_clocks + barrier + shared + t * fma.latency_clocks
    alone = 2 * r * r * (load + store.latency_clocks) + barrier
    alone += t * (2 * r * shared + fma.latency_clocks)
    steps = math.ceil(size / t)
    return steps * max(lsu, alu), steps * waiting, steps * alone


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("labctl.analysis").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
