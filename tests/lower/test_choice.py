"""Direct or Winograd: words, rules, the error bound, the model's choice, records, commands."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import tune
from polysci.cli import main
from polysci.errors import SpecError, UnsupportedError, WisdomError
from polysci.lower.algorithm import ExplainRequest
from polysci.lower.choice import candidates, key_of, resolve_algorithm
from polysci.lower.registry import algorithm_named, options
from polysci.lower.winograd.algorithm import (
    count_operations,
    count_roundings,
    estimate,
    rank_schedules,
    schedules,
)
from polysci.lower.winograd.bounds import bound_sizes
from polysci.lower.winograd.integers import CHANNELS, PATTERNS, exact_inputs
from polysci.lower.winograd.nest import shape_fields
from polysci.lower.winograd.plan import resolve
from polysci.lower.winograd.tiles import (
    convolution,
    image_strides,
    numbers_of,
    refusal,
    steps_of,
    tile_of,
    tile_sizes,
)
from polysci.measure.check import check
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import exact_weights
from polysci.numerics.filtering import OUTPUTS, filtering
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d
from polysci.ops.layer_lists import load
from polysci.ops.nest import Nest
from polysci.runtime.measurement import host_of
from polysci.space.directives import Ahead
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.microkernels import header
from polysci.tune.wisdom import Wisdom
from tests.support.samples import FIXED, fixed_context, resized

SIZES = (2, 4)
CONV = Conv2d(N=1, C=16, H=8, W=8, K=48, R=3, S=3, pad=1)
DEEP = Conv3d(N=2, C=8, D=5, H=4, W=4, K=16, T=3, R=3, S=3, pad=1)
WIDE = Conv2d(N=1, C=128, H=28, W=28, K=128, R=3, S=3, pad=1)
KERNEL = "brgemm_avx512_f32_2x16"
MATMUL = Nest("""
float O[4][8], A[4][6], B[6][8];
#pragma scop
for (int i = 0; i < 4; i++)
  for (int j = 0; j < 8; j++)
    for (int k = 0; k < 6; k++)
      O[i][j] += A[i][k] * B[k][j];
#pragma endscop
""")


@pytest.mark.parametrize(
    "text",
    [
        f"winograd(4) > {KERNEL}",
        f"t:2* winograd(2) k:16 > {KERNEL}",
        f"winograd(4) k:16* t:2* > {KERNEL}",
    ],
)
def test_schedules_round_trip(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("winograd(2) winograd(4)", SpecError, "'winograd(4)': one transform at most"),
        ("winograd()", UnsupportedError, "expected winograd(m), or winograd(m,n)"),
        ("winograd(2,4,2)", UnsupportedError, "m is one of (2, 4) for 3 taps"),
        ("winograd(2,3)", UnsupportedError, "winograd(2,3): expected winograd(m), or"),
        ("winograd(3)", UnsupportedError, "m is one of (2, 4) for 3 taps"),
        ("k:16 winograd(4)", UnsupportedError, "only a loop over t may enclose winograd(4)"),
        ("t:4 winograd(4) t:2", UnsupportedError, "one loop over t and one over k at most"),
        ("t:2* winograd(4) k:16*", UnsupportedError, "loops inside winograd(4) cannot be parallel"),
        ("winograd(4) k:24", UnsupportedError, "k:24 is no multiple of 16 columns"),
        ("t:1 winograd(4)", UnsupportedError, "2 rows exceed the 1 tiles of a block"),
        ("winograd(4) p", SpecError, "no dimension 'p' among t, k"),
        ("t:5 winograd(4)", SpecError, "step 5 exceeds the 4 of 't'"),
        ("winograd(4) pack(A) t:2", UnsupportedError, "packs, streams and swaps nothing"),
        ("winograd(4) stream(C)", UnsupportedError, "packs, streams and swaps nothing"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(text: str, error: type, told: str) -> None:
    with pytest.raises(error) as refused:
        resolve(CONV, parse(f"{text} > {KERNEL}"))
    assert told in str(refused.value)


def test_columns_of_a_kernel_lie_in_one_group() -> None:
    problem, wide = CONV.with_(groups=2), parse("winograd(4) > brgemm_avx512_f32_2x16")
    with pytest.raises(UnsupportedError, match="16 columns do not divide the 24 filters of a gro"):
        resolve(problem, wide)
    assert {plan.kernel.split("x")[-1] for plan in schedules(problem, "portable", 1)} == {"4", "8"}
    context = fixed_context(problem)
    narrow = {option.schedule.kernel for option in rank_schedules(problem, context)}
    assert narrow and all(kernel.startswith("brgemm_avx2_") for kernel in narrow)
    none = CONV.with_(groups=2, K=18)
    with pytest.raises(
        UnsupportedError, match="no kernel for avx512 has columns that divide the 9"
    ):
        rank_schedules(none, context)
    assert candidates(none, context, 1, "auto")[0].schedule.transform is None


def test_narrow_vectors_are_taken_to_be_no_faster() -> None:
    problem = CONV.with_(groups=2)
    own = replace(FIXED, isa=ISAS["avx2"], features=ISAS["avx2"].features)
    (alone, *_), (among, *_) = (
        rank_schedules(problem, fixed_context(problem, target=target)) for target in (own, FIXED)
    )
    assert among.schedule == alone.schedule  # assumed peaks are of 8 and of 16 numbers a vector
    assert among.seconds == pytest.approx(alone.seconds, rel=0.1)


def test_one_block_has_one_thread() -> None:
    pixel = Conv2d(N=1, C=4, H=1, W=1, K=4, R=3, S=3, pad=1)
    one, two = (rank_schedules(pixel, fixed_context(pixel, threads)) for threads in (1, 2))
    assert [its.schedule for its in one] == [its.schedule for its in two]


def test_a_dilated_filter_sees_images_of_every_third_pixel() -> None:
    problem = Conv2d(N=1, C=3, H=9, W=12, K=4, R=3, S=3, pad=3, dilation=3)
    random, tile = np.random.default_rng(4), tile_of(problem, (4,))
    x, w = (random.standard_normal(s) for s in (problem.x_shape, problem.w_shape))
    assert (tile.count(problem), steps_of(problem)) == ((3, 3), (3, 3))
    found = bound_sizes(problem, x, w, tile)
    for row, col in np.ndindex(3, 3):
        part = np.ascontiguousarray(x[:, row::3, col::3])
        own = Conv2d(N=1, C=3, H=3, W=4, K=4, R=3, S=3, pad=1)
        assert np.allclose(found[:, row::3, col::3], bound_sizes(own, part, w, tile))


def test_planes_are_summed_as_channels_are() -> None:
    problem = DEEP.with_(stride=(2, 1, 1))
    random, tile = np.random.default_rng(4), tile_of(convolution(problem), (4,))
    x, w = (random.standard_normal(s) for s in (problem.x_shape, problem.w_shape))
    found, one = bound_sizes(problem, x, w, tile), Conv2d(N=2, C=8, H=4, W=4, K=16, R=3, S=3, pad=1)
    for z in range(problem.Z):
        parts = [bound_sizes(one, np.ascontiguousarray(x[:, 2 * z + t - 1]), w[:, :, t], tile)
                 for t in range(3) if 0 <= 2 * z + t - 1 < problem.D]  # fmt: skip
        assert np.allclose(found[:, z], sum(parts))
    assert count_roundings(convolution(problem), tile) == 3 * 8 + 14


def test_sizes_of_groups_are_those_of_each_by_itself() -> None:
    problem = Conv2d(N=2, C=16, H=5, W=6, K=24, R=3, S=3, pad=1, groups=2)
    random, tile = np.random.default_rng(4), tile_of(problem, (4,))
    x, w = (random.standard_normal(s) for s in (problem.x_shape, problem.w_shape))
    one = problem.with_(C=8, K=12, groups=1)
    parts = [bound_sizes(one, x[..., 8 * g : 8 * g + 8], w[12 * g : 12 * g + 12], tile)
             for g in range(2)]  # fmt: skip
    assert np.allclose(bound_sizes(problem, x, w, tile), np.concatenate(parts, axis=-1))
    assert count_roundings(problem, tile) == 8 + 14


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (CONV.with_(stride=3), "stride=(3, 3): expected 1 or 2 along rows and columns"),
        (CONV.with_(stride=2, dilation=2), "dilation=(2, 2): expected 1 along axes of stride 2"),
        (CONV.with_(groups=4), "groups=4 of 4 channels and 12 filters: expected 8 or more of each"),
        (CONV.with_(groups=8), "groups=8 of 2 channels and 6 filters: expected 8 or more of each"),
        (
            CONV.with_(R=4, S=3),
            "filter=(4, 3): expected 1, 3, 5 or 7 taps along rows and columns, with a stride of 2",
        ),
        (CONV.with_(R=1, S=1, stride=2), "a stride of 2 also 4 or 6, and not 1 along both"),
        (CONV.with_(R=2, S=2, stride=2), "filter=(2, 2): expected 1, 3, 5 or 7 taps along rows"),
        (CONV.with_(R=4, S=4, stride=(2, 1)), "filter=(4, 4): expected 1, 3, 5 or 7 taps along"),
        (Conv1d(N=1, C=4, W=9, K=4, S=3, stride=3), "stride=(3,): expected 1 or 2 along rows"),
        (DEEP.with_(stride=(1, 2, 4)), "stride=(1, 2, 4): expected 1 or 2 along rows"),
        (DEEP.with_(groups=2), "groups=2 over three axes: expected 1"),
        (
            DEEP.with_(R=1, S=1),
            "filter=(3, 1, 1): expected 1, 3, 5 or 7 taps along rows and columns",
        ),
        (MATMUL, "it is no convolution"),
    ],
)
def test_what_winograd_refuses_auto_computes_directly(problem: Any, told: str) -> None:
    assert told in refusal(problem)
    assert resolve_algorithm(problem, "auto") == "direct"
    assert key_of(problem, "auto") == problem.key
    with pytest.raises(UnsupportedError) as refused:
        tune.optimize(problem, "estimate", algorithm="winograd", target=detect("portable"))
    assert told in str(refused.value)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match="algorithm 'fft': expected one of direct, winograd, winograd_f16, residues, "
        "bilinear, auto, auto_f16",
    ):
        tune.optimize(CONV, "estimate", algorithm="fft")


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    ("taps", "numbers", "stride"),
    [((3, 3), (2,), (1, 1)), ((3, 3), (4,), (1, 1)), ((3, 5), (2, 4), (1, 1)),
     ((1, 3), (4,), (1, 1)), ((7, 1), (2,), (1, 1)), ((3, 4), (4, 2), (2, 2)),
     ((5, 3), (2,), (1, 2)), ((6, 1), (4,), (2, 2))],
)  # fmt: skip
def test_sizes_are_those_of_plain_loops(
    taps: tuple[int, int], numbers: tuple[int, ...], stride: tuple[int, int], layout: str
) -> None:
    problem = Conv2d(
        N=2, C=3, H=6, W=5, K=2, R=taps[0], S=taps[1], stride=stride, pad=(1, 2), layout=layout
    )
    random, tile = np.random.default_rng(len(numbers)), tile_of(problem, numbers)
    x, w = (random.standard_normal(s) for s in (problem.x_shape, problem.w_shape))
    got = bound_sizes(problem, x, w, tile)
    assert got.shape == problem.y_shape
    got = got if layout == "nchw" else got.transpose(0, 3, 1, 2)
    x = x if layout == "nchw" else x.transpose(0, 3, 1, 2)
    (b, g, a), (d, h, e) = (map(abs, axis.matrices) for axis in (tile.down, tile.across))
    tall, wide = tile.down.m, tile.across.m
    for n, k, p, q in np.ndindex(2, 2, problem.P, problem.Q):
        pixels = np.zeros((3, tile.down.points, tile.across.points))
        for i, j in np.ndindex(pixels.shape[1:]):
            row, col = p // tall * tall * stride[0] + i - 1, q // wide * wide * stride[1] + j - 2
            if 0 <= row < 6 and 0 <= col < 5:
                pixels[:, i, j] = abs(x[n, :, row, col])
        points = sum((g @ abs(w[k, c]) @ h.T) * (b @ pixels[c] @ d.T) for c in range(3))
        assert np.isclose(got[n, k, p, q], (a @ points @ e.T)[p % tall, q % wide])


def test_the_bound_is_wider_than_that_of_direct_sums_and_no_wider_than_stated() -> None:
    winograd = algorithm_named("winograd")
    f2, f4 = (Reals.of(CONV, 0, winograd, (m,)) for m in SIZES)
    direct = Reals.of(CONV, 0, algorithm_named("direct"))
    assert (f2.sizes > direct.sizes).all() and (f4.sizes > f2.sizes).all()
    assert (f2.terms, f4.terms) == (CONV.C + 8, CONV.C + 14)
    assert np.array_equal(direct.sums, f4.sums)
    wrong = (direct.sums + 1e-3 * abs(f4.sizes)).astype(np.float32)
    assert f4.fault("plain", wrong)


def test_every_schedule_of_the_space_can_be_generated() -> None:
    for problem in (CONV, CONV.with_(C=3, K=5), CONV.with_(N=3, H=5)):
        for isa in ("portable", "avx2", "avx512"):
            for threads in (1, 2):
                plans = list(schedules(problem, isa, threads))
                assert plans
                for plan in plans:
                    resolve(problem, plan, threads)
                    assert bool(plan.parallel) == (threads > 1) or not plan.loops


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({}, "F(2x2, 3x3) F(4x4, 3x3)"),
        ({"H": 2}, "F(2x2, 3x3) F(4x4, 3x3) F(2x4, 3x3)"),
        ({"R": 1, "pad": (0, 1)}, "F(1x2, 1x3) F(1x4, 1x3)"),
        ({"S": 1, "pad": (1, 0)}, "F(2x1, 3x1) F(4x1, 3x1)"),
        ({"R": 7, "S": 7}, "F(2x2, 7x7)"),
        ({"R": 7, "S": 5, "H": 20}, "F(2x2, 7x5) F(2x4, 7x5)"),
        ({"stride": 2}, "F(2x2, 3x3, stride 2) F(4x4, 3x3, stride 2)"),
        ({"stride": (2, 1), "S": 7}, "F(2x2, 3x7, stride 2x1) F(4x2, 3x7, stride 2x1)"),
        ({"stride": 2, "S": 1, "pad": (1, 0)}, "F(2x1, 3x1, stride 2) F(4x1, 3x1, stride 2)"),
    ],
)
def test_mixed_tiles_are_considered_where_less_overhangs(sizes: dict[str, Any], told: str) -> None:
    problem = CONV.with_(**sizes)
    tiles = tile_sizes(problem)
    assert " ".join(map(str, tiles)) == told
    assert [tile_of(problem, numbers_of(tile)) for tile in tiles] == tiles


def test_a_line_is_an_image_of_one_row() -> None:
    line = Conv1d(N=2, C=5, W=12, K=7, S=3, pad=1, layout="nchw")
    conv = convolution(line)
    assert (conv.H, conv.P, conv.R, conv.Q, conv.pad) == (1, 1, 1, 12, (0, 1))
    assert image_strides((60, 12, 1)) == (60, 12, 0, 0, 1)
    words = "t:3 winograd(4) k:4 > brgemm_portable_f32_3x4"
    request = ExplainRequest("", line, parse(words), fixed_context(line))
    assert "F(1x4, 1x3): 6 products for 12" in algorithm_named("winograd").explain(request).render()


def test_fields_of_a_shape_stand_in_the_order_of_their_record() -> None:
    """C++ takes them in no other."""
    record = header("winograd_in").split("typedef struct {")[1].split("} ps_winograd;")[0]
    lines = re.sub(r"/\*.*?\*/", "", record, flags=re.DOTALL).split(";")
    names = [name for line in lines for name in re.findall(r"(\w+)(?=\s*(?:,|$))", line.strip())]
    fields = shape_fields(CONV, tile_of(CONV, (4,)), {}, ((1, 1), (1, 1)), (1, 1))
    assert list(fields) == names


def test_operations_are_those_of_the_compiled_code() -> None:
    for numbers, expected in (((2,), (48, 52)), ((4,), (180, 191))):
        assert count_operations(tile_of(CONV, numbers), (0, 0)) == expected
    strided = CONV.with_(stride=2)
    for numbers, expected in (((2,), (45, 62.75)), ((4,), (243, 280.75))):
        assert count_operations(tile_of(strided, numbers), (0, 0)) == expected


@pytest.mark.exhaustive
def test_choices_are_the_least_of_several_kinds_in_the_same_order_every_time() -> None:
    context = fixed_context(WIDE)
    first = rank_schedules(WIDE, context, 8)
    assert [str(x.schedule) for x in first] == [
        str(x.schedule) for x in rank_schedules(WIDE, context, 8)
    ]
    assert len({one.schedule.kernel for one in first}) >= 4
    every = rank_schedules(WIDE, context)
    assert first[0] == every[0]
    assert [one.seconds for one in every] == sorted(one.seconds for one in every)


@pytest.mark.exhaustive
def test_filters_beyond_the_cache_are_prefetched() -> None:
    context = fixed_context(WIDE)
    assert all(plan.schedule.has(Ahead) for plan in rank_schedules(WIDE, context, 8))
    large = replace(context, target=resized(FIXED, L2=64 << 20))
    assert not any(plan.schedule.has(Ahead) for plan in rank_schedules(WIDE, large, 8))
    cold = replace(large, cold=True)
    assert all(plan.schedule.has(Ahead) for plan in rank_schedules(WIDE, cold, 8))
    plain = parse("winograd(2) > brgemm_avx512_f32_8x32")
    waits, ahead = (
        estimate(
            resolve(WIDE, plain.having(Ahead()) if mark else plain.without(Ahead)), context
        ).weights
        for mark in (False, True)
    )
    assert ahead < waits


@pytest.mark.exhaustive
def test_the_model_takes_winograd_where_products_rule_and_direct_where_transforms_do() -> None:
    wide = candidates(WIDE, fixed_context(WIDE), 4, "auto")
    assert wide[0].schedule.transform
    assert any(one.schedule.transform is None for one in wide)
    thin = Conv2d(N=1, C=2, H=64, W=64, K=4, R=3, S=3, pad=1)
    assert candidates(thin, fixed_context(thin), 4, "auto")[0].schedule.transform is None
    for algorithm_, winograd in (("direct", False), ("winograd", True)):
        some = candidates(WIDE, fixed_context(WIDE), 4, algorithm_)
        assert {bool(one.schedule.transform) for one in some} == {winograd}


def test_fewer_calls_a_panel_are_predicted_faster_where_filters_exceed_l2() -> None:
    context = fixed_context(WIDE)
    plans = [
        resolve(WIDE, parse(f"winograd(2) ahead(B) > brgemm_avx512_f32_{rows}x32"))
        for rows in (4, 8, 14)
    ]
    assert len({plan.calls for plan in plans}) == 3
    weights = [estimate(plan, context).weights for plan in plans]
    assert weights == sorted(weights, reverse=True) and weights[0] > 1.5 * weights[2]
    near = replace(context, target=resized(FIXED, L2=64 << 20))
    assert estimate(plans[0], near).weights < weights[0] / 4
    slower = replace(near, cold=True)
    assert estimate(plans[0], slower).weights > estimate(plans[0], near).weights


def test_threads_share_the_predicted_work() -> None:
    one, two = (
        rank_schedules(WIDE, fixed_context(WIDE, threads), 1)[0].seconds for threads in (1, 2)
    )
    assert 0.4 * one < two < 0.75 * one
    plan = resolve(WIDE, parse("t:14 winograd(4) > brgemm_avx512_f32_14x32"))
    parts = estimate(plan, fixed_context(WIDE))
    assert parts.seconds == pytest.approx(sum(parts.parts.values()))
    assert parts.sizes == (4 * 36 * 128 * 128, 4 * 36 * 14 * (128 + 16), 4 * 36 * 14 * (128 + 16))


@pytest.mark.exhaustive
def test_every_3x3_layer_of_vgg_has_a_prediction() -> None:
    for layer in load("vgg16"):
        if not refusal(layer):
            best = candidates(layer, fixed_context(layer), 1, "winograd")[0]
            assert 0 < best.seconds < layer.flops


TARGET = detect("portable")


@pytest.mark.exhaustive
def test_records_of_direct_searches_and_others_stay_apart(tmp_path: Path) -> None:
    wisdom = Wisdom(tmp_path / "wisdom.sqlite")
    options: dict[str, Any] = {"target": TARGET, "wisdom": wisdom}
    won = tune.optimize(CONV, algorithm="winograd", **options)
    assert won.schedule.transform and won.measurement
    assert all(trial.schedule.transform for trial in won.trials)
    with pytest.raises(WisdomError, match="no record"):
        tune.optimize(CONV, "wisdom-only", **options)
    with pytest.raises(WisdomError, match="no record"):
        tune.optimize(CONV, "wisdom-only", algorithm="auto", **options)
    again = tune.optimize(CONV, "wisdom-only", algorithm="winograd", **options)
    assert again.schedule == won.schedule and again.predicted == won.predicted
    found = tune.optimize(CONV, algorithm="auto", **options)
    assert {bool(trial.schedule.transform) for trial in found.trials} == {False, True}


@pytest.mark.exhaustive
def test_a_direct_search_never_takes_a_winograd_record(tmp_path: Path) -> None:
    wisdom = Wisdom(tmp_path / "wisdom.sqlite")
    for host in (host_of(TARGET), "0" * 12):
        wisdom.record(
            CONV.key, 1, TARGET.isa.features, "exhaustive", "winograd(4) > brgemm_portable_f32_4x4",
            1e-9, host=host,
        )  # fmt: skip
    result = tune.optimize(CONV, "measure", target=TARGET, wisdom=wisdom)
    assert result.schedule.transform is None
    assert not any(trial.schedule.transform for trial in result.trials)


@pytest.mark.exhaustive
def test_a_check_has_integers_and_a_bound_of_its_own() -> None:
    plans = [parse(f"winograd({m}) > brgemm_portable_f32_4x4") for m in SIZES]
    verdicts = list(check(CONV, plans))
    assert [(one.mode, one.fault) for one in verdicts] == [("exact", ""), ("bound", "")] * 2
    assert all(one.worst is not None and 0 < one.worst < 1 for one in verdicts[1::2])


def test_exact_weights_touch_every_channel_and_few_of_a_filter() -> None:
    w = np.ones((9, 40, 3, 3), np.float32)
    some = exact_weights(w, exact_inputs(CONV))
    assert set(np.unique(some)) == {-576, 0, 576}
    assert ((some != 0).sum(axis=(1, 2, 3)) == 9 * CHANNELS).all()
    assert some.any(axis=(0, 2, 3)).all()


@pytest.mark.parametrize("stride", list(PATTERNS))
def test_exact_weights_of_a_line_are_all_patterns_of_its_stride(stride: int) -> None:
    exact = exact_inputs(Conv1d(N=1, C=3, W=12, K=40, S=5, stride=stride))
    line = exact_weights(np.ones((40, 3, 5), np.float32), exact)
    expected = {own for own in PATTERNS[stride] if len(own) == 5}
    assert {tuple(map(int, own)) for own in line.reshape(-1, 5)} - {(0,) * 5} == expected


def reach(m: int, pattern: tuple[int, ...], stride: int) -> Fraction:
    """The largest partial sum of a filter along an axis where |x| <= 1, in steps of all of them."""
    own, largest, denominators = filtering(m, len(pattern), stride), Fraction(0), {1}
    u = [sum(g * tap for g, tap in zip(row, pattern, strict=True)) for row in own.filter]
    for row in own.back:
        terms = [a * p * b for a, p, line in zip(row, u, own.into, strict=True) for b in line]
        largest = max(largest, sum(map(abs, terms)))
        denominators |= {term.denominator for term in terms}
    assert all(step & (step - 1) == 0 for step in denominators)
    return largest * max(denominators)


def test_f32_holds_all_sums_of_exact_inputs() -> None:
    reaches = [
        reach(m, pattern, stride)
        for stride, patterns in PATTERNS.items()
        for pattern in patterns for m in OUTPUTS[stride][len(pattern)]
    ]  # fmt: skip
    assert {len(pattern) for pattern in PATTERNS[2]} == set(OUTPUTS[2])
    assert CHANNELS * max(reaches) ** 2 + 2 < 2**24


SPEC = "mb1ic16ih8oc48oh8kh3ph1"
PORTABLE = "t:2 winograd(4) k:16 > brgemm_portable_f32_2x4"


def test_explain_tells_of_tiles_buffers_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", SPEC, "--schedule", PORTABLE, "--isa", "portable"]
    assert main(words) == 0
    text = capsys.readouterr().out
    for told in (
        "F(4x4, 3x3): 36 products for 144",
        "1 x 2 x 2 = 4 of 4x4",
        "block",
        "GEMMs",
        "sum",
    ):
        assert told in text
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sizes"]["U"] == 4 * 36 * 16 * 48
    assert told["predicted"] == pytest.approx(sum(told["terms"].values()))


@pytest.mark.exhaustive
def test_the_commands_know_the_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    some = [SPEC, "--isa", "portable", "--algorithm", "winograd", "--level", "estimate"]
    assert main(["optimize", *some]) == 0
    assert "winograd(" in capsys.readouterr().out
    assert main(["check", *some]) == 0
    assert "2 passed, 0 failed" in capsys.readouterr().out
    assert main(["export", *some, "-o", str(tmp_path / "c")]) == 0
    assert main(["report", *some, "-o", str(tmp_path / "page.html")]) == 0
    assert "winograd(" in (tmp_path / "page.html").read_text(encoding="utf-8")
    strided = "mb1ic8ih9oc8oh3kh3ph1sh3"
    assert main(["optimize", strided, *some[1:]]) == 1
    assert "stride=(3, 3): expected 1 or 2 along rows and columns" in capsys.readouterr().out


def test_names_of_algorithms_are_those_of_the_option() -> None:
    own = ("direct", "winograd", "winograd_f16", "residues", "bilinear")
    assert options() == (*own, "auto", "auto_f16")
