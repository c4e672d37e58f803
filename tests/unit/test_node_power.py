"""Powers, their counts, the float64 check and the inputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.node import verify
from labctl.node.experiments.inputs import make_inputs
from labctl.node.experiments.power import form_power, power_computed, product_count
from labctl.node.wire import ALGORITHMS, Algorithm, MatpowPlan

algorithms = st.sampled_from(ALGORITHMS)


@given(power=st.integers(1, 600), algorithm=algorithms)
def test_form_power_has_the_factors_and_products_it_says(power: int, algorithm: Algorithm) -> None:
    products = 0

    def multiply(left: int, right: int) -> int:  # exponents add where matrices are multiplied
        nonlocal products
        products += 1
        return left + right

    assert form_power(1, power, algorithm, multiply) == power_computed(power, algorithm)
    assert products == product_count(power, algorithm)


@pytest.mark.parametrize(
    ("power", "listing", "chain", "squaring"),
    [(1, 1, 0, 0), (2, 2, 1, 1), (5, 5, 4, 3), (50, 50, 49, 7), (900, 900, 899, 12)],
)
def test_product_count(power: int, listing: int, chain: int, squaring: int) -> None:
    found = {algorithm: product_count(power, algorithm) for algorithm in ALGORITHMS}
    assert found == {
        "listing": listing,
        "chain": chain,
        "recursive": chain,
        "squaring": squaring,
    }


def test_only_the_listing_computes_one_factor_more() -> None:
    found = {algorithm: power_computed(5, algorithm) for algorithm in ALGORITHMS}
    assert found == {"listing": 6, "chain": 5, "recursive": 5, "squaring": 5}


@given(power=st.integers(1, 200))
def test_recursion_and_loop_multiply_the_same_operands_in_the_same_order(power: int) -> None:
    def products(algorithm: Algorithm) -> list[tuple[str, str]]:
        seen: list[tuple[str, str]] = []

        def multiply(left: str, right: str) -> str:
            seen.append((left, right))
            return f"P{len(seen)}"

        form_power("M", power, algorithm, multiply)
        return seen

    assert products("recursive") == products("chain")
    assert all(left == "M" for left, _ in products("chain"))
    if power >= 4:
        assert products("squaring") != products("chain")


@pytest.mark.parametrize("size", [1, 2, 3, 64, 101])
def test_scaled_inputs_are_orthogonal_so_powers_keep_their_norm(size: int) -> None:
    for matrix in make_inputs(MatpowPlan(size=size), 2):
        assert matrix.dtype == np.float32
        assert matrix.shape == (size, size)
        wide = matrix.astype(np.float64)
        np.testing.assert_allclose(wide @ wide.T, np.eye(size), atol=1e-5)
        norm = np.linalg.norm(np.linalg.matrix_power(wide, 10_000))
        assert norm == pytest.approx(np.sqrt(size), rel=0.02)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_a_sum_of_powers_is_never_zero(size: int, tasks: int) -> None:
    for seed in range(20):
        inputs = make_inputs(MatpowPlan(size=size, seed=seed), tasks)
        assert (
            np.linalg.norm(sum(np.linalg.matrix_power(each, 5) for each in inputs)) >= tasks - 1e-3
        )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_inputs_differ_by_task_and_seed_and_repeat_for_the_same(algorithm: Algorithm) -> None:
    plan = MatpowPlan(size=8, algorithm=algorithm, seed=1)
    first, second = make_inputs(plan, 2)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, make_inputs(plan, 5)[0])
    other = make_inputs(MatpowPlan(size=8, algorithm=algorithm, seed=2), 1)[0]
    assert not np.array_equal(first, other)


def test_listing_inputs_are_the_questions_uniform_ones() -> None:
    matrix = make_inputs(MatpowPlan(size=200, algorithm="listing"), 1)[0]
    assert matrix.min() >= 0
    assert matrix.max() < 1
    assert matrix.mean() == pytest.approx(0.5, abs=0.01)


def _computed(power: int, size: int = 60) -> tuple[list[verify.Matrix], verify.Matrix]:
    inputs: list[verify.Matrix] = list(make_inputs(MatpowPlan(size=size), 3))
    total = sum(np.linalg.matrix_power(matrix, power) for matrix in inputs)
    return inputs, np.asarray(total, dtype=np.float32)


@pytest.mark.parametrize("method", ["float64", "random-vector"])
@pytest.mark.parametrize("power", [1, 5, 300])
def test_verify_accepts_float32_rounding(method: str, power: int) -> None:
    inputs, result = _computed(power)
    verdict = verify.verify(result, inputs, power, method, seed=3)
    assert verdict.ok
    assert verdict.checked_by == method
    assert verdict.relative_error is not None
    assert verdict.relative_error <= verdict.tolerance
    assert verdict.norm == pytest.approx(float(np.linalg.norm(result)), rel=1e-6)


@pytest.mark.parametrize("method", ["float64", "random-vector"])
@pytest.mark.parametrize("power", [5, 300])
@pytest.mark.parametrize("off_by", [-1, 1, 2])
def test_verify_refuses_another_power(method: str, power: int, off_by: int) -> None:
    inputs, result = _computed(power + off_by)
    verdict = verify.verify(result, inputs, power, method, seed=3)
    assert not verdict.ok
    assert verdict.relative_error == pytest.approx(1.4, abs=0.6)


@pytest.mark.parametrize("method", ["float64", "random-vector"])
def test_verify_refuses_a_missing_task_and_a_swapped_row(method: str) -> None:
    inputs, result = _computed(5)
    assert not verify.verify(result, inputs[:2], 5, method, seed=3).ok
    result[[0, 1]] = result[[1, 0]]
    assert not verify.verify(result, inputs, 5, method, seed=3).ok


def test_both_methods_estimate_the_same_error() -> None:
    inputs, result = _computed(5, size=300)
    noise = np.random.default_rng(0).standard_normal(result.shape) * 1e-4
    spoilt = (result + noise).astype(np.float32)
    exact = verify.verify(spoilt, inputs, 5, "float64", seed=3).relative_error
    estimate = verify.verify(spoilt, inputs, 5, "random-vector", seed=3).relative_error
    assert exact is not None
    assert estimate == pytest.approx(exact, rel=0.2)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("method", ["float64", "random-vector"])
def test_verify_has_no_error_for_a_result_that_is_not_finite(method: str, bad: float) -> None:
    inputs, result = _computed(5)
    result[3, 4] = bad
    with np.errstate(invalid="ignore"):
        verdict = verify.verify(result, inputs, 5, method, seed=3)
    assert (verdict.ok, verdict.relative_error, verdict.norm) == (False, None, None)


def test_relative_error_of_nothing_is_none() -> None:
    zero = np.zeros((2, 2))
    assert verify.relative_error(zero, zero) is None
    assert verify.relative_error(np.eye(2), np.eye(2)) == 0
