"""Counts against enumeration: footprints, cache lines, refetches, levels and lower bounds."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost import Context, traffic
from polysci.numerics.affine import Affine
from polysci.numerics.arrays import LINE
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.polyhedral.contraction import Contraction, Operand
from polysci.polyhedral.footprint import (
    FLOAT,
    Count,
    LevelTraffic,
    compulsory_bytes,
    extent_of,
    fetches,
    footprint,
    line_bytes,
    load_bound_bytes,
    refetches,
    steps_of,
)
from polysci.polyhedral.footprint import traffic as level_traffic
from polysci.space.enumerate import Family
from polysci.target.target import KIB
from polysci.tune import model_of
from tests.support import samples

coefs = st.integers(-4, 4).filter(bool)
sizes = st.integers(1, 6)


def counts(tile: dict[str, int]) -> dict[str, Count]:
    return {dim: np.full(1, float(size)) for dim, size in tile.items()}


def touched(operand: Operand, tile: dict[str, int]) -> set[tuple[int, ...]]:
    """Elements of an operand that a tile at the origin touches, one by one."""
    found = set()
    for values in product(*(range(size) for size in tile.values())):
        at = dict(zip(tile, values, strict=True))
        found.add(
            tuple(
                sum(coef * at[dim] for dim, coef in affine.terms) + affine.const
                for affine in operand.index
            )
        )
    return found


@given(coefs, coefs, sizes, sizes, sizes)
def test_footprints_are_what_enumeration_finds(a: int, b: int, m: int, n: int, k: int) -> None:
    index = (Affine((("x", a), ("y", b)), 3), Affine((("z", 1),)))
    operand, tile = Operand("A", (999, 999), index), {"x": m, "y": n, "z": k, "w": 5}
    assert footprint(operand, counts(tile)) == [len(touched(operand, tile))]
    assert extent_of(operand, 0, counts(tile)) == [
        len({place[0] for place in touched(operand, tile)})
    ]


@given(st.lists(st.tuples(coefs, sizes), min_size=3, max_size=4))
def test_longer_subscripts_are_bounded_from_above(terms: list[tuple[int, int]]) -> None:
    index = (Affine(tuple((f"x{i}", coef) for i, (coef, _) in enumerate(terms))),)
    operand, tile = Operand("A", (9999,), index), {f"x{i}": n for i, (_, n) in enumerate(terms)}
    exact = len(touched(operand, tile))
    assert exact <= footprint(operand, counts(tile))[0] <= np.prod([n for _, n in terms])


@settings(max_examples=25)
@given(samples.convolutions(), st.data())
def test_footprints_of_convolutions(problem: Conv2d, data: st.DataObject) -> None:
    """Of a tile that reads inside the image: elsewhere the array's extent is the limit."""
    _, roles, _ = model_of(problem)
    tile = {dim.name: data.draw(st.integers(1, min(4, dim.extent))) for dim in roles.dims}
    for operand in (roles.a, roles.b, roles.out):
        wide = replace(operand, shape=tuple(extent + 99 for extent in operand.shape))
        assert footprint(wide, counts(tile)) == [len(touched(operand, tile))]
        clipped = footprint(operand, counts(tile))[0]
        assert clipped <= min(len(touched(operand, tile)), np.prod(operand.shape))


@pytest.mark.parametrize(
    ("tile", "wanted"),
    [
        ({"p": 4, "q": 4}, (2, 2)),  # every other row and column of the image
        ({"p": 4, "q": 4, "r": 3, "s": 3}, (1, 1)),  # taps lie between them
        ({"p": 1, "q": 4, "r": 1, "s": 3}, (1, 1)),  # one row
    ],
)
def test_steps_between_positions_that_a_tile_touches(
    tile: dict[str, int], wanted: tuple[int, int]
) -> None:
    _, roles, _ = model_of(Conv2d(N=1, C=64, H=13, W=13, K=16, R=3, S=3, stride=2))
    tile = {dim.name: tile.get(dim.name, 1) for dim in roles.dims}
    n, c, h, w = 13 * 13 * 64, 1, 13 * 64, 64
    assert steps_of(roles.a, [n, c, h, w], counts(tile)) == [n, c, wanted[0] * h, wanted[1] * w]


def test_counts_are_vectorised() -> None:
    _, roles, _ = model_of(Conv2d(N=1, C=8, H=9, W=9, K=8, R=3, S=3, stride=2))
    tile = {dim.name: np.array([1.0, 2.0, 4.0]) for dim in roles.dims}
    tile |= {"r": np.full(3, 3.0), "s": np.full(3, 3.0), "n": np.ones(3)}
    # 1, 2 and 4 output rows read 3, 5 and 9 input rows.
    assert footprint(roles.a, tile).tolist() == [9.0, 2 * 25.0, 4 * 81.0]


@pytest.mark.parametrize(
    ("shape", "tile", "lines"),
    [
        ((4, 64), (4, 64), 16),  # whole rows merge: 256 elements
        ((4, 64), (4, 16), 4),  # a line of each row
        ((4, 64), (4, 17), 8),  # two lines of each row
        ((4, 20), (2, 20), 3),  # 40 elements in a row
        ((4, 20), (1, 5), 1),
    ],
)
def test_cache_lines_under_a_tile(
    shape: tuple[int, int], tile: tuple[int, int], lines: int
) -> None:
    operand = Operand("A", shape, (Affine((("x", 1),)), Affine((("y", 1),))))
    got = line_bytes(operand, (shape[1], 1), counts({"x": tile[0], "y": tile[1]}))
    assert got == [lines * LINE]
    turned = Operand("A", shape[::-1], operand.index[::-1])
    assert line_bytes(turned, (1, shape[1]), counts({"x": tile[0], "y": tile[1]})) == got


def test_refetches_count_the_loops_around_the_last_that_indexes() -> None:
    operand = Operand("B", (8, 8), (Affine((("k", 1),)), Affine((("c", 1),))))
    trips = [np.full(1, float(n)) for n in (2, 3, 5, 7, 11)]
    found = [refetches(operand, "pkqcp", trips, depth)[0] for depth in range(6)]
    assert found == [count[0] for count in fetches([operand.uses(dim) for dim in "pkqcp"], trips)]
    assert found == [1, 1, 2 * 3, 2 * 3, 2 * 3 * 5 * 7, 2 * 3 * 5 * 7]


def test_a_level_moves_what_its_largest_nest_that_fits_moves() -> None:
    totals = [levels_of(size).total[0] for size in (40, 99, 100)]
    assert totals == pytest.approx([4 + 2 * (1 - 40 / 100), 4 + 2 * (1 - 99 / 100), 4])
    assert levels_of(50).working_set == [40]


@given(st.floats(1, 200), st.floats(1, 200))
def test_a_larger_cache_keeps_more(one: float, two: float) -> None:
    """From all that the innermost nest asks for down to what the whole nest touches."""
    small, large = (levels_of(size).total[0] for size in sorted((one, two)))
    assert 4 <= large <= small + 1e-9 <= 22 + 2e-9


def test_a_nest_twice_the_cache_keeps_half_of_what_it_uses_again() -> None:
    working, moved = [np.array([64.0]), np.array([1.0])], [(10.0, 0.0, 0.0), (30.0, 0.0, 0.0)]
    counts = [tuple(np.array([part]) for part in parts) for parts in moved]
    assert level_traffic(working, counts, 32).a == [10 + (30 - 10) / 2]


def levels_of(size: float) -> LevelTraffic:
    """Traffic of three nests, the innermost of 8 bytes, into a cache of so many."""
    working = [np.array([100.0]), np.array([40.0]), np.array([8.0])]
    bytes_moved = [(1, 1, 2), (3, 1, 2), (9, 9, 4)]
    moved = [tuple(np.array([float(part)]) for part in parts) for parts in bytes_moved]
    return level_traffic(working, moved, size)


def estimates(context: Context) -> Iterator[tuple[Family, Count]]:
    """Traffic into L1, L2 and L3 of the whole space: rows of an array, a family at a time."""
    for family in samples.families(context):
        levels = traffic(context, family).levels
        yield family, np.array([np.broadcast_to(level.total, len(family)) for level in levels])


LAYERS = [
    *load("resnet50")[::4],
    *(load("resnext50")[i] for i in (2, 9)),
    *(load("mobilenet_v2")[i] for i in (1, 4)),
    Conv2d(N=2, C=64, H=40, W=40, K=64, R=3, S=3, dilation=2, stride=2, layout="nchw"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_no_schedule_moves_less_than_the_lower_bound(layer: Conv2d) -> None:
    context = samples.fixed_context(layer)
    target, roles = context.target, context.contraction
    assert compulsory_bytes(roles) == FLOAT * elements(layer)
    for family, totals in estimates(context):
        for total, size in zip(totals, [cache.size for cache in target.caches], strict=True):
            least = load_bound_bytes(roles, size)
            worst = int(np.argmin(total))
            assert total[worst] >= least * (1 - 1e-9), str(family.schedule(worst))


def elements(layer: Conv2d) -> int:
    """Input that some tap reads, weights and output."""
    axes = zip(
        (layer.P, layer.Q), (layer.R, layer.S), (layer.H, layer.W),
        layer.stride, layer.dilation, layer.pad, strict=True,
    )  # fmt: skip
    found = layer.N * layer.C
    for outs, taps, size, stride, by, pad in axes:
        reached = {out * stride + tap * by - pad for out in range(outs) for tap in range(taps)}
        found *= len(reached & {*range(size)})
    return found + int(np.prod(layer.w_shape) + np.prod(layer.y_shape))


@pytest.mark.sampled
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_farther_levels_see_less_traffic(layer: Conv2d) -> None:
    context = samples.fixed_context(layer)
    for family, totals in estimates(context):
        for near, far in pairwise(totals):
            worst = int(np.argmax(far - near))
            assert far[worst] <= near[worst] * (1 + 1e-9), str(family.schedule(worst))


def test_the_bound_shrinks_with_the_cache_down_to_compulsory_traffic() -> None:
    roles: Contraction = samples.fixed_context(load("resnet50")[1]).contraction
    bounds = [load_bound_bytes(roles, size * KIB) for size in (1, 4, 64, 1024, 1 << 20)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1] == compulsory_bytes(roles)
