"""A join server as it is: its unit, its process, and what it said of its own start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labctl.drive.links import Machine
from labctl.drive.places import JOIN_SERVICE, join_unit
from labctl.errors import DeadlineError, RemoteCommandError
from labctl.lab.model import Node
from labctl.node import wire
from labctl.remote.journal import read_journal
from labctl.remote.units import UnitState
from labctl.runs.events import Event, parse
from labctl.runs.record import ServerState, Span

_LEAD_S = 1.0
_FIRST_LINES = 200
_MOST_BYTES = 1 << 20
_PROCESS_S = 10.0
_SOURCE = "join-server"
_PROCESS_SCRIPT = """
cat "/proc/$1/stat" || exit 1
getconf CLK_TCK
cat "/proc/$1/task/"*/schedstat 2>/dev/null
exit 0
"""


def unit_of(node: Node) -> str:
    """Return the name of a node's join server unit."""
    return join_unit(node) if node.ssh is None else JOIN_SERVICE


def read_server(machine: Machine) -> ServerState:
    """Return a node's join server, as far as its unit tells: the quickest look."""
    return _of_unit(machine.node, machine.units.state(unit_of(machine.node)))


def read_server_and_process(machine: Machine) -> ServerState:
    """Return a node's join server with what the kernel says of its process."""
    unit = machine.units.state(unit_of(machine.node))
    state = _of_unit(machine.node, unit)
    if unit.main_pid == 0:
        return state
    try:
        argv = ["sh", "-c", _PROCESS_SCRIPT, "sh", str(unit.main_pid)]
        done = machine.executor.run(argv, timeout_s=_PROCESS_S)
    except (RemoteCommandError, DeadlineError):
        return state
    return with_process(state, done.text) if done.ok else state


def read_server_and_start(machine: Machine) -> ServerState:
    """Return a node's join server with its process and, if its journal still has it, its start."""
    state = read_server_and_process(machine)
    if state.started_at_s is None:
        return state
    since_s = state.started_at_s - _LEAD_S
    try:
        page = read_journal(machine.executor, JOIN_SERVICE, since_s=since_s, limit=_FIRST_LINES)
    except RemoteCommandError:
        return state
    return with_start(state, list(parse(line.message for line in page.lines)))


def read_own_server(machine: Machine, stdout: str) -> ServerState:
    """Return a join server that was started for a loopback run.

    Args:
        machine: Its node.
        stdout: The file that it writes its events to.
    """
    state = read_server_and_process(machine)
    try:
        said = machine.executor.read(stdout, limit=_MOST_BYTES)
    except (FileNotFoundError, RemoteCommandError):
        return state
    return with_start(state, list(parse(said.splitlines())))


def with_start(state: ServerState, events: Sequence[Event]) -> ServerState:
    """Return a server's state with what it said of its start, from its last `hello` before it was ready; pure.

    Args:
        state: The state.
        events: Those of its journal, in order, from its start on; earlier ones of another process do no harm.
    """
    began_s: float | None = None
    phases: list[Span] = []
    for event in events:
        if event.source != _SOURCE:
            continue
        if event.kind == wire.HELLO:
            started_ns = event.whole("process_start_t")
            began_s, phases = None if started_ns is None else started_ns / 1e9, []
        elif event.kind == wire.PHASE_END and began_s is not None:
            duration_s = (event.number("duration_ns") or 0.0) / 1e9
            start_s = event.t_s - duration_s
            phases.append(Span(event.text("phase"), state.node, start_s, duration_s, _SOURCE))
        elif event.kind == wire.READY and began_s is not None:
            return replace(
                state,
                startup_s=event.t_s - began_s,
                phases=tuple(phases),
                spec_sha256=event.text("spec_sha256") or None,
                inter_op=event.whole("inter_op"),
            )
    return replace(state, phases=tuple(phases))


def with_process(state: ServerState, text: str) -> ServerState:
    """Return a server's state with what `/proc` says of its process; pure.

    Args:
        state: The state.
        text: Its `stat`, the clock ticks of a second, then `schedstat` of each thread, a line each.
    """
    first, _, rest = text.partition("\n")
    fields = first.rpartition(")")[2].split()
    lines = [line.split() for line in rest.splitlines()]
    if len(fields) < 13 or not all(word.isdecimal() for line in lines for word in line):
        return state
    ticks_s = int(lines[0][0]) if lines and lines[0] else 0
    # Run and wait in nanoseconds and the number of turns, all 0 in a kernel that does not count.
    threads = [(int(line[0]), int(line[1])) for line in lines[1:] if len(line) == 3]
    return replace(
        state,
        process_state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks_s if ticks_s else None,
        wait_s=sum(wait for _, wait in threads) / 1e9 if any(run for run, _ in threads) else None,
    )


def _of_unit(node: Node, unit: UnitState) -> ServerState:
    return ServerState(
        node=node.name,
        active=unit.active,
        invocation_id=unit.invocation_id,
        started_at_s=unit.started_at_s,
        boot_id=unit.boot_id,
    )
