"""Rules on what travels: feeding, tensors between tasks, the link, fetching, and work too small for them. Pure.

The parts of a warm step that travel are shared out, so that no second is claimed twice: `fetch` has the way back to
Python, `slow-link` every transfer where the link is the bound, `small-work` what is left where it outweighs the
compute, else `feed` the fed inputs and `transfer` the other tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    STEP_LEAST_S,
    STEP_SHARE,
    Cause,
    ended_ok,
    error_text,
    has_words,
    is_matpow,
    matters,
    no_trace,
    part_text,
    products_asked,
    products_missing,
    time_text,
)
from labctl.analysis.causes.model import Confidence, Rule, Verdict
from labctl.analysis.causes.travel import (
    Travel,
    break_even,
    fetch_s,
    fetch_undecided,
    is_fed,
    travel,
)

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.analysis.model import Edge
    from labctl.runs.baseline import LinkBaseline

SMALL_WORK = Cause("small-work", "step", "The work is too small for what travels with it", "A")
TRANSFER = Cause("transfer", "step", "Tensors between the tasks", "A")
SLOW_LINK = Cause("slow-link", "step", "The network between the nodes is the bound", "A")
FETCH = Cause("fetch", "step", "Bringing the result back to Python", "A")
FEED = Cause("feed", "step", "Sending the inputs with every step", "A")
MTU_MISMATCH = Cause("mtu-mismatch", "step", "Large packets do not pass between the nodes", "A")
REMOTE_MASTER = Cause("remote-master", "step", "The client is not in its master's process", "A")
PROTOCOL_PLUGIN = Cause(
    "protocol-plugin", "once", "A network protocol that this TensorFlow does not have", "B"
)

_TRAVEL_SHARE = 0.20  # of a step: what a healthy step of the question's size spends stays below
_FULL_USE = 0.5  # a tensor that gets this part of the link's own throughput is bound by it
_SLOW_BITS_PER_S = 2e9  # TensorFlow's own path reaches some 300 MB/s: a slower link is the bound
_ROOM = 1.25  # more work than breaks even is advised: not all compute grows with L^3
_LARGE_BYTES = 65536  # more than any packet
_PASSES_BYTES_PER_S = 1e6
_COUNTED = "counted in {}"


def _fetch(run: Explained) -> Verdict:
    if run.data.record.parameters.fetch == "none":
        return FETCH.ruled_out("0 bytes are fetched in a warm step (--fetch none)")
    parts = travel(run)
    if parts is None:
        return FETCH.not_measured(*no_trace(run))
    seconds, how = fetch_s(run, parts)
    told = part_text(seconds, parts.step_s)
    if products_missing(run):
        return FETCH.ruled_out(f"{told}, {_COUNTED.format('constants-folded')}")
    if (scatter := fetch_undecided(run, parts)) is not None:
        return FETCH.not_measured(scatter, "the same run with a larger --repeat on quiet machines")
    if not matters(seconds, parts.step_s):
        return FETCH.ruled_out(_below(told, seconds, parts, STEP_SHARE), how)
    if not _is_fetch_bound(run, parts):
        return FETCH.ruled_out(f"{told}, {_COUNTED.format(SMALL_WORK.name)}", how)
    size = run.data.record.parameters.size
    evidence = [f"{told}: {how}"]
    if size is not None:
        evidence.append(f"the result has {4 * size * size / 1e6:.1f} MB")
    at = run.data.record.parameters.sum_task
    far = f"; --sum-on 0 leaves the result on the client's own task, not on task:{at}" if at else ""
    return FETCH.found(
        seconds, evidence, remedy=f"--fetch none, or fetch a number instead of the matrix{far}"
    )


def _below(told: str, seconds: float, parts: Travel, share: float) -> str:
    """Return a part that is no cause, with the threshold where it comes near to it."""
    near = seconds >= share * parts.step_s / 2
    return (
        f"{told}, a cause from {share * 100:.0f} % and {time_text(STEP_LEAST_S)} on"
        if near
        else told
    )


def _is_fetch_bound(run: Explained, parts: Travel) -> bool:
    """Return whether fetching is a cause of its own; in small work it is only one where nothing else is larger."""
    if run.data.record.parameters.fetch == "none":
        return False
    seconds, _ = fetch_s(run, parts)
    others = parts.dispatch_s + parts.transfer_s
    small = seconds + others > parts.compute_s
    return matters(seconds, parts.step_s) and not (small and seconds < others)


def overhead_s(run: Explained, parts: Travel) -> float:
    """Return what a step spends on anything but compute, and that no other rule has found, seconds."""
    seconds = parts.dispatch_s
    if bound_by_link(run, parts) is None:
        seconds += parts.transfer_s
    if not _is_fetch_bound(run, parts):
        seconds += parts.fetch_s
    return seconds


def _is_small(run: Explained, parts: Travel) -> bool:
    return not products_missing(run) and overhead_s(run, parts) > parts.compute_s


def _small_work(run: Explained) -> Verdict:
    parts = travel(run)
    if parts is None or run.trace is None:
        return SMALL_WORK.not_measured(*no_trace(run))
    seconds = overhead_s(run, parts)
    told = f"{time_text(seconds)} travel and dispatch, {time_text(parts.compute_s)} compute"
    if products_missing(run):
        return SMALL_WORK.ruled_out(f"{told}, {_COUNTED.format('constants-folded')}")
    threshold = break_even(run.trace, run.data.record.parameters.size)
    evidence = [f"{told} in a step of {time_text(parts.step_s)}"]
    if threshold is not None:
        evidence.append(threshold.text)
    if not _is_small(run, parts):
        return SMALL_WORK.ruled_out(told, *evidence[1:])
    if parts.compute_s > 0 and products_asked(run):
        times = seconds / parts.compute_s
        evidence.append(f"the compute would have to be {times:.1f} times as long to equal the rest")
    confidence: Confidence = "high" if threshold is None or threshold.below else "medium"
    return SMALL_WORK.found(
        seconds,
        evidence,
        remedy=_more_work(run, parts, seconds),
        confidence=confidence,
    )


def _more_work(run: Explained, parts: Travel, seconds: float) -> str:
    parameters = run.data.record.parameters
    size, power = parameters.size, parameters.power
    fewer = "--feed staged, " if parameters.feed == "fed" else ""
    alone = "one machine (--placement one-process)"
    if size is None or power is None or parts.compute_s <= 0 or not products_asked(run):
        return f"{fewer}more work in each step, or {alone}"
    # Products of a chain grow with n; compute grows with L^3, what travels with L^2, what is left not at all.
    fixed = seconds - parts.transfer_s
    factor = next(
        (
            each / 20
            for each in range(20, 2000)
            if parts.compute_s * (each / 20) ** 3
            >= _ROOM * (fixed + parts.transfer_s * (each / 20) ** 2)
        ),
        None,
    )
    ways = [] if factor is None else [f"--size {_round_up(size * factor)} or more"]
    if parameters.algorithm != "squaring":
        ways.append(f"--power {2 + round((power - 1) * _ROOM * seconds / parts.compute_s)} or more")
    return f"{fewer}{', '.join([*ways, f'or {alone}'])}"


def _round_up(value: float) -> int:
    step: int = 10 ** max(1, len(str(int(value))) - 2)
    return -(-int(value) // step) * step


def _feed(run: Explained) -> Verdict:
    feed = run.data.record.parameters.feed
    if is_matpow(run) and feed != "fed":
        return FEED.ruled_out(f"0 bytes are fed with a step (--feed {feed})")
    parts = travel(run)
    if parts is None:
        return FEED.not_measured(*no_trace(run))
    told = part_text(parts.feed_s, parts.step_s)
    if (owner := _owner(run, parts)) is not None:
        return FEED.ruled_out(f"{told}, {_COUNTED.format(owner)}")
    if not matters(parts.feed_s, parts.step_s, _TRAVEL_SHARE):
        return FEED.ruled_out(_below(told, parts.feed_s, parts, _TRAVEL_SHARE))
    edges = [edge for edge in _edges(run) if is_fed(edge)]
    return FEED.found(
        parts.feed_s,
        [f"{told} is the fed inputs' way to their tasks", *_edge_lines(edges)],
        remedy="--feed staged: keep the inputs in variables on their tasks",
    )


def _transfer(run: Explained) -> Verdict:
    parts = travel(run)
    if parts is None:
        return TRANSFER.not_measured(*no_trace(run))
    edges = [edge for edge in _edges(run) if not is_fed(edge)]
    told = part_text(parts.tensors_s, parts.step_s)
    if not edges:
        return TRANSFER.ruled_out("0 tensors travel between tasks, fed inputs left out")
    if (owner := _owner(run, parts)) is not None:
        return TRANSFER.ruled_out(f"{told}, {_COUNTED.format(owner)}")
    if not matters(parts.tensors_s, parts.step_s, _TRAVEL_SHARE):
        return TRANSFER.ruled_out(
            _below(told, parts.tensors_s, parts, _TRAVEL_SHARE), *_edge_lines(edges)
        )
    shares = [edge.baseline_share for edge in edges if edge.baseline_share is not None]
    evidence = [f"{told} is tensors between tasks", *_edge_lines(edges)]
    if shares and max(shares) < _FULL_USE:
        evidence.append(
            f"at best {max(shares):.0%} of what the link can: gRPC's copies are the bound".replace(
                "%", " %"
            )
        )
    return TRANSFER.found(
        parts.tensors_s,
        evidence,
        remedy="leave the tensors where they are used: fewer or smaller ones between the tasks",
        confidence="high" if shares else "medium",
    )


def _owner(run: Explained, parts: Travel) -> str | None:
    """Return the rule that has the transfers, None if they are those of `feed` and `transfer`."""
    if products_missing(run):
        return "constants-folded"
    if bound_by_link(run, parts) is not None:
        return SLOW_LINK.name
    return SMALL_WORK.name if _is_small(run, parts) else None


def bound_by_link(run: Explained, parts: Travel) -> LinkBaseline | None:
    """Return the slow link that a step's tensors fill, None if there is none or it was not measured."""
    if not matters(parts.transfer_s, parts.step_s):
        return None
    slow = [
        link
        for edge, link in _links(run)
        if link.bits_per_s < _SLOW_BITS_PER_S and (edge.baseline_share or 0.0) >= _FULL_USE
    ]
    return min(slow, key=lambda link: link.bits_per_s) if slow else None


def _slow_link(run: Explained) -> Verdict:
    parts = travel(run)
    if parts is None:
        return SLOW_LINK.not_measured(*no_trace(run))
    told = part_text(parts.transfer_s, parts.step_s)
    if not matters(parts.transfer_s, parts.step_s):
        return SLOW_LINK.ruled_out(f"transfers are {told}")
    links = _links(run)
    if not links:
        return SLOW_LINK.not_measured(
            "the network between the nodes was not measured", "labctl check --network"
        )
    link = bound_by_link(run, parts)
    if link is None:
        slowest = min((each for _, each in links), key=lambda each: each.bits_per_s)
        return SLOW_LINK.ruled_out(
            f"the slowest direction carries {slowest.bits_per_s / 1e9:.1f} Gbit/s",
            f"transfers are {told}",
        )
    evidence = [
        f"{told} is transfers",
        (
            f"{link.source} to {link.target} carries {link.bits_per_s / 1e6:.0f} Mbit/s by itself "
            f"({link.tool})"
        ),
        *_edge_lines(_edges(run)),
    ]
    if link.retransmits:
        evidence.append(f"{link.retransmits} segments were sent again while that was measured")
    return SLOW_LINK.found(
        parts.transfer_s,
        evidence,
        remedy="nodes in one zone with a faster network; --feed staged sends less",
        title=f"The network from {link.source} to {link.target} is the bound",
    )


def _mtu_mismatch(run: Explained) -> Verdict:
    rates = [
        (edge.size_bytes, edge.mb_per_s)
        for edge in _edges(run)
        if edge.size_bytes is not None and edge.mb_per_s is not None
    ]
    large = [pair for pair in rates if pair[0] >= _LARGE_BYTES]
    if large and min(rate for _, rate in large) * 1e6 >= _PASSES_BYTES_PER_S:
        size, rate = min(large, key=lambda pair: pair[1])
        return MTU_MISMATCH.ruled_out(f"{size / 1e6:.1f} MB came across at {rate:.0f} MB/s")
    baseline = run.data.record.baseline
    if not large and baseline is not None and baseline.links:
        slowest = min(link.bits_per_s for link in baseline.links)
        if slowest / 8 >= _PASSES_BYTES_PER_S:
            return MTU_MISMATCH.ruled_out(f"large packets pass at {slowest / 1e9:.1f} Gbit/s")
    return MTU_MISMATCH.not_measured(
        "no large tensor is known to have come across, and the path's MTU is not in the record",
        "ip link on each node, and ping -M do -s 1472 to its peer's data address",
    )


def _remote_master(run: Explained) -> Verdict:
    if is_matpow(run):
        return REMOTE_MASTER.ruled_out("0 hops: the master is the client's own server")
    return REMOTE_MASTER.not_measured(
        "which server a script's session connects to is not known",
        "in the script: the session's target is the server of its own process",
    )


def _protocol_plugin(run: Explained) -> Verdict:
    words = has_words(
        error_text(run), "available server factories are", "no server factory registered"
    )
    if words is not None:
        return PROTOCOL_PLUGIN.found(
            None,
            [f"the client's error says: {words}"],
            remedy='protocol "grpc": verbs, gdr and mpi left TensorFlow with version 2',
        )
    if is_matpow(run):
        return PROTOCOL_PLUGIN.ruled_out("0 plug-ins asked for: every server speaks grpc")
    if ended_ok(run):
        return PROTOCOL_PLUGIN.ruled_out(
            "0 errors name a server factory: the script ran to its end"
        )
    return PROTOCOL_PLUGIN.not_measured(
        "what a script asks its servers for is not known, and it did not run to its end",
        "labctl logs last: TensorFlow names the factories that it has",
    )


def _edges(run: Explained) -> tuple[Edge, ...]:
    return () if run.trace is None else run.trace.edges


def _links(run: Explained) -> list[tuple[Edge, LinkBaseline]]:
    """Return the edges between nodes whose link was measured, with it."""
    record = run.data.record
    if record.baseline is None or record.parameters.placement != "lab":
        return []
    names = {node.task: node.name for node in record.nodes}
    found = [
        (edge, record.baseline.link(names.get(edge.source, ""), names.get(edge.target, "")))
        for edge in _edges(run)
    ]
    return [(edge, link) for edge, link in found if link is not None]


def _link_text(share: float) -> str:
    if share >= 1.005:
        return "more than its baseline: that was measured on a busy host"
    return f"{share * 100:.0f} % of the link"


def _edge_lines(edges: list[Edge] | tuple[Edge, ...]) -> list[str]:
    """Return the edges that took longest on the wire, one line each."""
    lines = []
    for edge in sorted(edges, key=lambda each: -each.wire_s)[:2]:
        size = "" if edge.size_bytes is None else f" {edge.size_bytes / 1e6:.1f} MB"
        rate = "" if edge.mb_per_s is None else f", {edge.mb_per_s:.0f} MB/s"
        share = "" if edge.baseline_share is None else f", {_link_text(edge.baseline_share)}"
        lines.append(
            f"{edge.tensor}{size} task:{edge.source} to task:{edge.target} in "
            f"{time_text(edge.wire_s)}{rate}{share}"
        )
    return lines


RULES: tuple[Rule, ...] = (
    SMALL_WORK.rule(_small_work),
    TRANSFER.rule(_transfer),
    SLOW_LINK.rule(_slow_link),
    MTU_MISMATCH.rule(_mtu_mismatch),
    FETCH.rule(_fetch),
    FEED.rule(_feed),
    REMOTE_MASTER.rule(_remote_master),
    PROTOCOL_PLUGIN.rule(_protocol_plugin),
)
