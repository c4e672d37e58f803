"""What executors share: a bounded buffer for a stream, and what to say when sudo refuses."""

from __future__ import annotations

import os
import posixpath

from labctl.errors import RemoteCommandError


class Capture:
    """Keeps the first bytes of a stream and counts the rest.

    Args:
        limit: Bytes that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.truncated = False

    def add(self, data: bytes) -> None:
        """Take more of the stream."""
        room = self._limit - len(self._kept)
        if len(data) > room:
            self.truncated = True
            data = data[:room]
        self._kept += data

    def take(self) -> bytes:
        """Return the bytes kept."""
        return bytes(self._kept)


def looks_like_sudo_refusal(returncode: int | None, stderr: bytes) -> bool:
    """Say whether a command under `sudo -n` may not have been started at all."""
    return returncode == 1 and stderr.startswith(b"sudo: ")


def sudo_refused(host: str, user: str, stderr: bytes) -> RemoteCommandError:
    """Return the error for a node whose sudo refuses to work without a password."""
    said = stderr.decode("utf-8", "replace").strip().splitlines()[-1]
    return RemoteCommandError(
        f"sudo does not work without a password for user {user} on {host} ({said})",
        expected=f"a line in /etc/sudoers.d/{user}:  {user} ALL=(ALL) NOPASSWD:ALL",
        do=f"add that line on {host} with: sudo visudo -f /etc/sudoers.d/{user}",
    )


def temporary_name(path: str) -> str:
    """Return a fresh name in the folder of `path`, for a file to be renamed to it."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name[:200]}.{os.urandom(6).hex()}.part")
