"""A run that asks for GPUs: what is checked before it, what only warns, and what its record keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.doctor import GPU_NAMES, Checked
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.model import CheckResult
from labctl.errors import ConfigError
from labctl.lab.model import Lab
from labctl.remote.base import Executor
from labctl.runs.gpus import CudaState, GpuState
from tests.unit.test_drive_run import World, good_client

T4 = GpuState(0, "Tesla T4", compute_capability="7.5", persistence=False, woke_s=1.5)
BUILD = CudaState(True, ("sm_60", "compute_90"), "12.5.1", "9", compiles=False)
ERROR = ConfigError("tf1 has no GPU driver", expected="one", do="labctl provision")
REFUSED = CheckResult("gpu", "tf1", "fail", ERROR.found, "one", "labctl provision", error=ERROR)
SLOW = CheckResult(
    "gpu-persistence", "tf0", "fail", "persistence mode is off on tf0", "on", "switch it on",
    error=ConfigError("off"), warns=True,
)  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "home")
    made.client = good_client
    return made


def says(world: World, *results: CheckResult, **seen: Any) -> list[GpuNeed | None]:
    """Let the checks say results and what was seen; returns what will have been wanted of GPUs."""
    wanted: list[GpuNeed | None] = []

    def gate(
        lab: Lab, executors: Mapping[str, Executor], gpu: GpuNeed | None, names: frozenset[str]
    ) -> Checked:
        assert (gpu is not None) == (names >= GPU_NAMES)
        wanted.append(gpu)
        return Checked(results, **seen)

    world.gate = gate  # type: ignore[method-assign]
    return wanted


def test_a_warning_is_said_before_the_run_and_kept_and_stops_nothing(world: World) -> None:
    says(world, SLOW)
    record = world.run(gpu=True)
    assert record.outcome == "ok"
    told = "gpu-persistence: persistence mode is off on tf0; switch it on"
    assert world.notes.notes[0] == f"warning {told}"
    assert "· GPU ·" in world.notes.notes[1]  # the run's own line comes after it
    assert record.warnings[0] == told
    assert record.failed_checks == ()


def test_a_refusal_beside_a_warning_is_the_error(world: World) -> None:
    says(world, SLOW, REFUSED)
    with pytest.raises(ConfigError, match="no GPU driver"):
        world.run(gpu=True)
    assert world.store.entries() == []
    record = world.run(gpu=True, skip_checks=True)
    assert [each.name for each in record.failed_checks] == ["gpu"]


def test_what_the_checks_saw_is_in_the_record(world: World) -> None:
    wanted = says(world, gpus={"tf0": (T4,), "tf1": ()}, cuda={"tf0": BUILD, "tf1": None})
    record = world.run(gpu=True, size=2000)
    assert wanted == [GpuNeed(2000)]
    first, second = record.nodes
    assert (first.gpus, first.cuda) == ((T4,), BUILD)
    assert (second.gpus, second.cuda) == ((), None)
    assert first.versions["tensorflow"] == "2.21.0"
    assert world.store.find("last").readable().nodes[0].gpus == (T4,)


def test_without_gpu_nothing_of_it_is_wanted(world: World) -> None:
    wanted = says(world)
    world.run()
    world.run(gpu=True, soft_placement=True)
    assert wanted == [None, None]


def test_another_nodes_gpu_does_not_matter_to_a_run_on_one_node(world: World) -> None:
    says(world, REFUSED)
    assert world.run(gpu=True, placement="one-process").outcome == "ok"
    own = ConfigError("tf0 has no GPU driver", expected="one", do="x")
    says(world, replace(REFUSED, node="tf0", error=own))
    with pytest.raises(ConfigError, match="tf0 has no GPU"):
        world.run(gpu=True, placement="one-process")


def test_a_script_wants_gpus_of_no_size(world: World, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("print(1)\n")
    wanted = says(world)
    world.run(gpu=True, script=script)
    assert wanted == [GpuNeed(None)]
