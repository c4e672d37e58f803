"""The role cuda on two machines with fake GPUs, each test from where the one before it left off.

The first tests need no build of TensorFlow for GPUs and run the role alone; then tf1 gets that build (its wheel
without NVIDIA's, as a system's toolkit is there).
"""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import CHECKOUT
from tests.fakes import build, install
from tests.fakes.scenario import Scenario, load

if TYPE_CHECKING:
    from tests.conftest import RehearsalLab

pytestmark = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=f"fake GPUs: {build.compiler_refused()}"
)

UNIT = "tf-join-server.service"
CACHE = "/var/cache/labctl/cuda"
ENVIRONMENT = "/etc/labctl/cuda.env"
GPU = {"tensorflow_build": "gpu", "cuda_libraries": "system"}
ALONE = ("--tags", "cuda")
ONLY_TF1 = ("--limit", "tf1,localhost")
FILL = f"mkdir -p {CACHE}/7 && head -c 5000 /dev/urandom > {CACHE}/7/kernel"


def put(lab: RehearsalLab, scenario: Scenario | str, *names: str) -> None:
    for name in names or ("tf0", "tf1"):
        with contextlib.closing(lab.open(name)) as executor:
            install.on_machine(executor, scenario)


def provision(
    lab: RehearsalLab, *options: str, name: str = "provision.yml", **variables: Any
) -> subprocess.CompletedProcess[str]:
    return lab.playbook(name, "--extra-vars", json.dumps({**GPU, **variables}), *options)


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def root(lab: RehearsalLab, node: str, command: str) -> str:
    return lab.ssh(node, ["sudo", "sh", "-ec", command]).stdout.strip()


def changes(stdout: str) -> dict[str, int]:
    return {
        node: int(count)
        for node, count in re.findall(r"^(tf\d)\s.*?changed=(\d+)", stdout, re.MULTILINE)
    }


@pytest.fixture(scope="module")
def gpus(lab: RehearsalLab) -> Iterator[RehearsalLab]:
    """The two machines, with a healthy T4 each; the build for CPUs is back at the end."""
    put(lab, "healthy-t4")
    yield lab
    for name in ("tf0", "tf1"):
        with contextlib.closing(lab.open(name)) as executor:
            install.remove(executor)
    lab.labctl("provision", timeout_s=900, check=True)
    for name in ("tf0", "tf1"):
        assert root(lab, name, f"ls {ENVIRONMENT} {CACHE} 2>/dev/null || true") == ""


def test_a_toolkit_that_is_not_there_is_named_before_anything_is_made(gpus: RehearsalLab) -> None:
    done = provision(gpus, *ALONE, cuda_toolkit_dir="/opt/nowhere")
    assert done.returncode == 2
    assert "tf0: /opt/nowhere/lib64 is no directory" in done.stdout
    assert gpus.ssh("tf0", ["ls", ENVIRONMENT], check=False).returncode != 0


def test_check_mode_makes_nothing(gpus: RehearsalLab) -> None:
    stdout = passed(provision(gpus, *ALONE, "--check", "--diff"))
    assert min(changes(stdout)[name] for name in ("tf0", "tf1")) >= 2
    assert "+CUDA_MODULE_LOADING=LAZY" in stdout
    assert gpus.ssh("tf0", ["ls", ENVIRONMENT], check=False).returncode != 0


def test_every_library_is_opened_and_reported(gpus: RehearsalLab) -> None:
    stdout = passed(provision(gpus, *ALONE))
    for name in build.TOOLKIT["stub"]:
        if name not in {
            "libcurand.so.10",
            "libnvrtc.so.12",
        }:  # TensorFlow does not open these itself
            assert f"{name}  {install.TOOLKIT_DIR}/{name}" in stdout
    assert f"libcuda.so.1  {install.DRIVER_DIR}/libcuda.so.1" in stdout
    assert "tf1: Tesla T4, 7.5" in stdout


def test_one_environment_and_a_cache_of_the_user_who_runs_tensorflow(gpus: RehearsalLab) -> None:
    for node, user in (("tf0", "labctl"), ("tf1", "tf-join")):
        lines = root(gpus, node, f"cat {ENVIRONMENT}").splitlines()
        assert set(lines[1:]) == {
            f"CUDA_CACHE_PATH={CACHE}",
            "CUDA_CACHE_MAXSIZE=2147483648",
            "CUDA_MODULE_LOADING=LAZY",
            "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/cuda/extras/CUPTI/lib64",
        }
        assert root(gpus, node, f"stat -c '%U %a' {CACHE}") == f"{user} 750"


def test_a_library_that_is_missing_is_named(gpus: RehearsalLab) -> None:
    put(gpus, load("healthy-t4").with_cuda(missing=("libcudnn.so.9", "libcupti.so.12")), "tf1")
    done = provision(gpus, *ALONE)
    put(gpus, "healthy-t4", "tf1")
    assert done.returncode == 2
    assert "tf1: tf-join cannot open libcudnn.so.9: libcudnn.so.9: cannot open" in done.stdout
    assert "put them into /usr/local/cuda/lib64 or" in done.stdout
    assert done.stdout.count("cannot open libcupti") == 0


def test_kernel_cache_outlives_the_machine_unless_the_driver_is_another(
    gpus: RehearsalLab, tmp_path: Path
) -> None:
    local = {"cuda_kernel_cache_local_dir": str(tmp_path / "kernel-cache")}
    alone = (*ALONE, *ONLY_TF1)
    root(gpus, "tf1", f"{FILL} && sha256sum {CACHE}/7/kernel > /run/kernel.sha256")
    passed(provision(gpus, name="playbooks/keep_kernel_cache.yml", **local))
    assert [
        path.name for path in (tmp_path / "kernel-cache").iterdir() if path.suffix == ".gz"
    ] == ["tf1.tar.gz"]
    root(gpus, "tf1", f"rm -r {CACHE}")
    passed(provision(gpus, *alone, **local))
    root(gpus, "tf1", "sha256sum --check /run/kernel.sha256")
    assert root(gpus, "tf1", f"stat -c %U {CACHE}/7/kernel") == "tf-join"
    root(gpus, "tf1", f"rm -r {CACHE}")
    (tmp_path / "kernel-cache/tf1.driver").write_text("550.54.15")
    assert "made under driver 550.54.15" in passed(provision(gpus, *alone, **local))
    assert root(gpus, "tf1", f"ls {CACHE}") == ""


def test_build_for_gpus_changes_nothing_the_second_time(gpus: RehearsalLab) -> None:
    stdout = passed(provision(gpus, *ONLY_TF1))
    assert "TensorFlow for CUDA 12.5.1, cuDNN 9, kernels for sm_60" in stdout
    assert changes(passed(provision(gpus, *ONLY_TF1))) == {"tf1": 0}


def test_names_are_those_that_the_wheel_itself_opens(gpus: RehearsalLab) -> None:
    """TensorFlow's own loader is asked; the fakes' list and the run's are the same."""
    from labctl.node.gpu import LIBRARIES

    script = (CHECKOUT / "tests/wheel_libraries.py").read_text()
    told = json.loads(gpus.ssh("tf1", ["/opt/labctl/venv/bin/python", "-I", "-c", script]).stdout)
    listed = runpy.run_path(str(CHECKOUT / "roles/cuda/files/open_libraries.py"))
    of_driver, of_others = {"libcuda.so.1"}, {"libnvJitLink.so.12"}
    assert set(listed["NEEDED"]) == {*told["needed"], *of_driver, *of_others}
    assert set(LIBRARIES) == set(listed["NEEDED"])
    assert {*told["all"]} <= {*listed["NEEDED"], *listed["FOR_FEATURES"]}
    faked = {
        name for group in (build.DRIVER, build.TOOLKIT) for each in group.values() for name in each
    }
    assert faked >= {*listed["NEEDED"], *listed["FOR_FEATURES"]}


def test_join_server_runs_with_the_environment_and_grows_its_memory(gpus: RehearsalLab) -> None:
    pid = root(gpus, "tf1", f"systemctl show --property=MainPID --value {UNIT}")
    environment = root(gpus, "tf1", f"tr '\\0' '\\n' < /proc/{pid}/environ").splitlines()
    assert {f"CUDA_CACHE_PATH={CACHE}", "CUDA_MODULE_LOADING=LAZY"} <= set(environment)
    inside = ["nsenter", "--target", pid, "--mount", "--setuid", "0"]
    assert root(gpus, "tf1", " ".join([*inside, "ls", "/dev/nvidia0"])) == "/dev/nvidia0"
    writes = f"setpriv --reuid=tf-join --regid=tf-join --clear-groups touch {CACHE}/x"
    root(gpus, "tf1", " ".join([*inside, *writes.split()]))
    # TensorFlow sees no device in a fake, and says so; it neither fails nor takes memory.
    log = root(gpus, "tf1", f"journalctl --output=cat --unit={UNIT} _PID={pid}")
    assert "CUDA_ERROR_NO_DEVICE" in log
    growth = (
        "import sys; sys.path.insert(0, '/opt/labctl/lib/join_server')\n"
        "import tensorflow as tf\nfrom labctl_node.server import server_config\n"
        "print(server_config(tf, 2, use_gpu=True).gpu_options.allow_growth)"
    )
    done = gpus.ssh("tf1", ["sudo", "/opt/labctl/venv/bin/python", "-c", growth])
    assert done.stdout.strip() == "True"


def test_server_is_restarted_when_its_environment_changes(gpus: RehearsalLab) -> None:
    was = root(gpus, "tf1", f"systemctl show --property=InvocationID --value {UNIT}")
    options = (*ONLY_TF1, "--tags", "cuda,tf_join_server")
    passed(provision(gpus, *options, cuda_kernel_cache_max_bytes=2**30))
    assert root(gpus, "tf1", f"systemctl show --property=InvocationID --value {UNIT}") != was
    pid = root(gpus, "tf1", f"systemctl show --property=MainPID --value {UNIT}")
    assert "CUDA_CACHE_MAXSIZE=1073741824" in root(
        gpus, "tf1", f"tr '\\0' '\\n' < /proc/{pid}/environ"
    )
