"""What may stand in a record's fields: types with bounds, which the codec checks.

They lie far beyond what labctl writes and well within what dates, sums and file names can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

_YEAR_S = 366 * 86400.0
_END_UNIX_S = 7_258_118_400.0  # 2200-01-01
_MOST_NAME_BYTES = 255  # of a file's name


@dataclass(frozen=True, slots=True)
class Within:
    """A number within bounds, both included.

    Attributes:
        low: The least.
        high: The most.
        unit: What it counts, for messages.
    """

    low: float
    high: float
    unit: str = ""

    @property
    def expected(self) -> str:
        return f"{self.low:.15g} to {self.high:.15g} {self.unit}".rstrip()

    def holds(self, value: Any) -> bool:
        """Return whether a number is within the bounds."""
        return bool(self.low <= value <= self.high)


@dataclass(frozen=True, slots=True)
class Entries:
    """A list of at least one entry and at most so many.

    Attributes:
        most: The most.
    """

    most: int

    @property
    def expected(self) -> str:
        return f"1 to {self.most} entries"

    def holds(self, value: Any) -> bool:
        """Return whether a list has so many."""
        return 1 <= len(value) <= self.most


@dataclass(frozen=True, slots=True)
class FileName:
    """A text that can be one file's or directory's name: a record has places that are named by it."""

    @property
    def expected(self) -> str:
        return f"a name of 1 to {_MOST_NAME_BYTES} bytes, without a slash, not . or .."

    def holds(self, value: Any) -> bool:
        """Return whether it can."""
        short = 1 <= len(value.encode()) <= _MOST_NAME_BYTES
        return short and value not in {".", ".."} and "/" not in value and "\0" not in value


Name = Annotated[str, FileName()]
# A machine without a clock of its own begins in 1970.
Unix = Annotated[float, Within(0.0, _END_UNIX_S, "Unix seconds, the years 1970 to 2199")]
Seconds = Annotated[float, Within(0.0, 10 * _YEAR_S, "seconds, ten years")]
Place = Annotated[float, Within(-10 * _YEAR_S, 10 * _YEAR_S, "seconds, ten years")]
Offset = Annotated[float, Within(-100 * _YEAR_S, 100 * _YEAR_S, "seconds, a hundred years")]
# Of a span: seconds after the run's start, or Unix time.
Start = Annotated[float, Within(-1e10, 1e10, "seconds")]
CpuSeconds = Annotated[float, Within(0.0, 1e12, "seconds")]
Monotonic = Annotated[float, Within(-1e12, 1e12, "seconds")]
Load = Annotated[float, Within(0.0, 1e6)]
Cpus = Annotated[int, Within(1, 1_000_000, "CPUs")]
Size = Annotated[int, Within(1, 23_170)]  # an L x L float32 matrix of under 2 GiB
Power = Annotated[int, Within(1, 1_000)]
Repeat = Annotated[int, Within(0, 100_000, "steps")]
Threads = Annotated[int, Within(1, 1_000_000, "threads")]
Task = Annotated[int, Within(0, 999)]
Tasks = Annotated[int, Within(1, 1_000, "tasks")]
Count = Annotated[int, Within(0, 2.0**62)]
Gflops = Annotated[float, Within(1e-6, 1e9, "GFLOP/s")]
BitsPerS = Annotated[float, Within(0.0, 1e15, "bits/s")]
RoundTrip = Annotated[float, Within(0.0, 3_600.0, "seconds")]
Clock = Annotated[float, Within(0.0, 1e5, "MHz")]
Watts = Annotated[float, Within(0.0, 1e5, "W")]
Celsius = Annotated[float, Within(-100.0, 1_000.0, "degrees Celsius")]
BytesPerS = Annotated[float, Within(1.0, 1e15, "bytes/s")]
