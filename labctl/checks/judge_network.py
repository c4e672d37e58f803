"""Judges of the network between the nodes: ports, addresses, exposure, packet filter."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from labctl.checks.collect import CLIENT_UNIT, FIREWALL_UNIT, bare
from labctl.checks.facts import Observed, ReachFacts
from labctl.checks.judge_server import server_remedy, server_trouble
from labctl.checks.model import Verdict, fail, ok, skipped
from labctl.errors import ConfigError, PeerUnreachableError
from labctl.lab.model import Node

ANSWERS = "answers"


def judge_port(seen: Observed, node: Node) -> Verdict:
    """Every other node reaches this node's TF port and a gRPC server answers."""
    views = {
        peer.name: seen.reach[peer.name, node.name]
        for peer in seen.lab.nodes
        if (peer.name, node.name) in seen.reach
    }
    if not views:
        return skipped("no other node could look")
    if node.task_index == 0 and (silent := _no_listener(seen, node)) is not None:
        return silent
    blind = [peer.name for peer in seen.lab.nodes if peer is not node and peer.name not in views]
    unseen = f"; not tried from {', '.join(blind)}" if blind else ""
    good = [name for name, view in views.items() if view.state == ANSWERS]
    bad = {name: view for name, view in views.items() if view.state != ANSWERS}
    if not bad:
        slowest = max(view.took_ms for view in views.values())
        return ok(f"{node.tf_address} answers {', '.join(good)} within {slowest:.1f} ms{unseen}")
    says = _says(bad)
    also = f"; answers {', '.join(good)}" if good else ""
    expected, do = _wanted(seen, node, bad)
    return fail(
        f"{node.tf_address} {says}{also}{unseen}",
        expected,
        do,
        PeerUnreachableError(
            f"task:{node.task_index} does not answer: {node.tf_address} {says}",
            expected=expected,
            do=do,
        ),
    )


def _no_listener(seen: Observed, node: Node) -> Verdict | None:
    """Return the verdict for a task 0 on whose port nothing of ours listens, None if something does."""
    facts = seen.facts.get(node.name)
    if facts is None:
        return skipped(f"no listener could be opened: {node.name} could not be asked")
    if any(each.unit == CLIENT_UNIT for each in facts.holders):
        return None
    held = [each for each in facts.holders if not each.is_listener]
    if held:
        return skipped(f"the port is held by {held[0]} (see leftovers)")
    if seen.listener is None:
        return skipped("a run is starting there (see leftovers)")
    if seen.listener.pid:
        return None
    found = f"port {node.tf_port} of {node.name} cannot be opened: {seen.listener.error}"
    expected, do = "a port that the client's server can take", "set another tf_port"
    return fail(found, expected, do, ConfigError(found, expected=expected, do=do))


def _says(bad: Mapping[str, ReachFacts]) -> str:
    """Say what the nodes met, equal findings together: `refused the connection from tf0, tf2`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, view in bad.items():
        groups.setdefault((view.state, view.detail), []).append(name)
    parts = []
    for (state, detail), names in groups.items():
        who, more = ", ".join(names), f" ({detail})" if detail else ""
        parts.append(
            {
                "refused": f"refused the connection from {who}",
                "timed out": f"timed out from {who}{more}",
                "not resolvable": f"is not resolvable on {who}{more}",
                "unreachable": f"is unreachable from {who}{more}",
                "no gRPC server": f"answers {who}, but not as TensorFlow does{more}",
            }.get(state, f"{state} from {who}{more}")
        )
    return "; ".join(parts)


def _wanted(seen: Observed, node: Node, bad: Mapping[str, ReachFacts]) -> tuple[str, str]:
    """Return what was expected of a node whose port does not answer, and what to do."""
    states = {view.state for view in bad.values()}
    facts = seen.facts.get(node.name)
    trouble = None if facts is None or node.task_index == 0 else server_trouble(facts, node)
    if facts is not None and trouble is not None:
        return f"tf-join-server active on {node.name}; found {trouble}", server_remedy(facts, node)
    if "not resolvable" in states:
        return (
            f"{bare(node.data_address)} resolvable on every node",
            f"set tf_data_address of {node.name} to its address in the inventory, then labctl provision",
        )
    if facts is None:
        return (
            f"a TensorFlow server on {node.name}, which could not be asked",
            f"mend ssh or probe of {node.name} first",
        )
    through = any(view.detail.startswith("connected") for view in bad.values())
    if node.task_index != 0 and (states <= {"no gRPC server", "refused"} or through):
        return (
            f"an answer of tf-join-server, which is active on {node.name}",
            f"on {node.name}: sudo systemctl restart tf-join-server",
        )
    return (
        f"port {node.tf_port} of {node.name} open to the lab's nodes",
        f"labctl provision; a cloud's firewall must let port {node.tf_port} pass between the nodes",
    )


def judge_addresses(seen: Observed, node: Node) -> Verdict:
    """Each peer's data address leads from here to that peer."""
    own, said = seen.facts[node.name].addresses, []
    for peer in seen.lab.nodes:
        view = seen.reach.get((node.name, peer.name))
        if peer is node or view is None:
            continue
        wrong = _misled(seen, peer, view, own)
        if wrong is not None:
            found = f"{bare(peer.data_address)} ({peer.name}) {wrong} on {node.name}"
            expected = f"an address of {peer.name} that {node.name} can reach"
            do = f"set tf_data_address of {peer.name} to its private address, then labctl provision"
            return fail(found, expected, do, ConfigError(found, expected=expected, do=do))
        said.append(f"{peer.name} {', '.join(view.addresses)}")
    return ok("; ".join(said)) if said else skipped("no peer's address was looked up")


def _misled(seen: Observed, peer: Node, view: ReachFacts, own: tuple[str, ...]) -> str | None:
    if not view.addresses:
        return f"is not resolvable ({view.detail})"
    loops = [each for each in view.addresses if _is_loopback(each)]
    if loops:
        return f"resolves to {loops[0]}, a loopback address,"
    mine = [each for each in view.addresses if each in own]
    if mine:
        return f"resolves to {mine[0]}, the node's own address,"
    facts = seen.facts.get(peer.name)
    named = bare(peer.data_address) not in view.addresses
    if named and facts is not None and view.state != ANSWERS:
        strange = [each for each in view.addresses if each not in facts.addresses]
        if strange:
            return f"resolves to {strange[0]}, which is no address of {peer.name},"
    return None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("%", maxsplit=1)[0]).is_loopback
    except ValueError:
        return False


def judge_exposure(seen: Observed, node: Node) -> Verdict:
    """The TF port does not answer this machine, which is no peer."""
    states = seen.outside.get(node.name)
    if not states:
        return skipped("this machine is one of the nodes: it cannot look from outside")
    exposed = [address for address, state in states.items() if state == "open"]
    if exposed:
        return fail(
            f"{exposed[0]} port {node.tf_port} answers this machine, which is no node of the lab",
            "TensorFlow's port open to the lab's nodes only: it has no authentication",
            f"labctl provision (role lab_firewall); close port {node.tf_port} in the cloud's firewall",
        )
    if node.name not in seen.facts:
        return skipped(f"{node.name} was not reached, so its silence proves nothing")
    where = ", ".join(states)
    if "refused" in states.values() and not _listens(seen, node):
        return skipped(f"{where}: nothing listens on port {node.tf_port} now")
    return ok(f"{where} port {node.tf_port}: no answer to this machine")


def _listens(seen: Observed, node: Node) -> bool:
    facts = seen.facts.get(node.name)
    ours = node is seen.lab.client and seen.listener is not None and seen.listener.pid != 0
    return ours or (facts is not None and bool(facts.holders))


def judge_firewall(seen: Observed, node: Node) -> Verdict:
    """The lab's packet filter is loaded."""
    facts = seen.facts[node.name]
    unit = facts.units.get(FIREWALL_UNIT)
    if unit is None or unit.load == "not-found":
        found = "lab-firewall is not installed"
    elif unit.active != "active":
        found = f"lab-firewall is {unit.active}"
    elif facts.firewall_table is False:
        found = "lab-firewall is active, but its nftables table is gone"
    else:
        return ok("lab-firewall active")
    return fail(found, "the packet filter that keeps strangers off the TF port", "labctl provision")
