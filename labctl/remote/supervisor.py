"""Starts, watches and ends one process unit; ProcessUnits runs this file's text with `python -c`.

Standard library only. One action as the argument, its parameters as JSON on standard input, its
answer as JSON on standard output. The supervisor of a unit is a detached process that keeps the
deadline, ends every descendant and writes `exit.json` as systemd would have it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

_CLEAN = {"HUP", "INT", "TERM", "PIPE"}  # systemd calls an end by these a success
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_FOREVER_S = 1e9


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a small file atomically."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(data))
    fresh.replace(path)


def stat_of(pid: int) -> tuple[str, int, int, int] | None:
    """Return a process's state, parent, session and start time in ticks; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3]), int(fields[19])


def alive(pid: int, started_ticks: int) -> bool:
    """Say whether that very process still runs."""
    found = stat_of(pid)
    return found is not None and found[0] not in "ZX" and found[3] == started_ticks


def processes() -> dict[int, tuple[str, int, int, int]]:
    """Return what `stat_of` says of every process that is no zombie."""
    numbers = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    found = {number: stat_of(number) for number in numbers}
    return {pid: stat for pid, stat in found.items() if stat is not None and stat[0] not in "ZX"}


def descendants(ancestor: int) -> list[int]:
    """Return every living process below one, near ones first."""
    table, found, layer = processes(), [], {ancestor}
    while layer:
        layer = {pid for pid, stat in table.items() if stat[1] in layer}
        found += sorted(layer)
    return found


def start(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fork a supervisor and return the unit's state as soon as its program runs."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / f"{spec['name']}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return {"busy": state(spec["name"], folder).get("description", "")}
    Path(spec["directory"], "exit.json").unlink(missing_ok=True)
    heard, said = os.pipe()
    if os.fork() == 0:
        os.close(heard)
        Supervisor(spec, folder, lock, said).run()
    os.close(said)
    with os.fdopen(heard, "rb") as pipe:
        failure = pipe.read().decode()
    return {"failed": failure} if failure else state(spec["name"], folder)


class Supervisor:
    """The detached half of `start`; never returns."""

    def __init__(self, spec: dict[str, Any], folder: Path, lock: int, said: int) -> None:
        self.spec, self.said, self.lock = spec, said, lock
        self.path = folder / f"{spec['name']}.json"
        self.ended: int | None = None
        self.timed_out = False

    def run(self) -> None:
        """Start the program, wait for its end, end what it left, write down how it went."""
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        pid = self._spawn()
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        stat, own = stat_of(pid), stat_of(os.getpid())
        record: dict[str, Any] = {
            "description": self.spec["description"],
            "boot_id": boot_id(),
            "invocation_id": uuid.uuid4().hex,
            "started_at_s": time.time(),
            "pid": pid,
            "ticks": stat[3] if stat else 0,
            "supervisor": os.getpid(),
            "supervisor_ticks": own[3] if own else 0,
        }
        write_json(self.path, record)
        os.close(self.said)
        self._watch(pid)
        end = self._end(self.ended)
        record["result"] = end["result"]
        write_json(Path(self.spec["directory"], "exit.json"), end)
        write_json(self.path, record)
        os._exit(0)

    def _spawn(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            os.chdir(self.spec["directory"])
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open("stdout", flags, 0o640), 1)
            os.dup2(os.open("stderr", flags, 0o640), 2)
            os.set_inheritable(self.lock, True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            argv = self.spec["argv"]
            os.execve(argv[0], argv, environment(self.spec["env"]))  # noqa: S606 its purpose
        except BaseException as error:  # noqa: BLE001 the other side of the pipe raises it
            os.write(self.said, str(error).encode())
        os._exit(203)

    def _watch(self, pid: int) -> None:
        """Wait until no descendant is left, keeping the deadline and the stop time-out."""
        now = time.monotonic()
        stop_at, kill_at = now + self.spec["deadline_s"], now + _FOREVER_S
        while True:
            now = time.monotonic()
            heard = signal.sigtimedwait(_WATCHED, max(0.0, min(stop_at, kill_at) - now))
            self._reap(pid)
            if not descendants(os.getpid()):
                return
            if heard is None and time.monotonic() >= kill_at:
                self.timed_out = True
                send(signal.SIGKILL)
                stop_at, kill_at = now + _FOREVER_S, now + 1.0
                continue
            late = heard is None and time.monotonic() >= stop_at
            told = heard is not None and heard.si_signo != signal.SIGCHLD
            over = self.ended is not None and stop_at < now + _FOREVER_S / 2
            if late or told or over:
                self.timed_out = self.timed_out or (late and self.ended is None)
                send(signal.SIGTERM)
                stop_at = now + _FOREVER_S
                kill_at = min(kill_at, now + self.spec["stop_timeout_s"])

    def _reap(self, pid: int) -> None:
        while True:
            try:
                done, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if done == 0:
                return
            if done == pid:
                self.ended = status

    def _end(self, status: int | None) -> dict[str, Any]:
        status = status or 0
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name.removeprefix("SIG")
            code = "dumped" if os.WCOREDUMP(status) else "killed"
            result = "core-dump" if code == "dumped" else "signal"
            result = "success" if name in _CLEAN else result
        else:
            name, code = str(os.WEXITSTATUS(status)), "exited"
            result = "success" if name == "0" else "exit-code"
        return {
            "result": "timeout" if self.timed_out else result,
            "exit_code": code,
            "exit_status": name,
            "ended_at_s": time.time(),
        }


def send(number: int) -> None:
    """Send a signal to every descendant."""
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Return this environment without proxies, plus the unit's own variables."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return {**kept, **extra}


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def state(name: str, folder: Path) -> dict[str, Any]:
    """Return what is known of a unit; a unit of an earlier boot is not known."""
    try:
        record: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    except FileNotFoundError:
        return {"boot_id": boot_id()}
    if record["boot_id"] != boot_id():
        return {"boot_id": boot_id()}
    keeper = alive(record["supervisor"], record["supervisor_ticks"])
    record["running"] = keeper or alive(record["pid"], record["ticks"])
    return record


def orphans(record: dict[str, Any]) -> list[int]:
    """Return what is left of a unit whose supervisor was killed: the rest of its session."""
    leader = record.get("pid")
    if leader is None or "result" in record:
        return []
    table = processes()
    if leader in table and table[leader][3] != record["ticks"]:
        return []  # the number belongs to another process by now
    return [pid for pid, stat in table.items() if stat[2] == leader]


def stop(name: str, folder: Path, timeout_s: float) -> dict[str, Any]:
    """Tell a unit's supervisor to end it and wait until nothing of it is left."""
    give_up = time.monotonic() + timeout_s
    told = False
    while True:
        record = state(name, folder)
        if not record.get("running"):
            left = orphans(record)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            if not left:
                return {"stopped": True}
        elif alive(record["supervisor"], record["supervisor_ticks"]):
            if not told:
                os.kill(record["supervisor"], signal.SIGTERM)
            told = True
        else:
            os.killpg(record["pid"], signal.SIGKILL)
        if time.monotonic() >= give_up:
            return {"stopped": False}
        time.sleep(0.02)


def main() -> None:
    """Do one action."""
    given = json.load(sys.stdin)
    folder = Path(given["folder"])
    if sys.argv[1] == "start":
        answer = start(given["spec"], folder)
    elif sys.argv[1] == "stop":
        answer = stop(given["name"], folder, given["timeout_s"])
    else:
        answer = state(given["name"], folder)
    print(json.dumps(answer))  # noqa: T201 the answer


if __name__ == "__main__":
    main()
