"""Help and completion stay light: nothing heavy is imported for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("paramiko", "numpy", "ansible", "ansible_runner", "tensorflow", "yaml", "cryptography")
PROGRAM = f"""
import sys
from labctl.__main__ import run
code = run(sys.argv[1:])
heavy = {{name.split('.')[0] for name in sys.modules}} & set({HEAVY!r})
sys.exit(f"imported {{sorted(heavy)}}" if heavy else code)
"""


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["run", "--help"], ["runs", "--help"]])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "labctl" in done.stdout


def test_completion_imports_nothing_heavy_and_completes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "_LABCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": "labctl pro",
            "COMP_CWORD": "1",
        },
    )
    assert "imported" not in done.stderr
    assert "provision" in done.stdout
