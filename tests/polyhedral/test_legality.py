"""Legality as isl decides it, against enumeration; and the emitted tiles against the domain."""

from dataclasses import replace
from itertools import pairwise

import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.cost import Context
from polysci.errors import IllegalScheduleError, SpecError
from polysci.lower.direct.algorithm import swapped_model_of
from polysci.lower.direct.loops import origins
from polysci.numerics.affine import Affine
from polysci.ops import parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.ops.model import model_of
from polysci.polyhedral import legality
from polysci.polyhedral.contraction import Contraction, Dim, Operand, contraction
from polysci.polyhedral.extract import extract
from polysci.polyhedral.scop import Scop
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import Swap
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule, parse
from tests.support import samples

KERNEL = "brgemm_avx512_f32_14x32"
CONV = Conv2d(N=2, C=6, H=5, W=6, K=8, R=3, S=2, pad=1)

MATMUL = """
void matmul(float C[M][N], const float A[M][K], const float B[K][N]) {{
#define M {0}
#define N {1}
#define K {2}
#pragma scop
  for (int i = 0; i < M; ++i) for (int j = 0; j < N; ++j) for (int x = 0; x < K; ++x)
    C[i][j] += A[i][x] * B[x][j];
#pragma endscop
}}
"""

# Each element needs its upper right neighbour: only orders with i outside j are right.
SKEWED = """
float A[9][9];
void f(void) {
#pragma scop
  for (int i = 1; i < 9; ++i) for (int j = 0; j < 8; ++j) A[i][j] = A[i - 1][j + 1] + 1.0f;
#pragma endscop
}
"""

sizes = st.integers(1, 7)


def of_roles(scop: Scop) -> tuple[Scop, Contraction]:
    return scop, contraction(scop)


def matmul(m: int, n: int, k: int) -> tuple[Scop, Contraction]:
    return of_roles(extract(MATMUL.format(m, n, k)))


def convolution(problem: Conv2d) -> tuple[Scop, Contraction]:
    scop, roles, _ = model_of(problem)
    return scop, roles


nests = st.builds(matmul, sizes, sizes, sizes) | st.builds(
    convolution, samples.convolutions(most=5)
)


def check(scop: Scop, roles: Contraction, schedule: Schedule) -> None:
    legality.check(scop, roles, schedule.tile_schedule(roles.extents))


@st.composite
def orders(draw: st.DrawFn, roles: Contraction) -> Schedule:
    """Any loops that nest, over any dimension, steps that do not divide included."""
    current, loops = roles.extents, list[Loop]()
    outer: dict[str, int] = {}
    for _ in range(draw(st.integers(0, 6))):
        dim = draw(st.sampled_from(sorted(current)))
        limit = current[dim]
        steps = [s for s in range(1, limit + 1) if outer.get(dim, s) % s == 0]
        step = draw(st.sampled_from(steps))
        current[dim], outer[dim] = step, step
        loops.append(Loop(dim, step))
    return Schedule(tuple(loops), KERNEL)


@pytest.mark.exhaustive
@settings(max_examples=20)
@given(st.data())
def test_any_order_of_a_contraction_is_legal(data: st.DataObject) -> None:
    scop, roles = data.draw(nests)
    check(scop, roles, data.draw(orders(roles)))


@pytest.mark.exhaustive
@settings(max_examples=20)
@given(st.data())
def test_the_time_of_a_point_is_its_place_in_the_loops(data: st.DataObject) -> None:
    _, roles = data.draw(nests)
    plan = data.draw(orders(roles))
    visited = list(samples.points(roles.extents, plan))
    assert len(set(visited)) == len(visited)
    time = isl.Map(f"{{ {plan.tile_schedule(roles.extents).time()} }}")
    zero = isl.Set(f"{{ [{', '.join('0' for _ in roles.dims)}] }}")
    assert visited[0] == (0,) * len(roles.dims)
    box = isl.Set(
        f"{{ [{', '.join(roles.extents)}] : "
        + " and ".join(f"0 <= {dim} < {extent}" for dim, extent in roles.extents.items())
        + " }"
    )
    assert box.count_val().to_python() == len(visited) and zero.is_subset(box)
    for before, after in list(pairwise(visited))[:: len(visited) // 6 + 1]:
        early, late = (time.intersect_domain(point(each)).range() for each in (before, after))
        assert early.lex_lt_set(late).domain().is_equal(early), (str(plan), before, after)


def point(at: tuple[int, ...]) -> isl.Set:
    return isl.Set(f"{{ [{', '.join(map(str, at))}] }}")


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(st.data())
def test_members_of_the_space_are_legal(data: st.DataObject) -> None:
    problem = data.draw(samples.convolutions(most=12, layouts=("nhwc", "nchw")))
    threads = data.draw(st.integers(1, 2))
    context = samples.fixed_context(problem, threads)
    scop, roles, _ = model_of(problem)
    for plan in samples.members(context, 3, data.draw(st.integers(0, 99))):
        taken = swapped_model_of(roles) if plan.has(Swap) else (scop, roles)
        check(*taken, plan)
        assert all(roles_of(taken[1])[loop.dim] in ("m", "n", "batch") for loop in plan.parallel)


def roles_of(roles: Contraction) -> dict[str, str]:
    return {dim.name: dim.role for dim in roles.dims}


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(st.data())
def test_register_tiles_cover_the_domain_once(data: st.DataObject) -> None:
    """The tiles that codegen hands to the AST: their points are the box, and none is in two."""
    problem = data.draw(samples.convolutions(most=12))
    context = samples.fixed_context(problem)
    seed = data.draw(st.integers(0, 99))
    for plan in samples.members(context, 2, seed, merge_groups=False):
        tiles_cover(context, plan)


def tiles_cover(context: Context, plan: Schedule) -> None:
    resolved = resolve(context.contraction, context.strides, plan)
    extents = resolved.contraction.extents
    order, names = resolved.tile_schedule, list(extents)
    starts = [f"{dim}_" for dim in order.looped]
    whole = " and ".join(f"0 <= {dim} < {extent}" for dim, extent in extents.items())
    box, union = isl.Set(f"{{ [{', '.join(names)}] : {whole} }}"), None
    count = 0
    for pieces, places in zip(resolved.classes(), order.tiles(origins(resolved)), strict=True):
        bounds = []
        for dim in names:
            low = f"{dim}_" if f"{dim}_" in starts else "0"
            size = pieces[dim].size if dim in pieces else extents[dim]
            bounds.append(f"{low} <= {dim} < {low} + {size}")
        text = f"{{ [{', '.join(starts)}] -> [{', '.join(names)}] : {' and '.join(bounds)} }}"
        reached = isl.Map(text).intersect_domain(places.reset_tuple_id())
        assert reached.reverse().is_single_valued(), f"{plan}: two tiles share a point"
        here = reached.range()
        count += here.count_val().to_python()
        union = here if union is None else union.union(here)
    assert union is not None and union.is_equal(box), plan
    assert count == box.count_val().to_python(), f"{plan}: kinds of tiles share a point"


@settings(max_examples=15)
@given(st.data())
def test_the_generated_loops_run_in_the_order_that_was_judged(data: st.DataObject) -> None:
    """The tree that becomes C sends every tile to the time that legality gives to its points."""
    problem = data.draw(samples.convolutions(most=12))
    context = samples.fixed_context(problem)
    extents = context.contraction.extents
    for schedule in samples.members(context, 2, data.draw(st.integers(0, 99)), merge_groups=False):
        plan = resolve(context.contraction, context.strides, schedule)
        order = plan.tile_schedule
        assert order == schedule.tile_schedule(extents)
        starts = ", ".join(f"{dim} - {dim} mod {order.tile[dim]}" for dim in order.looped)
        judged = isl.Map(f"{{ {order.time()} }}")
        judged = judged.project_out(isl.dim_type.out, len(order.loops), len(extents))
        for index, tiles in enumerate(order.tiles(origins(plan))):
            tree = replace(order, packings={}).tree(order.tiles(origins(plan)))
            generated = tree.get_map().intersect_domain(isl.UnionSet.from_set(tiles))
            if not order.loops:
                continue
            tile_of = isl.Map(f"{{ [{', '.join(extents)}] -> T{index}[{starts}] }}")
            points = tile_of.intersect_range(tiles)
            times = isl.UnionMap.from_map(points).apply_range(generated)
            expected = isl.UnionMap.from_map(judged.intersect_domain(points.domain()))
            assert times.is_equal(expected), str(schedule)


@settings(max_examples=15)
@given(st.data())
def test_a_counted_time_stands_for_the_point_that_has_it(data: st.DataObject) -> None:
    """Working sets count iterations where legality takes origins: one is the other's inverse."""
    _, roles = data.draw(nests)
    schedule = data.draw(orders(roles))
    order = schedule.tile_schedule(roles.extents)
    trips = [*order.trips, *order.tile.values()]
    point = order.point(range(len(trips)), [0] * len(order.extents), "S")
    bounds = " and ".join(f"0 <= t{i} < {trip}" for i, trip in enumerate(trips))
    counted = isl.Set(f"{{ [{', '.join(f't{i}' for i in range(len(trips)))}] : {bounds} }}")
    box = " and ".join(f"0 <= {dim} < {extent}" for dim, extent in order.extents.items())
    inside = isl.Set(f"{{ S[{', '.join(order.extents)}] : {box} }}")
    to_point = isl.Map.from_multi_aff(point).intersect_domain(counted).intersect_range(inside)
    assert to_point.is_injective() and to_point.range().is_equal(inside)
    time = isl.Map(f"{{ S{order.time()} }}")
    earlier = to_point.domain().lex_lt_set(to_point.domain())
    moved = earlier.apply_domain(to_point.apply_range(time)).apply_range(to_point.apply_range(time))
    late = isl.Map.lex_ge(moved.get_space().domain())
    assert moved.intersect(late).is_empty(), str(schedule)


@pytest.mark.parametrize("text", ["c:3*", "c*", "r*", "s*", "k:4* c:2*", "n* p* r*"])
def test_a_parallel_reduction_is_refused(text: str) -> None:
    scop, roles = convolution(CONV)
    plan = parse(f"{text} > {KERNEL}")
    with pytest.raises(IllegalScheduleError, match=r"parallel loop .* carries a dependence"):
        check(scop, roles, plan)
    check(scop, roles, parse(str(plan).replace("*", "")))


@pytest.mark.parametrize("text", ["n*", "k:4* n*", "n* p* q:3*", "k:5* p:2* q*"])
def test_parallel_loops_over_results_are_legal(text: str) -> None:
    scop, roles = convolution(CONV)
    check(scop, roles, parse(f"{text} c:2 r > {KERNEL}"))


def test_a_parallel_reduction_of_one_product_is_refused() -> None:
    """Guards leave each sum one product, and no dependence; but its first turn clears the sum."""
    scop, roles, _ = model_of(parse_problem("bwd_w conv1d mb1ic4iw1oc8ow5kw3pw3"))
    with pytest.raises(IllegalScheduleError, match=r"loop.* carries a dependence"):
        check(scop, roles, parse("q:2* c s > brgemm_portable_f32_1x8"))


def test_a_reduction_of_one_step_may_be_parallel() -> None:
    """It carries nothing: isl looks at the iterations, not at the name of the role."""
    scop, roles = convolution(Conv2d(N=1, C=1, H=3, W=3, K=4, R=1, S=1))
    check(scop, roles, parse(f"c* > {KERNEL}"))


@pytest.mark.parametrize(
    ("text", "message"), [("z:2", "no dimension 'z'"), ("k:99", "exceeds"), ("c:3 c:2", "multiple")]
)
def test_loops_that_do_not_nest_are_refused(text: str, message: str) -> None:
    scop, roles = convolution(CONV)
    with pytest.raises(SpecError, match=message):
        check(scop, roles, parse(f"{text} > {KERNEL}"))


def test_a_reversed_dependence_is_refused() -> None:
    scop = extract(SKEWED)
    index = (Affine((("i", 1),)), Affine((("j", 1),)))
    whole = Operand("A", (9, 9), index)
    roles = Contraction((Dim("i", 8, "m"), Dim("j", 8, "n")), whole, whole, whole, padded=False)
    for text in ("", "i", "i j", "i j:3", "i:1 j"):
        check(scop, roles, parse(f"{text} > {KERNEL}"))
    for text in ("j", "j i", "i:2 j", "j:4"):
        with pytest.raises(IllegalScheduleError, match="reverses a dependence"):
            check(scop, roles, parse(f"{text} > {KERNEL}"))
    with pytest.raises(IllegalScheduleError, match=r"parallel loop i\* carries a dependence"):
        check(scop, roles, parse(f"i* > {KERNEL}"))


def test_a_schedule_of_other_dimensions_covers_nothing() -> None:
    scop, roles = convolution(CONV)
    fewer = Contraction(roles.dims[:-1], roles.out, roles.a, roles.b, padded=True)
    with pytest.raises(IllegalScheduleError, match="does not visit every iteration exactly once"):
        check(scop, fewer, parse(f"k:4 > {KERNEL}"))
