"""What each figure of the page means: shown on hover there, listed in docs/report.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that the page shows.

    Attributes:
        label: How the page calls it.
        unit: Its unit, "" for a plain number or a word.
        meaning: Its definition, one or two sentences.
    """

    label: str
    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    # The run
    "wall": Metric(
        "wall time", "s", "From the start of the labctl command to its end, on labctl's clock."
    ),
    "unexplained": Metric(
        "unexplained", "s", "Wall time that no row of the ledger covers: wall time minus their sum."
    ),
    "cold_step": Metric(
        "cold step", "ms", "The process's first step: connection, placement and kernels included."
    ),
    "warm_median": Metric(
        "warm median", "ms", "Median of all later steps; traced and probe steps are left out."
    ),
    "warm_p95": Metric(
        "warm p95",
        "ms",
        "95th percentile of the warm steps, linear between the two nearest ranks.",
    ),
    "warm_n": Metric("warm steps", "", "Number of warm steps that the median is taken of."),
    "section": Metric(
        "section under test",
        "ms",
        "The question's section: from before the session is opened to the end of the first step.",
    ),
    "stopwatch": Metric(
        "stopwatch", "µs", "The question's stopwatch: from the start of the client to its end."
    ),
    "relative_error": Metric(
        "relative error",
        "",
        "Of the first step's result against float64: norm of the difference over the norm.",
    ),
    "power_computed": Metric(
        "power computed", "", "Factors in each product; the question's listing makes n + 1 of n."
    ),
    "products": Metric("products", "", "Matrix products in one step, all tasks together."),
    # Verdicts
    "cost": Metric(
        "cost", "ms or s", "What a cause takes of a warm step, or once in the run if it says so."
    ),
    "confidence": Metric(
        "confidence", "", "How sure the rule is: high, medium or low; docs/causes.md says why."
    ),
    "step_share": Metric(
        "share of the step", "%", "The cost of a cause as a part of the median warm step."
    ),
    # Ledger
    "start": Metric("start", "s", "After the start of the labctl command, on labctl's clock."),
    "duration": Metric("duration", "s", "Length of the row; rows of one ledger never overlap."),
    "share": Metric("share", "%", "The row's duration as a part of the wall time."),
    "source": Metric(
        "source", "", "Who measured it: labctl, the client, a join server, or systemd."
    ),
    # Steps
    "step_index": Metric("step", "", "Number of the step in its process, the cold one is 0."),
    "step_start": Metric("start", "s", "Start of the step after the start of the first one."),
    "step_duration": Metric(
        "duration", "ms", "Wall time of one call of the session, as the client saw it."
    ),
    "tracing_ratio": Metric(
        "tracing cost",
        "warm = 1",
        "Median of the traced steps over the median of the warm ones; the two are never mixed.",
    ),
    # Where a step goes
    "split_time": Metric(
        "time",
        "ms",
        "Part of a median warm step: the critical path of the traced step, scaled to it.",
    ),
    "split_share": Metric("share", "%", "The part as a share of the median warm step."),
    # Traced step
    "traced_step": Metric("traced step", "ms", "Wall time of the traced step that is drawn."),
    "began": Metric("began", "ms", "When this task's part of the graph started, after the step."),
    "ended": Metric("ended", "ms", "When the task's last op ended, after the step's start."),
    "compute": Metric(
        "compute", "ms", "Time in which at least one op of the task ran (union of its ops)."
    ),
    "op_sum": Metric("op sum", "ms", "Sum of the times of all ops of the task."),
    "task_products": Metric("products", "", "Matrix products that ran on this task, by device."),
    "gflops": Metric(
        "rate", "GFLOP/s", "2 L³ times the number of products over the time of the products."
    ),
    "overlap": Metric(
        "overlap",
        "ms",
        "Time that the tasks saved by computing at once: sum of their compute minus its union.",
    ),
    "dispatch": Metric("dispatch", "ms", "From the start of the step to the first op."),
    "fetch": Metric(
        "fetch",
        "ms",
        "From the end of the last op to the end of the step: the result's way to Python.",
    ),
    # Edges
    "edge_size": Metric("size", "MB", "Size of the tensor, 10⁶ bytes."),
    "asked": Metric("asked", "ms", "When the receiver asked for the tensor, after the step began."),
    "answered": Metric("answered", "ms", "When the sender began to answer, by the sender's clock."),
    "arrived": Metric("arrived", "ms", "When the tensor was there, by the receiver's clock."),
    "waited": Metric("waited", "ms", "From asked to answered: the sender was not ready."),
    "wire": Metric("wire time", "ms", "From answered to arrived."),
    "rate": Metric("rate", "MB/s", "Size over wire time, 10⁶ bytes a second."),
    "baseline_share": Metric(
        "of baseline", "%", "Rate as a part of what one TCP stream reached between these nodes."
    ),
    "clock_error": Metric(
        "clock bound", "ms", "Bound of the error of `answered` against the receiver's stamps."
    ),
    # Copies
    "queued": Metric("queued", "ms", "When the host put the copy into the GPU's stream."),
    "copy_start": Metric("began", "ms", "When the copy began on the GPU, by CUPTI."),
    "copy_time": Metric("copy time", "ms", "From the copy's begin to its end, by CUPTI."),
    "copy_rate": Metric("rate", "MB/s", "Size over copy time, 10⁶ bytes a second."),
    # Utilisation
    "cpu": Metric(
        "CPU", "%", "CPU time of the process over wall time; 100 % is one CPU kept busy."
    ),
    "cpu_wait": Metric(
        "waiting for a CPU",
        "%",
        "Time that threads of the process were ready and had no CPU, over wall time.",
    ),
    "node_busy": Metric("node busy", "%", "Busy time of all CPUs of the node over their whole."),
    "steal": Metric("steal", "%", "Time that the hypervisor gave to others, over the whole."),
    "rss": Metric("memory", "MB", "Resident memory of the process, 10⁶ bytes."),
    "received": Metric("received", "MB/s", "By the node's interfaces without loopback."),
    "sent": Metric("sent", "MB/s", "By the node's interfaces without loopback."),
    # GPUs
    "gpu_busy": Metric(
        "GPU busy", "%", "Part of NVML's last sample period in which a kernel ran, whosever."
    ),
    "gpu_clock": Metric("GPU clock", "MHz", "Clock of the multiprocessors."),
    "gpu_memory_clock": Metric("memory clock", "MHz", "Clock of the GPU's memory."),
    "gpu_memory": Metric("GPU memory in use", "MB", "By all processes, 10⁶ bytes."),
    "gpu_power": Metric("GPU power", "W", "Drawn by the device."),
    "gpu_temperature": Metric("GPU temperature", "°C", "Of the chip."),
    "gpu_held": Metric(
        "clock held down", "%", "100 % where NVML named a reason other than rest or a set clock."
    ),
    # Baseline
    "link_rate": Metric("throughput", "MB/s", "One TCP stream, as the receiver of iperf3 saw it."),
    "rtt": Metric("round trip", "ms", "Median round trip of a TCP message of one byte."),
    "retransmits": Metric("sent again", "", "TCP segments that were sent again in the test."),
    "peak": Metric(
        "peak", "GFLOP/s", "Best product of numpy, float32, one process alone on the node."
    ),
    "peak_size": Metric("L", "", "Rows of the square matrices of the product that was measured."),
    "threads": Metric("threads", "", "CPUs that the product could use."),
    "gpu_wake": Metric("wake-up", "s", "cuInit of the probe: the driver wakes the device."),
    "gpu_context": Metric("context", "s", "Making the device's primary context."),
    "gpu_libraries": Metric("cuBLAS opened", "s", "Opening the library."),
    "gpu_handle": Metric("handle", "s", "cublasCreate."),
    "gpu_first": Metric("first product", "ms", "The first product, which loads its kernel."),
    "gpu_warm": Metric("warm product", "ms", "Median of later products."),
    "gpu_peak": Metric("GPU peak", "GFLOP/s", "2 L³ over the time of a warm product, float32."),
    "gpu_h2d": Metric("to the GPU", "MB/s", "One L x L matrix from page-locked memory, median."),
    "gpu_d2h": Metric("from the GPU", "MB/s", "One L x L matrix to page-locked memory, median."),
    # The lab
    "lab_start": Metric("start", "s", "After the start of `labctl up` or `labctl provision`."),
    "lab_duration": Metric("duration", "s", "Time that this part of the lab's making took."),
    "server_startup": Metric(
        "start-up", "s", "From the start of the join server's process until its port answered."
    ),
    "cpus": Metric("CPUs", "", "CPUs that a process may use on the node."),
    "cpu_limit": Metric("CPU limit", "CPUs", "CPU time that its control groups grant, if any."),
    "gpu_memory_size": Metric("GPU memory", "", "Memory of each GPU of the node."),
    "load": Metric("load", "", "Load average of the node over the last minute before the run."),
    # Clocks
    "offset": Metric("offset", "ms", "The node's clock minus labctl's in the middle of the run."),
    "offset_bound": Metric("bound", "ms", "The offset is right within this: half the round trip."),
    "drift": Metric("drift", "ms", "Change of the offset from the first to the last measurement."),
    "samples": Metric("samples", "", "How often the offset was measured."),
    # Graph
    "graph_nodes": Metric("nodes", "", "Nodes of the graph as the client built it."),
    "graph_size": Metric("size", "kB", "Serialised graph, 10³ bytes."),
    "graph_constants": Metric("constants", "kB", "Bytes of constants in the graph, 10³ bytes."),
}
