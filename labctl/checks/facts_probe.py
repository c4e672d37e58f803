"""The probe: sent to a node as text and run there by the system's Python; labctl never imports it.

Standard library only, Python 3.9 or newer. `main` prints one JSON object. Every part has a deadline of its own,
and an alarm ends the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import signal
import socket
import sys
import time
from typing import Any

Facts = dict[str, Any]

DEADLINE_S = 15
COMMAND_S = 6.0
PROXY_NAMES = {"http_proxy", "https_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy"}
UNIT_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,Description,MainPID,NRestarts,"
    "ExecMainStartTimestampMonotonic,StateChangeTimestampMonotonic"
)
PACKAGES_SCRIPT = """
import importlib.metadata as m, json, platform
found = {}
for name in ("tensorflow", "tensorflow-cpu", "numpy"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


async def command(
    argv: list[str], timeout_s: float = COMMAND_S, data: bytes = b""
) -> tuple[int | None, str, str]:
    """Run a command and return (exit status or None, stdout, stderr); never raises, always ends."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=dict(os.environ, LC_ALL="C", SYSTEMD_PAGER="", SYSTEMD_COLORS="0"),
        )
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    task = asyncio.ensure_future(process.communicate(data))
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        return None, "", f"no end within {timeout_s:g} s"
    out, err = (each.decode("utf-8", "replace") for each in task.result())
    return process.returncode, out, err


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def read(path: str, limit: int = 1 << 20) -> str | None:
    """Return a file's text, or None if it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 read-only, and faster to start than pathlib
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return None


# --- facts about the server, the client's unit and the firewall


async def unit_facts(names: list[str]) -> Facts:
    code, out, err = await command(
        ["systemctl", "show", "--no-pager", "--property=" + UNIT_PROPERTIES, *names]
    )
    if code != 0:
        return {"error": last_line(err) or f"systemctl ended with {code}", "units": {}}
    units: Facts = {}
    wall, mono = time.time(), time.monotonic()

    def moment(value: str | None) -> float | None:
        ticks = int(value) if value and value.isdigit() else 0
        return wall - mono + ticks / 1e6 if ticks else None

    for block in out.strip().split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        changed = moment(fields.get("StateChangeTimestampMonotonic"))
        units[fields.get("Id", "")] = {
            "load": fields.get("LoadState", ""),
            "active": fields.get("ActiveState", ""),
            "sub": fields.get("SubState", ""),
            "result": fields.get("Result", ""),
            "description": fields.get("Description", ""),
            "main_pid": int(fields.get("MainPID") or 0),
            "restarts": int(fields.get("NRestarts") or 0),
            "started_at_s": moment(fields.get("ExecMainStartTimestampMonotonic")),
            "since_s": None if changed is None else max(0.0, wall - changed),
        }
    return {"error": None, "units": units}


async def journal_lines(unit: str) -> list[str]:
    """Return the last lines that a unit's own processes wrote, oldest first."""
    _, out, _ = await command(
        ["journalctl", "--no-pager", "--quiet", "-n", "40", "-o", "cat", "_SYSTEMD_UNIT=" + unit]
    )
    return [line[:2000] for line in out.splitlines()[-40:]]


def proxies(pairs: list[str]) -> dict[str, str]:
    """Return the proxy variables of `NAME=value` texts; a password in one stays on the node."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.strip().partition("=")
        name = name.replace("export ", "").strip()
        if sign and name in PROXY_NAMES:
            found[name] = re.sub(r"//[^/@]*@", "//***@", value.strip("\"'"))[:500]
    return found


async def manager_environment() -> dict[str, str]:
    _, out, _ = await command(["systemctl", "show-environment"])
    return proxies(out.splitlines())


def listeners() -> list[tuple[int, str]]:
    """Return [(port, inode)] of all listening TCP sockets."""
    found: list[tuple[int, str]] = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read(table, 1 << 24) or "").splitlines()[1:]:
            parts = line.split()
            if len(parts) > 9 and parts[3] == "0A":
                found.append((int(parts[1].rsplit(":", 1)[1], 16), parts[9]))
    return found


def process_facts(pid: int) -> Facts:
    """Return pid, command and systemd unit of a process; pid 0 stands for one that may not be seen."""
    if pid == 0:
        return {"pid": 0, "command": "", "unit": ""}
    line = (read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    unit = ""
    for path in (read(f"/proc/{pid}/cgroup") or "").splitlines():
        last = path.rsplit("/", 1)[-1]
        if last.endswith((".service", ".scope")):
            unit = last
            break
    comm = (read(f"/proc/{pid}/comm") or "").strip()
    if comm == "labctl-listen":  # of ports_probe; its command line is a whole program
        line = comm
    return {"pid": pid, "command": (line or comm)[:300], "unit": unit}


def socket_owners(inodes: list[str]) -> dict[str, int]:
    """Return {inode: pid} for sockets whose owner may be seen."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[str, int] = {}
    for pid in os.listdir("/proc"):  # noqa: PTH208 one call for some hundred entries
        if not pid.isdigit():
            continue
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 the same
                link = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 the same
                if link in wanted:
                    owners.setdefault(wanted[link], int(pid))
        except OSError:
            continue
    return owners


def port_facts(port: int, server_pid: int) -> tuple[list[Facts], list[int]]:
    """Return who listens on the port, and on which ports the join server listens."""
    found = listeners()
    owners = socket_owners([inode for _, inode in found])
    holders = sorted({owners.get(inode, 0) for number, inode in found if number == port})
    served = sorted({number for number, inode in found if owners.get(inode) == server_pid})
    return [process_facts(pid) for pid in holders], served if server_pid else []


def server_facts(pid: int, ports: list[int]) -> Facts:
    environ = read(f"/proc/{pid}/environ")
    return {
        "argv": (read(f"/proc/{pid}/cmdline") or "").split("\0")[:-1],
        "proxies": None if environ is None else proxies(environ.split("\0")),
        "ports": ports,
    }


async def firewall_table() -> bool | None:
    """Return whether the lab's nftables table is loaded, None if it cannot be known."""
    if os.geteuid() != 0:
        return None
    code, _, _ = await command(["nft", "list", "table", "inet", "lab_firewall"])
    return {0: True, 1: False}.get(-1 if code is None else code)


# --- facts about the machine


def own_addresses() -> list[str]:
    """Return every address of this machine's interfaces."""
    found: set[str] = set()
    last = ""
    for line in (read("/proc/net/fib_trie") or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] in ("|--", "+--"):
            last = words[1]
        elif words[:2] == ["/32", "host"] and words[2:] == ["LOCAL"]:
            found.add(last)
    for line in (read("/proc/net/if_inet6") or "").splitlines():
        found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return sorted(found)


async def venv_facts(python: str) -> Facts:
    code, out, err = await command([python, "-I", "-c", PACKAGES_SCRIPT])
    facts: Facts = {"error": None, "python": "", "packages": {}}
    try:
        facts.update(json.loads(out))
    except ValueError:
        facts["error"] = last_line(err) or f"{python} ended with {code}"
    return facts


async def gpu_facts(message: Facts, server_pid: int) -> Facts:
    """Return what the part of this probe that is about GPUs finds out."""
    space: Facts = {"__name__": "labctl_probe_gpu"}
    exec(compile(message["parts"]["gpu_facts_probe"], "labctl_probe_gpu", "exec"), space)  # noqa: S102 labctl's own
    found: Facts = await space["gpu_facts"](message["request"], command, process_facts, server_pid)
    return found


def disk_facts(paths: list[str]) -> list[Facts]:
    found: list[Facts] = []
    for path in paths:
        where = path
        while not os.path.isdir(where):  # noqa: PTH112 pathlib is not worth its start here
            where = os.path.dirname(where)  # noqa: PTH120 the same
        try:
            state = os.statvfs(where)
        except OSError:
            continue
        found.append(
            {
                "path": path,
                "free_bytes": state.f_bavail * state.f_frsize,
                "free_inodes": state.f_favail if state.f_files else None,
            }
        )
    return found


def cpu_facts() -> Facts:
    match = re.search(r"^flags\s*:(.*)$", read("/proc/cpuinfo") or "", re.MULTILINE)
    flags = set(match.group(1).split()) if match else set()
    return {
        "machine": os.uname().machine,
        "flags": sorted(flags & {"avx", "avx2", "fma", "avx512f"}),
    }


def run_facts(folder: str) -> list[Facts]:
    """Return the newest run directories and whether each has an end."""
    found: list[Facts] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    ended = os.path.exists(entry.path + "/exit.json")  # noqa: PTH110 as above
                    found.append({"name": entry.name, "age_s": age, "ended": ended})
    return sorted(found, key=lambda each: each["age_s"])[:200]


def stray_facts(user: str, unit: str) -> list[Facts]:
    """Return the processes of the client's user that are not part of its unit."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return []
    found: list[Facts] = []
    for pid in os.listdir("/proc"):  # noqa: PTH208 as above
        with contextlib.suppress(OSError, ValueError):
            if pid.isdigit() and os.stat("/proc/" + pid).st_uid == uid:  # noqa: PTH116 as above
                facts = process_facts(int(pid))
                if facts["unit"] != unit:
                    found.append(facts)
    return found[:20]


def spec_facts(path: str) -> Facts:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 as above
            text = file.read(1 << 16).decode("utf-8", "replace")
            stat = os.fstat(file.fileno())
            # A copy may keep an old mtime; that it was put there is in its ctime.
            changed_s = max(stat.st_mtime, stat.st_ctime)
            return {"text": text, "mtime_s": changed_s, "error": None}
    except OSError as error:
        return {"text": None, "mtime_s": None, "error": error.strerror}


# --- the request


async def collect_facts(message: Facts) -> Facts:
    """Return all that is asked of one node, most of it looked up at once."""
    request = message["request"]
    names = request["units"]
    units, manager, table, venv = await asyncio.gather(
        unit_facts(names) if names else nothing({"error": None, "units": {}}),
        manager_environment() if names else nothing({}),
        firewall_table() if names else nothing(None),
        venv_facts(request["python"]),
    )
    server = units["units"].get(request["server_unit"], {})
    pid = server.get("main_pid", 0)
    holders, served = port_facts(request["port"], pid)
    journal = []
    if server.get("load") == "loaded" and server.get("active") != "active":
        journal = await journal_lines(request["server_unit"])
    etc = read("/etc/environment") or ""
    return {
        "root": os.geteuid() == 0,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "units": units["units"],
        "units_error": units["error"],
        "journal": journal,
        "server": server_facts(pid, served) if pid else None,
        "manager_proxies": manager,
        "login_proxies": proxies(etc.splitlines()),
        "firewall_table": table,
        "spec": spec_facts(request["spec"]),
        "venv": venv,
        "addresses": own_addresses(),
        "disk": disk_facts(request["disk"]),
        "cpu": cpu_facts(),
        "holders": holders,
        "runs": run_facts(request["runs"]),
        "strays": stray_facts(request["client_user"], request["client_unit"]),
        "gpu": await gpu_facts(message, pid) if request["gpu"] else None,
    }


async def nothing(value: Any) -> Any:
    return value


def login_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


async def answer(message: Facts) -> Facts:
    """Answer a message of `collect`: the request itself, and what it takes to start the probe again as root."""
    request = message["request"]
    user = login_name()
    error = None
    if request["sudo"] and os.geteuid() != 0:
        code, _, err = await command(["sudo", "-n", "true"])
        if code == 0:
            inner = json.dumps(dict(message, request=dict(request, sudo=False))).encode()
            argv = ["sudo", "-n", "--", sys.executable, "-I", "-c", message["boot"]]
            _, out, err = await command(argv, deadline_s(request) - 1, inner)
            with contextlib.suppress(ValueError):
                return dict(json.loads(out), sudo_error=None, user=user)
        error = last_line(err) or "sudo -n did not work"
    return dict(await collect_facts(message), sudo_error=error, user=user)


def deadline_s(request: Facts) -> int:
    return int(request.get("deadline_s", DEADLINE_S))


def main(message: Facts) -> None:
    """Print the answer to a message and end."""
    signal.alarm(deadline_s(message["request"]))
    text = json.dumps(asyncio.new_event_loop().run_until_complete(answer(message)))
    print(text, flush=True)  # noqa: T201 the answer
    os._exit(0)  # a name server that does not answer must not hold up the end
