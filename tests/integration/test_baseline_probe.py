"""The probe of what a node can do, with real sockets, iperf3 and numpy on this machine."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.collect import probe
from labctl.checks.parse import compute_facts, link_facts, means_facts, serve_error
from labctl.checks.reader import FactsError
from labctl.drive.baseline import measure
from labctl.drive.links import Links, RealOpener
from labctl.drive.timing import SystemClock
from labctl.lab.inventory import loopback_lab
from labctl.remote.local import LocalExecutor

HERE = "127.0.0.1"
needs_iperf3 = pytest.mark.skipif(
    shutil.which("iperf3") is None, reason="iperf3 is not installed (make host-packages)"
)


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind((HERE, 0))
        return int(one.getsockname()[1])


@pytest.fixture
def executors() -> Iterator[tuple[LocalExecutor, LocalExecutor]]:
    both = LocalExecutor("near"), LocalExecutor("far")
    yield both
    for each in both:
        each.close()


def ask(executor: LocalExecutor, kind: str, **more: Any) -> object:
    return probe(executor, "baseline_probe", {"kind": kind, **more}, python=sys.executable)


def is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HERE, port))
        except OSError:
            return False
    return True


@needs_iperf3
def test_a_link_is_measured_between_two_processes(
    executors: tuple[LocalExecutor, LocalExecutor], port: int
) -> None:
    near, far = executors
    ends = {"address": HERE, "port": port, "seconds": 1}
    with ThreadPoolExecutor() as pool:
        served = pool.submit(ask, far, "serve", **ends)
        found = link_facts(ask(near, "link", **ends))
        assert serve_error(served.result()) is None
    assert found.error is None
    assert found.bits_per_s is not None
    assert found.bits_per_s > 1e7
    assert found.rtt_s is not None
    assert 0 < found.rtt_s < 1
    assert is_free(port)


def test_a_far_end_that_is_not_there_is_said(
    executors: tuple[LocalExecutor, LocalExecutor], port: int
) -> None:
    near, _ = executors
    found = link_facts(ask(near, "link", address=HERE, port=port, seconds=1))
    assert (found.error, found.bits_per_s, found.rtt_s) == ("Connection refused", None, None)


def test_a_far_end_that_nobody_comes_to_ends_by_itself(
    executors: tuple[LocalExecutor, LocalExecutor], port: int
) -> None:
    _, far = executors
    error = serve_error(ask(far, "serve", address=HERE, port=port, seconds=1))
    assert error is not None
    assert "nobody connected" in error
    assert is_free(port)


def test_a_port_that_is_taken_is_said(
    executors: tuple[LocalExecutor, LocalExecutor], port: int
) -> None:
    _, far = executors
    with socket.create_server((HERE, port)):
        error = serve_error(ask(far, "serve", address=HERE, port=port, seconds=1))
    assert error is not None
    assert "Address already in use" in error


@needs_iperf3
def test_a_far_end_whose_peer_goes_away_is_ended_by_its_alarm(
    executors: tuple[LocalExecutor, LocalExecutor],
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, far = executors
    from labctl.checks import collect

    source = Path(collect.__file__).with_name("baseline_probe.py").read_text()
    hasty = source.replace("DEADLINE_S = 10", "DEADLINE_S = 2")
    assert hasty != source
    (tmp_path / "baseline_probe.py").write_text(hasty)
    monkeypatch.setattr(collect, "__file__", str(tmp_path / "collect.py"))
    with ThreadPoolExecutor() as pool:
        served = pool.submit(ask, far, "serve", address=HERE, port=port, seconds=1)
        give_up = time.monotonic() + 10
        while True:
            try:
                with socket.create_connection((HERE, port)) as peer:
                    peer.sendall(b"x")
                    assert peer.recv(1) == b"x"
                break
            except ConnectionRefusedError:
                assert time.monotonic() < give_up
                time.sleep(0.02)
        with pytest.raises(FactsError, match="signal 14"):
            served.result()
    assert is_free(port)


def test_a_node_says_what_it_has(executors: tuple[LocalExecutor, LocalExecutor]) -> None:
    found = means_facts(ask(executors[0], "look"))
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.cpus
    assert found.iperf3.startswith("iperf 3.") == (shutil.which("iperf3") is not None)


def test_a_product_is_timed(executors: tuple[LocalExecutor, LocalExecutor]) -> None:
    found = compute_facts(ask(executors[0], "compute", size=200, repeats=3, seconds=0.1))
    assert found.gflops > 0.01
    assert found.threads >= 1
    assert "blas" in found.library


@needs_iperf3
def test_the_loopback_lab_has_a_baseline(tmp_path: Path) -> None:
    lab = loopback_lab(tmp_path, (1, 2))
    links = Links(lab, RealOpener())
    try:
        found = measure(lab, links, SystemClock())
    finally:
        links.close()
    assert found.missing == ()
    assert len(found.links) == 2
    assert len(found.compute) == 2
