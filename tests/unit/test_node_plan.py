"""The run plan, the cluster spec, and what both may ask for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from labctl.node import limits, spec, wire
from labctl.node.errors import NodeError
from labctl.node.wire import MatpowPlan, RunPlan, ScriptPlan

ADDRESSES = ("10.132.0.2:2222", "10.132.0.3:2222")


@pytest.mark.parametrize(
    "plan",
    [
        RunPlan("r", ADDRESSES, matpow=MatpowPlan(size=3, inter_op=None), environment={"A": "ü\n"}),
        RunPlan("r", ADDRESSES, script=ScriptPlan("a b.py", ("--x", "ü", "")), peer_timeout_s=2.5),
    ],
)
def test_plan_survives_json(plan: RunPlan) -> None:
    assert RunPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 99}, "format 99"),
        ({"matpow": None}, "either matpow or script"),
        ({"script": {"file": "x.py", "args": []}}, "either matpow or script"),
        ({"colour": "red"}, "colour"),
        ({"matpow": {"sise": 4}}, "sise"),
    ],
)
def test_plan_of_another_form_is_refused(change: dict[str, Any], words: str) -> None:
    document = json.loads(RunPlan("r", ADDRESSES, matpow=MatpowPlan()).to_json())
    with pytest.raises(ValueError, match=words):
        RunPlan.from_json(json.dumps({**document, **change}))


def test_spec_text_is_read_back() -> None:
    assert spec.parse_spec(wire.spec_text(ADDRESSES) + "\n") == ADDRESSES


@pytest.mark.parametrize(
    "good", ["a:1", "tf-1.lab.example:65535", "[2001:db8::1]:2222", "[fe80::1%eth0]:2222"]
)
def test_good_addresses(good: str) -> None:
    assert spec.check_addresses((good, "10.0.0.1:1")) == (good, "10.0.0.1:1")


@pytest.mark.parametrize(
    "bad",
    [
        "bob@192.0.2.10:2222",
        " 192.0.2.10:2222",
        "192.0.2.10:2222\n",
        "192.0.2.10:99999",
        "192.0.2.10:0",
        "192.0.2.10",
        "192.0.2.10:",
        "grpc://192.0.2.10:2222",
        "2001:db8::1:2222",
        ":2222",
        "",
        "a b:2222",
        "10.0.0.1:٣",
    ],
)
def test_malformed_addresses_are_refused(bad: str) -> None:
    with pytest.raises(NodeError, match="cannot be used") as caught:
        spec.check_addresses(("10.0.0.1:2222", bad))
    assert caught.value.status == wire.EXIT_BAD_SPEC
    assert repr(bad) in caught.value.found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "no object 'cluster'"),
        ('{"cluster": {}}', r"jobs \[\]"),
        ('{"cluster": {"my-task": ["a:1", "b:1"]}}', "my-task"),
        ('{"cluster": {"": ["a:1", "b:1"]}}', r"jobs \[''\]"),
        ('{"cluster": {"local": "a:1"}}', "no list"),
        ('{"cluster": {"local": ["a:1"]}}', r"has 1 task\b"),
        ('{"cluster": {"local": []}}', "has 0 tasks"),
        ('{"cluster": {"local": ["a:1", 5]}}', "'5' in the cluster spec"),
        ('{"cluster": {"local": ["a:1", "b:1", "a:1"]}}', "tasks 0 and 2 have the same address"),
    ],
)
def test_malformed_specs_are_refused(text: str, words: str) -> None:
    with pytest.raises(NodeError, match=words):
        spec.parse_spec(text)


@pytest.mark.parametrize("task", [-1, 2])
def test_task_outside_the_cluster_is_refused(task: int) -> None:
    with pytest.raises(NodeError, match=f"task {task} is not in") as caught:
        spec.check_task(task, ADDRESSES)
    assert caught.value.expected == "0 to 1"


def _refused(available: int | None = None, **values: Any) -> NodeError:
    with pytest.raises(NodeError) as caught:
        limits.check_matpow(dataclasses.replace(MatpowPlan(), **values), 2, available)
    error = caught.value
    assert error.status == wire.EXIT_BAD_PLAN
    assert error.expected
    assert error.do
    return error


@pytest.mark.parametrize("algorithm", wire.ALGORITHMS)
@pytest.mark.parametrize(("size", "power"), [(1, 1), (2, 1), (1000, 5), (5000, 8)])
def test_ordinary_plans_pass(algorithm: wire.Algorithm, size: int, power: int) -> None:
    plan = MatpowPlan(size=size, power=power, algorithm=algorithm)
    limits.check_matpow(plan, 2, 16 * 2**30)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": "1000"}, "size is '1000'"),
        ({"power": 0}, "power is 0"),
        ({"power": True}, "power is True"),
        ({"repeat": -1}, "repeat is -1"),
        ({"inter_op": 0}, "inter_op is 0"),
        ({"algorithm": "recursion"}, "algorithm is 'recursion'"),
        ({"feed": "late"}, "feed is 'late'"),
        ({"fetch": "all"}, "fetch is 'all'"),
        ({"sum_task": -1}, "sum_task is -1"),
        ({"sum_task": 2}, "task 2 is to add up, there are 2 tasks"),
        ({"placement": "moon"}, "placement is 'moon'"),
        ({"api": "jax"}, "api is 'jax'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"power": 10_001}, "power 10001"),
        ({"power": 901, "algorithm": "recursive"}, "power 901 with algorithm recursive"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], words: str) -> None:
    assert words in _refused(**values).found


def test_listing_stops_where_float32_does() -> None:
    limits.check_matpow(MatpowPlan(algorithm="listing", power=14), 2, None)
    error = _refused(algorithm="listing", power=15)
    assert "overflows float32: it computes M^16" in error.found
    assert "--algorithm chain" in str(error)
    assert "underflows" in _refused(algorithm="listing", power=200, size=1).found
    assert "expected  1 to 900" in str(_refused(algorithm="listing", power=901, size=2))
    limits.check_matpow(MatpowPlan(algorithm="chain", power=10_000), 2, None)


def test_a_matrix_must_fit_one_message_unless_nothing_is_sent() -> None:
    error = _refused(size=23_171)
    assert "gRPC message" in error.found
    assert error.expected == "size 23170 or less"
    limits.check_matpow(MatpowPlan(size=23_170), 2, None)
    limits.check_matpow(MatpowPlan(size=23_171, placement="one-process"), 2, None)


def test_constants_must_fit_one_graph() -> None:
    error = _refused(size=16_384, feed="constant")
    assert error.found == (
        "size 16384: 2 constant matrices are 2.0 GiB, more than one GraphDef can hold"
    )
    assert error.expected == "size 16383 or less"
    limits.check_matpow(MatpowPlan(size=16_383, feed="constant"), 2, None)
    assert "GraphDef" in _refused(size=16_384, feed="constant", placement="one-process").found
    limits.check_matpow(MatpowPlan(size=16_384), 2, None)


def test_memory_is_checked_and_the_size_that_fits_is_named() -> None:
    available = 4 * 2**30
    error = _refused(available, size=20_000)
    assert "4.0 GiB are available" in error.found
    assert error.expected is not None
    fits = int(error.expected.split()[1])
    limits.check_matpow(MatpowPlan(size=fits), 2, available)
    assert fits > 5000


def test_estimate_grows_with_tasks_and_counts_what_is_fed() -> None:
    size = 1000
    matrix = 4 * size * size
    plan = MatpowPlan(size=size, algorithm="chain", feed="fed")
    two, three = limits.estimate_bytes(plan, 2), limits.estimate_bytes(plan, 3)
    assert [len(two), len(three)] == [2, 3]
    assert two[1] == three[1] == 4 * matrix
    big = dataclasses.replace(plan, size=10_000)  # large enough that float64 does not decide
    staged = dataclasses.replace(big, feed="staged")
    saved = limits.estimate_bytes(big, 2)[0] - limits.estimate_bytes(staged, 2)[0]
    assert saved == 2 * 4 * 10_000**2
    elsewhere = limits.estimate_bytes(dataclasses.replace(big, sum_task=1), 2)
    here = limits.estimate_bytes(big, 2)
    assert sum(elsewhere) == sum(here)
    assert elsewhere[1] - here[1] == 2 * 4 * 10_000**2


def test_one_host_needs_all_tasks_memory_here() -> None:
    plan = {"size": 4000, "feed": "staged", "power": 2}
    available = 1600 * 2**20
    limits.check_matpow(MatpowPlan(**plan), 2, available)  # type: ignore[arg-type]
    assert "available" in _refused(available, placement="one-host", **plan).found


def test_large_results_are_checked_by_random_vectors() -> None:
    assert limits.check_method(MatpowPlan(size=1000), 2) == "float64"
    assert limits.check_method(MatpowPlan(size=8000), 2) == "random-vector"
    long = MatpowPlan(
        size=2000, power=10_000
    )  # so many factors that squaring in float64 costs less
    assert limits.check_method(long, 2) == "float64"


def test_script_must_lie_in_the_run_directory(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"x\.py is not in"):
        limits.check_script(ScriptPlan("x.py"), tmp_path)
    (tmp_path / "x.py").touch()
    limits.check_script(ScriptPlan("x.py"), tmp_path)
