"""Tile sizes by optimisation: classes of orders, the continuous optimum, rounding, the families."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polysci_rankers import RANKERS, tiles
from polysci_rankers.bottleneck import bottleneck, bytes_moved, bytes_without_reuse
from polysci_rankers.continuous_tiles import Blocks, Levels, solve
from polysci_rankers.trip_counts import trip_counts

import polysci.cost
from polysci.cost import Context
from polysci.cost.batch import costs
from polysci.cost.shortlist import as_family, choices, view_contexts
from polysci.errors import UnsupportedError
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.polyhedral.footprint import footprint
from polysci.runtime.source import emit
from polysci.space import enumerate as space
from polysci.space.resolve import resolve
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from polysci.target.microkernels import find
from tests.support import samples
from tests.support.nests import nest


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """The package's rankers beside polysci's own, as its entry points add them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polysci.cost.shortlist.RANKERS", {**polysci.cost.RANKERS, **RANKERS})
        yield


SMALL_CACHES = samples.resized(samples.FIXED, L1=8 * 1024, L2=64 * 1024, L3=256 * 1024)
LAYERS = [
    Conv2d(N=1, C=64, H=28, W=28, K=96, R=1, S=1),
    Conv2d(N=2, C=48, H=14, W=13, K=80, R=3, S=3, pad=1),
    Conv2d(N=1, C=128, H=17, W=15, K=64, R=1, S=1, stride=2),
    Conv2d(N=1, C=40, H=15, W=15, K=33, R=5, S=3, stride=2, pad=2, dilation=2),
    Conv2d(N=1, C=96, H=14, W=14, K=96, R=3, S=3, pad=1, groups=96),
    Conv2d(N=1, C=256, H=9, W=9, K=128, R=3, S=3, pad=1, groups=2),
    Conv2d(N=1, C=32, H=8, W=8, K=32, R=3, S=3, pad=1, groups=8),
    Conv2d(N=1, C=8, H=1, W=1, K=8, R=1, S=1),
]  # fmt: skip
NESTS = (
    "matmul", "all transposed", "outer product", "batch", "two batches", "groups", "channels last",
    "three dimensions", "backward weights", "depthwise in batches",
)  # fmt: skip


def context_of(problem: Problem, threads: int = 1, small: bool = True) -> Context:
    return samples.fixed_context(problem, threads, SMALL_CACHES if small else samples.FIXED)


def test_a_convolution_has_three_classes() -> None:
    """Which operand stays: A inside columns, B inside pixels, C inside the reduction."""
    contraction = context_of(LAYERS[0]).contraction
    groups = tiles.classes(contraction, list(permutations("pkc")))
    assert sorted(map(sorted, groups)) == [
        [("c", "k", "p"), ("k", "c", "p")],
        [("c", "p", "k"), ("p", "c", "k")],
        [("k", "p", "c"), ("p", "k", "c")],
    ]
    assert tiles.classes(contraction, [()]) == [[()]]


@settings(max_examples=15)
@given(st.sampled_from(LAYERS[:3]), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_a_pruned_order_is_never_better(problem: Conv2d, sizes: list[int]) -> None:
    """For one set of sizes, no order moves less of every operand than all orders that are kept."""
    contraction = context_of(problem).contraction
    orders = list(permutations("npkc"))
    kept = [order for group in tiles.classes(contraction, orders) for order in group]
    steps = {d: min(size, contraction.extent(d)) for d, size in zip("npkc", sizes, strict=True)}

    def volumes(order: tuple[str, ...]) -> list[float]:
        around = {d: contraction.extent(d) / steps[d] for d in order}
        found = []
        for op in (contraction.a, contraction.b, contraction.out):
            last = max(i for i, d in enumerate(order) if op.uses(d))
            found.append(float(np.prod([around[d] for d in order[: last + 1]])))
        return found

    best = [volumes(order) for order in kept]
    for order in orders:
        own = volumes(order)
        assert any(all(b <= o * (1 + 1e-12) for b, o in zip(v, own, strict=True)) for v in best)


def every_problem(context: Context) -> list[tuple[tiles.Shape, Blocks]]:
    """All continuous problems of the best two register tiles."""
    (way,) = space.ways_of(context.contraction, context.target.isa.name)
    found = []
    for tile in space.register_tiles(context.contraction, context.strides, way, 2):
        shape = tiles.shape_of(context, tile)
        for order in permutations([*shape.images, *shape.blockable]):
            found += [(shape, b) for b in tiles.problems(context, tile, shape, order)]
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("problem", LAYERS[:6], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_real_sizes_beat_every_lattice(problem: Conv2d, threads: int) -> None:
    """The optimum is no worse than a fine grid of real sizes, nor than any whole sizes near it."""
    problems = every_problem(context_of(problem, threads))
    assert problems
    for _, blocks in problems[:: max(1, len(problems) // 12)]:
        levels = Levels(blocks)
        found = solve(blocks)
        if not blocks.names:
            assert found == {}
            continue
        best = np.log([[found[name] for name in blocks.names]])
        assert levels.feasible(best)[0]
        line = np.linspace(0, 1, 13)
        grid = levels.low + np.array(list(product(line, repeat=len(levels.low)))) * (
            levels.high - levels.low
        )
        least = levels.seconds(grid[levels.feasible(grid)]).min()
        assert levels.seconds(best)[0] <= least * 1.005, (str(blocks.dims), found)


def whole_family(blocks: Blocks, sizes: dict[str, int]) -> space.Family:
    steps = list(blocks.steps)
    for name, at in zip(blocks.names, blocks.at, strict=True):
        steps[at] = sizes[name]
    context = blocks.context
    (way,) = space.ways_of(context.contraction, "avx512")
    tile = space.register_tiles(context.contraction, context.strides, way, 1)[0]
    return space.Family(
        blocks.dims, np.array([steps]), np.zeros(1, dtype=np.intp), (tile,),
        {d.name: d.extent for d in context.contraction.dims}, np.array([-1]), np.array([0]),
    )  # fmt: skip


@pytest.mark.exhaustive
def test_the_continuous_model_is_that_of_the_volumes() -> None:
    """Where sizes divide and every loop runs, both count the same bytes."""
    context = context_of(Conv2d(N=2, C=128, H=56, W=56, K=256, R=3, S=3, pad=1))
    contraction = context.contraction
    operands = (contraction.a, contraction.b, contraction.out)
    for shape, blocks in every_problem(context):
        if blocks.dims.count("k") < 2 or shape.units["p"] * 4 > 56:
            continue
        sizes = {"k": 128, "p": 28, "c": 64}
        into, held = Levels(blocks).bytes(np.log([[sizes[name] for name in blocks.names]]))
        family_nest = trip_counts(whole_family(blocks, sizes))
        depths = (len(blocks.dims), blocks.block, blocks.outer)
        for level, depth in enumerate(depths):
            inside = [footprint(op, family_nest.tiles[depth]) * 4 for op in operands]
            assert held[level, 0] == pytest.approx(sum(inside)[0])
            keeps = level > 0 or blocks.keeps_l1
            if not all(family_nest.running(at)[0] for at in range(len(blocks.dims))):
                continue
            moves = [
                bytes_moved(family_nest, op, size, depth)
                if keeps
                else bytes_without_reuse(family_nest, op, size)
                for op, size in zip(operands, inside, strict=True)
            ]
            assert into[level + 1, 0] - 1 == pytest.approx((moves[0] + moves[1] + 2 * moves[2])[0])


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(samples.convolutions(most=40, layouts=("nhwc", "nchw")), st.integers(1, 3), st.data())
def test_rounding_stays_feasible(problem: Conv2d, threads: int, data: st.DataObject) -> None:
    problems = every_problem(context_of(problem, threads))
    for shape, blocks in data.draw(st.lists(st.sampled_from(problems), max_size=3)):
        sizes = solve(blocks)
        found = tiles.round_tiles(blocks, sizes, shape.units)
        assert found, (problem, sizes)
        for whole in found:
            logs = np.log([[whole[name] for name in blocks.names]])
            assert not blocks.names or Levels(blocks).feasible(logs)[0]
            for name, least in zip(blocks.names, blocks.least, strict=True):
                extent = blocks.context.contraction.extent(name)
                assert least <= whole[name] <= extent
                assert whole[name] == extent or whole[name] % shape.units[name] == 0


def proposed(context: Context) -> list[tuple[Context, space.Family]]:
    return [
        (wide, family)
        for _, wide in view_contexts(context)
        for family in tiles.families(wide, 8, 2)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("layout", "threads"), [("nhwc", 2), ("nchw", 1)])
@pytest.mark.parametrize("problem", LAYERS, ids=str)
def test_every_proposal_can_be_generated(problem: Conv2d, layout: str, threads: int) -> None:
    problem = problem.with_(layout=layout)
    context = context_of(problem, threads)
    for wide, family in proposed(context):
        for index in range(len(family)):
            resolve(wide.contraction, wide.strides, family.schedule(index))
    for choice in choices(context, 3, ranker="tiles"):
        emit(problem, choice.schedule, threads)  # isl finds it legal


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(samples.convolutions(most=40, layouts=("nhwc", "nchw")), st.integers(1, 3))
def test_every_member_resolves(problem: Conv2d, threads: int) -> None:
    context = context_of(problem, threads)
    for wide, family in proposed(context):
        roles = {dim.name: dim.role for dim in wide.contraction.dims}
        for index in range(len(family)):
            schedule = family.schedule(index)
            resolve(wide.contraction, wide.strides, schedule)
            assert all(roles[loop.dim] not in ("k", "br") for loop in schedule.parallel)
            assert threads > 1 or not schedule.parallel


@pytest.mark.sampled
@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_users_nest_has_proposals_as_well(name: str, threads: int) -> None:
    problem = nest(name)
    context = context_of(problem, threads)
    choice = choices(context, 1, ranker="tiles")[0]
    emit(problem, choice.schedule, threads)
    assert 0 < choice.cost < 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_has_proposals(isa: str) -> None:
    target = replace(SMALL_CACHES, isa=ISAS[isa])
    context = samples.fixed_context(LAYERS[1], 2, target)
    kernel = find(choices(context, 1, ranker="tiles")[0].schedule.kernel)
    assert kernel.isa in ISAS[isa].chain


@pytest.mark.exhaustive
def test_large_problems_get_blocks_and_small_ones_none() -> None:
    large = Conv2d(N=1, C=512, H=56, W=56, K=512, R=1, S=1)
    found = choices(context_of(large), 1, ranker="tiles")[0].schedule
    loops = [loop.dim for loop in found.loops]
    assert len(loops) > len(set(loops)) or "c" in loops
    small = Conv2d(N=1, C=32, H=7, W=7, K=32, R=1, S=1)
    found = choices(context_of(small, small=False), 1, ranker="tiles")[0].schedule
    loops = [loop.dim for loop in found.loops]
    assert len(loops) == len(set(loops))


def test_no_blocks_means_none() -> None:
    context = context_of(LAYERS[0])
    for family in tiles.families(context, 2, 0):
        assert len(set(family.dims)) == len(family.dims) and "c" not in family.dims


@pytest.mark.exhaustive
def test_the_families_never_change() -> None:
    context = context_of(LAYERS[1], 2)
    texts = [
        [str(f.schedule(i)) for _, f in proposed(context) for i in range(len(f))] for _ in range(2)
    ]
    assert texts[0] == texts[1]


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(samples.convolutions(most=24, layouts=("nhwc", "nchw")), st.integers(1, 3), st.data())
def test_a_family_costs_what_its_members_do(
    problem: Conv2d, threads: int, data: st.DataObject
) -> None:
    context = context_of(problem, threads)
    family = data.draw(st.sampled_from(samples.families(context)))
    together = bottleneck(context, family)
    assert together.shape == (len(family),) and (together > 0).all()
    for index in data.draw(st.lists(st.integers(0, len(family) - 1), min_size=1, max_size=4)):
        schedule = family.schedule(index)
        if samples.fits(context, schedule):
            one = bottleneck(*as_family(context, schedule))
            assert one[0] == pytest.approx(together[index], rel=1e-9), str(schedule)
            assert costs(context, [schedule], bottleneck)[0] == pytest.approx(one[0])


def test_the_slowest_level_decides() -> None:
    """Whole panels of B stay in L1, or every call fetches its own."""
    context = context_of(Conv2d(N=1, C=64, H=28, W=28, K=64, R=1, S=1), small=False)
    kernel = "brgemm_avx512_f32_14x32"
    good, small, split = (
        costs(context, [parse(f"{loops} > {name}")], bottleneck)[0]
        for loops, name in (
            ("k:32 p q:14", kernel),
            ("k:16 p q:2", "brgemm_avx512_f32_2x16"),
            ("c:16 k:32 p q:14", kernel),
        )
    )
    assert small > 2 * good and split > good


@pytest.mark.exhaustive
@pytest.mark.parametrize("rate", ["peak", "l2", "l3", "memory", "copy_ns"])
def test_a_faster_machine_is_never_slower(rate: str) -> None:
    context = context_of(LAYERS[1])
    machine = context.machine
    if rate.endswith("_ns"):
        machine = machine.with_coefficients({rate: machine.coefficient(rate) / 2})
    else:
        machine = replace(machine, **{rate: 2 * getattr(machine, rate)})
    faster = replace(context, machine=machine)
    changed = False
    for family in samples.families(context):
        before, after = bottleneck(context, family), bottleneck(faster, family)
        assert (after <= before * (1 + 1e-12)).all()
        changed |= bool((after < before).any())
    assert changed


def test_what_nothing_fits_is_refused() -> None:
    context = context_of(LAYERS[0])
    assert RANKERS["tiles"].families is tiles.families
    with pytest.raises(UnsupportedError, match="expected one column dimension"):
        list(tiles.families(replace(context, contraction=without_columns(context)), 8, 2))


def without_columns(context: Context):  # type: ignore[no-untyped-def]
    dims = tuple(d for d in context.contraction.dims if d.role != "n")
    return replace(context.contraction, dims=dims)


@pytest.mark.perf
@pytest.mark.parametrize("layer", load("resnet50")[::4], ids=str)
def test_a_layer_takes_a_second_at_most(layer: Problem) -> None:
    model_of(layer)
    context = samples.fixed_context(layer)
    list(tiles.families(context, 8, 2))
    start = time.process_time()
    list(tiles.families(context, 8, 2))
    assert time.process_time() - start < 1
