"""The part of the facts probe that is about GPUs: sent beside it as text, and only where GPUs are asked for.

Standard library only, Python 3.9 or newer. Looking at a GPU wakes its driver, so what must be seen before is read
first: the state of the persistence daemon, then a timed `nvidia-smi`. Then the device nodes are held open, so that
the driver lets no device go, for a second timed one and for all else.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import glob
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Facts = dict[str, Any]
Command = Callable[..., Awaitable[Any]]  # as of facts_probe

SMI_S = 45.0  # a driver that wakes eight GPUs with ECC memory takes tens of seconds
OTHER_S = 10.0
# Fields of `nvidia-smi --query-gpu`, each with what older drivers call it; "" where they have nothing like it.
FIELDS = {
    "index": "",
    "name": "",
    "uuid": "",
    "driver_version": "",
    "compute_cap": "",
    "memory.total": "",
    "memory.used": "",
    "memory.free": "",
    "persistence_mode": "",
    "clocks.sm": "",
    "clocks.max.sm": "",
    "power.limit": "",
    "temperature.gpu": "",
    "clocks_event_reasons.active": "clocks_throttle_reasons.active",
}
UNTRIED: Facts = {"denied": {}, "hidden": [], "cuda": "", "init": None, "count": None}
NO_USER = "the node does not have the user who runs TensorFlow"
MODULES = {"nvidia", "nvidia_uvm", "nouveau", "nova_core", "nova_drm"}
UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')

# Runs as the user who runs TensorFlow.
ACCESS_SCRIPT = r"""
import ctypes, json, os, sys
denied = {}
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        denied[path] = error.strerror
cuda, init, count = "", None, None
try:
    library, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value > 0:
        cuda = "%d.%d" % (number.value // 1000, number.value % 1000 // 10)
    init = library.cuInit(0)
    if init == 0 and library.cuDeviceGetCount(ctypes.byref(number)) == 0:
        count = number.value
except (OSError, AttributeError):
    pass
print(json.dumps({"denied": denied, "cuda": cuda, "init": init, "count": count}))
"""
# Runs under TensorFlow's interpreter; finds the package without importing it.
WHEEL_SCRIPT = r"""
import ast, importlib.util, json, os
def literal(call):
    value = ast.literal_eval(call.args[0] if isinstance(call, ast.Call) else call)
    return dict(value)
spec = importlib.util.find_spec("tensorflow")
told = {"error": "TensorFlow is not installed", "build": {}}
if spec is not None and spec.submodule_search_locations:
    path = os.path.join(list(spec.submodule_search_locations)[0], "python/platform/build_info.py")
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "build_info":
                told = {"error": None, "build": literal(node.value)}
                break
        else:
            told["error"] = path + " states no build_info"
    except (OSError, SyntaxError, ValueError, TypeError, IndexError) as error:
        told["error"] = "%s: %s" % (path, error)
print(json.dumps(told, default=str))
"""


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 read-only, and quick to start
            return file.read(1 << 16)
    except OSError:
        return ""


def one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def table(text: str) -> list[list[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if row]


async def ask_smi(command: Command, dev: str, held: list[int]) -> tuple[Facts, list[Facts]]:
    """Return how `nvidia-smi` answered, timed twice, and its GPUs by field name; adds open device nodes to `held`.

    A field that this driver does not know is asked for by its older name, then left out.
    """
    asked = list(FIELDS)
    named = {field: field for field in FIELDS}
    first_s: float | None = None
    while True:
        argv = ["nvidia-smi", "--query-gpu=" + ",".join(named[field] for field in asked)]
        begun = time.monotonic()
        code, out, err = await command([*argv, "--format=csv,noheader,nounits"], SMI_S)
        took = time.monotonic() - begun
        if code is not None:  # whichever of the calls woke the driver was the longest
            first_s = took if first_s is None else max(first_s, took)
        unknown = UNKNOWN_FIELD.search(out + err) if code else None
        field = next((each for each in asked if unknown and named[each] == unknown.group(1)), None)
        if field is None:
            break
        if FIELDS[field] and named[field] == field:
            named[field] = FIELDS[field]
        else:
            asked.remove(field)
    told = {"code": code, "said": one_line(out or err), "first_s": first_s, "second_s": None}
    if code != 0:
        return told, []
    held += keep_awake(dev)
    begun = time.monotonic()
    again, _, _ = await command([*argv, "--format=csv,noheader,nounits"], SMI_S)
    told.update(said="", second_s=time.monotonic() - begun if again == 0 else None)
    rows = [row for row in table(out) if len(row) == len(asked)]
    return told, [dict(zip(asked, row)) for row in rows]  # noqa: B905 Python 3.9 has no strict


async def apps(command: Command, process_facts: Callable[[int], Facts]) -> list[Facts]:
    """Return the processes with memory on a GPU."""
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    code, out, _ = await command(["nvidia-smi", query, "--format=csv,noheader,nounits"], SMI_S)
    found: list[Facts] = []
    for row in table(out) if code == 0 else []:
        if len(row) == 4 and row[1].isdigit():
            facts = process_facts(int(row[1]))
            mine = {"uuid": row[0], "memory_mib": row[3], "command": facts["command"] or row[2]}
            found.append({**facts, **mine})
    return found[:100]


async def persistenced(command: Command) -> str:
    code, out, _ = await command(
        ["systemctl", "show", "--property=LoadState,ActiveState", "nvidia-persistenced.service"]
    )
    fields = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    loaded = code == 0 and fields.get("LoadState") == "loaded"
    return fields.get("ActiveState", "") if loaded else ""


async def on_bus(command: Command) -> list[str]:
    """Return NVIDIA's display devices on the PCI bus, from lspci or the kernel itself."""
    code, out, _ = await command(["lspci", "-D", "-nn", "-d", "10de:"], OTHER_S)
    if code == 0:
        shown = [line.strip() for line in out.splitlines()]
        return [line for line in shown if re.search(r"\[03[0-9a-f]{2}\]", line)][:32]
    found: list[str] = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")):  # noqa: PTH207 names only
        vendor, kind = (text_of(folder + name).strip() for name in ("/vendor", "/class"))
        if vendor == "0x10de" and kind.startswith("0x03"):
            device = text_of(folder + "/device").strip().replace("0x", "")
            found.append(f"{folder.rsplit('/', 1)[-1]} [10de:{device}]")
    return found[:32]


async def modules(command: Command) -> list[str]:
    code, out, _ = await command(["lsmod"], OTHER_S)
    listed = out if code == 0 else text_of("/proc/modules")
    names = {line.split()[0] for line in listed.splitlines() if line.split()}
    return sorted(names & MODULES)


async def secure_boot(command: Command) -> bool | None:
    code, out, _ = await command(["mokutil", "--sb-state"], OTHER_S)
    found = re.search(r"SecureBoot (enabled|disabled)", out) if code == 0 else None
    return None if found is None else found.group(1) == "enabled"


def loaded_version() -> str:
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text_of("/proc/driver/nvidia/version"))
    return found.group(1) if found else ""


def device_nodes(dev: str) -> list[str]:
    return sorted(name for name in os.listdir(dev) if re.match(r"nvidia(\d+|ctl|-uvm)$", name))  # noqa: PTH208 names


def keep_awake(dev: str) -> list[int]:
    """Open the devices, as the persistence daemon does: their driver lets none go before they are closed."""
    held: list[int] = []
    for name in device_nodes(dev):
        if name[6:].isdigit():
            with contextlib.suppress(OSError):
                held.append(os.open(f"{dev}/{name}", os.O_RDWR | os.O_CLOEXEC))
    return held


def environment(path: str) -> dict[str, str]:
    """Return the `NAME=value` lines of the environment that servers, clients and checks share."""
    pairs = (line.partition("=") for line in text_of(path).splitlines() if line[:1].isalpha())
    return {name.strip(): value.strip().strip("\"'") for name, sign, value in pairs if sign}


def identity(user: str, server_pid: int) -> Facts:
    """Return what makes a child process run as a user: that of the running server, else the user's own.

    Empty where this process is not root, or the user is its own: then nothing can or need be changed.
    """
    if os.geteuid() != 0 or not user:
        return {}
    status = text_of(f"/proc/{server_pid}/status") if server_pid else ""
    ids = {
        name: rest.split()
        for name, _, rest in (line.partition(":") for line in status.splitlines())
    }
    if ids.get("Uid") and ids.get("Gid"):
        groups = [int(each) for each in ids.get("Groups", [])]
        return {"user": int(ids["Uid"][0]), "group": int(ids["Gid"][0]), "extra_groups": groups}
    entry = pwd.getpwnam(user)
    return {
        "user": entry.pw_uid,
        "group": entry.pw_gid,
        "extra_groups": os.getgrouplist(user, entry.pw_gid),
    }


async def as_user(
    argv: list[str], who: Facts, extra: dict[str, str], timeout_s: float
) -> tuple[int | None, str, str]:
    """Run a command as another user with the shared environment; never raises, always ends."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={**clean, **extra, "LC_ALL": "C"},
            **who,
        )
    except (OSError, ValueError) as error:
        return None, "", str(error)
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except asyncio.TimeoutError:  # noqa: UP041 Python 3.9 has two classes
        with contextlib.suppress(OSError):
            process.kill()
        return None, "", f"no end within {timeout_s:g} s"
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


async def access(who: Facts, paths: list[str], server_pid: int, shared: dict[str, str]) -> Facts:
    """Try the device nodes and the driver's library as the user who runs TensorFlow."""
    code, out, err = await as_user(
        [sys.executable, "-I", "-c", ACCESS_SCRIPT, *paths], who, shared, OTHER_S
    )
    view = f"/proc/{server_pid}/root"
    hidden: list[str] = []
    if server_pid and os.path.isdir(view + "/dev"):  # noqa: PTH112 pathlib is not worth its start here
        hidden = [path for path in paths if not os.path.exists(view + path)]  # noqa: PTH110 the same
    told: Facts = {"hidden": hidden, "error": None}
    try:
        told.update(json.loads(out))
    except ValueError:
        told["error"] = one_line(err)[-300:] or f"the try ended with {code}"
    return told


def cache(path: str, limit: str) -> Facts:
    """Return files and bytes of a kernel cache; a directory that is not there yet holds nothing."""
    files = size = 0
    problems: list[OSError] = []
    for folder, _, names in os.walk(path, onerror=problems.append):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(f"{folder}/{name}").st_size
                files += 1
    unread = any(not isinstance(each, FileNotFoundError) for each in problems)
    return {
        "path": path,
        "files": None if unread or not path else files,
        "bytes": None if unread or not path else size,
        "max_bytes": int(limit) if limit.isdigit() else None,
    }


async def libraries(python: str, source: str, who: Facts, shared: dict[str, str]) -> Facts:
    """Open each library by the list of the role that installs them, as TensorFlow's user."""
    if not source:
        return {"tried": None, "error": "the list of libraries is not at hand"}
    code, out, err = await as_user([python, "-I", "-c", source, "--json"], who, shared, 2 * OTHER_S)
    try:
        tried = json.loads(out)
    except ValueError:
        return {"tried": None, "error": one_line(err)[-300:] or f"the try ended with {code}"}
    return {"tried": tried, "error": ""}


async def wheel(python: str) -> Facts:
    """Return the build info of TensorFlow under an interpreter."""
    code, out, err = await as_user([python, "-I", "-c", WHEEL_SCRIPT], {}, {}, OTHER_S)
    try:
        told: Facts = json.loads(out)
    except ValueError:
        return {"error": one_line(err)[-300:] or f"{python} ended with {code}", "build": {}}
    return told


async def gpu_facts(
    request: Facts, command: Command, process_facts: Callable[[int], Facts], server_pid: int
) -> Facts:
    """Return all about GPUs that is asked of one node, in the order in which it may be looked at."""
    held: list[int] = []
    try:
        return await _gpu_facts(request, command, process_facts, server_pid, held)
    finally:
        for each in held:
            os.close(each)


async def _gpu_facts(
    request: Facts,
    command: Command,
    process_facts: Callable[[int], Facts],
    server_pid: int,
    held: list[int],
) -> Facts:
    dev = request["gpu_dev"]
    daemon = await persistenced(command)
    smi, devices = await ask_smi(command, dev, held)
    user, server_pid = request["gpu_user"], server_pid if request["gpu_server"] else 0
    try:
        who = identity(user, server_pid)
        home = pwd.getpwuid(who["user"] if who else os.geteuid()).pw_dir
        told_user = user or pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        who, home, told_user = {}, "", ""
    shared = environment(request["gpu_environment"])
    python, names = request["python"], device_nodes(dev)
    place = shared.get("CUDA_CACHE_PATH") or (home + "/.nv/ComputeCache" if home else "")
    unknown = user and not told_user
    paths = [f"{dev}/{each}" for each in names]
    bus, loaded, signed, build = await asyncio.gather(
        on_bus(command), modules(command), secure_boot(command), wheel(python)
    )
    why_not = NO_USER if unknown else "" if devices else "the driver does not answer"
    holders, tried, opened = await asyncio.gather(
        apps(command, process_facts)
        if devices
        else given([]),  # a driver that hangs would do so again
        given({"error": why_not}) if why_not else access(who, paths, server_pid, shared),
        given({"error": NO_USER})
        if unknown
        else libraries(python, request["gpu_libraries"], who, shared),
    )
    return {
        "persistenced": daemon,
        "smi": smi,
        "devices": devices,
        "apps": holders,
        "on_bus": bus,
        "modules": loaded,
        "secure_boot": signed,
        "loaded_version": loaded_version(),
        "dev_nodes": names,
        "access": {**UNTRIED, "user": told_user, **tried},
        "wheel": build,
        "cache": cache(place, shared.get("CUDA_CACHE_MAXSIZE", "")),
        "libraries": {"tried": None, **opened},
    }


async def given(value: Any) -> Any:
    return value
