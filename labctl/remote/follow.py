"""Copy growing files from a node by byte offset: a broken link costs and repeats nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labctl.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

    from labctl.remote.base import Executor

DIGEST_SCRIPT = 'head -c "$1" -- "$2" | sha256sum'

_BLOCK = 4 * 1024 * 1024
_DIGEST_BYTES_PER_S = 20e6  # a slow disk; only bounds the wait
_DIGEST_FLOOR_S = 60.0


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished copy.

    Attributes:
        path: The local file.
        size: Bytes on both sides.
        sha256: Hex digest, equal on both sides.
    """

    path: Path
    size: int
    sha256: str


class Follower:
    """Follows one remote file into one local file.

    The local file's size is the offset, so a new Follower on the same pair resumes where the last
    one was.

    Args:
        executor: The node.
        remote: Absolute path there; need not exist yet.
        local: Path here; its folder exists.
    """

    def __init__(self, executor: Executor, remote: str, local: Path) -> None:
        self._executor = executor
        self._remote = remote
        self._local = local

    def poll(self, *, limit: int = 4 * 1024 * 1024) -> bytes:
        """Copy what is new, up to `limit` bytes, and return it, already in the local file."""
        return self._extend(self._local, limit)

    def finish(self) -> Copied:
        """Copy the rest, compare sha256 on both sides and return it.

        What is appended after this call began is left out; a file never made counts as empty.

        Raises:
            RecordError: The digests differ after one whole new copy was made as well.
        """
        size = self._executor.size(self._remote) or 0
        self._local.touch()
        if self._local.stat().st_size <= size:
            self._fill(self._local, size)
            copied = self._compare(self._local, size)
            if copied is not None:
                return copied
        fresh = self._local.with_name(f".{self._local.name}.part")
        fresh.write_bytes(b"")
        try:
            self._fill(fresh, size)
            copied = self._compare(fresh, size)
            if copied is None:
                raise RecordError(
                    f"{self._local} is not what {self._remote} on {self._executor.name} is: "
                    "their sha256 differ after a second whole copy",
                    expected="a file that only grows",
                    do=f"copy {self._remote} from {self._executor.name} by hand",
                )
            fresh.replace(self._local)
        finally:
            fresh.unlink(missing_ok=True)
        return Copied(self._local, copied.size, copied.sha256)

    def _extend(self, path: Path, limit: int) -> bytes:
        offset = path.stat().st_size if path.exists() else 0
        try:
            data = self._executor.read(self._remote, offset=offset, limit=limit)
        except FileNotFoundError:
            return b""
        if data:
            with path.open("ab") as file:
                file.write(data)
        return data

    def _fill(self, path: Path, size: int) -> None:
        while (missing := size - path.stat().st_size) > 0:
            if not self._extend(path, min(missing, _BLOCK)):
                return

    def _compare(self, path: Path, size: int) -> Copied | None:
        """Return the copy if `path` has the first `size` bytes of the remote file."""
        with path.open("rb") as file:
            here = hashlib.file_digest(file, "sha256").hexdigest()
        if size == 0 and path.stat().st_size == 0:
            return Copied(path, 0, here)
        there = self._executor.run(
            ["sh", "-c", DIGEST_SCRIPT, "sh", str(size), self._remote],
            timeout_s=_DIGEST_FLOOR_S + size / _DIGEST_BYTES_PER_S,
        ).check(self._executor.name, f"sha256sum of {self._remote}")
        return Copied(path, size, here) if there.text.split()[:1] == [here] else None
