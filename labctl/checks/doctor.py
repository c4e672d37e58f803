"""The list of checks, their order, and what a run makes of a failed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from labctl.checks.collect import observe
from labctl.checks.facts import Observed
from labctl.checks.gpu_facts import GpuNeed
from labctl.checks.gpu_parse import cuda_state, gpu_states
from labctl.checks.judge_cuda import (
    judge_cuda_libraries,
    judge_cuda_versions,
    judge_gpu_capability,
    judge_gpu_compile,
)
from labctl.checks.judge_gpu import (
    judge_gpu,
    judge_gpu_access,
    judge_gpu_clocks,
    judge_gpu_holders,
    judge_gpu_memory,
    judge_gpu_persistence,
)
from labctl.checks.judge_host import (
    judge_clock,
    judge_cpu,
    judge_dead_runs,
    judge_disk,
    judge_leftovers,
    judge_probe,
    judge_python,
    judge_ssh,
    judge_sudo,
    judge_tensorflow,
    judge_venv,
)
from labctl.checks.judge_network import (
    judge_addresses,
    judge_exposure,
    judge_firewall,
    judge_port,
)
from labctl.checks.judge_server import (
    judge_proxies,
    judge_running_spec,
    judge_spec,
    judge_unit,
)
from labctl.checks.model import CheckResult, Verdict, skipped
from labctl.errors import (
    ConfigError,
    LabBusyError,
    LabctlError,
    PeerUnreachableError,
    RemoteCommandError,
    UnreachableError,
)
from labctl.lab.model import Lab, Node
from labctl.remote.base import Executor
from labctl.runs.gpus import CudaState, GpuState


@dataclass(frozen=True, slots=True)
class Check:
    """One named check.

    Attributes:
        name: Stable, kebab-case.
        judge: Decides from what was observed.
        error: What a run raises when it fails and the judge does not say.
        preflight: Looked at before a run, which a failure keeps from starting unless it only warns.
        loopback: Applies to the loopback lab too.
        needs_facts: Cannot be judged of a node that gave no facts.
        ports: Needs the nodes' views of each other.
        thorough: Needs clock offsets or a view from this machine.
        gpu: Only where GPUs are asked for.
    """

    name: str
    judge: Callable[[Observed, Node], Verdict]
    error: type[LabctlError] = ConfigError
    preflight: bool = False
    loopback: bool = False
    needs_facts: bool = True
    ports: bool = False
    thorough: bool = False
    gpu: bool = False


def _gpu_check(name: str, judge: Callable[[Observed, Node], Verdict]) -> Check:
    return Check(name, judge, preflight=True, loopback=True, gpu=True)


CHECKS: tuple[Check, ...] = (
    Check("ssh", judge_ssh, UnreachableError, preflight=True, needs_facts=False),
    Check(
        "probe", judge_probe, RemoteCommandError, preflight=True, loopback=True, needs_facts=False
    ),
    Check("sudo", judge_sudo, RemoteCommandError, preflight=True),
    Check("leftovers", judge_leftovers, LabBusyError, preflight=True, loopback=True),
    Check("dead-runs", judge_dead_runs),
    _gpu_check("gpu", judge_gpu),
    _gpu_check("gpu-access", judge_gpu_access),
    _gpu_check("gpu-capability", judge_gpu_capability),
    _gpu_check("gpu-holders", judge_gpu_holders),
    _gpu_check("gpu-memory", judge_gpu_memory),
    _gpu_check("cuda-versions", judge_cuda_versions),
    _gpu_check("cuda-libraries", judge_cuda_libraries),
    _gpu_check("gpu-compile", judge_gpu_compile),
    _gpu_check("gpu-persistence", judge_gpu_persistence),
    _gpu_check("gpu-clocks", judge_gpu_clocks),
    Check("venv", judge_venv, preflight=True, loopback=True),
    Check("tensorflow", judge_tensorflow, preflight=True, loopback=True),
    Check("python", judge_python),
    Check("spec", judge_spec, preflight=True),
    Check("unit", judge_unit, PeerUnreachableError, preflight=True),
    Check("running-spec", judge_running_spec, preflight=True),
    Check("port", judge_port, PeerUnreachableError, preflight=True, needs_facts=False, ports=True),
    Check("exposure", judge_exposure, needs_facts=False, ports=True, thorough=True),
    Check("firewall", judge_firewall),
    Check("addresses", judge_addresses, preflight=True, ports=True),
    Check("proxies", judge_proxies, preflight=True),
    Check("clock", judge_clock, ports=True, thorough=True),
    Check("cpu", judge_cpu, loopback=True),
    Check("disk", judge_disk, preflight=True, loopback=True),
)
NAMES = frozenset(check.name for check in CHECKS)
GPU_NAMES = frozenset(check.name for check in CHECKS if check.gpu)

# Of several failures a run reports the first of these: causes before their effects.
_TELLING = (
    "ssh",
    "probe",
    "sudo",
    "leftovers",
    "disk",
    "venv",
    "tensorflow",
    "gpu",
    "gpu-access",
    "gpu-capability",
    "cuda-versions",
    "gpu-holders",
    "gpu-memory",
    "cuda-libraries",
    "gpu-compile",
    "spec",
    "port",
    "unit",
    "running-spec",
    "addresses",
    "proxies",
)


def preflight_names(gpu: bool) -> frozenset[str]:
    """Return the names of the checks that are looked at before a run."""
    names = frozenset(check.name for check in CHECKS if check.preflight)
    return names if gpu else names - GPU_NAMES


@dataclass(frozen=True, slots=True)
class Checked:
    """What a run needs of its checks.

    Attributes:
        results: One for each check and node.
        gpus: GPUs by node, where they were asked for.
        cuda: What TensorFlow brings for them, by node.
    """

    results: tuple[CheckResult, ...]
    gpus: Mapping[str, tuple[GpuState, ...]] = field(default_factory=dict)
    cuda: Mapping[str, CudaState | None] = field(default_factory=dict)


def run_checks(
    lab: Lab,
    executors: Mapping[str, Executor],
    *,
    gpu: GpuNeed | None = None,
    only: frozenset[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[CheckResult]:
    """Check every node of a lab; each probe has its own deadline and a node's failure stops no other.

    Args:
        lab: The lab.
        executors: One for each node, by name; the caller closes them.
        gpu: What is wanted of GPUs, None for nothing.
        only: Names of the checks wanted, None for all.
        progress: Told what is done next.

    Returns:
        One result for each check and node, in the order of CHECKS, then of tasks.

    Raises:
        ValueError: A name in `only` is no check.
    """
    return list(run_checked(lab, executors, gpu=gpu, only=only, progress=progress).results)


def run_checked(
    lab: Lab,
    executors: Mapping[str, Executor],
    *,
    gpu: GpuNeed | None = None,
    only: frozenset[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Checked:
    """Check as `run_checks` does, and return what was seen of GPUs too: the same probes tell both."""
    if only is not None and only - NAMES:
        raise ValueError(f"no such checks: {', '.join(sorted(only - NAMES))}")
    wanted = [check for check in CHECKS if only is None or check.name in only]
    seen = observe(
        lab,
        executors,
        gpu=gpu,
        ports=any(check.ports for check in wanted),
        thorough=any(check.thorough for check in wanted),
        progress=progress,
    )
    looked = {name: facts.gpu for name, facts in seen.facts.items() if facts.gpu is not None}
    return Checked(
        tuple(judge(seen, wanted)),
        {name: gpu_states(facts) for name, facts in looked.items()},
        {name: cuda_state(facts) for name, facts in looked.items()},
    )


def judge(seen: Observed, wanted: Sequence[Check] = CHECKS) -> list[CheckResult]:
    """Return the results of some checks on what was observed; pure."""
    return [_judge(seen, check, node) for check in wanted for node in seen.lab.nodes]


def _judge(seen: Observed, check: Check, node: Node) -> CheckResult:
    verdict = _verdict(seen, check, node)
    error = verdict.error
    if verdict.status == "fail" and error is None:
        error = check.error(
            f"{node.name}: {verdict.found}", expected=verdict.expected, do=verdict.do
        )
    return CheckResult(
        check.name,
        node.name,
        verdict.status,
        verdict.found,
        verdict.expected,
        verdict.do,
        error,
        verdict.warns,
    )


def _verdict(seen: Observed, check: Check, node: Node) -> Verdict:
    if node.ssh is None and not check.loopback:
        return skipped("does not apply to the loopback lab")
    met = seen.contacts[node.name].error is None
    if check.name == "probe" and not met:
        return skipped("ssh failed")
    if check.needs_facts and node.name not in seen.facts:
        return skipped("probe failed" if met else "ssh failed")
    return check.judge(seen, node)


def to_error(results: Sequence[CheckResult]) -> LabctlError:
    """Return the error for the most telling failure: the cause rather than its effects.

    Raises:
        ValueError: None failed, or none that does more than warn.
    """
    failed = [result for result in results if result.error is not None and not result.warns]
    if not failed:
        raise ValueError("no check failed")
    order = {name: place for place, name in enumerate(_TELLING)}
    first = min(failed, key=lambda result: order.get(result.name, len(order)))
    assert first.error is not None  # noqa: S101 filtered above
    return first.error
