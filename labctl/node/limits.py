"""What a plan may ask for: checked on the node before numpy and TensorFlow are imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import wire
from .errors import bad_plan
from .experiments.power import power_computed
from .wire import MatpowPlan, ScriptPlan

MAX_POWER = 10_000  # beyond it float32 rounding leaves no digits worth checking
MAX_RECURSIVE_POWER = 900  # Python's recursion limit is 1000
PROCESS_BYTES = 600 * 2**20  # a process that has imported TensorFlow and built a server
_GRAPH_COPIES = 7  # of constants, the graph that holds them and what travels of it, at their most (measured: 6.7)

# What a check costs on one core, measured with OpenBLAS: seconds for each of L^3 elements of a float64 product,
# and for each of L^2 elements of a float32 matrix that is widened and multiplied by a few columns.
_FLOAT64_PRODUCT_S = 1e-10
_RANDOM_VECTOR_S = 5e-9
_FLOAT64_CHECK_WITHIN_S = 2.5

_FLAGS = {"sum_task": "sum-on"}

_FLOAT32_MAX_LOG10 = 38.53
_FLOAT32_MIN_LOG10 = -37.9


def check_matpow(plan: MatpowPlan, tasks: int, available_bytes: int | None) -> None:
    """Check that a plan can be run here.

    Args:
        plan: The experiment.
        tasks: Number of tasks.
        available_bytes: Memory that this node can still give, None if unknown.

    Raises:
        NodeError: With status `EXIT_BAD_PLAN`: a value out of range, a matrix or a graph over the 2 GB of one
            message, more memory than there is, or powers that float32 cannot hold.
    """
    _check_values(plan)
    if plan.sum_task >= tasks:
        raise bad_plan(
            f"task {plan.sum_task} is to add up, there are {tasks} tasks",
            expected=f"0 to {tasks - 1}",
            do="correct --sum-on",
        )
    _check_power(plan, tasks)
    _check_message(plan)
    _check_graph(plan, tasks)
    need = _need_here(plan, tasks)
    if available_bytes is not None and need > available_bytes:
        raise bad_plan(
            f"size {plan.size} on {tasks} tasks needs about {_gib(need)} on task 0's node,"
            f" {_gib(available_bytes)} are available",
            expected=f"size {_largest_size(plan, tasks, available_bytes)} or less",
            do="a smaller --size, or nodes with more memory",
        )


def check_script(plan: ScriptPlan, directory: Path) -> None:
    """Check that a user's script lies in the run's directory.

    Raises:
        NodeError: With status `EXIT_BAD_PLAN`: it does not.
    """
    if not (directory / plan.file).is_file():
        raise bad_plan(
            f"script {plan.file} is not in {directory}",
            expected="the script beside plan.json",
            do="run it again; if this stays, report it",
        )


def estimate_bytes(plan: MatpowPlan, tasks: int) -> tuple[int, ...]:
    """Return about how many bytes each task's process needs beyond TensorFlow itself, task 0's first.

    Counted are matrices that live at the same time: a task's input, the operands and result of a product, one
    copy on its way; where the sum is formed what arrives and the sum; on task 0 also the inputs of all tasks in
    numpy, what is fed or the copies of a graph that holds them, what is fetched, and the check.
    """
    matrix = 4 * plan.size * plan.size
    working = 1 + (4 if plan.algorithm == "squaring" else 2)
    inputs = tasks * matrix
    sent = {"fed": 1, "staged": 0, "constant": _GRAPH_COPIES}[plan.feed] * inputs
    step = working * matrix + sent + matrix
    check = 5 * 2 * matrix if check_method(plan, tasks) == "float64" else 0
    needs = [inputs + max(step, check), *([(working + 1) * matrix] * (tasks - 1))]
    needs[plan.sum_task] += tasks * matrix
    return tuple(needs)


def check_method(plan: MatpowPlan, tasks: int) -> str:
    """Return how the result is checked: `float64`, or `random-vector` where that would take too long."""
    power = power_computed(plan.power, plan.algorithm)
    products = power.bit_length() + power.bit_count()  # numpy squares, too
    float64_s = _FLOAT64_PRODUCT_S * plan.size**3 * products * tasks
    random_vector_s = _RANDOM_VECTOR_S * plan.size**2 * power * tasks
    cheap = float64_s <= max(_FLOAT64_CHECK_WITHIN_S, random_vector_s)
    return "float64" if cheap else "random-vector"


def listing_log10(plan: MatpowPlan, tasks: int) -> float:
    """Return the decimal exponent of a typical entry of the listing's sum.

    Its inputs are uniform on [0, 1), so an entry of M^p is about (L/2)^(p-1) / 2.
    """
    factors = power_computed(plan.power, plan.algorithm)
    return math.log10(tasks / 2) + (factors - 1) * math.log10(plan.size / 2)


def _check_values(plan: MatpowPlan) -> None:
    for name, value, least in (
        ("size", plan.size, 1),
        ("power", plan.power, 1),
        ("repeat", plan.repeat, 0),
        ("inter_op", 1 if plan.inter_op is None else plan.inter_op, 1),
        ("seed", plan.seed, 0),
        ("sum_task", plan.sum_task, 0),
    ):
        if type(value) is not int or value < least:
            raise bad_plan(
                f"{name} is {value!r}",
                expected=f"a whole number, {least} or more",
                do=f"correct --{_FLAGS.get(name, name.replace('_', '-'))}",
            )
    for name, word, words in (
        ("algorithm", plan.algorithm, wire.ALGORITHMS),
        ("feed", plan.feed, wire.FEEDS),
        ("fetch", plan.fetch, wire.FETCHES),
        ("placement", plan.placement, wire.PLACEMENTS),
        ("api", plan.api, wire.APIS),
        ("device", plan.device, wire.DEVICES),
    ):
        _check_word(name, word, words)


def _check_word(name: str, word: Any, words: Sequence[str]) -> None:
    if word not in words:
        raise bad_plan(
            f"{name} is {word!r}", expected=f"one of {', '.join(words)}", do=f"correct --{name}"
        )


def _check_power(plan: MatpowPlan, tasks: int) -> None:
    most = MAX_RECURSIVE_POWER if plan.algorithm in {"listing", "recursive"} else MAX_POWER
    if plan.power > most:
        raise bad_plan(
            f"power {plan.power} with algorithm {plan.algorithm}",
            expected=f"1 to {most}",
            do="a smaller --power"
            if most == MAX_POWER
            else "a smaller --power, or --algorithm chain",
        )
    if plan.algorithm != "listing":
        return
    exponent = listing_log10(plan, tasks)
    if not _FLOAT32_MIN_LOG10 < exponent < _FLOAT32_MAX_LOG10:
        what = "overflows" if exponent > 0 else "underflows"
        raise bad_plan(
            f"listing with power {plan.power} and size {plan.size} {what} float32: it computes"
            f" M^{plan.power + 1} of unscaled inputs, entries near 1e{exponent:.0f}",
            expected=f"entries between 1e{_FLOAT32_MIN_LOG10:.0f} and 3.4e38",
            do="a smaller --power, or --algorithm chain or squaring, whose inputs are scaled",
        )


def _check_message(plan: MatpowPlan) -> None:
    matrix = 4 * plan.size * plan.size
    if plan.placement != "one-process" and matrix > wire.MESSAGE_BYTES:
        raise bad_plan(
            f"size {plan.size}: one matrix is {_gib(matrix)}, more than one gRPC message between tasks can hold",
            expected=f"size {math.isqrt(wire.MESSAGE_BYTES // 4)} or less",
            do="a smaller --size, or --placement one-process, where nothing is sent",
        )


def _check_graph(plan: MatpowPlan, tasks: int) -> None:
    """Check that constant inputs fit the graph: beyond protobuf's limit TensorFlow 2.21 raises a DecodeError."""
    constants = tasks * 4 * plan.size * plan.size
    if plan.feed == "constant" and constants > wire.MESSAGE_BYTES:
        raise bad_plan(
            f"size {plan.size}: {tasks} constant matrices are {_gib(constants)}, more than one GraphDef can hold",
            expected=f"size {math.isqrt(wire.MESSAGE_BYTES // 4 // tasks)} or less",
            do="--feed fed or staged, or a smaller --size",
        )


def _need_here(plan: MatpowPlan, tasks: int) -> int:
    """Return the bytes needed on task 0's node."""
    needs = estimate_bytes(plan, tasks)
    if plan.placement == "lab":
        return needs[0] + PROCESS_BYTES
    processes = tasks if plan.placement == "one-host" else 1
    return sum(needs) + processes * PROCESS_BYTES


def _largest_size(plan: MatpowPlan, tasks: int, available_bytes: int) -> int:
    """Return the largest size, in steps of 100, that fits; memory grows with its square."""
    fixed = PROCESS_BYTES * (tasks if plan.placement == "one-host" else 1)
    matrices = (_need_here(plan, tasks) - fixed) / (plan.size * plan.size)
    return int(math.sqrt(max(0, available_bytes - fixed) / matrices)) // 100 * 100


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
