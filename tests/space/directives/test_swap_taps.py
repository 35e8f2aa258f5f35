"""Swapped factors with taps and padding: images as rows of positions, copies, results with gaps."""

import re
from dataclasses import replace

import numpy as np
import pytest

from polysci.cost import traffic
from polysci.cost.shortlist import as_family, choices, view_contexts
from polysci.cost.traffic import lower_bound
from polysci.cost.traffic_counts import TrafficCounts
from polysci.errors import PolysciError, UnsupportedError
from polysci.explain import explain, render
from polysci.lower.direct.algorithm import swapped_model_of
from polysci.measure.bench import Bench
from polysci.measure.check import check
from polysci.ops import Nest
from polysci.ops.convolutions import Conv2d
from polysci.polyhedral.contraction import FlatImage
from polysci.polyhedral.footprint import footprint
from polysci.runtime.build import cache
from polysci.space.directives import Swap
from polysci.space.directives.swap import swap_refusal, swap_roles
from polysci.space.enumerate import ways_of
from polysci.space.group_views import GroupView, group_view_of
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, parse
from polysci.tune import EmitOptions, emit, model_of
from tests.support import samples
from tests.support.nests import c_text

SQUARE = Conv2d(N=2, C=5, H=6, W=9, K=7, R=3, S=3, pad=1, layout="nchw")
SWAPPED = GroupView(swapped=True)
WIDTH = {"avx512": 32, "avx2": 16, "portable": 8}


def kernel(isa: str, rows: int) -> str:
    return f"brgemm_{isa}_f32_{rows}x{WIDTH[isa]}"


@pytest.mark.parametrize(
    ("problem", "pitch", "read"),
    [
        (SQUARE, 10, 59 + 2 * 10 + 2),
        (SQUARE.with_(pad=0), 9, 54),
        (SQUARE.with_(pad=(1, 0)), 9, 52 + 2 * 9 + 2),
        (SQUARE.with_(R=1, S=7, pad=(0, 3)), 12, 5 * 12 + 9 + 6),
        (SQUARE.with_(dilation=2, pad=2), 11, 5 * 11 + 9 + 4 * 11 + 4),
        (SQUARE.with_(pad=1, R=1, S=1), 11, 7 * 11 + 11),
    ],
    ids=str,
)
def test_rows_lie_one_behind_the_other_with_shared_zeros(
    problem: Conv2d, pitch: int, read: int
) -> None:
    swapped = swap_roles(model_of(problem)[1])
    image = swapped.image
    assert image and image.pitch == pitch
    assert (image.rows, image.columns) == (problem.P, problem.Q)
    assert image.length == (problem.P - 1) * pitch + problem.Q == swapped.extent("q")
    assert (swapped.x.shape[-1], swapped.x.shape[-2]) == (read, 1)
    assert image.bordered == bool(sum(problem.pad)) and not swapped.padded
    assert image.gaps == (pitch > problem.Q)


@pytest.mark.parametrize("problem", [SQUARE, SQUARE.with_(S=4, dilation=(2, 1), pad=(1, 2))])
def test_each_tap_reads_the_pixel_of_the_textbook_nest(problem: Conv2d) -> None:
    """Through positions of the image, for every pixel of the result and every tap."""
    _, roles, _ = model_of(problem)
    swapped = swap_roles(roles)
    image, row, along = swapped.image, roles.a.index[-2], swapped.x.index[-1]
    assert image
    for p, q, r, s in np.ndindex(problem.P, problem.Q, problem.R, problem.S):
        at = {"p": p, "q": q, "r": r, "s": s}
        y, x = (
            sum(coef * at[name] for name, coef in index.terms) + index.const
            for index in (row, roles.a.index[-1])
        )
        position = (
            sum(coef * at[name] for name, coef in along.terms if name != "q") + p * image.pitch + q
        )
        pixel = position // image.pitch - image.top, position % image.pitch - image.left
        inside = 0 <= y < problem.H and 0 <= x < problem.W
        zero = not (0 <= pixel[0] < image.height and 0 <= pixel[1] < image.width)
        assert zero if not inside else pixel == (y, x)


def test_the_nest_of_swapped_factors_visits_every_position() -> None:
    scop, roles = swapped_model_of(model_of(SQUARE)[1])
    assert scop.statements[0].domain.count_val().to_python() == 2 * 7 * 59 * 5 * 9
    assert str(roles) == "m=k n=q k=c br=(r,s) batch=(n,p)"


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (SQUARE.with_(stride=2), "it has strides, with taps or padding"),
        (SQUARE.with_(stride=(1, 2)), "it has strides, with taps or padding"),
        (SQUARE.with_(layout="nhwc"), "elements of O along 'q' are not neighbours"),
        (SQUARE.with_(C=6, K=6, groups=3), "it has groups"),
        (SQUARE.with_(dtype="bf16"), "only factors and results of f32 can be, not of bf16"),
        (SQUARE.with_(Q=1, P=1), "no row runs along the last axis of I and the result"),
    ],
    ids=str,
)
def test_layers_that_keep_their_roles(problem: Conv2d, why: str) -> None:
    _, roles, strides = model_of(problem)
    assert why in swap_refusal(roles, strides)
    assert SWAPPED not in [view for view, _ in view_contexts(samples.fixed_context(problem))]
    with pytest.raises(UnsupportedError, match="cannot swap the factors"):
        emit(problem, parse(f"swap(A,B) n pack(A) k:4 > {kernel('avx512', 4)}"))


def test_rows_that_do_not_follow_each_other_are_read_from_a_copy_alone() -> None:
    _, roles, strides = model_of(SQUARE)
    apart = {**strides, "I": (2000, 300, 40, 1)}
    assert not swap_refusal(roles, apart)
    _, valid, own = model_of(SQUARE.with_(pad=0))
    apart = {**own, "I": (2000, 300, 40, 1)}
    assert not swap_refusal(valid, own)
    assert "there are gaps between the rows of I" in swap_refusal(valid, apart)
    assert "of O along 'q'" in swap_refusal(roles, {**strides, "O": (2000, 300, 40, 2)})
    assert "gaps between the rows of O" in swap_refusal(roles, {**strides, "O": (2000, 300, 40, 1)})


@pytest.mark.sampled
@pytest.mark.isa("avx512")
@pytest.mark.parametrize("taps", [1, 3])
def test_rows_of_an_image_without_an_axis_of_their_own(taps: int) -> None:
    """Rows and pixels index one axis of x, which the reduction reads step by step."""
    arrays = f"O[5][9][21], I[300], W[5][{taps}]"
    loops = f"k:5 p:9 q:21 s:{taps}"
    nest = Nest(c_text(arrays, loops, "O[k][p][q] += I[p * 21 + q + s] * W[k][s];"))
    _, roles, strides = model_of(nest)
    assert not roles.by_role("br") and swap_refusal(roles, strides) == ""
    with Bench(nest) as bench:
        for text in ("p k:4 > brgemm_avx512_f32_4x32", "p > brgemm_avx512_f32_5x32"):
            source = emit(nest, parse(f"swap(A,B) {text}"), 1, EmitOptions("layer"))
            bench.check(cache.build(source.file), "layer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n q:32 k:4 > {}", "lacks the zeros of the padding: pack\\(A\\) copies it with them"),
        ("n r:1 pack(A) q:32 k:4 > {}", "takes 'r' whole"),
        ("n pack(A) q:32 k:4 ahead(B) > {}", "needs x as it lies"),
        ("n pack(A) q:32 k:4 stream(C) > {}", "not written once in whole aligned vectors"),
    ],
)
def test_schedules_that_shifted_reads_do_not_allow(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        emit(SQUARE, parse("swap(A,B) " + text.format(kernel("avx512", 4))))


def test_a_copy_holds_the_positions_that_its_columns_read() -> None:
    _, roles, strides = model_of(SQUARE)
    for text, size in (
        ("pack(A) n q:32", (2, 5, 1, 81)),
        ("n pack(A) q:32", (1, 5, 1, 81)),
        ("n c:3 q:32 pack(A)", (1, 3, 1, 32 + 22)),
    ):
        schedule = parse(f"swap(A,B) {text} k:4 > {kernel('avx512', 4)}")
        plan = resolve(roles, strides, schedule)
        assert plan.box and plan.box.extents == size
        assert (plan.coef["x"]["r"], plan.coef["x"]["s"], plan.coef["x"]["q"]) == (10, 1, 1)
    padded = parse(f"swap(A,B) n pack(A)+16 q:32 k:4 > {kernel('avx512', 4)}")
    assert resolve(roles, strides, padded).coef["x"]["c"] == 81 + 16


def test_taps_of_a_channel_read_the_same_lines() -> None:
    """Into L1 come, for every tile, the lines under all its taps once, not once a tap."""
    large = SQUARE.with_(N=1, C=64, H=56, W=56, K=4)
    context = samples.fixed_context(large)
    ((_, wide),) = [(view, wide) for view, wide in view_contexts(context) if view.swapped]
    family = next(f for f in samples.families(wide) if f.dims == ("q", "k"))
    counts = TrafficCounts(wide, family)
    extents = {d.name: np.full(1, float(d.extent)) for d in wide.contraction.dims}
    whole = 4 * footprint(wide.contraction.x, extents)[0]
    broad = np.array([dict(tile.sizes)["q"] == 64 for tile in family.tiles])[family.which]
    assert broad.any()
    assert (counts.levels()[0].a[broad] < 5 * whole).all()  # where each of 9 taps reads all


@pytest.mark.parametrize("problem", [SQUARE, SQUARE.with_(pad=0), SQUARE.with_(H=1, R=1)], ids=str)
def test_the_view_is_undone_and_no_faster_than_its_bound(problem: Conv2d) -> None:
    context = samples.fixed_context(problem, 2)
    ((view, wide),) = [(view, wide) for view, wide in view_contexts(context) if view.swapped]
    for family in samples.families(wide)[:4]:
        seconds = traffic(wide, family).seconds
        assert (lower_bound(wide, family) <= seconds * (1 + 1e-9)).all()
        for index in range(0, len(family), max(1, len(family) // 5)):
            schedule = view.outside(context.contraction, family.schedule(index))
            assert group_view_of(context.contraction, schedule) == view
            assert parse(str(schedule)) == schedule
            assert bool(schedule.pack) == bool(sum(problem.pad))


def fits(problem: Conv2d, schedule: Schedule) -> None:
    with Bench(problem) as bench:
        source = emit(problem, schedule, 1, EmitOptions("layer"))
        bench.check(cache.build(source.file), "layer", schedule)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in WIDTH])
@pytest.mark.parametrize("wide", [*range(2, 20), 31, 32, 33])
def test_every_row_length_is_exact_between_guard_pages(isa: str, wide: int) -> None:
    """Row ends fall on every lane, several in one vector where rows are short."""
    problem = SQUARE.with_(W=wide, H=70 // (wide + 1) + 2, K=5)
    fits(problem, parse(f"swap(A,B) n pack(A) q:{WIDTH[isa]} k:2 > {kernel(isa, 2)}"))


FILTERS = {
    "1x7": SQUARE.with_(R=1, S=7, pad=(0, 3)),
    "7x1": SQUARE.with_(R=7, S=1, pad=(3, 0)),
    "5x5": SQUARE.with_(R=5, S=5, pad=2),
    "2x2": SQUARE.with_(R=2, S=2, pad=1),
    "dilated": SQUARE.with_(dilation=(2, 3), pad=(2, 3)),
    "valid": SQUARE.with_(pad=0),
    "wide padding": SQUARE.with_(pad=4, R=2, S=2),
    "pointwise, padded": SQUARE.with_(R=1, S=1, pad=(1, 2)),
    "cropped": SQUARE.with_(P=4, Q=5),
    "extended": SQUARE.with_(P=8, Q=12),
    "one row": SQUARE.with_(H=1, W=40, R=1, S=3, pad=(0, 1)),
    "one row of three": SQUARE.with_(H=3, P=1, W=40, pad=(0, 1)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in WIDTH])
@pytest.mark.parametrize("name", FILTERS)
def test_every_kind_of_filter_is_exact(isa: str, name: str) -> None:
    wide = WIDTH[isa]
    for text in (f"n pack(A) k:3 q:{wide}", f"n c:2 q:{wide} pack(A)+4 k:3"):
        fits(FILTERS[name], parse(f"swap(A,B) {text} > {kernel(isa, 3)}"))


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
@pytest.mark.parametrize("name", ["valid", "5x5", "dilated"])
def test_copies_in_blocks_and_reads_in_place_are_exact(name: str) -> None:
    problem = FILTERS[name]
    texts = ["pack(A) n q:32 k:2", "n q:32 pack(A) q:16 k:4", "k:4 n q:32 pack(A) q:16 k:2"]
    texts += ["n k:4 q:32", "q:32 n c:3 k:2 q:16"] * (name == "valid")
    for text in texts:
        schedule = parse(f"swap(A,B) {text} > {kernel('avx512', 4)}")
        for verdict in check(problem, [schedule]):
            assert verdict.passed, verdict


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
@pytest.mark.parametrize("problem", [SQUARE, FILTERS["valid"], FILTERS["1x7"]], ids=str)
def test_random_schedules_are_exact(problem: Conv2d) -> None:
    context = samples.fixed_context(problem, 2)
    ((_, wide),) = [(view, wide) for view, wide in view_contexts(context) if view.swapped]
    families = samples.families(wide)
    schedules = [
        SWAPPED.outside(context.contraction, family.schedule(len(family) // 2))
        for family in families[:: max(1, len(families) // 5)]
    ]
    schedules = [schedule for schedule in schedules if samples.fits(context, schedule)]
    assert len(schedules) > 3
    with Bench(problem, 2) as bench:
        for schedule in schedules:
            source = emit(problem, schedule, 2, EmitOptions("layer"))
            bench.check(cache.build(source.file), "layer", schedule)


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
def test_a_wrong_gap_zero_or_tap_is_noticed() -> None:
    schedule = parse(f"swap(A,B) n c:2 pack(A) q:32 k:4 > {kernel('avx512', 4)}")
    text = emit(SQUARE, schedule, 1, EmitOptions("layer")).file
    with Bench(SQUARE) as bench:
        bench.check(cache.build(text), "layer")
        for right, wrong in (
            (".columns = 9", ".columns = 10"),
            ("ps_store_first(box + i, ps_zero()", "ps_store_first(box + i, ps_splat(1)"),
            (".left = 1", ".left = 0"),
            ("{3, 10}", "{3, 9}"),
            ("_mm512_maskz_expand_ps", "_mm512_maskz_mov_ps"),
            ("_mm512_maskz_compress_ps", "_mm512_maskz_mov_ps"),
        ):
            assert right in text
            with pytest.raises(PolysciError):
                bench.check(cache.build(text.replace(right, wrong)), "layer")


def test_an_image_without_gaps_is_stored_as_it_is() -> None:
    image = FlatImage(6, 9, 1, 0, 9, 6, 9, bordered=True)
    assert image.length == 54 and not image.gaps
    assert replace(image, pitch=10).gaps and not replace(image, pitch=10, rows=1).gaps
    schedule = parse(f"swap(A,B) n pack(A) q:32 k:4 > {kernel('avx512', 4)}")
    text = emit(SQUARE.with_(S=1, pad=(1, 0)), schedule).text
    assert "ps_end_rows" in text and "gaps" not in text


def test_register_tiles_leave_room_for_the_vectors_that_taps_shift() -> None:
    for problem, tall in ((SQUARE.with_(K=64), 6), (SQUARE.with_(K=64, R=1, S=1, pad=0), 7)):
        context = samples.fixed_context(problem)
        ((_, wide),) = [(view, wide) for view, wide in view_contexts(context) if view.swapped]
        (way,) = ways_of(wide.contraction, "avx512")
        assert max(kernel.rows for kernel in way if kernel.vecs == 4) == tall
        assert max(kernel.rows for kernel in way if kernel.vecs == 1) == 28


@pytest.mark.exhaustive
def test_the_model_swaps_the_factors_where_few_channels_leave_lanes_idle() -> None:
    for filters, swap in ((3, True), (8, True), (24, True), (64, False)):
        context = samples.fixed_context(SQUARE.with_(N=1, C=64, H=56, W=56, K=filters))
        assert choices(context, 1)[0].schedule.has(Swap) == swap, filters


def test_a_copy_that_exceeds_l2_costs_more_than_one_in_blocks() -> None:
    context = samples.fixed_context(SQUARE.with_(N=1, C=64, H=112, W=112, K=8))
    whole, blocks = (
        traffic(*as_family(context, parse(f"swap(A,B) {text} q:48 > brgemm_avx512_f32_8x48")))
        for text in ("pack(A)", "q:1536 pack(A)")
    )
    small = samples.fixed_context(SQUARE.with_(N=1, C=8, H=28, W=28, K=8))
    cheap = traffic(*as_family(small, parse("swap(A,B) pack(A) q:48 > brgemm_avx512_f32_8x48")))
    assert whole.packing[0] < blocks.packing[0]  # blocks copy rows between them twice
    assert whole.transfer[0] > 1.5 * blocks.transfer[0]
    assert cheap.transfer[0] < 0.1 * cheap.compute[0]


@pytest.mark.exhaustive
def test_explanations_tell_of_positions_that_are_not_stored() -> None:
    problem = SQUARE.with_(N=1, C=64, H=56, W=56, K=8)
    scop, _, _ = model_of(problem)
    schedule = parse("swap(A,B) q:816 pack(A) q:48 > brgemm_avx512_f32_8x48")
    told = render(explain("title", scop, samples.fixed_context(problem), schedule))
    assert "of every 57 positions along q, C has 56" in told
    assert re.search(r"q +n +3191 +A\(I\) C\(O\)", told)
    assert re.search(r"A +I\[.* 827 KiB", told) and re.search(r"B +W\[.* 18 KiB .* k\n", told)
