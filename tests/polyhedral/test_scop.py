"""Dependences: against brute-force enumeration, and against published facts of one matmul."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import islpy as isl
import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.polyhedral.extract import extract
from polysci.polyhedral.scop import KINDS, Scop, bound_operations

DATA = Path(__file__).parents[1] / "data"

Event = tuple[str, tuple[int, ...], list[str], list[str]]  # statement, iterators, reads, writes
Pairs = set[tuple[str, str]]


def nest(body: str, before: str) -> Scop:
    return extract(f"{before}\n#pragma scop\n{body}\n#pragma endscop\n")


def matmul_with_init() -> tuple[Scop, list[Event]]:
    events: list[Event] = []
    for i, j in product(range(3), range(2)):
        events.append(("S0", (i, j), [], [f"C{i},{j}"]))
        for k in range(3):
            reads = [f"C{i},{j}", f"A{i},{k}", f"B{k},{j}"]
            events.append(("S1", (i, j, k), reads, [f"C{i},{j}"]))
    text = """for (int i = 0; i < 3; ++i) for (int j = 0; j < 2; ++j) {
      C[i][j] = 0; for (int k = 0; k < 3; ++k) C[i][j] += A[i][k] * B[k][j]; }"""
    return nest(text, "float A[3][3], B[3][2], C[3][2];"), events


def stencil() -> tuple[Scop, list[Event]]:
    events: list[Event] = []
    for t in range(3):
        events += [("S0", (t, i), [f"A{i - 1}", f"A{i}"], [f"B{i}"]) for i in range(1, 5)]
        events += [("S1", (t, i), [f"B{i}"], [f"A{i}"]) for i in range(4, 0, -1)]
    text = """for (int t = 0; t < 3; ++t) {
      for (int i = 1; i < 5; ++i) B[i] = A[i - 1] + A[i];
      for (int i = 4; i > 0; --i) A[i] = B[i]; }"""
    return nest(text, "float A[5], B[5];"), events


def convolution() -> tuple[Scop, list[Event]]:
    events: list[Event] = []
    for k, p, c, r in product(range(2), range(3), range(2), range(3)):
        h = 2 * p + r - 1
        if 0 <= h < 5:
            reads = [f"O{k},{p}", f"I{c},{h}", f"W{k},{c},{r}"]
            events.append(("S0", (k, p, c, r), reads, [f"O{k},{p}"]))
    text = """for (int k = 0; k < 2; ++k) for (int p = 0; p < 3; ++p)
      for (int c = 0; c < 2; ++c) for (int r = 0; r < 3; ++r)
        if (2 * p + r - 1 >= 0 && 2 * p + r - 1 < 5)
          O[k][p] = O[k][p] + I[c][2 * p + r - 1] * W[k][c][r];"""
    return nest(text, "float O[2][3], I[2][5], W[2][2][3];"), events


NESTS = (matmul_with_init, stencil, convolution)
ENDS = {"flow": (3, 2), "anti": (2, 3), "output": (3, 3), "input": (2, 2)}


def all_pairs(events: list[Event], kind: str) -> Pairs:
    source, sink = ENDS[kind]
    return {
        (label(first), label(second))
        for at, second in enumerate(events)
        for first in events[:at]
        if set(first[source]) & set(second[sink])
    }


def label(event: Event) -> str:
    return f"{event[0]}{list(event[1])}"


def pairs_of(union: isl.UnionMap) -> Pairs:
    found: Pairs = set()
    for relation in maps(union):
        names = [relation.get_tuple_name(end) for end in (isl.dim_type.in_, isl.dim_type.out)]
        depth = relation.dim(isl.dim_type.in_)
        for point in points(relation.wrap()):
            found.add((f"{names[0]}{point[:depth]}", f"{names[1]}{point[depth:]}"))
    return found


def maps(union: isl.UnionMap) -> list[isl.Map]:
    found: list[isl.Map] = []
    union.foreach_map(found.append)
    return found


def points(domain: isl.Set) -> list[list[int]]:
    found: list[list[int]] = []
    dims = range(domain.dim(isl.dim_type.set))
    domain.foreach_point(
        lambda p: found.append(
            [p.get_coordinate_val(isl.dim_type.set, dim).to_python() for dim in dims]
        )
    )
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("example", NESTS)
def test_dependences_equal_enumeration(
    example: Callable[[], tuple[Scop, list[Event]]], kind: str
) -> None:
    scop, events = example()
    assert pairs_of(scop.dependences(kind)) == all_pairs(events, kind)


def test_reduction_dependences_are_what_a_reduction_may_reorder() -> None:
    scop, events = matmul_with_init()
    reduction = pairs_of(scop.reduction_dependences())
    own = [event for event in events if event[0] == "S1"]
    for kind in ("flow", "anti", "output"):
        assert reduction == {(a, b) for a, b in all_pairs(own, kind) if a[:2] == b[:2] == "S1"}
    left = scop.dependences("flow").subtract(scop.reduction_dependences())
    assert left.is_equal(
        isl.UnionMap("{ S0[i, j] -> S1[i, j, k] : 0 <= i < 3 and 0 <= j < 2 and 0 <= k < 3 }")
    )


def test_what_is_no_reduction_keeps_its_dependences() -> None:
    scop, _ = stencil()
    assert scop.reduction_dependences().is_empty()
    assert not scop.dependences("flow").is_empty()


def test_a_convolution_only_accumulates() -> None:
    scop = extract((DATA / "conv2d.c").read_text())
    for kind in ("flow", "anti", "output"):
        assert scop.dependences(kind).is_equal(scop.reduction_dependences())
    assert not scop.dependences("input").is_empty()


def carried(scop: Scop) -> Iterator[tuple[int, isl.BasicMap]]:
    """Every basic map of every dependence with the position of the loop that carries it."""
    for kind in KINDS:
        for relation in maps(scop.dependences(kind)):
            for basic in relation.get_basic_maps():
                first = basic.deltas().lexmin().sample_point()
                dims = range(basic.dim(isl.dim_type.in_))
                moves = [first.get_coordinate_val(isl.dim_type.set, d).to_python() for d in dims]
                yield next(d for d in dims if moves[d]), basic


def working_set(scop: Scop, basic: isl.BasicMap, which: str) -> int:
    """Elements touched from the first source to its nearest or furthest target.

    As PolyDL (Tavarageri et al., 2021) counts them: among the sources of the dependence only.
    """
    sources = isl.Map.from_basic_map(basic).domain()
    first = sources.lexmin()
    targets = isl.Map.from_basic_map(basic).intersect_domain(first).range()
    last = targets.lexmin() if which == "min" else targets.lexmax()
    space = sources.get_space()
    between = sources.intersect(isl.Map.lex_ge(space).intersect_range(first).domain())
    between = between.intersect(isl.Map.lex_le(space).intersect_range(last).domain())
    touched = isl.UnionSet.from_set(between).apply(scop.reads().union(scop.writes()))
    total = 0
    elements: list[isl.Set] = []
    touched.foreach_set(elements.append)
    for part in elements:
        total += part.count_val().to_python()
    return total


def test_published_working_sets_of_a_matmul() -> None:
    scop = nest(
        "for (int i = 0; i < 300; ++i) for (int j = 0; j < 100; ++j)"
        " for (int k = 0; k < 200; ++k) C[i][j] += A[i][k] * B[k][j];",
        "float A[300][200], B[200][100], C[300][100];",
    )
    sizes = {
        (dim, which): working_set(scop, basic, which)
        for dim, basic in carried(scop)
        for which in ("min", "max")
    }
    assert sizes == {
        (2, "min"): 5,
        (2, "max"): 399,
        (1, "min"): 403,
        (1, "max"): 20099,
        (0, "min"): 20302,
        (0, "max"): 109700,
    }


def test_unknown_kind_and_array() -> None:
    scop, _ = stencil()
    with pytest.raises(SpecError, match="the kinds are flow, anti, output, input"):
        scop.dependences("raw")
    with pytest.raises(SpecError, match="has no array 'Z'"):
        scop.array("Z")


def test_bounded_stops_isl_and_leaves_it_usable() -> None:
    scop, _ = matmul_with_init()
    with (
        pytest.raises(UnsupportedError, match="a test: isl gave up within 100 operations"),
        bound_operations("a test", 100),
    ):
        scop.reads().union(scop.writes()).reverse().coalesce().is_injective()
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0
    assert not scop.dependences("flow").is_empty()


def test_threads_take_turns_with_isls_counter() -> None:
    inside, both, left = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with bound_operations("the first", 1000):
            inside.set()
            both.wait(0.2)  # time for the second to come in, were it let in
        left.set()

    def second() -> None:
        inside.wait()
        with bound_operations("the second", 2000):
            both.set()
            left.wait()

    with ThreadPoolExecutor(2) as pool:
        for one in (pool.submit(first), pool.submit(second)):
            one.result()
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0
