"""Where things are: the root with its inventories and `.lab/`, the active lab, and the content shipped with labctl.

A root is a directory with `inventory/` and `.lab/`. It is `LABCTL_HOME` if that is set, else the nearest
directory at or above the current one that holds `.lab/`, `inventory/active` or a checkout's `provision.yml`
beside `roles/`, else the current directory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import ConfigError
from labctl.lab.model import LOOPBACK

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")
_PACKAGE = Path(__file__).resolve().parent.parent


def check_lab_name(name: str) -> str:
    """Return a lab's name unchanged if it may be one.

    Raises:
        ConfigError: It could not serve as a directory, host name and table name.
    """
    if not _NAME.match(name) or name in {"active", "example"}:
        raise ConfigError(
            f"{name!r} cannot be a lab's name",
            expected="a-z, 0-9 and dashes, a letter first, at most 31; not 'active' or 'example'",
            do="choose another name for --lab",
        )
    return name


@dataclass(frozen=True, slots=True)
class Home:
    """The root directory of a user's labs.

    Attributes:
        root: Absolute path; `inventory/` and `.lab/` are below it.
    """

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Home:
        """Return the home for a directory (default: the current one)."""
        given = os.environ.get("LABCTL_HOME")
        if given:
            return cls(Path(given).expanduser().resolve())
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            is_checkout = (folder / "provision.yml").is_file() and (folder / "roles").is_dir()
            if (
                is_checkout
                or (folder / ".lab").is_dir()
                or (folder / "inventory/active").is_symlink()
            ):
                return cls(folder)
        return cls(here)

    @property
    def inventories(self) -> Path:
        return self.root / "inventory"

    @property
    def content(self) -> Path:
        """Directory of `ansible.cfg`, the playbooks and the roles: the checkout's, or the package's own."""
        checkout = _PACKAGE.parent
        if (checkout / "provision.yml").is_file() and (checkout / "roles").is_dir():
            return checkout
        return _PACKAGE / "_share"

    def inventory(self, lab: str) -> Path:
        return self.inventories / check_lab_name(lab)

    def local_dir(self, lab: str) -> Path:
        """Return `.lab/<lab>`, not made here."""
        return self.root / ".lab" / check_lab_name(lab)

    def make_local_dir(self, lab: str) -> Path:
        """Make `.lab/<lab>` with mode 0700 and return it."""
        folder = self.local_dir(lab)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def labs(self) -> list[str]:
        """Return the names of all labs that have an inventory directory, sorted."""
        if not self.inventories.is_dir():
            return []
        return sorted(
            entry.name
            for entry in self.inventories.iterdir()
            if entry.is_dir()
            and not entry.is_symlink()
            and _NAME.match(entry.name)
            and entry.name != "example"
        )

    def active(self) -> str | None:
        """Return the active lab's name, or None when no lab is active or the link dangles."""
        link = self.inventories / "active"
        if link.is_symlink() and link.is_dir():
            return link.resolve().name
        return None

    def activate(self, lab: str) -> None:
        """Point `inventory/active` at a lab, atomically.

        Raises:
            ConfigError: The lab has no inventory directory.
        """
        if not self.inventory(lab).is_dir():
            raise ConfigError(
                f"no lab {lab!r}: {self.inventory(lab)} does not exist",
                expected=f"one of {', '.join(self.labs()) or '(none yet)'}",
                do="labctl up, or copy inventory/example to inventory/<lab> and edit it",
            )
        link, fresh = self.inventories / "active", self.inventories / f".active-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(lab)
        fresh.replace(link)

    def deactivate(self, lab: str) -> None:
        """Remove `inventory/active` if it points at this lab."""
        link = self.inventories / "active"
        if link.is_symlink() and link.readlink().name == lab:
            link.unlink()

    def choose(self, lab: str | None) -> str:
        """Return the lab that a command means: the named one, `LABCTL_LAB`, or the active one.

        Raises:
            ConfigError: None is named and none is active.
        """
        name = lab or os.environ.get("LABCTL_LAB") or self.active()
        if name is None:
            raise ConfigError(
                f"no lab is active in {self.root}",
                expected="--lab NAME, LABCTL_LAB, or inventory/active",
                do=f"labctl up, labctl use NAME, or --lab {LOOPBACK} for two processes on this machine",
            )
        return check_lab_name(name)
