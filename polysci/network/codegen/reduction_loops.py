"""Loops that reduce, as C: side by side along a vector where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polysci.codegen import ctree as c
from polysci.codegen import openmp
from polysci.network.codegen.access import affine_text
from polysci.network.codegen.accumulators import (
    Accumulator,
    accumulator_of,
    bounds_of,
    place_in,
)
from polysci.network.codegen.loops import ROW, LoopWriter
from polysci.network.ir.expressions import Guard, Reduce, loads, reductions
from polysci.network.ir.functions import kind_of

CHUNK = 64  # accumulators side by side: four vectors of AVX-512
WIDE = 512  # of long reductions, which read whole rows so that memory streams
LONG = 128  # terms of such
SHORTEST = 16  # loop whose values are reduced side by side


@dataclass(slots=True)
class ReductionWriter(LoopWriter):
    """A stage with a reduction on its way to C."""

    def body(self, names: Sequence[str]) -> c.Body:
        """The loops over iterators."""
        reduction = self.merge_reduced(reductions(self.stage.expr)[0])
        if names and self.by_columns(reduction, names[-1]):
            return self.columns(reduction, names, names[-1])
        return self.scalars(reduction, names)

    def merge_reduced(self, reduction: Reduce) -> Reduce:
        """The same over fewer iterators: neighbours that walk all tensors as one are one."""
        fixed = {name for form in self.forms() for name, _ in form.terms}
        every = [self.accesses[load] for load in loads(reduction.body)]
        over = [item for item in reduction.over if item[1] > 1 or item[0] in fixed]
        merged = over[:1] or [*reduction.over[:1]]
        for name, size in over[1:]:
            outer, count = merged[-1]
            if {name, outer} & fixed or any(
                a.terms.get(outer, 0) != size * a.terms.get(name, 0) for a in every
            ):
                merged.append((name, size))
                continue
            merged[-1] = (name, count * size)
        gone = {name for name, _ in reduction.over} - {name for name, _ in merged}
        for access in every:
            for name in gone:
                access.terms.pop(name, None)  # type: ignore[attr-defined]
        return replace(reduction, over=tuple(merged))

    def by_columns(self, reduction: Reduce, inner: str) -> bool:
        """Whether neighbouring results are reduced side by side in a vector."""
        if self.rows and inner == ROW:
            return False
        steps = [self.accesses[load].terms.get(inner, 0) for load in loads(reduction.body)]
        return self.extents[inner] >= 4 and self.out.terms.get(inner) == 1 and {*steps} <= {0, 1}

    def columns(self, reduction: Reduce, names: Sequence[str], inner: str) -> c.Body:
        """Neighbouring results side by side, up to CHUNK of them."""
        extent, outer, at = self.extents[inner], names[:-1], {inner: "(j0 + j)"}
        chunk = WIDE if prod(size for _, size in reduction.over) >= LONG else CHUNK
        whole = extent <= chunk
        length = str(extent) if whole else f"ps_least({chunk}, {extent} - j0)"
        gathered = self.accumulator(reduction)
        result = self.convert_result(self.text(self.stage.expr, self.kind, at, gathered.at("j")))
        bounds, guards = bounds_of(reduction, {inner}, self.busy)
        step = self.vector(*self.add(reduction, gathered.at("j"), guards, at))
        if chunk == WIDE:  # GCC takes two rows at a time, and stores sums twice: a third as fast
            step = [c.Statement('__asm__ volatile("")'), *step]
        body = [
            *gathered.declare(extent if whole else chunk),
            c.Statement(f"const int64_t length = {length}"),
            *self.vector(*gathered.at("j").start()),
            *self.reduce(reduction, bounds, step),
            *self.vector(f"y[{self.out.text(at)}] = {result}"),
        ]
        return self.share(outer, body, [("j0", extent, chunk)])

    def vector(self, *statements: str) -> c.Body:
        return [c.Line(openmp.SIMD), self.loop("j", "length", [*map(c.Statement, statements)])]

    def scalars(self, reduction: Reduce, names: Sequence[str]) -> c.Body:
        """One result after the other; the last loop is a vector's where all lies side by side."""
        bounds, guards = bounds_of(reduction, set(), self.busy)
        gathered, last = self.accumulator(reduction), self.last_of(reduction)
        if last and reduction.function != "add":
            steps = self.lanes(reduction, bounds, guards, last)
            gathered = gathered.at("0")
        else:
            step: c.Body = [*map(c.Statement, self.add(reduction, gathered, guards, {}))]
            steps = [*gathered.define(), *self.reduce(reduction, bounds, step, last=last)]
        result = self.convert_result(self.text(self.stage.expr, self.kind, {}, gathered))
        body = [*steps, c.Statement(f"y[{self.out.text({})}] = {result}")]
        return self.share(names, body) if names else self.alone(body)

    def lanes(
        self,
        reduction: Reduce,
        bounds: Mapping[str, tuple[str, str]],
        guards: Sequence[Guard],
        last: str,
    ) -> c.Body:
        """Every so many neighbours of ``last`` side by side, then all of these as one."""
        extent, gathered = dict(reduction.over)[last], self.accumulator(reduction)
        width = min(CHUNK, 1 << extent.bit_length() - 1)
        many, whole, at = gathered.at("j"), extent // width * width, {last: "(j0 + j)"}
        step = self.vector(*self.add(reduction, many, guards, at))
        parts: c.Body = [c.loop("int64_t j0 = 0", f"j0 < {whole}", f"j0 += {width}", c.Block(step))]
        if whole < extent:
            rest = self.add(reduction, gathered.at("0"), guards, {})
            parts.append(self.loop(last, extent, [*map(c.Statement, rest)], whole))
        others = Reduce(reduction.function, tuple(
            (name, size) for name, size in reduction.over if name != last
        ), reduction.body)  # fmt: skip
        join: c.Body = [*map(c.Statement, gathered.at("0").join(many))]
        return [
            *gathered.declare(width),
            c.Statement(f"const int64_t length = {width}"),
            *self.vector(*many.start()),
            *self.reduce(others, bounds, parts),
            self.loop("j", "length", join, 1),
        ]

    def accumulator(self, reduction: Reduce) -> Accumulator:
        """What a reduction gathers in."""
        return accumulator_of(reduction, kind_of(reduction.body, self.dtypes) or self.kind)

    def add(
        self,
        reduction: Reduce,
        gathered: Accumulator,
        guards: Sequence[Guard],
        names: Mapping[str, str],
    ) -> list[str]:
        """One more value of a reduction, where guards hold."""
        value = self.text(reduction.body, gathered.kind, names)
        condition = self.conditions(guards, names) if guards else ""
        return gathered.add(value, condition, affine_text(place_in(reduction), names))

    def last_of(self, reduction: Reduce) -> str:
        """The iterator of a reduction along which all that it reads lies side by side."""
        shortest = 8 if reduction.function == "add" else SHORTEST
        every = [self.accesses[load] for load in loads(reduction.body)]
        good = [
            name for name, size in reduction.over
            if size >= shortest
            and all(a.terms.get(name, 0) in (0, 1) and not a.tables for a in every)
        ]  # fmt: skip
        guarded = {name for guard in reduction.guards for name, _ in guard.at.terms}
        return next((name for name in good if name not in guarded), "")

    def reduce(
        self,
        reduction: Reduce,
        bounds: Mapping[str, tuple[str, str]],
        body: c.Body,
        *,
        last: str = "",
    ) -> c.Body:
        """Loops over what is reduced, ``last`` innermost and a vector's."""
        over = sorted(reduction.over, key=lambda item: item[0] == last)
        for name, extent in reversed(over):
            low, high = bounds.get(name, ("0", str(extent)))
            simd = [c.Line(openmp.SIMD_SUM)] if name == last else []
            body = [*simd, self.loop(name, high, body, low)]
        return body
