"""Rules on the graph: what TensorFlow removed from it, what it could not hold, what it need not have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.analysis.causes.common import (
    Cause,
    error_text,
    first_step_extra_s,
    graph_ops,
    has_words,
    is_matpow,
    last_event,
    matters,
    no_trace,
    part_text,
    phase_s,
    products_asked,
    products_missing,
    products_ran,
    time_text,
    warm_s,
)
from labctl.analysis.causes.contact import is_open, not_reached
from labctl.analysis.causes.model import Rule, Verdict
from labctl.analysis.causes.travel import least_products
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained

CONSTANTS_FOLDED = Cause(
    "constants-folded", "step", "TensorFlow computed the products once, not in each step", "A"
)
GRAPH_TOO_LARGE = Cause("graph-too-large", "once", "The graph is too large to be sent", "A")
MORE_PRODUCTS = Cause(
    "more-products-than-needed", "step", "The power is formed with more products than it needs", "A"
)
RECURSION = Cause("recursion", "step", "Recursion in the function that forms the power", "A")

_SURPLUS = (
    2  # times the products that squaring needs: below that the choice of algorithm is no fault
)
_TOO_FAST = 0.5  # of the least time: below that a peak that was measured too low is no excuse
_INPUTS = ("Placeholder", "VarHandleOp", "VariableV2")
_FEED = "--feed fed or --feed staged: inputs from a placeholder or a variable, not from tf.constant"
_GRAPH_WORDS = (
    "wire format was corrupt",
    "larger than 2gb",
    "cannot be larger than 2gb",
    "exceeds maximum protobuf size",
    "message was rejected because it was too big",
    "content larger than the 2gb limit",
    "more than one graphdef can hold",
)


def constants_folded(run: Explained) -> Verdict:
    """Judge `constants-folded`."""
    cause = CONSTANTS_FOLDED
    asked, ran = products_asked(run), products_ran(run)
    if ran is None or asked is None:
        return _folded_by_time(run) or cause.not_measured(*no_trace(run))
    if not products_missing(run):
        return cause.ruled_out(f"{ran} of the graph's {asked} products ran in the traced step")
    evidence = [f"the graph has {asked} products, {ran} ran in the traced step"]
    constant = _graph_bytes(run, "constant_bytes")
    if constant:
        evidence.append(f"the graph holds {constant / 1e6:.1f} MB of constants")
    extra, warm = first_step_extra_s(run), warm_s(run)
    if extra is not None and warm is not None:
        evidence.append(
            f"the first step took {time_text(extra + warm)}, a later one {time_text(warm)}: "
            "later ones only bring the ready result"
        )
    return cause.found(
        None,
        evidence,
        remedy=_FEED,
        confidence="high" if constant or ran == 0 else "medium",
    )


def _folded_by_time(run: Explained) -> Verdict | None:
    """Return what the graph as built and the time of a warm step say without a trace, None if they say nothing."""
    cause, ops, constant = CONSTANTS_FOLDED, graph_ops(run), _graph_bytes(run, "constant_bytes")
    warm, least = warm_s(run), least_products(run)
    if ops is None or constant is None:
        return None
    inputs = sum(ops.get(name, 0) for name in _INPUTS)
    if inputs:
        return cause.ruled_out(
            f"the graph's inputs are {inputs} placeholders or variables, {constant} bytes are constants",
            confidence="medium",
        )
    if not constant or warm is None or least is None or not least.products:
        return None
    told = (
        f"a warm step takes {time_text(warm)}; {least.products} products on a task need "
        f"{time_text(least.seconds)} at the nodes' best peak, {least.gflops:.0f} GFLOP/s"
    )
    if warm >= _TOO_FAST * least.seconds:
        return cause.ruled_out(told, confidence="medium")
    held = f"the graph holds {constant / 1e6:.1f} MB of constants, and no placeholder or variable"
    return cause.found(None, [told, held], remedy=_FEED, confidence="medium")


def _graph_too_large(run: Explained) -> Verdict:
    cause = GRAPH_TOO_LARGE
    words = has_words(error_text(run), *_GRAPH_WORDS)
    size, constant = _graph_bytes(run, "bytes"), _graph_bytes(run, "constant_bytes")
    if words is not None:
        evidence = [f"the client's error says: {words}"]
        if constant is not None:
            evidence.append(
                f"the graph holds {constant / 1e6:.1f} MB of constants, of 2 GB at most"
            )
        return cause.found(
            None, evidence, remedy="--feed fed or --feed staged: placeholders instead of constants"
        )
    if size is not None:
        told = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
        return cause.ruled_out(f"the graph has {told}, of 2 GB at most")
    if run.data.record.outcome == "ok":
        return cause.ruled_out("0 errors name the graph's size")
    if is_open(run):
        return cause.not_measured(*not_reached(run, "its graph"))
    return cause.not_measured(
        "the graph's size is not in the record", "a run that builds its graph"
    )


def _more_products(run: Explained) -> Verdict:
    cause = MORE_PRODUCTS
    parameters = run.data.record.parameters
    if not is_matpow(run) or parameters.power is None:
        return cause.not_measured(
            "what a script computes is not known", "labctl run without a script"
        )
    factors = parameters.power + (1 if parameters.algorithm == "listing" else 0)
    needed = squaring_products(factors)
    formed = needed if parameters.algorithm == "squaring" else factors - 1
    told = f"{formed} product{'' if formed == 1 else 's'} a power, squaring needs {needed}"
    if formed < _SURPLUS * needed or formed <= needed:
        return cause.ruled_out(told)
    if run.trace is None or run.split is None:
        return cause.not_measured(*no_trace(run))
    if products_missing(run):
        return cause.ruled_out(f"{told}, counted in constants-folded")
    compute = sum(row.seconds for row in run.split.rows if row.what == "compute")
    seconds = compute * (formed - needed) / formed
    if not matters(seconds, run.split.total_s):
        return cause.ruled_out(told, part_text(seconds, run.split.total_s))
    return cause.found(
        seconds,
        [
            f"{told} for {factors} factors",
            f"compute is {part_text(compute, run.split.total_s)} of a step",
        ],
        remedy="--algorithm squaring",
    )


def squaring_products(factors: int) -> int:
    """Return how many products repeated squaring forms a power with.

    floor(log2 n) squarings, and one product for each further bit that is set.
    """
    return max(0, factors.bit_length() - 1 + factors.bit_count() - 1)


def _recursion(run: Explained) -> Verdict:
    cause = RECURSION
    if not is_matpow(run):
        return cause.not_measured(
            "a script's graph and how it was built are not in the record",
            "labctl run --algorithm recursive, and again with chain: one graph, byte for byte",
        )
    algorithm = run.data.record.parameters.algorithm
    recursive = algorithm in {"listing", "recursive"}
    build, warm = phase_s(run, wire.PHASE_GRAPH), warm_s(run)
    built = "" if build is None else f"; the graph was built in {time_text(build)}"
    ops = graph_ops(run)
    if ops is None and build is None:
        return cause.not_measured(*not_reached(run, "its graph"))
    first = (
        f"it ran once, in Python, before the first step{built}"
        if recursive
        else f"0 calls: {algorithm} does not recurse{built}"
    )
    evidence = [first]
    if warm is not None and build is not None:
        evidence.append(f"a warm step takes {time_text(warm)} and none of it is Python's recursion")
    if ops is not None:
        evidence.append(
            f"the graph is flat: {sum(ops.values())} ops, {ops.get('MatMul', 0)} of them products"
        )
    return cause.ruled_out(*evidence)


def _graph_bytes(run: Explained, key: str) -> int | None:
    event = last_event(run, wire.GRAPH)
    return None if event is None else event.whole(key)


RULES: tuple[Rule, ...] = (
    CONSTANTS_FOLDED.rule(constants_folded),
    GRAPH_TOO_LARGE.rule(_graph_too_large),
    MORE_PRODUCTS.rule(_more_products),
    RECURSION.rule(_recursion),
)
