"""The question's experiment on two machines: every claim gets a verdict from runs of this lab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab


def test_the_question_is_answered(lab: RehearsalLab, tmp_path: Path) -> None:
    document = tmp_path / "answer.md"
    done = lab.labctl("answer", "--quick", "--json", "--write", str(document), timeout_s=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    claims = {each["claim"]: each for each in found["claims"]}
    assert claims["cpu-runs-well"]["verdict"] == "confirmed"
    assert claims["recursion"]["verdict"] == "refuted"
    assert any("equal byte for byte" in fact for fact in claims["recursion"]["facts"])
    assert claims["cubic-is-slow"]["verdict"] in {"refuted", "undecided"}
    assert claims["memory-latency"]["verdict"] == "needs-gpu"
    assert claims["transfers"]["verdict"] in {"refuted", "undecided"}
    assert claims["cold-start"]["verdict"] == "confirmed"
    shown = {each["defect"]: each["shown"] for each in found["defects"]}
    assert "A^6 + B^6" in shown["one-factor-more"]
    assert found["failed"] == []
    again = tmp_path / "again.md"
    told = lab.labctl("answer", "--from", found["tag"], "--write", str(again), timeout_s=60)
    assert told.returncode == 0, told.stderr
    assert again.read_text() == document.read_text()
    planned = lab.labctl_json("plan", "--algorithm", "listing", timeout_s=60)
    assert 0 < planned["prediction"]["warm"]["value"] < 5
