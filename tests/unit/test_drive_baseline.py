"""Measuring a lab on scripted machines, and what a baseline looks like as checks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.explain import explain
from labctl.drive.baseline import (
    PARTS,
    as_checks,
    better_than,
    is_complete,
    measure,
    not_measured,
    stored,
)
from labctl.drive.links import Links
from labctl.drive.measure import PORT
from labctl.errors import HostUnreachableError
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote.base import Executor
from labctl.remote.fake import Call, FakeExecutor, FakeUnits, Reply
from labctl.runs.baseline import Baseline, ComputeBaseline, LinkBaseline
from labctl.runs.lab_files import write_baseline
from tests.unit.made_traces import fed_step, run_data

PYTHON = "/opt/labctl/venv/bin/python"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def mono_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Rig:
    """Machines that answer a measurement's questions as the test says."""

    lab: Lab
    answers: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    in_turn: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, Any], Call]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.machines = {node.name: self._machine(node.name) for node in self.lab.nodes}
        self.links = Links(self.lab, self)

    def executor(self, node: Node, lab: Lab) -> Executor:
        assert lab is self.lab
        return self.machines[node.name]

    def units(self, node: Node, executor: Executor, lab: Lab) -> FakeUnits:
        assert (executor, lab) == (self.machines[node.name], self.lab)
        return FakeUnits(self.machines[node.name])

    def measure(self, **options: Any) -> Baseline:
        return measure(self.lab, self.links, self.clock, **options)

    def kinds(self) -> list[tuple[str, str]]:
        return [(name, kind) for name, kind, _, _ in self.asked]

    def _machine(self, name: str) -> FakeExecutor:
        usual: dict[str, dict[str, Any]] = {
            "look": {"iperf3": "iperf 3.12", "cpus": [int(name[-1])], "boot_id": f"boot-{name}"},
            "serve": {"error": None},
            "link": {"rtt_s": 8e-5, "bits_per_s": 7.5e9, "retransmits": 3, "error": None},
            "compute": {"error": None, "gflops": 98.5, "threads": 1, "library": "openblas 0.3"},
        }

        def answer(call: Call) -> Reply:
            request = json.loads(call.input)["request"]
            kind = request["kind"]
            self.asked.append((name, kind, request, call))
            told = self.in_turn.get((name, kind))
            found = told.pop(0) if told else self.answers.get((name, kind), usual[kind])
            return Reply(json.dumps(found).encode())

        machine = FakeExecutor(name)
        for program in (("/usr/bin/python3",), ("systemd-run",), (PYTHON,)):
            machine.on(program, answer)
        return machine


def make_lab(folder: Path, count: int = 2, provider: str = "rehearsal") -> Lab:
    nodes = tuple(
        Node(f"tf{k}", k, f"10.0.0.{k + 2}" if k else "[2001:db8::2]", 2222, SshTarget(f"tf{k}"))
        for k in range(count)
    )
    return Lab("unit", nodes, folder, provider, folder)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(make_lab(tmp_path))
    yield made
    made.links.close()


def test_both_directions_and_every_node_are_measured_and_kept(rig: Rig) -> None:
    found = rig.measure()
    assert found.boot_ids == {"tf0": "boot-tf0", "tf1": "boot-tf1"}
    there, back = found.links
    assert there == LinkBaseline("tf0", "tf1", 7.5e9, 8e-5, 3, 1000.0, "iperf 3.12")
    assert (back.source, back.target) == ("tf1", "tf0")
    assert found.peak("tf1") == ComputeBaseline("tf1", 1000, 98.5, 1, "openblas 0.3", 1000.0)
    assert found.missing == ()
    assert stored(rig.lab, found.boot_ids) == found
    assert is_complete(found)


def test_the_far_end_is_a_unit_without_rights_at_the_data_address(rig: Rig) -> None:
    rig.measure(parts=["network"])
    name, _, request, call = next(each for each in rig.asked if each[1] == "serve")
    assert (name, request["address"], request["port"]) == ("tf1", "10.0.0.3", PORT)
    assert call.sudo
    assert {"--property=DynamicUser=yes", "--property=RuntimeMaxSec=10"} <= set(call.argv)
    _, _, request, call = next(each for each in rig.asked if each[1] == "link")
    assert (request["address"], call.sudo) == ("10.0.0.3", False)
    assert [each[2]["address"] for each in rig.asked if each[1] == "serve"] == [
        "10.0.0.3", "10.0.0.3", "2001:db8::2", "2001:db8::2",
    ]  # fmt: skip


def test_parts_are_measured_apart_and_the_other_one_stays(rig: Rig) -> None:
    network = rig.measure(parts=["network"])
    assert network.compute == ()
    assert not is_complete(network)
    rig.answers["tf0", "compute"] = {"error": None, "gflops": 5.0, "threads": 1, "library": ""}
    both = rig.measure(parts=["compute"])
    assert both.links == network.links
    assert [each.gflops for each in both.compute] == [5.0, 98.5]
    assert ("tf0", "link") not in rig.kinds()[len(rig.kinds()) - 3 :]


def test_what_was_tried_is_not_tried_again_unless_asked(rig: Rig) -> None:
    rig.answers["tf0", "link"] = {
        "rtt_s": None,
        "bits_per_s": None,
        "retransmits": None,
        "error": "timed out",
    }
    rig.answers["tf1", "link"] = rig.answers["tf0", "link"]
    first = rig.measure()
    assert first.links == ()
    assert is_complete(first)
    rig.asked.clear()
    assert rig.measure(again=False) == first
    assert {kind for _, kind in rig.kinds()} == {"look"}
    del rig.answers["tf0", "link"], rig.answers["tf1", "link"]
    assert rig.measure(again=True).missing == ()


def test_another_boot_of_one_node_begins_anew(rig: Rig) -> None:
    rig.measure()
    rig.answers["tf1", "look"] = {"iperf3": "iperf 3.12", "cpus": [1], "boot_id": "other"}
    found = rig.measure(parts=["compute"], again=False)
    assert found.links == ()
    assert found.boot_ids["tf1"] == "other"
    assert stored(rig.lab, {"tf0": "boot-tf0", "tf1": "boot-tf1"}) is None
    assert stored(rig.lab, {"tf0": "boot-tf0", "tf1": "other"}) == found


def test_a_boot_that_is_not_known_matches_no_baseline(tmp_path: Path) -> None:
    write_baseline(tmp_path, Baseline({"tf0": "", "tf1": "b"}))
    assert stored(make_lab(tmp_path), {"tf0": "", "tf1": "b"}) is None


def test_a_node_without_iperf3_is_named_with_what_to_do(rig: Rig) -> None:
    rig.answers["tf1", "look"] = {"iperf3": "", "cpus": [1], "boot_id": "boot-tf1"}
    found = rig.measure()
    assert found.links == ()
    assert found.missing == (
        "network: iperf3 is not installed on tf1: labctl provision --lab unit",
    )
    assert len(found.compute) == 2
    (network, *_) = as_checks(rig.lab, found, PARTS)
    assert (network.status, network.node) == ("skipped", "tf1")
    assert "labctl provision" in network.found


def test_both_ends_say_why_a_direction_was_not_measured(rig: Rig) -> None:
    rig.answers["tf1", "serve"] = {"error": "port 5201 of 10.0.0.3: Address already in use"}
    rig.answers["tf0", "link"] = {
        "rtt_s": None,
        "bits_per_s": None,
        "retransmits": None,
        "error": "Connection refused",
    }
    found = rig.measure(parts=["network"])
    assert [(each.source, each.target) for each in found.links] == [("tf1", "tf0")]
    (line,) = found.missing
    assert line.startswith("network: tf0 to tf1 failed: Connection refused; port 5201 of 10.0.0.3")


@pytest.mark.parametrize(
    "answer",
    [
        b"no JSON",
        b"[]",
        b'{"rtt_s": "x", "bits_per_s": 1, "retransmits": 0, "error": null}',
        b'{"rtt_s": 1, "bits_per_s": NaN, "retransmits": 0, "error": null}',
    ],
)
def test_an_answer_that_makes_no_sense_is_missing(rig: Rig, answer: bytes) -> None:
    for machine in rig.machines.values():
        machine.on(("/usr/bin/python3",), _look_then(rig, machine, Reply(answer)))
    found = rig.measure(parts=["network"])
    assert found.links == ()
    assert len(found.missing) == 2


def _look_then(rig: Rig, machine: FakeExecutor, reply: Reply) -> Any:
    look = {"iperf3": "iperf 3.12", "cpus": [0], "boot_id": f"boot-{machine.name}"}

    def answer(call: Call) -> Reply:
        is_look = json.loads(call.input)["request"]["kind"] == "look"
        return Reply(json.dumps(look).encode()) if is_look else reply

    return answer


def test_a_node_out_of_reach_is_named_and_the_others_are_measured(rig: Rig) -> None:
    rig.machines["tf1"].on((), HostUnreachableError("tf1 does not answer"))
    rig.machines["tf1"].on(("/usr/bin/python3",), HostUnreachableError("tf1 does not answer"))
    found = rig.measure()
    assert found.links == ()
    assert [each.node for each in found.compute] == ["tf0"]
    assert found.missing == (
        "network: tf1 could not be asked: tf1 does not answer",
        "compute: tf1 could not be asked: tf1 does not answer",
    )


def test_more_tasks_are_measured_from_and_to_task_0_only(tmp_path: Path) -> None:
    rig = Rig(make_lab(tmp_path, count=4))
    found = rig.measure(parts=["network"])
    rig.links.close()
    assert {(each.source, each.target) for each in found.links} == {
        pair for k in (1, 2, 3) for pair in (("tf0", f"tf{k}"), (f"tf{k}", "tf0"))
    }


@pytest.mark.parametrize(
    ("provider", "expected"),
    [("rehearsal", [{"tf0", "tf1"}, {"tf2"}]), ("none", [{"tf0", "tf1", "tf2"}])],
)
def test_nodes_that_share_cpus_are_measured_one_after_the_other(
    tmp_path: Path, provider: str, expected: list[set[str]]
) -> None:
    from labctl.checks.facts import MeansFacts
    from labctl.drive.measure import Bench, _waves

    rig = Rig(make_lab(tmp_path, count=3, provider=provider))
    cpus = {"tf0": {0, 1}, "tf1": {2}, "tf2": {1, 2}}
    means = {name: MeansFacts("", frozenset(own), "") for name, own in cpus.items()}
    waves = _waves(Bench(rig.lab, rig.links, rig.clock, means))
    rig.links.close()
    assert [{link.node.name for link in wave} for wave in waves] == expected


def test_two_at_once_do_not_measure_each_other(rig: Rig) -> None:
    handle = os.open(rig.lab.local_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        found = rig.measure()
    finally:
        os.close(handle)
    assert found.links == ()
    assert all("another labctl" in each for each in found.missing)
    assert stored(rig.lab, found.boot_ids) is None
    assert rig.measure().missing == ()


def test_figures_as_checks(rig: Rig) -> None:
    found = rig.measure()
    slow = replace(found.links[0], bits_per_s=9.4e6, rtt_s=0.0215)
    network, tf0, tf1 = as_checks(rig.lab, replace(found, links=(slow, found.links[1])), PARTS)
    assert (network.name, network.node, network.status) == ("network", "tf1", "ok")
    assert network.found == (
        "9.4 Mbit/s from tf0, 7.50 Gbit/s to it, round trip 21.5 ms (TCP, one stream, iperf 3.12)"
    )
    assert (tf0.name, tf0.node, tf1.node) == ("compute", "tf0", "tf1")
    assert tf0.found == "98.5 GFLOP/s in float32, L = 1000, 1 CPU, openblas 0.3"


def test_a_lab_that_is_busy_has_no_figures(tmp_path: Path) -> None:
    results = not_measured(make_lab(tmp_path), PARTS, "tf0 is busy with run x")
    assert [(each.name, each.node, each.status) for each in results] == [
        ("network", "tf1", "skipped"),
        ("compute", "tf0", "skipped"),
        ("compute", "tf1", "skipped"),
    ]
    assert all("busy with run x" in each.found for each in results)


def test_the_best_of_two_tries_counts_and_the_load_goes_with_it(rig: Rig) -> None:
    for name, load in (("tf0", 0.5), ("tf1", 3.25)):
        rig.answers[name, "look"] = {
            "iperf3": "iperf 3.12", "cpus": [int(name[-1])], "boot_id": f"boot-{name}", "load_1min": load,
        }  # fmt: skip
    link = {"rtt_s": 8e-5, "retransmits": 3, "error": None}
    rig.in_turn["tf0", "link"] = [{**link, "bits_per_s": rate} for rate in (2e9, 7e9)]
    rig.in_turn["tf1", "link"] = [
        {**link, "bits_per_s": 6e9},
        {**link, "bits_per_s": None, "error": "timed out"},
    ]
    product = {"error": None, "threads": 1, "library": ""}
    rig.in_turn["tf1", "compute"] = [{**product, "gflops": rate} for rate in (90.0, 40.0)]
    found = rig.measure()
    assert [(each.bits_per_s, each.load_1min) for each in found.links] == [(7e9, 3.25), (6e9, 3.25)]
    assert [(each.gflops, each.load_1min) for each in found.compute] == [(98.5, 0.5), (90.0, 3.25)]
    assert found.missing == ()
    assert stored(rig.lab, found.boot_ids) == found
    network, tf0, tf1 = (each.found for each in as_checks(rig.lab, found, PARTS))
    assert "load" not in tf0
    assert network.endswith("; measured on a busy host (load 3.2), it may do better")
    assert tf1.endswith("; measured on a busy host (load 3.2), it may do better")


def test_a_traced_step_may_show_that_a_baseline_is_too_low() -> None:
    data = run_data(fed_step(starved=True), duration_ms=50, bits_per_s=1e9)  # 4 MB within 23 ms
    traces = explain(data).traces
    baseline = data.record.baseline
    assert baseline is not None
    gflops = traces[0].tasks[1].gflops
    assert gflops is not None
    (link,) = better_than(baseline, traces)
    assert link.startswith("a tensor went from tf0 to tf1 at 1.39 Gbit/s or more")
    peaks = (
        ComputeBaseline("tf0", 1000, 2000.0, 1, "", 1e9),
        ComputeBaseline("tf1", 1000, gflops / 1.06, 1, "", 1e9),
    )
    (product,) = better_than(Baseline({}, compute=peaks), traces)
    assert product.startswith(f"products on tf1 reached {gflops:.1f} GFLOP/s")
    fair = Baseline({}, compute=(replace(peaks[1], gflops=gflops / 1.04),))
    assert better_than(fair, traces) == []
