"""The input matrices: random, yet the same on every machine for the same seed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..wire import MatpowPlan

Float32 = npt.NDArray[np.float32]


def make_inputs(plan: MatpowPlan, tasks: int) -> list[Float32]:
    """Return M_k, L x L float32, for each task.

    `listing` has the question's own: uniform on [0, 1). The others have random orthogonal matrices, whose
    powers neither grow nor fade for any n, and differ for each n. Uniform matrices scaled by 2/L would not
    do: their dominant eigenvalue is 1, so M^5 and M^6 agree to 1e-3 and a wrong power could pass the check.
    """
    make = _uniform if plan.algorithm == "listing" else _orthogonal
    return [make(plan.size, np.random.default_rng([plan.seed, task])) for task in range(tasks)]


def _uniform(size: int, random: np.random.Generator) -> Float32:
    return random.random((size, size), dtype=np.float32)


def _orthogonal(size: int, random: np.random.Generator) -> Float32:
    """Return a dense orthogonal circulant matrix: its eigenvalues are random phases.

    It costs one Fourier transform of L numbers instead of a factorisation of L^3 operations. One eigenvalue
    is 1 in all of them, so that a sum of powers is never zero, not even for L = 1.
    """
    spectrum = np.exp(2j * np.pi * random.random(size // 2 + 1))
    spectrum[0] = 1.0  # a real matrix needs real ends
    if size % 2 == 0:
        spectrum[-1] = random.choice([-1.0, 1.0])
    column = np.fft.irfft(spectrum, n=size).astype(np.float32)
    backwards = column[::-1]
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([backwards, backwards]), size)
    return np.ascontiguousarray(windows[:size][::-1])
