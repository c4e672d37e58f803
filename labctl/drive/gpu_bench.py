"""Measuring a lab's GPUs by themselves, without TensorFlow: `labctl check --gpu-probe`.

The figures go into the lab's baseline beside those of network and nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from labctl.checks.collect import CLIENT_USER, NODE_PYTHON, SERVER_USER, probe
from labctl.checks.gpu_answer import GpuAnswer, gpu_answer
from labctl.checks.model import CheckResult
from labctl.checks.reader import FactsError
from labctl.drive.baseline import alone, stored
from labctl.drive.links import Links, Machine
from labctl.drive.measure import Progress, ask_means
from labctl.drive.timing import Clock
from labctl.errors import LabctlError
from labctl.lab.model import LOOPBACK, Lab
from labctl.runs import lab_files
from labctl.runs.baseline import Baseline, GpuBaseline

GPU_PROBE = "gpu-probe"
SIZE = 1000

_STEP_S = 60.0
_TOTAL_S = 280.0
_TIMEOUT_S = 300.0


def probe_gpus(
    lab: Lab, links: Links, clock: Clock, progress: Progress = lambda _: None
) -> list[CheckResult]:
    """Measure all nodes at once, one GPU of each after the other, keep the figures, and return them as checks.

    A node that gives an answer loses the figures that it had before.

    Args:
        lab: The lab.
        links: Its nodes.
        clock: Where time comes from.
        progress: Told what is done next.

    Raises:
        OSError: The figures cannot be written.
    """
    with alone(lab, clock) as is_alone:
        if not is_alone:
            return not_probed(lab, "another labctl is measuring this lab")
        means, _ = ask_means(links)
        progress("measuring the GPUs")
        answers: dict[str, GpuAnswer | str] = {}
        # The nodes of the loopback lab have the same GPUs.
        waves = [[each] for each in links.all] if lab.name == LOOPBACK else [list(links.all)]
        for wave in waves:
            futures = [(link, link.submit(lambda machine: _ask(machine, clock))) for link in wave]
            for link, future in futures:
                try:
                    answers[link.node.name] = future.result()
                except LabctlError as error:
                    answers[link.node.name] = error.found
                except FactsError as error:
                    answers[link.node.name] = f"the probe failed: {error}"
        boots = {name: each.boot_id for name, each in means.items()}
        _keep(lab, boots, answers)
    return [each for node in lab.nodes for each in _checks(node.name, answers[node.name])]


def not_probed(lab: Lab, why: str) -> list[CheckResult]:
    """Return the check `gpu-probe` of a lab that is not measured now."""
    return [CheckResult(GPU_PROBE, node.name, "skipped", why) for node in lab.nodes]


def figures_text(gpu: GpuBaseline) -> str:
    """Return a GPU's figures in one line."""
    awake = " (awake already)" if gpu.awake else ""
    compiles = ""
    if gpu.jit_s is not None and gpu.jit_cached_s is not None:
        compiles = f"; PTX {_time(gpu.jit_s)}, {_time(gpu.jit_cached_s)} from the cache"
    return (
        f"{gpu.name} ({gpu.compute_capability}): wake {_time(gpu.wake_s)}{awake}, "
        f"context {_time(gpu.context_s)}, {gpu.library} {_time(gpu.libraries_s)}, "
        f"handle {_time(gpu.handle_s)}, first product {_time(gpu.first_product_s)}, "
        f"later {_time(gpu.warm_product_s)} ({gpu.gflops:.4g} GFLOP/s, L = {gpu.size}); "
        f"to it {gpu.h2d_bytes_per_s / 1e9:.3g} GB/s, back {gpu.d2h_bytes_per_s / 1e9:.3g} GB/s{compiles}"
    )


def _ask(machine: Machine, clock: Clock) -> GpuAnswer:
    """Measure one node's GPUs, as the user whose process will hold them in a run.

    Raises:
        LabctlError: The node did not answer.
        FactsError: Its answer makes no sense.
    """
    is_local = machine.node.ssh is None
    request = {
        "size": SIZE,
        "step_s": _STEP_S,
        "total_s": _TOTAL_S,
        "venv": sys.prefix if is_local else machine.node.python.rpartition("/bin/")[0],
        "user": None if is_local else CLIENT_USER if machine.node.task_index == 0 else SERVER_USER,
    }
    found = probe(
        machine.executor,
        "gpu_probe",
        request,
        python=sys.executable if is_local else NODE_PYTHON,
        sudo=not is_local,
        timeout_s=_TIMEOUT_S,
    )
    return gpu_answer(found, machine.node.name, clock.unix_s())


def _keep(lab: Lab, boots: Mapping[str, str], answers: Mapping[str, GpuAnswer | str]) -> None:
    names = {node.name: boots.get(node.name, "") for node in lab.nodes}
    before = stored(lab, names) or Baseline(dict(boots))
    found: list[GpuBaseline] = []
    for node in lab.nodes:
        answer = answers[node.name]
        if isinstance(answer, str):
            found += [each for each in before.gpus if each.node == node.name]
        else:
            found += answer.gpus
    if tuple(found) != before.gpus:
        lab_files.write_baseline(lab.local_dir, replace(before, gpus=tuple(found)))


def _checks(node: str, answer: GpuAnswer | str) -> Sequence[CheckResult]:
    if isinstance(answer, str):
        return [CheckResult(GPU_PROBE, node, "skipped", answer)]
    if answer.missing is not None:
        return [CheckResult(GPU_PROBE, node, "skipped", answer.missing)]
    results = [
        CheckResult(
            GPU_PROBE, node, "fail", f"GPU {each.index}: {each.found}", each.expected, each.do
        )
        for each in answer.problems
    ]
    told = {each.index for each in answer.problems}
    results += [
        CheckResult(GPU_PROBE, node, "ok", f"GPU {each.index} {figures_text(each)}")
        for each in answer.gpus
        if each.index not in told
    ]
    return results or [
        CheckResult(
            GPU_PROBE,
            node,
            "fail",
            "the probe ended without figures and without a reason",
            "figures of every GPU",
            f"on {node}: python3 gpu_probe.py --table",
        )
    ]


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
