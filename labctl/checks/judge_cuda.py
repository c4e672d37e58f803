"""Judges of TensorFlow's build against a node's GPUs: kernels, CUDA's versions and libraries."""

from __future__ import annotations

from labctl.checks.facts import Observed
from labctl.checks.gpu_facts import GpuFacts
from labctl.checks.gpu_parse import compiles
from labctl.checks.judge_gpu import answered, asked, refuse
from labctl.checks.judge_host import remedy
from labctl.checks.kernels import kernels_for
from labctl.checks.model import Verdict, mib, ok, skipped, warn
from labctl.lab.model import Node


@answered
def judge_gpu_capability(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:
    """TensorFlow's build has code for the GPU, or PTX that can be compiled for it."""
    wheel = facts.wheel
    if (why := _no_build(facts)) is not None:
        return skipped(why)
    version = _tensorflow(seen, node)
    for each in facts.devices:
        capability = each.state.compute_capability
        if kernels_for(capability, wheel.capabilities) == "none":
            return refuse(
                f"{each.label} of {node.name} has compute capability {capability}, too old for {version}",
                f"one that its build has code for: {' '.join(wheel.capabilities)}",
                "a newer GPU, or an older TensorFlow: docs/causes.md has which wheel fits which",
            )
    told = {each.state.compute_capability or "unknown" for each in facts.devices}
    return ok(
        f"compute capability {', '.join(sorted(told))}; {version} has {' '.join(wheel.capabilities)}"
    )


@answered
def judge_gpu_compile(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:
    """The first run need not compile TensorFlow's kernels for the GPU."""
    wheel = facts.wheel
    if (why := _no_build(facts)) is not None:
        return skipped(why)
    kinds = {
        each.label: kernels_for(each.state.compute_capability, wheel.capabilities)
        for each in facts.devices
    }
    whole = [label for label, kind in kinds.items() if kind == "all"]
    small = [label for label, kind in kinds.items() if kind == "small"]
    kept = _cache_text(facts)
    if whole:
        if facts.access.cuda and _older(facts.access.cuda, wheel.cuda):
            return refuse(
                f"{whole[0]} of {node.name} needs PTX compiled, and the driver for CUDA "
                f"{facts.access.cuda} cannot compile that of CUDA {wheel.cuda}",
                f"a driver for CUDA {wheel.cuda} or newer",
                "raise the driver's branch (role nvidia_driver), then labctl provision",
            )
        if compiles(facts) is None:
            return ok(f"{_tensorflow(seen, node)} has PTX only for {whole[0]}; {kept}")
        return warn(
            f"the first run compiles all of {_tensorflow(seen, node)}'s kernels that it uses for "
            f"{whole[0]}: minutes; {kept}",
            "machine code for the GPU in TensorFlow's build, or a kernel cache that holds it",
            "let it: labctl run --gpu --repeat 1; the cache keeps the kernels for later runs",
        )
    if small:
        return ok(
            f"machine code for products; element-wise kernels of {small[0]} are compiled at their "
            f"first use, under a second each is expected (not measured); {kept}"
        )
    if "unknown" in kinds.values():
        return skipped("nvidia-smi does not tell the compute capability")
    return ok(f"nothing: machine code for all GPUs; {kept}")


def _no_build(facts: GpuFacts) -> str | None:
    """Return why nothing can be said of kernels, None if it can."""
    if facts.wheel.error is not None:
        return f"the build is not known: {facts.wheel.error}"
    if not facts.wheel.is_cuda:
        return "TensorFlow is the CPU build"
    return None if facts.wheel.capabilities else "the build does not tell its compute capabilities"


def _cache_text(facts: GpuFacts) -> str:
    cache = facts.cache
    if cache.files is None or cache.size_bytes is None:
        return f"the kernel cache {cache.path} cannot be read".replace("  ", " ")
    if not cache.files:
        return f"the kernel cache {cache.path} is empty"
    return f"the kernel cache {cache.path} has {cache.files} files, {mib(cache.size_bytes)}"


@asked
def judge_cuda_libraries(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:  # noqa: ARG001 the judges' form
    """TensorFlow's user can open every library that TensorFlow will."""
    if facts.wheel.error is None and not facts.wheel.is_cuda:
        return skipped("TensorFlow is the CPU build")
    if facts.libraries is None:
        return skipped(facts.libraries_error or "not tried")
    driver = [each.name for each in facts.libraries if each.error and "libcuda.so" in each.name]
    missing = [each for each in facts.libraries if each.error and each.name not in driver]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return refuse(
            f"{node.name} cannot open {missing[0].name}{more}: {missing[0].error}",
            "every CUDA library of TensorFlow: without one it computes on the CPU",
            remedy(node) + " with the GPU build: its role cuda says where it looked",
        )
    if driver:
        return (
            skipped("gpu failed")
            if not facts.answers
            else refuse(
                f"{node.name} cannot open {driver[0]}",
                "the driver's own library for CUDA",
                "labctl provision, which installs the driver with it",
            )
        )
    return ok(f"{len(facts.libraries)} opened")


@asked
def judge_cuda_versions(seen: Observed, node: Node, facts: GpuFacts) -> Verdict:
    """TensorFlow is built for CUDA that the driver supports; drivers and builds are alike on all nodes."""
    wheel, name = facts.wheel, node.name
    if wheel.error is not None:
        return skipped(f"the build is not known: {wheel.error}")
    if not wheel.is_cuda:
        return refuse(
            f"TensorFlow on {name} is the CPU build",
            "the GPU build: package tensorflow, not tensorflow-cpu",
            "tensorflow_build: gpu in the inventory, then labctl provision",
        )
    if (verdict := _unlike_client(seen, node)) is not None:
        return verdict
    supports = facts.access.cuda
    if not facts.answers or not supports:
        return ok(
            f"{_tensorflow(seen, node)} is built for CUDA {wheel.cuda or 'of unknown version'}"
        )
    # Within a major version an older driver runs what a newer toolkit built, but its PTX
    # (docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility").
    if wheel.cuda and _major(supports) < _major(wheel.cuda):
        return refuse(
            f"the driver of {name} supports CUDA {supports}, {_tensorflow(seen, node)} is built for {wheel.cuda}",
            f"a driver for CUDA {_major(wheel.cuda)} or newer",
            "raise the driver's branch (role nvidia_driver), then labctl provision and reboot",
        )
    by = ""
    if _older(supports, wheel.cuda):
        by = ", compatible within the major version"
    return ok(f"TensorFlow for CUDA {wheel.cuda or '?'}, driver for CUDA {supports}{by}")


def _unlike_client(seen: Observed, node: Node) -> Verdict | None:
    """Return how a node's driver or build differs from task 0's, None if it does not."""
    client = seen.lab.client
    theirs, own = seen.facts.get(client.name), seen.facts[node.name]
    if node is client or theirs is None or theirs.gpu is None or own.gpu is None:
        return None
    pairs = [
        ("TensorFlow", own.venv.tensorflow, theirs.venv.tensorflow, refuse),
        ("the driver", _driver(own.gpu), _driver(theirs.gpu), warn),
    ]
    for what, mine, other, say in pairs:
        if mine and other and mine != other:
            return say(
                f"{what} is {mine} on {node.name} and {other} on {client.name}",
                "the same on all nodes",
                remedy(node) + ", with one version for all nodes",
            )
    return None


def _driver(facts: GpuFacts) -> str:
    return facts.devices[0].state.driver if facts.devices else ""


def _tensorflow(seen: Observed, node: Node) -> str:
    return f"TensorFlow {seen.facts[node.name].venv.tensorflow or ''}".strip()


def _major(version: str) -> int:
    return int(version.partition(".")[0]) if version.partition(".")[0].isdecimal() else 0


def _older(driver: str, wheel: str) -> bool:
    """Return whether a driver's CUDA is older than a wheel's, by major and minor."""

    def parts(version: str) -> list[int]:
        return [int(each) if each.isdecimal() else 0 for each in version.split(".")[:2]]

    return bool(wheel) and parts(driver) < parts(wheel)
