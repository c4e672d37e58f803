"""Judges of GPUs: does the driver answer, may TensorFlow's user have them, will the run fit and be quick?

A fault that would end a run or take it off the GPU fails; what only costs time warns (`warn`): the run starts, and
its user and its record are told.
"""

from __future__ import annotations

from collections.abc import Callable

from labctl.checks.collect import CLIENT_UNIT, SERVER_UNIT
from labctl.checks.facts import Observed
from labctl.checks.gpu_facts import DeviceFacts, GpuFacts, HolderFacts
from labctl.checks.model import Verdict, fail, mib, ok, on, skipped, warn
from labctl.errors import ConfigError
from labctl.lab.model import Node

# Room for CUDA's context, TensorFlow's kernels and cuBLAS's workspace beside the matrices: chosen, not measured.
MARGIN_BYTES = 1 << 30
MATRICES = 3  # a power is formed from the factor, the product so far and the next one
SMI_DRIVER_MISSING = 127
# Exit statuses of nvidia-smi, which are NVML's return values (nvml.h, `nvmlReturn_t`).
SMI_NOT_FOUND = 6
SMI_NOT_LOADED = 9
SMI_NO_LIBRARY = 12
SMI_LOST = 15
SMI_RESET = 16
SMI_MISMATCH = 18
# Of cuInit (cuda.h, `CUresult`).
CUDA_ERRORS = {
    100: ", no device: CUDA_VISIBLE_DEVICES, MIG or a control group may hide it",
    802: ", system not yet initialised: a machine with NVSwitch needs its fabric manager",
    803: ", the driver's library and its kernel module differ",
    804: ", its compatibility library does not fit this GPU",
    999: ", unknown error: often /dev/nvidia-uvm or its module",
}
# At rest, or as somebody set them: no fault.
_USUAL_CLOCKS = frozenset(
    {"gpu-idle", "applications-clocks-setting", "display-clock-setting", "sync-boost"}
)
_CONTROL = "nvidiactl"
_UVM = "nvidia-uvm"

Judge = Callable[[Observed, Node], Verdict]


def refuse(found: str, expected: str, do: str) -> Verdict:
    """Return a failure whose error names the same things."""
    return fail(found, expected, do, ConfigError(found, expected=expected, do=do))


def asked(judge: Callable[[Observed, Node, GpuFacts], Verdict]) -> Judge:
    """Make a judge of GPU facts one that skips where no GPU was asked for."""

    def judged(seen: Observed, node: Node) -> Verdict:
        facts = seen.facts[node.name].gpu
        if seen.gpu is None or facts is None:
            return skipped("not asked for (--gpu)")
        return judge(seen, node, facts)

    judged.__doc__ = judge.__doc__
    return judged


def answered(judge: Callable[[Observed, Node, GpuFacts], Verdict]) -> Judge:
    """Make a judge of GPU facts one that also skips where the driver does not answer: that is check `gpu`'s."""

    def judged(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:
        return judge(seen, node, facts) if facts.answers else skipped("gpu failed")

    judged.__doc__ = judge.__doc__
    return asked(judged)


@asked
def judge_gpu(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:  # noqa: ARG001 the judges' form
    """A GPU is there and its driver answers."""
    if facts.answers:
        said = "; ".join(_described(each) for each in facts.devices)
        return ok(said + _timed(facts))
    code, said = facts.smi.code, facts.smi.said or f"exit {facts.smi.code}"
    name = node.name
    if code == SMI_MISMATCH or "version mismatch" in said.lower():
        module = f"; kernel module {facts.loaded_version}" if facts.loaded_version else ""
        return refuse(
            f"nvidia-smi on {name}: {said}{module}",
            "the kernel module and the libraries of one driver version",
            f"driver upgraded, reboot {name}: the old module stays loaded until then",
        )
    if code in {0, SMI_NOT_FOUND}:
        return refuse(
            f"{name} has no usable GPU: nvidia-smi lists none{_bus_text(facts)}",
            "nvidia-smi lists a GPU on every node",
            _give(node, facts),
        )
    if code in {SMI_LOST, SMI_RESET}:
        return refuse(
            f"the GPU of {name} is lost: {said}",
            "a GPU that answers",
            f"reboot {name}; where that does not help, another machine",
        )
    if code is None:
        return refuse(
            f"nvidia-smi on {name} does not end: {said}",
            "an answer within seconds",
            f"reboot {name}; on it: sudo dmesg | grep -i -e nvrm -e xid says what the driver met",
        )
    if code in {SMI_DRIVER_MISSING, SMI_NOT_LOADED, SMI_NO_LIBRARY}:
        return _without_driver(node, facts, said)
    return refuse(
        f"nvidia-smi on {name} fails with {code}: {said}",
        "nvidia-smi lists a GPU on every node",
        on(node, "nvidia-smi -q; sudo dmesg | grep -i -e nvrm -e xid"),
    )


def _without_driver(node: Node, facts: GpuFacts, said: str) -> Verdict:
    seized = sorted(set(facts.modules) - {"nvidia", "nvidia_uvm"})
    found = f"{node.name} has no GPU driver: {said}{_bus_text(facts)}"
    expected = "nvidia-smi lists a GPU on every node"
    if seized:
        found += f"; {', '.join(seized)} has the GPU"
        do = f"labctl provision (role nvidia_driver bars {seized[0]}), then reboot {node.name}"
    elif facts.secure_boot:
        found += "; Secure Boot is on, which loads signed modules only"
        do = (
            f"switch Secure Boot off on {node.name}, or enrol a key of your own and sign the module "
            "(role nvidia_driver); then labctl provision"
        )
    else:
        do = _give(node, facts)
    return refuse(found, expected, do)


def _give(node: Node, facts: GpuFacts) -> str:
    if not facts.on_bus:
        return f"give {node.name} a GPU (another machine type), or run with --cpu"
    if facts.smi.code == SMI_NOT_LOADED:
        return on(node, "sudo modprobe nvidia; where that fails: labctl provision, or reboot")
    if facts.smi.code in {0, SMI_NOT_FOUND}:
        return on(node, "sudo dmesg | grep -i -e nvrm -e xid says what the driver met; then reboot")
    return "labctl provision, which installs the driver; or run with --cpu"


def _bus_text(facts: GpuFacts) -> str:
    if not facts.on_bus:
        return "; its PCI bus has no NVIDIA GPU"
    more = f" and {len(facts.on_bus) - 1} more" if len(facts.on_bus) > 1 else ""
    return f"; on its PCI bus: {facts.on_bus[0]}{more}"


def _described(each: DeviceFacts) -> str:
    state = each.state
    parts = [state.name or "GPU"]
    if state.driver:
        parts.append(f"driver {state.driver}")
    if state.memory_bytes is not None:
        parts.append(mib(state.memory_bytes))
    return f"{state.index}: {', '.join(parts)}"


def _timed(facts: GpuFacts) -> str:
    first, second = facts.smi.first_s, facts.smi.second_s
    if first is None or second is None:
        return ""
    return f"; nvidia-smi took {first:.2f} s, then {second:.2f} s"


@answered
def judge_gpu_access(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:  # noqa: ARG001 the judges' form
    """The user who runs TensorFlow there may open the device nodes."""
    access, name = facts.access, node.name
    if access.error is not None:
        return skipped(access.error)
    wanted = [_CONTROL, *(f"nvidia{each.state.index}" for each in facts.devices)]
    if node.ssh is not None:
        wanted.append(
            _UVM
        )  # made by a set-uid program, which a unit without new privileges cannot start
    missing = [each for each in wanted if each not in facts.dev_nodes]
    if missing:
        return refuse(
            f"{name} has a GPU, but no /dev/{missing[0]}",
            f"{', '.join(f'/dev/{each}' for each in wanted)}",
            on(node, "sudo nvidia-modprobe -u -c=0; role nvidia_driver has it done at each boot"),
        )
    denied = {path.rpartition("/")[2]: (path, why) for path, why in access.denied.items()}
    closed = [denied[each] for each in wanted if each in denied]
    if closed:
        more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
        paths = " ".join(path for path, _ in closed)
        return refuse(
            f"{access.user} cannot open {closed[0][0]}{more} on {name}: {closed[0][1]}",
            f"device nodes that {access.user} may read and write: TensorFlow runs as that user",
            on(node, f"sudo chmod 0666 {paths}; for good: the driver's NVreg_DeviceFileMode=0666"),
        )
    unseen = [each for each in wanted if f"/dev/{each}" in access.hidden]
    if unseen:
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        return refuse(
            f"tf-join-server on {name} does not see /dev/{unseen[0]}{more}, though the machine has it",
            "a unit without PrivateDevices=yes",
            "labctl provision with the GPU build: it lets the unit see its GPUs",
        )
    if access.init or access.count == 0:
        code = access.init or 100
        return refuse(
            f"CUDA does not start for {access.user} on {name}: cuInit returns {code}"
            f"{CUDA_ERRORS.get(code, '')}",
            "CUDA shows the GPUs that nvidia-smi lists",
            on(node, "sudo dmesg | grep -i -e nvrm -e xid; systemctl status nvidia-fabricmanager")
            + f"; else reboot {name}",
        )
    some = "" if access.count in {None, len(facts.devices)} else f"; CUDA shows {access.count} GPUs"
    return ok(f"{access.user} opens {', '.join(f'/dev/{each}' for each in wanted)}{some}")


@answered
def judge_gpu_holders(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:  # noqa: ARG001 the judges' form
    """No process but the lab's own has memory on a GPU."""
    strangers = [each for each in facts.holders if not _is_own(each, node)]
    if not strangers:
        own = [_holder_text(each) for each in facts.holders]
        return ok(f"only {', '.join(own)}" if own else "nobody")
    worst = max(strangers, key=lambda each: each.memory_bytes or 0)
    more = f"; and {len(strangers) - 1} more" if len(strangers) > 1 else ""
    kill = f"sudo kill {' '.join(str(each.pid) for each in strangers)}"
    if worst.unit.endswith(".service"):
        kill = f"sudo systemctl stop {worst.unit}"
    return refuse(
        f"on {node.name} {_holder_text(worst)}{more}",
        "no memory of a GPU held by others: TensorFlow would fail, or share it and be slow",
        on(node, kill),
    )


def _is_own(holder: HolderFacts, node: Node) -> bool:
    """Return whether a holder is the lab's own server; on task 0 no server stands outside of a run."""
    return holder.unit == (CLIENT_UNIT if node.task_index == 0 else SERVER_UNIT)


def _holder_text(each: HolderFacts) -> str:
    words = each.command.split()
    name = words[0].rsplit("/", 1)[-1] if words else "a process"
    unit = f" of {each.unit}" if each.unit else ""
    held = "memory" if each.memory_bytes is None else mib(each.memory_bytes)
    gpu = "a GPU" if each.gpu is None else f"GPU {each.gpu}"
    return f"{name}, pid {each.pid}{unit}, holds {held} of {gpu}"


def needed_bytes(size: int | None) -> int:
    """Return the memory that a task's GPU must have: `MATRICES` of L x L float32, and `MARGIN_BYTES`."""
    return MARGIN_BYTES + MATRICES * 4 * (size or 0) ** 2


@answered
def judge_gpu_memory(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:
    """There is room for the matrices on the first GPU, which computes them."""
    first = facts.devices[0]
    if first.free_bytes is None:
        return skipped("nvidia-smi does not tell how much memory is free")
    # What the lab's own server holds it computes in.
    own = [
        e.memory_bytes or 0
        for e in facts.holders
        if e.gpu == first.state.index and _is_own(e, node)
    ]
    free = first.free_bytes + sum(own)
    size = seen.gpu.size if seen.gpu is not None else None
    need = needed_bytes(size)
    matrices = "" if size is None else f"{MATRICES} matrices of L {size} and "
    if free < need:
        return refuse(
            f"{mib(free)} free on {first.label} of {node.name}",
            f"{mib(need)}: {matrices}{mib(MARGIN_BYTES)} for CUDA and TensorFlow themselves",
            "a smaller --size, or a GPU with more memory; check gpu-holders says who holds it",
        )
    return ok(f"{mib(free)} free on GPU {first.state.index}, {mib(need)} needed")


@answered
def judge_gpu_persistence(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:  # noqa: ARG001 the judges' form
    """The driver keeps the GPU set up while nobody uses it."""
    known = [each for each in facts.devices if each.state.persistence is not None]
    if not known:
        return skipped("nvidia-smi does not tell the persistence mode")
    off = [each for each in known if not each.state.persistence]
    daemon = f"nvidia-persistenced is {facts.persistenced or 'not installed'}"
    if not off:
        return ok(f"on; {daemon}")
    woke_s = off[0].state.woke_s
    took = "" if woke_s is None else f"; waking it took {woke_s:.1f} s just now"
    return warn(
        f"persistence mode is off on {off[0].label} of {node.name}, {daemon}{took}",
        "on: else the driver sets the GPU up anew for each process, seconds a GPU",
        on(node, "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1"),
    )


@answered
def judge_gpu_clocks(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:  # noqa: ARG001 the judges' form
    """Nothing holds the GPU's clocks down; at rest they are low."""
    for each in facts.devices:
        reasons = [reason for reason in each.state.throttle if reason not in _USUAL_CLOCKS]
        if reasons:
            heat = each.state.temperature_c
            warm = "" if heat is None else f", {heat:.0f} °C"
            return warn(
                f"{', '.join(reasons)} on {each.label} of {node.name}: {_clock_text(each)}{warm}",
                "no reason but gpu-idle or clocks that somebody set",
                on(
                    node,
                    "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; cool it, or raise its cap",
                ),
            )
    return ok("; ".join(_clock_text(each) for each in facts.devices))


def _clock_text(each: DeviceFacts) -> str:
    now, most = each.state.sm_clock_mhz, each.state.sm_clock_max_mhz
    if now is None:
        return "clock unknown"
    top = "" if most is None else f" of {most:.0f}"
    why = f" ({', '.join(each.state.throttle)})" if each.state.throttle else ""
    return f"{now:.0f}{top} MHz{why}"
