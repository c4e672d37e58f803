"""Is the result right? Compared with float64 on the client's node, after the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.floating[Any]]

_VECTORS = 4
_BLOCK_ELEMENTS = 2**22  # rows are widened to float64 in blocks of this many elements


@dataclass(frozen=True)
class Verdict:
    """What the check says.

    Attributes:
        ok: The relative error is within the tolerance.
        relative_error: ||S - E|| / ||E|| in the Frobenius norm, E the result in float64; None when S or E
            has an entry that is not finite, or E is zero.
        tolerance: Largest relative error that counts as right.
        norm: Frobenius norm of S, None when it is not finite.
        checked_by: `float64` or `random-vector`.
    """

    ok: bool
    relative_error: float | None
    tolerance: float
    norm: float | None
    checked_by: str


def tolerance(size: int, power: int) -> float:
    """Return the largest relative error that float32 rounding explains.

    Each product adds an error of a few units in the last place, and errors add up over the factors; 1e-5
    covers what BLAS libraries and GPUs do with short chains.
    """
    return max(1e-5, 1e-6 * power * max(1.0, math.sqrt(size / 1000)))


def verify(result: Matrix, inputs: Sequence[Matrix], power: int, method: str, seed: int) -> Verdict:
    """Compare a result with the sum of the inputs' powers.

    `float64` forms that sum. `random-vector` takes X, L x 4 of standard normals, and compares S X with
    the sum of M(M(...X)): for normal X the expectation of ||(S - E) X||^2 is 4 ||S - E||^2, so the ratio
    estimates the same relative error at the cost of products with 4 columns.

    Args:
        result: S, L x L.
        inputs: M_k, L x L each.
        power: Number of factors.
        method: `float64` or `random-vector`.
        seed: Of X.
    """
    limit = tolerance(len(result), power)
    norm = _finite(float(np.linalg.norm(result.astype(np.float64))))
    if method == "float64":
        expected = sum_of_powers(inputs, power)
        error = relative_error(result.astype(np.float64), expected)
    else:
        probe = np.random.default_rng(seed).standard_normal((len(result), _VECTORS))
        error = relative_error(
            _widened_product(result, probe), _applied_powers(inputs, power, probe)
        )
    ok = error is not None and error <= limit
    return Verdict(ok, error, limit, norm, method)


def relative_error(found: Matrix, expected: Matrix) -> float | None:
    """Return ||found - expected|| / ||expected||, Frobenius; None when that has no finite value."""
    size = np.linalg.norm(expected)
    if not np.isfinite(size) or size == 0 or not np.all(np.isfinite(found)):
        return None
    return _finite(float(np.linalg.norm(found - expected) / size))


def sum_of_powers(inputs: Sequence[Matrix], power: int) -> Matrix:
    """Return the sum of M_k^power in float64."""
    total = np.zeros_like(inputs[0], dtype=np.float64)
    for matrix in inputs:
        total += np.linalg.matrix_power(matrix.astype(np.float64), power)
    return total


def _applied_powers(inputs: Sequence[Matrix], power: int, columns: Matrix) -> Matrix:
    total = np.zeros_like(columns)
    for matrix in inputs:
        image = columns
        for _ in range(power):
            image = _widened_product(matrix, image)
        total += image
    return total


def _widened_product(matrix: Matrix, columns: Matrix) -> Matrix:
    """Return matrix @ columns in float64, the matrix widened a block of rows at a time."""
    rows = max(1, _BLOCK_ELEMENTS // len(matrix))
    blocks = [
        matrix[first : first + rows].astype(np.float64) @ columns
        for first in range(0, len(matrix), rows)
    ]
    return np.concatenate(blocks)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
