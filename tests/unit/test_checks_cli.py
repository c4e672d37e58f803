"""`labctl check`: what is printed where, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from labctl.__main__ import run
from labctl.checks.model import CheckResult
from labctl.errors import LabBusyError
from labctl.lab.model import Lab, Node, SshTarget
from labctl.remote.fake import FakeExecutor
from labctl.runs.baseline import Baseline, ComputeBaseline

LAB = Lab(
    "rehearsal",
    tuple(Node(f"tf{k}", k, f"10.132.0.{k + 2}", 2222, SshTarget("h")) for k in range(2)),
    Path("inventory/rehearsal"),
    "rehearsal",
    Path(".lab/rehearsal"),
)
OK = CheckResult("spec", "tf0", "ok", "sha256 6a61032e770a [bold]")
SKIPPED = CheckResult("sudo", "tf1", "skipped", "ssh failed")
FAILED = CheckResult("ssh", "tf1", "fail", "no answer", "an answer", "see that it is up")


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[FakeExecutor]]:
    """Let the doctor say given results; returns the executors that were opened."""

    def says(*results: CheckResult) -> list[FakeExecutor]:
        opened: list[FakeExecutor] = []

        def open_executor(node: Node, lab: Lab) -> FakeExecutor:
            opened.append(FakeExecutor(node.name))
            return opened[-1]

        monkeypatch.setattr("labctl.playbook.load_lab", lambda *_: LAB)
        monkeypatch.setattr("labctl.remote.connect.open_executor", open_executor)
        monkeypatch.setattr("labctl.checks.doctor.run_checks", lambda *_, **__: list(results))
        return opened

    return says


Doctor = Callable[..., list[FakeExecutor]]


def test_a_failed_check_is_exit_1_after_everything_is_printed(
    doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = doctor(FAILED, SKIPPED, OK)
    assert run(["check", "--lab", "rehearsal"]) == 1
    out, err = capsys.readouterr()
    for text in (
        "no answer",
        "see that it is up",
        "ssh failed",
        "[bold]",
        "1 ok · 1 failed · 1 skipped",
    ):
        assert text in out
    assert "1 of 3 checks of lab rehearsal failed: ssh (tf1)" in err
    assert "see that it is up" in err
    assert [each.closed for each in opened] == [True, True]


def test_json_is_the_whole_list_even_when_one_failed(
    doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(FAILED, OK)
    assert run(["check", "--lab", "rehearsal", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "ssh",
            "node": "tf1",
            "status": "fail",
            "found": "no answer",
            "expected": "an answer",
            "do": "see that it is up",
        },
        {
            "name": "spec",
            "node": "tf0",
            "status": "ok",
            "found": "sha256 6a61032e770a [bold]",
            "expected": None,
            "do": None,
        },
    ]


def test_one_node_can_be_looked_at_and_must_exist(
    doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(FAILED, OK)
    assert run(["check", "--lab", "rehearsal", "--node", "tf0"]) == 0
    out = capsys.readouterr().out
    assert "next: labctl run" in out
    assert "no answer" not in out
    assert run(["check", "--lab", "rehearsal", "--node", "tf7"]) == 2
    assert "tf0, tf1" in capsys.readouterr().err


def test_measured_figures_are_named_checks_beside_the_others(
    doctor: Doctor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    asked: list[Sequence[str]] = []

    def measure(lab: Lab, *_: object, parts: Sequence[str], **__: object) -> Baseline:
        asked.append(parts)
        peaks = (ComputeBaseline("tf0", 1000, 98.5, 1, "openblas", 5.0),)
        return Baseline({}, compute=peaks, missing=("compute: tf1 failed: no numpy",))

    monkeypatch.setenv("LABCTL_HOME", str(tmp_path))
    monkeypatch.setattr("labctl.drive.baseline.measure", measure)
    monkeypatch.setattr("labctl.drive.start.refuse_if_busy", lambda _: None)
    monkeypatch.setattr("labctl.remote.connect.open_units", lambda *_: None)
    doctor(OK)
    assert run(["check", "--lab", "rehearsal", "--compute", "--json"]) == 0
    found = [(each["name"], each["node"], each["status"]) for each in _printed(capsys)]
    assert found == [("spec", "tf0", "ok"), ("compute", "tf0", "ok"), ("compute", "tf1", "skipped")]
    assert asked == [["compute"]]


def test_gpus_are_measured_on_demand_and_a_broken_one_is_exit_1(
    doctor: Doctor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    told = [
        CheckResult("gpu-probe", "tf0", "skipped", "no NVIDIA GPU here"),
        CheckResult("gpu-probe", "tf1", "skipped", "no NVIDIA GPU here"),
    ]
    monkeypatch.setenv("LABCTL_HOME", str(tmp_path))
    monkeypatch.setattr("labctl.drive.gpu_bench.probe_gpus", lambda *_: told)
    monkeypatch.setattr("labctl.drive.start.refuse_if_busy", lambda _: None)
    monkeypatch.setattr("labctl.remote.connect.open_units", lambda *_: None)
    doctor(OK)
    assert run(["check", "--lab", "rehearsal", "--gpu-probe", "--json"]) == 0
    found = [(each["name"], each["status"]) for each in _printed(capsys)]
    assert found == [("spec", "ok"), ("gpu-probe", "skipped"), ("gpu-probe", "skipped")]
    told[1] = CheckResult("gpu-probe", "tf1", "fail", "GPU 0: X", "an end", "reboot")
    assert run(["check", "--lab", "rehearsal", "--gpu-probe"]) == 1
    assert "reboot" in capsys.readouterr().err


def test_a_busy_lab_is_not_measured_and_that_is_no_failure(
    doctor: Doctor,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def busy(_: object) -> None:
        raise LabBusyError("tf0 is busy with run x")

    monkeypatch.setenv("LABCTL_HOME", str(tmp_path))
    monkeypatch.setattr("labctl.drive.start.refuse_if_busy", busy)
    monkeypatch.setattr("labctl.remote.connect.open_units", lambda *_: None)
    doctor(OK)
    assert run(["check", "--lab", "rehearsal", "--network", "--gpu-probe", "--json"]) == 0
    shown = _printed(capsys)[1:]
    assert [(each["name"], each["status"]) for each in shown] == [
        ("network", "skipped"),
        ("gpu-probe", "skipped"),
        ("gpu-probe", "skipped"),
    ]
    assert all("busy with run x" in each["found"] for each in shown)


def _printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return found
