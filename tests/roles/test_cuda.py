"""What the role cuda writes and reads, without a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.checks.collect import CUDA_ENVIRONMENT, LIBRARIES_FILE
from labctl.drive.start import CUDA_ENVIRONMENT as OF_RUNS
from labctl.drive.start import CUDA_KERNEL_CACHE
from labctl.node.gpu import LIBRARIES
from tests.fakes import build, install
from tests.fakes.scenario import load

CHECKOUT = Path(__file__).resolve().parents[2]
ROLE = CHECKOUT / "roles/cuda"
SCRIPT = CHECKOUT / LIBRARIES_FILE

needs_compiler = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=str(build.compiler_refused())
)


def variables(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROLE / name / "main.yml").read_text())
    return found


def test_paths_are_stated_alike_wherever_they_are_used() -> None:
    internals = variables("vars")
    assert internals["__cuda_environment"] == CUDA_ENVIRONMENT == OF_RUNS
    assert internals["__cuda_kernel_cache"] == CUDA_KERNEL_CACHE
    unit = (CHECKOUT / "roles/tf_join_server/templates/tf-join-server.service.j2").read_text()
    assert f"EnvironmentFile=-{CUDA_ENVIRONMENT}\n" in unit
    assert f"ReadWritePaths=-{CUDA_KERNEL_CACHE}\n" in unit
    state = (CHECKOUT / "roles/tf_join_server/files/server_state.py").read_text()
    assert f'"{CUDA_ENVIRONMENT}"' in state


def test_runs_open_the_libraries_that_the_role_opens() -> None:
    import runpy

    assert runpy.run_path(str(SCRIPT))["NEEDED"] == LIBRARIES


@needs_compiler
@pytest.mark.integration
class TestOpening:
    def opened(self, fakes: install.FakeDirectory, *options: str) -> dict[str, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-I", "-c", SCRIPT.read_text(), "--json", *options],
            env=fakes.environment({"PATH": os.defpath}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)}

    def test_all_are_found_by_name(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, "healthy-t4")
        rows = self.opened(fakes, "--all")
        assert {name: row["error"] for name, row in rows.items() if row["error"]} == {}
        assert rows["libcublas.so.12"]["path"] == str(fakes.toolkit_dir / "libcublas.so.12")
        assert rows["libcuda.so.1"]["path"] == str(tmp_path / "driver/libcuda.so.1")
        assert [name for name, row in rows.items() if not row["needed"]] == [
            "libnvidia-ml.so.1",
            "libcupti.so.12",
            "libnccl.so.2",
        ]

    def test_what_is_missing_is_said_with_the_loaders_words(self, tmp_path: Path) -> None:
        lacking = load("no-driver").with_cuda(missing=("libcufft.so.11",))
        rows = self.opened(install.in_directory(tmp_path, lacking))
        assert {name for name, row in rows.items() if row["error"]} == {
            "libcuda.so.1",
            "libcufft.so.11",
        }
        assert "libcufft.so.11: cannot open shared object file" in rows["libcufft.so.11"]["error"]
        assert rows["libcufft.so.11"]["path"] is None
        assert "libcupti.so.12" not in rows


@needs_compiler
@pytest.mark.integration
class TestState:
    def state(self, fakes: install.FakeDirectory, python: Path, cache: Path) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(ROLE / "files/gpu_state.py"), str(python), str(cache)],
            env=fakes.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def test_wheel_devices_driver_and_cache(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path / "fakes", "healthy-h100")
        folder = tmp_path / "venv/lib/python3.11/site-packages/tensorflow/python/platform"
        folder.mkdir(parents=True)
        (folder / "build_info.py").write_text(
            "import collections\nbuild_info = collections.OrderedDict([('is_cuda_build', True), "
            "('cuda_version', '12.5.1'), ('cuda_compute_capabilities', ['sm_60', 'compute_90'])])\n"
        )
        (tmp_path / "cache/a").mkdir(parents=True)
        (tmp_path / "cache/a/kernel").touch()
        assert self.state(fakes, tmp_path / "venv/bin/python", tmp_path / "cache") == {
            "wheel": {
                "is_cuda_build": True,
                "cuda_version": "12.5.1",
                "cuda_compute_capabilities": ["sm_60", "compute_90"],
            },
            "devices": ["NVIDIA H100 80GB HBM3, 9.0"] * 2,
            "driver": "580.95.05",
            "cache_files": 1,
        }

    @pytest.mark.parametrize("name", ["no-driver", "mismatch", "no-module"])
    def test_nothing_is_made_up_where_nothing_answers(self, tmp_path: Path, name: str) -> None:
        fakes = install.in_directory(tmp_path, name)
        assert self.state(fakes, tmp_path / "none/bin/python", tmp_path / "none") == {
            "wheel": {},
            "devices": [],
            "driver": "",
            "cache_files": 0,
        }


@pytest.mark.integration
def test_growth_of_memory_is_given_to_the_server() -> None:
    code = (
        "import sys, tensorflow as tf\nfrom labctl.node.server import server_config\n"
        "config = server_config(tf, 2, use_gpu=True)\n"
        "print(config.gpu_options.allow_growth, 'GPU' in config.device_count)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    assert done.stdout.split() == ["True", "False"], done.stderr
