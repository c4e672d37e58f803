"""Measuring a lab's GPUs on scripted machines: what is asked, kept, and said as checks."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.gpu_answer import GpuProblem, gpu_answer
from labctl.checks.reader import FactsError
from labctl.drive.gpu_bench import GPU_PROBE, figures_text, not_probed, probe_gpus
from labctl.errors import HostUnreachableError
from labctl.remote.fake import Call, Reply
from labctl.runs.baseline import Baseline
from labctl.runs.lab_files import read_baseline, write_baseline
from tests.unit.test_drive_baseline import Rig, make_lab
from tests.unit.test_predict_gpu import gpu_of

FIGURES: dict[str, Any] = {
    "index": 0, "name": "Tesla T4", "compute_capability": "7.5", "pci_bus_id": "0000:00:1E.0",
    "driver": "12.9", "library": "libcublas.so.12", "library_path": "/x/libcublas.so.12", "size": 1000,
    "wake_s": 1.25, "context_s": 0.3, "libraries_s": 0.1, "handle_s": 0.05, "first_product_s": 0.02,
    "warm_product_s": 0.0005, "warm_low_s": 0.0004, "warm_high_s": 0.0006, "gflops": 4000, "copies": [],
    "h2d_bytes_per_s": 8e9, "d2h_bytes_per_s": 4e9, "h2d_pageable_bytes_per_s": 2e9,
    "d2h_pageable_bytes_per_s": 1e9, "jit_s": 0.05, "jit_cached_s": 0.0004, "launch_s": 1e-5,
    "persistence": True, "awake": True,
}  # fmt: skip
ANSWER: dict[str, Any] = {"format": 1, "gpus": [FIGURES], "errors": [], "missing": None}
NONE = {"format": 1, "gpus": [], "errors": [], "missing": "no NVIDIA GPU here: no libcuda.so.1"}
PROBLEM = {"gpu": 0, "found": "cuInit: X (803)", "expected": "one version", "do": "reboot"}


def answer(**changed: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ANSWER), **changed}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(make_lab(tmp_path))
    says(made, tf0=ANSWER, tf1=ANSWER)
    yield made
    made.links.close()


def says(rig: Rig, **answers: Any) -> list[Call]:
    """Let machines answer the GPU probe so; returns the calls of it."""
    asked: list[Call] = []
    for name, told in answers.items():
        look = {"iperf3": "", "cpus": [0], "boot_id": f"boot-{name}"}

        def reply(call: Call, told: Any = told, look: Any = look) -> Reply:
            message = json.loads(call.input)
            if message["request"].get("kind") == "look":
                return Reply(json.dumps(look).encode())
            assert "cuInit" in message["source"]
            asked.append(call)
            if isinstance(told, Exception):
                raise told
            return Reply(told if isinstance(told, bytes) else json.dumps(told).encode())

        rig.machines[name].on(("/usr/bin/python3",), reply)
    return asked


def probed(rig: Rig) -> list[tuple[str, str, str]]:
    found = probe_gpus(rig.lab, rig.links, rig.clock)
    assert {each.name for each in found} == {GPU_PROBE}
    return [(each.node, each.status, each.found) for each in found]


def test_figures_are_kept_beside_network_and_compute(rig: Rig) -> None:
    before = rig.measure(parts=["compute"])
    found = probed(rig)
    assert [each[:2] for each in found] == [("tf0", "ok"), ("tf1", "ok")]
    assert found[0][2] == (
        "GPU 0 Tesla T4 (7.5): wake 1.25 s (awake already), context 300 ms, libcublas.so.12 100 ms, "
        "handle 50 ms, first product 20 ms, later 500 µs (4000 GFLOP/s, L = 1000); to it 8 GB/s, back 4 GB/s; "
        "PTX 50 ms, 400 µs from the cache"
    )
    kept = read_baseline(rig.lab.local_dir)
    assert kept is not None
    assert (kept.compute, kept.boot_ids) == (before.compute, before.boot_ids)
    assert [(each.node, each.index) for each in kept.gpus] == [("tf0", 0), ("tf1", 0)]
    gpu = kept.gpu("tf1")
    assert gpu is not None
    assert (gpu.wake_s, gpu.warm_high_s, gpu.awake, gpu.at_unix_s) == (1.25, 0.0006, True, 1000.0)
    assert rig.measure(parts=["network"]).gpus == kept.gpus


def test_the_probe_is_root_until_it_knows_and_then_the_user_who_will_hold_the_gpu(rig: Rig) -> None:
    asked = says(rig, tf0=ANSWER, tf1=ANSWER)
    probed(rig)
    requests = [json.loads(call.input)["request"] for call in asked]
    assert sorted(each["user"] for each in requests) == ["labctl", "tf-join"]
    assert {each["venv"] for each in requests} == {"/opt/labctl/venv"}
    assert all(call.sudo for call in asked)
    assert all(
        each["total_s"] < (call.timeout_s or 0) for each, call in zip(requests, asked, strict=True)
    )


def test_a_lab_without_gpus_is_skipped_and_keeps_no_file(rig: Rig) -> None:
    says(rig, tf0=NONE, tf1=NONE)
    assert probed(rig) == [("tf0", "skipped", NONE["missing"]), ("tf1", "skipped", NONE["missing"])]
    assert read_baseline(rig.lab.local_dir) is None


def test_a_broken_gpu_fails_with_what_to_do_and_loses_its_old_figures(rig: Rig) -> None:
    probed(rig)
    unfinished = {name: FIGURES[name] for name in ("index", "name", "wake_s")}
    says(rig, tf1=answer(gpus=[unfinished], errors=[PROBLEM]))
    (_, second) = probe_gpus(rig.lab, rig.links, rig.clock)
    assert (second.node, second.status) == ("tf1", "fail")
    assert second.found == "GPU 0: cuInit: X (803)"
    assert (second.expected, second.do) == ("one version", "reboot")
    kept = read_baseline(rig.lab.local_dir)
    assert kept is not None
    assert [each.node for each in kept.gpus] == ["tf0"]


def test_a_gpu_with_figures_and_a_problem_fails_but_its_figures_stay(rig: Rig) -> None:
    says(rig, tf0=answer(errors=[PROBLEM]))
    found = probed(rig)
    assert [each[:2] for each in found] == [("tf0", "fail"), ("tf1", "ok")]
    kept = read_baseline(rig.lab.local_dir)
    assert kept is not None
    assert len(kept.gpus) == 2


def test_an_answer_without_figures_or_reason_fails(rig: Rig) -> None:
    says(rig, tf0=answer(gpus=[{**FIGURES, "gflops": None}]))
    (first, _) = probe_gpus(rig.lab, rig.links, rig.clock)
    assert first.status == "fail"
    assert first.do


def test_a_node_out_of_reach_keeps_what_was_known(rig: Rig) -> None:
    probed(rig)
    says(rig, tf1=HostUnreachableError("tf1 does not answer"))
    found = probed(rig)
    assert found[1] == ("tf1", "skipped", "tf1 does not answer")
    kept = read_baseline(rig.lab.local_dir)
    assert kept is not None
    assert len(kept.gpus) == 2


@pytest.mark.parametrize("told", [b"no JSON", b"[]", b'{"gpus": 5, "errors": [], "missing": null}'])
def test_an_answer_that_makes_no_sense_is_no_figure(rig: Rig, told: bytes) -> None:
    says(rig, tf0=told)
    (first, second) = probed(rig)
    assert first[1] == "skipped"
    assert first[2].startswith("the probe failed: ")
    assert second[1] == "ok"


def test_another_labctl_is_not_disturbed(rig: Rig) -> None:
    handle = os.open(rig.lab.local_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        found = probe_gpus(rig.lab, rig.links, rig.clock)
    finally:
        os.close(handle)
    assert found == not_probed(rig.lab, "another labctl is measuring this lab")
    assert read_baseline(rig.lab.local_dir) is None


def test_another_boot_begins_anew(rig: Rig) -> None:
    write_baseline(rig.lab.local_dir, Baseline({"tf0": "old", "tf1": "old"}, gpus=(gpu_of("tf0"),)))
    says(rig, tf0=NONE, tf1=NONE)
    probed(rig)
    assert read_baseline(rig.lab.local_dir) == Baseline(
        {"tf0": "old", "tf1": "old"}, gpus=(gpu_of("tf0"),)
    )
    says(rig, tf0=ANSWER)
    probed(rig)
    kept = read_baseline(rig.lab.local_dir)
    assert kept is not None
    assert kept.boot_ids == {"tf0": "boot-tf0", "tf1": "boot-tf1"}
    assert [each.wake_s for each in kept.gpus] == [1.25]


def test_an_answer_is_checked_before_it_is_believed() -> None:
    found = gpu_answer(answer(errors=[PROBLEM]), "tf0", 5.0)
    assert found.problems == (GpuProblem(0, "cuInit: X (803)", "one version", "reboot"),)
    assert (found.gpus[0].node, found.gpus[0].at_unix_s, found.missing) == ("tf0", 5.0, None)
    dirty = gpu_answer(answer(gpus=[{**FIGURES, "name": "T4\x1b[31m\n"}]), "tf0", 5.0)
    assert dirty.gpus[0].name == "T4 [31m"
    for wrong in (
        {"wake_s": -1.0},
        {"wake_s": "soon"},
        {"size": 0},
        {"index": 1.5},
        {"awake": "yes"},
    ):
        with pytest.raises(FactsError):
            gpu_answer(answer(gpus=[{**FIGURES, **wrong}]), "tf0", 5.0)
    without = {name: value for name, value in FIGURES.items() if name != "h2d_pageable_bytes_per_s"}
    assert gpu_answer(answer(gpus=[without]), "tf0", 5.0).gpus[0].h2d_pageable_bytes_per_s is None


def test_nodes_of_one_machine_are_measured_one_after_the_other(tmp_path: Path) -> None:
    lab = replace(make_lab(tmp_path, provider="loopback"), name="loopback")
    rig = Rig(lab)
    for name in ("tf0", "tf1"):
        looked: dict[str, Any] = {"iperf3": "", "cpus": [0], "boot_id": f"boot-{name}"}

        def reply(call: Call, name: str = name, looked: Any = looked) -> Reply:
            if json.loads(call.input)["request"].get("kind") == "look":
                return Reply(json.dumps(looked).encode())
            at_once.append(name)
            if name == "tf0":  # the other one would be there by now
                time.sleep(0.2)
            at_once.append(name)
            return Reply(json.dumps(ANSWER).encode())

        rig.machines[name].on(("/usr/bin/python3",), reply)
    at_once: list[str] = []
    probed(rig)
    rig.links.close()
    assert at_once == ["tf0", "tf0", "tf1", "tf1"]


def test_what_was_not_measured_is_not_told() -> None:
    text = figures_text(replace(gpu_of("tf0"), awake=None))
    assert "awake" not in text
    assert "PTX" not in text
    assert "later 500 µs" in text
