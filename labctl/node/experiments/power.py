"""How a power is formed, for anything that can be multiplied; standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..wire import Algorithm

T = TypeVar("T")


def form_power(matrix: T, power: int, algorithm: Algorithm, multiply: Callable[[T, T], T]) -> T:
    """Return a power of a matrix.

    Args:
        matrix: M.
        power: n, at least 1.
        algorithm: `listing` recurses as the question does and gives M^(n+1); `recursive` recurses and gives M^n,
            as `chain` does in a loop, with the same products in the same order; `squaring` gives M^n with
            fewer products.
        multiply: Forms one product.
    """
    if algorithm == "listing":
        return _recurse(matrix, power, multiply)
    if algorithm == "recursive":
        return _recurse(matrix, power - 1, multiply)
    if algorithm == "chain":
        product = matrix
        for _ in range(power - 1):
            product = multiply(matrix, product)
        return product
    return _square(matrix, power, multiply)


def power_computed(power: int, algorithm: Algorithm) -> int:
    """Return the number of factors in the result: n, or n + 1 for `listing`."""
    return power + 1 if algorithm == "listing" else power


def product_count(power: int, algorithm: Algorithm) -> int:
    """Return how many products one task forms in one step."""
    if algorithm == "listing":
        return power
    if algorithm in {"chain", "recursive"}:
        return power - 1
    return power.bit_length() - 1 + power.bit_count() - 1


def _recurse(matrix: T, n: int, multiply: Callable[[T, T], T]) -> T:
    """The question's `matpow`: it returns M, not the identity, at n = 0."""
    if n < 1:
        return matrix
    return multiply(matrix, _recurse(matrix, n - 1, multiply))


def _square(matrix: T, n: int, multiply: Callable[[T, T], T]) -> T:
    result: T | None = None
    base = matrix
    while True:
        if n & 1:
            result = base if result is None else multiply(result, base)
        n >>= 1
        if not n:
            break
        base = multiply(base, base)
    assert result is not None  # noqa: S101 n >= 1 has a highest bit
    return result
