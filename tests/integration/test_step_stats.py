"""The declared fields of step stats against TensorFlow's own classes, on real traces."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.analysis.stepstats import decode

RECORDS = Path(__file__).resolve().parents[1] / "fixtures/records"
FILES = sorted(str(each) for each in RECORDS.glob("*/trace/*.pb"))
PROGRAM = """
import json, sys
from tensorflow.core.framework.step_stats_pb2 import StepStats
files = []
for name in sys.argv[1:]:
    stats = StepStats()
    with open(name, "rb") as file:
        stats.ParseFromString(file.read())
    files.append([
        [
            device.device,
            node.node_name,
            node.timeline_label,
            node.all_start_micros + node.op_start_rel_micros,
            node.all_start_micros + (node.op_end_rel_micros or node.all_end_rel_micros),
            node.output[0].tensor_description.allocation_description.requested_bytes
            if node.output else None,
            node.scheduled_micros,
        ]
        for device in stats.dev_stats for node in device.node_stats
    ])
print(json.dumps(files))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)
def test_every_row_reads_as_tensorflow_reads_it() -> None:
    assert len(FILES) >= 10
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *FILES],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for name, rows in zip(FILES, json.loads(done.stdout), strict=True):
        found = [list(row) for row in decode(Path(name).read_bytes())]
        assert len(found) >= 10
        assert found == rows, name
