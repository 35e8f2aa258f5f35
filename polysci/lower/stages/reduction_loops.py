"""Loops that reduce, as loop IR: side by side along a vector where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from polysci.loop_ir.expressions import Guard, Reduce, loads, reductions
from polysci.loop_ir.functions import PLACES
from polysci.loop_ir.index import (
    TRUE,
    ZERO,
    Index,
    IndexLike,
    Variable,
    as_index,
    divide,
    least,
    most,
)
from polysci.loop_ir.nodes import Address, Let, Named, Opaque, Prefetch, loop
from polysci.lower.stages.access import MemoryAccess, Places, affine_index
from polysci.lower.stages.accumulators import (
    MOST_TERMS,
    Accumulator,
    Statements,
    accumulator_of,
    bounds_of,
    place_in,
)
from polysci.lower.stages.loops import (
    LoopLowering,
    UpdateLowering,
    convert,
    rows_ahead,
    vector_loop,
)
from polysci.numerics.arrays import LINE, PAGE
from polysci.numerics.scalar_functions import EXACT, REAL
from polysci.program.stages import JointLoops, LoopStage, UpdateStage, members_of
from polysci.target.coefficients import prior_of

CHUNK = 64  # accumulators side by side: four vectors of AVX-512
WIDE = 512  # of long reductions, which read whole rows so that memory streams
LONG = 128  # terms of such
CHOSEN = 256  # of rows that data chooses: fewer would go through all these rows more often
PAIRS = 16  # results side by side at least, of windows two elements apart
SHORTEST = 16  # loop whose values are reduced side by side
LANES = 32  # sums side by side: four vectors of AVX2, whose additions need not wait for each other
LEAST_CHUNKS = 8  # of so many lanes, from which on long sums have parts of their own
FEW = 2  # sums at a time that so many lanes leave registers for
VECTOR = 8  # elements beyond L2: vectors twice as long cross lines if arrays begin inside one
AHEAD = PAGE  # bytes between what is read then and what is asked for
LANE = Variable("j")  # of results or values side by side
Bounds = Mapping[str, tuple[Index, Index]]  # iterator -> first value and end


@dataclass(slots=True)
class ReductionLowering(LoopLowering):
    """A stage with reductions, over the same iterators, on its way to loop IR."""

    bodies: list[MemoryAccess] = field(init=False)  # of what reductions read

    def body(self, names: Sequence[str]) -> Statements:
        """Return the loops over iterators."""
        self.bodies = [self.accesses[load] for it in self.reductions for load in loads(it.body)]
        several = self.merge_reduced(self.reductions)
        if names and self.by_columns(names[-1]):
            return self.columns(several, names, names[-1])
        return self.scalars(several, names)

    def merge_reduced(self, several: Sequence[Reduce]) -> list[Reduce]:
        """Return reductions whose neighbouring iterators are one where they walk all tensors so."""
        fixed, every, whole = self.fixed, self.bodies, several[0].over
        over = [item for item in whole if item[1] != 1 or item[0] in fixed]
        merged = over[:1] or [*whole[:1]]
        for name, size in over[1:]:
            outer, count = merged[-1]
            if (
                {name, outer} & fixed
                or name in self.ends
                or any(a.terms.get(outer, 0) != size * a.terms.get(name, 0) for a in every)
            ):
                merged.append((name, size))
                continue
            merged[-1] = (name, count * size)
            if outer in self.ends:
                self.ends[name] = size * self.ends.pop(outer)
        gone = {name for name, _ in whole} - {name for name, _ in merged}
        for access in every:
            for name in gone:
                access.terms.pop(name, None)  # type: ignore[attr-defined]
        return [replace(reduction, over=tuple(merged)) for reduction in several]

    def by_columns(self, inner: str) -> bool:
        """Return whether neighbouring results are reduced side by side in a vector."""
        if inner in self.rows:
            return False
        steps = {access.terms.get(inner, 0) for access in self.bodies}
        least = 4 if steps <= {0, 1} else PAIRS if self.in_pairs(inner) else inf
        return self.out.terms.get(inner) == 1 and self.extents[inner] >= least

    def in_pairs(self, inner: str) -> bool:
        """Return whether neighbours that read every second element are no slower side by side.

        One by one, windows are whole in registers, unless they end at the border or have places.
        """
        steps = {access.terms.get(inner, 0) for access in self.bodies}
        first = self.reductions[0]
        at_border = any(self.busy(guard.at).coef(inner) for guard in first.guards)
        with_places = any(reduction.function in PLACES for reduction in self.reductions)
        return steps == {2} and (at_border or with_places)

    def columns(self, several: Sequence[Reduce], names: Sequence[str], inner: str) -> Statements:
        """Neighbouring results side by side, up to CHUNK of them."""
        extent, outer = self.extents[inner], names[:-1]
        start = Variable("j0")
        at: Places = {inner: start + LANE}
        over = several[0].over
        inside = {**self.extents, **dict(over)}, (over[-1][0] if over else "", inner)
        asked = rows_ahead(self, *inside, (start, min(CHOSEN, extent)))
        chunk = CHOSEN if asked else WIDE if prod(size for _, size in over) >= LONG else CHUNK
        whole = extent <= chunk
        end = self.end(inner)
        length = as_index(end) if whole else least(chunk, end - start)
        gathered = [sums.at(LANE) for sums in self.accumulators(several)]
        bounds, guards = bounds_of(several[0], {inner}, self.busy)
        within: Bounds = {}
        if self.in_pairs(inner):  # vectors of every second element know no conditions
            own = replace(several[0], over=((inner, extent),), guards=tuple(guards))
            within, guards = bounds_of(own, (), self.busy)
        step = self.vector(self.add(several, gathered, guards, at), within.get(inner))
        if chunk == WIDE:  # GCC takes two rows at a time, and stores sums twice: a third as fast
            step = [Opaque(), *step]
        body = [
            *(line for sums in gathered for line in sums.declare(extent if whole else chunk)),
            Let("length", length),
            *self.vector([line for sums in gathered for line in sums.start()]),
            *self.reduce(several[0], bounds, [*asked, *step]),
            *self.vector(self.stores(at, gathered)),
        ]
        return self.share(outer, body, [("j0", end, chunk)])

    def vector(self, body: Statements, within: tuple[Index, Index] | None = None) -> Statements:
        """Return statements for neighbouring results, or for those ``within`` bounds of all."""
        start, length = Variable("j0"), Variable("length")
        if within:
            first, end = (bound - start for bound in within)
            return [self.loop("j", least(length, end), body, most(0, first), simd=True)]
        return [self.loop("j", length, body, simd=True)]

    def scalars(self, several: Sequence[Reduce], names: Sequence[str]) -> Statements:
        """Reduce one result after the other, in vectors where all that is read is contiguous."""
        bounds, guards = bounds_of(several[0], set(), self.busy)
        gathered = self.accumulators(several)
        if last := self.last_of(several[0]):
            steps = self.lanes(several, gathered, (bounds, guards), last)
            gathered = [sums.at(0) for sums in gathered]
        else:
            step = self.add(several, gathered, guards, {})
            if not self.runs_forwards(several[0]):
                step = [Opaque(), *step]
            steps = [line for sums in gathered for line in sums.define()]
            steps += self.reduce(several[0], bounds, step)
        body = [*steps, *self.stores({}, gathered)]
        return self.share(names, body) if names else self.alone(body)

    def runs_forwards(self, reduction: Reduce) -> bool:
        """Return whether no step of what is reduced goes back in memory.

        Where one does, GCC 12 sums wrong elements if it unrolls a short loop and makes vectors of
        the loop around that: its permutation of them is lost when it adds them in order.
        """
        names = [name for name, _ in reduction.over]
        return not any(
            access.tables or access.computed or any(access.terms.get(name, 0) < 0 for name in names)
            for access in self.bodies
        )

    def lanes(
        self, several: Sequence[Reduce], gathered: Sequence[Accumulator],
        within: tuple[Bounds, Sequence[Guard]], last: str,
    ) -> Statements:  # fmt: skip
        """Reduce every so many neighbours of ``last`` side by side, then all of these as one.

        The text says which terms meet in what order: all compilers and ISAs give the same bits.
        """
        extent, (bounds, guards) = dict(several[0].over)[last], within
        width = width_of(several, extent)
        whole, streamed = extent // width * width, self.reads_from_memory(several[0])
        lanes, end = VECTOR if streamed else 0, self.ends.get(last, as_index(extent))
        steps = divide(end, width) * width if last in self.ends else as_index(whole)

        def step(start: Index, count: IndexLike, sums: Sequence[Accumulator]) -> Statements:
            at, many = {last: start + LANE}, [acc.at(LANE) for acc in sums]
            return [vector_loop("j", count, self.add(several, many, guards, at), lanes)]

        ahead = self.ahead(several[0], last, width) if streamed else []
        parts = self.parts(several, gathered) if whole >= LEAST_CHUNKS * width else gathered
        main = [*ahead, *step(Variable("j0"), width, parts)]
        main = in_parts(steps, width, main, (gathered, parts), lanes)
        if whole < extent or last in self.ends:
            main += step(steps, end - steps, gathered)
        others = replace(several[0], over=tuple(
            (name, size) for name, size in several[0].over if name != last
        ), guards=())  # fmt: skip
        return [
            *start(gathered, width, lanes),
            *self.reduce(others, bounds, main),
            *join(gathered, width, lanes),
        ]

    def parts(
        self, several: Sequence[Reduce], gathered: Sequence[Accumulator]
    ) -> list[Accumulator]:
        """Return accumulators in f32 of few terms for those in double; the others as they are."""
        pairs = zip(several, gathered, strict=True)
        return [
            sums.part if sums.kind == EXACT != self.kind_of(reduction.body) else sums
            for reduction, sums in pairs
        ]

    def reads_from_memory(self, reduction: Reduce) -> bool:
        """Return whether the elements that are read come from beyond L2."""
        turns = prod(self.extents.values()) * prod(size for _, size in reduction.over)
        reduced = {name for name, _ in reduction.over}
        read = {
            load.tensor for load, it in self.accesses.items()
            if reduced & {*it.terms} and not self.is_inside(load.tensor)
        }  # fmt: skip
        return turns * sum(self.item_bytes(tensor) for tensor in read) >= prior_of("streamed_sum")

    def ahead(self, reduction: Reduce, last: str, count: int) -> Statements:
        """Asks for elements that a later turn reads, so many along ``last`` from ``j0`` on.

        They lie next in memory, in the next row too, unless rows are long anyway.
        """
        lines, extent = Statements(), dict(reduction.over)[last]
        outer = [name for name, _ in (*self.order, *reduction.over) if name != last][-1:]
        for load, access in self.accesses.items():
            size = self.item_bytes(load.tensor)
            runs_on = outer and access.terms.get(outer[0]) == extent
            if access.terms.get(last) != 1 or not (runs_on or extent * size >= 2 * AHEAD):
                continue
            at = access.index({last: Variable("j0")})
            starts = range(AHEAD // size, AHEAD // size + count, LINE // size)
            name = Named(self.pointer(load))
            lines += [Prefetch(Address(name, at + start)) for start in starts]
        return lines

    def accumulators(self, several: Sequence[Reduce]) -> list[Accumulator]:
        """Return the accumulators of reductions."""
        pairs = enumerate(zip(self.members, several, strict=True))
        return [
            accumulator_of(
                reduction, self.kind_of(reduction.body) or self.kind(member),
                str(at or ""),
            )
            for at, (member, reduction) in pairs
        ]  # fmt: skip

    def add(
        self, several: Sequence[Reduce], gathered: Sequence[Accumulator], guards: Sequence[Guard],
        places: Places,
    ) -> Statements:  # fmt: skip
        """Add one more value to every reduction, where guards hold."""
        condition = self.condition(guards, places)
        statements = Statements()
        for reduction, sums in zip(several, gathered, strict=True):
            value = self.value(reduction.body, sums.kind, places)
            statements += sums.add(value, condition, affine_index(place_in(reduction), places))
        return statements

    def last_of(self, reduction: Reduce) -> str:
        """The iterator of reductions along which all that they read lies side by side.

        Of places the innermost one alone: lanes meet values in the order of the loops.
        """
        shortest = 8 if reduction.function == "add" else SHORTEST
        places = any(other.function in PLACES for other in self.reductions)
        over = reduction.over[-1:] if places else reduction.over
        good = [
            name for name, size in over
            if size >= shortest
            and all(a.terms.get(name, 0) in (0, 1) and not a.tables for a in self.bodies)
        ]  # fmt: skip
        guarded = {name for guard in reduction.guards for name, _ in guard.at.terms}
        return next((name for name in good if name not in guarded), "")

    def reduce(self, reduction: Reduce, bounds: Bounds, body: Statements) -> Statements:
        """Loops over what is reduced."""
        for name, extent in reversed(reduction.over):
            low, high = bounds.get(name, (as_index(0), as_index(extent)))
            if name in self.ends:
                high = least(self.ends[name], high) if name in bounds else self.ends[name]
            body = [self.loop(name, high, body, low)]
        return body


def width_of(several: Sequence[Reduce], extent: int) -> int:
    """Return how many neighbours along a loop are side by side, a power of 2."""
    sums = all(reduction.function == "add" for reduction in several)
    most = CHUNK if not sums else LANES if len(several) <= FEW else LANES // 2
    return min(most, 1 << extent.bit_length() - 1)


def start(gathered: Sequence[Accumulator], width: int, lanes: int) -> Statements:
    """Define so many of each accumulator side by side, with their first values."""
    lines = [line for sums in gathered for line in sums.declare(width)]
    firsts = [line for sums in gathered for line in sums.at(LANE).start()]
    return [*lines, vector_loop("j", width, firsts, lanes)]


def in_parts(
    whole: Index, width: int, main: Statements,
    sums: tuple[Sequence[Accumulator], Sequence[Accumulator]], lanes: int,
) -> Statements:  # fmt: skip
    """A loop of steps ``main``; where these gather in others, MOST_TERMS at a time."""
    pairs = [(total, part) for total, part in zip(*sums, strict=True) if part != total]
    if not pairs:
        return [loop("j0", whole, *main, step=width)]
    first = Variable("b0")
    added = [
        line for total, part in pairs
        for line in total.at(LANE).add(convert(part.at(LANE).result, REAL, EXACT), TRUE, ZERO)
    ]  # fmt: skip
    body = [
        *start([part for _, part in pairs], width, lanes),
        loop("j0", least(first + MOST_TERMS, whole), *main, start=first, step=width),
        vector_loop("j", width, added, lanes),
    ]
    return [loop("b0", whole, *body, step=MOST_TERMS)]


def join(gathered: Sequence[Accumulator], width: int, lanes: int) -> Statements:
    """Join all lanes in the first: each of one half takes one of the other, until one is left.

    ``width`` is a power of 2.
    """
    lines = Statements()
    while width > 1:
        width //= 2
        pairs = [(sums.at(LANE), sums.at(LANE + width)) for sums in gathered]
        joined = [line for sums, other in pairs for line in sums.join(other)]
        lines.append(vector_loop("j", width, joined, lanes))
    return lines


def lowering_of(stage: LoopStage | JointLoops | UpdateStage) -> type[LoopLowering]:
    """Return the class that lowers a loop: an update, one that reduces, or one that does not."""
    first = members_of(stage)[0]
    if isinstance(first, UpdateStage):
        return UpdateLowering
    assert isinstance(first, LoopStage)
    return ReductionLowering if reductions(first.expr) else LoopLowering
