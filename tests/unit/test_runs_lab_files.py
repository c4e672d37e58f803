"""What is kept of a lab beside its runs."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.runs.baseline import Baseline, LinkBaseline
from labctl.runs.lab_files import (
    BASELINE_FILE,
    PHASES_FILE,
    add_phases,
    forget_baseline,
    read_baseline,
    read_phases,
    write_baseline,
)
from labctl.runs.record import LabPhase
from tests.unit.test_predict_gpu import gpu_of

BASELINE = Baseline(
    {"tf0": "a", "tf1": "b"}, (LinkBaseline("tf0", "tf1", 1e9, None, None, 5.0, "iperf 3.12"),)
)


def up(phase: str, node: str, at_s: float) -> LabPhase:
    return LabPhase(phase, node, "up", at_s, 1.0)


def test_a_baseline_comes_back_and_is_private(tmp_path: Path) -> None:
    assert read_baseline(tmp_path) is None
    write_baseline(tmp_path, BASELINE)
    assert read_baseline(tmp_path) == BASELINE
    assert stat.S_IMODE((tmp_path / BASELINE_FILE).stat().st_mode) == 0o600
    forget_baseline(tmp_path)
    forget_baseline(tmp_path)
    assert read_baseline(tmp_path) is None


def test_figures_of_gpus_may_outlive_the_others(tmp_path: Path) -> None:
    gpus = (gpu_of("tf0"),)
    write_baseline(tmp_path, replace(BASELINE, gpus=gpus))
    forget_baseline(tmp_path, keep_gpus=True)
    assert read_baseline(tmp_path) == Baseline(BASELINE.boot_ids, gpus=gpus)
    forget_baseline(tmp_path)
    assert read_baseline(tmp_path) is None
    write_baseline(tmp_path, BASELINE)
    forget_baseline(tmp_path, keep_gpus=True)
    assert not (tmp_path / BASELINE_FILE).exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"format": 2, "boot_ids": {}}', '{"format": 1}', "[" * 99999, "\udcff"],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    for name in (BASELINE_FILE, PHASES_FILE):
        (tmp_path / name).write_text(text, errors="surrogateescape")
    assert read_baseline(tmp_path) is None
    assert read_phases(tmp_path) == ()
    add_phases(tmp_path, "up", [up("boot", "tf0", 1.0)], ["tf0"])
    assert len(read_phases(tmp_path)) == 1


def test_an_up_that_did_nothing_leaves_what_is_known(tmp_path: Path) -> None:
    add_phases(tmp_path, "up", [], ["tf0"])
    assert not (tmp_path / PHASES_FILE).exists()
    add_phases(tmp_path, "up", [up("boot", "tf0", 1.0)], ["tf0"])
    add_phases(tmp_path, "up", [], ["tf0"])
    assert read_phases(tmp_path) == (up("boot", "tf0", 1.0),)


def test_an_up_replaces_the_machines_that_it_made(tmp_path: Path) -> None:
    first = [up("image", "", 1.0), *(up("boot", f"tf{k}", 2.0 + k) for k in range(3))]
    add_phases(tmp_path, "up", first, ["tf0", "tf1", "tf2"])
    add_phases(tmp_path, "up", [up("network", "", 8.0), up("boot", "tf1", 9.0)], ["tf0", "tf1"])
    assert read_phases(tmp_path) == (
        up("image", "", 1.0),
        up("boot", "tf0", 2.0),
        up("network", "", 8.0),
        up("boot", "tf1", 9.0),
    )


def test_a_provision_replaces_the_one_before_and_nothing_of_up(tmp_path: Path) -> None:
    add_phases(tmp_path, "up", [up("boot", "tf0", 1.0)], ["tf0"])
    for at_s in (5.0, 7.0):
        role = LabPhase("role lab_base", "", "provision", at_s, 2.0)
        add_phases(tmp_path, "provision", [role], ["tf0"])
    assert [each.started_unix_s for each in read_phases(tmp_path)] == [1.0, 7.0]
