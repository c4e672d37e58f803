"""Judges of the machine itself: contact, privileges, room, processor, clock, Python, leftovers."""

from __future__ import annotations

from collections.abc import Callable

from labctl.checks.collect import CLIENT_UNIT, NODE_PYTHON, RUNS_DIR, SERVER_UNIT
from labctl.checks.facts import NodeFacts, Observed
from labctl.checks.model import Verdict, fail, mib, ok, on, skipped, span
from labctl.errors import (
    ConfigError,
    HostUnreachableError,
    LabBusyError,
    LabctlError,
    UnreachableError,
)
from labctl.lab.model import Node
from labctl.remote.capture import sudo_refused
from labctl.remote.units import busy

ROOM_BYTES = {"/tmp": 100 << 20}  # noqa: S108 a path on the nodes
DEFAULT_ROOM_BYTES = 200 << 20
MIN_INODES = 1000
MAX_OFFSET_S = 0.1
DEAD_AFTER_S = 600.0


def judge_ssh(seen: Observed, node: Node) -> Verdict:
    """SSH gets through, with a host key that is known."""
    contact = seen.contacts[node.name]
    error = contact.error
    if error is not None:
        expected = error.expected or "a command over SSH within the deadline"
        host = node.ssh.host if node.ssh is not None else node.name
        do = error.do or f"see that {node.name} ({host}) is up and lets this machine in"
        if not isinstance(error, UnreachableError):
            error = HostUnreachableError(error.found, expected=expected, do=do)
        return fail(error.found, expected, do, error)
    offset = seen.offsets.get(node.name)
    more = "" if offset is None else f", round trip {offset.rtt_s * 1e3:.1f} ms"
    return ok(f"connected in {contact.connect_s:.1f} s, host key known{more}")


def judge_probe(seen: Observed, node: Node) -> Verdict:
    """The node's own Python can answer questions about it."""
    if node.name in seen.facts:
        return ok(f"Python {seen.facts[node.name].python} answers")
    return fail(
        seen.unreadable[node.name],
        "systemd, and Python 3.9 or newer that runs labctl's probe",
        on(node, f"{NODE_PYTHON} --version; systemctl is-system-running"),
    )


def judge_sudo(seen: Observed, node: Node) -> Verdict:
    """Sudo works without a password."""
    facts = seen.facts[node.name]
    if facts.sudo_error is None:
        return ok("logged in as root" if facts.user == "root" else f"no password for {facts.user}")
    error = sudo_refused(node.name, facts.user, facts.sudo_error.encode())
    return fail(error.found, error.expected or "", error.do or "", error)


def judge_disk(seen: Observed, node: Node) -> Verdict:
    """There is room for runs and temporary files."""
    facts, said = seen.facts[node.name], []
    for disk in facts.disk:
        need = ROOM_BYTES.get(disk.path, DEFAULT_ROOM_BYTES)
        if disk.free_bytes < need:
            return fail(
                f"{mib(disk.free_bytes)} free in {disk.path}",
                f"{mib(need)} or more",
                on(node, f"make room in {disk.path}; old runs: sudo ls {RUNS_DIR}"),
            )
        if disk.free_inodes is not None and disk.free_inodes < MIN_INODES:
            return fail(
                f"{disk.free_inodes} inodes free in {disk.path}",
                f"{MIN_INODES} or more",
                on(node, f"remove files in {disk.path}"),
            )
        said.append(f"{disk.path} {mib(disk.free_bytes)}")
    return ok(f"free: {', '.join(said)}") if said else skipped("no path could be looked at")


def judge_cpu(seen: Observed, node: Node) -> Verdict:
    """The processor has what TensorFlow's builds need."""
    facts = seen.facts[node.name]
    if facts.machine != "x86_64":
        return ok(facts.machine)
    if "avx" not in facts.cpu_flags:
        return fail(
            "the processor has no AVX",
            "a processor with AVX: TensorFlow's builds stop with 'illegal instruction' without",
            f"give {node.name} another machine type, or let the hypervisor pass the host's flags",
        )
    return ok(f"{facts.machine} with {', '.join(facts.cpu_flags)}")


def judge_clock(seen: Observed, node: Node) -> Verdict:
    """The node's clock agrees with task 0's."""
    own, client = seen.offsets.get(node.name), seen.offsets.get(seen.lab.client.name)
    if own is None or client is None:
        return skipped("the offset could not be measured")
    if node is seen.lab.client:
        return ok(
            f"{own.seconds * 1e3:+.1f} ms to this machine (± {own.error_bound_s * 1e3:.1f} ms)"
        )
    offset, error = own.seconds - client.seconds, own.error_bound_s + client.error_bound_s
    text = f"{offset * 1e3:+.1f} ms to {seen.lab.client.name} (± {error * 1e3:.1f} ms)"
    if abs(offset) - error > MAX_OFFSET_S:
        return fail(
            text,
            f"at most {MAX_OFFSET_S * 1e3:.0f} ms",
            on(node, "sudo systemctl restart chrony && chronyc waitsync 10"),
        )
    return ok(text)


def judge_venv(seen: Observed, node: Node) -> Verdict:
    """TensorFlow's Python runs."""
    venv = seen.facts[node.name].venv
    if venv.error is not None:
        return fail(venv.error, f"{node.python} that runs", remedy(node))
    return ok(f"Python {venv.python}")


def judge_tensorflow(seen: Observed, node: Node) -> Verdict:
    """TensorFlow is there, in the same major.minor as on task 0."""
    own = seen.facts[node.name].venv.tensorflow
    if own is None:
        return fail("no TensorFlow in the venv", "TensorFlow as on every node", remedy(node))
    return _like_client(seen, node, "TensorFlow", own, lambda facts: facts.venv.tensorflow)


def judge_python(seen: Observed, node: Node) -> Verdict:
    """The venv's Python is the same major.minor as on task 0."""
    own = seen.facts[node.name].venv.python
    if not own:
        return skipped("the venv does not run")
    return _like_client(seen, node, "Python", own, lambda facts: facts.venv.python or None)


def _like_client(
    seen: Observed, node: Node, what: str, own: str, version: Callable[[NodeFacts], str | None]
) -> Verdict:
    client = seen.lab.client
    facts = seen.facts.get(client.name)
    theirs = None if facts is None else version(facts)
    if theirs is not None and _minor(theirs) != _minor(own):
        return fail(
            f"{what} {own} on {node.name}, {theirs} on {client.name}",
            f"the same major.minor ({_minor(theirs)}) on every node",
            remedy(node),
            ConfigError(
                f"{what} {own} on {node.name}, {theirs} on {client.name}",
                expected=f"the same major.minor ({_minor(theirs)}) on every node",
                do=remedy(node),
            ),
        )
    return ok(f"{what} {own}")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def remedy(node: Node) -> str:
    """Return what puts a node's software right."""
    if node.ssh is None:
        return "pip install 'labctl[loopback]' in labctl's own environment"
    return "labctl provision"


def judge_leftovers(seen: Observed, node: Node) -> Verdict:
    """No run is active and nothing of an earlier one is left."""
    facts = seen.facts[node.name]
    unit = facts.units.get(CLIENT_UNIT)
    error: LabctlError
    if unit is not None and unit.running:
        error = busy(node.name, CLIENT_UNIT, unit.description)
        age = "" if unit.since_s is None else f", for {span(unit.since_s)}"
        return fail(
            f"{unit.description or CLIENT_UNIT} is still running{age}",
            error.expected or "",
            error.do or "",
            error,
        )
    holders = facts.holders if node.task_index == 0 or node.ssh is None else ()
    held = [each for each in holders if each.unit != CLIENT_UNIT and not each.is_listener]
    if held:
        found = f"port {node.tf_port} of {node.name} is held by {held[0]}"
        expected = f"the port free for task:{node.task_index}"
    elif facts.strays:
        found = f"a process of a client is left on {node.name}: {facts.strays[0]}"
        expected = "no process of the client's user outside a run"
    else:
        return ok("none" if node.ssh is not None else f"port {node.tf_port} is free")
    pids = sorted({each.pid for each in held or facts.strays if each.pid})
    kill = (
        f"sudo kill {' '.join(map(str, pids))}"
        if pids
        else f"sudo ss -tlnp 'sport = {node.tf_port}'"
    )
    if held and held[0].unit == SERVER_UNIT:
        kill = "sudo systemctl disable --now tf-join-server"  # killed, it would be started again
    do = on(node, kill)
    return fail(found, expected, do, LabBusyError(found, expected=expected, do=do))


def judge_dead_runs(seen: Observed, node: Node) -> Verdict:
    """No run directory is without an end, but the active run's."""
    facts = seen.facts[node.name]
    unit = facts.units.get(CLIENT_UNIT)
    active = unit.description.split()[-1] if unit and unit.running and unit.description else ""
    dead = [
        run
        for run in facts.runs
        if not run.ended and run.name != active and run.age_s > DEAD_AFTER_S
    ]
    if not dead:
        return ok(f"{len(facts.runs)} run directories, each with its end" if facts.runs else "none")
    newest = dead[0]
    return fail(
        f"{len(dead)} of {len(facts.runs)} run directories have no end, the newest {newest.name}",
        "each run's directory says how it ended",
        f"labctl attach {newest.name} to keep its logs; {on(node, f'sudo rm -r {RUNS_DIR}/{newest.name}')}",
    )
