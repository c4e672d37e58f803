"""`labctl check --gpu-probe` on two machines with fake driver libraries: figures, their way, a closed device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import build, install
from tests.fakes.scenario import load

if TYPE_CHECKING:
    from labctl.remote.base import Executor
    from tests.conftest import RehearsalLab

pytestmark = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=f"fake GPUs: {build.compiler_refused()}"
)


@pytest.fixture(scope="module")
def nodes(lab: RehearsalLab) -> Iterator[dict[str, Executor]]:
    """Both machines with a T4 that sleeps until somebody asks; all is removed at the end."""
    opened = {node.name: lab.open(node.name) for node in lab.lab.nodes}
    sleepy = (
        load("healthy-t4")
        .with_gpu(persistence=False)
        .with_cuda(wake_s=0.5, linger_s=0.0, product_s=0.0005)
    )
    try:
        for executor in opened.values():
            install.on_machine(executor, sleepy)
        yield opened
        for executor in opened.values():
            install.remove(executor)
    finally:
        (lab.root / ".lab" / lab.name / "baseline.json").unlink(missing_ok=True)
        for executor in opened.values():
            executor.close()


def probed(lab: RehearsalLab, *options: str) -> list[dict[str, Any]]:
    done = lab.labctl("check", "--gpu-probe", *options, "--json")
    return [each for each in json.loads(done.stdout) if each["name"] == "gpu-probe"]


def test_figures_go_into_baseline_record_and_plan(
    lab: RehearsalLab, nodes: dict[str, Executor]
) -> None:
    found = probed(lab, "--network")
    assert [(each["node"], each["status"]) for each in found] == [("tf0", "ok"), ("tf1", "ok")]
    assert all("later 500 µs (4000 GFLOP/s, L = 1000)" in each["found"] for each in found)
    kept = json.loads((lab.root / ".lab" / lab.name / "baseline.json").read_text())["gpus"]
    assert [each["node"] for each in kept] == ["tf0", "tf1"]
    for each in kept:
        assert each["wake_s"] >= 0.5
        assert each["jit_cached_s"] < each["jit_s"]
        assert each["awake"] is False
    run = lab.labctl_json("run", "-L", "64", "--repeat", "2", "--no-trace")
    record = json.loads((lab.root / run["record"] / "run.json").read_text())
    assert record["baseline"]["gpus"] == kept
    plan = lab.labctl_json("plan", "--gpu")
    assert plan["prediction"]["cold_start"][0]["what"] == "wake"
    assert plan["wire_bound"]["gflops"] == pytest.approx(4000)


def test_a_device_that_the_runs_user_may_not_open_is_named(
    lab: RehearsalLab, nodes: dict[str, Executor]
) -> None:
    install.on_machine(nodes["tf1"], "no-device-nodes")
    (_, second) = probed(lab)
    assert (second["node"], second["status"]) == ("tf1", "fail")
    assert second["found"] == "GPU 0: cuInit: CUDA_ERROR_NO_DEVICE (100)"
    assert "this user may not open /dev/nvidia0, /dev/nvidiactl" in second["do"]
    kept = json.loads((lab.root / ".lab" / lab.name / "baseline.json").read_text())["gpus"]
    assert [each["node"] for each in kept] == ["tf0"]
