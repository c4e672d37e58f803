"""Runs made up on GPUs: what their processes told, and traced steps as TensorFlow's sources have their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labctl.analysis.explain import explain
from labctl.analysis.explained import Explained
from labctl.analysis.model import StepTrace
from labctl.node import wire
from labctl.runs.baseline import Baseline, GpuBaseline
from labctl.runs.events import Event
from labctl.runs.gpus import CudaState, GpuState
from labctl.runs.record import NodeFacts
from tests.unit.explained_samples import explained, traced
from tests.unit.made_traces import MB4, Row, op, recv, run_data, source
from tests.unit.stories import MATPOW, START_S, TF0, TF1, event, phase

GPU = replace(MATPOW, device="gpu", soft_placement=False)
CACHE = "/var/cache/labctl"
T4 = GpuState(
    0,
    "Tesla T4",
    driver="580.95.05",
    compute_capability="7.5",
    memory_bytes=16 * 2**30,
    memory_used_bytes=3 * 2**20,
    persistence=True,
    sm_clock_max_mhz=1590,
    power_limit_w=70.0,
    woke_s=0.02,
)
CUDA = CudaState(
    is_cuda_build=True,
    capabilities=("sm_60", "sm_70", "compute_90"),
    cuda="12.5.1",
    cudnn="9",
    cache_path=CACHE,
    cache_files=4,
    cache_bytes=8_000_000,
    cache_max_bytes=100_000_000,
    compiles=False,
)


def nodes(gpu: GpuState = T4, cuda: CudaState | None = CUDA) -> tuple[NodeFacts, ...]:
    """Return two nodes with a GPU each."""
    versions = {"tensorflow": "2.21.0", "driver": "580.95.05", "cuda": "12.5.1"}
    return tuple(replace(node, versions=versions, gpus=(gpu,), cuda=cuda) for node in (TF0, TF1))


def probe(node: str = "tf0", **changes: Any) -> GpuBaseline:
    """Return what the probe measured of a node's GPU: 0.3 s for handle and first product."""
    measured = GpuBaseline(
        node=node,
        index=0,
        name="Tesla T4",
        compute_capability="7.5",
        driver="580.95.05",
        library="cuBLAS 12.5",
        size=1000,
        wake_s=0.1,
        context_s=0.2,
        libraries_s=0.15,
        handle_s=0.1,
        first_product_s=0.201,
        warm_product_s=0.001,
        gflops=2000.0,
        h2d_bytes_per_s=6e9,
        d2h_bytes_per_s=6.5e9,
        h2d_pageable_bytes_per_s=None,
        at_unix_s=START_S,
    )
    return replace(measured, **changes)


def use(at_s: float, *, task: int = 0, **figures: Any) -> Event:
    """Return a reading of one GPU that computes at its highest clock, but for what is given."""
    device = {
        "index": 0,
        "utilisation_percent": 95,
        "memory_used_bytes": 600 * 2**20,
        "sm_clock_mhz": 1590,
        "memory_clock_mhz": 5001,
        "power_w": 65.0,
        "temperature_c": 61,
        "throttle": [],
        "others": [],
        **figures,
    }
    who = "join-server" if task else "client"
    return event(wire.GPU_USAGE, at_s, source=who, task=task, devices=[device])


def listed(at_s: float, **facts: Any) -> Event:
    """Return the `gpus` event of a process with a T4."""
    device = {
        "index": 0,
        "name": "Tesla T4",
        "uuid": "GPU-1",
        "pci": "00000000:00:1E.0",
        "driver": "580.95.05",
        "compute_capability": "7.5",
        "memory_bytes": 16 * 2**30,
        "persistence": True,
        "sm_clock_max_mhz": 1590,
        "memory_clock_max_mhz": 5001,
        "power_limit_w": 70.0,
        **facts,
    }
    return event(wire.GPUS, at_s, devices=[device])


def cache(at_s: float, when: str, files: int | None, size_bytes: int | None) -> Event:
    """Return a reading of the kernel cache."""
    return event(wire.KERNEL_CACHE, at_s, path=CACHE, files=files, bytes=size_bytes, when=when)


def caches(begin: int | None = 4, server: int | None = 4, first: int | None = 4) -> list[Event]:
    """Return the client's readings, by files; each file has 2 MB."""
    told = (
        (0.9, "begin", begin),
        (2.52, "server", server),
        (5.0, "first_step", first),
        (8.05, "end", first),
    )
    return [
        cache(at_s, when, files, None if files is None else files * 2_000_000)
        for at_s, when, files in told
    ]  # fmt: skip


def libraries(at_s: float = 2.4) -> Event:
    """Return the `libraries` event: cuBLAS took longest."""
    opened = [
        {"name": "libcudart.so.12", "path": "/l/libcudart.so.12", "duration_ns": 10**7, "error": None},
        {"name": "libcublas.so.12", "path": "/l/libcublas.so.12", "duration_ns": 2 * 10**8, "error": None},
    ]  # fmt: skip
    return event(wire.LIBRARIES, at_s, libraries=opened)


def on_gpu(
    *,
    trace: StepTrace | None = None,
    uses: Sequence[Event] | None = None,
    early: Sequence[Event] = (),
    readings: Sequence[Event] | None = None,
    gpus: Sequence[GpuBaseline] = (),
    wake_s: float = 0.05,
    libraries_s: float = 0.25,
    extra: Sequence[Event] = (),
    **more: Any,
) -> Explained:
    """Return a run whose products ran on GPUs, its warm steps from 3.2 to 6.0 s.

    Args:
        trace: Its traced step.
        uses: Readings of NVML in the steps; two of a GPU at its highest clock by default.
        early: Readings before the client's server.
        readings: Of the kernel cache; one that does not grow by default.
        gpus: The probe's.
        wake_s: Of the driver.
        libraries_s: To open CUDA's libraries.
        extra: Further events of the client.
        more: See `explained_samples.explained`.
    """
    told = [
        listed(0.99),
        *phase(wire.PHASE_GPU_WAKE, 0.94, 0.94 + wake_s),
        *phase(wire.PHASE_GPU_LIBRARIES, 6.1, 6.1 + libraries_s),  # where no other phase is
        libraries(),
        *phase(wire.PHASE_WARM_STEPS, 3.2, 6.0),
        *early,
        *([use(4.0), use(4.5)] if uses is None else uses),
        *(caches() if readings is None else readings),
        *extra,
    ]
    more = {"parameters": GPU, "nodes": nodes(), **more}
    if gpus:
        more["baseline"] = Baseline({}, gpus=tuple(gpus))
    whole = explained(trace or traced(device="GPU:0"), extra=told, **more)
    ordered = sorted(whole.data.events, key=lambda each: each.t_ns)
    return replace(whole, data=replace(whole.data, events=tuple(ordered)))


# Step stats

GPU_OF = "/job:local/replica:0/task:{}/device:GPU:0"


def kernel(name: str, start_us: float, end_us: float, stream: str = "13") -> Row:
    """Return a kernel's row: `ConvertGpuXSpaceToStepStats` has neither job nor task in its device."""
    return Row(
        f"/device:GPU:0/stream:{stream}",
        f"{name}:MatMul",
        "volta_sgemm_128x64_nn regs:122 static_shared:12544 dynamic_shared:0 grid:16,8,1 block:128,1,1",
        start_us,
        end_us,
    )


def memcpy(
    kind: str,
    name: str,
    start_us: float,
    end_us: float,
    size_bytes: int | None = MB4,
    *,
    queued_us: float | None = None,
    memory: str = "pinned",
    device: str = "",
) -> Row:
    """Return a copy's row, `kind` H2D or D2H."""
    ends = ("device", memory) if kind == "D2H" else (memory, "device")
    size = f" size:{size_bytes}" if size_bytes is not None else ""
    return Row(
        device or f"/device:GPU:0/stream:{15 if kind == 'H2D' else 16}<Memcpy{kind}>",
        name,
        f"Memcpy{kind} kind_src:{ends[0]} kind_dst:{ends[1]}{size} dest:0 async:1",
        start_us,
        end_us,
        queued_us=queued_us,
    )


def gpu_step(*, streams: bool = True) -> list[Row]:
    """Return a fed step of two tasks with a GPU each, two products on each; without CUPTI if not `streams`."""
    rows: list[Row] = []
    for task in (1, 0):
        late = 3_000 if task else 0
        first, last = ("MatMul_2", "MatMul_3") if task else ("MatMul", "MatMul_1")
        feed = f"_recv_input_{task}_0"
        if streams:
            rows += [
                kernel(first, 2_600 + late, 6_600 + late),
                kernel(last, 6_600 + late, 10_600 + late),
                *(
                    kernel(name, begin + late, end + late, "all")
                    for name, begin, end in ((first, 2_600, 6_600), (last, 6_600, 10_600))
                ),
                memcpy("H2D", f"edge_5_{feed}", 1_500 + late, 2_500 + late, queued_us=1_200 + late),
                memcpy("H2D", f"edge_5_{feed}", 1_500 + late, 2_500 + late, device="/device:GPU:0/memcpy"),
                memcpy("D2H", "MemcpyD2H", 10_600 + late, 11_400 + late, memory="pageable"),
                Row("/device:GPU:0/sync", "cuStreamSynchronize", "ThreadId 4", 11_300 + late, 11_420 + late),
            ]  # fmt: skip
        rows += [
            source(task, 1_000),
            op(task, first, "MatMul", f"{feed}/_3, {feed}/_3", 1_300 + late, 1_340 + late, GPU_OF.format(task)),
            op(task, last, "MatMul", f"{first}, {feed}/_3", 1_350 + late, 1_380 + late, GPU_OF.format(task)),
        ]  # fmt: skip
    rows += [
        recv("_recv_input_1_0", 0, 1, 1_100, 4_000),
        recv("MatMul_3", 1, 0, 14_450, 17_000),
        op(0, "total", "AddN", "MatMul_1/_5, MatMul_3_S3", 17_100, 17_300),
    ]
    return rows


def traced_on_gpus() -> Explained:
    """Return a run on two GPUs by its step stats, with readings of NVML and a probe of one GPU."""
    data = run_data(gpu_step(), duration_ms=19, warm_ms=[19.0, 19.0])
    record = replace(
        data.record, parameters=GPU, nodes=nodes(), baseline=Baseline({}, gpus=(probe(),))
    )
    events = (*data.events, listed(8.0), use(9.0), use(9.5))
    ordered = tuple(sorted(events, key=lambda each: each.t_ns))
    return explain(replace(data, record=record, events=ordered))
