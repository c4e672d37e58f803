from __future__ import annotations

import pytest

from labctl.drive.timing import Timeline, process_age_s
from labctl.runs.record import Origin, Span


class Clock:
    def __init__(self, mono_s: float, unix_s: float) -> None:
        self.mono, self.unix = mono_s, unix_s
        self.fails = False

    def mono_s(self) -> float:
        return self.mono

    def unix_s(self) -> float:
        return self.unix

    def sleep(self, seconds: float) -> None:
        self.mono += seconds
        self.unix += seconds
        if self.fails:
            raise OSError("x")


def spans(timeline: Timeline) -> list[tuple[str, float, float]]:
    return [(span.phase, span.start_s, span.duration_s) for span in timeline.spans]


def test_phases_are_measured_from_the_commands_start_even_when_they_fail() -> None:
    clock = Clock(100.0, 5000.0)
    timeline = Timeline(clock, age_s=0.5)
    clock.fails = True
    with pytest.raises(OSError, match="x"), timeline.span("push"):
        clock.sleep(2)
    assert spans(timeline) == [("startup", 0.0, 0.5), ("push", 0.5, 2.0)]
    assert timeline.origin.unix_s == 4999.5
    assert timeline.now_s() == 2.5


def test_attach_goes_on_with_the_time_line_of_the_run() -> None:
    clock = Clock(100.0, 5000.0)
    timeline = Timeline(clock)
    with timeline.span("connect"):
        clock.sleep(1)
    earlier = Origin(4900.0, 40.0, timeline.origin.boot_id)
    timeline.continue_from(earlier, (Span("start", "labctl", 3.0, 2.0, "labctl"),))
    assert timeline.origin == earlier
    # The monotonic clock counts (60 s), not the time of day (100 s), which may have been set.
    assert spans(timeline) == [
        ("start", 3.0, 2.0),
        ("unattended", 5.0, 55.0),
        ("connect", 60.0, 1.0),
    ]
    assert timeline.now_s() == 61.0


def test_after_a_reboot_of_labctls_machine_the_time_of_day_must_do() -> None:
    clock = Clock(10.0, 5000.0)
    timeline = Timeline(clock)
    timeline.continue_from(Origin(4900.0, 9999.0, "another boot"), ())
    assert timeline.now_s() == 100.0
    assert spans(timeline) == [("unattended", 0.0, 100.0)]


def test_this_process_has_an_age() -> None:
    first = process_age_s()
    assert first > 0
    assert process_age_s() >= first
