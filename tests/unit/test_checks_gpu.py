"""The checks of GPUs on a node's answer: which faults refuse a run, which only warn, and what each says."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from labctl.checks.doctor import CHECKS, GPU_NAMES, judge, preflight_names, to_error
from labctl.checks.facts import Contact, Observed
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.gpu_parse import cuda_state, gpu_states, throttle_reasons
from labctl.checks.judge_gpu import MARGIN_BYTES, needed_bytes
from labctl.checks.kernels import Kernels, kernels_for
from labctl.checks.model import CheckResult
from labctl.checks.parse import node_facts
from labctl.checks.reader import FactsError
from labctl.errors import ConfigError
from labctl.lab.model import Lab, Node, SshTarget

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/checks"
LAB = Lab(
    "rehearsal",
    tuple(
        Node(f"tf{k}", k, f"10.132.0.{k + 2}", 2222, SshTarget(f"10.132.0.{k + 2}"))
        for k in range(2)
    ),
    Path("inventory/rehearsal"),
    "rehearsal",
    Path(".lab/rehearsal"),
)
THOUSAND = GpuNeed(1000)
# TensorFlow 2.21's own.
TARGETS = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]
BUS = (
    "0000:00:1e.0 3D controller [0302]: NVIDIA Corporation TU104GL [Tesla T4] [10de:1eb8] (rev a1)"
)
DEVICE = {
    "index": "0",
    "name": "Tesla T4",
    "uuid": "GPU-1",
    "driver_version": "580.95.05",
    "compute_cap": "7.5",
    "memory.total": "15360",
    "memory.used": "3",
    "memory.free": "15357",
    "persistence_mode": "Enabled",
    "clocks.sm": "300",
    "clocks.max.sm": "1590",
    "power.limit": "70.00",
    "temperature.gpu": "34",
    "clocks_event_reasons.active": "0x0000000000000001",
}
HEALTHY: dict[str, Any] = {
    "persistenced": "active",
    "smi": {"code": 0, "said": "", "first_s": 0.31, "second_s": 0.09},
    "devices": [DEVICE],
    "apps": [],
    "on_bus": [BUS],
    "modules": ["nvidia", "nvidia_uvm"],
    "secure_boot": False,
    "loaded_version": "580.95.05",
    "dev_nodes": ["nvidia-uvm", "nvidia0", "nvidiactl"],
    "access": {
        "user": "labctl",
        "denied": {},
        "hidden": [],
        "cuda": "13.0",
        "init": 0,
        "count": 1,
        "error": None,
    },
    "wheel": {
        "error": None,
        "build": {
            "is_cuda_build": True,
            "cuda_compute_capabilities": TARGETS,
            "cuda_version": "12.5.1",
            "cudnn_version": "9",
        },
    },
    "cache": {"path": "/var/cache/labctl/cuda", "files": 0, "bytes": 0, "max_bytes": 4 << 30},
    "libraries": {"tried": [{"name": "libcublas.so.12", "error": None}], "error": ""},
}


def merge(into: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(into.get(key), dict)
        into[key] = merge(into[key], value) if both else copy.deepcopy(value)
    return into


def gpu(device: Mapping[str, Any] | None = None, **change: Any) -> dict[str, Any]:
    """Return a healthy GPU answer with changes; `device` changes fields of its one GPU."""
    data = merge(copy.deepcopy(HEALTHY), change)
    if device is not None:
        data["devices"] = [{**DEVICE, **device}]
    return data


def node_answer(node: str, answer: dict[str, Any] | None, tensorflow: str = "2.21.0") -> Any:
    data = json.loads((FIXTURES / f"{node}.json").read_text(encoding="utf-8"))
    data["venv"]["packages"] = {"tensorflow": tensorflow, "numpy": "2.4"}
    data["gpu"] = answer
    return data


def seen(
    tf0: dict[str, Any] | None = None,
    tf1: dict[str, Any] | None = None,
    *,
    need: GpuNeed | None = THOUSAND,
    tensorflow: tuple[str, str] = ("2.21.0", "2.21.0"),
) -> Observed:
    """Return a lab with these GPU answers, healthy ones where none is given."""
    answers = {"tf0": tf0 or gpu(), "tf1": tf1 or gpu()}
    return Observed(
        lab=LAB,
        gpu=need,
        contacts={name: Contact(0.3) for name in answers},
        facts={
            name: node_facts(node_answer(name, answer, version))
            for (name, answer), version in zip(answers.items(), tensorflow, strict=True)
        },
        unreadable={},
        listener=None,
        reach={},
        outside={},
        offsets={},
    )


def of_gpu(observed: Observed) -> list[CheckResult]:
    return judge(observed, [check for check in CHECKS if check.gpu])


def result(observed: Observed, name: str, node: str = "tf1") -> CheckResult:
    (found,) = [each for each in of_gpu(observed) if (each.name, each.node) == (name, node)]
    return found


def failed(observed: Observed) -> dict[tuple[str, str], bool]:
    """Return the failures, and of each whether it only warns."""
    return {
        (each.name, each.node): each.warns for each in of_gpu(observed) if each.status == "fail"
    }


def test_healthy_gpus_pass_every_check() -> None:
    results = of_gpu(seen())
    assert {each.status for each in results} == {"ok"}
    assert {each.name for each in results} == GPU_NAMES
    assert result(seen(), "gpu").found == (
        "0: Tesla T4, driver 580.95.05, 15.0 GiB; nvidia-smi took 0.31 s, then 0.09 s"
    )
    assert "nothing: machine code for all GPUs" in result(seen(), "gpu-compile").found


def test_without_gpu_nothing_of_this_is_looked_at_or_asked_before_a_run() -> None:
    asked_not = seen(need=None)
    assert {(each.status, each.found) for each in of_gpu(asked_not)} == {
        ("skipped", "not asked for (--gpu)")
    }
    assert not preflight_names(gpu=False) & GPU_NAMES
    assert preflight_names(gpu=True) >= GPU_NAMES


MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch; NVML library version: 580.95"
)
SILENT = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
ABSENT = "nvidia-smi: No such file or directory"


def broken(code: int | None, said: str, **change: Any) -> dict[str, Any]:
    smi = {"code": code, "said": said, "first_s": 0.1, "second_s": None}
    return gpu(smi=smi, devices=[], **change)


@pytest.mark.parametrize(
    ("answer", "says", "do"),
    [
        (
            broken(18, MISMATCH, loaded_version="550.163.01"),
            "version mismatch; NVML library version: 580.95; kernel module 550.163.01",
            "driver upgraded, reboot tf1",
        ),
        (broken(255, MISMATCH), "mismatch", "driver upgraded, reboot tf1"),
        (
            broken(127, ABSENT, on_bus=[]),
            "tf1 has no GPU driver: nvidia-smi: No such file or directory; its PCI bus has no",
            "run with --cpu",
        ),
        (broken(127, ABSENT, modules=[]), "on its PCI bus: 0000:00:1e.0", "labctl provision"),
        (
            broken(127, ABSENT, modules=["nouveau"]),
            "nouveau has the GPU",
            "bars nouveau), then reboot tf1",
        ),
        (broken(9, SILENT, modules=["nova_core", "nova_drm"]), "nova_core, nova_drm has", "reboot"),
        (
            broken(9, SILENT, modules=[], secure_boot=True),
            "Secure Boot is on",
            "switch Secure Boot off on tf1",
        ),
        (broken(9, SILENT, modules=[]), "tf1 has no GPU driver: NVIDIA-SMI", "modprobe nvidia"),
        (broken(12, "NVML not found"), "has no GPU driver", "labctl provision"),
        (broken(6, "No devices were found"), "nvidia-smi lists none", "dmesg"),
        (broken(0, "", on_bus=[]), "nvidia-smi lists none; its PCI bus has no", "give tf1 a GPU"),
        (broken(15, "GPU is lost"), "the GPU of tf1 is lost", "reboot tf1"),
        (broken(None, "no end within 45 s"), "does not end", "reboot tf1"),
        (broken(4, "Insufficient Permissions"), "fails with 4: Insufficient", "nvidia-smi -q"),
    ],
)
def test_a_driver_that_does_not_answer_is_one_error_naming_the_node(
    answer: dict[str, Any], says: str, do: str
) -> None:
    observed = seen(tf1=answer)
    assert failed(observed) == {("gpu", "tf1"): False}
    found = result(observed, "gpu")
    assert says in found.found
    assert do in (found.do or "")
    assert isinstance(found.error, ConfigError)
    assert (found.error.exit_code, "tf1" in found.error.found) == (3, True)
    assert result(observed, "gpu-memory").found == "gpu failed"


@pytest.mark.parametrize(
    ("answer", "name", "says", "do"),
    [
        (
            gpu(access={"user": "tf-join", "denied": {"/dev/nvidia0": "Permission denied"}}),
            "gpu-access",
            "tf-join cannot open /dev/nvidia0 on tf1: Permission denied",
            "chmod 0666 /dev/nvidia0",
        ),
        (gpu(dev_nodes=[]), "gpu-access", "tf1 has a GPU, but no /dev/nvidiactl", "modprobe"),
        (gpu(dev_nodes=["nvidia0", "nvidiactl"]), "gpu-access", "no /dev/nvidia-uvm", "-u -c=0"),
        (
            gpu(access={"init": 802, "count": None}),
            "gpu-access",
            "CUDA does not start for labctl on tf1: cuInit returns 802, system not yet",
            "nvidia-fabricmanager",
        ),
        (
            gpu(access={"count": 0}),
            "gpu-access",
            "cuInit returns 100, no device: CUDA_VISIBLE_DEVICES",
            "reboot tf1",
        ),
        (
            gpu(access={"hidden": ["/dev/nvidia0"]}),
            "gpu-access",
            "tf-join-server on tf1 does not see /dev/nvidia0",
            "labctl provision",
        ),
        (
            gpu(
                device={"memory.free": "4000"},
                apps=[{"uuid": "GPU-1", "pid": 812, "command": "/usr/bin/python3 train.py",
                       "unit": "old-tf.service", "memory_mib": "11360"}],
            ),
            "gpu-holders",
            "on tf1 python3, pid 812 of old-tf.service, holds 11.1 GiB of GPU 0",
            "on tf1: sudo systemctl stop old-tf.service",
        ),
        (
            gpu(apps=[{"uuid": "?", "pid": 9, "command": "", "unit": "", "memory_mib": "[N/A]"}]),
            "gpu-holders",
            "a process, pid 9, holds memory of a GPU",
            "on tf1: sudo kill 9",
        ),
        (gpu(device={"memory.free": "1000"}), "gpu-memory", "1000 MiB free on GPU 0", "--size"),
        (
            gpu(device={"name": "Tesla K80", "compute_cap": "3.7"}),
            "gpu-capability",
            "GPU 0 (Tesla K80) of tf1 has compute capability 3.7, too old for TensorFlow 2.21.0",
            "docs/causes.md",
        ),
        (
            gpu(access={"cuda": "11.4"}),
            "cuda-versions",
            "the driver of tf1 supports CUDA 11.4, TensorFlow 2.21.0 is built for 12.5.1",
            "nvidia_driver",
        ),
        (
            gpu(wheel={"build": {"is_cuda_build": False}}),
            "cuda-versions",
            "TensorFlow on tf1 is the CPU build",
            "tensorflow_build: gpu",
        ),
        (
            gpu(libraries={"tried": [{"name": "libcudnn.so.9", "error": "cannot open"}]}),
            "cuda-libraries",
            "tf1 cannot open libcudnn.so.9: cannot open",
            "labctl provision",
        ),
        (
            gpu(device={"name": "B200", "compute_cap": "10.0"}, access={"cuda": "12.2"}),
            "gpu-compile",
            "the driver for CUDA 12.2 cannot compile that of CUDA 12.5.1",
            "nvidia_driver",
        ),
    ],
)  # fmt: skip
def test_a_fault_that_would_end_a_run_refuses_it(
    answer: dict[str, Any], name: str, says: str, do: str
) -> None:
    observed = seen(tf1=answer)
    assert failed(observed) == {(name, "tf1"): False}
    found = result(observed, name)
    assert says in found.found
    assert do in (found.do or "")
    assert found.expected
    assert isinstance(to_error(of_gpu(observed)), ConfigError)


@pytest.mark.parametrize(
    ("answer", "name", "says", "do"),
    [
        (
            gpu(
                device={"persistence_mode": "Disabled"},
                persistenced="inactive",
                smi={"first_s": 2.1, "second_s": 0.1},
            ),
            "gpu-persistence",
            "GPU 0 (Tesla T4) of tf1, nvidia-persistenced is inactive; waking it took 2.0 s",
            "systemctl enable --now nvidia-persistenced",
        ),
        (
            gpu(device={"clocks_event_reasons.active": "0x4c", "temperature.gpu": "87"}),
            "gpu-clocks",
            "sw-power-cap, hw-slowdown, hw-thermal-slowdown on GPU 0 (Tesla T4) of tf1: 300 of 1590",
            "nvidia-smi -q -d PERFORMANCE",
        ),
        (
            gpu(device={"name": "B200", "compute_cap": "10.0"}),
            "gpu-compile",
            "the first run compiles all of TensorFlow 2.21.0's kernels that it uses for GPU 0 (B200)",
            "labctl run --gpu --repeat 1",
        ),
        (
            gpu(device={"driver_version": "570.1"}),
            "cuda-versions",
            "the driver is 570.1 on tf1 and 580.95.05 on tf0",
            "one version for all nodes",
        ),
    ],
)
def test_what_only_costs_time_fails_its_check_and_lets_a_run_start(
    answer: dict[str, Any], name: str, says: str, do: str
) -> None:
    observed = seen(tf1=answer)
    assert failed(observed) == {(name, "tf1"): True}
    assert says in result(observed, name).found
    assert do in (result(observed, name).do or "")
    with pytest.raises(ValueError, match="no check failed"):
        to_error(of_gpu(observed))


@pytest.mark.parametrize(
    ("answer", "name", "says"),
    [
        (gpu(device={"clocks_event_reasons.active": "0x3"}), "gpu-clocks", "applications-clocks"),
        (gpu(device={"clocks_event_reasons.active": "[N/A]"}), "gpu-clocks", "300 of 1590 MHz"),
        (gpu(device={"compute_cap": "9.0"}), "gpu-compile", "element-wise kernels of GPU 0"),
        (
            gpu(
                device={"compute_cap": "10.0"},
                cache={"path": "/c", "files": 214, "bytes": 480 << 20, "max_bytes": None},
            ),
            "gpu-compile",
            "PTX only for GPU 0 (Tesla T4); the kernel cache /c has 214 files, 480 MiB",
        ),
        (gpu(access={"cuda": "12.2"}), "cuda-versions", "compatible within the major version"),
        (gpu(access={"cuda": ""}), "cuda-versions", "built for CUDA 12.5.1"),
        (gpu(access={"count": 2}), "gpu-access", "; CUDA shows 2 GPUs"),
        (gpu(access={"init": None, "count": None}), "gpu-access", "labctl opens"),
        (gpu(cache={"files": None, "bytes": None}), "gpu-compile", "cannot be read"),
    ],
)
def test_what_is_normal_passes_and_is_told(answer: dict[str, Any], name: str, says: str) -> None:
    assert failed(seen(tf1=answer)) == {}
    assert says in result(seen(tf1=answer), name).found


@pytest.mark.parametrize(
    ("answer", "name", "why"),
    [
        (gpu(device={"persistence_mode": "[N/A]"}), "gpu-persistence", "does not tell"),
        (gpu(device={"memory.free": "[N/A]"}), "gpu-memory", "does not tell"),
        (gpu(device={"compute_cap": "[N/A]"}), "gpu-compile", "does not tell"),
        (gpu(wheel={"error": "no build_info.py"}), "gpu-capability", "no build_info.py"),
        (gpu(wheel={"error": "no build_info.py"}), "cuda-versions", "no build_info.py"),
        (gpu(libraries={"tried": None, "error": "not at hand"}), "cuda-libraries", "not at hand"),
        (gpu(access={"error": "no such user"}), "gpu-access", "no such user"),
    ],
)
def test_what_cannot_be_told_is_skipped_with_its_reason(
    answer: dict[str, Any], name: str, why: str
) -> None:
    found = result(seen(tf1=answer), name)
    assert found.status == "skipped"
    assert why in found.found


def test_the_labs_own_server_is_no_stranger_and_its_memory_counts_as_free() -> None:
    own = {"uuid": "GPU-1", "pid": 5, "command": "python", "memory_mib": "15000"}
    server = {**own, "unit": "tf-join-server.service"}
    answer = gpu(device={"memory.free": "300"}, apps=[server])
    assert failed(seen(tf1=answer)) == {}
    assert (
        "only python, pid 5 of tf-join-server.service"
        in result(seen(tf1=answer), "gpu-holders").found
    )
    # Task 0's server is in the client: one that stands there is stale.
    stale = seen(tf0=answer)
    assert ("gpu-holders", "tf0") in failed(stale)
    assert result(stale, "gpu-holders", "tf0").do == (
        "on tf0: sudo systemctl stop tf-join-server.service"
    )


def test_memory_is_needed_for_three_matrices_and_a_margin() -> None:
    assert needed_bytes(1000) == MARGIN_BYTES + 12_000_000
    assert needed_bytes(None) == MARGIN_BYTES
    small = gpu(device={"memory.free": "3000"})
    assert failed(seen(tf1=small, need=GpuNeed(1000))) == {}
    assert failed(seen(tf1=small, need=GpuNeed(20_000))) == {("gpu-memory", "tf1"): False}
    assert "3 matrices of L 20000" in (
        result(seen(tf1=small, need=GpuNeed(20_000)), "gpu-memory").expected or ""
    )


def test_different_tensorflows_refuse_and_the_first_cause_is_told() -> None:
    observed = seen(tensorflow=("2.21.0", "2.21.1"))
    assert failed(observed) == {("cuda-versions", "tf1"): False}
    # No driver at all: the libraries that are missing with it are its effect.
    both = broken(127, ABSENT, wheel={"build": {"is_cuda_build": False}})
    error = to_error(of_gpu(seen(tf0=both, tf1=both)))
    assert error.found.startswith("tf0 has no GPU driver")


@pytest.mark.parametrize(
    ("capability", "targets", "kernels"),
    [
        ("3.7", TARGETS, "none"),
        ("5.2", TARGETS, "none"),
        ("6.0", TARGETS, "ready"),
        ("6.1", TARGETS, "ready"),
        ("7.0", TARGETS, "ready"),
        ("7.5", TARGETS, "ready"),
        ("8.0", TARGETS, "ready"),
        ("8.6", TARGETS, "ready"),
        ("8.9", TARGETS, "ready"),
        ("9.0", TARGETS, "small"),
        ("10.0", TARGETS, "all"),
        ("12.0", TARGETS, "all"),
        # TensorFlow 2.15 and 2.16.
        ("9.0", ["sm_50", "sm_60", "sm_70", "sm_75", "compute_80"], "all"),
        ("9.0", ["sm_50", "sm_60", "sm_70", "sm_80", "sm_90"], "ready"),
        ("7.0", ["sm_50", "sm_60", "sm_75", "compute_80"], "none"),
        ("", TARGETS, "unknown"),
        ("7.5", [], "unknown"),
        ("7.5", ["?"], "unknown"),
    ],
)
def test_a_wheel_has_kernels_for_a_gpu(
    capability: str, targets: list[str], kernels: Kernels
) -> None:
    assert kernels_for(capability, targets) == kernels


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0x0000000000000000", ()),
        ("0x1", ("gpu-idle",)),
        ("0x48", ("hw-slowdown", "hw-thermal-slowdown")),
        ("0x201", ("gpu-idle", "reason-0x200")),
        ("[Not Supported]", ()),
        ("-0x1", ()),
        ("0x" + "f" * 40, ()),
    ],
)
def test_throttle_reasons_have_nvmls_names(mask: str, names: tuple[str, ...]) -> None:
    assert throttle_reasons(mask) == names


def test_what_was_seen_becomes_a_records_facts() -> None:
    holder = {"uuid": "GPU-1", "pid": 5, "command": "python", "unit": "", "memory_mib": "10"}
    facts = seen(tf1=gpu(apps=[holder])).facts["tf1"].gpu
    assert facts is not None
    (state,) = gpu_states(facts)
    assert (state.name, state.compute_capability, state.persistence) == ("Tesla T4", "7.5", True)
    assert state.woke_s == pytest.approx(0.22)
    assert [(each.pid, each.memory_bytes) for each in state.holders] == [(5, 10 << 20)]
    cuda = cuda_state(facts)
    assert cuda is not None
    assert (cuda.is_cuda_build, cuda.capabilities, cuda.cuda) == (True, tuple(TARGETS), "12.5.1")
    assert (cuda.cache_files, cuda.cache_max_bytes, cuda.compiles) == (0, 4 << 30, False)


@pytest.mark.parametrize(
    ("capability", "files", "compiles"),
    [("7.5", 0, False), ("9.0", 0, True), ("10.0", 0, True), ("10.0", 7, None), ("", 0, None)],
)
def test_compiling_is_foreseen_from_wheel_device_and_cache(
    capability: str, files: int, compiles: bool | None
) -> None:
    answer = gpu(device={"compute_cap": capability}, cache={"files": files, "bytes": files})
    facts = seen(tf1=answer).facts["tf1"].gpu
    assert facts is not None
    cuda = cuda_state(facts)
    assert cuda is not None
    assert cuda.compiles is compiles


@pytest.mark.parametrize(
    "change",
    [
        {"smi": {"code": True}},
        {"smi": {"code": "0"}},
        {"devices": [5]},
        {"devices": [{"index": 0}]},
        {"apps": [{"uuid": "x", "pid": -1, "command": "", "unit": "", "memory_mib": "1"}]},
        {"access": {"denied": []}},
        {"wheel": {"build": {"is_cuda_build": "yes"}}},
        {"cache": {"files": 1e400}},
        {"libraries": {"tried": {}}},
        {"secure_boot": "enabled"},
    ],
)
def test_an_answer_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FactsError):
        node_facts(node_answer("tf1", gpu(**change)))


def test_odd_figures_are_unknown_not_zero() -> None:
    odd = {"memory.total": "nan", "clocks.sm": "-3", "power.limit": "1e99", "index": "x"}
    facts = node_facts(node_answer("tf1", gpu(device=odd))).gpu
    assert facts is not None
    state = facts.devices[0].state
    assert (state.memory_bytes, state.sm_clock_mhz, state.power_limit_w) == (None, None, None)
