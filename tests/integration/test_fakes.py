"""The fake GPUs: tools and libraries say what the scenario says, and the same of it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import build, install
from tests.fakes.install import FakeDirectory
from tests.fakes.scenario import Process, Scenario, ScenarioError, load, names, read

T4 = load("healthy-t4")
needs_compiler = pytest.mark.skipif(
    build.compiler_refused() is not None, reason=str(build.compiler_refused())
)

# What pynvml, the real one, reads of each GPU; printed as JSON.
ASK_NVML = """
import json, pynvml as n
n.nvmlInit()
rows = []
for index in range(n.nvmlDeviceGetCount()):
    g = n.nvmlDeviceGetHandleByIndex(index)
    memory, pci = n.nvmlDeviceGetMemoryInfo(g), n.nvmlDeviceGetPciInfo(g)
    text = lambda value: value.decode() if isinstance(value, bytes) else value
    rows.append({
        "index": n.nvmlDeviceGetIndex(g),
        "name": text(n.nvmlDeviceGetName(g)),
        "uuid": text(n.nvmlDeviceGetUUID(g)),
        "pci.bus_id": text(pci.busId),
        "driver_version": text(n.nvmlSystemGetDriverVersion()),
        "compute_cap": "%d.%d" % n.nvmlDeviceGetCudaComputeCapability(g),
        "memory.total": memory.total >> 20,
        "memory.used": memory.used >> 20,
        "memory.free": memory.free >> 20,
        "persistence_mode": ["Disabled", "Enabled"][n.nvmlDeviceGetPersistenceMode(g)],
        "clocks.sm": n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM),
        "clocks.max.sm": n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM),
        "clocks.mem": n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM),
        "clocks.max.mem": n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_MEM),
        "power.draw": "%.2f" % (n.nvmlDeviceGetPowerUsage(g) / 1000),
        "enforced.power.limit": "%.2f" % (n.nvmlDeviceGetEnforcedPowerLimit(g) / 1000),
        "temperature.gpu": n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU),
        "utilization.gpu": n.nvmlDeviceGetUtilizationRates(g).gpu,
        "clocks_throttle_reasons.active": "0x%016X" % n.nvmlDeviceGetCurrentClocksThrottleReasons(g),
        "processes": [[p.pid, p.usedGpuMemory >> 20] for p in n.nvmlDeviceGetComputeRunningProcesses(g)],
    })
n.nvmlShutdown()
print(json.dumps(rows))
"""

SCENARIOS_THAT_ANSWER = (
    "healthy-t4",
    "healthy-a100",
    "healthy-h100",
    "kepler",
    "memory-held",
    "no-kernels",
    "no-uvm-node",
    "persistence-off",
    "pre-turing",
    "throttled",
)


def ask(fakes: FakeDirectory, *argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=fakes.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **more,
    )


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def python(fakes: FakeDirectory, code: str, *args: str) -> Any:
    done = ask(fakes, sys.executable, "-c", code, *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TestSchema:
    def test_every_scenario_fits_and_is_described(self) -> None:
        readme = (Path(install.__file__).parent / "README.md").read_text()
        for name in names():
            assert load(name).description
            assert f"`{name}`" in readme

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("description: x\ndriver: {}\ncolour: red\n", "unknown colour"),
            ("description: x\ndriver: {version: 580}\n", r"driver.version: 580, expected"),
            ("description: x\ndriver: {flavour: sweet}\n", "driver.flavour: 'sweet', expected one"),
            ("description: x\ndriver: {}\ngpus: [{name: x}]\n", r"gpus\[0\]: .*missing"),
            ("description: x\ndriver: {}\ncuda: {wake_s: fast}\n", "cuda.wake_s: 'fast'"),
            ("driver: {}\n", "description"),
            ("[]\n", "expected a mapping"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        path = tmp_path / "odd.yml"
        path.write_text(text)
        with pytest.raises(ScenarioError, match=said):
            read(path)

    def test_an_unknown_name_lists_those_there_are(self) -> None:
        with pytest.raises(ScenarioError, match="healthy-t4"):
            load("healthy-t5")


@needs_compiler
class TestTools:
    @pytest.mark.parametrize("name", SCENARIOS_THAT_ANSWER)
    def test_nvidia_smi_and_nvml_say_the_same(self, tmp_path: Path, name: str) -> None:
        fakes = install.in_directory(tmp_path, name)
        of_nvml = python(fakes, ASK_NVML)
        fields = [field for field in of_nvml[0] if field != "processes"]
        done = ask(
            fakes, "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
        )
        rows = [line.split(", ") for line in done.stdout.splitlines()]
        assert rows == [[str(gpu[field]) for field in fields] for gpu in of_nvml]
        apps = ask(
            fakes,
            "nvidia-smi",
            "--query-compute-apps=pid,used_memory",
            "--format=csv,noheader,nounits",
        )
        held = [list(map(int, line.split(", "))) for line in apps.stdout.splitlines()]
        assert held == [each for gpu in of_nvml for each in gpu["processes"]]

    @pytest.mark.parametrize(
        ("name", "status", "said"),
        [
            ("mismatch", 18, "Driver/library version mismatch"),
            ("no-module", 9, "couldn't communicate with the NVIDIA driver"),
            ("no-device", 6, "No devices were found"),
        ],
    )
    def test_nvidia_smi_ends_as_the_real_one(
        self, tmp_path: Path, name: str, status: int, said: str
    ) -> None:
        done = ask(install.in_directory(tmp_path, name), "nvidia-smi", "-L")
        assert (done.returncode, said in done.stdout) == (status, True)

    def test_header_units_and_unknown_fields(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, T4)
        done = ask(fakes, "nvidia-smi", "--query-gpu=name,memory.total", "--format=csv")
        assert done.stdout == "name, memory.total [MiB]\nTesla T4, 15360 MiB\n"
        done = ask(fakes, "nvidia-smi", "--query-gpu=name,colour", "--format=csv")
        assert (done.returncode, 'Field "colour" is not a valid field' in done.stdout) == (2, True)
        assert ask(fakes, "nvidia-smi", "--gom=0").returncode == 64

    def test_an_old_driver_has_the_old_name_of_throttle_reasons_only(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, "kepler")
        new, old = (
            ask(fakes, "nvidia-smi", f"--query-gpu=clocks_{word}_reasons.active", "--format=csv")
            for word in ("event", "throttle")
        )
        assert (new.returncode, old.returncode) == (2, 0)

    def test_table_names_holders(self, tmp_path: Path) -> None:
        table = ask(install.in_directory(tmp_path, "memory-held"), "nvidia-smi").stdout
        assert "CUDA Version: 13.0" in table
        assert "4242  C  /usr/bin/python3  14850MiB" in table

    def test_first_client_wakes_a_device_without_persistence_mode(self, tmp_path: Path) -> None:
        sleepy = load("persistence-off").with_cuda(wake_s=0.7, linger_s=3600.0)
        fakes = install.in_directory(tmp_path, sleepy)
        begin_s = time.monotonic()
        ask(fakes, "nvidia-smi", "-L")
        assert time.monotonic() - begin_s >= 0.7
        fakes = install.in_directory(tmp_path, sleepy.with_cuda(wake_s=600.0, linger_s=3600.0))
        (tmp_path / "state/awake").touch()
        assert ask(fakes, "nvidia-smi", "-L").returncode == 0
        assert python(fakes, ASK_NVML)[0]["persistence_mode"] == "Disabled"

    def test_bus_modules_and_secure_boot(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, "nouveau")
        assert "\nnouveau " in ask(fakes, "lsmod").stdout
        assert ask(fakes, "lspci", "-Dnmm", "-d", "10de:").stdout.startswith(
            '0000:00:1e.0 "0302" "10de" "1eb8"'
        )
        assert "3D controller [0302]: NVIDIA Corporation TU104GL [Tesla T4] [10de:1eb8]" in (
            ask(fakes, "lspci", "-nn").stdout
        )
        assert ask(fakes, "modinfo", "-F", "version", "nvidia").returncode == 1
        assert ask(fakes, "mokutil", "--sb-state").returncode == 1
        fakes = install.in_directory(tmp_path, "secure-boot")
        assert ask(fakes, "mokutil", "--sb-state").stdout == "SecureBoot enabled\n"
        fakes = install.in_directory(tmp_path, "healthy-t4")
        assert ask(fakes, "modinfo", "-F", "version", "nvidia").stdout == "580.95.05\n"
        assert "\nnvidia_uvm " in ask(fakes, "lsmod").stdout

    def test_kernel_and_cloud_init(self, tmp_path: Path) -> None:
        (tmp_path / "odd.yml").write_text(
            "description: x\ndriver: {}\nkernel: {release: 6.1.0-99-cloud-amd64}\n"
            "cloud_init: {status: error, detail: no network}\n"
        )
        fakes = install.in_directory(tmp_path / "fakes", read(tmp_path / "odd.yml"))
        assert ask(fakes, "uname", "-r").stdout == "6.1.0-99-cloud-amd64\n"
        assert ask(fakes, "uname", "-s").stdout == "Linux\n"
        done = ask(fakes, "cloud-init", "status", "--wait", "--long")
        assert (done.returncode, "no network" in done.stdout) == (1, True)

    def test_without_a_driver_its_tools_and_libraries_are_not_there(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, "healthy-t4")
        assert (tmp_path / "bin/nvidia-smi").exists()
        fakes = install.in_directory(tmp_path, "no-driver")
        assert not (tmp_path / "bin/nvidia-smi").exists()
        assert list((tmp_path / "driver").iterdir()) == list((tmp_path / "dev").iterdir()) == []
        assert (fakes.toolkit_dir / "libcublas.so.12").exists()


# Argument: a mode; prints codes and figures as JSON.
CUDA = """
import ctypes, json, sys, time
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
code = cuda.cuInit(0)
if code:
    print(json.dumps({"cuInit": code})); raise SystemExit
count, context, free, total = c_int(), c_void_p(), c_size_t(), c_size_t()
cuda.cuDeviceGetCount(byref(count))
begin = time.monotonic()
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
context_s = time.monotonic() - begin
assert cuda.cuCtxSetCurrent(context) == 0
cuda.cuMemGetInfo_v2(byref(free), byref(total))
big = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(free.value + 1))
blas, handle = ctypes.CDLL("libcublas.so.12"), c_void_p()
created = blas.cublasCreate_v2(byref(handle))
size = 24
a = [(7 * i) % 11 / 8 for i in range(size * size)]
b = [(5 * i) % 13 / 8 for i in range(size * size)]
host = (c_float * (size * size))
places = [c_uint64() for _ in range(3)]
for place in places:
    assert cuda.cuMemAlloc_v2(byref(place), c_size_t(ctypes.sizeof(host))) == 0
for place, values in zip(places, (a, b)):
    assert cuda.cuMemcpyHtoD_v2(place, host(*values), c_size_t(ctypes.sizeof(host))) == 0
one, zero = c_float(1), c_float(0)
events = [c_void_p(), c_void_p()]
for event in events:
    cuda.cuEventCreate(byref(event), 0)
def product():
    n, (x, y, z) = c_int(size), (c_void_p(place.value) for place in places)
    return blas.cublasSgemm_v2(handle, 0, 0, n, n, n, byref(one), x, n, y, n, byref(zero), z, n)
done = product()
cuda.cuCtxSynchronize()
cuda.cuEventRecord(events[0], None)
product()
cuda.cuEventRecord(events[1], None)
cuda.cuEventSynchronize(events[1])
ms = c_float()
cuda.cuEventElapsedTime(byref(ms), *events)
out = host()
assert cuda.cuMemcpyDtoH_v2(out, places[2], c_size_t(ctypes.sizeof(host))) == 0
wanted = [sum(a[k * size + i] * b[j * size + k] for k in range(size)) for j in range(size) for i in range(size)]
print(json.dumps({
    "cuInit": 0, "count": count.value, "context_s": context_s, "total": total.value, "too_much": big,
    "created": created, "product": done, "ms": ms.value, "worst": max(abs(x - y) for x, y in zip(out, wanted)),
}))
"""


@needs_compiler
class TestLibraries:
    def test_cuda_computes_and_tells_the_scenarios_times(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, T4.with_cuda(context_s=0.3, product_s=0.05))
        found = python(fakes, CUDA)
        assert found["context_s"] >= 0.3
        assert found["ms"] == pytest.approx(50)
        assert found["worst"] < 1e-3
        assert (found["count"], found["total"]) == (1, 15360 << 20)
        assert (found["too_much"], found["created"], found["product"]) == (2, 0, 0)

    def test_a_product_may_come_out_wrong(self, tmp_path: Path) -> None:
        found = python(install.in_directory(tmp_path, T4.with_cuda(wrong_product=True)), CUDA)
        assert found["worst"] > 0.5

    @pytest.mark.parametrize(
        ("name", "code"),
        [("mismatch", 803), ("no-module", 100), ("no-device", 100), ("no-uvm-node", 999)],
    )
    def test_cuda_refuses_as_the_real_driver(self, tmp_path: Path, name: str, code: int) -> None:
        assert python(install.in_directory(tmp_path, name), CUDA) == {"cuInit": code}

    def test_any_function_may_be_told_to_fail(self, tmp_path: Path) -> None:
        told = T4.with_cuda(errors={"cublasCreate_v2": 1, "cuInit": 802})
        assert python(install.in_directory(tmp_path, told), CUDA) == {"cuInit": 802}
        told = T4.with_cuda(errors={"cublasCreate_v2": 3})
        done = ask(install.in_directory(tmp_path, told), sys.executable, "-c", CUDA)
        assert done.returncode == 0
        assert json.loads(done.stdout)["created"] == 3

    def test_hidden_devices_are_none(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, "healthy-h100")
        counts = {}
        for visible in ("0", "1,0", "1,7,0", "", "-1"):
            code = f"import os; os.environ['CUDA_VISIBLE_DEVICES'] = {visible!r}\n" + CUDA
            counts[visible] = python(fakes, code).get("count", 0)
        assert counts == {"0": 1, "1,0": 2, "1,7,0": 1, "": 0, "-1": 0}

    @pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")
    def test_nodes_of_root_alone_are_refused_to_others(self, open_path: Path) -> None:
        fakes = install.in_directory(open_path, "no-device-nodes")
        assert python(fakes, CUDA)["cuInit"] == 0
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        done = ask(fakes, *as_nobody, "/usr/bin/python3", "-c", CUDA)
        assert json.loads(done.stdout) == {"cuInit": 100}, done.stderr
        done = ask(fakes, *as_nobody, "nvidia-smi", "-L")
        assert (done.returncode, "Insufficient Permissions" in done.stdout) == (4, True)

    def test_compiling_fills_the_kernel_cache(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path / "fakes", T4.with_cuda(jit_s=0.5, jit_bytes=1000))
        code = """
import ctypes, json, os, sys, time
from ctypes import byref, c_void_p
os.environ["CUDA_CACHE_PATH"], os.environ["CUDA_CACHE_DISABLE"] = sys.argv[1:]
cuda, context, module = ctypes.CDLL("libcuda.so.1"), c_void_p(), c_void_p()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(byref(context), 0); cuda.cuCtxSetCurrent(context)
begin = time.monotonic()
code = cuda.cuModuleLoadData(byref(module), b".version 7.0\\n.target sm_50\\n")
print(json.dumps([code, time.monotonic() - begin]))
"""
        cache = tmp_path / "cache"
        spans = [python(fakes, code, str(cache), disabled) for disabled in ("1", "0", "0")]
        assert [status for status, _ in spans] == [0, 0, 0]
        assert [span_s >= 0.5 for _, span_s in spans] == [True, True, False]
        assert [path.stat().st_size for path in cache.iterdir()] == [1000]

    def test_changing_the_scenario_changes_what_a_running_process_reads(
        self, tmp_path: Path
    ) -> None:
        fakes = install.in_directory(tmp_path, T4)
        code = (
            "import pynvml as n; n.nvmlInit(); g = n.nvmlDeviceGetHandleByIndex(0)\n"
            "while input(): print(n.nvmlDeviceGetTemperature(g, 0), flush=True)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env=fakes.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            found = []
            for celsius in (T4.gpus[0].temperature_c, 91):
                (tmp_path / "scenario.env").write_text(
                    T4.with_gpu(temperature_c=celsius).as_lines()
                )
                process.stdin.write("x\n")
                process.stdin.flush()
                found.append(int(process.stdout.readline()))
            process.kill()
        assert found == [34, 91]

    def test_every_library_of_the_toolkit_can_be_opened(self, tmp_path: Path) -> None:
        fakes = install.in_directory(tmp_path, T4.with_cuda(missing=("libcudnn.so.9",)))
        wanted = sorted(name for each in build.TOOLKIT.values() for name in each)
        here = sorted(path.name for path in fakes.toolkit_dir.iterdir())
        assert here == [name for name in wanted if name != "libcudnn.so.9"]
        for path in fakes.toolkit_dir.iterdir():
            if path.name != "libcublas.so.12":  # it reads the scenario's place in the environment
                ctypes.CDLL(str(path))


def test_a_process_may_be_given_by_the_test(tmp_path: Path) -> None:
    held: Scenario = T4.with_gpu(processes=(Process(77, "x", 12),))
    assert "gpu0_process0_pid=77\n" in held.as_lines()
    assert held.gpus[0].memory_used_mib == 15
