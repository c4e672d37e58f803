"""`--since`: a moment as people write it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from labctl.errors import UsageError

_AGO = re.compile(r"(\d{1,6})(s|m|min|h|d)\Z")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?\Z")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_since(text: str, now_s: float) -> float:
    """Return a moment as Unix time in seconds.

    Args:
        text: A length of time before now (`90s`, `10min`, `2h`, `1d`), a time of day (`14:05`, `14:05:30`: the
            last one that has passed), or a date and time as ISO 8601 writes them. UTC where no zone is given.
        now_s: Unix time, seconds.

    Raises:
        UsageError: It is none of these.
    """
    if match := _AGO.match(text):
        return now_s - int(match[1]) * _SECONDS[match[2]]
    now = datetime.fromtimestamp(now_s, UTC)
    if match := _CLOCK.match(text):
        moment = now.replace(
            hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0), microsecond=0
        )
        return (moment if moment <= now else moment - timedelta(days=1)).timestamp()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--since {text!r}",
            expected="90s, 10min, 2h, 14:05, 14:05:30 or 2026-11-30T14:05 (UTC)",
            do="labctl logs --help",
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
