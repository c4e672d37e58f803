"""The GPU probe as a program, on fake driver libraries: every figure, every error, and a driver that hangs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.gpu_answer import gpu_answer
from tests.fakes import build, install
from tests.fakes.scenario import Scenario, load

PROBE = Path(__file__).resolve().parents[2] / "labctl/checks/gpu_probe.py"
SMALL = ("--size", "64")

pytestmark = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=str(build.compiler_refused())
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the probe on a machine of a scenario."""

    def start(
        scenario: Scenario | str, *options: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        fakes = install.in_directory(tmp_path / "gpu", scenario)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return subprocess.run(
            [sys.executable, "-I", str(PROBE), *SMALL, *options],
            env={**fakes.environment(clean), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return start


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stderr == ""
    return json.loads(done.stdout)


def only_error(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 1
    (error,) = answer(done)["errors"]
    assert set(error) == {"gpu", "found", "expected", "do"}
    assert all(error[part] for part in ("found", "expected", "do"))
    return dict(error)


def test_every_figure_of_a_cold_start_comes_out(run: Run) -> None:
    scenario = (
        load("healthy-t4")
        .with_gpu(persistence=False)
        .with_cuda(
            wake_s=0.4, context_s=0.3, libraries_s=0.2, handle_s=0.15, first_product_s=0.25, product_s=0.004,
            jit_s=0.35, pinned_bytes_per_s=2e8, pageable_bytes_per_s=1e8, linger_s=0.0,
        )
    )  # fmt: skip
    done = run(scenario)
    found = answer(done)
    assert (done.returncode, found["missing"], found["errors"]) == (0, None, [])
    (gpu,) = found["gpus"]
    assert (gpu["index"], gpu["name"], gpu["compute_capability"]) == (0, "Tesla T4", "7.5")
    assert (gpu["driver"], gpu["library"], gpu["size"]) == ("13.0", "libcublas.so.12", 64)
    assert gpu["memory_bytes"] == 15360 << 20
    assert gpu["memory_free_bytes"] == 15357 << 20
    least = {
        "wake_s": 0.4, "context_s": 0.3, "libraries_s": 0.2, "handle_s": 0.15, "first_product_s": 0.25,
        "jit_s": 0.35, "jit_fill_s": 0.35,
    }  # fmt: skip
    assert {
        name: gpu[name] for name in least if not least[name] <= gpu[name] < least[name] + 5
    } == {}
    # The fake device has its own clock: these do not depend on how busy this machine is.
    assert gpu["warm_product_s"] == pytest.approx(0.004, rel=0.01)
    assert gpu["warm_low_s"] == gpu["warm_high_s"] == pytest.approx(0.004, rel=0.01)
    assert gpu["gflops"] == pytest.approx(2 * 64**3 / 0.004 / 1e9, rel=0.01)
    assert gpu["warm_host_s"] >= 0.004
    assert gpu["jit_cached_s"] < 0.35
    assert gpu["jit_cache_files"] == 1
    assert gpu["launch_s"] >= 5e-6
    assert gpu["relative_error"] < 1e-5
    # A copy takes no less than the scenario says.
    assert 0.2e8 < gpu["h2d_bytes_per_s"] <= 2e8
    assert 0.2e8 < gpu["d2h_bytes_per_s"] <= 2e8
    assert gpu["h2d_pageable_bytes_per_s"] <= 1e8
    assert gpu["d2h_pageable_bytes_per_s"] <= 1e8
    large = {
        (each["way"], each["memory"]): each["bytes_per_s"]
        for each in gpu["copies"]
        if each["size_bytes"] == 1 << 20
    }
    assert len(large) == 4
    assert large["h2d", "page-locked"] > 1.5 * large["h2d", "pageable"]
    assert gpu["persistence"] is False
    (kept,) = gpu_answer(found, "tf0", 1e9).gpus
    assert (kept.node, kept.wake_s, kept.jit_s) == ("tf0", gpu["wake_s"], gpu["jit_s"])


def test_a_driver_that_is_kept_awake_is_told(run: Run) -> None:
    (gpu,) = answer(run("healthy-t4"))["gpus"]
    assert (gpu["persistence"], gpu["awake"]) == (True, True)


def test_every_gpu_is_measured_or_a_chosen_one(run: Run) -> None:
    both = answer(run("healthy-h100"))
    assert [each["index"] for each in both["gpus"]] == [0, 1]
    assert len({each["pci_bus_id"] for each in both["gpus"]}) == 2
    second = answer(run("healthy-h100", "--gpu", "1"))
    assert [each["index"] for each in second["gpus"]] == [1]
    assert second["gpus"][0]["pci_bus_id"] == both["gpus"][1]["pci_bus_id"]
    assert (
        "CUDA_ERROR_INVALID_DEVICE (101)" in only_error(run("healthy-h100", "--gpu", "7"))["found"]
    )


def test_people_get_a_table(run: Run) -> None:
    done = run("healthy-t4", "--table")
    assert done.returncode == 0
    assert done.stdout.startswith("GPU 0: Tesla T4, compute capability 7.5\n")
    for words in ("wake_s", "warm_product_s              1 ms", "GB/s", "d2h pageable"):
        assert words in done.stdout


def test_a_wrong_product_is_found(run: Run) -> None:
    error = only_error(run(load("healthy-t4").with_cuda(wrong_product=True)))
    assert "64 x 64 is wrong" in error["found"]


@pytest.mark.parametrize(
    ("function", "code", "name", "do"),
    [
        ("cuInit", 304, "CUDA_ERROR_OPERATING_SYSTEM", "/dev/nvidia*"),
        ("cuInit", 802, "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),
        ("cuInit", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"),
        ("cuInit", 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cuda-compat"),
        ("cuInit", 34, "CUDA_ERROR_STUB_LIBRARY", "LD_LIBRARY_PATH"),
        ("cuInit", 999, "CUDA_ERROR_UNKNOWN", "dmesg"),
        ("cuDevicePrimaryCtxRetain", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"),
        ("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY", "--size"),
        ("cuCtxSynchronize", 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "ECC"),
        ("cuCtxSynchronize", 719, "CUDA_ERROR_LAUNCH_FAILED", "Xid"),
        ("cuModuleLoadData", 218, "CUDA_ERROR_INVALID_PTX", "newer driver"),
        ("cublasCreate_v2", 1, "CUBLAS_STATUS_NOT_INITIALIZED", "--cublas"),
        ("cublasSgemm_v2", 13, "CUBLAS_STATUS_EXECUTION_FAILED", "--cublas"),
    ],
)
def test_every_error_has_its_name_and_what_to_do(
    run: Run, function: str, code: int, name: str, do: str
) -> None:
    scenario = load("healthy-t4").with_cuda(errors={function: code})
    error = only_error(run(scenario))
    assert error["found"] == f"{function}: {name} ({code})"
    assert do in error["do"]


@pytest.mark.parametrize(
    ("function", "step"),
    [("cuInit", "wake"), ("cuDevicePrimaryCtxRetain", "context"), ("cublasCreate_v2", "handle"),
     ("cublasSgemm_v2", "first_product"), ("cuModuleLoadData", "jit")],
)  # fmt: skip
def test_a_driver_that_hangs_is_left(run: Run, function: str, step: str) -> None:
    begun = time.monotonic()
    error = only_error(run(load("healthy-t4").with_cuda(hang=(function,)), "--step", "1.5"))
    assert error["found"] == f"{step}: did not end within 1.5 s"
    assert time.monotonic() - begun < 60


def test_what_was_measured_before_an_error_is_kept_but_is_no_baseline(run: Run) -> None:
    found = answer(run(load("healthy-t4").with_cuda(errors={"cublasSgemm_v2": 13})))
    (gpu,) = found["gpus"]
    assert gpu["wake_s"] >= 0
    assert "first_product_s" not in gpu
    assert gpu_answer(found, "tf0", 1e9).gpus == ()
    assert len(gpu_answer(found, "tf0", 1e9).problems) == 1


def test_all_is_bounded_by_one_time(run: Run) -> None:
    scenario = load("healthy-h100").with_cuda(context_s=1.2)
    found = answer(run(scenario, "--total", "2"))
    assert [each["gpu"] for each in found["errors"]] in ([0, 1], [1])
    assert all("did not end within" in each["found"] for each in found["errors"])


def test_memory_that_others_hold(run: Run) -> None:
    full = load("memory-held").with_gpu(memory_reserved_mib=15360)
    full = replace(full, gpus=(replace(full.gpus[0], processes=(), memory_mib=15360),))
    error = only_error(run(full))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error["found"]


def test_a_machine_without_a_gpu_has_none(run: Run) -> None:
    done = run("no-gpu")
    found = answer(done)
    assert done.returncode == 1
    assert (found["gpus"], found["errors"]) == ([], [])
    assert found["missing"].startswith("no NVIDIA GPU here: the driver's library cannot be opened")
    assert gpu_answer(found, "tf0", 1e9).missing == found["missing"]
    assert run("no-gpu", "--table").stdout.startswith("no NVIDIA GPU here")
    unseen = answer(run("no-device"))
    assert unseen["missing"] == "no NVIDIA GPU here: cuInit: CUDA_ERROR_NO_DEVICE (100)"


@pytest.mark.parametrize(
    ("scenario", "name"),
    [("mismatch", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), ("no-uvm-node", "CUDA_ERROR_UNKNOWN")],
)
def test_a_broken_driver_is_named(run: Run, scenario: str, name: str) -> None:
    assert name in only_error(run(scenario))["found"]


def test_hidden_gpus_are_told(run: Run) -> None:
    error = only_error(run("healthy-t4", CUDA_VISIBLE_DEVICES=""))
    assert error["found"] == "cuInit: CUDA_ERROR_NO_DEVICE (100)"
    assert "CUDA_VISIBLE_DEVICES" in error["do"]


def test_no_cublas_is_said_with_where_it_was_looked_for(run: Run) -> None:
    scenario = load("healthy-t4").with_cuda(missing=("libcublas.so.12",))
    error = only_error(run(scenario))
    assert "no cuBLAS can be opened" in error["found"]
    assert "LD_LIBRARY_PATH" in error["expected"]
    nowhere = only_error(run("healthy-t4", "--cublas", "/nowhere/libcublas.so.12"))
    assert "/nowhere/libcublas.so.12" in nowhere["found"]


def test_the_venvs_cublas_comes_first(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "venv/lib/python3.11/site-packages/nvidia/cublas/lib"
    folder.mkdir(parents=True)
    shutil.copy2(build.libraries() / "toolkit/libcublas.so.12", folder)
    (gpu,) = answer(run("healthy-t4", "--venv", str(tmp_path / "venv")))["gpus"]
    assert gpu["library_path"] == str(folder / "libcublas.so.12")


def test_a_library_that_crashes_is_told(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "crash.c"
    source.write_text("int cublasCreate_v2(void **handle) { *(volatile int *)1 = 2; return 0; }\n")
    broken = tmp_path / "libcublas.so.12"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(broken), str(source)], check=True)
    error = only_error(run("healthy-t4", "--cublas", str(broken)))
    assert error["found"] == "handle: its process died of SIGSEGV"
    source.write_text("int nothing;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(broken), str(source)], check=True)
    error = only_error(run("healthy-t4", "--cublas", str(broken)))
    assert error["found"] == f"{broken} has no cublasCreate_v2"


def test_ptx_for_a_card_that_is_too_old_is_not_tried(run: Run) -> None:
    done = run("kepler")
    found = answer(done)
    assert done.returncode == 0
    assert "jit_s" not in found["gpus"][0]


@pytest.mark.parametrize(
    "option", ["--size=0", "--size=9000", "--gpu=-1", "--step=0", "--total=x", "--total=nan"]
)
def test_an_option_that_cannot_be_meant(run: Run, option: str) -> None:
    done = run("no-gpu", option)
    assert done.returncode == 2
    assert done.stdout == ""


def test_no_child_outlives_the_probe(tmp_path: Path) -> None:
    fakes = install.in_directory(tmp_path / "gpu", load("healthy-t4").with_cuda(hang=("cuInit",)))
    environment = fakes.environment()
    started = subprocess.Popen(
        [sys.executable, "-I", str(PROBE), *SMALL], env=environment, stdout=subprocess.DEVNULL
    )
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    give_up = time.monotonic() + 30
    while not (found := children.read_text().split()) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert found
    started.send_signal(signal.SIGKILL)
    started.wait(30)
    while Path(f"/proc/{found[0]}").exists() and time.monotonic() < give_up:
        state = Path(f"/proc/{found[0]}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{found[0]}").exists()
