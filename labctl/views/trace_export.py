"""A run as one file that ui.perfetto.dev opens: labctl, the lab's making, join servers, client, ops, transfers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from labctl.analysis.clock import Clocks
from labctl.analysis.explained import Explained
from labctl.analysis.ledger import client_spans, process_spans
from labctl.analysis.model import Copy, Edge, OpRun, StepTrace
from labctl.analysis.steps import Step
from labctl.analysis.trace import task_nodes
from labctl.node import wire
from labctl.runs.atomic import cannot_write, check_output
from labctl.runs.events import Event
from labctl.runs.record import Span
from labctl.views.trace_before import JOIN_SERVER, before_the_run, utc
from labctl.views.trace_counters import readings
from labctl.views.trace_events import (
    Bar,
    Process,
    arrow,
    document,
    finite,
    thread_numbers,
    whole_ns,
)
from labctl.views.trace_events import Event as TraceEvent

CLIENT = "client"

_FAR_S = 86_400.0  # what lies further from the run than this is an absurd clock's
_MARKS = frozenset({wire.PEER, wire.NOTE, wire.ERROR, wire.RESULT, wire.READY, wire.KERNEL_CACHE})


def write_trace(explained: Explained, file: Path) -> tuple[int, int]:
    """Write a run's trace and return how many bytes and events it has. The same record gives the same bytes.

    Raises:
        UsageError: There can be no such file.
        ConfigError: There is no room for it.
    """
    check_output(file)
    export = TraceExport(explained)
    fresh = file.with_name(f".{file.name}.{os.getpid()}.part")
    size = 0
    try:
        with fresh.open("wb", buffering=1 << 20) as out:
            for piece in document(export.head(), export.events()):
                size += out.write(piece)
        fresh.replace(file)
    except OSError as error:
        raise cannot_write(file, error) from error
    finally:
        fresh.unlink(missing_ok=True)
    return size, export.written


class TraceExport:
    """The events of one run's trace.

    Times are on labctl's clock. What happened before the run, often hours ago, is moved up to it, with its real
    time in `args`.

    Args:
        explained: The run.

    Attributes:
        written: Events that `events` has yielded.
        left_out: Bars that lie more than a day from the run: an absurd clock's.
    """

    def __init__(self, explained: Explained) -> None:
        self.written = 0
        self.left_out = 0
        self._explained = explained
        self._data = explained.data
        self._record = explained.data.record
        self._clocks = Clocks.of(self._record)
        self._arrows = count(1)
        self._phases = client_spans(self._record, self._data.events, self._clocks)
        self._before = before_the_run(explained)
        starts = [bar.start_ns for _, bar in self._before]
        starts += [
            whole_ns(span.start_s)
            for span in (*self._record.spans, *self._phases)
            if self._near(span.start_s)
        ]
        self._zero_ns = min([0, *starts])
        self._make_processes()

    def _make_processes(self) -> None:
        threads = thread_numbers()
        names = [self._record.remote.node, *(node.name for node in self._record.nodes)]
        self._ahead = Process(1, "before the run (gaps closed)", 0, threads)
        self._own = Process(2, f"labctl ({self._record.lab})", 1, threads)
        self._nodes = {
            name: Process(3 + place, self._heading(name), 2 + place, threads)
            for place, name in enumerate(dict.fromkeys(names))
        }

    def _heading(self, node: str) -> str:
        tasks = [
            f"task:{task}"
            for task, name in sorted(task_nodes(self._record).items())
            if name == node
        ]
        return f"{node} ({', '.join(tasks)})" if tasks else node

    def head(self) -> dict[str, Any]:
        """Return what the file says of itself."""
        record = self._record
        return {
            "run_id": record.run_id,
            "lab": record.lab,
            "outcome": record.outcome,
            "labctl_version": record.labctl_version,
            "units": "ts and dur: microseconds on labctl's clock; MB: 10^6 bytes; CPU %: 100 is one CPU",
            "started": utc(record.origin.unix_s),
            "started_ts": -self._zero_ns / 1000,
            "clocks": {
                line.node: {
                    "offset_us": finite(line.offset_s * 1e6),
                    "error_us": finite(line.error_s * 1e6),
                    "absurd": line.absurd,
                }
                for line in self._explained.clocks
            },
            "problems": list(self._explained.problems),
        }

    def events(self) -> Iterator[TraceEvent]:
        """Yield all events; call it once."""
        for event in self._all_events():
            self.written += 1
            yield event

    def _all_events(self) -> Iterator[TraceEvent]:
        if self._before:
            yield from self._ahead.heading()
        for track, bar in self._before:
            yield from self._ahead.track(track).put([self._shifted(bar)])
        for process in (self._own, *self._nodes.values()):
            yield from process.heading()
        yield from self._spans(self._own, "phases", self._record.spans)
        client = self._nodes[self._record.remote.node]
        yield from self._spans(client, CLIENT, self._phases)
        yield from self._steps(client)
        yield from self._servers()
        for source, events in self._processes():
            yield from self._marks(source, events)
            yield from self._counters(source, events)
        for trace in self._explained.traces:
            yield from self._traced(trace)

    # Bars of phases and steps

    def _spans(self, process: Process, track: str, spans: Iterable[Span]) -> Iterator[TraceEvent]:
        row = process.track(track)
        for span in sorted(spans, key=lambda each: (each.start_s, -each.duration_s, each.phase)):
            if not self._near(span.start_s) or not self._near(span.start_s + span.duration_s):
                self.left_out += 1
                continue
            args = {"source": span.source, "duration_s": round(span.duration_s, 9)}
            yield from row.put(
                [self._bar(span.phase, span.start_s, span.duration_s, "phase", args)]
            )

    def _steps(self, client: Process) -> Iterator[TraceEvent]:
        row = client.track("steps")
        for step in sorted(self._explained.steps, key=lambda each: (each.start_s, each.index)):
            start_s = self._step_start_s(step)
            if not self._near(start_s):
                self.left_out += 1
                continue
            args = {
                "index": step.index,
                "kind": step.kind,
                "duration_ms": round(step.duration_ms, 6),
            }
            name = f"step {step.index} {step.kind}"
            yield from row.put([self._bar(name, start_s, step.duration_ms / 1e3, "step", args)])

    def _servers(self) -> Iterator[TraceEvent]:
        """Yield the phases of join servers that lie within the run."""
        for ledger in self._explained.nodes:
            rows = [row for row in ledger.rows if row.source == JOIN_SERVER]
            if rows and ledger.node in self._nodes:
                yield from self._spans(self._nodes[ledger.node], JOIN_SERVER, rows)
        for (source, task), events in self._of_the_client().items():
            if source == JOIN_SERVER:  # of a run on one host
                node = self._record.remote.node
                spans = process_spans(events, node, self._clocks)
                yield from self._spans(self._nodes[node], f"{JOIN_SERVER} task:{task}", spans)

    # What is told of processes

    def _of_the_client(self) -> dict[tuple[str, int], list[Event]]:
        groups: dict[tuple[str, int], list[Event]] = {}
        for event in self._data.events:
            groups.setdefault((event.source, event.task), []).append(event)
        return dict(sorted(groups.items()))

    def _processes(self) -> Iterator[tuple[tuple[str, str, int], Sequence[Event]]]:
        """Yield node, source and task of each process with its events."""
        for (source, task), own in self._of_the_client().items():
            yield (self._record.remote.node, source, task), own
        for node, events in sorted(self._data.server_events.items()):
            if node in self._nodes and events:
                yield (node, JOIN_SERVER, events[0].task), events

    def _marks(self, source: tuple[str, str, int], events: Sequence[Event]) -> Iterator[TraceEvent]:
        node, kind, _ = source
        row = self._nodes[node].track(CLIENT if kind == CLIENT else JOIN_SERVER)
        for event in events:
            at_s = self._clocks.since_origin_s(node, event.t_s)
            if event.kind not in _MARKS or not self._near(at_s) or at_s < 0:
                continue
            args = {key: value for key, value in event.data.items() if _plain(value)}
            yield from row.mark(self._ns(at_s), _mark_name(event), event.kind, args)

    def _counters(
        self, source: tuple[str, str, int], events: Sequence[Event]
    ) -> Iterator[TraceEvent]:
        node, kind, task = source
        process = self._nodes[node]
        name = kind if kind == CLIENT else f"{kind} task:{task}"
        whole = kind == CLIENT or node != self._record.remote.node
        last_ns: dict[tuple[str, str], int] = {}
        for reading in readings(events, name, node=whole):
            at_s = self._clocks.since_origin_s(node, reading.unix_s)
            if not self._near(at_s) or at_s < 0:
                continue  # a server's start, long before the run
            at_ns = self._ns(at_s)
            counter = (reading.whose, reading.figure)
            if at_ns > last_ns.get(counter, -1):
                last_ns[counter] = at_ns
                yield process.count(at_ns, *counter, reading.value)

    # Traced steps

    def _traced(self, trace: StepTrace) -> Iterator[TraceEvent]:
        start_s = self._trace_start_s(trace)
        if start_s is None or not self._near(start_s):
            self.left_out += len(trace.ops) + len(trace.edges)
            return
        nodes = task_nodes(self._record)
        for run in trace.ops:
            process = self._nodes.get(nodes.get(run.task, ""))
            if process is None:
                self.left_out += 1
                continue
            if run.device.endswith(">"):
                continue  # a copy, which has a track of its own
            bar = self._bar(run.name, start_s + run.start_s, run.duration_s, "op", _op_args(run))
            yield from process.track(f"task:{run.task} {run.device}").put([bar])
        for edge in sorted(
            trace.edges, key=lambda each: (_asked_s(each), each.tensor, each.target)
        ):
            yield from self._transfer(edge, start_s, nodes)
        for copy in trace.copies:
            yield from self._copy(copy, start_s, nodes)

    def _copy(self, copy: Copy, start_s: float, nodes: dict[int, str]) -> Iterator[TraceEvent]:
        """Yield a copy between host and GPU: where the host queued it, the copy itself, an arrow between them."""
        process = self._nodes.get(nodes.get(copy.task, ""))
        if process is None:
            self.left_out += 1
            return
        name, args = f"{copy.kind} {copy.tensor}".strip(), _copy_args(copy)
        way = self._bar(name, start_s + copy.start_s, copy.duration_s, copy.kind, args)
        track = f"task:{copy.task} {copy.kind} {copy.device}"
        copied = list(process.track(track).put([way]))
        if copy.queued_s is not None and copy.queued_s <= copy.start_s:
            wait_s = copy.start_s - copy.queued_s
            queued = self._bar(f"{name} queued", start_s + copy.queued_s, wait_s, "wait", args)
            waits = list(process.track(f"task:{copy.task} queues for {copy.device}").put([queued]))
            yield from waits
            yield from copied
            yield from arrow(next(self._arrows), name, copy.kind, waits[-1], copied[-1])
        else:
            yield from copied

    def _transfer(self, edge: Edge, start_s: float, nodes: dict[int, str]) -> Iterator[TraceEvent]:
        """Yield a transfer: its wait and its way on the receiver's side, its way on the sender's, an arrow."""
        sender, receiver = (
            self._nodes.get(nodes.get(task, "")) for task in (edge.source, edge.target)
        )
        if sender is None or receiver is None:
            self.left_out += 1
            return
        mark = " (start clamped: not to be believed)" if edge.clamped else ""
        args = _edge_args(edge)
        way = self._bar(
            f"{edge.tensor}{mark}", start_s + edge.answered_s, edge.wire_s, "transfer", args
        )
        bars = [way]
        if edge.asked_s is not None and edge.asked_s < edge.answered_s:
            waited_s = edge.answered_s - edge.asked_s
            name = f"waits for {edge.tensor}{mark}"
            bars.insert(0, self._bar(name, start_s + edge.asked_s, waited_s, "wait", args))
        sent = list(sender.track(f"task:{edge.source} sends").put([way]))
        arrived = list(receiver.track(f"task:{edge.target} receives").put(bars))
        yield from sent
        yield from arrived
        yield from arrow(next(self._arrows), edge.tensor, "transfer", sent[-1], arrived[-1])

    def _trace_start_s(self, trace: StepTrace) -> float | None:
        """Return when a traced step began; a record without its event has only the phase of the one there was."""
        for step in self._explained.steps:
            if step.kind == "traced" and step.index == trace.index:
                return self._step_start_s(step)
        spans = [each for each in self._phases if each.phase == wire.PHASE_TRACED_STEP]
        return spans[0].start_s if spans and len(self._explained.traces) == 1 else None

    # The time line

    def _step_start_s(self, step: Step) -> float:
        return self._clocks.since_origin_s(self._record.remote.node, step.start_s)

    def _near(self, at_s: float) -> bool:
        return -_FAR_S <= at_s <= (self._record.wall_s or 0.0) + _FAR_S

    def _ns(self, at_s: float) -> int:
        return max(0, whole_ns(at_s) - self._zero_ns)

    def _bar(
        self, name: str, start_s: float, duration_s: float, category: str, args: dict[str, Any]
    ) -> Bar:
        return Bar(name, self._ns(start_s), self._ns(start_s + duration_s), category, args)

    def _shifted(self, bar: Bar) -> Bar:
        start_ns, end_ns = bar.start_ns - self._zero_ns, bar.end_ns - self._zero_ns
        return Bar(bar.name, start_ns, end_ns, bar.category, bar.args)


def _asked_s(edge: Edge) -> float:
    return edge.answered_s if edge.asked_s is None else min(edge.asked_s, edge.answered_s)


def _op_args(run: OpRun) -> dict[str, Any]:
    return {"op": run.op, "task": run.task, "device": run.device, "inputs": list(run.inputs)}


def _copy_args(copy: Copy) -> dict[str, Any]:
    """Return what a click on a copy shows; a figure that is not known is left out."""
    args = {
        "tensor": copy.tensor or None,
        "size_bytes": copy.size_bytes,
        "host_memory": copy.host_memory or None,
        "copy_ms": round(copy.duration_s * 1e3, 6),
        "mb_per_s": None if copy.mb_per_s is None else round(copy.mb_per_s, 3),
    }
    return {key: value for key, value in args.items() if value is not None}


def _edge_args(edge: Edge) -> dict[str, Any]:
    """Return what a click on a transfer shows; a figure that is not known is left out."""
    args = {
        "tensor": edge.tensor,
        "from": f"task:{edge.source}",
        "to": f"task:{edge.target}",
        "size_bytes": edge.size_bytes,
        "waited_ms": None if edge.waited_s is None else round(edge.waited_s * 1e3, 6),
        "wire_ms": None if edge.clamped else round(edge.wire_s * 1e3, 6),
        "mb_per_s": None if edge.mb_per_s is None else round(edge.mb_per_s, 3),
        "percent_of_baseline": (
            None if edge.baseline_share is None else round(edge.baseline_share * 100, 2)
        ),
        "clock_error_us": finite(edge.clock_error_s * 1e6),
        "clamped": edge.clamped,
    }
    return {key: value for key, value in args.items() if value is not None}


def _mark_name(event: Event) -> str:
    if event.kind == wire.PEER:
        return f"peer task:{event.data.get('peer_task')} {event.text('state')}"
    if event.kind == wire.RESULT:
        return "result ok" if event.flag("ok") else "result wrong"
    if event.kind == wire.KERNEL_CACHE:
        return f"kernel cache: {event.data.get('files')} files ({event.text('when')})"
    told = event.text("message") or event.text("text")
    return f"{event.kind}: {told}"[:200] if told else event.kind


def _plain(value: object) -> bool:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int)
