"""A traced run on two machines adds up, and tells each tensor's way between them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab


def test_a_traced_run_adds_up_and_lists_its_edges(lab: RehearsalLab) -> None:
    run = lab.labctl_json("run", "--trace", "--feed", "fed", "--inter-op", "1")
    assert run["outcome"] == "ok", run["error"]
    for rows, rest_s in [
        (run["ledger"], run["unexplained_s"]),
        *((node["rows"], node["unexplained_s"]) for node in run["nodes"]),
    ]:
        total_s = math.fsum(row["duration_s"] for row in rows)
        assert total_s + rest_s == pytest.approx(run["wall_s"], abs=1e-6)
        assert rest_s < 0.05 * run["wall_s"]
        for row, after in pairwise(rows):
            assert row["start_s"] + row["duration_s"] <= after["start_s"] + 1e-9
    assert [node["node"] for node in run["nodes"]] == ["labctl", "tf0", "tf1"]
    phases = {row["phase"] for row in run["ledger"]}
    assert phases >= {"import_tensorflow", "connect_peers", "graph_setup", "first_run"}
    assert {"warm wait task:1", "warm compute task:1", "warm fetch"} <= phases

    edges = {edge["target"]: edge for edge in run["edges"]}
    assert [edges[task]["bytes"] for task in (0, 1)] == [4_000_000, 4_000_000]
    assert all(edge["mb_per_s"] > 0 and not edge["clamped"] for edge in edges.values())
    assert edges[1]["waited_ms"] > 5 * edges[1]["wire_ms"]  # one thread: the answer queues
    assert [task["products"] for task in run["tasks_traced"]] == [4, 4]
    assert math.fsum(row["seconds"] for row in run["split"]) == pytest.approx(
        run["step_ms"]["warm_median"] / 1e3, abs=1e-6
    )
    assert run["tracing"]["n"] == 3
    assert not any(line["absurd"] for line in run["clock"])
    # A host that was busier at one of the two measurements shows in these lines alone.
    told = [each for each in run["problems"] if "baseline" not in each]
    assert told == []
