"""CPU time that a run's processes had and did not get, from their `usage` events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.analysis.causes.common import is_matpow
from labctl.analysis.causes.contact import own
from labctl.node import wire

if TYPE_CHECKING:
    from labctl.analysis.explained import Explained
    from labctl.runs.events import Event

# Less than this of running and waiting says nothing of a share.
_LEAST_S = 0.05
# A reading may lie this far outside of the interval that it is to tell of.
_SLACK_S = 2 * wire.USAGE_PERIOD_S + 0.2


@dataclass(frozen=True, slots=True)
class Use:
    """What one task's process used in an interval, and what its node's CPUs did meanwhile.

    Attributes:
        cpu_s: CPU time that it used, all threads together, seconds.
        wait_s: Time that its threads were ready to run and had no CPU, seconds.
        busy_s: Time that the CPUs it may use worked, for whomever; None if unknown.
        idle_s: Time that they had nothing to do.
        steal_s: Time that the hypervisor gave to others.
    """

    cpu_s: float
    wait_s: float
    busy_s: float | None = None
    idle_s: float | None = None
    steal_s: float | None = None

    @property
    def lost(self) -> float:
        """Part of its threads' time at work in which they had no CPU, 0 to 1."""
        return self.wait_s / (self.cpu_s + self.wait_s)

    @property
    def others_s(self) -> float | None:
        """Time that its CPUs worked for somebody else, seconds."""
        return None if self.busy_s is None else max(0.0, self.busy_s - self.cpu_s)

    @property
    def taken(self) -> float | None:
        """Part of its CPUs' time that went to other processes and other machines, 0 to 1; None if unknown."""
        if self.others_s is None or self.busy_s is None or self.idle_s is None:
            return None
        steal_s = self.steal_s or 0.0
        whole_s = self.busy_s + self.idle_s + steal_s
        return (self.others_s + steal_s) / whole_s if whole_s > 0 else None


def uses(run: Explained) -> dict[int, Use]:
    """Return what each task used over the warm steps, or a script, as far as it is known; by task."""
    bounds = _warm_bounds(run)
    record = run.data.record
    found: dict[int, Use] = {}
    for node in record.nodes:
        client = node.name == record.remote.node
        events = own(run) if client else run.data.server_events.get(node.name, ())
        use = None if bounds is None else _use(run, node.name, events, *bounds)
        if use is None and not client:
            use = _whole_run(run, node.name)
        if use is not None:
            found[node.task] = use
    return found


def _warm_bounds(run: Explained) -> tuple[float, float] | None:
    """Return begin and end of the warm steps, of a script as a whole, seconds after the origin."""
    record = run.data.record
    phase = wire.PHASE_WARM_STEPS if is_matpow(run) else wire.PHASE_SCRIPT
    times = [
        record.since_origin_s(record.remote.node, event.t_s)
        for kind in (wire.PHASE_BEGIN, wire.PHASE_END)
        for event in own(run)
        if event.kind == kind and event.text("phase") == phase
    ]
    return (times[0], times[1]) if len(times) == 2 else None


def _use(
    run: Explained, node: str, events: Sequence[Event], begin_s: float, end_s: float
) -> Use | None:
    readings = [
        (run.data.record.since_origin_s(node, event.t_s), event)
        for event in events
        if event.kind == wire.USAGE
    ]
    near = [each for each in readings if begin_s - _SLACK_S <= each[0] <= end_s + _SLACK_S]
    before = [event for at_s, event in near if at_s <= begin_s]
    after = [event for at_s, event in near if at_s >= end_s]
    if len(near) < 2:
        return None
    first = before[-1] if before else near[0][1]
    last = after[0] if after else near[-1][1]
    used = {key: _grown_s(first, last, key) for key in _KEYS}
    cpu_s, wait_s = used["cpu_ns"], used["wait_ns"]
    if cpu_s is None or wait_s is None or cpu_s + wait_s < _LEAST_S:
        return None
    return Use(cpu_s, wait_s, used["node_busy_ns"], used["node_idle_ns"], used["node_steal_ns"])


_KEYS = ("cpu_ns", "wait_ns", "node_busy_ns", "node_idle_ns", "node_steal_ns")


def _grown_s(first: Event, last: Event, key: str) -> float | None:
    """Return by how much a counter grew, seconds; None if it is missing or went back."""
    begin, end = first.number(key), last.number(key)
    return None if begin is None or end is None or end < begin else (end - begin) / 1e9


def _whole_run(run: Explained, node: str) -> Use | None:
    """Return what a join server used between the two looks at it."""
    record = run.data.record
    before = next((state for state in record.servers_before if state.node == node), None)
    after = next((state for state in record.servers_after if state.node == node), None)
    if before is None or after is None or before.invocation_id != after.invocation_id:
        return None
    cpu_s, wait_s = _more(before.cpu_s, after.cpu_s), _more(before.wait_s, after.wait_s)
    if cpu_s is None or wait_s is None or cpu_s + wait_s < _LEAST_S:
        return None
    return Use(cpu_s, wait_s)


def _more(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before
