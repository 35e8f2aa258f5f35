"""Sums in another order: without the factors that all their terms have, and in parts.

``sum(x / c)`` becomes ``sum(x) / c``: once a result instead of once a term, and it rounds less
often. Sums of whole numbers stay, as their quotients are rounded term by term.

Threads share the parts of long sums with few results, and short sums lose few digits. How a sum is
split depends on shapes alone, so that any number of threads gives the same bits.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from polysci.loop_ir.expressions import (
    Apply,
    Expr,
    Guard,
    Load,
    Reduce,
    axis,
    combine,
    loads,
    reductions,
    rewrite,
    shift,
    walk,
)
from polysci.loop_ir.functions import kind_of
from polysci.numerics.scalar_functions import EXACT, REAL
from polysci.program.passes.relations import iterators_in
from polysci.program.stages import LoopStage, Program, Stage, Value
from polysci.target.coefficients import prior_of

# Policies: every number of threads and every machine sum in the same order.
MOST_RESULTS: Final = 1 << 13  # more of them share out well as they are
PARTS: Final = 16  # of a sum at least: as many threads may have one each
MOST_TERMS: Final = 1024  # of one part: errors grow with them


@dataclass(frozen=True, slots=True)
class _Split:
    """Iterators of a reduction that number its parts; the last of them goes in blocks."""

    whole: tuple[tuple[str, int], ...]
    name: str
    blocks: int
    block: int
    extent: int
    rest: tuple[tuple[str, int], ...]

    @property
    def parts(self) -> tuple[int, ...]:
        return (*(extent for _, extent in self.whole), self.blocks)


def split_sums(program: Program) -> Program:
    """The program with long sums as sums of parts."""
    values, stages = dict(program.values), list[Stage]()
    for stage in program.stages:
        split = _split_of(stage, program) if isinstance(stage, LoopStage) else None
        if split is None:
            stages.append(stage)
        else:
            assert isinstance(stage, LoopStage)
            stages += _apart(stage, split, values)
    return replace(program, values=values).with_stages(tuple(stages))


def _split_of(stage: LoopStage, program: Program) -> _Split | None:
    """Return how to split the sum of a stage; None where that is of no use."""
    sums = reductions(stage.expr)
    results = program.values[stage.output].size
    if len(sums) != 1 or sums[0].function != "add" or sums[0].guards:
        return None
    if program.values[stage.output].dtype != "float32" or not 0 < results <= MOST_RESULTS:
        return None
    terms = prod(extent for _, extent in sums[0].over)
    if terms * results < prior_of("sum_terms") or terms < 4 * PARTS:
        return None
    if results >= PARTS and not _side_by_side(stage, sums[0], program):
        return None  # every thread reads its own
    return _split(sums[0].over, max(PARTS, -(-terms // MOST_TERMS)))


def _side_by_side(stage: LoopStage, total: Reduce, program: Program) -> bool:
    """Return whether neighbouring results are of neighbouring elements of what is read."""
    out = program.values[stage.output]
    last = (out.order or range(len(out.shape)))[-1]
    reduced = {name for name, _ in total.over}
    for load in loads(total.body):
        if not any(name in reduced for name in iterators_in(load)):
            continue  # the same in all terms
        value = program.values[load.tensor]
        fastest = (value.order or range(len(value.shape)))[-1] if value.shape else None
        if fastest is not None and load.index[fastest] == axis(last):
            return True
    return False


def _split(over: Sequence[tuple[str, int]], wanted: int) -> _Split:
    """Split into so many parts, or a few more; the first iterators are the slowest in memory."""
    parts = 1
    for at, (name, extent) in enumerate(over):
        if parts * extent >= wanted or at == len(over) - 1:
            blocks = min(extent, -(-wanted // parts))
            block = -(-extent // blocks)
            blocks = -(-extent // block)
            return _Split(tuple(over[:at]), name, blocks, block, extent, tuple(over[at + 1 :]))
        parts *= extent
    raise AssertionError("a reduction over nothing")


def _apart(stage: LoopStage, split: _Split, values: dict[str, Value]) -> list[Stage]:
    """The stage of the parts, and that of their sum."""
    (total,) = reductions(stage.expr)
    out, count = values[stage.output], len(split.parts)
    rank = len(out.shape)
    moved = {f"i{at}": axis(at + count) for at in range(rank)}
    moved |= {name: axis(at) for at, (name, _) in enumerate(split.whole)}
    place = combine({f"i{count - 1}": split.block, split.name: 1})
    guards = (Guard(place, split.extent),) if split.extent % split.block else ()
    over = ((split.name, split.block), *split.rest)
    body = Reduce("add", over, shift(total.body, moved | {split.name: place}), guards)
    order = tuple(at + count for at in out.order or range(rank))
    name = f"{stage.output}.parts"
    values[name] = Value(name, (*split.parts, *out.shape), "float64", (*range(count), *order))
    numbers = [(f"p{at}", size) for at, size in enumerate(split.parts)]
    index = [combine({number: 1}) for number, _ in numbers]
    index += [axis(at) for at in range(rank)]
    whole = Reduce("add", tuple(numbers), Load(name, tuple(index)))

    def change(part: Expr) -> Expr:
        return Apply("real", (whole,)) if part == total else part

    joined = replace(stage, expr=rewrite(stage.expr, change))
    return [LoopStage(f"{stage.name}, parts", name, body), joined]


def take_out_factors(program: Program) -> Program:
    """The program whose sums of real numbers have no factor that is the same in all terms."""
    dtypes = {name: value.dtype for name, value in program.values.items()}

    def change(part: Expr) -> Expr:
        whole = isinstance(part, Reduce) and part.function == "add"
        return _without_factors(part, dtypes) if whole and isinstance(part, Reduce) else part

    def change_stage(stage: Stage) -> Stage:
        if not isinstance(stage, LoopStage):
            return stage
        return replace(stage, expr=rewrite(stage.expr, change))

    return program.with_stages(tuple(map(change_stage, program.stages)))


def _without_factors(total: Reduce, dtypes: Mapping[str, str]) -> Expr:
    body, kind = total.body, kind_of(total.body, dtypes)
    if not isinstance(body, Apply) or kind not in (REAL, EXACT):
        return total
    if total.guards or not all(extent for _, extent in total.over):
        return total  # a sum of nothing is 0, whatever its terms would be divided by
    reduced, first = {name for name, _ in total.over}, body.arguments[0]
    at = 0  # of the argument that the terms differ in
    if body.function == "mul":
        at = int(not _depends(first, reduced))
    elif body.function != "div":
        return total
    rest, factor = body.arguments[at], body.arguments[1 - at]
    if _depends(factor, reduced) or not _depends(rest, reduced) or kind_of(rest, dtypes) != kind:
        return total
    inner = _without_factors(replace(total, body=rest), dtypes)
    arguments = (factor, inner) if at else (inner, factor)
    return replace(body, arguments=arguments)


def _depends(expr: Expr, names: Container[str]) -> bool:
    """Return whether an expression is another one in other turns of loops over ``names``."""
    return any(name in names for part in walk(expr) for name in iterators_in(part))
