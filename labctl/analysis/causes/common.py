"""What rules have in common: how a cause speaks, and the signals that several of them read. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from labctl.analysis.causes.model import Confidence, Rule, Scope, Verdict
from labctl.analysis.clock import Clocks
from labctl.analysis.ledger import build_ledger, client_spans
from labctl.node import wire
from labctl.runs.record import OPEN_OUTCOMES

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.data import LogLine
    from labctl.runs.events import Event
    from labctl.runs.record import Span

# A part of a warm step below either is no cause of its slowness.
STEP_SHARE = 0.15
STEP_LEAST_S = 1e-3
# A part of the wall time below this is no cause of a long run.
WALL_SHARE = 0.10

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause, and the ways in which its rule can answer.

    Attributes:
        name: Its id.
        scope: Whether it is paid in each step or once.
        title: In plain words.
        grade: How good the evidence in the literature is.
    """

    name: str
    scope: Scope
    title: str
    grade: Literal["A", "B", "C"]

    def found(
        self,
        seconds: float | None,
        evidence: Sequence[str],
        *,
        remedy: str,
        confidence: Confidence = "high",
        title: str = "",
    ) -> Verdict:
        """Return that it is so, and what it costs; a title of its own names who is concerned."""
        return Verdict(
            self.name,
            "found",
            self.scope,
            title or self.title,
            seconds,
            confidence,
            tuple(evidence),
            remedy,
        )

    def ruled_out(self, *evidence: str, confidence: Confidence = "high") -> Verdict:
        """Return that it is not so; the first line is short and has the number that says it."""
        return Verdict(self.name, "ruled_out", self.scope, self.title, None, confidence, evidence)

    def not_measured(self, missing: str, how: str) -> Verdict:
        """Return that a signal is missing, and what would measure it."""
        return Verdict(
            self.name, "not_measured", self.scope, self.title, None, "high", (missing, how)
        )

    def rule(self, judge: Callable[[Explained], Verdict]) -> Rule:
        """Return the rule that judges this cause."""
        return Rule(self.name, self.scope, self.title, self.grade, judge)


def time_text(seconds: float) -> str:
    """Return a time for people: seconds from one second on, milliseconds below."""
    return f"{seconds:.2f} s" if abs(seconds) >= 0.9995 else f"{seconds * 1e3:.1f} ms"


def part_text(seconds: float, whole_s: float) -> str:
    """Return a part and its whole, e.g. `9.1 of 304.0 ms (3 %)`."""
    share = f" ({round(100 * seconds / whole_s)} %)" if whole_s > 0 else ""
    if whole_s >= 0.9995:
        return f"{round(seconds, 2) + 0.0:.2f} of {whole_s:.2f} s{share}"  # + 0.0: no minus before a zero
    return f"{round(seconds * 1e3, 1) + 0.0:.1f} of {whole_s * 1e3:.1f} ms{share}"


def cpus_text(number: float) -> str:
    """Return a number of CPUs for people."""
    return f"{number:g} CPU{'' if number == 1 else 's'}"


def matters(seconds: float, step_s: float, share: float = STEP_SHARE) -> bool:
    """Return whether a part of a warm step is large enough to be a cause."""
    return seconds >= STEP_LEAST_S and seconds >= share * step_s


def is_matpow(run: Explained) -> bool:
    """Return whether it is the built-in experiment, whose steps and products are known."""
    return run.data.record.parameters.experiment == "matpow"


def gpu_asked(run: Explained) -> bool | None:
    """Return whether a GPU was asked for; None for a script, which does not say."""
    device = run.data.record.parameters.device
    return None if device is None else device == "gpu"


def ended_ok(run: Explained) -> bool:
    """Return whether the run ended well."""
    return run.data.record.outcome == "ok"


def warm_s(run: Explained) -> float | None:
    """Return the median warm step, seconds."""
    median_ms = run.stats.warm_median_ms
    return None if median_ms is None else median_ms / 1e3


def durations_s(run: Explained, kind: str) -> list[float]:
    """Return how long the steps of a kind took, seconds."""
    return [step.duration_ms / 1e3 for step in run.steps if step.kind == kind]


def first_step_extra_s(run: Explained) -> float | None:
    """Return what the first step took beyond a warm one, seconds; None without either."""
    warm = warm_s(run)
    if run.stats.cold_ms is None or warm is None:
        return None
    return run.stats.cold_ms / 1e3 - warm


def wall_s(run: Explained) -> float | None:
    """Return the run's wall time; of one that has no end yet, the time to its last event, seconds."""
    record = run.data.record
    if record.wall_s is not None:
        return record.wall_s if record.wall_s > 0 else None
    if not run.data.events:
        return None
    last_s = record.since_origin_s(record.remote.node, run.data.events[-1].t_s)
    return last_s if last_s > 0 else None


def phase_s(run: Explained, *phases: str) -> float | None:
    """Return how long phases of the client took together by the ledger, seconds; None if it has none of them."""
    record = run.data.record
    rows: Sequence[Span] = run.ledger.rows
    if record.wall_s is None:  # it has no end yet, and no ledger
        begun = client_spans(record, run.data.events, Clocks.of(record))
        rows = build_ledger((), begun, wall_s(run) or 0.0).rows
    found = [
        row.duration_s
        for row in rows
        if row.phase in phases
        and row.node == record.remote.node
        and row.source in {"client", "log", "probe"}
    ]
    return math.fsum(found) if found else None


def last_event(run: Explained, kind: str) -> Event | None:
    """Return the client's last event of a kind."""
    return next(
        (
            event
            for event in reversed(run.data.events)
            if event.kind == kind and event.source == "client"
        ),
        None,
    )


def graph_ops(run: Explained) -> dict[str, int] | None:
    """Return how many ops of each type the graph had as it was built; None without a `graph` event."""
    event = last_event(run, wire.GRAPH)
    ops = event.data.get("ops") if event is not None else None
    if not isinstance(ops, dict):
        return None
    return {
        name: count
        for name, count in ops.items()
        if isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool)
    }


def products_asked(run: Explained) -> int | None:
    """Return how many products one step of all tasks has in the graph; None if nothing says so."""
    result = last_event(run, wire.RESULT)
    products = result.whole("products") if result is not None else None
    if products is None and (ops := graph_ops(run)) is not None:
        products = ops.get("MatMul", 0)
    return products


def products_ran(run: Explained) -> int | None:
    """Return how many products ran in the traced step, all tasks together; None without the step stats of all."""
    if run.trace is None or untraced(run):
        return None
    return sum(sum(task.products.values()) for task in run.trace.tasks)


def untraced(run: Explained) -> list[int]:
    """Return the tasks that work in each step and of which the traced step has no row.

    What TensorFlow folded leaves none where inputs are constants.
    """
    parameters = run.data.record.parameters
    apart = parameters.placement in {"lab", "one-host"} and parameters.feed in {"fed", "staged"}
    if run.trace is None or not apart:
        return []
    told = {task.task for task in run.trace.tasks}
    return [node.task for node in run.data.record.nodes if node.task not in told]


def products_missing(run: Explained) -> int:
    """Return how many products of the graph did not run in a step; 0 where that is not known."""
    asked, ran = products_asked(run), products_ran(run)
    return 0 if asked is None or ran is None else max(0, asked - ran)


def log_line(run: Explained, *words: str) -> LogLine | None:
    """Return the first line of TensorFlow's logs that has one of some words, whatever their case."""
    low = [word.lower() for word in words]
    return next(
        (line for line in run.data.log if any(word in line.text.lower() for word in low)), None
    )


def error_text(run: Explained) -> str:
    """Return all that the client's errors and the run's failure say, "" if there are none."""
    parts = [
        event.text(key)
        for event in run.data.events
        if event.kind == wire.ERROR
        for key in ("type", "message", "detail")
    ]
    failure = run.data.record.failure
    parts += [failure.message] if failure is not None else []
    return "\n".join(part for part in parts if part)


def has_words(text: str, *words: str) -> str | None:
    """Return the first of some words that a text has, whatever their case; None if it has none."""
    low = text.lower()
    return next((word for word in words if word.lower() in low), None)


def quoted(line: LogLine) -> str:
    """Return a log line as evidence."""
    text = " ".join(line.text.split())
    return f"{line.node} wrote: {text if len(text) <= 160 else text[:160].rstrip() + ' …'}"


def log_hidden(run: Explained) -> bool:
    """Return whether TensorFlow was told to say less than it can."""
    return LOG_LEVEL in run.data.record.parameters.environment


def no_trace(run: Explained) -> tuple[str, str]:
    """Return what is missing in a run whose steps cannot be split, and what would measure it."""
    parameters = run.data.record.parameters
    if lost := untraced(run):
        tasks = ", ".join(f"task:{task}" for task in lost)
        return f"the step stats of {tasks} are missing or out of the step", "run it again"
    if run.trace is not None:
        return "there is no warm step to hold the trace against", "the same run with --repeat 3"
    if not is_matpow(run):
        return "a script has no traced step", "labctl run without a script traces its steps"
    if parameters.api == "tf2":
        return "the tf2 API has no step stats", "the same run with --api session"
    if not parameters.trace:
        return "no step was traced", "the same run with --trace"
    if not run.data.traces:
        if run.data.record.outcome in OPEN_OUTCOMES:
            return "the run has not come to a traced step yet", "labctl why, once it has"
        return "the run ended before a traced step", "a run that ends"
    return "the step stats cannot be read", "run it again"
