"""What is known of a lab in a cloud between commands: its state, its variables, the files that follow from them.

Three places, so that the loss of one loses no machine: `.lab/<lab>/cloud/state.json` (wish, usage, last answer),
`inventory/<lab>/group_vars/all/cloud.yml` (the wish, the user's to edit), and the cloud itself, asked by label.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labctl.errors import ConfigError
from labctl.lab.home import Home, remove_empty
from labctl.providers import inventory, keys
from labctl.providers.cloud import usage
from labctl.providers.cloud.model import CLOUDS, Found, Resource
from labctl.providers.cloud.wish import Wish, known_values
from labctl.providers.identity import is_node_name, node_index
from labctl.runs import atomic
from labctl.runs.codec import decode, encode
from labctl.runs.lab_files import BASELINE_FILE, PHASES_FILE

FORMAT = 1
CLOUD_DIR = "cloud"
HOST_KEYS = "host_keys"
STATE_FILE = "state.json"
VARIABLES_FILE = "group_vars/all/cloud.yml"
_PROVIDER_LINE = re.compile(r"^lab_provider:\s*[\"']?(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class State:
    """A lab in a cloud, as it was known last.

    Attributes:
        wish: What it shall be.
        begun_unix_s: When `up` first went to the cloud for it.
        usage: Its machines over their lives, those that are gone too.
        found: The cloud's last answer.
        deadline_unix_s: When the last node powers itself off at the latest, as far as that is known.
        paused: `labctl stop` stopped its machines.
        forgotten: `down --force` gave it up while the cloud still had, or may have, something of it.
    """

    wish: Wish
    begun_unix_s: float
    usage: tuple[usage.Usage, ...] = ()
    found: Found | None = None
    deadline_unix_s: float | None = None
    paused: bool = False
    forgotten: bool = False

    def after(self, found: Found) -> State:
        """Return the state after another answer of the cloud."""
        return replace(self, found=found, usage=usage.observe(self.usage, found, self.wish))


class Books:
    """The files of one lab in a cloud.

    Args:
        home: Whose lab.
        lab: Its name.
    """

    def __init__(self, home: Home, lab: str) -> None:
        self._home = home
        self.lab = lab
        self.local = home.local_dir(lab)
        self.folder = self.local / CLOUD_DIR
        self.inventory = home.inventory(lab)
        self.variables_file = self.inventory / VARIABLES_FILE

    @property
    def state_file(self) -> Path:
        return self.folder / STATE_FILE

    @property
    def plays(self) -> Path:
        """The inventory that the cloud's playbooks run with."""
        return self.folder / inventory.HOSTS

    def answer(self, verb: str) -> Path:
        """Return the file of a playbook's answer."""
        return self.folder / f"{verb}.json"

    def make(self) -> None:
        """Make the lab's directory here, with mode 0700."""
        self._home.make_local_dir(self.lab)
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def state(self) -> State | None:
        """Return what is known; None without a file, or a damaged one: variables and cloud are asked then."""
        try:
            data: Any = json.loads(self.state_file.read_text(encoding="utf-8"))
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                return None
            return decode(State, data)
        except (OSError, ValueError, RecursionError):
            return None

    def save(self, state: State) -> State:
        """Keep what is known, whole or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        text = json.dumps({"format": FORMAT, **encode(state)}, indent=2, allow_nan=False) + "\n"
        try:
            self.make()
            atomic.write_text(self.state_file, text, mode=0o600)
        except OSError as error:
            raise ConfigError(
                f"{self.state_file} cannot be written: {error.strerror}",
                expected="a file that labctl may write: without it a machine could be lost track of",
                do="check the directory's owner, and that the disk has room",
            ) from error
        return state

    def values(self) -> dict[str, Any]:
        """Return what the lab's variables set of the wish; {} without a file.

        Raises:
            ConfigError: The file cannot be read, or a value cannot be.
        """
        return known_values(self._variables(), str(self.variables_file))

    def _variables(self) -> dict[str, Any]:
        """Return what YAML makes of the lab's variables.

        Raises:
            ConfigError: The file cannot be read.
        """
        import yaml

        try:
            data = yaml.safe_load(self.variables_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(
                f"{self.variables_file} cannot be read: {' '.join(str(error).split())}",
                expected="YAML, without vaulted values",
                do="correct it, then the same command again",
            ) from error
        if not isinstance(data, dict | None):
            raise ConfigError(
                f"{self.variables_file} is no list of variables",
                expected="variables as playbooks/cloud/README.md describes them",
                do="correct it, then the same command again",
            )
        return data or {}

    def is_edited(self) -> bool:
        """Return whether the user wrote or changed the lab's variables."""
        try:
            text = self.variables_file.read_text(errors="replace")
        except OSError:
            return False
        return not inventory.is_sealed(text, cloud=_sealed_by(text))

    def write_plays(self, wish: Wish) -> None:
        """Write the inventory of the cloud's playbooks: every variable with its final value, and no host.

        What else the user has set in the lab's variables goes with them.

        Raises:
            ConfigError: The lab's variables cannot be read.
        """
        import yaml

        values = {**self._variables(), **wish.variables(self.local)}
        self.make()
        body = yaml.safe_dump({"all": {"vars": values}}, sort_keys=False, width=10_000)
        keys.write_private(self.plays, body)

    def write_variables(self, wish: Wish) -> None:
        """Write the lab's variables unless they are the user's own."""
        import yaml

        if self.is_edited():
            return
        body = yaml.safe_dump(wish.variables(self.local), sort_keys=False, width=10_000)
        text = inventory.sealed(
            body, "edit it and labctl leaves it alone from then on", cloud=wish.provider
        )
        self.variables_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        atomic.write_text(self.variables_file, text)

    def publish(self, wish: Wish, found: Found) -> list[str]:
        """Write the inventory and the known host keys from the cloud's answer; returns notes for the user.

        An inventory of the user's own, such as a dynamic one, stays the only one.
        """
        there = usage.serving(found)
        self._write_known_hosts(there)
        notes: list[str] = []
        if not self.foreign():
            self.write_variables(wish)
            self.inventory.mkdir(mode=0o755, parents=True, exist_ok=True)
            text = self._hosts_text(wish, there)
            notes = inventory.write_hosts(self.inventory, text, cloud=wish.provider)
        self.give_to_owner()
        return notes

    def foreign(self) -> list[str]:
        """Return the inventory files of the lab that labctl did not write for it."""
        ours = _sealed_by(self.hosts_text())
        found = inventory.foreign(self.inventory)
        return [each for each in found if each != inventory.HOSTS or not ours]

    def hosts_text(self) -> str:
        """Return the lab's `hosts.yml`, "" without one."""
        try:
            return (self.inventory / inventory.HOSTS).read_text(errors="replace")
        except OSError:
            return ""

    def _hosts_text(self, wish: Wish, there: list[Resource]) -> str:
        import yaml

        hosts = {each.node: self._host(wish, each) for each in there if is_node_name(each.node)}
        client = {name: host for name, host in hosts.items() if node_index(name) == 0}
        workers = {name: host for name, host in hosts.items() if node_index(name) > 0}
        own = self._variables()
        missing = {
            variable: value
            for variable, value in wish.variables(self.local).items()
            if variable in _PROVISIONED and variable not in own
        }
        tree: dict[str, Any] = {
            "tf_cluster": {
                "children": {"tf_client": {"hosts": client}, "tf_workers": {"hosts": workers}}
            }
        }
        if missing:
            tree = {"all": {"vars": missing, "children": tree}}
        body: str = yaml.safe_dump(tree, sort_keys=False, width=10_000)
        return inventory.sealed(
            body,
            "labctl writes it anew, labctl down removes it: put your own in group_vars",
            cloud=wish.provider,
        )

    def _host(self, wish: Wish, machine: Resource) -> dict[str, Any]:
        return {
            "ansible_host": ssh_address(wish, machine),
            "ansible_user": wish.user,
            "ansible_ssh_private_key_file": str(self.local / keys.KEY),
            "ansible_ssh_common_args": inventory.ssh_arguments(self.local),
            "ansible_python_interpreter": "/usr/bin/python3",
            "tf_task_index": node_index(machine.node),
            "tf_data_address": machine.private_address,
        }

    def _write_known_hosts(self, there: list[Resource]) -> None:
        """Pin each machine's host key, made here before the machine was, to its addresses of now."""
        lines = []
        for each in there:
            addresses = [one for one in (each.private_address, each.public_address) if one]
            with suppress(OSError, ValueError):
                public = self.local / HOST_KEYS / f"{each.node}_ed25519.pub"
                kind, key, *_ = public.read_text().split()
                lines += [f"{','.join(addresses)} {kind} {key}\n"] if addresses else []
        if lines:
            keys.write_private(self.local / keys.KNOWN_HOSTS, "".join(lines))

    def give_to_owner(self) -> None:
        """Give the lab's files to the owner of the labs' root: with sudo, the user who will use them."""
        owner = self._home.root.stat()
        if os.geteuid() != 0 or owner.st_uid == 0:
            return
        for top in (self.local, self.inventory):
            for path in (top, *top.rglob("*")):
                if RUNS not in path.parts:
                    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
        for path in (self._home.inventories, self._home.root / ".lab"):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def drop_answers(self) -> None:
        """Remove what the playbooks of a lab that has not been begun left in its directory."""
        if self.state_file.exists() or not self.folder.is_dir():
            return
        for each in self.folder.iterdir():
            each.unlink()
        remove_empty([self.folder])

    def remove(self) -> list[Path]:
        """Remove what was made here for the lab; runs stay, and the user's own files, which are returned."""
        own: list[Path] = []
        if self.variables_file.is_file() and not self.is_edited():
            self.variables_file.unlink()
        if _sealed_by(self.hosts_text()):
            (self.inventory / inventory.HOSTS).unlink()
        folders = [self.variables_file.parent, self.variables_file.parent.parent, self.inventory]
        remove_empty(folders)
        if self.inventory.is_dir():
            own = sorted(path for path in self.inventory.rglob("*") if not path.is_dir())
        for name in (*keys.FILES, BASELINE_FILE, PHASES_FILE):
            (self.local / name).unlink(missing_ok=True)
        for folder in (self.local / HOST_KEYS, self.folder):
            if folder.is_dir() and not folder.is_symlink():
                for each in folder.iterdir():
                    each.unlink()
                folder.rmdir()
        self._home.deactivate(self.lab)
        remove_empty([self.local])
        return own


RUNS = "runs"
# What provisioning takes from the wish; it stands in hosts.yml only where the user's own variables lack it.
_PROVISIONED = (
    "lab_provider",
    "lab_admin_cidrs",
    "lab_max_hours",
    "lab_idle_minutes",
    "tensorflow_build",
)


def ssh_address(wish: Wish, machine: Resource) -> str:
    """Return the address that SSH goes to.

    Raises:
        ConfigError: The machine has none of the kind that was asked for.
    """
    address = machine.private_address if wish.ssh_by == "private" else machine.public_address
    if not address:
        raise ConfigError(
            f"{machine.node or machine.id} has no {wish.ssh_by} address ({machine.state})",
            expected="an address that SSH can go to",
            do=f"labctl up --lab {wish.lab} again when it runs"
            + (
                ", or --ssh-by private from inside of its network"
                if wish.ssh_by == "public"
                else ""
            ),
        )
    return address


def cloud_of(home: Home, lab: str) -> str | None:
    """Return the cloud that a lab's machines are, or may be, in; None if it is no lab of a cloud."""
    books = Books(home, lab)
    state = books.state()
    if state is not None:
        return state.wish.provider
    with suppress(OSError):
        match = _PROVIDER_LINE.search(books.variables_file.read_text(errors="replace"))
        if match and match[1] in CLOUDS:
            return match[1]
    return _sealed_by(books.hosts_text()) or None


def labs_of(home: Home, cloud: str | None = None) -> list[str]:
    """Return the names of all labs in clouds (in one of them), sorted."""
    names = {*home.labs(), *home.local_names()} - {"active", "example"}
    return sorted(
        name
        for name in names
        if (found := cloud_of(home, name)) is not None and cloud in {None, found}
    )


def lab_id(home: Home, lab: str) -> str:
    """Return the id of a lab of this home on this machine, 8 hex digits; the same again when all files are lost."""
    machine = socket.gethostname()
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip() or machine
    return hashlib.sha256(f"{machine}\0{home.root}\0{lab}".encode()).hexdigest()[:8]


def owner_name() -> str:
    """Return who the user is, as a label may say it."""
    name = os.environ.get("SUDO_USER") or ""
    if not name:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            name = f"uid-{os.getuid()}"
    return re.sub(r"[^a-z0-9_-]", "-", name.lower()).strip("-_")[:63] or "unknown"


def _sealed_by(text: str) -> str:
    """Return the cloud whose lab a text was written for, "" for none."""
    return next(
        (each for each in CLOUDS if inventory.is_sealed(text, unedited=False, cloud=each)), ""
    )
