"""GPU runs for real, as far as a machine without a GPU allows: NVIDIA's libraries are fakes, pynvml is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labctl.node import wire
from labctl.node.wire import MatpowPlan, RunPlan
from tests.fakes import build, install

if TYPE_CHECKING:
    from tests.integration.node.conftest import Nodes

needs_compiler = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=str(build.compiler_refused())
)
_COLD = ["import_nvml", "gpu_wake", "import_numpy", "import_tensorflow", "gpu_libraries", "server"]


def environment(folder: Path, scenario: str) -> dict[str, str]:
    """Return the environment of a machine with a GPU and with a kernel cache of one kernel."""
    cache = folder / "cache"
    cache.mkdir()
    (cache / "kernel").write_bytes(b"x" * 100)
    made = install.in_directory(folder / "gpu", scenario).environment({})
    return {**made, "CUDA_CACHE_PATH": str(cache)}


@needs_compiler
def test_strict_placement_ends_a_run_without_a_device_once_all_is_told(
    nodes: Nodes, tmp_path: Path
) -> None:
    plan = RunPlan(
        "r", nodes.addresses(2), matpow=MatpowPlan(size=50, device="gpu", placement="one-host")
    )
    run = nodes.client(plan, None, **environment(tmp_path, "healthy-t4"))
    error = run.one("error")
    assert (run.status, error["kind"]) == (wire.EXIT_FAILED, "no-gpu-device")
    first = run.of("hello")[0]
    assert first["source"] == "client"
    assert error["message"].startswith("task 0 at 127.0.0.1:")
    assert error["message"].endswith("; on task 0: this TensorFlow is built for CPUs alone")
    assert error["expected"]
    assert error["do"]
    assert b"no GPU device" in run.stderr
    assert "first_step" not in run.phases
    for source, last in (("client", "list_devices"), ("join-server", "server")):
        mine = [each for each in run.events if each["source"] == source]
        phases = [each["phase"] for each in mine if each["event"] == "phase_end"]
        assert [phase for phase in phases if phase in _COLD] == _COLD
        assert last in phases
        (gpus,) = (each for each in mine if each["event"] == wire.GPUS)
        (device,) = gpus["devices"]
        assert (device["name"], device["compute_capability"]) == ("Tesla T4", "7.5")
        assert device["sm_clock_max_mhz"] == 1590
        (opened,) = (each for each in mine if each["event"] == wire.LIBRARIES)
        assert [each["error"] for each in opened["libraries"]] == [None] * len(opened["libraries"])
        assert all(str(tmp_path) in each["path"] for each in opened["libraries"])
        caches = [each for each in mine if each["event"] == wire.KERNEL_CACHE]
        assert [each["when"] for each in caches][:2] == ["begin", "server"]
        assert {(each["files"], each["bytes"]) for each in caches} == {(1, 100)}


@needs_compiler
def test_a_sampler_tells_clocks_and_company_beside_the_usage(nodes: Nodes, tmp_path: Path) -> None:
    plan = RunPlan(
        "r",
        nodes.addresses(2),
        matpow=MatpowPlan(
            size=50, device="gpu", placement="one-process", soft_placement=True, repeat=2
        ),
    )
    run = nodes.client(plan, None, **environment(tmp_path, "throttled"))
    assert run.one("result")["ok"]
    used = run.of(wire.GPU_USAGE)
    assert used
    (device,) = used[-1]["devices"]
    assert device["throttle"]
    assert "gpu-idle" not in device["throttle"]
    assert device["sm_clock_mhz"] < run.one(wire.GPUS)["devices"][0]["sm_clock_max_mhz"]
    assert device["others"] == []
    usage = {each["t"] for each in run.of(wire.USAGE)}
    assert len(used) <= len(usage)
    assert [each["when"] for each in run.of(wire.KERNEL_CACHE)] == [
        "begin", "server", "first_step", "end",
    ]  # fmt: skip
    assert "list_devices" not in run.phases


def test_a_run_on_cpus_pays_nothing_for_gpus(nodes: Nodes, tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "pynvml.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    plan = RunPlan(
        "r", nodes.addresses(2), matpow=MatpowPlan(size=50, placement="one-host", repeat=1)
    )
    run = nodes.client(plan, PYTHONPATH=str(poison), CUDA_CACHE_PATH=str(tmp_path))
    assert run.one("result")["ok"]
    assert not (tmp_path / "imported").exists()
    told = {each["event"] for each in run.events}
    assert told.isdisjoint({wire.GPUS, wire.GPU_USAGE, wire.KERNEL_CACHE, wire.LIBRARIES})
    phases = {each.get("phase") for each in run.events}
    assert phases.isdisjoint({"import_nvml", "gpu_wake", "gpu_libraries", "list_devices"})
