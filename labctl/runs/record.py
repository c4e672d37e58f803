"""The run record: what `run.json` holds, and what the files beside it are called.

`run.json` is written whole and atomically: once when the run starts (outcome `running`, with its owner), then
once more when it has ended. After that it is never edited. docs/results-format.md describes every field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from labctl.errors import RecordError, RecordTooNewError
from labctl.runs import atomic, bounds
from labctl.runs.baseline import Baseline
from labctl.runs.codec import decode, encode
from labctl.runs.gpus import CudaState, GpuState
from labctl.runs.plain import MIB, open_plain

FORMAT = 1
REMOVE = "labctl runs rm RUN removes it; labctl runs list shows the others"
_MOST_BYTES = 64 * MIB

RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
STEPS_FILE = "steps.jsonl"
LOGS_DIR = "logs"
TRACE_DIR = "trace"
INDEX_FILE = "index.jsonl"  # below logs/<node>/: which byte of a stream had arrived when
JOURNAL_FILE = "join-server.jsonl"  # below logs/<node>/: the join server's journal
JOIN_PREFIX = "join-server."  # of a loopback join server's own streams, which have no journal

Outcome = Literal["running", "ok", "wrong", "failed", "timeout", "lost", "cancelled"]
OPEN_OUTCOMES: frozenset[str] = frozenset({"running", "lost"})  # attach may go on with these
EXIT_CODES: dict[str, int] = {
    "running": 0,
    "ok": 0,
    "wrong": 1,
    "lost": 4,
    "failed": 5,
    "timeout": 6,
    "cancelled": 130,
}


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the run was asked to do. The fields of the built-in experiment are None for a script.

    Attributes:
        experiment: The built-in `matpow`, or a user's script.
        trace: Traced and probe steps were asked for.
        fresh: Join servers were restarted first.
        timeout_s: Seconds that the run may take on the node.
        device: Device type asked for; None for a script that did not say.
        size: L of the L x L matrices.
        power: n as asked.
        algorithm: How the power is formed.
        feed: `fed`, `staged` or `constant`.
        placement: `lab`, `one-host` or `one-process`.
        api: `session` or `tf2`.
        inter_op: Threads of the client's inter-op pool, None for TF's default.
        repeat: Warm steps.
        seed: Of the inputs.
        script: File name of the user's script.
        args: Its arguments.
        companions: Names of further files that were sent with it.
        fetch: `sum` brings the result back to Python in each step, `none` only computes it.
        sum_task: Task that adds the powers up.
        soft_placement: TensorFlow may compute elsewhere than asked.
        environment: Names of variables that were set for the client; their values are not kept.
        skip_checks: It was started although checks failed, see `failed_checks`.
    """

    experiment: Literal["matpow", "script"]
    trace: bool
    fresh: bool
    timeout_s: bounds.Seconds
    device: str | None = None
    size: bounds.Size | None = None
    power: bounds.Power | None = None
    algorithm: str | None = None
    feed: str | None = None
    placement: str | None = None
    api: str | None = None
    inter_op: bounds.Threads | None = None
    repeat: bounds.Repeat | None = None
    seed: int | None = None
    script: str | None = None
    args: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    fetch: str | None = None
    sum_task: bounds.Task | None = None
    soft_placement: bool | None = None
    environment: tuple[str, ...] = ()
    skip_checks: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The labctl process that follows a run.

    Attributes:
        pid: Its process id.
        started: Its start time as /proc states it, clock ticks since boot.
        host: Its machine's name.
        boot_id: That machine's boot.
    """

    pid: bounds.Count
    started: bounds.Count
    host: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The zero of a run's time line: the command's start on labctl's machine.

    Attributes:
        unix_s: Unix time, seconds.
        mono_s: Monotonic clock, seconds; comparable within one boot.
        boot_id: The boot.
    """

    unix_s: bounds.Unix
    mono_s: bounds.Monotonic
    boot_id: str


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval.

    Attributes:
        phase: Its name.
        node: Node name, or `labctl`.
        start_s: Seconds after the origin.
        duration_s: Seconds.
        source: Who measured it: `labctl`, `client`, `join-server` or `systemd`.
    """

    phase: str
    node: bounds.Name
    start_s: bounds.Start
    duration_s: bounds.Seconds
    source: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as it was when the run started; None or "" where it could not be told.

    Attributes:
        name: Node name.
        task: Task index.
        tf_address: `host:port` in the cluster spec.
        versions: `python`, `tensorflow`, `numpy`, `kernel`, and `driver` and `cuda` where there are any.
        cpus: CPUs that a process may use.
        cpu_model: Model name of the CPU.
        boot_id: The node's boot.
        cpu_limit: CPUs' time that its control groups grant, as the node itself sees them; None without a limit.
        load_1min: Its load average over the last minute.
        proxies: Names of proxy variables that its units or logins get.
        gpus: Its GPUs as they were before the run; () where none was asked for or found.
        cuda: What its TensorFlow brings for GPUs; None where that was not looked at.
    """

    name: bounds.Name
    task: bounds.Task
    tf_address: str
    versions: dict[str, str] = field(default_factory=dict)
    cpus: bounds.Cpus | None = None
    cpu_model: str = ""
    boot_id: str = ""
    cpu_limit: bounds.Load | None = None
    load_1min: bounds.Load | None = None
    proxies: tuple[str, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    cuda: CudaState | None = None


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One measurement of a node's clock against labctl's.

    Attributes:
        node: Node name.
        at_s: When, seconds after the origin.
        offset_s: The node's clock minus labctl's, seconds.
        error_s: Half the round trip: the offset is within offset_s +- error_s.
    """

    node: bounds.Name
    at_s: bounds.Place
    offset_s: bounds.Offset
    error_s: bounds.Seconds


@dataclass(frozen=True, slots=True)
class ServerState:
    """A join server at one moment.

    Attributes:
        node: Node name.
        active: systemd's ActiveState.
        invocation_id: Changes with each start.
        started_at_s: Unix time of its start on the node's clock, None if unknown.
        boot_id: The node's boot.
        startup_s: Seconds from the start of its process until its port answered, None if unknown.
        phases: Those of its start, on the node's clock; `start_s` is Unix time.
        spec_sha256: Of the cluster spec that it serves, None if it did not say.
        inter_op: Threads of its inter-op pool as asked for, None for TF's default or if unknown.
        process_state: Its process's state letter in `/proc/PID/stat` (`T` is stopped, `D` waits for a disk), "" if
            unknown.
        cpu_s: CPU time that its process has used, seconds; None if unknown.
        wait_s: Time that its threads were ready to run and had no CPU, seconds; None if unknown.
    """

    node: bounds.Name
    active: str
    invocation_id: str
    started_at_s: bounds.Unix | None
    boot_id: str
    startup_s: bounds.Offset | None = None
    phases: tuple[Span, ...] = ()
    spec_sha256: str | None = None
    inter_op: bounds.Threads | None = None
    process_state: str = ""
    cpu_s: bounds.CpuSeconds | None = None
    wait_s: bounds.CpuSeconds | None = None


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that said `fail` before a run that was started all the same (`--skip-checks`).

    Attributes:
        name: Of the check.
        node: Where.
        found: What it found.
        expected: What it expected.
        do: What helps.
    """

    name: str
    node: str
    found: str
    expected: str
    do: str


@dataclass(frozen=True, slots=True)
class LabPhase:
    """A part of the lab's own making, long before the run: a machine made, booted, reached; an Ansible role.

    Attributes:
        phase: What, e.g. `boot` or `role tensorflow`.
        node: Machine, or "" where it is of all of them.
        command: `up` or `provision`.
        started_unix_s: Unix time on labctl's clock.
        duration_s: Seconds.
    """

    phase: str
    node: str
    command: str
    started_unix_s: bounds.Unix
    duration_s: bounds.Seconds


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the record.

    Attributes:
        path: Relative to the record's directory.
        node: Where it was copied from.
        size: Bytes.
        sha256: Hex digest, equal on both sides when it was copied.
    """

    path: str
    node: str
    size: bounds.Count
    sha256: str


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """Where the run lives on its node.

    Attributes:
        node: Node of task 0.
        directory: Run directory there.
        unit: Unit name.
        boot_id: The node's boot when the unit started.
        started_at_s: Unix time of the unit's start on the node's clock, None if unknown.
    """

    node: bounds.Name
    directory: str
    unit: str
    boot_id: str = ""
    started_at_s: bounds.Unix | None = None


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """How the client ended, as systemd or the process supervisor said.

    Attributes:
        result: systemd's `$SERVICE_RESULT`.
        exit_code: `exited`, `killed` or `dumped`.
        exit_status: Exit status, or a signal's name.
        ended_at_s: Unix time on the node's clock.
    """

    result: str
    exit_code: str
    exit_status: str
    ended_at_s: bounds.Unix


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run did not end `ok`.

    Attributes:
        kind: A stable word, e.g. `server-restarted`; docs/results-format.md lists them.
        message: One line for people.
        do: What helps, if anything is known to.
    """

    kind: str
    message: str
    do: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of `run.json`.

    Attributes:
        run_id: Name of the record's directory.
        lab: The lab's name.
        provider: Its provider.
        outcome: `running` until the run has been brought to its end.
        parameters: What was asked.
        tasks: TensorFlow tasks that take part.
        origin: The zero of the time line.
        remote: Where it ran.
        nodes: The lab's nodes, in task order.
        labctl_version: Version of labctl.
        payload_sha256: Of the client code that was sent.
        spec_sha256: Of the cluster spec.
        tags: The user's own.
        owner: The labctl that follows it; None when detached or ended.
        checks: How many checks before the start said `ok` and how many were `skipped`.
        spans: labctl's own phases.
        clock: Clock measurements.
        servers_before: Join servers at the start.
        servers_after: Join servers at the end.
        unit_end: The client's end.
        failure: Why it did not end ok.
        warnings: What a reader should know.
        files: Every file copied, with its digest.
        wall_s: Seconds from the origin to the end of the last labctl command that worked on it.
        failed_checks: Checks that failed before it was started all the same.
        baseline: What machines and network can do by themselves, None if it was not measured.
        lab_phases: How the lab was made: the last `up` and the last `provision`.
        format: Version of this structure.
    """

    run_id: bounds.Name
    lab: str
    provider: str
    outcome: Outcome
    parameters: Parameters
    tasks: bounds.Tasks
    origin: Origin
    remote: RemoteRun
    nodes: Annotated[tuple[NodeFacts, ...], bounds.Entries(1_000)]
    labctl_version: str
    payload_sha256: str
    spec_sha256: str
    tags: dict[str, str] = field(default_factory=dict)
    owner: Owner | None = None
    checks: dict[str, bounds.Count] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    clock: tuple[ClockSample, ...] = ()
    servers_before: tuple[ServerState, ...] = ()
    servers_after: tuple[ServerState, ...] = ()
    unit_end: UnitEnded | None = None
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()
    files: tuple[StoredFile, ...] = ()
    wall_s: bounds.Seconds | None = None
    failed_checks: tuple[FailedCheck, ...] = ()
    baseline: Baseline | None = None
    lab_phases: tuple[LabPhase, ...] = ()
    format: int = FORMAT

    @property
    def open(self) -> bool:
        """Whether it has not been brought to its end: `labctl attach` may go on with it."""
        return self.outcome in OPEN_OUTCOMES

    @property
    def exit_code(self) -> int:
        """What the command that brought it to this outcome exits with."""
        return EXIT_CODES[self.outcome]

    def offset_s(self, node: str) -> float:
        """Return the node's clock minus labctl's in seconds: the sample with the smallest error, else 0."""
        samples = [each for each in self.clock if each.node == node]
        return min(samples, key=lambda each: each.error_s).offset_s if samples else 0.0

    def since_origin_s(self, node: str, unix_s: float) -> float:
        """Return a time of a node's clock as seconds after the origin."""
        return unix_s - self.offset_s(node) - self.origin.unix_s


def to_text(record: RunRecord) -> str:
    """Return the text of `run.json`."""
    return json.dumps(encode(record), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def from_text(text: str, where: str, *, do: str = REMOVE) -> RunRecord:
    """Return the record of a `run.json`'s text.

    Args:
        text: Its content.
        where: Its path, for messages.
        do: What helps where it is damaged.

    Raises:
        RecordError: It is damaged, holds what cannot be, or is of a format that this labctl does not know.
    """
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(where, f"not JSON: {error}", do=do) from error
    version = data.get("format") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise damaged(where, "no integer `format`", do=do)
    if version > FORMAT:
        raise RecordTooNewError(
            f"{where} has format {version}",
            expected=f"format {FORMAT} or older: it was written by a newer labctl",
            do="update labctl",
        )
    try:
        return decode(RunRecord, data)
    except ValueError as error:
        raise damaged(where, str(error), do=do) from error


def damaged(where: str, why: str, *, do: str = REMOVE) -> RecordError:
    """Return the error for a record that cannot be read."""
    return RecordError(f"{where} is damaged: {why}", expected="a record as labctl wrote it", do=do)


def write_record(folder: Path, record: RunRecord) -> None:
    """Write `run.json`, whole or not at all."""
    atomic.write_text(folder / RUN_FILE, to_text(record))


def read_record(folder: Path, *, do: str = REMOVE) -> RunRecord:
    """Read `run.json`.

    Args:
        folder: The record's directory.
        do: What helps where it is damaged.

    Raises:
        RecordError: It is missing, no plain file, damaged or too new.
    """
    path = folder / RUN_FILE
    try:
        with open_plain(folder, RUN_FILE, most_bytes=_MOST_BYTES) as file:
            text = file.read().decode()
    except FileNotFoundError as error:
        raise damaged(str(folder), f"it has no {RUN_FILE}", do=do) from error
    except OSError as error:
        raise damaged(str(path), error.strerror or str(error), do=do) from error
    except UnicodeDecodeError as error:
        raise damaged(str(path), str(error), do=do) from error
    record = from_text(text, str(path), do=do)
    if record.run_id != folder.name:
        raise damaged(
            str(path),
            f"it is of run {record.run_id}",
            do=f"rename the directory to {record.run_id}",
        )
    return record
