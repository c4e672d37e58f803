"""Where things are: the root with its inventories and `.lab/`, the active lab, and the content shipped with labctl.

A root is a directory with `inventory/` and `.lab/`. It is `LABCTL_HOME` if that is set, else the nearest
directory at or above the current one that holds `.lab/`, `inventory/active` or a checkout's `provision.yml`
beside `roles/`, else the current directory.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.errors import ConfigError
from labctl.lab.model import LOOPBACK

_NAME = re.compile(r"(?!(?:active|example(?:-[a-z0-9-]*)?)\Z)[a-z][a-z0-9-]{0,30}\Z")
# What Ansible passes over in an inventory directory (its defaults), as no inventory source.
_NO_SOURCE = re.compile(
    r"^\.|^(host_vars|group_vars|vars_plugins)$|~$"
    r"|\.(pyc|pyo|swp|bak|rpm|md|txt|rst|orig|cfg|retry)$"
)
_PACKAGE = Path(__file__).resolve().parent.parent


def check_lab_name(name: str) -> str:
    """Return a lab's name unchanged if it may be one.

    Raises:
        ConfigError: It could not serve as a directory, host name and table name.
    """
    if not _NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot be a lab's name",
            expected="a-z, 0-9 and dashes, a letter first, at most 31; not 'active', 'example' or 'example-…'",
            do="choose another name for --lab",
        )
    return name


def inventory_sources(folder: Path) -> list[str]:
    """Return the names in an inventory directory that Ansible reads as an inventory, sorted; variables are none."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if not _NO_SOURCE.search(entry.name))


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
        """Make `.lab/<lab>` with mode 0700 and return it.

        Raises:
            ConfigError: It cannot be made.
        """
        folder = self.local_dir(lab)
        _make(folder, mode=0o700)
        return folder

    def prepare(self, lab: str) -> list[Path]:
        """Make `.lab/<lab>` and `inventory/`, and see that files can be made there and in `inventory/<lab>`.

        Returns:
            The directories made, each before its parent.

        Raises:
            ConfigError: They cannot; nothing was made then.
        """
        private = self.local_dir(lab)
        made = _make(self.root, mode=0o755)
        try:
            made[:0] = _make(private, mode=0o700)
            made[:0] = _make(self.inventories, mode=0o755)
            for folder in (private, self.inventories, self.inventory(lab)):
                if folder.is_dir():
                    try:
                        tempfile.TemporaryFile(dir=folder).close()
                    except OSError as error:
                        raise _unusable(folder, error) from error
        except ConfigError:
            remove_empty(made)
            raise
        return made

    def labs(self) -> list[str]:
        """Return the names of all labs that have an inventory, sorted; variables alone are none."""
        if not self.inventories.is_dir():
            return []
        return sorted(
            entry.name
            for entry in self.inventories.iterdir()
            if entry.is_dir()
            and not entry.is_symlink()
            and _NAME.match(entry.name)
            and inventory_sources(entry)
        )

    def local_names(self) -> list[str]:
        """Return the names of the directories in `.lab/`, sorted; none if it may not be read."""
        with suppress(OSError):
            entries = (self.root / ".lab").iterdir()
            return sorted(each.name for each in entries if _NAME.match(each.name))
        return []

    def active(self) -> str | None:
        """Return the active lab's name, or None when no lab is active or the link dangles."""
        link = self.inventories / "active"
        if link.is_symlink() and link.is_dir():
            return link.resolve().name
        return None

    def activate(self, lab: str) -> None:
        """Point `inventory/active` at a lab, atomically.

        Raises:
            ConfigError: The lab has no inventory.
        """
        folder = self.inventory(lab)
        if not inventory_sources(folder):
            lack = "has no inventory file in it" if folder.is_dir() else "does not exist"
            raise ConfigError(
                f"no lab {lab!r}: {folder} {lack}",
                expected=f"one of {', '.join(self.labs()) or '(none yet)'}",
                do=f"labctl up --lab {lab}, or copy inventory/example to inventory/{lab} and edit it",
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
                do=f"labctl up, labctl use {'|'.join(self.labs()) or 'NAME'}, or --lab {LOOPBACK} for two "
                "processes on this machine",
            )
        return check_lab_name(name)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove directories that are empty, in the order given; the others stay."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _make(folder: Path, *, mode: int) -> list[Path]:
    """Make a directory and its parents; returns those made, each before its parent.

    Raises:
        ConfigError: One cannot be made; what was made before it is removed.
    """
    made: list[Path] = []
    for each in reversed((folder, *folder.parents)):
        try:
            if not each.is_dir():
                each.mkdir(mode=mode, exist_ok=True)
                made.insert(0, each)
        except OSError as error:
            remove_empty(made)
            raise _unusable(each, error) from error
    return made


def _unusable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{folder} cannot be written: {error.strerror}",
        expected="a directory in which labctl may make inventory/ and .lab/",
        do="cd to one, or set LABCTL_HOME to it",
    )
