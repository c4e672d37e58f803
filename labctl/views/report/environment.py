"""What a run ran on: the nodes' facts side by side, join servers, the graph, and what the run was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from labctl.analysis.explained import Explained
from labctl.analysis.gpus import GpuFacts, NodeGpus
from labctl.node import wire
from labctl.runs.gpus import CudaState, GpuState
from labctl.runs.record import NodeFacts, RunRecord, ServerState
from labctl.views.report.numbers import NOT_MEASURED, duration, fixed, size

_VERSIONS = ("tensorflow", "python", "numpy", "kernel", "driver", "cuda")


@dataclass(frozen=True, slots=True)
class FactRow:
    """One fact of every node.

    Attributes:
        label: What it is.
        metric: Key of `metrics.METRICS`, "" for a word that needs none.
        values: In the nodes' order.
        differs: They are not equal although they should be.
    """

    label: str
    metric: str
    values: tuple[str, ...]
    differs: bool = False


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The graph as the client built it.

    Attributes:
        nodes: How many, None if it did not say.
        size: Of the serialised graph, in words.
        constants: Bytes of constants, in words.
        ops: Type and count, the most frequent first.
    """

    nodes: int | None
    size: str
    constants: str
    ops: tuple[tuple[str, int], ...]


def fact_rows(record: RunRecord, gpus: Sequence[NodeGpus] = ()) -> list[FactRow]:
    """Return the facts of the nodes, in the record's order of nodes.

    Args:
        record: The run's.
        gpus: What processes of the run told of their nodes' GPUs.
    """
    nodes = record.nodes
    rows = [
        FactRow("task", "", tuple(f"/job:local/task:{node.task}" for node in nodes)),
        FactRow("TensorFlow address", "", tuple(node.tf_address for node in nodes)),
    ]
    known = {name for node in nodes for name in node.versions}
    rows += [
        _row(name, [node.versions.get(name, "") for node in nodes])
        for name in (*_VERSIONS, *sorted(known - set(_VERSIONS)))
        if name in known
    ]
    rows += [
        *_gpu_rows(record, gpus),
        _row("CPU", [node.cpu_model for node in nodes]),
        _row("CPUs", [_whole(node.cpus) for node in nodes], "cpus"),
        _row("CPU limit", [_limit(node) for node in nodes], "cpu_limit"),
        _row("load", [_load(node) for node in nodes], "load", equal=False),
        _row("proxy variables", [_proxies(node) for node in nodes]),
        _row("boot", [node.boot_id[:8] for node in nodes], equal=False),
    ]
    return rows


def _gpu_rows(record: RunRecord, gpus: Sequence[NodeGpus]) -> list[FactRow]:
    """Return the facts of the nodes' GPUs; none where no node has any and none was looked for."""
    told = {each.node: each for each in gpus}
    devices: list[tuple[GpuState | GpuFacts, ...]] = []
    for node in record.nodes:
        mine = told.get(node.name)
        devices.append(node.gpus or (mine.devices if mine is not None else ()))
    cuda = [node.cuda for node in record.nodes]
    if not any(devices) and not any(cuda) and not told:
        return []

    def each(say: Callable[[GpuState | GpuFacts], str]) -> list[str]:
        return [", ".join(dict.fromkeys(filter(None, map(say, mine)))) for mine in devices]

    rows = [
        _row(
            "GPU",
            [_named(mine, told.get(n.name)) for mine, n in zip(devices, record.nodes, strict=True)],
        ),
        _row("GPU memory", each(lambda gpu: _size(gpu.memory_bytes)), "gpu_memory_size"),
        _row("compute capability", each(lambda gpu: gpu.compute_capability)),
        _row("GPU driver", each(lambda gpu: gpu.driver)),
        _row("persistence mode", each(lambda gpu: _switch(gpu.persistence))),
    ]
    if any(cuda):
        rows += [
            _row(
                "CUDA targets of the wheel", [" ".join(c.capabilities) if c else "" for c in cuda]
            ),
            _row("first run compiles", [_yes(c.compiles) if c else "" for c in cuda], equal=False),
            _row(
                "CUDA libraries missing",
                [(", ".join(c.missing) or "none") if c else "" for c in cuda],
            ),
            _row("kernel cache", [_cache(c) if c else "" for c in cuda], equal=False),
        ]
    return rows


def _named(devices: Sequence[GpuState | GpuFacts], told: NodeGpus | None) -> str:
    """Return the GPUs of a node in words; what NVML said instead where it did not answer."""
    if not devices:
        return told.error if told is not None else ""
    counts = Counter(each.name or "unnamed" for each in devices)
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _size(value: float | None) -> str:
    return "" if value is None else size(value)


def _switch(value: bool | None) -> str:
    return "" if value is None else "on" if value else "off"


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _cache(cuda: CudaState) -> str:
    if cuda.cache_files is None:
        return f"{cuda.cache_path}, cannot be read" if cuda.cache_path else ""
    return f"{cuda.cache_path}: {cuda.cache_files} files, {size(cuda.cache_bytes)}"


def server_rows(record: RunRecord) -> list[FactRow]:
    """Return the join servers' state before and after, one row a fact; empty without any."""
    before = {each.node: each for each in record.servers_before}
    after = {each.node: each for each in record.servers_after}
    names = list(dict.fromkeys([*before, *after]))
    if not names:
        return []

    def row(label: str, say: str, metric: str = "") -> FactRow:
        values = tuple(_server(say, before.get(name), after.get(name)) for name in names)
        return FactRow(label, metric, values)

    return [
        FactRow("node", "", tuple(names)),
        row("state", "state"),
        row("started", "started"),
        row("start-up", "startup", "server_startup"),
        row("same process at the end", "same"),
        row("inter-op threads asked for", "inter_op"),
    ]


def graph_facts(explained: Explained) -> GraphFacts | None:
    """Return what the client said of its graph, None if it said nothing."""
    event = next((e for e in reversed(explained.data.events) if e.kind == wire.GRAPH), None)
    if event is None:
        return None
    raw = event.data.get("ops")
    counts = raw if isinstance(raw, dict) else {}
    ops = [
        (str(name), count)
        for name, count in counts.items()
        if isinstance(count, int) and not isinstance(count, bool)
    ]
    return GraphFacts(
        event.whole("nodes"),
        size(event.number("bytes")),
        size(event.number("constant_bytes")),
        tuple(sorted(ops, key=lambda each: (-each[1], each[0]))),
    )


def asked(record: RunRecord) -> list[tuple[str, str]]:
    """Return what the run was asked to do, as names and values."""
    parameters = record.parameters
    pairs: list[tuple[str, object]] = [
        ("experiment", parameters.experiment),
        ("script", parameters.script),
        ("arguments", " ".join(parameters.args) or None),
        ("L", parameters.size),
        ("n", parameters.power),
        ("algorithm", parameters.algorithm),
        ("feed", parameters.feed),
        ("fetch", parameters.fetch),
        ("sum on task", parameters.sum_task),
        ("placement", parameters.placement),
        ("API", parameters.api),
        ("device", parameters.device),
        ("repeat", parameters.repeat),
        ("seed", parameters.seed),
        ("traced", "yes" if parameters.trace else "no"),
        ("join servers restarted first", "yes" if parameters.fresh else "no"),
        ("soft placement", "yes" if parameters.soft_placement else None),
        ("variables set", ", ".join(parameters.environment) or None),
        ("time allowed", f"{parameters.timeout_s:g} s"),
    ]
    if parameters.experiment == "matpow":
        threads = parameters.inter_op
        pairs.append(("inter-op threads", "TensorFlow's default" if threads is None else threads))
    return [(name, str(value)) for name, value in pairs if value is not None]


def moment(unix_s: float | None) -> str:
    """Return a Unix time as UTC text, `not measured` for none or one that no calendar has."""
    if unix_s is None:
        return NOT_MEASURED
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{unix_s:g} s"


def _row(label: str, values: list[str], metric: str = "", *, equal: bool = True) -> FactRow:
    told = [value for value in values if value]
    shown = tuple(value or NOT_MEASURED for value in values)
    return FactRow(label, metric, shown, equal and len(set(told)) > 1)


def _whole(value: int | None) -> str:
    return "" if value is None else str(value)


def _limit(node: NodeFacts) -> str:
    if node.cpu_limit is not None:
        return f"{node.cpu_limit:g}"
    return "none" if _asked(node) else ""


def _proxies(node: NodeFacts) -> str:
    return ", ".join(node.proxies) or ("none" if _asked(node) else "")


def _asked(node: NodeFacts) -> bool:
    """Return whether the node was asked for limits, load and proxies: its load is told whenever it was."""
    return node.load_1min is not None


def _load(node: NodeFacts) -> str:
    return "" if node.load_1min is None else fixed(node.load_1min, 2)


def _server(say: str, before: ServerState | None, after: ServerState | None) -> str:
    one = before or after
    if one is None:
        return NOT_MEASURED
    if say == "state":
        return " → ".join(each.active if each else NOT_MEASURED for each in (before, after))
    if say == "started":
        return moment(one.started_at_s)
    if say == "startup":
        return duration(one.startup_s)
    if say == "same":
        if before is None or after is None:
            return NOT_MEASURED
        return "yes" if before.invocation_id == after.invocation_id else "no: it restarted"
    if one.inter_op is None:
        return NOT_MEASURED if one.spec_sha256 is None else "TensorFlow's default"
    return str(one.inter_op)
