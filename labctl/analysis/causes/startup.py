"""Rules on what is paid once: import, servers, the first step, compilation. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    LOG_LEVEL,
    WALL_SHARE,
    Cause,
    first_step_extra_s,
    gpu_asked,
    is_matpow,
    log_hidden,
    log_line,
    part_text,
    phase_s,
    quoted,
    time_text,
    wall_s,
    warm_s,
)
from labctl.analysis.causes.contact import is_open, not_reached
from labctl.analysis.causes.gpu_compile import PTX_JIT
from labctl.analysis.causes.gpu_signals import compiles_much, context_s, made_device
from labctl.analysis.causes.graph import CONSTANTS_FOLDED, constants_folded
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.cold_start import PHASE_CUBLAS
from labctl.lab.model import LOOPBACK
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.record import ServerState

IMPORT = Cause("import", "once", "TensorFlow's import", "A")
FIRST_STEP_SETUP = Cause(
    "first-step-setup", "once", "The first step: connection, placement and graph optimisation", "A"
)
SERVER_START = Cause("server-start", "once", "The start of the TensorFlow servers", "A")
XLA_COMPILE = Cause("xla-compile", "once", "XLA compiles", "B")

_XLA_WORDS = ("compiled cluster using xla", "very slow compile?")
_XLA_VARIABLES = ("TF_XLA_FLAGS", "XLA_FLAGS")


def _import(run: Explained) -> Verdict:
    seconds, wall = phase_s(run, wire.PHASE_IMPORT_NUMPY, wire.PHASE_IMPORT_TENSORFLOW), wall_s(run)
    if seconds is None or wall is None:
        missing = not_reached(run, "its import")[0]
        if not is_matpow(run):
            missing = "a script's own import is not timed"
        elif any(event.text("phase") == wire.PHASE_IMPORT_TENSORFLOW for event in run.data.events):
            missing = "the import's stamps lie outside of the run"
        return IMPORT.not_measured(
            missing, "python -X importtime -c 'import tensorflow' on the node"
        )
    told = part_text(seconds, wall)
    if seconds < WALL_SHARE * wall:
        return IMPORT.ruled_out(told)
    evidence = [f"{told} of the run's wall time, on {run.data.record.remote.node}"]
    servers = [
        (server.node, span.duration_s)
        for server in run.data.record.servers_before
        for span in server.phases
        if span.phase == wire.PHASE_IMPORT_TENSORFLOW
    ]
    evidence += [
        f"the join server on {node} took {time_text(took)} for it when it started"
        for node, took in servers
    ]
    return IMPORT.found(
        seconds,
        evidence,
        remedy="more steps in one process (--repeat); each run's client imports TensorFlow once",
    )


def _first_step_setup(run: Explained) -> Verdict:
    cause = FIRST_STEP_SETUP
    extra, warm, wall = first_step_extra_s(run), warm_s(run), wall_s(run)
    cublas = phase_s(run, PHASE_CUBLAS)
    if extra is None or warm is None or wall is None:
        return cause.not_measured(
            not_reached(run, "a step after its first one")[0]
            if is_open(run)
            else "there is no first step with a later one to hold against it",
            "a run with --repeat 1 or more that ends",
        )
    told = f"cold {time_text(extra + warm)}, warm {time_text(warm)}"
    owner = _owner_of_first_step(run)
    if owner is not None:
        return cause.ruled_out(f"{told}, counted in {owner}")
    if cublas is not None:  # which `cublas-load` has
        extra -= cublas
        told += f", of which {time_text(cublas)} are cuBLAS's start by the probe"
    if extra < WALL_SHARE * wall:
        return cause.ruled_out(f"{part_text(max(extra, 0.0), wall)}: {told}")
    return cause.found(
        extra,
        [f"{told}: {part_text(extra, wall)} of the run's wall time", *_setup_lines(run)],
        remedy="a first step that is not timed; one session for many steps",
        confidence="high" if gpu_asked(run) is False else "medium",
    )


def _owner_of_first_step(run: Explained) -> str | None:
    """Return the rule that has the first step's extra time, None if it is `first-step-setup`."""
    if constants_folded(run).status == "found":
        return CONSTANTS_FOLDED.name
    if log_line(run, *_XLA_WORDS) is not None:
        return XLA_COMPILE.name
    if gpu_asked(run) and compiles_much(run):
        return PTX_JIT.name
    return None


def _setup_lines(run: Explained) -> list[str]:
    """Return what TensorFlow's log says of the first step."""
    words = {
        "scanning workers for devices": "the session reached its workers",
        "graph_optimization_pass": "placement and graph optimisation began",
    }
    begun = next(
        (
            event.t_s
            for event in run.data.events
            if event.kind == wire.PHASE_BEGIN and event.text("phase") == wire.PHASE_FIRST_STEP
        ),
        None,
    )
    node = run.data.record.remote.node
    lines = []
    for word, what in words.items():
        line = log_line(run, word)
        if line is None or line.unix_s is None or begun is None or line.node != node:
            continue
        if line.unix_s >= begun:
            lines.append(f"{what} {time_text(line.unix_s - begun)} after its begin")
    return lines


def _server_start(run: Explained) -> Verdict:
    cause, wall = SERVER_START, wall_s(run)
    own = phase_s(run, wire.PHASE_SERVER)
    if gpu_asked(run) and made_device(run) and context_s(run) == own:
        own = None  # it made the client's devices, which `cuda-context` has
    waited = phase_s(run, wire.PHASE_PEERS)
    paid = _paid_by_labctl_s(run)
    children = run.data.record.parameters.placement == "one-host"
    if wall is None or (own is None and not paid and phase_s(run, wire.PHASE_SERVER) is None):
        if is_open(run):
            return cause.not_measured(*not_reached(run, "its servers"))
        return cause.not_measured("the run has no server phase", "a run that ends")
    seconds = (own or 0.0) + paid + ((waited or 0.0) if children else 0.0)
    told = part_text(seconds, wall)
    servers = [each for each in run.data.record.servers_before if each.startup_s is not None]
    lines = [_server_line(run, each) for each in servers]
    if seconds < WALL_SHARE * wall:
        return cause.ruled_out(f"{told} of this run", *lines)
    evidence = [f"{told} of the run's wall time"]
    if paid:
        evidence.append(f"join servers were started for this run: {time_text(paid)}")
    if children and waited:
        evidence.append(f"the other tasks' servers on the client's node: {time_text(waited)}")
    if own is not None:
        evidence.append(f"the client's own server and its devices: {time_text(own)}")
    remedy = (
        "leave the join servers running: a run without --fresh finds them ready"
        if run.data.record.parameters.fresh
        else "servers that stay: labctl run on a provisioned lab finds them ready"
    )
    return cause.found(seconds, [*evidence, *lines], remedy=remedy)


def _paid_by_labctl_s(run: Explained) -> float:
    """Return what starting join servers took of this run, seconds; 0 where they stood already."""
    return sum(
        span.duration_s
        for span in run.data.record.spans
        if span.phase in {"restart_servers", "start_servers"}
    )


def _server_line(run: Explained, server: ServerState) -> str:
    record = run.data.record
    before = ""
    if server.started_at_s is not None and record.provider != LOOPBACK:
        ago = -record.since_origin_s(server.node, server.started_at_s)
        before = f", {ago:.0f} s before this run" if ago > 0 else ", in this run"
    return f"the join server on {server.node} took {time_text(server.startup_s or 0.0)} to start{before}"


def _xla_compile(run: Explained) -> Verdict:
    cause = XLA_COMPILE
    names = [name for name in run.data.record.parameters.environment if name in _XLA_VARIABLES]
    line = log_line(run, *_XLA_WORDS)
    if line is not None:
        extra = first_step_extra_s(run)
        return cause.found(
            extra if extra is not None and extra > 0 else None,
            [quoted(line), *(f"{name} is set" for name in names)],
            remedy="unset TF_XLA_FLAGS and XLA_FLAGS, or --xla_gpu_autotune_level=0 in XLA_FLAGS",
            confidence="medium",
        )
    if names:
        return cause.not_measured(
            f"{', '.join(names)} is set, and the log does not say whether anything was compiled",
            f"the same run without it, and with {LOG_LEVEL} unset",
        )
    if log_hidden(run) or not run.data.log:
        return cause.not_measured(
            "there is no log of TensorFlow's to look for compilations in",
            f"a run without {LOG_LEVEL} in --env",
        )
    return cause.ruled_out(f"0 of {len(run.data.log)} log lines name XLA's compiler")


RULES: tuple[Rule, ...] = (
    IMPORT.rule(_import),
    FIRST_STEP_SETUP.rule(_first_step_setup),
    SERVER_START.rule(_server_start),
    XLA_COMPILE.rule(_xla_compile),
)
