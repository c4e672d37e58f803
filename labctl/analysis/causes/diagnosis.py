"""One decision tree over what keeps tasks apart, so that one fault has one cause. Pure.

What a peer's port said comes first, because TensorFlow's own log has the same line for every fault of this family,
or none at all. Then what the checks before the run found, the cluster specs, the environment, the versions.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import Cause, quoted
from labctl.analysis.causes.contact import (
    ANSWERS,
    Peer,
    ended_well,
    error_kind,
    error_line,
    failed_checks,
    log_lines,
    made_contact,
    own,
    peers,
    stall,
    still_waiting,
    workers,
)
from labctl.analysis.causes.model import Confidence
from labctl.lab.model import LOOPBACK
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.record import NodeFacts

PEER_DOWN = Cause("peer-down", "once", "No TensorFlow server listens on a peer's port", "A")
PORT_FILTERED = Cause("port-filtered", "once", "Packets to a peer's port are dropped", "A")
NAME_UNRESOLVABLE = Cause("name-unresolvable", "once", "A peer's name cannot be resolved", "A")
NAME_SELF = Cause(
    "name-resolves-to-self", "once", "A peer's name leads back to the node that asks", "A"
)
PROXY = Cause("proxy", "once", "A proxy variable sends the tasks' traffic to a proxy", "A")
PEER_FROZEN = Cause(
    "peer-frozen", "once", "A peer's server takes connections but does not move", "A"
)
PORT_IN_USE = Cause("port-in-use", "once", "Another process holds a task's port", "A")
STALE_SPEC = Cause(
    "stale-spec", "once", "A join server serves another cluster spec than the run's", "A"
)
PROTOCOL_SKEW = Cause(
    "protocol-skew", "once", "Two versions of TensorFlow do not understand each other", "C"
)

# gRPC reads these, lower case only, in this order.
CATCHING = ("grpc_proxy", "https_proxy", "http_proxy")

_RESTART = "sudo systemctl restart tf-join-server"
_THAW = "sudo systemctl kill -s CONT tf-join-server"
_REFUSED = "refused the connection"  # the words of the check of ports
_STOPPED = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting for a disk"}
_SPEC_ERRORS = frozenset({"peer-unavailable", "wrong-cluster", "peer-restarted", "peer-lost"})


@dataclass(frozen=True, slots=True)
class Fault:
    """A leaf of the decision tree.

    Attributes:
        cause: What it is.
        node: Whom it is about.
        title: The cause, with the node's name.
        evidence: One line each.
        confidence: How sure.
        remedy: A command or setting.
    """

    cause: Cause
    node: str
    title: str
    evidence: tuple[str, ...]
    confidence: Confidence
    remedy: str


def diagnose(run: Explained) -> tuple[Fault, ...]:
    """Return the faults that kept the tasks of a run apart, at most one for each node."""
    faults = _ports_in_use(run)
    for cause in (_misled, _silent, _frozen_processes, _checked_ports):
        told = {fault.node for fault in faults}
        faults.extend(fault for fault in cause(run) if fault.node not in told)
    if not faults:  # a server that is out of reach is not asked by its spec
        faults = _stale_specs(run) or _strangers(run)
    if not faults and not ended_well(run) and not made_contact(run) and workers(run):
        faults = _between(run)
    return tuple(faults)


def _ports_in_use(run: Explained) -> list[Fault]:
    found: dict[str, list[str]] = {}
    client = run.data.record.remote.node
    if error_kind(run) == "port-in-use":
        found.setdefault(client, []).append(error_line(run, "in use"))
    for node, events in run.data.server_events.items():
        last = next((e for e in reversed(events) if e.kind in {wire.ERROR, wire.READY}), None)
        if last is not None and last.text("kind") == "port-in-use":
            found.setdefault(node, []).append(f"{node} wrote: {last.text('message')}")
    for line in log_lines(run, "Could not start gRPC server"):
        found.setdefault(line.node, []).append(quoted(line))
    for check in run.data.record.failed_checks:
        if check.name in {"unit", "leftovers"} and "held by" in check.found:
            line_text = f"check {check.name} on {check.node}: {check.found}"
            found.setdefault(check.node, []).append(line_text)
    for peer in peers(run):
        if peer.state == "not gRPC":
            found.setdefault(peer.node, []).append(peer.said)
    return [
        Fault(
            PORT_IN_USE,
            node,
            f"Another process holds the task's port on {node}",
            tuple(dict.fromkeys(lines)),
            "high",
            f"on {node}: end what `sudo ss -ltnp 'sport = :{_port(run, node)}'` names, or set another tf_port",
        )
        for node, lines in found.items()
    ]


def _silent(run: Explained) -> list[Fault]:
    """Return the faults that ports tell by what they say; none for a server that went away in mid-run."""
    found = [_of_port(run, peer) for peer in peers(run) if peer.state != ANSWERS]
    return [fault for fault in found if fault is not None]


def _of_port(run: Explained, peer: Peer) -> Fault | None:
    active = next((s.active for s in run.data.record.servers_before if s.node == peer.node), "")
    lines = [peer.said, *still_waiting(run)]
    confidence: Confidence = "high"
    if peer.state == "not resolvable":
        cause = NAME_UNRESOLVABLE
        title = f"{host_of(peer.address)} ({peer.node}) cannot be resolved on {run.data.record.remote.node}"
        remedy = f"set tf_data_address of {peer.node} to its address in the inventory, then labctl provision"
    elif peer.state == "refused" and not peer.lost:
        cause = PEER_DOWN
        title = f"No TensorFlow server listens for task:{peer.task} on {peer.node}"
        remedy = f"on {peer.node}: {_RESTART}"
        if active not in {"", "active"}:
            lines.append(f"tf-join-server on {peer.node} was {active} at the start")
        elif (alive := _answered_itself(run, peer.node)) is not None:
            cause, title = PORT_FILTERED, _refuses(peer.task, peer.node)
            lines.append(alive)
            remedy = _let_pass(peer.address)
    elif peer.state == "timed out" and peer.detail.startswith("connected"):
        cause = PEER_FROZEN
        title = f"The server of task:{peer.task} on {peer.node} takes connections but does not move"
        lines.extend(process_states(run, peer.node))
        confidence = "high" if _frozen(run, peer.node) else "medium"
        remedy = f"on {peer.node}: {_THAW}, else {_RESTART}"
    elif peer.state == "timed out":
        cause = PORT_FILTERED
        title = f"Packets to task:{peer.task}'s port on {peer.node} are dropped"
        if active != "active":
            confidence = "medium"
        elif any(_REFUSED in line for line in failed_checks(run, peer.node, "port")):
            title = _refuses(peer.task, peer.node)
            lines.append(f"tf-join-server on {peer.node} was active")
        else:
            lines.append(
                f"tf-join-server on {peer.node} was active: nobody refused, nobody answered"
            )
        remedy = _let_pass(peer.address)
    else:
        return None
    lines.extend(failed_checks(run, peer.node, "port", "unit", "firewall"))
    return Fault(cause, peer.node, title, tuple(lines), confidence, remedy)


def _refuses(task: int, node: str) -> str:
    return f"A firewall refuses packets to task:{task}'s port on {node}"


def _let_pass(address: str) -> str:
    port = address.rpartition(":")[2]
    return f"labctl provision; a firewall must let port {port} pass between the nodes"


def _answered_itself(run: Explained, node: str) -> str | None:
    """Return what says that a server answered on its own node all the while, None if nothing does."""
    before = next((s for s in run.data.record.servers_before if s.node == node), None)
    after = next((s for s in run.data.record.servers_after if s.node == node), before)
    if before is None or after is None or before.startup_s is None:
        return None
    same = before.invocation_id == after.invocation_id
    if not same or {before.active, after.active} != {"active"}:
        return None
    return (
        f"tf-join-server on {node} was active, and its port answered on {node} itself "
        f"{before.startup_s:.1f} s after its start"
    )


def _checked_ports(run: Explained) -> list[Fault]:
    """Return the ports that another task could not reach, where the client asked none or was answered."""
    stood_still = stall(run) is not None or error_kind(run) in _SPEC_ERRORS
    stepped = any(event.kind == wire.STEP for event in run.data.events)
    if ended_well(run) or stepped or not stood_still or not workers(run):
        return []
    found = (_of_check(run, node) for node in run.data.record.nodes)
    return [fault for fault in found if fault is not None]


def _of_check(run: Explained, node: NodeFacts) -> Fault | None:
    lines = failed_checks(run, node.name, "port")
    told = " ".join(lines)
    confidence: Confidence = "high"
    alive = _answered_itself(run, node.name)
    if _REFUSED in told and node.task != 0 and alive is None:
        cause, remedy = PEER_DOWN, f"on {node.name}: {_RESTART}"
        title = f"No TensorFlow server listens for task:{node.task} on {node.name}"
        confidence = "medium"  # it may have come up since
    elif _REFUSED in told:
        cause, remedy = PORT_FILTERED, _let_pass(node.tf_address)
        title = _refuses(node.task, node.name)
    elif "unreachable from" in told or ("timed out from" in told and "(connected" not in told):
        cause, remedy = PORT_FILTERED, _let_pass(node.tf_address)
        title = f"Packets to task:{node.task}'s port on {node.name} are dropped"
    else:
        return None
    lines.extend([*([] if alive is None else [alive]), *still_waiting(run)])
    return Fault(cause, node.name, title, tuple(lines), confidence, remedy)


def _frozen_processes(run: Explained) -> list[Fault]:
    """Return the servers that stood still when a run was ended, though their kernel took connections."""
    if ended_well(run):
        return []
    return [
        Fault(
            PEER_FROZEN,
            node.name,
            f"The server on {node.name} does not move",
            (*process_states(run, node.name), *still_waiting(run)),
            "high",
            f"on {node.name}: {_THAW}, else {_RESTART}",
        )
        for node in workers(run)
        if _frozen(run, node.name)
    ]


def _frozen(run: Explained, node: str) -> bool:
    """Return whether a server's process was stopped at the last look, or waited for a disk at both."""
    before = [s.process_state for s in run.data.record.servers_before if s.node == node]
    after = [s.process_state for s in run.data.record.servers_after if s.node == node]
    last = (after or before or [""])[-1]
    return last in {"T", "t"} or (last == "D" and before == ["D"])


def process_states(run: Explained, node: str) -> list[str]:
    """Return what state a server's process was in before and after a run, as evidence."""
    record = run.data.record
    looks = (("at the start", record.servers_before), ("at the end", record.servers_after))
    return [
        f"process of {node}'s server {when}: {_STOPPED.get(state.process_state, 'alive')} ({state.process_state})"
        for when, states in looks
        for state in states
        if state.node == node and state.process_state
    ]


def _stale_specs(run: Explained) -> list[Fault]:
    """Return the servers whose own copy of the spec, which they use to pull tensors, is not the run's."""
    faults = []
    wanted = run.data.record.spec_sha256
    for node in workers(run):
        served = served_spec(run, node.name)
        lines = failed_checks(run, node.name, "spec", "running-spec")
        if served is not None and served != wanted:
            lines.append(f"{node.name} serves spec {served[:12]}, the run has {wanted[:12]}")
        if not lines or served == wanted:
            continue
        if error_kind(run) in _SPEC_ERRORS:
            lines.append(error_line(run, "failed to connect", "unknown device"))
        if ended_well(run):
            lines.append("the run ended all the same: none of its tensors took the wrong address")
        faults.append(
            Fault(
                STALE_SPEC,
                node.name,
                f"The join server on {node.name} serves another cluster spec than the run's",
                (*lines, *still_waiting(run)),
                "medium" if served is None or ended_well(run) else "high",
                f"labctl provision, then on {node.name}: {_RESTART}",
            )
        )
    return faults


def served_spec(run: Explained, node: str) -> str | None:
    """Return the sha256 of the spec that a node's server serves, None if it did not say."""
    for state in run.data.record.servers_before:
        if state.node == node and state.spec_sha256:
            return state.spec_sha256
    ready = [e for e in run.data.server_events.get(node, ()) if e.kind == wire.READY]
    return ready[-1].text("spec_sha256") or None if ready else None


def _misled(run: Explained) -> list[Fault]:
    """Return the peers whose address leads back to the client."""
    faults = []
    for node in workers(run):
        lines = [
            f"check addresses on {each.node}: {each.found}"
            for each in run.data.record.failed_checks
            if each.name == "addresses"
            and f"({node.name})" in each.found
            and ("loopback address" in each.found or "own address" in each.found)
        ]
        if _is_mirror(run, node.tf_address):
            lines.append(f"the spec has {node.tf_address} for {node.name}: the client's own place")
        if lines and not ended_well(run):
            lines.extend(peer.said for peer in peers(run) if peer.node == node.name)
            faults.append(_mirror(node, lines))
    return faults


def _strangers(run: Explained) -> list[Fault]:
    """Return the fault of a server that says it is not the task that the client takes it for."""
    if error_kind(run) != "wrong-cluster" or ended_well(run):
        return []
    return [_mirror(node, [error_line(run, "unknown device")]) for node in workers(run)[:1]]


def _mirror(node: NodeFacts, lines: list[str]) -> Fault:
    return Fault(
        NAME_SELF,
        node.name,
        f"{host_of(node.tf_address)} ({node.name}) leads back to the node that asks",
        tuple(lines),
        "high",
        f"set tf_data_address of {node.name} to its private address, then labctl provision",
    )


def _is_mirror(run: Explained, address: str) -> bool:
    """Return whether a worker's address is task 0's host, or a loopback one where nodes are machines."""
    record = run.data.record
    if record.lab == LOOPBACK:
        return False
    own = next((node.tf_address for node in record.nodes if node.task == 0), "")
    literal = literal_address(host_of(address))
    return host_of(address) == host_of(own) or (literal is not None and literal.is_loopback)


def _between(run: Explained) -> list[Fault]:
    """Return what stands between tasks whose ports answer and whose session yet never came to be."""
    client = run.data.record.remote.node
    lines = [f"{peer.where} answers a plain probe of its port" for peer in peers(run)]
    confidence: Confidence = "high" if lines else "medium"
    lines.extend(still_waiting(run))
    caught = proxies_given(run)
    checked = [each for each in run.data.record.failed_checks if each.name == "proxies"]
    versions = tensorflow_minors(run)
    if caught:
        if any(name.startswith("no_") for name in run.data.record.parameters.environment):
            confidence = "medium"  # it may have spared the peers: its value is not kept
        hosts = ",".join(host_of(node.tf_address) for node in workers(run))
        lines.insert(0, f"{', '.join(caught)} was set for the client: gRPC obeys it silently")
        title = f"{caught[0]} sends the client's traffic to a proxy"
        remedy = f"leave --env {caught[0]} out, or spare the peers: --env no_proxy={hosts}"
        return [Fault(PROXY, client, title, tuple(lines), confidence, remedy)]
    if checked:
        node = checked[0].node
        lines.insert(0, f"check proxies on {node}: {checked[0].found}")
        title = f"A proxy variable on {node} catches the tasks' traffic"
        return [Fault(PROXY, node, title, tuple(lines), "medium", checked[0].do)]
    if len(set(versions.values())) > 1:
        lines.insert(0, f"TensorFlow {listed(versions)}")
        title = PROTOCOL_SKEW.title
        return [Fault(PROTOCOL_SKEW, client, title, tuple(lines), "medium", "labctl provision")]
    return []


def proxies_given(run: Explained) -> list[str]:
    """Return the names of proxy variables that were set for the client and that gRPC obeys."""
    given = {*run.data.record.parameters.environment, *(_environment(run) or ())}
    return [name for name in CATCHING if name in given]


def environment_told(run: Explained) -> bool:
    """Return whether the client said which telling variables it had."""
    return _environment(run) is not None


def _environment(run: Explained) -> dict[str, object] | None:
    """Return the variables that the client had when it began, by name; None if it did not say."""
    hello = next((event for event in own(run) if event.kind == wire.HELLO), None)
    told = None if hello is None else hello.data.get("environment")
    return told if isinstance(told, dict) else None


def tensorflow_minors(run: Explained) -> dict[str, str]:
    """Return TensorFlow's major.minor of each node that could say it."""
    return {
        node.name: ".".join(node.versions["tensorflow"].split(".")[:2])
        for node in run.data.record.nodes
        if node.versions.get("tensorflow")
    }


def listed(versions: dict[str, str]) -> str:
    """Return versions by node for people."""
    return ", ".join(f"{version} on {node}" for node, version in versions.items())


def host_of(address: str) -> str:
    """Return the host of `host:port`."""
    return address.rpartition(":")[0].strip("[]")


def literal_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is, None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _port(run: Explained, node: str) -> str:
    addresses = [each.tf_address for each in run.data.record.nodes if each.name == node]
    return addresses[0].rpartition(":")[2] if addresses else "2222"
