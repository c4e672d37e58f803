"""What travels between labctl and the nodes: the run plan (one JSON file) and the events (JSON lines).

Stated once, here; `labctl.drive` and `labctl.runs` import it. Standard library only, Python 3.10 or newer:
this module is part of the payload that runs on the nodes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

PLAN_FORMAT = 2
JOB_NAME = "local"

# Names of the files in a run's directory on task 0's node.
PLAN_FILE = "plan.json"
PAYLOAD_FILE = "payload.pyz"
EVENTS_FILE = "events.jsonl"
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
CANCELLED_FILE = "cancelled"  # labctl leaves it before it stops a run on purpose

# Exit statuses of the client process.
EXIT_OK = 0
EXIT_WRONG = 10  # the result differs from float64
EXIT_FAILED = 11  # TensorFlow or the script raised; the `error` event has the text
EXIT_PEER_LOST = 12  # a peer's port stopped answering in mid-run
EXIT_BAD_PLAN = 13  # the plan cannot be run (too large, unknown format)

# Exit statuses of the join server, beside 143 after SIGTERM. A restart does not help after the last two.
EXIT_SERVER_FAILED = EXIT_FAILED
EXIT_BAD_SPEC = EXIT_BAD_PLAN  # the cluster spec or the task index cannot be served
EXIT_PORT_IN_USE = 14  # another process listens on this task's port

# Kinds of events. Every event has: `event` (its kind), `t` (Unix time, integer nanoseconds, this node's
# clock), `mono` (this process's monotonic clock, integer nanoseconds), `source` (`client` or `join-server`),
# `task` (index).
HELLO = "hello"  # pid, process_start_t (ns), the facts of `host.facts`: python, tensorflow, numpy, kernel, …, and
# environment: the variables TF_*, XLA_*, GRPC_* and CUDA_* with their values, *_proxy ones with null
PHASE_BEGIN = "phase_begin"  # phase
PHASE_END = "phase_end"  # phase, duration_ns; `failed` is true and present only when it raised
STEP = (
    "step"  # index (0 first), kind (`STEP_KINDS`), total (cold and warm steps planned), duration_ns
)
GRAPH = "graph"  # nodes, ops (count by type), bytes (of the GraphDef), constant_bytes, sha256 (of the GraphDef)
USAGE = "usage"  # of this process and its node since their start: cpu_ns, wait_ns (ready but without a CPU),
# threads, rss_bytes; node_busy_ns, node_idle_ns, node_steal_ns (of the CPUs that the process may use), rx_bytes,
# tx_bytes (all interfaces but lo). A figure that cannot be read is null. Every `USAGE_PERIOD_S`; from the join
# server only while it works, with one before and one after.
GPUS = "gpus"  # devices: a list of objects, one a device that NVML lists: index, name, uuid, pci, driver,
# compute_capability (`8.0`), memory_bytes, persistence (bool), sm_clock_max_mhz, memory_clock_max_mhz,
# power_limit_w; a figure that NVML does not give is null. `error` instead of devices where NVML does not answer.
GPU_USAGE = "gpu_usage"  # devices: a list of objects: index, utilisation_percent, memory_used_bytes, sm_clock_mhz,
# memory_clock_mhz, power_w, temperature_c, throttle (names of NVML's clocks event reasons), others (processes of
# others on the device: pid and memory_bytes); a figure that NVML does not give is null. Beside each `usage` event
# of a process that uses a GPU, but for the one before it works and where asking would cost over 2 % of the time.
KERNEL_CACHE = (
    "kernel_cache"  # the driver's cache of compiled kernels: path, files, bytes, when (`begin`,
)
# `server`, `first_step` or `end`); files and bytes are null where it cannot be read. From a join server `begin`,
# `server`, and `end` each time it comes to rest.
LIBRARIES = "libraries"  # opened in `gpu_libraries`: libraries, a list of objects: name, path, duration_ns, error
# (null if it was opened)
RESULT = "result"  # ok, relative_error, tolerance, power_computed, products, norm, checked_by, and
# `section_us`, `end_to_end_us`
ERROR = "error"  # kind (`errors.py`), type, message (one line), expected, do, detail (TensorFlow's own words), and
# `script_exit` of a script
PEER = "peer"  # peer_task, address, state (`answers`|`refused`|`timed out`|`not resolvable`|`not gRPC`), detail
# Written at the client's start and when a peer is lost; and when TensorFlow has not returned for `STALL_S`, with
# each peer's state then and at every change.
READY = "ready"  # the join server's own port answers: address, spec_sha256, inter_op (null: TF's default)
NOTE = "note"  # text
BYE = "bye"  # exit

# Phases of the client, in order. A phase may be absent; phases of one task never overlap. The question's
# section under test (`section_us`) runs from the begin of `session` to the end of `first_step`.
PHASE_INTERPRETER = "interpreter"
PHASE_PEERS = "wait_for_peers"
PHASE_IMPORT_NUMPY = "import_numpy"
PHASE_IMPORT_TENSORFLOW = "import_tensorflow"
PHASE_IMPORT_NVML = "import_nvml"  # of a GPU run, before `gpu_wake`
PHASE_GPU_WAKE = (
    "gpu_wake"  # of a GPU run, before `import_tensorflow`: until the driver answers NVML
)
PHASE_GPU_LIBRARIES = (
    "gpu_libraries"  # after `import_tensorflow`: opening the CUDA libraries that the run will use
)
PHASE_SERVER = "server"
PHASE_GRAPH = "graph"
PHASE_DESCRIBE = "describe_graph"  # what the `graph` event takes to count
PHASE_SESSION = "session"
PHASE_DEVICES = "list_devices"  # of a GPU run without soft placement: every task tells its devices
PHASE_INPUTS = "inputs"
PHASE_STAGE = "stage_inputs"
PHASE_FIRST_STEP = "first_step"
PHASE_WARM_STEPS = "warm_steps"
PHASE_TRACED_STEP = "traced_step"
PHASE_PROBES = "probe_steps"  # steps of kind `no_fetch` and `null`
PHASE_VERIFY = "verify"
PHASE_SCRIPT = "script"

MESSAGE_BYTES = (
    2**31 - 2**16
)  # protobuf's limit, of a gRPC message or a GraphDef, less room for the rest of it
USAGE_PERIOD_S = 0.5
STALL_S = 10.0
# In the run's directory: a traced step's serialised StepStats; {} is the step's index.
TRACE_FILE = "trace/step_stats.{}.pb"
TRACED_STEPS = 3
PROBE_STEPS = (
    5  # of each kind, after one that is not told: the first of a kind has its graph set up
)
LONG_STEP_S = 10.0  # after an extra step of this length no more of its kind are taken

# `cold` is the process's first, `warm` each later one: these are the samples. `traced`, `no_fetch` (computes all,
# brings nothing back) and `null` (runs an empty op on every task) are extra steps, never counted among them.
SAMPLE_KINDS = ("cold", "warm")
STEP_KINDS = (*SAMPLE_KINDS, "traced", "no_fetch", "null")

Algorithm = Literal["listing", "chain", "recursive", "squaring"]
Feed = Literal["fed", "staged", "constant"]
Fetch = Literal["sum", "none"]
Placement = Literal["lab", "one-host", "one-process"]
Api = Literal["session", "tf2"]
Device = Literal["cpu", "gpu"]

ALGORITHMS: tuple[Algorithm, ...] = ("listing", "chain", "recursive", "squaring")
FEEDS: tuple[Feed, ...] = ("fed", "staged", "constant")
FETCHES: tuple[Fetch, ...] = ("sum", "none")
PLACEMENTS: tuple[Placement, ...] = ("lab", "one-host", "one-process")
APIS: tuple[Api, ...] = ("session", "tf2")
DEVICES: tuple[Device, ...] = ("cpu", "gpu")


@dataclass(frozen=True)
class MatpowPlan:
    """Parameters of the built-in experiment: the sum over all tasks k of M_k^n, M_k an L x L float32 matrix.

    Attributes:
        size: L, rows and columns.
        power: n, factors in each product (`listing` computes n + 1, as the question's recursion does).
        algorithm: How the power is formed.
        feed: `fed` sends the inputs with every step, `staged` keeps them in variables on their task, `constant`
            writes them into the graph, where TensorFlow may compute the powers once and for all.
        placement: `lab` one matrix per task; `one-host` as many servers on task 0's node; `one-process` no server.
        api: `session` (tf.compat.v1) or `tf2` (connect to cluster + tf.function).
        device: Device type of the products.
        inter_op: Threads of TF's inter-op pool on the client's server, None for TF's default.
        repeat: Warm steps after the cold one.
        seed: Of the random inputs.
        fetch: `sum` brings the result back to Python in each warm step, `none` only computes it.
        sum_task: Task that adds the powers up.
        soft_placement: TensorFlow may compute on another device than asked.
    """

    size: int = 1000
    power: int = 5
    algorithm: Algorithm = "chain"
    feed: Feed = "fed"
    placement: Placement = "lab"
    api: Api = "session"
    device: Device = "cpu"
    inter_op: int | None = 2
    repeat: int = 10
    seed: int = 20170901
    fetch: Fetch = "sum"
    sum_task: int = 0
    soft_placement: bool = False


@dataclass(frozen=True)
class ScriptPlan:
    """A user's script.

    Attributes:
        file: Its name in the run directory.
        args: Its arguments.
        device: Device type asked for; with `gpu` the node's GPUs are watched. None if it was not said.
    """

    file: str
    args: tuple[str, ...] = ()
    device: Device | None = None


@dataclass(frozen=True)
class RunPlan:
    """All that the client needs to know; written to `plan.json` in its run directory.

    Attributes:
        run_id: Of the run.
        cluster: `host:port` of each task, in task order.
        matpow: The built-in experiment, or None.
        script: The user's script, or None. Exactly one of the two is given.
        trace: Take `TRACED_STEPS` more, traced steps and store their step stats below `trace/`; then probe steps.
        environment: Set before TensorFlow is imported; proxy variables among them stay, others are cleared.
        peer_timeout_s: Seconds that the client waits for each peer's port at the start.
        format: Version of this structure.
    """

    run_id: str
    cluster: tuple[str, ...]
    matpow: MatpowPlan | None = None
    script: ScriptPlan | None = None
    trace: bool = False
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    peer_timeout_s: float = 10.0
    format: int = PLAN_FORMAT

    def to_json(self) -> str:
        """Return the plan as one JSON document."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunPlan:
        """Return the plan of a JSON document.

        Raises:
            ValueError: It is not a plan of this format.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            if data["format"] != PLAN_FORMAT:
                raise ValueError(f"plan format {data['format']}, this payload knows {PLAN_FORMAT}")
            matpow, script = data.pop("matpow"), data.pop("script")
            if (matpow is None) == (script is None):
                raise ValueError("a plan has either matpow or script")
            data["cluster"] = tuple(data["cluster"])
            if script is not None:
                script["args"] = tuple(script["args"])
            return cls(
                **data,
                matpow=None if matpow is None else MatpowPlan(**matpow),
                script=None if script is None else ScriptPlan(**script),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a run plan: {error!r}") from error


def cluster_spec(addresses: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the TF cluster spec of a list of `host:port` in task order."""
    return {JOB_NAME: list(addresses)}


def spec_text(addresses: tuple[str, ...]) -> str:
    """Return the cluster spec as the one line that is hashed and written to `/etc/tf-join-server/cluster.json`.

    Ansible's `to_json(sort_keys=true, separators=...)` of the same addresses gives the same text.
    """
    return json.dumps({"cluster": cluster_spec(addresses)}, sort_keys=True, separators=(",", ":"))


def spec_hash(addresses: tuple[str, ...]) -> str:
    """Return the sha256 of `spec_text`, hex: equal on all nodes of a lab that was provisioned as it is."""
    return hashlib.sha256(spec_text(addresses).encode()).hexdigest()
