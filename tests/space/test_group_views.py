"""Views of grouped contractions: what they keep, which schedules fit them, what is refused."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from polysci.cost import RANKERS, traffic
from polysci.cost.shortlist import choices, view_contexts
from polysci.cost.traffic import lower_bound
from polysci.errors import PolysciError, UnsupportedError
from polysci.measure.bench import Bench
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.polyhedral.contraction import Contraction, columns_of
from polysci.polyhedral.footprint import footprint
from polysci.runtime.build import cache
from polysci.space.group_views import GroupView, group_view_of, group_views, rotate_groups, shift_of
from polysci.space.resolve import resolve
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.coefficients import PRIORS
from polysci.target.isas import ISAS
from polysci.target.microkernels import find
from polysci.tune import EmitOptions, emit
from tests.support import samples

EIGHTS = Conv2d(N=1, C=48, H=9, W=7, K=48, R=3, S=3, pad=1, groups=6)
FOURS = EIGHTS.with_(groups=12)
HALVES = EIGHTS.with_(dtype="bf16")


def roles(problem: Conv2d) -> Contraction:
    return samples.fixed_context(problem).contraction


def rotates(problem: Conv2d, isa: str = "avx512") -> list[int]:
    """The shifts of the rotated views."""
    context = samples.fixed_context(problem)
    views = group_views(context.contraction, context.strides, isa)
    return [view.shifts for view in views if view.shifts > 1]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_only_groups_narrower_than_a_vector_rotate(width: int) -> None:
    problem = Conv2d(N=1, C=3 * width, H=5, W=5, K=3 * width, R=3, S=3, groups=3)
    for isa in ISAS.values():
        fits = bool(microkernels.ways(f"grouped{width}", isa.name, "f32"))
        assert fits >= (width in (2, 4, 8) and width < isa.lanes_f32)
        assert rotates(problem, isa.name) == [width] * fits


@pytest.mark.parametrize(
    "problem",
    [
        EIGHTS.with_(groups=1),
        EIGHTS.with_(groups=48),
        EIGHTS.with_(K=96),
        EIGHTS.with_(C=96),
        EIGHTS.with_(C=18, K=18),
    ],
    ids=str,
)  # fmt: skip
def test_groups_of_another_shape_do_not_rotate(problem: Conv2d) -> None:
    assert rotates(problem) == []
    with pytest.raises(UnsupportedError, match="its groups do not have 8 columns and steps"):
        rotate_groups(roles(problem), 8)


@pytest.mark.parametrize("problem", [EIGHTS, FOURS, FOURS.with_(layout="nchw", stride=2)], ids=str)
def test_a_rotated_contraction_has_the_same_points_and_elements(problem: Conv2d) -> None:
    plain = roles(problem)
    shifts = problem.C // problem.groups
    turned = rotate_groups(plain, shifts)
    points = [prod(d.extent for d in one.dims) for one in (plain, turned)]
    assert points[0] == points[1]
    for name in ("a", "b", "out"):
        counts = [
            footprint(getattr(one, name), {d.name: np.full(1, float(d.extent)) for d in one.dims})
            for one in (plain, turned)
        ]
        assert counts[0] == counts[1], name
    shift = shift_of(turned)
    assert shift and shift.extent == shifts and not turned.a.uses(shift.name)
    assert shift_of(plain) is None
    assert columns_of(turned).extent == problem.C


@pytest.mark.parametrize(
    ("dtype", "views"),
    [
        ("f32", [GroupView(shifts=4)]),
        ("bf16", [GroupView(shifts=4)]),
        ("u8:s8:s32", [*(GroupView(groups=n) for n in (2, 3, 4)), GroupView(shifts=4)]),
    ],
)
def test_every_view_is_undone(dtype: str, views: Sequence[GroupView]) -> None:
    """Reals are not merged: zeros of block-diagonal weights make NaN of infinities."""
    context = samples.fixed_context(FOURS.with_(dtype=dtype), 2)
    for view, wide in view_contexts(context):
        for family in samples.families(wide)[:3]:
            for index in range(0, len(family), max(1, len(family) // 5)):
                inside = family.schedule(index)
                schedule = view.outside(context.contraction, inside)
                assert group_view_of(context.contraction, schedule) == view
                assert view.inside(context.contraction, schedule) == inside
                assert parse(str(schedule)) == schedule
    assert [view for view, _ in view_contexts(context)] == [GroupView(), *views]


@pytest.mark.parametrize(
    ("problem", "text", "message"),
    [
        (EIGHTS, "p g:2 > grouped4_avx512_f32_7x16", "do not have 4 columns and steps"),
        (EIGHTS.with_(groups=1), "p > grouped8_avx512_f32_3x16", "do not have 8 columns and steps"),
        (EIGHTS, "p g:2 c:4 > grouped8_avx512_f32_3x16", "leave no loop over 'c'"),
        (EIGHTS, "p q g:3 > grouped8_avx512_f32_3x16", "1 rows x 24 columns does not fit"),
        (FOURS, "p q g:3 > grouped4_avx512_f32_3x16", "g:12 is neither whole vectors of 16"),
        (EIGHTS, "p g:2 > grouped8_avx512_f32_3x16", "7 rows x 16 columns does not fit"),
        (HALVES, "p q g:2 > grouped8_avx512bf16_bf16_3x32", "g:16 is neither whole vectors of 32"),
        (EIGHTS.with_(layout="nchw"), "p q g:2 > grouped8_avx512_f32_3x16", "with stride 63 along"),
        (EIGHTS, "p q g:2 > depthwise_avx512_f32_1x16", "make NaN of another group's"),
    ],
)
def test_schedules_that_no_grouped_kernel_computes(
    problem: Conv2d, text: str, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        emit(problem, parse(text))


def test_weights_go_where_their_columns_are() -> None:
    """Lane l of shift d holds the weight from channel l to channel l ^ d."""
    source = emit(FOURS, parse("p q g:4 > grouped4_avx512_f32_1x16"))
    packing = re.sub(r"\s+", " ", source.text[source.text.index("_pack_weights(const float *re") :])
    assert "w[9 * r0" not in packing and "36 * ((g0 + j) ^ d) + 9 * ((g0 + j) % 4)" in packing


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_the_model_takes_the_kernel_without_wasted_lanes(isa: str) -> None:
    target = replace(samples.FIXED, isa=ISAS[isa])
    for layer in load("resnext50"):
        shifts = layer.C // layer.groups
        if layer.groups == 1 or shifts >= ISAS[isa].lanes_f32:
            continue
        for threads in (1, 2):
            context = samples.fixed_context(layer, threads, target)
            best = choices(context, 1)[0].schedule
            assert find(best.kernel).group == shifts, f"{layer.name}: {best}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranker", RANKERS)
def test_every_ranker_knows_what_to_do(ranker: str) -> None:
    if ranker == "learned":
        return  # it has learned nothing yet
    context = samples.fixed_context(FOURS)
    for choice in choices(context, 3, ranker=ranker):
        resolve(context.contraction, context.strides, choice.schedule)


def test_the_bound_of_a_rotated_family_is_that_of_the_work() -> None:
    bounds = {}
    for view, wide in view_contexts(samples.fixed_context(FOURS)):
        for family in samples.families(wide):
            bound, direct = lower_bound(wide, family), family.pack < 0
            assert (bound <= traffic(wide, family).seconds * (1 + 1e-9)).all()
            if direct.any():
                bounds[view] = min(bounds.get(view, np.inf), float(bound[direct].min()))
    valid = (3 * 9 - 2) * (3 * 7 - 2) / (3 * 9 * 3 * 7)  # of the taps
    peak = samples.fixed_context(FOURS).machine.peak * 1e9
    assert bounds[GroupView(shifts=4)] == pytest.approx(
        PRIORS["safe_bound"] * FOURS.flops * valid / peak
    )


@pytest.mark.exhaustive
@pytest.mark.isa("avx2")
def test_a_wrong_swap_is_noticed() -> None:
    """The whole layer, as a search would try it."""
    plan = parse("p q g:2 > grouped4_avx2_f32_1x8")
    text = emit(FOURS, plan, 1, EmitOptions("layer")).file
    with Bench(FOURS) as bench:
        bench.check(cache.build(text), "layer")
        for right, wrong in (("ps_unshift(acc, t);", ""), ("0xb1", "0x4e"), ("^ d)", "^ (3 - d))")):
            assert right in text
            with pytest.raises(PolysciError, match="elements differ"):
                bench.check(cache.build(text.replace(right, wrong)), "layer")
