"""Whole runs on the loopback lab: labctl, join server and client are real processes on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here"
)
T = TypeVar("T")

DEADLINE_S = 120.0
# VmHWM is the process's own; ru_maxrss would be that of the test session that it was started from, if larger.
MEASURED = """
import sys
from labctl.__main__ import run
code = run(sys.argv[1:])
status = open("/proc/self/status").read()
sys.stderr.write(f"\\npeak={status.partition('VmHWM:')[2].split()[0]}\\n")
sys.exit(code)
"""
NAPPING = """
import sys, time
print("begun", sys.argv[1], flush=True)
for second in range(int(sys.argv[2])):
    time.sleep(1)
    print("second", second, flush=True)
print("done", end="")
"""
FLOOD = """
import os, time
block = bytes(range(256)) * 128
for _ in range(640):
    os.write(1, block)
    os.write(2, block)
os.write(1, b"\\xff\\xfe no newline at the end")
"""


@dataclass(frozen=True)
class Loopback:
    """A root of its own, and labctl in it."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        return self.root / ".lab/loopback/runs"

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "labctl", *args]

    def labctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.call(self.argv(*args))

    def call(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
        )

    def json(self, *args: str) -> Any:
        place = args.index("--") if "--" in args else len(args)
        done = self.labctl(*args[:place], "--json", *args[place:])
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.argv(*args),
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    @property
    def environment(self) -> dict[str, str]:
        here = str(Path(__file__).resolve().parents[2])
        return {
            **os.environ,
            "LABCTL_HOME": str(self.root),
            "LABCTL_LAB": "loopback",
            "PYTHONPATH": here,
        }

    def script(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(text)
        return str(path)

    def record_with(self, text: str) -> Path:
        """Wait until the client of a run has written this, and return the run's record."""

        def look() -> Path | None:
            for path in self.runs.glob("2*/logs/tf0/stdout"):
                if text in path.read_text():
                    return path.parents[2]
            return None

        return wait_for(look, f"{text!r} in a run's stdout")


def wait_for(look: Callable[[], T | None], what: str) -> T:
    give_up_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_s:
        found = look()
        if found is not None:
            return found
        time.sleep(0.1)
    pytest.fail(f"no {what} within {DEADLINE_S:g} s")


def processes_with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    (tmp_path / ".lab").mkdir()
    root = Loopback(tmp_path)
    yield root
    for process in root.started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)


def test_experiment_runs_and_its_time_is_accounted_for(loopback: Loopback) -> None:
    run = loopback.json("run", "-L", "200", "-n", "3", "--repeat", "4", "--tag", "why=test")
    assert run["outcome"] == "ok"
    assert run["relative_error"] < 1e-5
    assert (run["tasks"], run["size"], run["power"], run["power_computed"]) == (2, 200, 3, 3)
    assert run["step_ms"]["n"] == 4
    assert run["step_ms"]["cold"] > 0
    assert run["tags"] == {"why": "test"}

    rows = run["ledger"]
    phases = [row["phase"] for row in rows]
    assert "import_tensorflow" in phases
    assert "warm_steps" in phases
    for earlier, later in itertools.pairwise(rows):
        assert earlier["start_s"] + earlier["duration_s"] <= later["start_s"] + 1e-5
    explained = sum(row["duration_s"] for row in rows)
    assert explained + run["unexplained_s"] == pytest.approx(run["wall_s"], abs=1e-3)
    assert run["unexplained_s"] < 0.1 * run["wall_s"]

    record = Path(run["record"])
    steps = [json.loads(line) for line in (record / "steps.jsonl").read_text().splitlines()]
    kinds = [step["kind"] for step in steps]
    assert kinds[:5] == ["cold", *["warm"] * 4]
    assert set(kinds[5:]) == {"traced", "no_fetch", "null"}
    kept = json.loads((record / "run.json").read_text())
    (before,), (after,) = kept["servers_before"], kept["servers_after"]
    assert "import_tensorflow" in {each["phase"] for each in before["phases"]}
    assert before["spec_sha256"] == kept["spec_sha256"]
    assert 0 < before["cpu_s"] <= after["cpu_s"]
    assert len(kept["baseline"]["compute"]) == 2
    assert {file["path"] for file in run["files"]} >= {"events.jsonl", "logs/tf0/stderr"}
    for file in run["files"]:
        data = (record / file["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file["sha256"], file["path"]
    assert loopback.json("runs", "show", "last") == run
    assert loopback.json("attach", "last") == run

    shown = loopback.labctl("logs", "last")
    assert {line.split()[1] for line in shown.stdout.splitlines()} == {"tf0", "tf1"}
    assert processes_with(run["run_id"]) == []


def test_floods_of_any_bytes_pass_unharmed_in_flat_memory(loopback: Loopback) -> None:
    script = loopback.script("flood.py", FLOOD)
    measured = [sys.executable, "-c", MEASURED, "run", script, "--json"]
    done = loopback.call(measured)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    block = bytes(range(256)) * 128
    logs = Path(run["record"]) / "logs/tf0"
    expected = block * 640
    assert (logs / "stderr").read_bytes() == expected
    assert (logs / "stdout").read_bytes() == expected + b"\xff\xfe no newline at the end"
    assert peak_mib(done.stderr) < 200

    shown = loopback.call([sys.executable, "-c", MEASURED, "logs", "last"])
    assert shown.returncode == 0
    assert "no newline at the end" in shown.stdout
    assert not set(shown.stdout) & {chr(code) for code in (0x1B, 0x00, 0x07, 0x9B)}
    assert peak_mib(shown.stderr) < 200


def peak_mib(stderr: str) -> float:
    return int(stderr.rpartition("peak=")[2]) / 1024


def test_a_killed_labctl_loses_nothing_and_holds_nobody_up(loopback: Loopback) -> None:
    script = loopback.script("nap.py", NAPPING)
    first = loopback.start("run", script, "--", "here", "8")
    record = loopback.record_with("begun here")
    busy = loopback.labctl("run", script, "--", "there", "1")
    assert busy.returncode == 9
    assert f"labctl attach {record.name}" in busy.stderr
    assert [each["run_id"] for each in loopback.json("runs", "list")] == [record.name]

    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=DEADLINE_S)
    assert [each["outcome"] for each in loopback.json("runs", "list")] == ["interrupted"]
    refused = loopback.labctl("logs", "last", "-f")
    assert refused.returncode == 8
    assert "labctl attach" in refused.stderr

    run = loopback.json("attach", "last")
    assert run["outcome"] == "ok"
    text = (record / "logs/tf0/stdout").read_text()
    assert text == "begun here\n" + "".join(f"second {n}\n" for n in range(8)) + "done"
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest in {file["sha256"] for file in run["files"]}
    assert "unattended" in {row["phase"] for row in run["ledger"]} or run["unexplained_s"] < 1
    assert processes_with(record.name) == []


def test_ctrl_c_cancels_on_the_node_and_keeps_the_logs(loopback: Loopback) -> None:
    script = loopback.script("nap.py", NAPPING)
    process = loopback.start("run", script, "--json", "--", "here", "600")
    record = loopback.record_with("second 0")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    run = json.loads(out)
    assert run["outcome"] == "cancelled"
    assert "its logs are kept" in err
    assert (record / "logs/tf0/stdout").read_text().startswith("begun here\nsecond 0\n")
    assert processes_with(record.name) == []


def test_a_detached_run_can_be_cancelled(loopback: Loopback) -> None:
    script = loopback.script("nap.py", NAPPING)
    run = loopback.json("run", script, "--detach", "--", "here", "600")
    assert run["outcome"] == "running"
    assert processes_with(run["run_id"])
    done = loopback.labctl("cancel", run["run_id"])
    assert done.returncode == 0, done.stderr
    assert loopback.json("runs", "show", run["run_id"])["outcome"] == "cancelled"
    assert processes_with(run["run_id"]) == []


def test_a_run_that_fails_is_stored_with_its_reason(loopback: Loopback) -> None:
    script = loopback.script("bad.py", "import sys\nprint('so far')\nsys.exit('no luck')\n")
    done = loopback.labctl("run", script, "--json")
    assert done.returncode == 5
    run = json.loads(done.stdout)
    assert run["outcome"] == "failed"
    assert "no luck" in run["error"]["message"] + done.stderr
    assert (Path(run["record"]) / "logs/tf0/stdout").read_text() == "so far\n"
