"""The published rankers: closed form against exact form, placement, costs, their experiment."""

import csv
import time
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.exact_working_sets import (
    WorkingSet,
    from_exact,
    order_of_tiles,
    text_order,
    thread_share,
    working_sets,
)
from polysci.cost import RANKERS, Context
from polysci.cost.published import (
    CONVENTIONS,
    LATENCIES,
    PLACEMENTS,
    WEIGHTS,
    Sizes,
    caches_of,
    optimistic,
    pessimistic,
    polydl,
    polyscientist,
    weigh,
    working_set_bytes,
)
from polysci.cost.shortlist import cost_of
from polysci.errors import SpecError
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.polyhedral.contraction import Contraction, contraction
from polysci.polyhedral.extract import extract
from polysci.polyhedral.scop import Scop
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.enumerate import Family
from polysci.space.schedule import Schedule, parse
from polysci.target.target import KIB, MIB, Memory
from polysci.tune import model_of
from tests.support import nests, samples
from tests.support.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "experiments" / "published.py"
CACHES = (32.0 * KIB, 1.0 * MIB, 39.0 * MIB)
HEADER = "Config" + 4 * (
    ",Version,GFLOPS,L1,L2,L3,Mem,L1DataSetSize,L2DataSetSize,L3DataSetSize,MemDataSetSize"
)


@st.composite
def schedules(draw: st.DrawFn, roles: Contraction, divide: bool = False) -> Schedule:
    """Random nested tile loops over any dimensions, some of the outermost in parallel."""
    current, loops = {d.name: d.extent for d in roles.dims}, list[Loop]()
    for _ in range(draw(st.integers(0, 5))):
        dim = draw(st.sampled_from(sorted(current)))
        outer = [loop.step for loop in loops if loop.dim == dim]
        whole = outer[-1] if outer else (current[dim] if divide else 0)
        steps = [s for s in range(1, current[dim]) if not whole or whole % s == 0]
        if steps:
            loops.append(Loop(dim, draw(st.sampled_from(steps))))
            current[dim] = loops[-1].step
    free = 0
    while free < len(loops) and loops[free].dim not in [loop.dim for loop in loops[:free]]:
        free += 1
    most = draw(st.integers(0, free))
    marked = [replace(loop, parallel=at < most) for at, loop in enumerate(loops)]
    return Schedule(tuple(marked), "any")


def alone(roles: Contraction, plan: Schedule) -> Family:
    """A family of one; the closed form asks for loops alone."""
    one = np.ones(1, dtype=np.intp)
    return Family(
        tuple(loop.dim for loop in plan.loops),
        np.array([[loop.step for loop in plan.loops]], dtype=np.int64).reshape(1, -1),
        0 * one, (), {d.name: d.extent for d in roles.dims}, -one, one * len(plan.parallel),
    )  # fmt: skip


Row = tuple[int, int, int, int]


def closed(roles: Contraction, plan: Schedule, threads: int, convention: str) -> list[Row]:
    sizes = working_set_bytes(roles, alone(roles, plan), threads, convention)
    parts = (sizes.least, sizes.most, sizes.least_shared, sizes.most_shared)
    rows = zip(*(part[0].astype(int).tolist() for part in parts), strict=True)
    return [row for row in rows if row[1]]


def dim_of(roles: Contraction, found: WorkingSet) -> str:
    """The dimension of the loop that carries a dependence: ``k`` of ``k1``."""
    return found.loop if found.loop in {d.name for d in roles.dims} else found.loop[:-1]


def exact(
    scop: Scop, roles: Contraction, plan: Schedule, threads: int, convention: str
) -> list[Row]:
    """By level, without the reuse of halos: of loops whose dimension indexes the array."""
    order = order_of_tiles(scop, plan.tile_schedule(roles.extents), threads)
    operands = {op.array: op for op in (roles.a, roles.b, roles.out)}

    found = [
        each
        for each in working_sets(order, convention)
        if not operands[each.array].uses(dim_of(roles, each))
    ]
    return [
        (each.least, each.most, each.least_shared, each.most_shared)
        for each in sorted(found, key=lambda each: each.level)
    ]


def even(roles: Contraction, plan: Schedule, threads: int) -> bool:
    """Whether all threads' shares are alike."""
    trips = [-(-roles.extent(loop.dim) // loop.step) for loop in plan.parallel]
    return all(
        share.size * share.parts * loop.step == roles.extent(loop.dim)
        for share, loop in zip(thread_share(trips, threads), plan.parallel, strict=True)
    )


def matmul(i: int, j: int, k: int) -> Scop:
    arrays = f"C[{i}][{j}], A[{i}][{k}], B[{k}][{j}]"
    return extract(nests.c_text(arrays, f"i:{i} j:{j} k:{k}", "C[i][j] += A[i][k] * B[k][j];"))


@pytest.mark.exhaustive
@settings(max_examples=25)
@given(
    st.tuples(*[st.integers(1, 12)] * 3), st.integers(1, 4), st.sampled_from(CONVENTIONS), st.data()
)
def test_the_closed_form_of_a_matrix_product_is_the_exact_one(
    extents: tuple[int, int, int], threads: int, convention: str, data: st.DataObject
) -> None:
    """With tiles that divide and with others, for one thread and for several."""
    scop = matmul(*extents)
    roles = contraction(scop)
    plan = data.draw(schedules(roles))
    one = closed(roles, plan, threads, convention)
    two = exact(scop, roles, plan, threads, convention)
    assert [row[:2] for row in one] == [row[:2] for row in two]
    for mine, true in zip(one, two, strict=True):
        assert all(a >= b for a, b in zip(mine, true, strict=True))
        assert mine == true or not even(roles, plan, threads)


@pytest.mark.parametrize("text", ["i:4 i:2", "k:2 i:4 j:4 i:2 j:2", "j:6 k:2 j:3", "i:8 j:4 i:4"])
def test_cut_tiles_inside_cut_tiles_are_counted_exactly(text: str) -> None:
    scop = matmul(11, 7, 5)
    roles, plan = contraction(scop), parse(f"{text} > any")
    for convention in CONVENTIONS:
        assert closed(roles, plan, 1, convention) == exact(scop, roles, plan, 1, convention)


@st.composite
def windows(draw: st.DrawFn) -> Conv2d:
    """Small convolutions without padding, with strides and dilations."""
    taps = draw(st.tuples(*[st.integers(1, 3)] * 2))
    by, apart = (draw(st.tuples(*[st.integers(1, 3)] * 2)) for _ in range(2))
    out = draw(st.tuples(*[st.integers(1, 6)] * 2))
    sizes = [(n - 1) * s + (r - 1) * d + 1 for n, s, r, d in zip(out, by, taps, apart, strict=True)]
    return Conv2d(
        N=draw(st.integers(1, 2)), C=draw(st.integers(1, 4)), H=sizes[0], W=sizes[1],
        K=draw(st.integers(2, 5)), R=taps[0], S=taps[1], stride=by, pad=0, dilation=apart,
    )  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=20)
@given(windows(), st.sampled_from(CONVENTIONS), st.data())
def test_the_closed_form_of_a_window_is_exact_as_published_and_bounds_the_rest(
    problem: Conv2d, convention: str, data: st.DataObject
) -> None:
    scop, roles, _ = model_of(problem)
    plan = data.draw(schedules(roles, divide=True))
    one = closed(roles, plan, 1, convention)
    two = exact(scop, roles, plan, 1, convention)
    if convention == "published":
        assert one == two
        return
    assert [row[0] for row in one] == [row[0] for row in two]
    whole = sum(np.prod(op.shape) for op in (roles.a, roles.b, roles.out))
    for mine, true in zip(one, two, strict=True):
        assert true[1] <= mine[1] <= whole


@pytest.mark.exhaustive
@settings(max_examples=20)
@given(samples.convolutions(most=6), st.data())
def test_padding_makes_nothing_larger(problem: Conv2d, data: st.DataObject) -> None:
    """The closed form takes guards as dropping nothing: an upper bound, loop by loop.

    Not of ``least``: with padding another source than the origin may be the first.
    """
    scop, roles, _ = model_of(problem)
    if scop.domain().is_empty():
        return
    plan = data.draw(schedules(roles))
    sizes = working_set_bytes(roles, alone(roles, plan))
    bound = {at: sizes.most[0, i] for i, at in enumerate(sizes.loops)}
    operands = {op.array: op for op in (roles.a, roles.b, roles.out)}
    order = order_of_tiles(scop, plan.tile_schedule(roles.extents))
    for found in working_sets(order):
        if not operands[found.array].uses(dim_of(roles, found)):
            assert found.least <= found.most <= bound[found.level], found


@pytest.mark.exhaustive
@settings(max_examples=15)
@given(samples.convolutions(most=24, layouts=("nhwc",)), st.integers(1, 3), st.data())
def test_a_family_costs_what_its_members_cost(
    problem: Conv2d, threads: int, data: st.DataObject
) -> None:
    context = samples.fixed_context(problem, threads)
    family = data.draw(st.sampled_from(samples.families(context)))
    for name in ("polyscientist", "polydl"):
        together = RANKERS[name].cost(context, family)
        assert together.shape == (len(family),) and np.isfinite(together).all()
        for index in data.draw(st.lists(st.integers(0, len(family) - 1), min_size=1, max_size=3)):
            plan = family.schedule(index)
            if samples.fits(context, plan):
                assert cost_of(context, plan, name) == pytest.approx(together[index])


def test_costs_weigh_bytes_by_level() -> None:
    context = samples.fixed_context(load("resnet50")[2])
    family = samples.families(context)[0]
    sizes = working_set_bytes(context.contraction, family)
    for placement in PLACEMENTS:
        for cost, weights in ((polyscientist, LATENCIES), (polydl, WEIGHTS)):
            levels = PLACEMENTS[placement](sizes, caches_of(context.target))
            total = sum(levels[:, at] * weights[at] for at in range(4))
            assert cost(context, family, placement=placement) == pytest.approx(total)


def table(rows: list[Row]) -> Sizes:
    parts = np.array(rows, dtype=np.float64).reshape(-1, 4)[None]
    return Sizes(*(parts[:, :, at] for at in range(4)), tuple(range(len(rows))))


def test_optimistic_sets_take_no_room() -> None:
    sizes = table([(2, 10, 2, 10), (9, 10, 9, 20), (50, 200, 50, 200), (0, 0, 0, 0)])
    assert optimistic(sizes, (40, 160, 400)).tolist() == [[4 * (2 + 10 + 9 + 10), 0, 200, 800]]


def test_pessimistic_sets_take_room_smallest_first() -> None:
    # Caches of 10, 40 and 100 elements. (2, 6) fits L1 whole. Of (3, 9) the least fits beside it,
    # the most goes to L2. (20, 35) fits neither L1 nor, beside 9, L2 but for its least; the most
    # goes to L3. (60, 300) finds room for its least there, its most is left for memory.
    sizes = table([(60, 300, 60, 300), (3, 9, 3, 9), (2, 6, 2, 6), (20, 35, 20, 35)])
    levels = pessimistic(sizes, (40, 160, 400)) / 4
    assert levels.tolist() == [[6 + 3, 9 + 20, 35 + 60, 300]]


def test_shared_caches_hold_all_threads() -> None:
    sizes = table([(1, 50, 2, 90)])
    for place in PLACEMENTS.values():
        assert place(sizes, (40, 160, 400)).tolist() in ([[4, 0, 360, 0]], [[4, 0, 360, 0]])
        assert place(sizes, (40, 160, 340)).tolist()[0][3] == 360


@given(
    st.lists(st.tuples(*[st.integers(1, 10**6)] * 2).map(sorted), min_size=1, max_size=9),
    st.sampled_from(sorted(PLACEMENTS)),
)
def test_endless_caches_keep_everything(pairs: list[list[int]], placement: str) -> None:
    sizes = table([(low, high, low, high) for low, high in pairs])
    largest = sum(high for _, high in pairs)
    expected = largest + sum(low for low, _ in pairs) * (placement == "optimistic")
    endless = (float("inf"),) * 3
    assert PLACEMENTS[placement](sizes, endless).tolist() == [[4 * expected, 0, 0, 0]]
    assert PLACEMENTS[placement](sizes, (0, 0, 0))[0][3] == 4 * expected


def test_an_unknown_placement_is_named() -> None:
    with pytest.raises(SpecError, match="'hopeful': expected one of pessimistic, optimistic"):
        weigh(table([]), CACHES, LATENCIES, "hopeful")
    context = samples.fixed_context(load("resnet50")[2])
    with pytest.raises(SpecError, match="'exclusive': expected one of published, inclusive"):
        working_set_bytes(context.contraction, samples.families(context)[0], 1, "exclusive")


def test_threads_have_their_own_caches_but_one_last_level() -> None:
    target = replace(
        samples.FIXED, cores=8,
        memories=(Memory("L1", 48 * KIB), Memory("L2", 2 * MIB, 2), Memory("L3", 8 * MIB, 4)),
    )  # fmt: skip
    assert caches_of(target) == (48 * KIB, 2 * MIB, 8 * MIB)
    assert caches_of(target, 8) == (48 * KIB, 1 * MIB, 16 * MIB)


# What the authors' program found for two of their layers, bytes at L1, L2, L3 and memory
# (PolyDL repository, scripts/example_conv2d_all_layers_N_1.csv), in blocks of 64 channels.
FOUND = {
    ("img:1 ofm_t:4 ifm_t:1 oj:56 kj:1 ki:1", 1, 56): (34592, 89608, 6475784, 0),
    ("img:1 oj:56 kj:1 ki:1 ofm_t:4 ifm_t:1", 1, 56): (34592, 333328, 4007936, 0),
    ("img:1 ofm_t:2 ifm_t:2 oj:28 kj:3 ki:3", 3, 28): (155940, 4285196, 0, 0),
    ("img:1 oj:28 kj:3 ki:3 ofm_t:2 ifm_t:2", 3, 28): (126240, 2774032, 1422336, 0),
}


@pytest.mark.parametrize(("loops", "taps", "size"), FOUND)
def test_the_published_program_found_the_same_sizes(loops: str, taps: int, size: int) -> None:
    padded = size + taps - 1
    arrays = f"O[1][4][{size}][{size}][64], I[1][4][{padded}][{padded}][64], W[4][4][3][3][64][64]"
    text = nests.c_text(
        arrays, f"{loops} oi:{size} ofm:64 ifm:64",
        "O[img][ofm_t][oj][oi][ofm] +="
        " I[img][ifm_t][oj + kj][oi + ki][ifm] * W[ofm_t][ifm_t][kj][ki][ifm][ofm];",
    )  # fmt: skip
    sizes = from_exact(working_sets(text_order(extract(text))))
    assert tuple(optimistic(sizes, CACHES)[0]) == FOUND[loops, taps, size]


@pytest.mark.exhaustive
def test_the_closed_form_works_on_families_of_every_network() -> None:
    for network in ("mobilenet_v2", "resnext50"):
        for layer in load(network)[::9]:
            context = samples.fixed_context(layer, 2)
            for family in samples.families(context)[::4]:
                cost = polyscientist(context, family)
                assert (cost >= 0).all() and len(cost) == len(family)


def started(*words: str | Path) -> CompletedProcess[str]:
    return run_script(SCRIPT, *words)


@pytest.mark.exhaustive
def test_the_experiment_ranks_a_file_of_that_form(tmp_path: Path) -> None:
    """Speeds are made up: the first order is best everywhere, so `constant` is perfect."""
    file, versions = tmp_path / "file.csv", ((2, 90), (3, 60), (4, 80), (5, 70))
    line = ",".join(f"{number},{gflops},5,2,3,0,34592,89608,6475784,0"
                    for number, gflops in versions)  # fmt: skip
    layers = [
        f"100 {size} {size} 64 {outputs} 1 1 0 0 1" for size in (7, 14) for outputs in (64, 128)
    ]
    file.write_text("\n".join([HEADER, *(f"{layer},{line}" for layer in layers)]) + "\n")
    done = started(file, "--output", tmp_path, "--quick")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "published-quick_summary.csv").open() as summary:
        rows = {row["ranker"]: row for row in csv.DictReader(summary)}
    assert len(rows) == 13 and {row["layers"] for row in rows.values()} == {"3"}
    assert (rows["constant"]["top1"], rows["constant"]["tau"]) == ("1", "1")
    assert float(rows["random"]["tau"]) == pytest.approx(0, abs=1e-9)
    assert float(rows["random"]["pairs"]) == pytest.approx(0.5)
    # The file gives all orders the same sizes: a tie everywhere, which the first wins.
    assert rows["polydl, its sizes"]["pairs"] == "0.5"
    assert "of 12 orders have the file's own bytes" in done.stdout
    with (tmp_path / "published-quick.csv").open() as every:
        assert len(list(csv.DictReader(every))) == 13 * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file: it is scripts/example_conv2d_all_layers_N_1.csv of the PolyDL"),
        ("layer,speed\na,b\n", "expected scripts/example_conv2d_all_layers_N_1.csv of the PolyDL"),
        (f"{HEADER}\n", "no layer in it"),
        (f"{HEADER}\n100 7 7 64 64 1 1 0 0 2,2,90,1,1,1,1,1,1,1,1\n", "stride 2"),
    ],
)
def test_the_experiment_says_which_file_it_wants(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "file.csv"
    if content is not None:
        file.write_text(content)
    done = started(file, "--output", tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_experiment_without_a_file_says_so(tmp_path: Path) -> None:
    done = started("--output", tmp_path)
    assert done.returncode == 2 and "FILE is missing: it is scripts/" in done.stderr


@pytest.mark.perf
def test_a_hundred_thousand_schedules_in_about_a_second() -> None:
    context: Context = samples.fixed_context(load("resnet50")[2])
    families = samples.families(context, tiles=14, blocks=3)
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        count = sum(len(polyscientist(context, family)) for family in families)
        best = max(best, count / (time.process_time() - start))
    assert best >= 80_000, f"{best:.0f} schedules a second"


@pytest.mark.perf
def test_half_a_second_a_schedule_exactly() -> None:
    worst = 0.0
    for seed, layer in enumerate(load("resnet50")):
        threads = 1 + seed % 2
        context = samples.fixed_context(layer, threads)
        scop, roles, _ = model_of(layer)
        for plan in samples.members(context, 2, seed):
            start = time.process_time()
            working_sets(order_of_tiles(scop, plan.tile_schedule(roles.extents), threads))
            worst = max(worst, time.process_time() - start)
    assert worst <= 0.5, f"{worst:.2f} s"
