"""The probe of ports: sent to a node as text and run there by the system's Python; labctl never imports it.

Standard library only, Python 3.9 or newer. `main` prints one JSON object; an alarm ends the whole.
Three requests: `listen` opens the client's port for some seconds, `reach` tries the peers' ports, `close` ends
the listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any

Facts = dict[str, Any]

DEADLINE_S = 15
SETTINGS_FRAME = 4
# Stands in for the client's TF server while its port is probed: greets as gRPC does, ends by itself.
LISTENER_SCRIPT = """
import signal, socket, sys
signal.alarm(int(sys.argv[2]))
with open("/proc/self/comm", "w") as file:
    file.write("labctl-listen")
server = socket.socket(fileno=int(sys.argv[1]))
while True:
    try:
        peer, _ = server.accept()
        peer.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        peer.close()
    except OSError:
        pass
"""


async def lookup(host: str, port: int, timeout_s: float) -> tuple[list[str], str]:
    """Return getaddrinfo's addresses, or none and the text of its failure."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        return [], f"no answer within {timeout_s:g} s"
    try:
        return list(dict.fromkeys(str(info[4][0]) for info in task.result())), ""
    except (OSError, UnicodeError) as error:
        return [], getattr(error, "strerror", None) or str(error)


async def greeting(host: str, port: int, timeout_s: float) -> tuple[str, str]:
    """Connect, wait for the first frame of a gRPC server, and return a state and its detail."""
    begun = time.monotonic()
    writer: asyncio.StreamWriter | None = None
    connected = asyncio.ensure_future(asyncio.open_connection(host, port))
    try:
        await asyncio.wait({connected}, timeout=timeout_s)
        if not connected.done():
            return "timed out", "no connection"
        reader, writer = connected.result()
        frame = asyncio.ensure_future(reader.readexactly(9))
        await asyncio.wait({frame}, timeout=max(0.1, timeout_s - (time.monotonic() - begun)))
        if not frame.done():
            return "timed out", "connected, but no answer"
        head = frame.result()
        if head[3] != SETTINGS_FRAME or head[5:] != bytes(4):
            return "no gRPC server", "unknown greeting"
    except ConnectionRefusedError:
        return "refused", ""
    except asyncio.IncompleteReadError:
        return "no gRPC server", "closed the connection"
    except OSError as error:
        return "unreachable", error.strerror or str(error)
    finally:
        if writer is not None:
            writer.close()
    return "answers", ""


async def reach(host: str, port: int, timeout_s: float) -> Facts:
    """Resolve a peer and try its port; `ms` is the time from connecting to the answer."""
    begun = time.monotonic()
    addresses, problem = await lookup(host, port, timeout_s)
    if not addresses:
        return {"addresses": [], "state": "not resolvable", "ms": 0.0, "detail": problem}
    left = max(0.5, timeout_s - (time.monotonic() - begun))
    begun = time.monotonic()
    state, detail = await greeting(addresses[0], port, left)
    took = (time.monotonic() - begun) * 1e3
    return {"addresses": addresses, "state": state, "ms": took, "detail": detail}


async def reach_all(request: Facts) -> Facts:
    targets, timeout_s = request["targets"], request["timeout_s"]
    answers = await asyncio.gather(*(reach(host, port, timeout_s) for _, host, port in targets))
    return dict(zip((name for name, _, _ in targets), answers))  # noqa: B905 Python 3.9 has no strict=


def bound(port: int) -> socket.socket:
    """Return a socket that listens on all addresses, as TF's server does, beside other such listeners only."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(
            OSError
        ):  # a kernel may know IPv6 and still have none; IPv4 says what is wrong
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, reuse_port=True
            )
    return socket.create_server(("", port), reuse_port=True)


async def listen(request: Facts) -> Facts:
    """Open a port in a process of its own that ends after some seconds, whatever happens here."""
    try:
        server = bound(request["port"])
    except OSError as error:
        return {"pid": 0, "start": "", "error": os.strerror(error.errno or 0)}
    number = server.fileno()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", LISTENER_SCRIPT, str(number), str(request["seconds"])),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=(number,),
        start_new_session=True,
    )
    return {"pid": process.pid, "start": start_ticks(process.pid), "error": None}


def start_ticks(pid: int) -> str:
    """Return a process's start in clock ticks since boot, "" when it is gone or only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 starts faster
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def close(request: Facts) -> Facts:
    """End the listener, known by its pid and start, and say whether it is gone."""
    pid, start, end = request["pid"], request["start"], time.monotonic() + 2
    if start_ticks(pid) == start:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    while start_ticks(pid) == start and time.monotonic() < end:
        time.sleep(0.01)
    return {"closed": start_ticks(pid) != start}


async def answer(request: Facts) -> Facts:
    if request["kind"] == "listen":
        return await listen(request)
    return close(request) if request["kind"] == "close" else await reach_all(request)


def main(message: Facts) -> None:
    """Print the answer to a message and end."""
    signal.alarm(DEADLINE_S)
    text = json.dumps(asyncio.new_event_loop().run_until_complete(answer(message["request"])))
    print(text, flush=True)  # noqa: T201 the answer
    os._exit(0)  # a name server that does not answer must not hold up the end
