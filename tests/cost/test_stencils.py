"""What the model counts of stencils: multiplications, runs of pixels, what is never packed."""

from dataclasses import replace

import pytest

from polysci.cost import Context, traffic
from polysci.cost.shortlist import as_family, choices
from polysci.cost.traffic import work
from polysci.ops.convolutions import Conv2d
from polysci.space.padding import share_of_work
from polysci.space.schedule import parse
from polysci.target.microkernels import find
from tests.support import samples

LARGE = Conv2d(N=1, C=160, H=56, W=56, K=160, R=3, S=3, pad=1, groups=160, layout="nchw")


def context() -> Context:
    return samples.fixed_context(LARGE)


def counts(text: str) -> dict[str, float]:
    _, found = work(*as_family(context(), parse(text)))
    return {name: float(count[0]) for name, count in found.items()}


@pytest.mark.parametrize("columns", [16, 32, 48])
def test_rows_in_parts_begin_runs_that_whole_rows_do_not(columns: int) -> None:
    whole, parts = (
        counts(f"g p:4 {loop}> stencil_avx512_f32_4x{width}")
        for loop, width in (("", 64), (f"q:{columns} ", columns))
    )
    rows = LARGE.C * LARGE.H
    assert parts["seek_ns"] - whole["seek_ns"] == pytest.approx(rows * 1e-9)


def test_nothing_is_copied_and_all_taps_are_one_run() -> None:
    found = counts("g p:4 > stencil_avx512_f32_4x64")
    assert found["copy_ns"] == found["gather_ns"] == 0
    assert found["run_ns"] == pytest.approx(found["call_ns"])
    assert found["call_ns"] == pytest.approx(LARGE.C * LARGE.H / 4 * 1e-9)


def test_rows_in_the_padding_are_skipped_and_pixels_are_masked() -> None:
    part, _ = as_family(context(), parse("g p:4 > stencil_avx512_f32_4x64"))
    assert share_of_work(part.contraction, packed=False) == pytest.approx((3 * 56 - 2) / (3 * 56))


def test_the_model_takes_whole_rows_where_x_comes_from_beyond_l2() -> None:
    chosen = choices(context(), 1)[0].schedule
    assert find(chosen.kernel).stencil and "q" not in {loop.dim for loop in chosen.loops}


def test_short_rows_lose_lanes_that_channels_would_fill() -> None:
    """7 pixels in a vector of 16, or all 16 channels: the shorter vectors of AVX2 lie between."""
    seven = samples.fixed_context(LARGE.with_(H=7, W=7, R=7, S=7, pad=3))
    seconds = [
        float(traffic(*as_family(seven, parse(text))).compute[0])
        for text in ("g > stencil_avx512_f32_7x16", "g:16 p:4 pack(A) > depthwise_avx512_f32_28x16")
    ]
    assert seconds[0] > 1.3 * seconds[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("span", "families"), [(1.0, {"stencil"}), (10.0, {"depthwise", "stencil"})]
)
def test_a_search_tries_the_best_of_other_roles_too(span: float, families: set[str]) -> None:
    """Packing and transposed stores may cost more than one calibration says."""
    assumed = context()
    machine = assumed.machine.with_coefficients({"slower_role": span})
    chosen = choices(replace(assumed, machine=machine), 1, kinds=1)
    assert {find(choice.schedule.kernel).family for choice in chosen} == families
    assert {find(choice.schedule.kernel).family for choice in choices(context(), 1)} == {"stencil"}
