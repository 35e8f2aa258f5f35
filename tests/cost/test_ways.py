"""Rates decide which ways to multiply are ranked, and which is the peak."""

from dataclasses import replace
from typing import Any

import pytest

from polysci.cost import Context
from polysci.cost.rankers import competitive_ways, space_of
from polysci.cost.shortlist import choices, estimate_of
from polysci.ops.convolutions import Conv2d
from polysci.space.enumerate import ways_of
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from tests.support import samples

DENSE = Conv2d(N=1, C=64, H=28, W=28, K=64, R=3, S=3, pad=1, layout="nhwc")
# 4 MiB of weights in bf16, each used once.
WEIGHTS = Conv2d(N=1, C=1024, H=1, W=1, K=2048, R=1, S=1, pad=0, layout="nhwc")
BEST = ISAS["avx512fp16"]
TARGET = replace(samples.FIXED, isa=BEST, features=BEST.features)


def context_of(problem: Conv2d, dtype: str, **rates: float) -> Context:
    """The fixed machine, where kernels of a way reach a share of the FMA peak."""
    context = samples.fixed_context(problem.with_(dtype=dtype), target=TARGET)
    names = {"bf16": "brgemm_avx512bf16_bf16_6x64", "f16": "brgemm_avx512fp16_f16_6x64"}
    shares = {names[compute]: rate for compute, rate in rates.items()}
    return replace(context, machine=replace(context.machine, efficiency=shares))


def names(context: Context) -> list[str]:
    return [way[0].compute for way in competitive_ways(context)]


@pytest.mark.parametrize(
    ("problem", "dtype", "rates", "expected"),
    [
        (DENSE, "f32", {}, ["f32"]),
        (DENSE, "bf16", {"bf16": 0.5}, ["f32"]),  # an Intel core
        (DENSE, "bf16", {"bf16": 2.0}, ["bf16"]),  # an AMD one
        (DENSE, "bf16", {"bf16": 1.0}, ["bf16", "f32"]),  # widening copies x
        (WEIGHTS, "bf16", {"bf16": 0.5}, ["bf16"]),  # bytes, not multiplications
        (DENSE, "f16", {"f16": 0.6}, ["f32"]),
        (DENSE, "f16", {"f16": 1.0}, ["f16", "f32"]),
        (WEIGHTS, "f16", {"f16": 0.6}, ["f16", "f32"]),  # both widen weights ahead
        (DENSE, "u8:s8:u8", {}, ["i8"]),
    ],
)
def test_rates_and_bytes_choose(
    problem: Conv2d, dtype: str, rates: dict[str, float], expected: list[str]
) -> None:
    context = context_of(problem, dtype, **rates)
    assert names(context) == expected
    kernels = {tile.kernel.compute for family in space_of(context, 4, 1) for tile in family.tiles}
    assert kernels == set(expected)


@pytest.mark.parametrize(
    ("channels", "dilation", "words"),
    [(4, 1, 5), (1, 1, 2), (3, 1, 4), (6, 1, 8), (1, 2, 5), (6, 2, 10)],
)
def test_words_are_counted_where_taps_join(channels: int, dilation: int, words: int) -> None:
    """Of a line of five taps, four 8-bit numbers a word: neighbours in the copy share words."""

    def compute(problem: Conv2d) -> float:
        context = context_of(problem, "u8:s8:u8")
        text = "pack(A) p q:7 > brgemm_avx512vnni_i8_7x32"
        return float(estimate_of(context, parse(text)).compute.item())

    problem = Conv2d(
        N=1, C=channels, H=28, W=28, K=32, R=5, S=5, dilation=dilation, pad=2 * dilation,
        layout="nhwc",
    )  # fmt: skip
    whole = compute(problem.with_(C=4, dilation=1, pad=2))
    assert compute(problem) == pytest.approx(whole * words / 5)


@pytest.mark.parametrize(
    ("words", "families"),
    [
        ({}, {"depthwise", "stacked"}),
        ({"R": 1, "pad": (0, 1)}, {"depthwise"}),  # no rows above each other
        ({"W": 1, "S": 1, "pad": (1, 0)}, {"depthwise"}),  # no line of pixels
        ({"groups": 1}, {"brgemm"}),
    ],
)
def test_depthwise_filters_of_several_rows_stack_their_taps(
    words: dict[str, Any], families: set[str]
) -> None:
    extents = {"N": 1, "C": 32, "H": 9, "W": 9, "K": 32, "R": 3, "S": 3, "pad": 1, "groups": 32}
    problem = Conv2d(**extents | words, layout="nhwc")
    context = context_of(problem, "u8:s8:u8")
    ways = ways_of(context.contraction, context.target.isa.name)
    assert {kernel.family for way in ways for kernel in way} == families


@pytest.mark.parametrize(("rate", "compute"), [(0.5, "f32"), (2.0, "bf16")])
def test_the_peak_is_that_of_the_fastest_way(rate: float, compute: str) -> None:
    context = context_of(DENSE, "bf16", bf16=rate)
    assert context.compute == compute
    assert context.peak == context.machine.peak * max(1.0, rate)
    chosen = {choice.schedule.kernel.split("_")[2] for choice in choices(context, 4)}
    assert chosen == {compute}


def test_kernels_that_convert_read_x_itself() -> None:
    """Packed, x is widened once, and another way to multiply converts nothing."""
    context = context_of(DENSE, "f16", f16=1.0)
    families = list(space_of(context, 4, 1))
    packs = {compute: set[int]() for compute in ("f16", "f32")}
    for family in families:
        packs[family.tiles[0].kernel.compute] |= set(family.pack.tolist())
    assert packs["f16"] == {-1} and min(packs["f32"]) >= 0


def test_a_widened_copy_moves_twice_the_bytes() -> None:
    """The model prices the copy: every way's schedules are compared in seconds."""
    context = context_of(DENSE, "bf16", bf16=1.0)
    dot, widened = (
        estimate_of(context, parse(f"pack(A) p k:32 q:14 > brgemm_avx512bf16_{way}_14x32"))
        for way in ("bf16", "f32")
    )
    assert widened.packing[0] == pytest.approx(2 * dot.packing[0])
