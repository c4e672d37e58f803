"""From the options of `labctl run` to a checked request, and from that to the plan that the client reads."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from labctl.errors import UsageError
from labctl.lab.cluster import cluster_addresses
from labctl.lab.model import Lab
from labctl.node import wire
from labctl.runs.record import Parameters

DEFAULT_TIMEOUT_S = 600.0
MAX_TIMEOUT_S = 7 * 86400.0
MAX_SIZE = 23_170  # the largest L whose L x L float32 matrix is under 2 GiB, protobuf's bound on one message
MAX_POWER = 1_000
MAX_REPEAT = 100_000
MAX_INTER_OP = 1_024
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_TASKS = 1_000
MAX_VALUE_CHARACTERS = 32_768

_TAG = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})=([^\x00-\x1f\x7f]{0,256})\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_OWN_VARIABLES = frozenset({"TF_CONFIG", "LABCTL_CLUSTER"})
_RESERVED_FILES = frozenset(
    {
        wire.PLAN_FILE,
        wire.PAYLOAD_FILE,
        wire.EVENTS_FILE,
        wire.STDOUT_FILE,
        wire.STDERR_FILE,
        wire.CANCELLED_FILE,
        "exit.json",
        "trace",
    }
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `labctl run` as given; None where one was not given.

    Attributes:
        script: The user's script, None for the built-in experiment.
        args: Its arguments.
        companions: Further files for its directory.
        gpu: `--gpu` (True) or `--cpu` (False).
        size: `--size`, L.
        power: `--power`, n.
        algorithm: `--algorithm`.
        feed: `--feed`.
        placement: `--placement`.
        api: `--api`.
        inter_op: `--inter-op`, a number or `default`.
        repeat: `--repeat`, warm steps.
        trace: `--trace/--no-trace`.
        fresh: `--fresh`.
        timeout_s: `--timeout`, seconds.
        tags: `--tag`, each `key=value`.
        detach: `--detach`.
        fetch: `--fetch`.
        sum_task: `--sum-on`, a task's index.
        soft_placement: `--soft-placement`.
        environment: `--env`, each `NAME=VALUE`, or `NAME` for this process's own value.
        skip_checks: `--skip-checks`.
    """

    script: Path | None = None
    args: tuple[str, ...] = ()
    companions: tuple[Path, ...] = ()
    gpu: bool | None = None
    size: int | None = None
    power: int | None = None
    algorithm: str | None = None
    feed: str | None = None
    placement: str | None = None
    api: str | None = None
    inter_op: str | None = None
    repeat: int | None = None
    trace: bool | None = None
    fresh: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    tags: tuple[str, ...] = ()
    detach: bool = False
    fetch: str | None = None
    sum_task: int | None = None
    soft_placement: bool = False
    environment: tuple[str, ...] = ()
    skip_checks: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A run that may be meant, with all that it needs from this machine.

    Attributes:
        parameters: For the record.
        matpow: The built-in experiment, or None.
        script: The user's script, or None.
        files: Name and content of each file of the user's.
        gpu: A GPU is asked for on every node.
        peers: Join servers take part.
        trace: Traced and probe steps are asked for.
        tags: The user's own.
        detach: Return after the start.
        environment: Variables for the client, with their values.
        skip_checks: Start even where checks fail.
    """

    parameters: Parameters
    matpow: wire.MatpowPlan | None
    script: wire.ScriptPlan | None
    files: dict[str, bytes] = field(default_factory=dict)
    gpu: bool = False
    peers: bool = True
    trace: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    detach: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    skip_checks: bool = False

    def require_fits(self, lab: Lab) -> None:
        """Check what only the lab can tell.

        Raises:
            UsageError: A task is named that the lab does not have, or its tasks' constants do not fit a graph.
        """
        if self.matpow is None:
            return
        tasks = len(lab.nodes)
        if self.matpow.sum_task >= tasks:
            raise _bad(
                "--sum-on", str(self.matpow.sum_task), f"a task of the lab, 0 to {tasks - 1}"
            )
        largest = math.isqrt(wire.MESSAGE_BYTES // 4 // tasks)
        if self.matpow.feed == "constant" and self.matpow.size > largest:
            raise UsageError(
                f"--size {self.matpow.size} with --feed constant: {tasks} matrices do not fit a graph of 2 GiB",
                expected=f"--size {largest} or less",
                do="a smaller --size, or --feed fed or staged",
            )

    def tasks(self, lab: Lab) -> int:
        """Return how many TensorFlow tasks take part."""
        return 1 if self.parameters.placement == "one-process" else len(lab.nodes)

    def plan(self, run_id: str, lab: Lab) -> wire.RunPlan:
        """Return the plan that is sent to task 0's node."""
        return wire.RunPlan(
            run_id=run_id,
            cluster=cluster_addresses(lab),
            matpow=self.matpow,
            script=self.script,
            trace=self.trace,
            environment=self.environment,
        )


def make_request(options: RunOptions) -> Request:
    """Check the options and read the user's files.

    Raises:
        UsageError: An option is out of bounds, two do not fit together, or a file cannot be read.
    """
    timeout_s = options.timeout_s
    if not math.isfinite(timeout_s) or not 1 <= timeout_s <= MAX_TIMEOUT_S:
        raise _bad("--timeout", f"{timeout_s:g}", f"1 to {MAX_TIMEOUT_S:g} seconds")
    tags = _tags(options.tags)
    environment = _environment(options.environment)
    if options.script is None:
        return _matpow(options, tags, environment)
    return _script(options.script, options, tags, environment)


def _matpow(options: RunOptions, tags: dict[str, str], environment: dict[str, str]) -> Request:
    if options.companions:
        raise UsageError("--with is given without a script", do="labctl run SCRIPT --with FILE")
    if options.args:
        raise UsageError(
            f"arguments without a script: {' '.join(options.args)}", do="labctl run SCRIPT -- ARGS"
        )
    default = wire.MatpowPlan()
    placement = _choice("--placement", options.placement, wire.PLACEMENTS, default.placement)
    if options.fresh and placement != "lab":
        raise UsageError(
            f"--fresh does not fit --placement {placement}: no join server takes part",
            do="leave one of the two out",
        )
    sum_task = _whole("--sum-on", options.sum_task, 0, MAX_TASKS - 1, default.sum_task)
    if sum_task and placement == "one-process":
        raise UsageError(
            f"--sum-on {sum_task} does not fit --placement one-process: there is no other task",
            do="leave one of the two out",
        )
    if options.soft_placement and not options.gpu:
        raise UsageError(
            "--soft-placement is given without --gpu: there is nothing to give way to",
            do="add --gpu, or leave it out",
        )
    plan = wire.MatpowPlan(
        size=_whole("--size", options.size, 1, MAX_SIZE, default.size),
        power=_whole("--power", options.power, 1, MAX_POWER, default.power),
        algorithm=_choice("--algorithm", options.algorithm, wire.ALGORITHMS, default.algorithm),
        feed=_choice("--feed", options.feed, wire.FEEDS, default.feed),
        placement=placement,
        api=_choice("--api", options.api, wire.APIS, default.api),
        device="gpu" if options.gpu else "cpu",
        inter_op=_inter_op(options.inter_op, default.inter_op),
        repeat=_whole("--repeat", options.repeat, 0, MAX_REPEAT, default.repeat),
        fetch=_choice("--fetch", options.fetch, wire.FETCHES, default.fetch),
        sum_task=sum_task,
        soft_placement=options.soft_placement,
    )
    trace = options.trace is not False
    parameters = Parameters(
        experiment="matpow",
        trace=trace,
        fresh=options.fresh,
        timeout_s=options.timeout_s,
        device=plan.device,
        size=plan.size,
        power=plan.power,
        algorithm=plan.algorithm,
        feed=plan.feed,
        placement=plan.placement,
        api=plan.api,
        inter_op=plan.inter_op,
        repeat=plan.repeat,
        seed=plan.seed,
        fetch=plan.fetch,
        sum_task=plan.sum_task,
        soft_placement=plan.soft_placement,
        environment=tuple(sorted(environment)),
        skip_checks=options.skip_checks,
    )
    return Request(
        parameters=parameters,
        matpow=plan,
        script=None,
        gpu=plan.device == "gpu" and not plan.soft_placement,
        peers=placement == "lab",
        trace=trace,
        tags=tags,
        detach=options.detach,
        environment=environment,
        skip_checks=options.skip_checks,
    )


def _script(
    script: Path, options: RunOptions, tags: dict[str, str], environment: dict[str, str]
) -> Request:
    for flag, value in (
        ("--size", options.size),
        ("--power", options.power),
        ("--algorithm", options.algorithm),
        ("--feed", options.feed),
        ("--placement", options.placement),
        ("--api", options.api),
        ("--inter-op", options.inter_op),
        ("--repeat", options.repeat),
        ("--trace", options.trace or None),
        ("--fetch", options.fetch),
        ("--sum-on", options.sum_task),
        ("--soft-placement", options.soft_placement or None),
    ):
        if value is not None:
            raise UsageError(
                f"{flag} is of the built-in experiment and does not fit the script {script}",
                expected="only options that fit a script",
                do=f"leave {flag} out, or hand it to the script after --",
            )
    device: wire.Device | None = None if options.gpu is None else "gpu" if options.gpu else "cpu"
    files = {script.name: _read(script)}
    for path in options.companions:
        if path.name in files:
            raise UsageError(f"two files are called {path.name}", do="rename one of them")
        files[path.name] = _read(path)
    parameters = Parameters(
        experiment="script",
        trace=False,
        fresh=options.fresh,
        timeout_s=options.timeout_s,
        device=device,
        script=script.name,
        args=options.args,
        companions=tuple(path.name for path in options.companions),
        environment=tuple(sorted(environment)),
        skip_checks=options.skip_checks,
    )
    return Request(
        parameters=parameters,
        matpow=None,
        script=wire.ScriptPlan(script.name, options.args, device),
        files=files,
        gpu=options.gpu is True,
        tags=tags,
        detach=options.detach,
        environment=environment,
        skip_checks=options.skip_checks,
    )


def _read(path: Path) -> bytes:
    if not _FILE_NAME.match(path.name) or path.name in _RESERVED_FILES:
        raise UsageError(
            f"{path.name!r} cannot be sent to a run directory",
            expected="a plain file name (letters, digits, _ . + -) that labctl does not use itself",
            do="rename the file",
        )
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UsageError(
                f"{path} has {size} bytes",
                expected=f"at most {MAX_FILE_BYTES} bytes in a file that is sent with a run",
                do="put large data on the nodes beforehand",
            )
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}",
            expected="a readable file",
            do="check the path; labctl run without SCRIPT runs the built-in experiment",
        ) from error


def _tags(texts: tuple[str, ...]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in texts:
        match = _TAG.match(text)
        if match is None:
            raise _bad("--tag", repr(text), "key=value, the key of letters, digits, _ . -")
        if match[1] in tags:
            raise UsageError(f"--tag {match[1]} is given twice", do="leave one out")
        tags[match[1]] = match[2]
    return tags


def _environment(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the variables for the client; messages never hold a value."""
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not _VARIABLE.match(name):
            raise _bad("--env", repr(name), "NAME or NAME=VALUE, the name of letters, digits and _")
        if name in _OWN_VARIABLES:
            raise UsageError(f"--env {name}: labctl sets it itself", do="leave it out")
        if name in variables:
            raise UsageError(f"--env {name} is given twice", do="leave one out")
        if not equals:
            own = os.environ.get(name)
            if own is None:
                raise UsageError(
                    f"--env {name}: it is not set here",
                    expected="a variable of labctl's own environment, or NAME=VALUE",
                    do=f"--env {name}=VALUE, or export it first",
                )
            value = own
        if "\0" in value or len(value) > MAX_VALUE_CHARACTERS:
            raise UsageError(
                f"--env {name}: its value cannot be set",
                expected=f"at most {MAX_VALUE_CHARACTERS} characters, none of them NUL",
                do="a shorter value",
            )
        variables[name] = value
    return variables


def _inter_op(text: str | None, default: int | None) -> int | None:
    if text is None:
        return default
    if text == "default":
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_INTER_OP:
        raise _bad("--inter-op", repr(text), f"1 to {MAX_INTER_OP}, or default")
    return int(text)


def _whole(flag: str, value: int | None, low: int, high: int, default: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise _bad(flag, str(value), f"{low} to {high}")
    return value


def _choice(flag: str, value: str | None, choices: tuple[T, ...], default: T) -> T:
    if value is None:
        return default
    if value not in choices:
        raise _bad(flag, repr(value), f"one of {', '.join(map(str, choices))}")
    return value


def _bad(flag: str, found: str, expected: str) -> UsageError:
    return UsageError(f"{flag} {found}", expected=expected, do="labctl run --help")
