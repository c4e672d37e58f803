"""Names and paths of all that a rehearsal lab makes on this host, derived from the lab's id and nothing else."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import ConfigError

RUN_DIR = Path("/run/labctl")
"""Locks and saved settings of the host, shared by all labs; gone after a reboot, as those settings are."""

HOST_LOCK = RUN_DIR / "host.lock"
"""Held while something is changed that all labs share: address ranges, forwarding, packet filters."""

_NODE = re.compile(r"tf(0|[1-9][0-9]?)\Z")


def state_dir() -> Path:
    """Return where images, caches and machines are kept: `LABCTL_STATE_DIR`, else /var/lib/labctl."""
    return Path(os.environ.get("LABCTL_STATE_DIR") or "/var/lib/labctl").absolute()


def node_name(index: int) -> str:
    return f"tf{index}"


def is_node_name(name: str) -> bool:
    return _NODE.match(name) is not None


def node_index(name: str) -> int:
    """Return the index in a node's name."""
    return int(name.removeprefix("tf"))


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """Files of one machine.

    Attributes:
        base: Its directory.
    """

    base: Path

    @property
    def upper(self) -> Path:
        return self.base / "upper"

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def root(self) -> Path:
        """Mount point of the machine's file system."""
        return self.base / "root"

    @property
    def console(self) -> Path:
        return self.base / "console.log"

    @property
    def complete(self) -> Path:
        """Exists once the machine's file system holds all that makes it this lab's."""
        return self.base / "complete"


@dataclass(frozen=True, slots=True)
class LabIdentity:
    """Everything of a lab on this host has its id in the name.

    Attributes:
        lab: The lab's name.
        id: 8 hex digits of a hash over the root directory and the name.
        state: Directory of images, caches and machines of all labs.
    """

    lab: str
    id: str
    state: Path

    @classmethod
    def of(cls, root: Path, lab: str) -> LabIdentity:
        """Return the identity of a lab below a root directory (absolute path)."""
        digest = hashlib.sha256(f"{root}\0{lab}".encode()).hexdigest()
        return cls(lab, digest[:8], state_dir())

    @property
    def bridge(self) -> str:
        return f"lab-{self.id}"

    @property
    def nft_table(self) -> str:
        return f"labctl_{self.id}"

    @property
    def cgroup(self) -> str:
        return f"labctl-{self.id}"

    def machine(self, node: str) -> str:
        """Return the machine name of a node, as systemd-nspawn knows it."""
        return f"labctl-{self.id}-{node}"

    def check_state_dir(self) -> None:
        """Check that the state directory can be made and written, and that mount options can name it.

        Raises:
            ConfigError: It cannot, or it has a character in it that they cannot quote.
        """
        if set(str(self.state)) & set(",:\\ \t\n"):
            raise ConfigError(
                f"LABCTL_STATE_DIR is {str(self.state)!r}",
                expected="a path without blanks, commas, colons and backslashes",
                do="unset LABCTL_STATE_DIR, or choose another directory",
            )
        labs = self.base.parent
        try:
            labs.mkdir(mode=0o755, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=labs).close()
        except OSError as error:
            raise ConfigError(
                f"{labs} cannot be written: {error.strerror}",
                expected="a directory for machines, on a disk of this host",
                do="set LABCTL_STATE_DIR to one",
            ) from error

    @property
    def base(self) -> Path:
        return self.state / "labs" / self.id

    @property
    def machines(self) -> Path:
        return self.base / "machines"

    def paths(self, node: str) -> MachinePaths:
        return MachinePaths(self.machines / node)

    @property
    def state_file(self) -> Path:
        return self.base / "state.json"

    @property
    def lock_file(self) -> Path:
        return RUN_DIR / f"{self.id}.lock"

    @property
    def images(self) -> Path:
        return self.state / "images"

    @property
    def uv_cache(self) -> Path:
        return self.state / "cache" / "uv"
