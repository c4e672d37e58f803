"""Causes that keep the tasks apart: a peer that is down, filtered, frozen, misnamed, or of another cluster spec.

Which of them it is, `diagnosis.diagnose` decides for all of them at once; each rule here adds what it costs, and
the number that rules it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import Cause, time_text
from labctl.analysis.causes.contact import (
    ended_well,
    is_open,
    not_reached,
    own,
    peers,
    reached_all,
    stall,
    workers,
)
from labctl.analysis.causes.diagnosis import (
    NAME_SELF,
    NAME_UNRESOLVABLE,
    PEER_DOWN,
    PEER_FROZEN,
    PORT_FILTERED,
    PORT_IN_USE,
    PROTOCOL_SKEW,
    PROXY,
    STALE_SPEC,
    diagnose,
    environment_told,
    host_of,
    listed,
    literal_address,
    process_states,
    proxies_given,
    served_spec,
    tensorflow_minors,
)
from labctl.analysis.causes.model import Rule, Verdict
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained


def _no_port_trouble(cause: Cause, run: Explained) -> Verdict:
    looks = peers(run)
    if looks:
        return cause.ruled_out(
            *(
                peer.said
                if peer.answered_after_s is None
                else f"{peer.where} answered within {time_text(peer.answered_after_s)}"
                for peer in looks
            )
        )
    if run.data.record.parameters.placement == "one-process":
        return cause.ruled_out("0 peers take part: placement one-process")
    if is_open(run):
        return cause.not_measured(*not_reached(run, "its peers' ports"))
    return cause.not_measured(
        "the client ended before it asked its peers' ports", "labctl check asks them"
    )


def _no_freeze(cause: Cause, run: Explained) -> Verdict:
    plain = _no_port_trouble(cause, run)
    if plain.status == "not_measured":
        return plain
    states = [line for node in workers(run) for line in process_states(run, node.name)]
    return cause.ruled_out(*plain.evidence, *states)


def _no_stranger(cause: Cause, run: Explained) -> Verdict:
    plain = _no_port_trouble(cause, run)
    if run.data.record.parameters.placement == "one-process":
        return plain
    for event in own(run):
        took_ns = event.number("duration_ns")
        ended = event.kind == wire.PHASE_END and event.text("phase") == wire.PHASE_SERVER
        if ended and took_ns is not None and not event.flag("failed"):
            took = f"the client's own server took its port within {time_text(took_ns / 1e9)}"
            more = plain.evidence if plain.status == "ruled_out" else ()
            return cause.ruled_out(took, *more)
    return plain


def _no_names(cause: Cause, run: Explained) -> Verdict:
    addresses = [node.tf_address for node in workers(run)]
    if not addresses:
        return cause.ruled_out("0 other nodes take part")
    if all(literal_address(host_of(address)) for address in addresses):
        return cause.ruled_out(f"the spec has no names: {', '.join(addresses)}")
    return _no_port_trouble(cause, run)


def _no_mirror(cause: Cause, run: Explained) -> Verdict:
    if not workers(run):
        return cause.ruled_out("0 other nodes take part")
    addresses = [node.tf_address for node in run.data.record.nodes]
    if all(literal_address(host_of(address)) for address in addresses):
        return cause.ruled_out(f"the spec has no names: {', '.join(addresses)}")
    if reached_all(run):
        return cause.ruled_out(
            f"a session reached all {run.data.record.tasks} tasks by their names"
        )
    return cause.not_measured(
        "the record does not say where the names lead", "labctl check looks them up"
    )


def _no_proxy(cause: Cause, run: Explained) -> Verdict:
    caught, tasks = proxies_given(run), run.data.record.tasks
    if reached_all(run):
        if caught:
            return cause.ruled_out(f"{caught[0]} was set, yet a session reached all {tasks} tasks")
        return cause.ruled_out(f"a session reached all {tasks} tasks")
    if not caught and not environment_told(run):
        return cause.not_measured(
            "the record does not say which variables the client had", "labctl check names proxies"
        )
    if not caught:
        return cause.ruled_out("0 proxy variables were given to the client")
    if is_open(run):
        return cause.not_measured(*not_reached(run, "a session"))
    return cause.ruled_out(f"{caught[0]} was set, but the run ended before it mattered")


def _same_spec(cause: Cause, run: Explained) -> Verdict:
    served = {node.name: served_spec(run, node.name) for node in workers(run)}
    if not served:
        return cause.ruled_out("0 join servers take part")
    silent = [node for node, sha256 in served.items() if sha256 is None]
    if silent:
        return cause.not_measured(
            f"{', '.join(silent)} did not say which spec it serves", "labctl check compares them"
        )
    wanted = run.data.record.spec_sha256
    others = [node for node, sha256 in served.items() if sha256 != wanted]
    if others:
        said = f"{others[0]} serves another spec than {wanted[:12]}, but was not reached by any"
        return cause.ruled_out(said, confidence="low")
    return cause.ruled_out(f"{', '.join(served)} serves the run's own spec, {wanted[:12]}")


def _same_words(cause: Cause, run: Explained) -> Verdict:
    if not workers(run):
        return cause.ruled_out("0 other nodes take part")
    if reached_all(run):
        return cause.ruled_out(f"a session reached all {run.data.record.tasks} tasks")
    versions = tensorflow_minors(run)
    if len(set(versions.values())) == 1 and (diagnose(run) or ended_well(run)):
        return cause.ruled_out(f"TensorFlow {listed(versions)}")
    if is_open(run):
        return cause.not_measured(*not_reached(run, "a session"))
    if ended_well(run):
        return cause.not_measured(
            "a script does not say whether its session reached the others",
            "labctl check compares the versions",
        )
    return cause.not_measured(
        "no session came to be, and no cause that is known fits",
        "run it with --env GRPC_VERBOSITY=DEBUG",
    )


def _rule(cause: Cause, otherwise: Callable[[Cause, Explained], Verdict]) -> Rule:
    def judge(run: Explained) -> Verdict:
        mine = [fault for fault in diagnose(run) if fault.cause is cause]
        if not mine:
            return otherwise(cause, run)
        hung = stall(run)
        more = [line for fault in mine[1:] for line in (fault.title, *fault.evidence)]
        return cause.found(
            None if hung is None else hung.seconds,
            [*mine[0].evidence, *more, *([] if hung is None else [hung.text])],
            remedy=mine[0].remedy,
            confidence=mine[0].confidence,
            title=mine[0].title,
        )

    return cause.rule(judge)


RULES: tuple[Rule, ...] = (
    _rule(PEER_DOWN, _no_port_trouble),
    _rule(PORT_FILTERED, _no_port_trouble),
    _rule(NAME_UNRESOLVABLE, _no_names),
    _rule(NAME_SELF, _no_mirror),
    _rule(PROXY, _no_proxy),
    _rule(PEER_FROZEN, _no_freeze),
    _rule(PORT_IN_USE, _no_stranger),
    _rule(STALE_SPEC, _same_spec),
    _rule(PROTOCOL_SKEW, _same_words),
)
