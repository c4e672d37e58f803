"""`labctl run --gpu --cpu` on scripted machines: interleaved, tagged, compared, and honest where a side fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.__main__ import run as main
from labctl.analysis.compare import COLD, RowKey
from labctl.analysis.devices import STOPWATCH
from labctl.checks.doctor import Checked
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.model import CheckResult
from labctl.drive.pair import Paired, run_pairs
from labctl.drive.plan import RunOptions
from labctl.errors import ConfigError, UsageError
from labctl.lab.home import Home
from labctl.lab.model import Lab
from labctl.remote.base import Executor
from labctl.views.pair import pair_lines, pair_object, ratio
from tests.unit.test_drive_batch import Stages
from tests.unit.test_drive_run import Opener, World

NO_GPU = ConfigError("tf0 has no GPU driver", expected="one", do="labctl provision")


class Told(Stages):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def client(world: World, directory: str) -> None:
    """A client whose steps take a quarter of the time on a GPU."""
    after = world.clock.after
    step_s = 0.05 if b'"device": "gpu"' in world.tf0.files[f"{directory}/plan.json"] else 0.2
    after(0.5, lambda: world.emit("hello", process_start_t=0, python="3.12.1"))
    for index in range(6):
        kind = "warm" if index else "cold"
        spent_ns = round(step_s * 1e9) + index * 1000
        after(
            1.0 + index * step_s,
            lambda index=index, kind=kind, spent_ns=spent_ns: world.emit(  # type: ignore[misc]
                "step", index=index, kind=kind, total=6, duration_ns=spent_ns
            ),
        )
    us = round(step_s * 1e6)
    after(2.6, lambda: world.emit("result", ok=True, section_us=us, end_to_end_us=5_000_000 + us))
    after(3.0, world.end)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "home")
    made.client = client
    return made


def pairs(world: World, count: int = 3, observer: Told | None = None, **options: Any) -> Paired:
    return run_pairs(
        Home(world.home),
        "unit",
        RunOptions(timeout_s=60.0, **options),
        count,
        observer=observer or Told(),
        opener=Opener(world),
        gate=world.gate,
        clock=world.clock,
        lab=world.lab,
    )


def test_the_same_run_on_both_devices_interleaved_and_tagged(world: World) -> None:
    observer = Told()
    paired = pairs(world, observer=observer, size=64, tags=("own=yes",))
    assert (paired.failed, paired.error) == (None, None)
    assert [text for text in observer.told if text.startswith("run ")] == [
        f"run {n} of 6  {device}"
        for n, device in enumerate(("gpu", "cpu", "cpu", "gpu", "gpu", "cpu"), 1)
    ]
    records = [entry.readable() for entry in world.store.entries()]
    assert [each.parameters.device for each in records] == [
        "gpu",
        "cpu",
        "cpu",
        "gpu",
        "gpu",
        "cpu",
    ]
    assert {each.parameters.size for each in records} == {64}
    for each in records:
        device = each.parameters.device
        assert each.tags == {
            "own": "yes",
            "variant": device,
            "device": device,
            "pair": paired.found.pair,
        }
    assert len(paired.found.gpu) == len(paired.found.cpu) == 3
    compared = paired.found.comparison
    assert compared is not None
    assert [(each.what, each.a, each.b) for each in compared.subject] == [("device", "cpu", "gpu")]
    assert compared.mismatches == ()


def test_the_gpu_side_may_fall_to_cpus_and_that_is_said(world: World) -> None:
    paired = pairs(world, 1, soft_placement=True, trace=False)
    soft = {
        each.readable().parameters.device: each.readable().parameters.soft_placement
        for each in world.store.entries()
    }
    assert soft == {"gpu": True, "cpu": False}
    assert any("soft placement without a trace" in note for note in paired.found.notes)


def test_a_gpu_that_is_refused_starts_nothing(world: World) -> None:
    world.results = [CheckResult("gpu", "tf0", "fail", NO_GPU.found, "one", "do", error=NO_GPU)]
    with pytest.raises(ConfigError, match="no GPU driver"):
        pairs(world)
    assert world.store.entries() == []


def test_a_gpu_that_goes_later_keeps_the_runs_before_and_says_so(world: World) -> None:
    calls: list[bool] = []

    def gate(
        lab: Lab, executors: Mapping[str, Executor], gpu: GpuNeed | None, names: frozenset[str]
    ) -> Checked:
        calls.append(gpu is not None)
        gone = gpu is not None and calls.count(True) == 2
        failed = CheckResult("gpu", "tf0", "fail", NO_GPU.found, "one", "do", error=NO_GPU)
        return Checked((failed,) if gone else ())

    world.gate = gate  # type: ignore[method-assign]
    paired = pairs(world)
    assert paired.error is NO_GPU
    assert (len(paired.found.gpu), len(paired.found.cpu)) == (1, 2)
    assert paired.found.comparison is not None
    assert "note      not all was run: tf0 has no GPU driver" in pair_lines(paired.found)


def test_one_side_that_fails_keeps_the_other_and_compares_nothing(world: World) -> None:
    def half(world: World, directory: str) -> None:
        if b'"device": "gpu"' in world.tf0.files[f"{directory}/plan.json"]:
            world.clock.after(1.0, lambda: world.end(11))
        else:
            client(world, directory)

    world.client = half
    paired = pairs(world)
    assert (len(paired.found.gpu), len(paired.found.cpu)) == (1, 3)
    assert paired.failed is not None
    assert paired.failed.parameters.device == "gpu"
    assert paired.found.comparison is None
    text = "\n".join(pair_lines(paired.found))
    assert f"run {paired.found.gpu[0]} on the GPU ended failed" in text
    assert "no run on GPUs ended ok: there is nothing to compare" in text
    told = pair_object(paired.found)
    assert (told["comparison"], told["verdicts"]) == (None, [])
    assert len(told["cpu"]) == 3


@pytest.mark.parametrize(
    ("options", "count", "says"),
    [
        ({"script": Path("mine.py")}, 3, "does not fit the script"),
        ({"detach": True}, 3, "--detach"),
        ({}, 0, "--pairs 0"),
        ({}, 101, "--pairs 101"),
        ({"size": 0}, 3, "--size 0"),
    ],
)
def test_what_cannot_be_paired_is_refused(
    world: World, options: dict[str, Any], count: int, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        pairs(world, count, **options)
    assert world.store.entries() == []


def test_warnings_of_the_runs_are_told_once(world: World) -> None:
    slow = CheckResult("gpu-clocks", "tf0", "fail", "hw-slowdown", "none", "cool it", warns=True)
    world.results = [slow]
    observer = Told()
    pairs(world, 2, observer)
    told = [note for note in observer.notes if "hw-slowdown" in note]
    assert told == ["warning gpu-clocks: hw-slowdown; cool it"]


def test_the_lines_have_both_devices_their_ratio_and_a_verdict_for_each_question(
    world: World,
) -> None:
    found = pairs(world).found
    lines = pair_lines(found)
    assert lines[0].startswith(f"pair {found.pair} · GPU 3 runs · CPU 3 runs")
    assert lines[2].split() == ["GPU", "p5", "…", "p95", "CPU", "p5", "…", "p95", "GPU/CPU"]
    for group in ("stopwatches", "once", "each step"):
        assert group in lines
    (verdict,) = [line for line in lines if line.startswith("verdict")]
    assert "warm step  the GPU is faster: -150.0 ms (-75.0 %)" in verdict
    assert found.comparison is not None
    rows = {row.key: row for row in found.comparison.rows}
    assert RowKey(STOPWATCH) in rows
    assert ratio(rows[RowKey(STOPWATCH)]) == pytest.approx(5.05 / 5.2)
    assert ratio(rows[RowKey(COLD)]) == pytest.approx(0.25)
    told = pair_object(found)
    assert [each["name"] for each in told["verdicts"]] == ["warm step", "cold step", "stopwatch"]
    assert [each["verdict"] for each in told["verdicts"]] == ["faster"] * 3
    assert told["comparison"]["a"] == list(found.cpu)
    assert told["comparison"]["b"] == list(found.gpu)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pairs", "2"], "--pairs is given without --gpu --cpu"),
        (["--gpu", "--pairs", "2"], "--pairs is given without --gpu --cpu"),
        (["--gpu", "--cpu", "-v"], "--show-output does not fit"),
        (["--gpu", "--cpu", "--detach"], "--detach does not fit --gpu --cpu"),
        (["--gpu", "--cpu", "mine.py"], "does not fit the script"),
    ],
)
def test_flags_that_do_not_fit_are_usage_errors(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--lab", "loopback", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "gpu"), [([], None), (["--cpu"], False), (["--gpu"], True)], ids=str
)
def test_one_flag_or_none_is_one_run(
    words: list[str], gpu: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunOptions] = []

    def make_request(options: RunOptions) -> None:
        asked.append(options)
        raise UsageError("far enough")

    monkeypatch.setattr("labctl.drive.plan.make_request", make_request)
    assert main(["run", "--lab", "loopback", *words]) == 2
    assert [each.gpu for each in asked] == [gpu]


def test_both_flags_print_one_comparison_and_exit_as_the_first_failure(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paired = pairs(world, 1)
    monkeypatch.setattr("labctl.drive.pair.run_pairs", lambda *_, **__: paired)
    assert main(["run", "--lab", "loopback", "--gpu", "--cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pair"] == paired.found.pair
    refused = replace(paired, error=NO_GPU)
    monkeypatch.setattr("labctl.drive.pair.run_pairs", lambda *_, **__: refused)
    assert main(["run", "--lab", "loopback", "--gpu", "--cpu"]) == 3
    out, err = capsys.readouterr()
    assert out.startswith(f"pair {paired.found.pair}")
    assert "tf0 has no GPU driver" in err
