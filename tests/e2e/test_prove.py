"""The one-thread pool of the fed step: found, proved by its pair, and seen by a comparison of the pair's runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

CAUSE = "inter-op-starved"
ONE, TWO = "tag:variant=as recorded", "tag:variant=--inter-op 2"


def verdict(lab: RehearsalLab, run_id: str, *args: str) -> dict[str, Any]:
    told = lab.labctl_json("why", run_id, *args)
    return next(each for each in told if each["cause"] == CAUSE)


def test_the_pair_confirms_the_price_of_one_inter_op_thread(lab: RehearsalLab) -> None:
    run = lab.labctl_json("run", "--feed", "fed", "-L", "1000", "-n", "5", "--inter-op", "1")
    told = lab.labctl_json("why", run["run_id"])
    assert told[0]["cause"] == CAUSE
    found = verdict(lab, run["run_id"], "--prove", "--cause", CAUSE, "--repeat", "4")
    proved = found["proved"]
    assert proved["outcome"] == "confirmed", proved
    assert proved["seconds"] == pytest.approx(found["seconds"], rel=0.2)
    assert len(proved["runs"]) == 8
    assert verdict(lab, run["run_id"])["proved"] == proved

    slower = lab.labctl("runs", "compare", TWO, "--", ONE, "--json")
    assert slower.returncode == 1, slower.stderr
    compared = json.loads(slower.stdout)
    assert [each["what"] for each in compared["subject"]] == ["inter-op"]
    assert compared["verdict"] == "slower"
    assert sorted(compared["a"] + compared["b"]) == sorted(proved["runs"])
    assert lab.labctl("runs", "compare", ONE, "--", TWO).returncode == 0
