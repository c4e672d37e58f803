"""Read a unit's journal on a node: bytes stay bytes, and no right to read it is an error, not an empty log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labctl.errors import RemoteCommandError

if TYPE_CHECKING:
    from labctl.remote.base import Executor

_READ_S = 120.0
_MOST_BYTES = 256 * 1024 * 1024
_FIELDS = "MESSAGE,_PID,_SYSTEMD_UNIT,SYSLOG_IDENTIFIER,PRIORITY,_BOOT_ID"
_SCRIPT = 'limit=$1; shift; journalctl "$@" | head -n "$limit"'
_SAVE_SCRIPT = 'path=$1; shift; umask 022; journalctl "$@" > "$path"'


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One entry.

    Attributes:
        t_ns: Unix time on the node, nanoseconds (the journal keeps microseconds).
        message: Its bytes, without a newline at the end.
        pid: Process that wrote it, 0 if unknown.
        identifier: Program that wrote it; `systemd` for what the manager says of the unit.
        own: The unit itself wrote it, not the manager about it.
        boot_id: The node's boot, 32 hex digits.
        cursor: Its place.
    """

    t_ns: int
    message: bytes
    pid: int
    identifier: str
    own: bool
    boot_id: str
    cursor: str


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Entries in order.

    Attributes:
        lines: The entries.
        cursor: Where to go on from: of the last entry, else the one that was given.
    """

    lines: tuple[JournalLine, ...]
    cursor: str | None


def read_journal(
    executor: Executor,
    unit: str,
    *,
    since_cursor: str | None = None,
    since_s: float | None = None,
    boot: str | None = None,
    limit: int = 10_000,
) -> JournalPage:
    """Return the first `limit` entries of a unit's journal after a place or a time.

    Args:
        executor: The node; its login user needs sudo, or to be root.
        unit: Name with its suffix.
        since_cursor: Only what follows this place.
        since_s: Only what is not older than this Unix time on the node, seconds.
        boot: Only this boot's entries: a boot id, or `0` for the current one.
        limit: Entries at most.

    Raises:
        RemoteCommandError: The journal may not or cannot be read.
    """
    arguments = [*_selection(unit, since_cursor, since_s, boot), f"--output-fields={_FIELDS}"]
    done = executor.run(
        ["sh", "-c", _SCRIPT, "sh", str(limit), *arguments, "--output=json"],
        timeout_s=_READ_S,
        sudo=True,
        max_output=_MOST_BYTES,
    ).check(executor.name, f"reading the journal of {unit}")
    rows = done.stdout.splitlines()
    if done.truncated:
        rows = rows[:-1]
    if not rows and done.stderr.strip():
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1]
        raise RemoteCommandError(f"the journal of {unit} on {executor.name} cannot be read: {said}")
    lines = tuple(_line(json.loads(row), unit) for row in rows)
    return JournalPage(lines, lines[-1].cursor if lines else since_cursor)


def save_journal(
    executor: Executor,
    unit: str,
    path: str,
    *,
    since_s: float | None = None,
    boot: str | None = None,
    output: str = "short-iso-precise",
) -> None:
    """Write a unit's journal to a file on the node, world-readable, to be copied with its digest.

    Args:
        executor: The node.
        unit: Name with its suffix.
        path: Absolute path there; replaced.
        since_s: Only what is not older than this Unix time on the node, seconds.
        boot: Only this boot's entries: a boot id, or `0` for the current one.
        output: One of journalctl's formats.

    Raises:
        RemoteCommandError: The journal cannot be read, or the file not be written.
    """
    arguments = [*_selection(unit, None, since_s, boot), f"--output={output}"]
    executor.run(
        ["sh", "-c", _SAVE_SCRIPT, "sh", path, *arguments], timeout_s=_READ_S, sudo=True
    ).check(executor.name, f"saving the journal of {unit}")


def _selection(unit: str, cursor: str | None, since_s: float | None, boot: str | None) -> list[str]:
    # --all, or a message over 4096 bytes arrives as null
    words = ["--unit", unit, "--no-pager", "--quiet", "--all"]
    if cursor is not None:
        words.append(f"--after-cursor={cursor}")
    if since_s is not None:
        words.append(f"--since=@{since_s:.6f}")
    if boot is not None:
        words.append(f"--boot={boot.replace('-', '')}")
    return words


def _line(entry: dict[str, Any], unit: str) -> JournalLine:
    return JournalLine(
        t_ns=int(entry["__REALTIME_TIMESTAMP"]) * 1000,
        message=_bytes(entry.get("MESSAGE")),
        pid=int(_text(entry.get("_PID")) or 0),
        identifier=_text(entry.get("SYSLOG_IDENTIFIER")),
        own=_text(entry.get("_SYSTEMD_UNIT")) == unit,
        boot_id=_text(entry.get("_BOOT_ID")),
        cursor=entry["__CURSOR"],
    )


def _bytes(value: Any) -> bytes:
    """Return a field's bytes: text, a list of bytes where that is no UTF-8, or several of them."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if all(isinstance(each, int) for each in value):
        return bytes(value)
    return _bytes(value[0])


def _text(value: Any) -> str:
    return _bytes(value).decode("utf-8", "replace")
