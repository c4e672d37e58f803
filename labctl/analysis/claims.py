"""Each claim of the question and of its answer, held against the runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from labctl.analysis import ptx, stats
from labctl.analysis.evidence import (
    CHAIN,
    LISTING,
    LISTING_FRESH,
    LISTING_TWO,
    RECURSIVE,
    SQUARING,
    STAGED,
    SWEEP,
    Claim,
    Number,
    Runs,
    Verdict,
    changed,
    grown,
    ids,
    kept,
    kind_ms,
    last,
    measured,
    median,
    phase_ms,
    product_ms,
    result_values,
    transfer_ms,
    warm_ms,
)
from labctl.analysis.explained import Explained
from labctl.analysis.stats import Difference
from labctl.analysis.steps import percentile
from labctl.node import wire
from labctl.runs.events import Event

WELL_SHARE = 0.5  # of the node's own peak: from here on a product is not slow
POOR_SHARE = 0.2
BUSY_SHARE = 1.05  # products that beat their node's peak by more than noise: the node was busy then
_QUESTION_GFLOP = 2 * ptx.LISTING_PRODUCTS * 2 * 1000**3 / 1e9
_FIFTEEN_SECONDS = (
    f"the question's 2 x {ptx.LISTING_PRODUCTS} products are {_QUESTION_GFLOP:.0f} GFLOP: {ptx.QUESTION_S:g} s for "
    f"them would be {_QUESTION_GFLOP / ptx.QUESTION_S:.1f} GFLOP/s"
)
_LARGE_PART = 0.5  # of a step or a stopwatch: from here on a part is what it is about


def runs_well(runs: Runs) -> Claim:
    """The question: on CPUs alone the script runs well."""
    listing = runs.get(LISTING, ())
    section = result_values(listing, "section_us", 1e-3)
    seconds = median(section)
    verdict: Verdict = "not-measured"
    why = "The listing did not run to its end here."
    if seconds is not None:
        well = seconds / 1e3 < ptx.QUESTION_S / 3
        verdict = "confirmed" if well else "refuted"
        why = (
            f"The question's section under test takes {seconds / 1e3:.2f} s on these CPUs; "
            f"about {ptx.QUESTION_S:g} s on GPUs is what was reported."
        )
    return Claim(
        "cpu-runs-well", "question", "With CPUs only the script runs well.", verdict, why,
        kept(
            measured("section under test", "ms", section),
            measured("its first step", "ms", kind_ms(listing, "cold")),
            measured("a later step", "ms", warm_ms(listing)),
            measured("stopwatch, end to end", "us", result_values(listing, "end_to_end_us")),
        ),
        runs=ids(listing),
    )  # fmt: skip


def recursion(runs: Runs) -> Claim:
    """The answer: recursion in `matpow` is too deep and slows the kernels down."""
    loop, recursive, squaring = (runs.get(each, ()) for each in (CHAIN, RECURSIVE, SQUARING))
    found = stats.difference(warm_ms(loop), warm_ms(recursive))
    graphs = _graph_fact(loop, recursive)
    verdict: Verdict = "not-measured"
    why = "Loop and recursion were not both run."
    if found is not None and graphs is not None:
        same_graph, _ = graphs
        judged = stats.judge(found)
        if same_graph:
            verdict = "refuted"
            why = (
                "Recursion runs in Python, once, while the graph is built: recursion and loop give the same "
                "graph, byte for byte, and the runtime sees nothing else."
            )
        elif judged == "slower":
            verdict, why = "confirmed", "The recursive graph differs and its steps are slower."
        else:
            verdict = "refuted" if judged in {"same", "faster"} else "undecided"
            why = "The graphs differ, and the recursive one's steps are not slower beyond noise."
    facts = [] if graphs is None else [graphs[1]]
    facts += [
        each
        for each in (_products_fact(loop, "loop"), _products_fact(squaring, "squaring"))
        if each
    ]
    return Claim(
        "recursion", "answer", "The recursion in matpow makes the products slow.", verdict, why,
        kept(
            measured("building the graph, loop", "ms", phase_ms(loop, wire.PHASE_GRAPH)),
            measured("building the graph, recursion", "ms", phase_ms(recursive, wire.PHASE_GRAPH)),
            measured("warm step, loop", "ms", warm_ms(loop)),
            measured("warm step, recursion", "ms", warm_ms(recursive)),
            changed("recursion minus loop", "ms", found),
            measured("warm step, squaring", "ms", warm_ms(squaring)),
            changed("squaring minus loop", "ms", stats.difference(warm_ms(loop), warm_ms(squaring))),
        ),
        tuple(facts),
        ids(loop, recursive, squaring),
    )  # fmt: skip


def cubic(runs: Runs) -> Claim:
    """The answer: any O(N^3) product becomes very slow once N leaves the registers."""
    swept = {size: runs[label] for size, label in SWEEP.items() if runs.get(label)}
    numbers: list[Number | None] = []
    for size, side in swept.items():
        rates = [[2 * size**3 / 1e6 / each for each in run] for run in product_ms(side)]
        numbers.append(measured(f"products, L {size}", "GFLOP/s", rates))
    for size, a in swept.items():
        b = swept.get(2 * size)
        if b is not None:
            told = f"L {size} to {2 * size}"
            numbers.append(grown(f"product, {told}", product_ms(a), product_ms(b)))
            numbers.append(grown(f"transfer, {told}", transfer_ms(a), transfer_ms(b)))
    peaks, shares, busy = _peaks(
        swept.get(1000, ()), [run for side in runs.values() for run in side]
    )
    numbers += peaks
    verdict: Verdict = "undecided" if shares or busy else "not-measured"
    why = "The nodes' own peak was not measured, so the rate has nothing to be held against."
    if busy and not shares:
        why = (
            "The products are faster than the peaks of their nodes, so those were measured on busy hosts and the "
            "rate has nothing to be held against: labctl check --compute measures them again."
        )
    if shares:
        low, high = min(shares), max(shares)
        told = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
        why = f"A product of 1000 x 1000 reaches {told} of what these CPUs can do by themselves."
        if low >= WELL_SHARE:
            verdict = "refuted"
            why += (
                " N^3 operations on N^2 data is what machines with caches do best: more is computed for each byte, "
                "not less."
            )
        elif high < POOR_SHARE:
            verdict = "confirmed"
    return Claim(
        "cubic-is-slow", "answer", "An O(N^3) product of 1000 x 1000 has to be slow.", verdict, why,
        kept(*numbers),
        (_FIFTEEN_SECONDS, *busy),
        ids(*swept.values()),
    )  # fmt: skip


def memory_latency(runs: Runs) -> Claim:
    """The answer: spilled registers and 600-clock loads make the GPU slow."""
    k80 = ptx.find_gpu("K80")
    assert k80 is not None  # noqa: S101 the package's own table
    bound = ptx.bound(k80, ptx.KERNELS[0], 1000)
    count = ptx.LISTING_PRODUCTS
    side = runs.get(LISTING, ())
    own = measured("one product here, one task's CPUs", "ms", product_ms(side))
    return Claim(
        "memory-latency", "answer",
        "Registers spill, each access to global memory costs some 600 clocks, and nothing hides it.",
        "needs-gpu",
        "No GPU took part. By the answer's own table even the simplest kernel, with the warps that a GPU keeps "
        f"resident, needs {1e3 * count * bound.resident_s:.0f} ms for the {count} products of one machine; one "
        f"warp alone on each SM, waiting for every load in turn, comes to {count * bound.alone_s:.0f} s.",
        kept(
            own,
            Number(f"{k80.title}, naive kernel, {bound.resident_warps} warps an SM, by the table",
                   1e3 * bound.resident_s, "ms", n=0),
            Number(f"{k80.title}, naive kernel, one warp an SM, by the table", 1e3 * bound.alone_s, "ms", n=0),
            Number(f"{k80.title}, at 20 % of its peak", 1e3 * ptx.library_s(k80, 1000)[1], "ms", n=0),
        ),
        ("to tell: labctl run --gpu --algorithm listing; the products' GFLOP/s against the GPU's peak",),
        ids(side),
    )  # fmt: skip


def transfers(runs: Runs) -> Claim:
    """The answer: moving data between hosts and devices is what costs."""
    fed, staged = runs.get(CHAIN, ()), runs.get(STAGED, ())
    found = stats.difference(warm_ms(staged), warm_ms(fed))
    verdict: Verdict = "not-measured"
    why = "Fed and staged inputs were not both run."
    if found is not None:
        verdict = "undecided"
        why = _cost_of_feeding(found)
        if found.low is not None and found.low > _LARGE_PART * found.b.median:
            verdict = "confirmed"
        elif found.high is not None and found.high < _LARGE_PART * found.b.median:
            verdict = "refuted"
            why += " That is not where the time goes, and it never comes to seconds."
    return Claim(
        "transfers", "answer", "The time goes into moving data between the machines.", verdict, why,
        kept(
            measured("warm step, inputs fed", "ms", warm_ms(fed)),
            measured("warm step, inputs staged", "ms", warm_ms(staged)),
            changed("fed minus staged", "ms", found),
            measured("one matrix on the wire", "ms", transfer_ms(fed)),
            measured("rate of a matrix", "MB/s", _rates(fed)),
            *_links(fed),
        ),
        runs=ids(fed, staged),
    )  # fmt: skip


def cold_start(runs: Runs) -> Claim:
    """What one run of a new process measures is its start."""
    listing, fresh = runs.get(LISTING, ()), runs.get(LISTING_FRESH, ())
    found = stats.difference(warm_ms(listing), kind_ms(listing, "cold"))
    end_to_end = median(result_values(listing, "end_to_end_us", 1e-3))
    warm = median(warm_ms(listing))
    verdict: Verdict = "not-measured"
    why = "The listing was not run, or has no warm step."
    if end_to_end is not None and warm is not None and found is not None:
        once = 1 - warm / end_to_end
        verdict = "confirmed" if once > _LARGE_PART else "refuted"
        imports = median(phase_ms(listing, wire.PHASE_IMPORT_TENSORFLOW))
        told = "" if imports is None else f", TensorFlow's import {imports / 1e3:.1f} s"
        why = (
            f"{once:.1%} of what the question's stopwatch shows is paid once for each process: of "
            f"{end_to_end / 1e3:.1f} s one step is {warm / 1e3:.2f} s{told}. On GPUs the driver's, CUDA's and a "
            "JIT compiler's starts come on top; how long they take needs a GPU."
        )
    return Claim(
        "cold-start", "lab", "One run of a new process measures its start, not the computation.", verdict, why,
        kept(
            measured("stopwatch, end to end", "ms", result_values(listing, "end_to_end_us", 1e-3)),
            measured("import of TensorFlow", "ms", phase_ms(listing, wire.PHASE_IMPORT_TENSORFLOW)),
            measured("first step", "ms", kind_ms(listing, "cold")),
            measured("first step, join servers just started", "ms", kind_ms(fresh, "cold")),
            measured("a later step", "ms", warm_ms(listing)),
            changed("first step minus a later one", "ms", found),
        ),
        runs=ids(listing, fresh),
    )  # fmt: skip


def one_thread(runs: Runs) -> Claim:
    """What this lab finds where one thread answers for the tensors that it also has to compute."""
    one, two = runs.get(LISTING, ()), runs.get(LISTING_TWO, ())
    found = stats.difference(warm_ms(two), warm_ms(one))
    verdict: Verdict = "not-measured"
    why = "The listing was not run with both."
    if found is not None:
        judged = stats.judge(found)
        verdict = "refuted"
        if judged in {"slower", "unclear"}:
            verdict = "confirmed" if judged == "slower" else "undecided"
        cpus = {node.cpus for run in one for node in run.data.record.nodes}
        told = ", ".join(str(each) for each in sorted(cpus, key=str))
        why = (
            f"TensorFlow's default pool has one thread a CPU; these nodes have {told}. With one, task:0 sends "
            f"task:1 its input when its own products are done: {found.change:.0f} ms of {found.b.median:.0f} ms."
            if verdict == "confirmed"
            else f"With {told} CPU(s) a node the default pool and two threads do not differ beyond noise."
        )
    return Claim(
        "one-inter-op-thread", "lab", "With one inter-op thread the two tasks work one after the other.",
        verdict, why,
        kept(
            measured("warm step, default pool", "ms", warm_ms(one)),
            measured("warm step, two threads", "ms", warm_ms(two)),
            changed("default minus two", "ms", found),
        ),
        runs=ids(one, two),
    )  # fmt: skip


CLAIMS = (runs_well, recursion, cubic, memory_latency, transfers, cold_start, one_thread)


def _cost_of_feeding(found: Difference) -> str:
    step_ms = found.b.median
    if found.low is None or found.low <= 0:
        most = "" if found.high is None else f", at most {found.high:.0f} ms of {step_ms:.0f} ms"
        return f"No cost of sending the inputs with every step shows above the noise{most}."
    share = found.change / step_ms
    return f"Sending the inputs with every step costs {found.change:.1f} ms of {step_ms:.0f} ms ({share:.0%})."


def _graph_fact(
    loop: Sequence[Explained], recursive: Sequence[Explained]
) -> tuple[bool, str] | None:
    """Return whether two ways to build give one graph, and what was compared; None if a graph was not told."""
    graphs = [[last(run, wire.GRAPH) for run in side] for side in (loop, recursive)]
    told = [[each for each in side if each is not None and each.text("sha256")] for side in graphs]
    if not all(told) or told != graphs:
        return None
    hashes = {each.text("sha256") for side in told for each in side}
    first, second = told[0][0], told[1][0]
    if len(hashes) == 1:
        short = first.text("sha256")[:12]
        return (
            True,
            f"graphs of loop and recursion: {_graph(first)}, sha256 {short}, equal byte for byte",
        )
    return False, f"graphs differ: loop {_graph(first)}; recursion {_graph(second)}"


def _graph(event: Event) -> str:
    ops = event.data.get("ops")
    told = ""
    if isinstance(ops, dict):
        told = " (" + ", ".join(f"{count} {name}" for name, count in sorted(ops.items())) + ")"
    return f"{event.whole('nodes')} nodes{told}, {event.whole('bytes')} bytes"


def _products_fact(runs: Sequence[Explained], name: str) -> str:
    for run in runs:
        event = last(run, wire.RESULT)
        products = None if event is None else event.whole("products")
        if products is not None:
            return f"products of all tasks in one step, {name}: {products}"
    return ""


def _peaks(
    runs: Sequence[Explained], all_runs: Sequence[Explained]
) -> tuple[list[Number | None], list[float], list[str]]:
    """Return each node's own peak, the share of it that its products reach, and which peaks are not to be believed.

    A peak that was measured while the node was busy is too low: the largest of all runs' baselines counts, or the
    best traced product where that is larger. One that the products beat by more than noise has no share.

    Args:
        runs: Those whose products are held against it.
        all_runs: Those that may know a peak.
    """
    numbers: list[Number | None] = []
    shares, busy = [], []
    nodes = runs[0].data.record.nodes if runs else ()
    for node in nodes:
        baselines = [run.data.record.baseline for run in all_runs]
        found = [None if each is None else each.peak(node.name) for each in baselines]
        own = max((each.gflops for each in found if each is not None), default=0.0)
        size = runs[0].data.record.parameters.size or 0
        rates = [[2 * size**3 / 1e6 / each for each in run] for run in product_ms(runs, node.task)]
        reached = median(rates)
        if own <= 0 or reached is None:
            continue
        numbers.append(Number(f"own peak of {node.name}, numpy", own, "GFLOP/s"))
        if reached > BUSY_SHARE * own:
            busy.append(
                f"{node.name}: its products reach {reached:.0f} GFLOP/s, more than its measured peak of {own:.0f}: "
                "the node was busy then"
            )
            continue
        best = max(each for run in rates for each in run)
        shares.append(reached / max(own, best))
        numbers.append(Number(f"share of it, {node.name}", shares[-1], "x"))
    return numbers, shares, busy


def _rates(runs: Sequence[Explained]) -> stats.Side:
    side = []
    for run in runs:
        megabytes = 4 * (run.data.record.parameters.size or 0) ** 2 / 1e6
        side.append([1e3 * megabytes / each for times in transfer_ms([run]) for each in times])
    return side


def _links(runs: Sequence[Explained]) -> list[Number]:
    """Return what the network carries by itself, each direction."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        baseline = run.data.record.baseline
        for link in () if baseline is None else baseline.links:
            found.setdefault((link.source, link.target), []).append(link.bits_per_s / 8e6)
    return [
        Number(
            f"network alone, {source} to {target}", percentile(rates, 50), "MB/s", n=len(set(rates))
        )
        for (source, target), rates in sorted(found.items())
    ]
