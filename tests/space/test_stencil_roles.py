"""Stencils: which contractions have one, their tiles at the image's edge, exact results."""

import re
from dataclasses import replace

import numpy as np
import pytest

from polysci.cost import RANKERS, traffic
from polysci.cost.shortlist import choices, cost_of, view_contexts
from polysci.cost.traffic import lower_bound
from polysci.errors import PolysciError, UnsupportedError
from polysci.explain import explain, render
from polysci.measure.bench import Bench
from polysci.measure.trials import build_all
from polysci.ops import Nest
from polysci.ops.convolutions import Conv2d
from polysci.ops.problem import Problem
from polysci.polyhedral.contraction import columns_of
from polysci.polyhedral.footprint import footprint
from polysci.runtime.build import cache
from polysci.space.enumerate import ways_of
from polysci.space.group_views import GroupView, group_view_of
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, parse
from polysci.space.stencil_roles import FilterAxis, stencil_refusal, stencil_roles, windows_of
from polysci.target.isas import ISAS
from polysci.target.microkernels import find, lanes
from polysci.tune import EmitOptions, emit, model_of
from tests.support import samples
from tests.support.nests import c_text

DEPTHWISE = Conv2d(N=2, C=5, H=11, W=21, K=5, R=3, S=3, pad=1, groups=5, layout="nchw")
STENCIL = GroupView(stencil=True)


def views(problem: Problem) -> list[GroupView]:
    return [view for view, _ in view_contexts(samples.fixed_context(problem))]  # type: ignore[arg-type]


def check(problem: Problem, *texts: str) -> None:
    """Bit for bit, operands between guard pages."""
    with Bench(problem) as bench:
        for text in texts:
            source = emit(problem, parse(text), 1, EmitOptions("layer"))
            bench.check(cache.build(source.file), "layer")


def test_pixels_are_columns_and_channels_batches() -> None:
    _, roles, strides = model_of(DEPTHWISE)
    stencil = stencil_roles(roles)
    extents = {dim.name: (dim.role, dim.extent) for dim in stencil.dims if dim.extent > 1}
    assert extents == {
        "n": ("batch", 2), "g": ("batch", 5), "p": ("m", 11), "q": ("n", 21), "r": ("br", 3),
        "s": ("br", 3),
    }  # fmt: skip
    assert columns_of(stencil).name == "q" and not stencil.swapped
    assert windows_of(stencil) == (FilterAxis("p", "r", 1, 1, 3), FilterAxis("q", "s", 1, 1, 3))
    for name in ("x", "w", "out"):  # the same elements
        tile = {d.name: np.full(1, float(d.extent)) for d in stencil.dims}
        assert footprint(getattr(roles, name), tile) == footprint(getattr(stencil, name), tile)
    assert not stencil_refusal(roles, strides) and STENCIL in views(DEPTHWISE)


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (DEPTHWISE.with_(layout="nhwc"), "elements along the last axis of O are not neighbours"),
        (DEPTHWISE.with_(dtype="bf16"), "only factors and results of f32 can be, not of bf16"),
        (DEPTHWISE.with_(groups=1), "it sums over 'c', and not only over taps"),
        (DEPTHWISE.with_(stride=3), "one or two elements a step"),
        (DEPTHWISE.with_(W=1), "no pixels run along the last axis"),
    ],
)
def test_contractions_without_a_stencil(problem: Problem, why: str) -> None:
    _, roles, strides = model_of(problem)
    assert why in stencil_refusal(roles, strides)
    assert STENCIL not in views(problem)
    with pytest.raises(UnsupportedError, match=f"no stencil: .*{re.escape(why)}"):
        emit(problem, parse("n > stencil_avx512_f32_3x32"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n g pack(A) p:3 > stencil_avx512_f32_3x32", "reads x where it lies: no pack(A)"),
        ("n g p:4 > stencil_avx512_f32_3x32", "4 rows x 21 columns does not fit"),
        ("n p:3 > stencil_avx512_f32_3x32", "may span at most two row dimensions"),
        ("n g p:3 q:9 > stencil_avx512_f32_3x32", "neither whole vectors"),
        ("n g p:3 > stencil2_avx512_f32_3x32", "cannot read I with stride 1 along 'q'"),
        ("n g p:3 r > stencil_avx512_f32_3x32", "takes 'r' whole"),
        ("n g p:3 ahead(B) > stencil_avx512_f32_3x32", "ahead(B) needs a brgemm kernel"),
        ("swap(A,B) n g p:3 > stencil_avx512_f32_3x32", "cannot swap the factors"),
        ("n g p:3 > depthwise_avx512_f32_3x32", "does not fit"),
    ],
)
def test_schedules_that_stencils_do_not_compute(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        emit(DEPTHWISE, parse(text))


def test_a_call_reads_no_more_rows_than_compilers_unroll() -> None:
    tall = DEPTHWISE.with_(H=200, R=3, dilation=(20, 1))
    emit(tall, parse("n g p:24 q:16 > stencil_avx512_f32_24x16"))
    with pytest.raises(UnsupportedError, match="a call reads 66 rows of I, more than 64"):
        emit(tall.with_(dilation=(21, 1)), parse("n g p:24 q:16 > stencil_avx512_f32_24x16"))


WIDE = {"avx512": 32, "avx2": 16, "neon": 8, "portable": 8}


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in WIDE])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("taps", [(3, 1), (2, 0), (5, 3)])
def test_tails_of_pixels_are_exact_between_guard_pages(
    isa: str, stride: int, taps: tuple[int, int]
) -> None:
    """Rows of a vector, a little less and more, of a tile, of two tiles and a part."""
    (size, pad), cols = taps, WIDE[isa]
    family, trials = "stencil" if stride == 1 else "stencil2", list[tuple[Problem, Schedule]]()
    for pixels in (cols // 2 - 1, cols // 2, cols // 2 + 1, cols - 1, cols, 2 * cols + 1):
        width = (pixels - 1) * stride + size - 2 * pad + pixels % stride
        problem = DEPTHWISE.with_(N=1, H=7, W=width, R=size, S=size, pad=pad, stride=stride)
        blocks = f"g p:2 q:{cols}" if cols < problem.Q else "g p:2"
        vectors = -(-min(problem.Q, cols) // lanes(isa))
        trials.append((problem, parse(f"{blocks} > {family}_{isa}_f32_2x{vectors * lanes(isa)}")))
    with Bench(DEPTHWISE) as bench:
        for (problem, _), built in zip(trials, build_all(trials, share=len(trials)), strict=True):
            bench.take(problem)
            bench.check(*built.candidate)


@pytest.mark.sampled
@pytest.mark.isa("avx512")
@pytest.mark.parametrize(
    ("problem", "texts"),
    [
        (DEPTHWISE, ["p:2 n q:16 g p > stencil_avx512_f32_1x16"]),
        (DEPTHWISE.with_(H=1, R=1, pad=(0, 1)), ["n g > stencil_avx512_f32_1x32"]),
        (DEPTHWISE.with_(K=15), ["n g k p:4 > stencil_avx512_f32_4x32"]),
        (DEPTHWISE.with_(C=1, groups=1, K=6), ["n k p:4 > stencil_avx512_f32_4x32"]),
        (DEPTHWISE.with_(dilation=(2, 3)), ["n g p:4 > stencil_avx512_f32_4x32"]),
        (DEPTHWISE.with_(dilation=17, pad=17, W=50), ["n g p:4 q:32 > stencil_avx512_f32_4x32"]),
        (DEPTHWISE.with_(stride=2, dilation=2), ["n g p:3 > stencil2_avx512_f32_3x16"]),
        (DEPTHWISE.with_(stride=(3, 2)), ["n g p:3 > stencil2_avx512_f32_3x16"]),
        (DEPTHWISE.with_(stride=(2, 1)), ["n g p:3 > stencil_avx512_f32_3x32"]),
        (DEPTHWISE.with_(R=7, S=7, pad=3), ["n g p:8 q:16 > stencil_avx512_f32_8x16"]),
        (DEPTHWISE.with_(S=21, pad=(1, 10)), ["n g p:8 q:16 > stencil_avx512_f32_8x16"]),
        (DEPTHWISE.with_(S=70, W=90, pad=0), ["n g p:9 q:16 > stencil_avx512_f32_9x16"]),
        (DEPTHWISE.with_(pad=(4, 5)), ["n g p:3 q:16 > stencil_avx512_f32_3x16"]),
    ],
    ids=str,
)  # fmt: skip
def test_filters_of_any_kind_are_exact(problem: Problem, texts: list[str]) -> None:
    check(problem, *texts)


NESTS = {
    "columns of taps outside": (
        "O[5][9][21], I[5][11][23], W[5][3][3]", "g:5 p:9 q:21 s:3 r:3",
        "O[g][p][q] += I[g][p + r][q + s] * W[g][r][s];",
    ),
    "columns of taps outside, as w lies": (
        "O[5][9][21], I[5][10][23], W[5][3][2]", "g:5 p:9 q:21 s:3 r:2",
        "O[g][p][q] += I[g][p + r][q + s] * W[g][s][r];",
    ),
    "a bias along channels whose loop is not the last": (
        "O[3][5][9][21], I[3][5][11][23], W[3][3][5][3]", "g:5 h:3 p:9 q:21 r:3 s:3",
        "O[h][g][p][q] += I[h][g][p + r][q + s] * W[r][s][g][h];",
    ),
    "several filters a channel": (
        "O[3][4][5][9][21], I[5][11][22], W[4][3][5][3][3]", "j:3 k:4 g:5 p:9 q:21 s:3 r:3",
        "O[j][k][g][p][q] += I[g][p + r][q + s] * W[k][j][g][r][s];", "q + s < 22",
    ),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
@pytest.mark.parametrize("name", NESTS)
def test_any_order_of_loops_is_exact(name: str) -> None:
    nest = Nest(c_text(*NESTS[name]))
    around = " ".join(word[0] for word in NESTS[name][1].split() if word[0] in "jkgh")
    check(nest, f"{around} p:3 q:16 > stencil_avx512_f32_3x16")


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
def test_random_reals_stay_within_the_bound() -> None:
    source = emit(DEPTHWISE, parse("n g p:4 > stencil_avx512_f32_4x32"), 1, EmitOptions("layer"))
    with Bench(DEPTHWISE) as bench:
        assert 0 < bench.bound(cache.build(source.file), "layer") < 1


@pytest.mark.exhaustive
@pytest.mark.isa("avx512")
@pytest.mark.parametrize("problem", [DEPTHWISE, DEPTHWISE.with_(stride=2, W=40)], ids=str)
def test_random_schedules_are_exact(problem: Problem) -> None:
    context = samples.fixed_context(problem, 2)  # type: ignore[arg-type]
    (wide,) = (wide for view, wide in view_contexts(context) if view.stencil)
    schedules = dict.fromkeys(
        STENCIL.outside(context.contraction, family.schedule(index))
        for family in samples.families(wide)
        for index in range(0, len(family), max(1, len(family) // 3))
    )
    texts = [schedule for schedule in schedules if samples.fits(context, schedule)][:8]
    assert len(texts) > 3
    with Bench(problem, 2) as bench:
        for schedule in texts:
            bench.check(cache.build(emit(problem, schedule, 2, EmitOptions("layer")).file), "layer")


@pytest.mark.parametrize("problem", [DEPTHWISE, DEPTHWISE.with_(stride=2)], ids=str)
def test_the_view_is_undone_and_no_faster_than_its_bound(problem: Problem) -> None:
    context = samples.fixed_context(problem, 2)  # type: ignore[arg-type]
    for view, wide in view_contexts(context):
        for family in samples.families(wide)[:4] if view.stencil else ():
            seconds = traffic(wide, family).seconds
            assert (lower_bound(wide, family) <= seconds * (1 + 1e-9)).all()
            for index in range(0, len(family), max(1, len(family) // 5)):
                schedule = view.outside(context.contraction, family.schedule(index))
                assert group_view_of(context.contraction, schedule) == view
                assert parse(str(schedule)) == schedule


def test_rows_that_fit_a_shorter_vector_take_it() -> None:
    for pixels, isa in ((7, "avx2"), (8, "avx2"), (9, "avx512")):
        _, roles, _ = model_of(DEPTHWISE.with_(W=pixels))
        (way,) = ways_of(stencil_roles(roles), "avx512fp16")
        assert {kernel.isa for kernel in way} == {isa}


@pytest.mark.sampled
@pytest.mark.parametrize("ranker", RANKERS)
def test_every_ranker_orders_stencils(ranker: str) -> None:
    if ranker == "learned":
        return  # it has learned nothing yet
    large = samples.fixed_context(DEPTHWISE.with_(C=64, K=64, groups=64, H=56, W=56))
    for text in ("n g p:4 > stencil_avx512_f32_4x64", "n g p:14 q:16 > stencil_avx512_f32_14x16"):
        assert 0 <= cost_of(large, parse(text), ranker) < np.inf
    best = choices(large, 3, ranker=ranker)[0].schedule
    resolve(large.contraction, large.strides, best)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_model_takes_stencils_where_pixels_are_neighbours(isa: str, stride: int) -> None:
    problem = DEPTHWISE.with_(N=1, C=64, K=64, groups=64, H=56, W=56, stride=stride)
    target = replace(samples.FIXED, isa=ISAS[isa], features=ISAS[isa].features)
    context = samples.fixed_context(problem, target=target)
    assert find(choices(context, 1)[0].schedule.kernel).stencil
    nhwc = samples.fixed_context(problem.with_(layout="nhwc"))
    assert not any(find(choice.schedule.kernel).stencil for choice in choices(nhwc, 10))


@pytest.mark.exhaustive
def test_explanations_name_the_roles() -> None:
    scop, _, _ = model_of(DEPTHWISE)
    schedule = parse("n g p:4 > stencil_avx512_f32_4x32")
    told = render(explain("title", scop, samples.fixed_context(DEPTHWISE), schedule))
    assert re.search(r"q +n +21 +A\(I\) C\(O\)", told)


@pytest.mark.sampled
@pytest.mark.isa("avx512")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ps_splat(*e->bias)", "ps_splat(e->bias[1])"),
        ("ps_load_part(row + at, from, to)", "ps_load(row + at)"),
        ("y = f.top; y < f.bottom", "y = 0; y < f.bottom"),
        ("_mm512_alignr_epi32(b, a, n)", "_mm512_alignr_epi32(a, b, n)"),
    ],
)
def test_a_wrong_kernel_is_noticed(right: str, wrong: str) -> None:
    plan = parse("n g p:4 q:16 > stencil_avx512_f32_4x16")
    text = emit(DEPTHWISE, plan, 1, EmitOptions("layer")).file
    with Bench(DEPTHWISE) as bench:
        bench.check(cache.build(text), "layer")
        assert right in text
        with pytest.raises(PolysciError):
            bench.check(cache.build(text.replace(right, wrong)), "layer")
