"""Predicted seconds of tiles of groups, on devices that are described in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polysci.cost import Context
from polysci.lower.algorithm import SpaceLimits
from polysci.lower.choice import candidates
from polysci.lower.mapped.algorithm import MappedGroups, work_of
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.space.directives.copy import Copy
from polysci.space.schedule import parse
from polysci.target.isas import DEVICE_ISAS
from polysci.target.machine_file import read
from polysci.target.target import Memory

MACHINES = Path(__file__).parents[2] / "experiments" / "machines"
FILES = [
    path for path in sorted(MACHINES.glob("*.toml")) if read(path).target.isa.name in DEVICE_ISAS
]
LAYERS = (
    "mb1ic64ih56oc64kh3ph1",
    "mb1ic3ih32oc24oh16kh7ph3sh2",
    "mm:40x1000x300",
    "mb1ic8ih7oc8kh1",
    "g64mb1ic64ih56oc64kh3ph1",
)


def context_of(text: str, name: str, dtype: str = "f32") -> Context:
    _, roles, strides = model_of(parse_problem(text, "nhwc", dtype))
    file = read(MACHINES / f"{name}.toml")
    return Context(roles, strides, file.target, file.machine)


def best(text: str, name: str) -> str:
    context = context_of(text, name)
    (first, *_) = candidates(parse_problem(text), context, 1)
    return str(first.schedule)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_no_prediction_is_below_the_bound(path: Path) -> None:
    for text in LAYERS:
        context = context_of(text, path.stem)
        every = MappedGroups().candidates(parse_problem(text), context, 40, SpaceLimits())
        assert len(every) > 20
        assert [it.seconds for it in every] == sorted(it.seconds for it in every)
        for candidate in every:
            bound = MappedGroups().lower_bound(context, candidate.schedule)
            assert 0 < bound <= candidate.seconds * (1 + 1e-9)


def test_devices_of_several_makers_are_described() -> None:
    assert len(FILES) == 9
    assert {read(path).target.isa.language for path in FILES} == {"opencl", "cuda"}


@pytest.mark.exhaustive
def test_large_products_take_large_tiles() -> None:
    """128 x 128 with 8 x 8 an item is what libraries take on this card."""
    expected = "i:128@by j:128@bx k:16 copy(A,B)x2+4 i:8@ty j:8@tx > fma_cuda4_f32_8x8"
    assert best("mm:4096x4096x4096", "a100-108") == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "dtype"), [("a100-108", "bf16"), ("t4-40", "f16")])
def test_narrow_layers_take_tiles_of_warps(name: str, dtype: str) -> None:
    context = context_of("mb32ic256ih14oc256kh3ph1", name, dtype)
    problem = parse_problem("mb32ic256ih14oc256kh3ph1", "nhwc", dtype)
    every = [str(it.schedule) for it in candidates(problem, context, None)]
    assert f"_{dtype}_" in every[0] and "> mma_" in every[0]
    if name == "a100-108":  # what libraries take
        tile = "npq:128@by k:128@bx c:32 copy(A,B)x3|swizzle npq:64@ty"
        for columns in (32, 64):
            assert f"{tile} k:{columns}@tx > mma_cuda80_bf16_64x{columns}" in every


def test_a_unit_without_matrices_widens() -> None:
    context = context_of("mb1ic64ih14oc64kh3ph1", "t4-40", "bf16")
    problem = parse_problem("mb1ic64ih14oc64kh3ph1", "nhwc", "bf16")
    assert "> fma_cuda4_f32_" in str(candidates(problem, context, 1)[0].schedule)


def test_copies_ahead_hide_what_waits_cost() -> None:
    """Short steps of one group in a unit: the more of them are on their way, the sooner it ends."""
    context = context_of("mb1ic256ih14oc64kh3ph1", "a100-108", "bf16")
    problem, seconds = parse_problem("mb1ic256ih14oc64kh3ph1", "nhwc", "bf16"), list[float]()
    for stages in (2, 3, 4):
        tile = f"npq:32@by k:64@bx c:32 copy(A,B)x{stages}|swizzle npq:16@ty k:32@tx"
        run = parse(f"{tile} > mma_cuda80_bf16_16x32")
        seconds.append(MappedGroups().predict_seconds(problem, context, run))
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 1.5 * seconds[2]


@pytest.mark.exhaustive
def test_small_problems_take_tiles_that_fill_the_device() -> None:
    problem = parse_problem(LAYERS[0])
    for path in FILES:
        context = context_of(LAYERS[0], path.stem)
        (first, *_) = candidates(problem, context, 1)
        plan = MappedGroups().resolve(problem, first.schedule, 1)
        assert plan.groups >= context.target.cores


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["adreno640-2", "mali-g78-14"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_items_read_where_local_memory_gains_nothing(name: str, layout: str) -> None:
    """64 x 64 without local memory is what others found best on an Adreno."""
    problem = parse_problem(LAYERS[0], layout)
    _, roles, strides = model_of(problem)
    file = read(MACHINES / f"{name}.toml")
    context = Context(roles, strides, file.target, file.machine)
    (first, *rest) = candidates(problem, context, None)
    assert rest and not any(it.schedule.has(Copy) for it in (first, *rest))
    assert [loop.axis for loop in first.schedule.loops[:2]] == (
        ["by", "bx"] if layout == "nhwc" else ["bx", "by"]
    )
    local = Memory("local", 32 << 10, bandwidth=400.0, kind="local")
    fast = replace(file.target, memories=(*file.target.memories, local))
    best = candidates(problem, replace(context, target=fast), 1)[0]
    assert best.schedule.has(Copy)


@pytest.mark.exhaustive
def test_widths_are_those_of_the_machine() -> None:
    """Twice as many items in an instruction of the same rate, half as many instructions."""
    context = context_of("mm:512x512x512", "a100-108")
    wide = replace(context.target, unit=replace(context.target.unit, width=64, most=2))
    problem = parse_problem("mm:512x512x512")
    (schedule, *_) = candidates(problem, context, 1)
    work = work_of(MappedGroups().resolve(problem, schedule.schedule, 1), context.machine)
    many, few = (work.resident(replace(context, target=it)) for it in (context.target, wide))
    assert many > few == 2 // work.warps(wide.unit)


@pytest.mark.exhaustive
def test_a_group_must_fit_into_its_memory() -> None:
    context = context_of("mm:4096x4096x4096", "a100-108")
    local = context.target.memory("local")
    memories = tuple(
        replace(it, size=8 << 10) if it is local else it for it in context.target.memories
    )
    small = replace(context, target=replace(context.target, memories=memories))
    problem = parse_problem("mm:4096x4096x4096")
    for candidate in candidates(problem, small, 30):
        work = work_of(MappedGroups().resolve(problem, candidate.schedule, 1), small.machine)
        assert work.shared <= 8 << 10 and work.resident(small) >= 1


@pytest.mark.exhaustive
def test_more_compute_units_take_no_longer() -> None:
    problem, seconds = parse_problem(LAYERS[0]), list[float]()
    for cores in (1, 4, 16, 64):
        context = context_of(LAYERS[0], "a100-108")
        context = replace(context, target=replace(context.target, cores=cores))
        seconds.append(candidates(problem, context, 1)[0].seconds)
    assert seconds == sorted(seconds, reverse=True)
