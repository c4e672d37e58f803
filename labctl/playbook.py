"""Runs Ansible: asks it for the inventory, runs playbooks by ansible-runner and times their roles."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labctl.errors import ConfigError, InventoryError, UserInterruptError
from labctl.lab.home import Home
from labctl.lab.inventory import (
    GROUP,
    READ_VARS,
    ConnectionDefaults,
    cluster_hosts,
    lab_from_listing,
    loopback_lab,
    needs_rendering,
)
from labctl.lab.model import LOOPBACK, Lab

INVENTORY_TIMEOUT_S = 120.0
_WINDING_UP_S = 30.0  # between an interrupt, which Ansible obeys in order, and its end by force


@dataclass(frozen=True, slots=True)
class HostStats:
    """Counts of tasks on one host, as in Ansible's recap."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that failed, or a host that did not answer.

    Attributes:
        host: Where.
        task: The task's name.
        message: Ansible's message, one or more lines.
        unreachable: The host did not answer.
    """

    host: str
    task: str
    message: str
    unreachable: bool


@dataclass(frozen=True, slots=True)
class RoleTime:
    """A role's (or, for tasks outside roles, a play's) part of a playbook.

    Attributes:
        role: Its name.
        start_s: Seconds from the playbook's start to its first task.
        duration_s: Seconds that its tasks took.
    """

    role: str
    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class PlaybookOutcome:
    """How a playbook ended.

    Attributes:
        playbook: Its file name.
        rc: ansible-playbook's exit status.
        wall_s: Seconds on the monotonic clock.
        roles: In the order of their first task.
        stretches: The same in pieces: tasks of one role without a break, in the order of time; none overlap.
        hosts: Recap by host.
        failures: In the order of occurrence; rescued and ignored ones are not among them.
        log: File with Ansible's whole output, mode 0600.
        timed_out: It was ended at its deadline.
    """

    playbook: str
    rc: int
    wall_s: float
    roles: tuple[RoleTime, ...]
    stretches: tuple[RoleTime, ...]
    hosts: Mapping[str, HostStats]
    failures: tuple[TaskFailure, ...]
    log: Path
    timed_out: bool = False


def ansible_environment(home: Home) -> dict[str, str]:
    """Return the variables under which every Ansible program of labctl runs, beside the user's own."""
    content = home.content
    own_config = home.root / "ansible.cfg"
    variables = {
        "ANSIBLE_CONFIG": str(own_config if own_config.is_file() else content / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(content / "roles"),
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        ),
    }
    if "utf" not in (os.environ.get("LC_ALL") or os.environ.get("LANG") or "").lower():
        variables["LC_ALL"] = "C.UTF-8"  # ansible refuses to start without UTF-8
    return variables


def load_lab(home: Home, name: str) -> Lab:
    """Return a lab as Ansible sees its inventory, or the loopback lab on two free ports.

    Raises:
        ConfigError: There is no such lab.
        InventoryError: Ansible cannot parse it, or it does not describe a lab.
    """
    if name == LOOPBACK:
        return loopback_lab(home.local_dir(name), _free_ports(2))
    folder = home.inventory(name)
    if not folder.is_dir():
        raise ConfigError(
            f"no lab {name!r}: {folder} does not exist",
            expected=f"one of {', '.join(home.labs()) or '(none yet)'}",
            do=f"labctl up --lab {name}, or copy inventory/example to inventory/{name} and edit it",
        )
    listing = _list_inventory(home, folder)
    hostvars: dict[str, Any] = (listing.get("_meta") or {}).get("hostvars") or {}
    hosts = cluster_hosts(listing)
    if any(
        needs_rendering(hostvars.get(host, {}).get(each)) for host in hosts for each in READ_VARS
    ):
        for host, rendered in _render(home, folder, hosts).items():
            hostvars[host] = {**hostvars.get(host, {}), **rendered}
    return lab_from_listing(
        name,
        listing,
        inventory=folder,
        local_dir=home.local_dir(name),
        defaults=_connection_defaults(Path(ansible_environment(home)["ANSIBLE_CONFIG"])),
    )


def run_playbook(
    home: Home,
    lab: str,
    playbook: str,
    *,
    extra_args: Sequence[str] = (),
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    inventory: Path | None = None,
    timeout_s: float | None = None,
    hide: Sequence[str] = (),
) -> PlaybookOutcome:
    """Run one of the playbooks of the content for a lab.

    Args:
        home: Where things are.
        lab: The lab's name; its inventory is the only one used.
        playbook: Path below the content, e.g. `provision.yml`.
        extra_args: Further arguments of ansible-playbook.
        on_event: Called with each of ansible-runner's events.
        inventory: Another inventory than the lab's.
        timeout_s: Seconds until it is ended; None for no bound.
        hide: Texts, such as credentials, that neither log nor messages may show.

    Raises:
        ConfigError: There is no such playbook.
        UserInterruptError: The user interrupted it; it has ended.
    """
    import ansible_runner

    path = home.content / playbook
    if not path.is_file():
        raise ConfigError(f"no playbook {path}", do="reinstall labctl, or run it from a checkout")
    log_dir = home.make_local_dir(lab) / "logs"
    log_dir.mkdir(mode=0o700, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    log = log_dir / f"{path.stem}-{stamp}-{os.getpid()}.log"
    log.touch(mode=0o600)
    timeline = _Timeline()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="labctl-ansible-") as scratch,
        log.open("w", encoding="utf-8") as out,
        _interruptible(timeout_s) as interrupt,
    ):

        def handle(event: dict[str, Any]) -> bool:
            text = _without(hide, event.get("stdout") or "")
            if text:
                out.write(text + "\n")
            timeline.add(event, time.monotonic() - started)
            if on_event is not None:
                on_event(event)
            return False

        runner = ansible_runner.run(
            private_data_dir=scratch,
            playbook=str(path),
            inventory=str(inventory or home.inventory(lab)),
            cmdline=shlex.join(extra_args) or None,
            envvars=ansible_environment(home),
            event_handler=handle,
            status_handler=_drop_environment,
            cancel_callback=interrupt.is_overdue,
            quiet=True,
            settings={"suppress_env_files": True, "pexpect_timeout": 1},
        )
        wall_s = time.monotonic() - started
        rc = int(runner.rc if runner.rc is not None else 1)
    if interrupt.noted_s is not None:
        raise UserInterruptError(
            f"{path.name} was interrupted", do=f"see {log} for how far it came"
        )
    return PlaybookOutcome(
        playbook=path.name,
        rc=rc,
        wall_s=wall_s,
        roles=timeline.roles(wall_s),
        stretches=timeline.stretches(wall_s),
        hosts=timeline.hosts,
        failures=tuple(
            replace(each, message=_without(hide, each.message)) for each in timeline.failures
        ),
        log=log,
        timed_out=interrupt.is_late,
    )


def _without(hide: Sequence[str], text: str) -> str:
    for each in hide:
        text = text.replace(each, "********")
    return text


def _drop_environment(status: Mapping[str, Any], runner_config: Any) -> None:
    """Remove the file in which ansible-runner keeps the environment, which may hold credentials."""
    if status.get("status") == "running":
        Path(runner_config.artifact_dir, "command").unlink(missing_ok=True)


class _Interrupt:
    """An interrupt, or a deadline, that a playbook is given time to obey; Ansible's workers would outlive a kill.

    Args:
        timeout_s: Seconds from now to the deadline, None for none.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.noted_s: float | None = None
        self.is_late = False
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._told_s: float | None = None

    def note(self, *_: object) -> None:
        """Take a signal."""
        self.noted_s = self.noted_s or time.monotonic()

    def is_overdue(self) -> bool:
        """Pass an end that is wanted on to Ansible, once; return whether it has had its time."""
        now_s = time.monotonic()
        if self._told_s is not None:
            return now_s - self._told_s > _WINDING_UP_S
        self.is_late = self._deadline_s is not None and now_s > self._deadline_s
        if self.noted_s is not None or self.is_late:
            self._told_s = now_s
            with suppress(OSError):
                children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
                for pid in children.read_text().split():
                    os.kill(int(pid), signal.SIGINT)
        return False


@contextmanager
def _interruptible(timeout_s: float | None) -> Iterator[_Interrupt]:
    """Take SIGINT and SIGTERM over, where this is the main thread, and give them back."""
    interrupt = _Interrupt(timeout_s)
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {each: signal.signal(each, interrupt.note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@dataclass(slots=True)
class _Timeline:
    """Collects what ansible-runner's events say: when each task began, what failed, the recap."""

    starts: list[tuple[float, str]] = field(default_factory=list)
    failures: list[TaskFailure] = field(default_factory=list)
    hosts: dict[str, HostStats] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any], at_s: float) -> None:
        kind, data = event.get("event"), event.get("event_data") or {}
        if kind in {"playbook_on_task_start", "playbook_on_handler_task_start"}:
            self.starts.append((at_s, str(data.get("role") or data.get("play") or "tasks")))
        elif (
            kind == "runner_on_failed" and not data.get("ignore_errors")
        ) or kind == "runner_on_unreachable":
            result = data.get("res") or {}
            self.failures.append(
                TaskFailure(
                    host=str(data.get("host")),
                    task=str(data.get("task")),
                    message=_message(result),
                    unreachable=kind == "runner_on_unreachable",
                )
            )
        elif kind == "playbook_on_stats":
            names = {host for part in ("ok", "dark", "failures") for host in data.get(part) or {}}
            for host in sorted(names):
                self.hosts[host] = HostStats(
                    ok=_count(data, "ok", host),
                    changed=_count(data, "changed", host),
                    failed=_count(data, "failures", host),
                    unreachable=_count(data, "dark", host),
                    skipped=_count(data, "skipped", host),
                )

    def roles(self, end_s: float) -> tuple[RoleTime, ...]:
        first: dict[str, float] = {}
        total: dict[str, float] = {}
        ends = [*(at for at, _ in self.starts), end_s][1:]
        for (at, role), until in zip(self.starts, ends, strict=True):
            first.setdefault(role, at)
            total[role] = total.get(role, 0.0) + until - at
        return tuple(RoleTime(role, first[role], total[role]) for role in first)

    def stretches(self, end_s: float) -> tuple[RoleTime, ...]:
        begun = [
            (at, role)
            for number, (at, role) in enumerate(self.starts)
            if number == 0 or self.starts[number - 1][1] != role
        ]
        ends = [*(at for at, _ in begun), end_s][1:]
        return tuple(
            RoleTime(role, at, until - at) for (at, role), until in zip(begun, ends, strict=True)
        )


def _message(result: Mapping[str, Any]) -> str:
    parts = [str(result.get("msg") or "").strip()]
    parts.extend(
        str(item.get("msg") or "").strip()
        for item in result.get("results") or ()
        if isinstance(item, Mapping) and item.get("failed")
    )
    parts.append(str(result.get("stderr") or result.get("module_stderr") or "").strip())
    return "\n".join(dict.fromkeys(part for part in parts if part)) or "no message"


def _count(stats: Mapping[str, Any], part: str, host: str) -> int:
    return int((stats.get(part) or {}).get(host, 0))


def _list_inventory(home: Home, folder: Path) -> dict[str, Any]:
    done = _run_ansible(
        home,
        [
            "ansible-inventory",
            "--inventory",
            str(folder),
            "--playbook-dir",
            str(home.content / "playbooks"),
            "--list",
        ],
    )
    if done.returncode != 0:
        raise InventoryError(
            f"Ansible cannot read {folder}: {_last_error(done.stderr)}",
            expected="a directory of inventory files that all parse",
            do=f"ansible-inventory -i {folder} --list",
        )
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing


def _render(home: Home, folder: Path, hosts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the variables that labctl reads, rendered by Ansible itself, by host."""
    items = ", ".join(f"'{each}': {each} | default(none)" for each in READ_VARS)
    done = _run_ansible(
        home,
        [
            "ansible",
            GROUP,
            "--inventory",
            str(folder),
            "--playbook-dir",
            str(home.content / "playbooks"),
            "--module-name",
            "ansible.builtin.debug",
            "--args",
            json.dumps({"msg": "{{ {" + items + "} }}"}),
        ],
        {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "True"},
    )
    try:
        play = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]
        return {
            host: {k: v for k, v in play[host]["msg"].items() if v is not None} for host in hosts
        }
    except (ValueError, LookupError, AttributeError) as error:
        raise InventoryError(
            f"Ansible cannot render the variables of {folder}: {_last_error(done.stderr or done.stdout)}",
            expected="templates and vaulted values that Ansible can resolve without a prompt",
            do=f"ansible-inventory -i {folder} --list, and see which value is a template",
        ) from error


def _run_ansible(
    home: Home, argv: list[str], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **ansible_environment(home), **(variables or {})}
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=INVENTORY_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"{argv[0]} is not installed beside labctl",
            expected="the ansible package in labctl's own environment",
            do="pip install labctl again, or make setup in a checkout",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InventoryError(
            f"{argv[0]} did not end within {INVENTORY_TIMEOUT_S:.0f} s",
            do="run it by hand: a dynamic inventory may be waiting",
        ) from error


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [
        line.split("plugin: ", 1)[-1].removeprefix("YAML parsing failed: ")
        for line in lines
        if "'yaml' plugin: " in line or line.startswith("ERROR!")
    ]
    return (reasons or lines or ["no message"])[-1]


def _free_ports(count: int) -> tuple[int, ...]:
    """Return ports of 127.0.0.1 that nothing listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)
    finally:
        for each in sockets:
            each.close()


def _connection_defaults(config: Path) -> ConnectionDefaults:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(config, encoding="utf-8")
    except configparser.Error as error:
        raise ConfigError(f"{config} cannot be read: {error}".replace("\n", " ")) from error

    def setting(variable: str, option: str, section: str = "defaults") -> str | None:
        return os.environ.get(variable) or parser.get(section, option, fallback=None) or None

    return ConnectionDefaults(
        user=setting("ANSIBLE_REMOTE_USER", "remote_user"),
        port=setting("ANSIBLE_REMOTE_PORT", "remote_port"),
        key_file=setting("ANSIBLE_PRIVATE_KEY_FILE", "private_key_file"),
        common_args=setting("ANSIBLE_SSH_COMMON_ARGS", "ssh_common_args", "ssh_connection") or "",
    )
