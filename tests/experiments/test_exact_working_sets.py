"""Exact working sets: the published figures, and every one of random nests by enumeration."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from math import prod

import islpy as isl
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from experiments.exact_working_sets import (
    Order,
    WorkingSet,
    order_of_tiles,
    points,
    text_order,
    thread_share,
    working_sets,
)
from polysci.cost.published import CONVENTIONS
from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.contraction import contraction
from polysci.polyhedral.extract import extract
from polysci.polyhedral.scop import Scop
from polysci.space.schedule import Schedule, parse
from tests.support import nests

MATMUL = nests.c_text(
    "C[300][100], A[300][200], B[200][100]", "i:300 j:100 k:200", "C[i][j] += A[i][k] * B[k][j];"
)
BLOCKED = nests.c_text(
    "O[16][56][56][16], I[4][56][56][16], W[16][4][1][1][16][16]",
    "oj:56 kj:1 ki:1 ofm_t:16 ifm_t:4 oi:56 ofm:16 ifm:16",
    "O[ofm_t][oj][oi][ofm] += I[ifm_t][oj + kj][oi + ki][ifm] * W[ofm_t][ifm_t][kj][ki][ifm][ofm];",
)


def order_under(scop: Scop, schedule: Schedule, threads: int = 1) -> Order:
    return order_of_tiles(scop, schedule.tile_schedule(contraction(scop).extents), threads)


def of(text: str, convention: str = "published") -> tuple[WorkingSet, ...]:
    return working_sets(text_order(extract(text)), convention)


def by_loop(sets: tuple[WorkingSet, ...]) -> dict[str, tuple[int, int]]:
    return {each.loop: (each.least, each.most) for each in sets}


def test_the_published_figures_of_a_matrix_product() -> None:
    assert by_loop(of(MATMUL)) == {"k": (5, 399), "j": (403, 20099), "i": (20302, 109700)}
    inclusive = by_loop(of(MATMUL, "inclusive"))
    assert inclusive == {"k": (5, 401), "j": (403, 20101), "i": (20302, 109702)}


def test_the_published_figures_of_a_convolution() -> None:
    assert by_loop(of(BLOCKED)) == {
        "oj": (34306, 1001984),
        "ofm_t": (5506, 32384),
        "ifm_t": (2050, 4352),
        "oi": (290, 2016),
        "ofm": (35, 271),
        "ifm": (5, 31),
    }


def test_a_dependence_says_which_array_and_which_kinds() -> None:
    found = {each.loop: each for each in of(MATMUL)}
    assert found["k"].array == "C"
    assert found["k"].kinds == ("flow", "anti", "output", "input")
    assert (found["j"].array, found["j"].kinds) == ("A", ("input",))
    assert str(found["i"]) == "B by i (input): 20302 to 109700 elements"


def test_tile_loops_are_loops_of_their_own() -> None:
    """A schedule of the plain nest, and the same loops written out."""
    scop = extract(nests.c_text("C[12][8], A[12][6], B[6][8]", "i:12 j:8 k:6",
                                "C[i][j] += A[i][k] * B[k][j];"))  # fmt: skip
    plan = parse("j:4 i:6 k:3 i:2 > any")
    order = order_under(scop, plan)
    assert order.loops == ("j0", "i0", "k0", "i1", "i2", "j1", "k1")
    written = nests.c_text(
        "C[12][8], A[12][6], B[6][8]",
        "j0:2 i0:2 k0:2 i1:3 i2:2 j1:4 k1:3",
        "C[6*i0 + 2*i1 + i2][4*j0 + j1] += A[6*i0 + 2*i1 + i2][3*k0 + k1]"
        " * B[3*k0 + k1][4*j0 + j1];",
    )
    for convention in CONVENTIONS:
        assert working_sets(order, convention) == of(written, convention)


def test_tiles_may_be_cut_and_loops_start_anywhere() -> None:
    scop = extract(nests.TEXTS["loops from elsewhere"])
    plan = parse("j:16 i:10 > any")
    found = by_loop(working_sets(order_under(scop, plan)))
    # Carried by j0: three blocks of 16 columns of C and B, all of A.
    assert found["j0"] == (37 * 16 + 23 * 16 + 37 * 23 + 2, 37 * 48 + 23 * 48 + 37 * 23)
    assert found["i0"] == (10 * 16 + 23 * 16 + 10 * 23 + 2, 30 * 16 + 23 * 16 + 30 * 23)


def test_threads_reuse_inside_their_own_share() -> None:
    scop = extract(MATMUL)
    order = order_of_tiles(
        scop, parse("i* > any").tile_schedule(contraction(scop).extents), threads=2
    )
    (found,) = (each for each in working_sets(order) if each.loop == "i")
    # 149 of 150 rows of C and A, all of B; B is common to both threads.
    assert (found.most, found.most_shared) == (64700, 2 * 44700 + 20000)
    assert (found.least, found.least_shared) == (20302, 2 * 302 + 20000)


def test_more_threads_than_iterations_reuse_nothing_across_them() -> None:
    scop = extract(MATMUL)
    order = order_of_tiles(
        scop, parse("j:50* i:100* > any").tile_schedule(contraction(scop).extents), threads=8
    )
    assert [(share.size, share.parts) for share in order.shares] == [(1, 2), (1, 3)]
    assert not {"j0", "i0"} & {each.loop for each in working_sets(order)}


@given(st.lists(st.integers(1, 30), max_size=3), st.integers(1, 40))
def test_shares_cover_every_iteration(trips: list[int], threads: int) -> None:
    shares = thread_share(trips, threads)
    assert len(shares) == len(trips)
    assert prod(share.parts for share in shares) <= threads
    for share, trip in zip(shares, trips, strict=True):
        assert share.size * (share.parts - 1) < trip <= share.size * share.parts


def test_statements_at_different_depths() -> None:
    text = (
        "float x[4], A[4][5], b[5];\n#pragma scop\nfor (int i = 0; i < 4; ++i) {\n  x[i] = 0;\n"
        "  for (int j = 0; j < 5; ++j)\n    x[i] += A[i][j] * b[j];\n}\n#pragma endscop\n"
    )
    found = {(each.array, each.loop): (each.kinds, each.least, each.most) for each in of(text)}
    assert found == {
        ("b", "i"): (("input",), 13, 23),
        ("x", "position 1"): (("flow", "output"), 1, 1),  # its sources are the first statement's
        ("x", "j"): (("flow", "anti", "output", "input"), 5, 9),
    }
    inclusive = {(each.array, each.loop): (each.least, each.most) for each in of(text, "inclusive")}
    assert inclusive["x", "position 1"] == (3, 11)


def test_a_text_without_loops_or_reuse_has_no_working_sets() -> None:
    assert of("float a[4], b[4];\n#pragma scop\na[1] = b[2];\n#pragma endscop\n") == ()
    assert of(nests.c_text("a[9], b[9]", "i:9", "a[i] = b[i];")) == ()


def test_an_unknown_convention_is_named() -> None:
    with pytest.raises(SpecError, match="'exclusive': expected one of published, inclusive"):
        of(MATMUL, "exclusive")


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.integers(1, 5)), min_size=2,
             max_size=2),
    st.integers(0, 6),
)  # fmt: skip
def test_points_are_counted(axes: list[tuple[int, int, int]], shift: int) -> None:
    """Boxes, lattices, and unions of them that overlap."""
    bounds = " and ".join(
        f"{low} <= i{at} <= {low + step * count} and (i{at} - {low}) mod {step} = 0"
        for at, (low, step, count) in enumerate(axes)
    )
    one = isl.Set(f"{{ [i0, i1] : {bounds} }}")
    moved = one.apply(isl.Map(f"{{ [i0, i1] -> [i0 + {shift}, i1 + 1] }}"))
    triangle = isl.Set("{ [i0, i1] : 0 <= i0 <= i1 <= 5 }")
    for part in (one, one.union(moved), one.union(triangle), one.subtract(one)):
        assert points(part) == part.count_val().to_python()


@dataclass(frozen=True)
class Reference:
    """``array[sum coef * iterator + const]...`` of one statement."""

    array: str
    kind: str
    index: tuple[tuple[int, ...], ...]  # coefficients, then the constant, for each axis

    def element(self, at: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            sum(c * x for c, x in zip(row, at, strict=False)) + row[-1] for row in self.index
        )

    def __str__(self) -> str:
        rows = [
            " + ".join([*(f"{c}*i{d}" for d, c in enumerate(row[:-1]) if c), str(row[-1])])
            for row in self.index
        ]
        return self.array + "".join(f"[{row}]" for row in rows)


@dataclass(frozen=True)
class Program:
    """A perfect nest of one or two statements."""

    extents: tuple[int, ...]
    statements: tuple[tuple[Reference, ...], ...]  # the write comes first

    def __str__(self) -> str:
        loops = " ".join(f"i{d}:{extent}" for d, extent in enumerate(self.extents))
        body = " ".join(f"{w} = {' + '.join(map(str, reads))};" for w, *reads in self.statements)
        return nests.c_text("X[40][40], Y[40][40]", loops, f"{{ {body} }}")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    extents = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    row = st.tuples(*[st.sampled_from([0, 0, 1, 1, 2]) for _ in extents], st.integers(0, 2))

    def reference(kind: str) -> Reference:
        return Reference(draw(st.sampled_from("XY")), kind, (draw(row), draw(row)))

    statements = [
        (reference("write"), *(reference("read") for _ in range(draw(st.integers(1, 2)))))
        for _ in range(draw(st.integers(1, 2)))
    ]
    return Program(extents, tuple(statements))


KIND = {("write", "read"): "flow", ("read", "write"): "anti", ("write", "write"): "output",
        ("read", "read"): "input"}  # fmt: skip


def enumerated(program: Program, convention: str) -> list[tuple[object, ...]]:
    """Array, level, kinds, least and most, by the definition."""
    # Accesses of equal relations are one; its kinds are all of theirs.
    relations: dict[tuple[int, str, tuple], dict[str, dict]] = defaultdict(dict)
    elements: dict[tuple[int, ...], set] = defaultdict(set)
    maps: dict[tuple[int, Reference], dict[tuple[int, ...], tuple]] = defaultdict(dict)
    for at in product(*map(range, program.extents)):
        for position, references in enumerate(program.statements):
            time = tuple(x for x, extent in zip(at, program.extents, strict=True) if extent > 1)
            time += (position,) if len(program.statements) > 1 else ()
            for reference in references:
                maps[position, reference][time] = reference.element(at)
                elements[time].add((reference.array, reference.element(at)))
    for (position, reference), where in maps.items():
        key = position, reference.array, tuple(sorted(where.items()))
        relations[key][reference.kind] = where
    found: dict[tuple, set[str]] = defaultdict(set)
    for (one, one_kinds), (two, two_kinds) in product(relations.items(), repeat=2):
        if one[1] != two[1]:
            continue
        first_map, second_map = dict(one[2]), dict(two[2])
        carried: dict[int, list] = defaultdict(list)
        for (a, x), (b, y) in product(first_map.items(), second_map.items()):
            if x == y and a < b:
                level = next(i for i, pair in enumerate(zip(a, b, strict=True)) if len({*pair}) > 1)
                carried[level].append((a, b))
        for level, pairs in carried.items():
            sources = frozenset(a for a, _ in pairs)
            first = min(sources)
            targets = [b for a, b in pairs if a == first]
            key = one[1], level, first, min(targets), max(targets), sources
            found[key] |= {KIND[pair] for pair in product(one_kinds, two_kinds)}
    rows = []
    for (array, level, first, near, far, sources), kinds in found.items():
        among = sources if convention == "published" else elements
        sizes = [
            len(set().union(*(elements[t] for t in among if first <= t <= last)))
            for last in (near, far)
        ]
        rows.append((array, level, tuple(sorted(kinds)), *sizes))
    return sorted(rows)


@pytest.mark.exhaustive
@settings(max_examples=60)
@given(programs(), st.sampled_from(CONVENTIONS))
def test_working_sets_are_those_of_enumeration(program: Program, convention: str) -> None:
    try:
        sets = of(str(program), convention)
    except UnsupportedError:  # isl has a fault of its own in factors of such sets
        reject()
    rows = [
        (part.array, part.level, tuple(sorted(part.kinds)), part.least, part.most) for part in sets
    ]
    assert sorted(rows) == enumerated(program, convention)
