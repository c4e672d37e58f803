"""What a process does about its GPUs: NVML's figures, the kernel cache, the libraries, strict placement."""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.node import client, wire
from labctl.node.errors import NodeError
from labctl.node.events import EventLog
from labctl.node.gpu import LIBRARIES, Gpu, cache_path, cache_size, may_use_gpus
from labctl.node.nvml import Nvml, NvmlError, foreign, throttle_names
from labctl.node.placement import (
    misplaced_products,
    reason_of,
    require_gpus,
    require_on_gpu,
    tasks_without_gpu,
)
from labctl.node.usage import UsageReporter
from labctl.node.wire import RunPlan, ScriptPlan

ROLE = Path(__file__).resolve().parents[2] / "roles/cuda/files/open_libraries.py"


class FakeNvml:
    """Answers as pynvml does for one device; what it lacks is an AttributeError, as in an old version."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"Tesla T4",
            "nvmlDeviceGetCudaComputeCapability": (7, 5),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=16 * 2**30, used=2**20),
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetClockInfo": 1590,
            "nvmlDeviceGetPowerUsage": 68_500,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=10),
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x24,
            "nvmlDeviceGetComputeRunningProcesses": [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=5),
                SimpleNamespace(pid=1, usedGpuMemory=None),
            ],
            **answers,
        }
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def answer(*_: Any) -> Any:
            self.asked.append(name)
            value = self.answers[name]
            if isinstance(value, Exception):
                raise value
            return value

        return answer


class Log:
    """An event log and what was written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events = EventLog.to_file(str(path), "client", 0)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.told if each["event"] == kind]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "events.jsonl")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    made = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


# NVML


def test_what_nvml_does_not_give_is_none() -> None:
    (device,) = Nvml.open(FakeNvml(), os.getpid()).facts()
    assert device == {
        "index": 0,
        "name": "Tesla T4",
        "uuid": None,
        "pci": None,
        "driver": None,
        "compute_capability": "7.5",
        "memory_bytes": 16 * 2**30,
        "persistence": True,
        "sm_clock_max_mhz": None,
        "memory_clock_max_mhz": None,
        "power_limit_w": None,
    }


def test_use_is_told_in_units_and_an_old_library_by_its_own_names() -> None:
    found = Nvml.open(FakeNvml(), os.getpid()).usage()
    assert found == [
        {
            "index": 0,
            "utilisation_percent": 97,
            "memory_used_bytes": 2**20,
            "sm_clock_mhz": 1590,
            "memory_clock_mhz": 1590,
            "power_w": 68.5,
            "temperature_c": None,
            "throttle": ["sw-power-cap", "sw-thermal-slowdown"],
            "others": [{"pid": 1, "memory_bytes": None}],
        }
    ]


@pytest.mark.parametrize(
    ("mask", "names"),
    [(0, []), (1, ["gpu-idle"]), (0x48, ["hw-slowdown", "hw-thermal-slowdown"]), (1 << 20, ["reason-0x100000"])],
)  # fmt: skip
def test_reasons_have_the_names_of_their_bits(mask: int, names: list[str]) -> None:
    assert throttle_names(mask) == names


def test_what_the_run_itself_started_is_no_other() -> None:
    processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=7)]
    assert foreign(processes, os.getpid()) == []
    assert foreign(processes, os.getppid()) == []  # a join server that the client started
    assert foreign(processes, 2**22 + 1) == [{"pid": os.getpid(), "memory_bytes": 7}]


def test_a_driver_that_answers_slowly_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("labctl.node.nvml.time.monotonic", lambda: now[0])

    def slow(*_: Any) -> int:
        now[0] += 0.1
        return 1590

    fake = FakeNvml()
    vars(fake)["nvmlDeviceGetTemperature"] = slow
    device = Nvml.open(fake, 1)
    assert device.usage() is not None
    answers = 0
    for _ in range(100):
        now[0] += wire.USAGE_PERIOD_S
        answers += device.usage() is not None
    assert 0 < answers * 0.1 <= 0.021 * 100 * wire.USAGE_PERIOD_S


def test_an_nvml_that_refuses_says_so_in_its_own_words() -> None:
    broken = FakeNvml(nvmlInit=RuntimeError("Driver/library version mismatch"))
    with pytest.raises(NvmlError, match="NVML: Driver/library version mismatch"):
        Nvml.open(broken, 1)


# Events


def test_waking_writes_its_phases_and_the_devices(log: Log, fake: FakeNvml) -> None:
    Gpu(log.events).wake()
    assert [e["phase"] for e in log.of("phase_end")] == ["import_nvml", "gpu_wake"]
    (gpus,) = log.of("gpus")
    assert [each["name"] for each in gpus["devices"]] == ["Tesla T4"]
    assert fake.asked[0] == "nvmlInit"


def test_an_nvml_that_does_not_answer_is_a_note_and_the_run_goes_on(
    log: Log, fake: FakeNvml
) -> None:
    fake.answers["nvmlInit"] = RuntimeError("Driver Not Loaded")
    gpu = Gpu(log.events)
    gpu.wake()
    (gpus,) = log.of("gpus")
    assert (gpus["error"], "devices" in gpus) == ("NVML: Driver Not Loaded", False)
    assert gpu.error == gpus["error"]
    assert "Driver Not Loaded" in log.of("note")[0]["text"]
    assert gpu.usage() is None


def test_without_nvidia_ml_py_the_run_goes_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    Gpu(log.events).wake()
    assert log.of("gpus")[0]["error"].startswith("nvidia-ml-py is not installed")
    assert [e["phase"] for e in log.of("phase_end")] == ["import_nvml"]


def test_libraries_are_opened_where_the_loader_would_look(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libcublas.so.12").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}")
    Gpu(log.events).open_libraries()
    found = {each["name"]: each for each in log.of("libraries")[0]["libraries"]}
    assert list(found)[:3] == ["libcuda.so.1", "libcudart.so.12", "libcublasLt.so.12"]
    assert found["libcublas.so.12"]["path"] == str(tmp_path / "libcublas.so.12")
    assert "libcublas.so.12" in found["libcublas.so.12"]["error"]
    assert all(each["duration_ns"] > 0 for each in found.values())
    assert [e["phase"] for e in log.of("phase_end")] == ["gpu_libraries"]


def test_gpu_use_stands_beside_use_and_the_cache_is_read_at_rest(log: Log, fake: FakeNvml) -> None:
    used = [0]
    meter: Any = SimpleNamespace(read=lambda: {"cpu_ns": used[0]})
    reporter = UsageReporter(log.events, always=False, meter=meter, own_cpu_ns=lambda: 0)
    gpu = Gpu(log.events)
    gpu.wake()
    reporter.watch(gpu)
    reporter.sample()
    asked_at_rest = fake.asked.count("nvmlDeviceGetPowerUsage")
    used[0] = 10**9
    reporter.sample()  # it works
    reporter.sample()  # it has come to rest
    reporter.sample()
    assert asked_at_rest == 0
    assert len(log.of("usage")) == 3
    assert 1 <= len(log.of("gpu_usage")) <= 2
    assert [each["when"] for each in log.of("kernel_cache")] == ["begin", "end"]


# The kernel cache


def test_the_cache_is_where_the_driver_keeps_it() -> None:
    assert cache_path({"HOME": "/home/x"}) == Path("/home/x/.nv/ComputeCache")
    assert cache_path({"HOME": "/home/x", "CUDA_CACHE_PATH": "/var/cache"}) == Path("/var/cache")


def test_a_cache_that_is_not_there_is_empty_and_one_that_cannot_be_read_unknown(
    tmp_path: Path,
) -> None:
    assert cache_size(tmp_path / "none") == (0, 0)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "kernel").write_bytes(b"x" * 7)
    (tmp_path / "index").write_bytes(b"y")
    assert cache_size(tmp_path) == (2, 8)
    assert cache_size(tmp_path / "index") == (None, None)


@pytest.mark.parametrize(
    ("environment", "may"),
    [
        ({"CUDA_CACHE_PATH": "/c"}, True),
        ({"CUDA_CACHE_PATH": "/c", "CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"CUDA_CACHE_PATH": "/c", "CUDA_VISIBLE_DEVICES": "-1"}, False),
        ({"CUDA_CACHE_PATH": "/c", "CUDA_VISIBLE_DEVICES": ""}, False),
    ],
)
def test_a_server_looks_for_gpus_where_it_may_have_some(
    environment: dict[str, str], may: bool
) -> None:
    assert may_use_gpus(environment) is may


def test_a_server_of_a_tensorflow_for_cpus_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labctl.node.host.cuda_version", lambda: None)
    assert not may_use_gpus({"HOME": "/root"})
    monkeypatch.setattr("labctl.node.host.cuda_version", lambda: "12.5.1")
    assert may_use_gpus({"HOME": "/root"})


def test_a_driver_that_answers_no_more_does_not_keep_the_client_from_ending(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("labctl.node.client.os._exit", leave)
    monkeypatch.setattr("labctl.node.client._FLUSH_WITHIN_S", 0.2)
    hung = threading.Event()
    made = client._Client(log.events, "payload", tmp_path, 0)
    made._gpu = Gpu(log.events)
    monkeypatch.setattr(made._usage, "stop", lambda: hung.wait(60))
    with pytest.raises(SystemExit) as ended:
        made.leave(wire.EXIT_FAILED)
    hung.set()
    assert ended.value.code == wire.EXIT_FAILED
    assert log.of("bye")[0]["exit"] == wire.EXIT_FAILED


# Strict placement

CPU0, GPU0 = (f"/job:local/replica:0/task:0/device:{kind}:0" for kind in ("CPU", "GPU"))
GPU1 = "/job:local/replica:0/task:1/device:GPU:1"
ADDRESSES = ("10.0.0.2:2222", "10.0.0.3:2222")


@pytest.mark.parametrize(
    ("devices", "cluster", "missing"),
    [
        ([CPU0, GPU0, GPU1], True, []),
        ([CPU0, GPU0], True, [1]),
        ([CPU0], True, [0, 1]),
        (["/device:GPU:0"], False, []),
        (["/job:localhost/replica:0/task:0/device:GPU:0"], False, []),
        (["/device:CPU:0"], False, [0, 1]),
    ],
)
def test_each_task_is_asked_for_a_gpu(
    devices: list[str], cluster: bool, missing: list[int]
) -> None:
    assert tasks_without_gpu(devices, 2, cluster=cluster) == missing


def test_the_error_names_task_address_and_what_tensorflow_said(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr"
    stderr.write_text(
        "noise\nW0000 00:00:1.0 7 gpu_device.cc:2342] Cannot dlopen some GPU libraries. Please make sure\n"
    )
    with pytest.raises(NodeError) as raised:
        require_gpus([CPU0, GPU1], 2, ADDRESSES, str(stderr))
    error = raised.value
    assert error.found == (
        "task 0 at 10.0.0.2:2222 has no GPU device: TensorFlow said: Cannot dlopen some GPU libraries"
    )
    assert (error.kind, error.status) == ("no-gpu-device", wire.EXIT_FAILED)
    assert error.expected == "a GPU that TensorFlow can use on every task"
    assert "labctl check --gpu" in (error.do or "")


def test_of_another_node_only_its_address_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labctl.node.host.cuda_version", lambda: "12.5.1")
    with pytest.raises(NodeError) as raised:
        require_gpus([CPU0, GPU0], 2, ADDRESSES, str(tmp_path / "none"))
    assert raised.value.found == "task 1 at 10.0.0.3:2222 has no GPU device"
    assert "labctl why" in (raised.value.do or "")
    with pytest.raises(
        NodeError, match=r"task 0 at 10\.0\.0\.2:2222 and 1 at .* have no GPU device; on task 0: "
    ):
        require_gpus(
            [CPU0], 2, ADDRESSES, str(tmp_path / "none"), nvml_error="NVML: Driver Not Loaded"
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kernel version 535.1.0 does not match DSO version 550.2.0 -- cannot", "does not match DSO"),
        ("Ignoring visible gpu device (K80). The minimum required Cuda capability is 6.0.", "capability is 6.0"),
        ("failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)", "cuInit"),
        ("Could not find cuda drivers on your machine, GPU will not be used.", "Could not find cuda drivers"),
    ],
)  # fmt: skip
def test_tensorflows_words_are_the_reason(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reason, do = reason_of(f"E0000 x\n{line}\n")
    assert said in reason
    assert do


def test_a_hidden_gpu_is_said_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    reason, do = reason_of("failed call to cuInit: CUDA_ERROR_NO_DEVICE")
    assert reason == "CUDA_VISIBLE_DEVICES=-1 hides all GPUs"
    assert do.startswith("unset")


def test_a_product_on_a_cpu_ends_a_gpu_run_with_its_name() -> None:
    def node(name: str, label: str) -> SimpleNamespace:
        return SimpleNamespace(node_name=name, timeline_label=label)

    stats = SimpleNamespace(
        dev_stats=[
            SimpleNamespace(
                device=CPU0,
                node_stats=[
                    node("total", "[cpu 4MB] total = AddN(MatMul_1)"),
                    node("MatMul_3", "[mklcpu 4MB] MatMul_3 = _MklMatMul(MatMul_2, x)"),
                ],
            ),
            SimpleNamespace(device=GPU0, node_stats=[node("MatMul", "MatMul = MatMul(x, x)")]),
        ]
    )
    assert misplaced_products(stats) == [("MatMul_3", CPU0)]
    require_on_gpu([])
    with pytest.raises(NodeError, match=r"the product MatMul_3 ran on .*CPU:0") as raised:
        require_on_gpu(misplaced_products(stats))
    assert (raised.value.kind, raised.value.status) == ("op-on-cpu", wire.EXIT_FAILED)


def test_a_scripts_plan_says_its_device() -> None:
    plan = RunPlan("r", ("a:1", "b:1"), script=ScriptPlan("x.py", device="gpu"))
    assert RunPlan.from_json(plan.to_json()) == plan


def test_the_libraries_are_those_that_the_role_checks() -> None:
    tree = ast.parse(ROLE.read_text(encoding="utf-8"))
    tables = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
    ]
    assert (
        LIBRARIES.items()
        <= {name: folder for table in tables for name, folder in table.items()}.items()
    )
