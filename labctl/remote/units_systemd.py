"""Units of systemd: transient ones, started by `sudo systemd-run`, and installed ones, watched and restarted."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from labctl.errors import DeadlineError, RemoteCommandError
from labctl.remote.units import (
    EXIT_FILE,
    UnitEnd,
    UnitSpec,
    UnitState,
    busy,
    read_end,
    still_alive,
)

if TYPE_CHECKING:
    from labctl.remote.base import Executor, Result

_QUICK_S = 30.0
_START_S = 60.0

_PROXIES = " ".join(
    name
    for lower in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy")
    for name in (lower, lower.upper())
)

# Devices stay open for the GPU, memory stays writable and executable for TF's JIT, and the clock is
# kept by the empty set of capabilities, because ProtectClock= would close the devices.
_SANDBOX = (
    "NoNewPrivileges=yes",
    "PrivateTmp=yes",
    "ProtectSystem=strict",
    "ProtectHome=read-only",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "CapabilityBoundingSet=",
)

_FINISH = (
    f"umask 027; part=.{EXIT_FILE}.part; "
    r"""printf '{"result": "%s", "exit_code": "%s", "exit_status": "%s", "ended_at_s": %s}\n' """
    r""""$SERVICE_RESULT" "$EXIT_CODE" "$EXIT_STATUS" "$(date +%s.%N)" > $part """
    f"&& mv -f $part {EXIT_FILE}"
)

_START_SCRIPT = """
unit=$1 directory=$2
shift 2
systemctl reset-failed "$unit" 2>/dev/null
rm -f -- "$directory/exit.json"
exec "$@"
"""

_FIELDS = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "Description",
    "MainPID",
    "InvocationID",
    "NRestarts",
    "ExecMainStartTimestamp",
)
_STATE_SCRIPT = (
    f'systemctl show --timestamp=us+utc --property={",".join(_FIELDS)} -- "$1" && '
    'printf "BootID=" && cat /proc/sys/kernel/random/boot_id'
)

_REASON_SCRIPT = """
journalctl --sync 2>/dev/null
exec journalctl --no-pager --quiet --lines=1 --output=cat "$@"
"""

# Prints the processes of a unit's control group, on cgroup v2 and v1.
_LEFT_SCRIPT = """
group=$(systemctl show --property=ControlGroup --value -- "$1")
[ -n "$group" ] || exit 0
for root in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    find "$root$group" -name cgroup.procs -exec cat {} + 2>/dev/null
done
exit 0
"""


class SystemdUnits:
    """Units of a node's system manager; starting and ending them takes sudo.

    Args:
        executor: The node.
    """

    kind: Literal["systemd", "process"] = "systemd"

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(self, spec: UnitSpec) -> UnitState:
        self._refuse_running(spec.name)
        user = spec.user or self._run("id", "-un").check(self._executor.name, "id -un").text
        words = ["sh", "-c", _START_SCRIPT, "sh", spec.name, spec.directory, *run_argv(spec, user)]
        done = self._executor.run(words, timeout_s=_START_S, sudo=True)
        if not done.ok and not self._ran(spec):
            said = done.stderr.decode("utf-8", "replace").strip()
            if "already" in said:
                raise busy(self._executor.name, spec.name, self.state(spec.name).description)
            raise RemoteCommandError(
                f"{spec.name} did not start on {self._executor.name}: "
                f"{self._reason(spec.name, self.state(spec.name).invocation_id) or said}",
                do=f"journalctl -u {spec.name} on {self._executor.name}",
            )
        return self.state(spec.name)

    def state(self, name: str) -> UnitState:
        shown = self._run("sh", "-c", _STATE_SCRIPT, "sh", name)
        return parse_state(shown.check(self._executor.name, f"systemctl show {name}").text)

    def end(self, directory: str) -> UnitEnd | None:
        return read_end(self._executor, directory)

    def stop(self, name: str, *, timeout_s: float) -> None:
        give_up = time.monotonic() + timeout_s
        try:
            done = self._executor.run(
                ["systemctl", "stop", "--", name], timeout_s=timeout_s, sudo=True
            )
        except DeadlineError as error:
            raise still_alive(self._executor.name, name, timeout_s) from error
        while self.state(name).running or self._run("sh", "-c", _LEFT_SCRIPT, "sh", name).text:
            if not done.ok:
                done.check(self._executor.name, f"systemctl stop {name}")
            if time.monotonic() >= give_up:
                raise still_alive(self._executor.name, name, timeout_s)
            time.sleep(0.1)

    def restart(self, name: str, *, timeout_s: float) -> None:
        script = 'systemctl reset-failed -- "$1" 2>/dev/null; exec systemctl restart -- "$1"'
        try:
            done = self._executor.run(
                ["sh", "-c", script, "sh", name], timeout_s=timeout_s, sudo=True
            )
            said = f"exit {done.returncode}"
        except DeadlineError:
            done, said = None, f"not ready after {timeout_s:g} s"
        if done is None or not done.ok:
            raise RemoteCommandError(
                f"{name} on {self._executor.name} did not restart ({said}): {self._reason(name)}",
                do=f"labctl logs, or journalctl -u {name} on {self._executor.name}",
            )

    def _ran(self, spec: UnitSpec) -> bool:
        """Say whether a unit whose start is said to have failed did run: one that fails at once is no other."""
        give_up = time.monotonic() + spec.stop_timeout_s + _QUICK_S
        while self.state(spec.name).active == "deactivating" and time.monotonic() < give_up:
            time.sleep(0.1)
        end = self.end(spec.directory)
        return end is not None and (end.exit_code != "exited" or not _before_exec(end.exit_status))

    def _refuse_running(self, name: str) -> None:
        found = self.state(name)
        if found.running:
            raise busy(self._executor.name, name, found.description)

    def _reason(self, name: str, invocation: str = "") -> str:
        """Return the last line that a unit's own processes wrote to the journal, "" if there is none."""
        argv = ["sh", "-c", _REASON_SCRIPT, "sh", f"_SYSTEMD_UNIT={name}"]
        if invocation:
            argv.append(f"_SYSTEMD_INVOCATION_ID={invocation}")
        return self._executor.run(argv, timeout_s=_QUICK_S, sudo=True).text

    def _run(self, *argv: str) -> Result:
        return self._executor.run(argv, timeout_s=_QUICK_S)


def run_argv(spec: UnitSpec, user: str) -> list[str]:
    """Return the `systemd-run` command of a unit; works with systemd 249 and newer.

    Args:
        spec: The unit.
        user: System user that it runs as.
    """
    finish = " ".join(_quoted(each) for each in ("/bin/sh", "-c", _FINISH.replace("$", "$$")))
    properties = (
        "Type=exec",
        f"User={user}",
        f"WorkingDirectory={spec.directory}",
        f"StandardOutput=append:{spec.directory}/stdout",
        f"StandardError=append:{spec.directory}/stderr",
        "UMask=0027",
        "KillMode=control-group",
        f"RuntimeMaxSec={spec.deadline_s:.3f}",
        f"TimeoutStopSec={spec.stop_timeout_s:.3f}",
        f"ExecStopPost={finish}",
        f"UnsetEnvironment={_PROXIES}",
        *([] if spec.environment_file is None else [f"EnvironmentFile=-{spec.environment_file}"]),
        *_SANDBOX,
        f"ReadWritePaths={spec.directory}",
        *(f"ReadWritePaths=-{each}" for each in spec.writable),
    )
    return [
        "systemd-run",
        f"--unit={spec.name}",
        f"--description={spec.description}",
        "--quiet",
        *(f"--property={each}" for each in properties),
        *(f"--setenv={key}={value}" for key, value in spec.env.items()),
        "--",
        *(each.replace("$", "$$") for each in spec.argv),
    ]


def _before_exec(status: str) -> bool:
    """Say whether an exit status is one with which systemd itself ends before the program runs."""
    return status.isdigit() and 200 <= int(status) <= 245


def _quoted(word: str) -> str:
    """Return a word as systemd's own command line syntax has it."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_state(text: str) -> UnitState:
    """Return what `systemctl show --timestamp=us+utc` and the boot id say of a unit."""
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    loaded = found["LoadState"] != "not-found"
    return UnitState(
        load=found["LoadState"],
        active=found["ActiveState"] if loaded else "inactive",
        sub=found["SubState"],
        result=found["Result"],
        description=found["Description"] if loaded else "",
        main_pid=int(found["MainPID"] or 0),
        invocation_id=found["InvocationID"],
        restarts=int(found["NRestarts"] or 0),
        started_at_s=_unix_s(found["ExecMainStartTimestamp"]),
        boot_id=found["BootID"],
    )


def _unix_s(stamp: str) -> float | None:
    """Return the Unix time of `Mon 2026-11-30 15:00:00.123456 UTC`, None of nothing or `n/a`."""
    words = stamp.split()
    if len(words) < 3:
        return None
    return datetime.fromisoformat(f"{words[1]} {words[2]}").replace(tzinfo=UTC).timestamp()
