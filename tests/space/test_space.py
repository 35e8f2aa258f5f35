"""The space of schedules: what is in it, that it nests, its order, the choices from it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost import Context, traffic
from polysci.cost.shortlist import as_family, choices, predict_seconds
from polysci.errors import SpecError, UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.space import enumerate as space
from polysci.space.directives import Pack, Private, Stream
from polysci.space.padding import cuts
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, parse
from polysci.target import microkernels
from polysci.target.isas import ISAS
from tests.support import samples

WIDE = Conv2d(N=1, C=128, H=28, W=28, K=96, R=3, S=3, pad=1)
NARROW = Conv2d(N=1, C=16, H=6, W=6, K=16, R=3, S=3, pad=1, groups=8)
SMALL = Conv2d(N=1, C=64, H=7, W=7, K=128, R=3, S=3, pad=1)


def texts(context: Context, **limits: int) -> list[str]:
    """Every schedule of a space, in its order, doubles included."""
    return [
        str(family.schedule(index))
        for family in samples.families(context, **limits)
        for index in range(len(family))
    ]


@pytest.fixture(scope="module")
def wide() -> list[Schedule]:
    context = samples.fixed_context(WIDE, 2)
    return [parse(text) for text in dict.fromkeys(texts(context))]


@given(st.integers(1, 300), st.integers(1, 40))
def test_even_splits(extent: int, limit: int) -> None:
    sizes = space.even_splits(extent, limit)
    assert sizes == sorted(set(sizes), reverse=True) and max(sizes) <= limit
    for size in sizes:
        tiles = -(-extent // size)
        assert extent - (tiles - 1) * size > 0
        assert size == -(-extent // tiles), "smaller tiles would need no more of them"
    fewest = -(-extent // limit)
    assert -(-extent // sizes[0]) == fewest


@pytest.mark.parametrize(
    ("extent", "limit", "first"),
    [(56, 14, 14), (28, 14, 14), (7, 28, 7), (49, 28, 25), (13, 14, 13), (17, 14, 9), (35, 28, 18)],
)
def test_register_tiles_of_real_maps_are_even(extent: int, limit: int, first: int) -> None:
    assert space.even_splits(extent, limit)[0] == first


@pytest.mark.exhaustive
def test_the_order_never_changes() -> None:
    for threads in (1, 2):
        context = samples.fixed_context(WIDE, threads)
        assert texts(context) == texts(context)


@pytest.mark.exhaustive
@settings(max_examples=25)
@given(samples.convolutions(most=20, layouts=("nhwc", "nchw")), st.integers(1, 3))
def test_every_member_nests(problem: Conv2d, threads: int) -> None:
    context = samples.fixed_context(problem, threads)
    roles = {dim.name: dim.role for dim in context.contraction.dims}
    generated = 0
    for text in dict.fromkeys(texts(context)):
        schedule = parse(text)
        assert all(roles[loop.dim] not in ("k", "br") for loop in schedule.parallel)
        assert threads > 1 or not schedule.parallel
        kernel = microkernels.find(schedule.kernel)
        assert kernel.isa == context.target.isa.name
        try:
            resolve(context.contraction, context.strides, schedule)
        except UnsupportedError:
            assert schedule.pack or problem.groups > 1, text
        else:
            generated += 1
    assert generated


@pytest.mark.exhaustive
def test_loops_come_in_every_order() -> None:
    schedules = map(parse, texts(samples.fixed_context(WIDE)))
    orders = {tuple(dict.fromkeys(loop.dim for loop in schedule.loops)) for schedule in schedules}
    assert {("k", "p"), ("p", "k"), ("p", "q", "k"), ("p", "k", "q"), ("k", "p", "q")} <= orders
    assert {("c", "k", "p"), ("c", "p", "k"), ("k", "c", "p"), ("p", "c", "k")} <= orders


@pytest.mark.exhaustive
def test_threads_share_a_reduction_of_private_copies_alone(wide: list[Schedule]) -> None:
    shared = [any(loop.dim == "c" for loop in schedule.parallel) for schedule in wide]
    assert shared == [schedule.has(Private) for schedule in wide]
    assert all(schedule.parallel for schedule in wide) and any(shared)


def test_steps_need_not_divide(wide: list[Schedule]) -> None:
    extents = {"k": WIDE.K, "p": WIDE.P, "q": WIDE.Q, "c": WIDE.C}
    ragged = {
        loop.dim for schedule in wide for loop in schedule.loops if extents[loop.dim] % loop.step
    }
    assert {"k", "p", "c"} <= ragged
    blocks = {loop.step for schedule in wide for loop in schedule.loops if loop.dim == "c"}
    assert len(blocks) >= 3 and max(blocks) < WIDE.C


def test_packing_stands_anywhere(wide: list[Schedule]) -> None:
    depths = {schedule.pack_depth for schedule in wide if schedule.pack}
    assert {0, 1, 2, 3} <= depths
    assert any(schedule.pack is None for schedule in wide)
    # 128 channels of f32 are 512 bytes: pixels would crowd into few sets without a pad.
    assert {schedule.pack for schedule in wide} == {None, Pack(16)}


def test_threads_share_one_loop_or_several(wide: list[Schedule]) -> None:
    shared = {tuple(loop.dim for loop in schedule.parallel) for schedule in wide}
    assert {("p",), ("k",), ("p", "k"), ("k", "p")} <= shared


def test_one_call_may_span_rows_of_a_small_map() -> None:
    context = samples.fixed_context(SMALL)
    tiles = {
        tuple(parse(text).tile({"p": 7, "q": 7, "k": 128, "c": 64})[d] for d in "pq")
        for text in texts(context)
    }
    assert {(1, 7), (2, 7), (4, 7)} <= tiles  # 3 rows would leave a single one


@pytest.mark.exhaustive
def test_choices_are_the_least_predictions_of_the_space() -> None:
    context = samples.fixed_context(SMALL)
    found = choices(context, 8)
    assert len(found) == len({choice.schedule for choice in found}) == 8
    seconds = [choice.seconds for choice in found]
    assert seconds == sorted(seconds)
    least = min(
        predict
        for family in samples.families(context)
        for index, predict in enumerate(traffic(context, family).seconds)
        if predict <= seconds[0] and samples.fits(context, family.schedule(index))
    )
    assert least == pytest.approx(seconds[0])
    for choice in found:
        assert choice.family.schedule(choice.index) == choice.schedule
        assert predict_seconds(context, choice.schedule) == choice.seconds == choice.cost


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", [SMALL, NARROW], ids=str)
def test_a_choice_alone_has_the_same_prediction(problem: Conv2d) -> None:
    for threads in (1, 2):
        context = samples.fixed_context(problem, threads)
        for choice in choices(context, 6):
            assert predict_seconds(context, choice.schedule) == pytest.approx(choice.seconds)


def test_narrow_groups_share_calls() -> None:
    """Two columns a group would leave 14 of 16 lanes idle."""
    assert len(samples.families(samples.fixed_context(NARROW))) > 0
    best = choices(samples.fixed_context(NARROW), 1)[0].schedule
    assert best.tile({"g": 8, "p": 6, "q": 6, "k": 2, "c": 2, "n": 1})["g"] > 1


@pytest.mark.exhaustive
def test_choices_do_not_depend_on_their_number() -> None:
    context = samples.fixed_context(SMALL, 2)
    assert choices(context, 1)[0].schedule == choices(context, 9)[0].schedule
    assert [c.schedule for c in choices(context, 5)] == [c.schedule for c in choices(context, 5)]


def test_an_unknown_ranker_is_refused() -> None:
    with pytest.raises(SpecError, match="ranker 'oracle': expected one of traffic"):
        choices(samples.fixed_context(SMALL), 1, ranker="oracle")


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "resnext50", "inception_v3"])
def test_every_layer_of_a_network_has_choices(name: str, layout: str) -> None:
    for layer in {layer.key: layer for layer in load(name)}.values():
        context = samples.fixed_context(layer.with_(layout=layout), 2)
        choice = choices(context, 1)[0]
        choice.schedule.check(choice.family.extents)
        assert choice.seconds > 0


def test_a_family_of_one() -> None:
    context = samples.fixed_context(WIDE, 2)
    plan = parse("p:7* k:48* c:64 pack(A)+16 p k:48 q:7 > brgemm_avx512_f32_9x48")
    family = as_family(context, plan)[1]
    assert len(family) == 1
    assert family.schedule(0) == parse(str(plan).replace(" k:48 q", " q"))  # it runs once


@pytest.mark.parametrize(("dtype", "columns"), [("f32", 16), ("bf16", 32), ("u8:s8:u8", 0)])
def test_results_go_past_the_caches_in_whole_lines(dtype: str, columns: int) -> None:
    """Narrow results by two vectors, 8-bit ones never; every such schedule can be generated."""
    problem = Conv2d(N=2, C=32, H=8, W=8, K=96, R=1, S=1, pad=0, dtype=dtype)
    isa = ISAS["avx512bf16"]
    context = samples.fixed_context(problem, target=replace(samples.FIXED, isa=isa))
    kernels = space.ways_of(context.contraction, isa.name)[0]
    streaming = [
        family.schedule(int(index))
        for family in space.schedules(
            context.contraction, context.strides, kernels, blocks=1, cache=1.0
        )
        for index in np.flatnonzero(family.has(Stream))[:5]
    ]
    assert bool(streaming) == (columns > 0)
    for schedule in streaming:
        resolve(context.contraction, context.strides, schedule)
        assert microkernels.find(schedule.kernel).cols % columns == 0


@pytest.mark.parametrize(("taps", "loop"), [(1, "r:1"), (3, "r:3")])
def test_a_loop_over_a_tap_that_runs_once_is_refused(taps: int, loop: str) -> None:
    problem = Conv2d(N=1, C=4, H=6, W=6, K=8, R=taps, S=taps)
    context = samples.fixed_context(problem)
    schedule = parse(f"p {loop} > brgemm_portable_f32_6x8")
    with pytest.raises(UnsupportedError, match="the loop over 'r' runs once: leave it out"):
        resolve(context.contraction, context.strides, schedule)


@pytest.mark.parametrize(("extent", "step"), [(12, 4), (13, 4), (3, 4), (4, 4), (10**15, 7)])
def test_tiles_without_padding_are_at_most_two_pieces(extent: int, step: int) -> None:
    pieces = cuts(extent, step)
    assert len(pieces) <= 2 and sum(len(p.origins) * p.size for p in pieces) == extent
    ends = [place for p in pieces for place in (p.first, p.last + p.size)]
    assert ends[0] == 0 and ends[-1] == extent and ends[1:-1:2] == ends[2::2]
