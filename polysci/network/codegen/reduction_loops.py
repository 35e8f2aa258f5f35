"""Loops that reduce, as C: side by side along a vector where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from polysci.codegen import ctree as c
from polysci.codegen import openmp
from polysci.network.codegen.access import MemoryAccess, affine_text
from polysci.network.codegen.accumulators import (
    Accumulator,
    accumulator_of,
    bounds_of,
    place_in,
)
from polysci.network.codegen.loops import ROW, LoopWriter
from polysci.network.codegen.mask_loops import MaskLoopWriter
from polysci.network.ir.expressions import Guard, Reduce, loads, reductions
from polysci.network.ir.functions import PLACES, kind_of
from polysci.network.ir.stages import JointLoops, LoopStage, members_of

CHUNK = 64  # accumulators side by side: four vectors of AVX-512
WIDE = 512  # of long reductions, which read whole rows so that memory streams
LONG = 128  # terms of such
PAIRS = 16  # results side by side at least, of windows two elements apart
SHORTEST = 16  # loop whose values are reduced side by side
Bounds = Mapping[str, tuple[str, str]]  # iterator -> first value and end


@dataclass(slots=True)
class ReductionWriter(LoopWriter):
    """A stage with reductions, over the same iterators, on its way to C."""

    def body(self, names: Sequence[str]) -> c.Body:
        """The loops over iterators."""
        several = self.merge_reduced(self.reductions)
        if names and self.by_columns(names[-1]):
            return self.columns(several, names, names[-1])
        return self.scalars(several, names)

    def bodies(self) -> list[MemoryAccess]:
        """What reductions read."""
        return [
            self.accesses[load] for reduction in self.reductions for load in loads(reduction.body)
        ]

    def merge_reduced(self, several: Sequence[Reduce]) -> list[Reduce]:
        """The same over fewer iterators: neighbours that walk all tensors as one are one."""
        fixed = {name for form in self.forms() for name, _ in form.terms}
        every, whole = self.bodies(), several[0].over
        over = [item for item in whole if item[1] != 1 or item[0] in fixed]
        merged = over[:1] or [*whole[:1]]
        for name, size in over[1:]:
            outer, count = merged[-1]
            if {name, outer} & fixed or any(
                a.terms.get(outer, 0) != size * a.terms.get(name, 0) for a in every
            ):
                merged.append((name, size))
                continue
            merged[-1] = (name, count * size)
        gone = {name for name, _ in whole} - {name for name, _ in merged}
        for access in every:
            for name in gone:
                access.terms.pop(name, None)  # type: ignore[attr-defined]
        return [replace(reduction, over=tuple(merged)) for reduction in several]

    def by_columns(self, inner: str) -> bool:
        """Whether neighbouring results are reduced side by side in a vector."""
        if self.rows and inner == ROW:
            return False
        steps = {access.terms.get(inner, 0) for access in self.bodies()}
        least = 4 if steps <= {0, 1} else PAIRS if self.in_pairs(inner) else inf
        return self.out.terms.get(inner) == 1 and self.extents[inner] >= least

    def in_pairs(self, inner: str) -> bool:
        """Whether neighbours that read every second element are no faster one after the other.

        These are, as whole windows in registers, unless windows end at the border or have places.
        """
        steps = {access.terms.get(inner, 0) for access in self.bodies()}
        first = self.reductions[0]
        at_border = any(self.busy(guard.at).coef(inner) for guard in first.guards)
        with_places = any(reduction.function in PLACES for reduction in self.reductions)
        return steps == {2} and (at_border or with_places)

    def columns(self, several: Sequence[Reduce], names: Sequence[str], inner: str) -> c.Body:
        """Neighbouring results side by side, up to CHUNK of them."""
        extent, outer, at = self.extents[inner], names[:-1], {inner: "(j0 + j)"}
        chunk = WIDE if prod(size for _, size in several[0].over) >= LONG else CHUNK
        whole = extent <= chunk
        length = str(extent) if whole else f"ps_least({chunk}, {extent} - j0)"
        gathered = [sums.at("j") for sums in self.accumulators(several)]
        bounds, guards = bounds_of(several[0], {inner}, self.busy)
        within = dict[str, tuple[str, str]]()
        if self.in_pairs(inner):  # vectors of every second element know no conditions
            own = replace(several[0], over=((inner, extent),), guards=tuple(guards))
            within, guards = bounds_of(own, (), self.busy)
        step = self.vector(*self.add(several, gathered, guards, at), within=within.get(inner))
        if chunk == WIDE:  # GCC takes two rows at a time, and stores sums twice: a third as fast
            step = [c.Statement('__asm__ volatile("")'), *step]
        body = [
            *(line for sums in gathered for line in sums.declare(extent if whole else chunk)),
            c.Statement(f"const int64_t length = {length}"),
            *self.vector(*(line for sums in gathered for line in sums.start())),
            *self.reduce(several[0], bounds, step),
            *self.vector(*self.stores(at, gathered)),
        ]
        return self.share(outer, body, [("j0", extent, chunk)])

    def vector(self, *statements: str, within: tuple[str, str] | None = None) -> c.Body:
        """Statements for neighbouring results, or for those ``within`` bounds of all of them."""
        first, end = "0", "length"
        if within:
            first, end = f"ps_most(0, {within[0]} - j0)", f"ps_least(length, {within[1]} - j0)"
        body: c.Body = [*map(c.Statement, statements)]
        return [c.Line(openmp.SIMD), self.loop("j", end, body, first)]

    def scalars(self, several: Sequence[Reduce], names: Sequence[str]) -> c.Body:
        """One result after the other; the last loop is a vector's where all lies side by side."""
        bounds, guards = bounds_of(several[0], set(), self.busy)
        gathered, last = self.accumulators(several), self.last_of(several[0])
        if last and any(reduction.function != "add" for reduction in several):
            steps = self.lanes(several, bounds, guards, last)
            gathered = [sums.at("0") for sums in gathered]
        else:
            step: c.Body = [*map(c.Statement, self.add(several, gathered, guards, {}))]
            steps = [line for sums in gathered for line in sums.define()]
            steps += self.reduce(several[0], bounds, step, last=last, sums=gathered)
        body = [*steps, *map(c.Statement, self.stores({}, gathered))]
        return self.share(names, body) if names else self.alone(body)

    def lanes(
        self, several: Sequence[Reduce], bounds: Bounds, guards: Sequence[Guard], last: str
    ) -> c.Body:
        """Every so many neighbours of ``last`` side by side, then all of these as one."""
        extent, gathered = dict(several[0].over)[last], self.accumulators(several)
        width = min(CHUNK, 1 << extent.bit_length() - 1)
        many, first = ([sums.at(name) for sums in gathered] for name in ("j", "0"))
        whole, at = extent // width * width, {last: "(j0 + j)"}
        step = self.vector(*self.add(several, many, guards, at))
        parts: c.Body = [c.loop("int64_t j0 = 0", f"j0 < {whole}", f"j0 += {width}", c.Block(step))]
        if whole < extent:
            rest = self.add(several, first, guards, {})
            parts.append(self.loop(last, extent, [*map(c.Statement, rest)], whole))
        others = replace(several[0], over=tuple(
            (name, size) for name, size in several[0].over if name != last
        ), guards=())  # fmt: skip
        joined = zip(first, many, strict=True)
        join = [line for mine, sums in joined for line in mine.join(sums)]
        return [
            *(line for sums in gathered for line in sums.declare(width)),
            c.Statement(f"const int64_t length = {width}"),
            *self.vector(*(line for sums in many for line in sums.start())),
            *self.reduce(others, bounds, parts),
            self.loop("j", "length", [*map(c.Statement, join)], 1),
        ]

    def accumulators(self, several: Sequence[Reduce]) -> list[Accumulator]:
        """What reductions gather in."""
        pairs = enumerate(zip(self.members, several, strict=True))
        return [
            accumulator_of(
                reduction, kind_of(reduction.body, self.dtypes) or self.kind(member),
                str(at or ""),
            )
            for at, (member, reduction) in pairs
        ]  # fmt: skip

    def add(
        self, several: Sequence[Reduce], gathered: Sequence[Accumulator], guards: Sequence[Guard],
        names: Mapping[str, str],
    ) -> list[str]:  # fmt: skip
        """One more value of every reduction, where guards hold."""
        condition = self.conditions(guards, names) if guards else ""
        statements = list[str]()
        for reduction, sums in zip(several, gathered, strict=True):
            value = self.text(reduction.body, sums.kind, names)
            statements += sums.add(value, condition, affine_text(place_in(reduction), names))
        return statements

    def last_of(self, reduction: Reduce) -> str:
        """The iterator of reductions along which all that they read lies side by side."""
        shortest = 8 if reduction.function == "add" else SHORTEST
        good = [
            name for name, size in reduction.over
            if size >= shortest
            and all(a.terms.get(name, 0) in (0, 1) and not a.tables for a in self.bodies())
        ]  # fmt: skip
        guarded = {name for guard in reduction.guards for name, _ in guard.at.terms}
        return next((name for name in good if name not in guarded), "")

    def reduce(
        self, reduction: Reduce, bounds: Bounds, body: c.Body, *, last: str = "",
        sums: Sequence[Accumulator] = (),
    ) -> c.Body:  # fmt: skip
        """Loops over what is reduced, ``last`` innermost and a vector's."""
        over = sorted(reduction.over, key=lambda item: item[0] == last)
        for name, extent in reversed(over):
            low, high = bounds.get(name, ("0", str(extent)))
            added = ", ".join(total.result for total in sums)
            simd = [c.Line(openmp.SIMD_SUM.format(added))] if name == last else []
            body = [*simd, self.loop(name, high, body, low)]
        return body


def writer_of(stage: LoopStage | JointLoops, *, masks: bool = False) -> type[LoopWriter]:
    """What writes a loop: one that has masks, one that reduces, or one that does neither."""
    first = members_of(stage)[0]
    assert isinstance(first, LoopStage)
    plain = MaskLoopWriter if masks else LoopWriter
    return ReductionWriter if reductions(first.expr) else plain
