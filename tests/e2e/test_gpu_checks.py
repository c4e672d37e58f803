"""GPU checks on two machines with fake GPUs: each fault's one message and exit code, warnings, and a healthy start.

The lab has TensorFlow's CPU build; its build info is exchanged for that of the GPU build, which the checks read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import build, install
from tests.fakes.scenario import Scenario, load

if TYPE_CHECKING:
    from labctl.remote.base import Executor
    from tests.conftest import RehearsalLab

UNIT = "tf-join-server.service"
DROPIN = f"/run/systemd/system/{UNIT}.d"
BUILD_INFO = "/opt/labctl/venv/lib/python3*/site-packages/tensorflow/python/platform/build_info.py"
# As the wheel of TensorFlow 2.21 for GPUs has it.
GPU_BUILD = (
    "import collections\n\n"
    "build_info = collections.OrderedDict([('cpu_compiler', 'clang'), ('cuda_compute_capabilities', "
    "['sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90']), ('cuda_version', '12.5.1'), ('cudnn_version', '9'), "
    "('is_cuda_build', True), ('is_rocm_build', False), ('is_tensorrt_build', False)])\n"
)
EXCHANGE = f"f=$(ls {BUILD_INFO}) && cp -a $f $f.kept && cat > $f.new && mv $f.new $f"
RESTORE = f"f=$(ls {BUILD_INFO}) && mv $f.kept $f"
ALONE = f"mkdir -p {DROPIN} && printf '[Service]\\nPrivateDevices=%s\\n' no > {DROPIN}/devices.conf"
RESTART = f"systemctl daemon-reload && systemctl reset-failed {UNIT} && systemctl restart {UNIT}"
SMALL = ("-L", "64", "--repeat", "2", "--no-trace")

pytestmark = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=f"fake GPUs: {build.compiler_refused()}"
)


@pytest.fixture(scope="module")
def nodes(lab: RehearsalLab) -> Iterator[dict[str, Executor]]:
    """Both machines with a healthy T4 each; all is taken back at the end."""
    opened = {node.name: lab.open(node.name) for node in lab.lab.nodes}

    def root(name: str, command: str, data: bytes = b"") -> None:
        done = opened[name].run(["sh", "-ec", command], sudo=True, input=data, timeout_s=60)
        done.check(name, command)

    try:
        for name, executor in opened.items():
            install.on_machine(executor, "healthy-t4")
            root(name, EXCHANGE, GPU_BUILD.encode())
        root("tf1", f"{ALONE} && {RESTART}")
        yield opened
        for name, executor in opened.items():
            install.remove(executor)
            root(name, RESTORE)
        root("tf1", f"rm -r {DROPIN} && {RESTART}")
    finally:
        for executor in opened.values():
            executor.close()


def put(
    nodes: dict[str, Executor], tf1: Scenario | str, tf0: Scenario | str = "healthy-t4"
) -> None:
    install.on_machine(nodes["tf0"], tf0)
    install.on_machine(nodes["tf1"], tf1)


@pytest.mark.parametrize(
    ("scenario", "says", "do"),
    [
        ("no-gpu", "tf1 has no GPU driver: nvidia-smi: No such", "give tf1 a GPU"),
        ("no-driver", "tf1 has no GPU driver: nvidia-smi: No such", "labctl provision"),
        ("no-module", "tf1 has no GPU driver: NVIDIA-SMI has failed", "modprobe nvidia"),
        ("no-device", "tf1 has no usable GPU: nvidia-smi lists none", "give tf1 a GPU"),
        ("mismatch", "Driver/library version mismatch", "driver upgraded, reboot tf1"),
        ("nouveau", "nouveau has the GPU", "reboot tf1"),
        ("nova", "nova_core, nova_drm has the GPU", "reboot tf1"),
        ("secure-boot", "Secure Boot is on", "switch Secure Boot off on tf1"),
        (
            "no-device-nodes",
            "tf-join cannot open /dev/nvidiactl and 2 more on tf1: Permission",
            "0666",
        ),
        ("no-uvm-node", "tf1 has a GPU, but no /dev/nvidia-uvm", "nvidia-modprobe"),
        ("memory-held", f"of {install.HOLDER_UNIT}, holds 14.5 GiB of GPU 0", "systemctl stop"),
        ("kepler", "GPU 0 (Tesla K80) of tf1 has compute capability 3.7, too old", "newer GPU"),
    ],
)
def test_a_fault_is_one_message_and_exit_3_before_anything_is_started(
    lab: RehearsalLab, nodes: dict[str, Executor], scenario: str, says: str, do: str
) -> None:
    put(nodes, scenario)
    before = runs_of(lab)
    begun = time.monotonic()
    done = lab.labctl("run", "--gpu", *SMALL)
    assert time.monotonic() - begun < 60
    assert done.returncode == 3, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("labctl: ")]
    assert says in message
    (advice,) = [line for line in done.stderr.splitlines() if line.startswith("  do ")]
    assert do in advice
    assert done.stdout == ""
    assert runs_of(lab) == before


@pytest.mark.parametrize(
    ("cuda", "says"),
    [
        ({"missing": ("libcudnn.so.9",)}, "tf1 cannot open libcudnn.so.9"),
        ({"errors": {"cuInit": 802}}, "CUDA does not start for tf-join on tf1: cuInit returns 802"),
    ],
)
def test_a_library_that_is_missing_or_does_not_start_refuses_too(
    lab: RehearsalLab, nodes: dict[str, Executor], cuda: dict[str, Any], says: str
) -> None:
    put(nodes, load("healthy-t4").with_cuda(**cuda))
    done = lab.labctl("run", "--gpu", *SMALL)
    assert done.returncode == 3
    assert says in done.stderr


def test_a_unit_that_hides_its_devices_is_found(
    lab: RehearsalLab, nodes: dict[str, Executor]
) -> None:
    put(nodes, "healthy-t4")
    change = f"sed -i s/=no/=yes/ {DROPIN}/devices.conf && {RESTART}"
    mend = f"sed -i s/=yes/=no/ {DROPIN}/devices.conf && {RESTART}"
    lab.ssh("tf1", ["sudo", "sh", "-ec", change])
    try:
        done = lab.labctl("run", "--gpu", *SMALL)
    finally:
        lab.ssh("tf1", ["sudo", "sh", "-ec", mend])
    assert done.returncode == 3
    assert "tf-join-server on tf1 does not see /dev/nvidiactl and 2 more" in done.stderr


def test_a_healthy_lab_comes_to_tensorflows_own_devices_and_no_further(
    lab: RehearsalLab, nodes: dict[str, Executor]
) -> None:
    put(nodes, "healthy-t4")
    checks = {(each["name"], each["node"]): each for each in lab.labctl_json("check", "--gpu")}
    assert {key for key, each in checks.items() if each["status"] == "fail"} == set()
    assert checks["gpu", "tf0"]["found"].startswith("0: Tesla T4, driver 580.95.05, 15.0 GiB")
    assert checks["cuda-libraries", "tf1"]["found"].endswith("opened")
    assert checks["gpu-access", "tf1"]["found"].startswith("tf-join opens /dev/nvidiactl")
    done = lab.labctl("run", "--gpu", *SMALL)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("labctl: ")]) == 1
    record = record_of(lab)
    assert record["outcome"] == "failed"
    for node in record["nodes"]:
        (gpu,) = node["gpus"]
        assert (gpu["name"], gpu["compute_capability"], gpu["persistence"]) == (
            "Tesla T4",
            "7.5",
            True,
        )
        assert node["cuda"]["is_cuda_build"] is True
        assert node["cuda"]["compiles"] is False


def test_what_only_costs_time_is_said_before_the_run_and_kept(
    lab: RehearsalLab, nodes: dict[str, Executor]
) -> None:
    slow = load("no-kernels").with_gpu(
        persistence=False, clocks_event_reasons=("sw_power_cap",), temperature_c=87
    )
    put(nodes, slow)
    results = lab.labctl_json("check", "--gpu")
    failed = {(each["name"], each["node"]) for each in results if each["status"] == "fail"}
    slowed = ("gpu-compile", "gpu-persistence", "gpu-clocks")
    assert failed == {(name, "tf1") for name in slowed}
    done = lab.labctl("run", "--gpu", *SMALL)
    assert done.returncode == 5, done.stderr
    lines = done.stderr.splitlines()
    places = [
        next(n for n, line in enumerate(lines) if line.startswith(f"warning {name}: "))
        for name in slowed
    ]
    assert max(places) < next(n for n, line in enumerate(lines) if line.startswith("running "))
    warnings = record_of(lab)["warnings"]
    assert [each.partition(":")[0] for each in warnings[:3]] == list(slowed)
    assert "sw-power-cap on GPU 0 (NVIDIA B200) of tf1" in warnings[2]


def test_a_run_on_cpus_asks_nothing_of_broken_gpus(
    lab: RehearsalLab, nodes: dict[str, Executor]
) -> None:
    put(nodes, "mismatch", "no-driver")
    done = lab.labctl("run", "--cpu", *SMALL)
    assert done.returncode == 0, done.stderr
    assert all(not node["gpus"] and node["cuda"] is None for node in record_of(lab)["nodes"])


def test_both_flags_compare_the_devices_of_one_lab(lab: RehearsalLab) -> None:
    """Both sides compute on CPUs here, which the comparison must say."""
    done = lab.labctl(
        "run", "--gpu", "--cpu", "--soft-placement", "--pairs", "1", "-L", "64", "--repeat", "3", "--json"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (len(told["gpu"]), len(told["cpu"])) == (1, 1)
    assert [each["name"] for each in told["verdicts"]] == ["warm step", "cold step", "stopwatch"]
    assert {each["verdict"] for each in told["verdicts"]} == {None}
    assert any("ran on CPUs" in note for note in told["notes"])
    entries = {each["run_id"]: each for each in lab.labctl_json("runs", "list")}
    for device in ("gpu", "cpu"):
        (run_id,) = told[device]
        assert entries[run_id]["device"] == device
        assert entries[run_id]["tags"]["pair"] == told["pair"]


def runs_of(lab: RehearsalLab) -> list[str]:
    """Return the ids of the lab's runs, oldest first."""
    store = lab.root / ".lab" / lab.name / "runs"
    return sorted(each.name for each in store.glob("*") if each.name[0].isdigit())


def record_of(lab: RehearsalLab) -> dict[str, Any]:
    """Return the last run's record as it is stored."""
    path = lab.root / ".lab" / lab.name / "runs" / runs_of(lab)[-1] / "run.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
