"""Copy growing files from a node by byte offset: a broken link costs and repeats nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labctl.remote.base import Executor


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
        raise NotImplementedError

    def poll(self, *, limit: int = 4 * 1024 * 1024) -> bytes:
        """Copy what is new, up to `limit` bytes, and return it, already in the local file."""
        raise NotImplementedError

    def finish(self) -> Copied:
        """Copy the rest, compare sha256 on both sides and return it.

        Raises:
            RecordError: The digests differ after one whole new copy was made as well.
        """
        raise NotImplementedError
