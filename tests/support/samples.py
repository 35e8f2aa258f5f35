"""What tests try things on: a fixed machine, hypothesis strategies, random schedules."""

import platform
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from polysci.cost import Context
from polysci.cost.rankers import competitive_ways
from polysci.cost.shortlist import view_contexts
from polysci.errors import PolysciError
from polysci.ops.convolutions import Conv2d
from polysci.space import enumerate as space
from polysci.space.group_views import GroupView
from polysci.space.resolve import resolve
from polysci.space.schedule import Schedule
from polysci.target.isas import ISAS
from polysci.target.machine import assume_rates
from polysci.target.target import KIB, MIB, Memory, Target
from polysci.tune import model_of

# The instruction sets that this machine's own compilers know; tests/aarch64.py has another one.
COMPILED = [isa.name for isa in ISAS.values() if isa.machine in ("", platform.machine())]

FIXED = Target(
    isa=ISAS["avx512"],
    features=ISAS["avx512"].features,
    memories=(
        Memory("L1", 48 * KIB, ways=12),
        Memory("L2", 2 * MIB, ways=16),
        Memory("L3", 8 * MIB, cores=0, ways=16),
    ),
    cores=2,
    model_name="a machine that never changes",
)


def resized(target: Target, **sizes: int) -> Target:
    """The target with caches of other sizes: ``resized(FIXED, L2=1 << 20)``."""
    caches = [
        replace(cache, size=sizes.get(cache.name, cache.size), ways=0) for cache in target.caches
    ]
    return replace(target, memories=tuple(caches))


def fixed_context(problem: Conv2d, threads: int = 1, target: Target = FIXED) -> Context:
    """A context that is the same on every machine: a given target with assumed rates."""
    _, roles, strides = model_of(problem)
    return Context(roles, strides, target, assume_rates(target), threads)


def families(context: Context, **limits: int) -> list[space.Family]:
    """The space of a context as a list."""
    roles, strides = context.contraction, context.strides
    return [
        family
        for way in competitive_ways(context)
        for family in space.schedules(roles, strides, way, context.threads, **limits)
    ]


def fits(context: Context, schedule: Schedule) -> bool:
    """Whether code can be generated; what cannot is left out of the choices as well."""
    try:
        resolve(context.contraction, context.strides, schedule)
    except PolysciError:
        return False
    return True


def members(
    context: Context, count: int, seed: int = 0, *, merge_groups: bool = True
) -> list[Schedule]:
    """``count`` different random schedules of the space, from as many families as possible."""
    pick, found = random.Random(seed), dict[str, Schedule]()
    every = (
        _families_by_view(context)
        if merge_groups
        else [(GroupView(), f) for f in families(context)]
    )
    for view, family in [each for _ in range(8) for each in pick.sample(every, len(every))]:
        schedule = family.schedule(pick.randrange(len(family)))
        schedule = view.outside(context.contraction, schedule)
        if str(schedule) not in found and fits(context, schedule):
            found[str(schedule)] = schedule
        if len(found) == count:
            break
    return list(found.values())


def _families_by_view(context: Context) -> list[tuple[GroupView, space.Family]]:
    """Families of the problem as it is, and of all ways to put several groups into one call."""
    return [(view, family) for view, wide in view_contexts(context) for family in families(wide)]


@st.composite
def convolutions(draw: st.DrawFn, most: int = 9, layouts: Sequence[str] = ("nhwc",)) -> Conv2d:
    """Small ones with every feature: strides, padding, dilation, groups, explicit outputs."""
    size = st.integers(1, most)
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    taps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dilation = draw(pair)
    spans = [(tap - 1) * by + 1 for tap, by in zip(taps, dilation, strict=True)]
    pad = tuple(draw(st.integers(0, span)) for span in spans)
    extents = [draw(size), draw(size)]
    least = [max(n, span - at) for n, span, at in zip(extents, spans, pad, strict=True)]
    return Conv2d(
        N=draw(st.integers(1, 2)), C=groups * draw(size), H=least[0], W=least[1],
        K=groups * draw(size), R=taps[0], S=taps[1], stride=draw(pair), pad=pad,
        dilation=dilation, groups=groups, layout=draw(st.sampled_from(layouts)),
        P=draw(st.none() | size), Q=draw(st.none() | size),
    )  # fmt: skip


def points(extents: dict[str, int], schedule: Schedule) -> Iterator[tuple[int, ...]]:
    """Every iteration of a box in the order that the text of a schedule means."""

    def walk(loops: tuple, low: dict[str, int], size: dict[str, int]) -> Iterator[tuple[int, ...]]:
        if not loops:
            yield from _box(low, size)
            return
        first, *rest = loops
        start, extent = low[first.dim], size[first.dim]
        for at in range(start, start + extent, first.step):
            within = min(first.step, start + extent - at)
            yield from walk(tuple(rest), low | {first.dim: at}, size | {first.dim: within})

    yield from walk(schedule.loops, dict.fromkeys(extents, 0), extents)


def _box(low: dict[str, int], size: dict[str, int]) -> Iterator[tuple[int, ...]]:
    if not low:
        yield ()
        return
    dim, *rest = low
    for at in range(low[dim], low[dim] + size[dim]):
        for point in _box({d: low[d] for d in rest}, {d: size[d] for d in rest}):
            yield (at, *point)
