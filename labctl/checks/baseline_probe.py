"""The probe of what a node can do: sent to it as text and run there by its own Python; labctl never imports it.

Standard library only, but for `compute`, which runs under the TensorFlow venv's interpreter. `main` prints one JSON
object; an alarm ends the whole, iperf3 included. Four requests: `look`, `serve` and `link` (the two ends of a
measurement of the network), `compute`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import time
from typing import Any

Facts = dict[str, Any]

DEADLINE_S = 10
CONNECT_S = 2.5
RETRY_S = 0.02
ECHOES = 100
ECHOES_S = 0.3


def output(argv: list[str]) -> str:
    """Return what a program writes on standard output, until its end or this process's."""

    async def read() -> bytes:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return (await process.communicate())[0]

    return asyncio.run(read()).decode("utf-8", "replace")


def look() -> Facts:
    """Return what a measurement needs to know of this node."""
    found = shutil.which("iperf3")
    version = ""
    if found:
        version = " ".join(output([found, "--version"]).split()[:2]) or "iperf3"
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:  # noqa: PTH123 starts faster
        boot_id = file.read().strip()
    return {
        "iperf3": version,
        "cpus": sorted(os.sched_getaffinity(0)),
        "boot_id": boot_id,
        "load_1min": os.getloadavg()[0],
    }


def listening(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, kind, protocol)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(where)
    server.listen(1)
    return server


def serve(request: Facts) -> None:
    """Return one peer's bytes to it, then become an iperf3 server for one test."""
    address, port = request["address"], request["port"]
    try:
        server = listening(address, port)
        server.settimeout(CONNECT_S)
        peer, _ = server.accept()
    except socket.timeout:  # noqa: UP041 Python 3.9 has two classes
        say({"error": f"nobody connected to port {port} within {CONNECT_S:g} s"})
        return
    except OSError as error:
        say({"error": f"port {port} of {address}: {error.strerror or error}"})
        return
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        data = peer.recv(64)
        if not data:
            break
        peer.sendall(data)
    peer.close()
    server.close()
    say({"error": None})
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    # The alarm stays set: it ends iperf3 too.
    argv = ["iperf3", "--server", "--one-off", "--bind", address, "--port", str(port)]
    os.execvp(argv[0], argv)  # noqa: S606 no shell is wanted


def connected(host: str, port: int) -> socket.socket:
    """Return a connection to the other end, which may still be starting."""
    give_up = time.monotonic() + CONNECT_S
    while True:
        left = give_up - time.monotonic()
        try:
            return socket.create_connection((host, port), timeout=max(0.1, left))
        except ConnectionRefusedError:
            if left < RETRY_S:
                raise
            time.sleep(RETRY_S)


def round_trip_s(host: str, port: int) -> float:
    """Return the median round trip of one byte over a TCP connection that stands."""
    with connected(host, port) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.settimeout(CONNECT_S)
        found: list[float] = []
        end = time.monotonic() + ECHOES_S
        while len(found) < ECHOES and (len(found) < 5 or time.monotonic() < end):
            sent = time.perf_counter()
            peer.sendall(b"x")
            if not peer.recv(1):
                raise ConnectionError("the other end closed the connection")
            found.append(time.perf_counter() - sent)
    return statistics.median(found)


def throughput(host: str, port: int, seconds: int) -> Facts:
    """Return iperf3's report on one stream to a server that may still be starting."""
    argv = ["iperf3", "--client", host, "--port", str(port), "--time", str(seconds), "--json"]
    give_up = time.monotonic() + CONNECT_S
    while True:
        report: Facts = json.loads(output([*argv, "--connect-timeout", "1000"]))
        problem = str(report.get("error") or "")
        if not problem:
            return report
        if "refused" not in problem or time.monotonic() > give_up:
            raise ConnectionError(problem)
        time.sleep(RETRY_S)


def link(request: Facts) -> Facts:
    """Measure the way to another node."""
    host, port = request["address"], request["port"]
    answer: Facts = {"rtt_s": None, "bits_per_s": None, "retransmits": None, "error": None}
    try:
        answer["rtt_s"] = round_trip_s(host, port)
        end = throughput(host, port, request["seconds"])["end"]
        answer["bits_per_s"] = end["sum_received"]["bits_per_second"]
        answer["retransmits"] = end["sum_sent"].get("retransmits")
    except OSError as error:
        answer["error"] = error.strerror or str(error) or type(error).__name__
    except (ValueError, KeyError) as error:
        answer["error"] = f"iperf3 gave no report ({type(error).__name__})"
    return answer


def compute(request: Facts) -> Facts:
    """Time numpy's float32 product of two random square matrices."""
    try:
        import numpy as np
    except ImportError as error:
        return {"error": str(error)}
    size = request["size"]
    a, b = np.random.default_rng(1).random((2, size, size), dtype=np.float32)
    out = np.empty_like(a)
    np.matmul(a, b, out=out)
    best, begun, done = float("inf"), time.perf_counter(), 0
    while done < request["repeats"] and (
        done < 3 or time.perf_counter() - begun < request["seconds"]
    ):
        start = time.perf_counter()
        np.matmul(a, b, out=out)
        best = min(best, time.perf_counter() - start)
        done += 1
    library = ""
    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        library = f"{blas['name']} {blas['version']}".strip()
    except (KeyError, TypeError):
        pass
    return {
        "error": None,
        "gflops": 2 * size**3 / best / 1e9,
        "threads": len(os.sched_getaffinity(0)),
        "library": library,
    }


def say(answer: Facts) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(message: Facts) -> None:
    """Print the answer to a message and end."""
    signal.alarm(DEADLINE_S)
    request = message["request"]
    if request["kind"] == "serve":
        serve(request)
    else:
        say(
            look()
            if request["kind"] == "look"
            else link(request)
            if request["kind"] == "link"
            else compute(request)
        )
