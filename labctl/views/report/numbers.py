"""How numbers are written on the page. A figure that is missing is never 0: it says so."""

from __future__ import annotations

import math

NOT_MEASURED = "not measured"


def fixed(value: float | None, digits: int) -> str:
    """Return a number with so many decimals and thin spaces between thousands, or `not measured`."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    return "0" if digits == 0 and text == "-0" else text.replace("-", "\u2212")


def figure(value: float | None) -> str:
    """Return a number with three significant digits where it has decimals at all."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    size = abs(value)
    digits = 0 if size >= 99.95 or size == 0 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return fixed(value, digits)


def duration(seconds: float | None) -> str:
    """Return a length of time with the unit that suits it, e.g. `30.1 ms` or `5.07 s`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    if abs(seconds) >= 1:
        return f"{figure(seconds)} s"
    if abs(seconds) >= 1e-3 or seconds == 0:
        return f"{figure(seconds * 1e3)} ms"
    return f"{figure(seconds * 1e6)} µs"


def size(count: float | None) -> str:
    """Return a number of bytes with the unit that suits it."""
    if count is None or not math.isfinite(count):
        return NOT_MEASURED
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= scale:
            return f"{figure(count / scale)} {unit}"
    return f"{fixed(count, 0)} B"


def scaled(value: float | None, factor: float) -> float | None:
    """Return a value in another unit, None if there is none."""
    return None if value is None else value * factor


def percent(part: float | None, whole: float | None) -> float | None:
    """Return a part in percent of a whole, None where one is missing or the whole is nothing."""
    return None if part is None or not whole else part / whole * 100
