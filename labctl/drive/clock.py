"""A node's clock against labctl's, as the record keeps it."""

from __future__ import annotations

from labctl.drive.links import Machine
from labctl.drive.timing import Timeline
from labctl.remote.clock import clock_offset
from labctl.runs.record import ClockSample


def clock_sample(machine: Machine, timeline: Timeline) -> ClockSample:
    """Return one measurement of a node's clock; a node that is this machine has no offset.

    Raises:
        LabctlError: The node does not answer.
    """
    if machine.node.ssh is None:
        return ClockSample(machine.node.name, timeline.now_s(), 0.0, 0.0)
    found = clock_offset(machine.executor)
    return ClockSample(machine.node.name, timeline.now_s(), found.seconds, found.error_bound_s)
