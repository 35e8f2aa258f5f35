"""Factors that change places: which contractions allow it, what they keep, exact results."""

import re

import numpy as np
import pytest

from polysci.cost import RANKERS, Context, traffic
from polysci.cost.shortlist import as_family, choices, cost_of, other_form, view_contexts
from polysci.cost.traffic import lower_bound, work
from polysci.errors import PolysciError, UnsupportedError
from polysci.explain import explain, render
from polysci.lower.direct.algorithm import swapped_model_of
from polysci.measure.bench import Bench
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import footprint
from polysci.runtime.build import cache
from polysci.space.directives import Ahead, Swap
from polysci.space.directives.swap import swap_refusal, swap_roles
from polysci.space.group_views import GroupView, group_view_of
from polysci.space.resolve import resolve
from polysci.space.schedule import parse
from polysci.tune import EmitOptions, emit, model_of
from tests.support import samples

POINTWISE = Conv2d(N=2, C=40, H=5, W=7, K=11, R=1, S=1, layout="nchw")
STRIDED = Conv2d(N=2, C=40, H=9, W=13, K=11, R=1, S=1, stride=2, layout="nchw")
PRODUCT = Matmul(11, 40, 35, constant="a")
SWAPPED = GroupView(swapped=True)


def views(problem: Problem) -> list[GroupView]:
    return [view for view, _ in view_contexts(samples.fixed_context(problem))]  # type: ignore[arg-type]


def test_pixels_of_an_image_are_one_dimension() -> None:
    _, roles, strides = model_of(POINTWISE)
    swapped = swap_roles(roles)
    extents = {dim.name: (dim.role, dim.extent) for dim in swapped.dims if dim.extent > 1}
    assert extents == {"n": ("batch", 2), "k": ("m", 11), "q": ("n", 35), "c": ("k", 40)}
    assert columns_of(swapped).name == "q" and swapped.swapped
    assert (swapped.w.array, swapped.x.array) == ("W", "I") == (roles.w.array, roles.x.array)
    assert swapped.a is roles.b
    for name in ("x", "w", "out"):  # the same elements
        counts = [
            footprint(getattr(each, name), {d.name: np.full(1, float(d.extent)) for d in each.dims})
            for each in (roles, swapped)
        ]
        assert counts[0] == counts[1], name
    for name in ("x", "out"):
        operand = getattr(swapped, name)
        assert operand.offset(strides[operand.array]).coef("q") == 1


def test_the_nest_of_swapped_factors_visits_every_product() -> None:
    scop, roles = swapped_model_of(model_of(POINTWISE)[1])
    points = [dim.extent for dim in roles.dims]
    assert np.prod(points) == POINTWISE.flops // 2
    assert scop.statements[0].domain.count_val().to_python() == POINTWISE.flops // 2


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (POINTWISE.with_(layout="nhwc"), "elements of O along 'q' are not neighbours"),
        (POINTWISE.with_(dtype="bf16"), "only factors and results of f32 can be, not of bf16"),
        (POINTWISE.with_(stride=2, H=1), "no row runs along the last axis of I and the result"),
        (Conv2d(N=1, C=6, H=5, W=7, K=6, R=1, S=1, groups=3, layout="nchw"), "it has groups"),
        (PRODUCT.with_(constant=""), "B changes from call to call"),
        (PRODUCT.with_(constant="b"), "no row runs along the last axis of A and the result"),
    ],
)
def test_contractions_that_keep_their_roles(problem: Problem, why: str) -> None:
    _, roles, strides = model_of(problem)
    assert why in swap_refusal(roles, strides)
    assert SWAPPED not in views(problem)
    schedule = parse("swap(A,B) k:4 > brgemm_avx512_f32_4x16")
    with pytest.raises(UnsupportedError, match="cannot swap the factors"):
        emit(problem, schedule)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swap(A,B) n k:8 q:32 ahead(B) > brgemm_avx512_f32_8x32", "needs x as it lies"),
        ("swap(A,B) n k:8 ahead(B) > brgemm_avx512_f32_8x48", "inside the one over its pixels"),
        ("swap(A,B) n q:32 k:8 > brgemm_avx512_f32_4x32", "8 rows x 32 columns does not fit"),
        ("swap(A,B) q:32 k:8 > brgemm_avx512_f32_8x32", "may span at most two row dimensions"),
        ("swap(A,B) n q:24 k:8 > brgemm_avx512_f32_8x32", "neither whole vectors"),
    ],
)
def test_schedules_that_swapped_kernels_do_not_compute(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        emit(POINTWISE, parse(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swap(A,B) n q:32 k:8 > brgemm_avx512_f32_8x32", "have gaps: pack(A) gathers them"),
        ("swap(A,B) n pack(A)+16 q:32 k:8 > brgemm_avx512_f32_8x32", "without padding"),
        ("swap(A,B) n q:32 pack(A) k:8 > brgemm_avx512_f32_8x32", "outside the loops over 'q'"),
    ],
)
def test_images_are_gathered_whole(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        emit(STRIDED, parse(text))


@pytest.mark.parametrize(
    "problem", [POINTWISE, PRODUCT, POINTWISE.with_(H=1, N=1), STRIDED], ids=str
)
def test_the_view_is_undone_and_no_faster_than_its_bound(problem: Problem) -> None:
    context = samples.fixed_context(problem, 2)  # type: ignore[arg-type]
    assert SWAPPED in views(problem)
    for view, wide in view_contexts(context):
        for family in samples.families(wide)[:4] if view.swapped else ():
            seconds = traffic(wide, family).seconds
            assert (lower_bound(wide, family) <= seconds * (1 + 1e-9)).all()
            for index in range(0, len(family), max(1, len(family) // 5)):
                inside = family.schedule(index)
                schedule = view.outside(context.contraction, inside)
                assert group_view_of(context.contraction, schedule) == view
                assert parse(str(schedule)) == schedule


@pytest.mark.sampled
@pytest.mark.parametrize("ranker", RANKERS)
def test_every_ranker_orders_swapped_schedules(ranker: str) -> None:
    if ranker == "learned":
        return  # it has learned nothing yet
    for text in ("k:4 q:64", "q:192 k:4 q:64", "c:32 q:64 k:4"):
        schedule = parse(f"swap(A,B) {text} > brgemm_avx512_f32_4x64")
        assert 0 <= cost_of(_large(), schedule, ranker) < np.inf
    best = choices(_large(), 3, ranker=ranker)[0].schedule
    resolve(_large().contraction, _large().strides, best)


@pytest.mark.exhaustive
def test_the_model_swaps_the_factors_where_stores_would_be_transposed() -> None:
    assert choices(_large(), 1)[0].schedule.has(Swap)
    nhwc = samples.fixed_context(POINTWISE.with_(N=1, C=64, K=64, H=28, W=28, layout="nhwc"))
    assert not any(choice.schedule.has(Swap) for choice in choices(nhwc, 10))


def _large() -> Context:
    return samples.fixed_context(POINTWISE.with_(N=1, C=64, K=64, H=28, W=28))


@pytest.mark.exhaustive
def test_explanations_name_the_swapped_roles() -> None:
    problem = POINTWISE.with_(N=1, C=64, K=64, H=28, W=28)
    scop, _, _ = model_of(problem)
    schedule = parse("swap(A,B) q:64 k:4 > brgemm_avx512_f32_4x64")
    told = render(explain("title", scop, _large(), schedule))
    assert re.search(r"q +n +784 +A\(I\) C\(O\)", told)
    assert re.search(r"q:64 +13", told) and told.count("swap(A,B)") > 4


SCHEDULES = {
    "avx512": "swap(A,B) {n}q:32 k:8 > brgemm_avx512_f32_8x32",
    "avx2": "swap(A,B) {n}k:4 q:16 > brgemm_avx2_f32_4x16",
    "portable": "swap(A,B) {n}q:8 c:20 k:6 > brgemm_portable_f32_6x8",
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in SCHEDULES]
)
@pytest.mark.parametrize("pixels", [*range(33, 49), 16, 7, 1 + 64])
def test_every_tail_of_pixels_is_exact_between_guard_pages(isa: str, pixels: int) -> None:
    problem = Conv2d(N=2, C=40, H=1, W=pixels, K=19, R=1, S=1, layout="nchw")
    wide = {"avx512": 32, "avx2": 16, "portable": 8}[isa]
    text = SCHEDULES[isa].format(n="n ")
    text = text if wide < pixels else text.replace(f"q:{wide}", "")
    with Bench(problem) as bench:
        bench.check(cache.build(emit(problem, parse(text), 1, EmitOptions("layer")).file), "layer")


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
@pytest.mark.parametrize(
    "problem",
    [POINTWISE, PRODUCT, STRIDED, STRIDED.with_(stride=(1, 3)), STRIDED.with_(stride=1, P=7)],
    ids=str,
)
def test_random_schedules_are_exact(problem: Problem) -> None:
    context = samples.fixed_context(problem, 2)  # type: ignore[arg-type]
    (wide,) = (wide for view, wide in view_contexts(context) if view.swapped)
    texts = []
    families = samples.families(wide)
    for family in families[:: max(1, len(families) // 6)]:
        schedule = SWAPPED.outside(context.contraction, family.schedule(len(family) // 2))
        if samples.fits(context, schedule):
            texts.append(schedule)
    assert len(texts) > 3
    with Bench(problem, 2) as bench:
        for schedule in texts:
            bench.check(cache.build(emit(problem, schedule, 2, EmitOptions("layer")).file), "layer")


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
def test_the_next_pixels_are_prefetched_and_results_stay_exact() -> None:
    plan = parse("swap(A,B) n q:16 k:2 ahead(B) > brgemm_avx512_f32_2x16")
    text = emit(POINTWISE, plan, 1, EmitOptions("layer")).file
    assert "n / 2 < 2 ? 16 * (n / 2) + 16 : 0" in text
    with Bench(POINTWISE) as bench:
        bench.check(cache.build(text), "layer")


def test_a_search_tries_prefetches_where_x_exceeds_l2() -> None:
    schedule = parse("swap(A,B) q:48 k:8 > brgemm_avx512_f32_8x48")
    deep = POINTWISE.with_(N=1, C=256, K=64, H=56, W=56)
    for problem, form in ((deep, schedule.having(Ahead())), (deep.with_(C=64), None)):
        assert other_form(samples.fixed_context(problem), schedule) == form
    strided = samples.fixed_context(deep.with_(stride=2))
    gathered = parse("swap(A,B) pack(A) q:48 k:8 > brgemm_avx512_f32_8x48")
    assert other_form(strided, gathered) is None


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
def test_a_wrong_bias_or_mask_is_noticed() -> None:
    plan = parse("swap(A,B) n q:32 k:8 > brgemm_avx512_f32_8x32")
    text = emit(POINTWISE, plan, 1, EmitOptions("layer")).file
    with Bench(POINTWISE) as bench:
        bench.check(cache.build(text), "layer")
        for right, wrong in (
            ("ps_splat(bias[i])", "ps_splat(bias[0])"),
            ("ps_load_first(b + v * PS_LANES, ps_used(t, v))", "ps_load(b + v * PS_LANES)"),
        ):
            assert right in text
            with pytest.raises(PolysciError):
                bench.check(cache.build(text.replace(right, wrong)), "layer")


def test_every_line_of_the_next_pixels_that_is_prefetched_costs() -> None:
    """Five lines a step of 48 columns that start anywhere: four calls ask for one each."""
    problem = Conv2d(N=1, C=512, H=56, W=56, K=64, R=1, S=1, layout="nchw")
    context = samples.fixed_context(problem)
    for mark, lines in (("", 0), ("ahead(B) ", problem.C * 56 * 56 / 48 * 4)):
        schedule = parse(f"swap(A,B) q:48 k:8 {mark}> brgemm_avx512_f32_8x48")
        _, counts = work(*as_family(context, schedule))
        assert counts["prefetch_ns"][0] * 1e9 == pytest.approx(lines, rel=0.02)


@pytest.mark.parametrize("text", ["swap(A,B) q:48 k:8", "swap(A,B) k:8 q:48"])
def test_the_runs_that_come_from_beyond_l2_are_those_of_x(text: str) -> None:
    problem = Conv2d(N=1, C=512, H=56, W=56, K=64, R=1, S=1, layout="nchw")
    context = samples.fixed_context(problem)
    _, counts = work(*as_family(context, parse(f"{text} > brgemm_avx512_f32_8x48")))
    panels = -(-56 * 56 // 48)
    begun = counts["seek_ns"][0] * 1e9
    assert problem.C * panels * 0.8 <= begun <= problem.C * panels * problem.K / 8
