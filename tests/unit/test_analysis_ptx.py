"""The instruction table as data, and the bounds that follow from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.analysis.ptx import (
    KERNELS,
    bound,
    bounds,
    find_gpu,
    gpus,
    instruction,
    instruction_table,
    issue_clocks,
    library_s,
)

NAIVE, TILED, BLOCKED = KERNELS


def test_the_table_is_the_answers() -> None:
    table = instruction_table()
    assert len(table) == 23
    assert {each.unit for each in table} == {"LSU", "ALU", "SFU"}
    figures = {each.category: (each.clocks_per_warp, each.latency_clocks) for each in table}
    assert figures["Load_shared"] == (2, 30)
    assert figures["Load_global"] == figures["Texture"] == (2, 600)
    assert figures["Float_single"] == (2, 24)
    assert figures["Float_double"] == (1, 48)
    assert figures["Special_double"] == (8, 72)
    assert instruction("Float_single").instructions[:3] == ("testp", "copysign", "add")
    assert instruction("Load_global").note.startswith(".ss = .global")
    with pytest.raises(KeyError):
        instruction("Load_moon")


@pytest.mark.parametrize(
    ("name", "peak_tflops"),
    [
        ("C2050", 1.03),
        ("K80", 4.1),
        ("P100", 9.3),
        ("T4", 8.1),
        ("V100", 15.7),
        ("A100", 19.5),
        ("L4", 30.3),
        ("H100", 67),
        ("H200", 67),
    ],
)
def test_peaks_are_the_published_ones(name: str, peak_tflops: float) -> None:
    gpu = find_gpu(name.lower())
    assert gpu is not None
    assert gpu.peak_tflops == pytest.approx(peak_tflops, rel=0.01)


def test_every_gpu_is_complete() -> None:
    for gpu in gpus():
        assert find_gpu(gpu.name) is gpu
        assert gpu.title
        assert gpu.architecture
    assert find_gpu("VT100") is None


def test_fermi_issues_what_its_lanes_say() -> None:
    fermi = find_gpu("C2050")
    assert fermi is not None
    assert issue_clocks("Load_global", fermi) == 2  # 32 threads on 16 lanes
    assert issue_clocks("Float_single", fermi) == 1  # 32 threads on 32 lanes


def test_the_naive_product_by_hand() -> None:
    """K80, L = 1000: 63^2 blocks of 8 warps on 13 SMs; 306 blocks on the busiest one."""
    gpu = find_gpu("K80")
    assert gpu is not None
    found = bound(gpu, NAIVE, 1000)
    warps = 306 * 8
    assert found.resident_warps == 64
    assert found.issue_s == pytest.approx(warps * 1000 * 2 / 0.824e9)
    assert found.latency_s == pytest.approx(39 * 1000 * 624 / 0.824e9)  # 2448 warps, 64 at a time
    assert found.traffic_s == pytest.approx(12e6 / 240e9)
    assert found.alone_s == pytest.approx(warps * 1000 * 1224 / 0.824e9)
    assert 3.5 < found.alone_s < 3.7


def test_the_tiled_product_by_hand() -> None:
    gpu = find_gpu("C2050")
    assert gpu is not None
    found = bound(gpu, TILED, 160)
    warps = 8 * 8  # 100 blocks on 14 SMs: 8 on the busiest one, 8 warps each
    lsu = 2 * (2 + 2) + 2 * 16 * 2
    assert found.resident_warps == 48
    assert found.issue_s == pytest.approx(warps * 10 * lsu / 1.15e9)
    assert found.latency_s == pytest.approx(2 * 10 * (600 + 30 + 48 + 30 + 16 * 24) / 1.15e9)


def test_only_warps_that_wait_alone_come_near_the_questions_15_s() -> None:
    """What the answer claims is the last column; the others are what GPUs do."""
    for gpu in gpus():
        for found in bounds(gpu, 1000):
            assert 5 * found.resident_s < 0.2, (gpu.name, found)
    k80 = find_gpu("K80")
    assert k80 is not None
    assert 15 < 5 * bound(k80, NAIVE, 1000).alone_s < 20


def test_a_library_lies_between_its_shares_of_the_peak() -> None:
    v100 = find_gpu("V100")
    assert v100 is not None
    fast, slow = library_s(v100, 1000)
    assert slow == pytest.approx(4 * fast)
    assert 2e9 / fast == pytest.approx(0.8 * v100.peak_tflops * 1e12)


@given(gpu=st.sampled_from(gpus()), kernel=st.sampled_from(KERNELS), size=st.integers(1, 20_000))
def test_bounds_keep_their_order_and_the_peak(gpu, kernel, size) -> None:  # type: ignore[no-untyped-def]
    found = bound(gpu, kernel, size)
    assert 0 < found.lower_s <= found.resident_s <= found.alone_s
    assert 1 <= found.resident_warps <= max(gpu.max_warps, kernel.warps_per_block)
    assert 2 * size**3 / found.lower_s <= gpu.peak_tflops * 1e12 * (1 + 1e-9)
    assert bound(gpu, kernel, size + kernel.tile).lower_s >= found.lower_s
