"""Loops whose results have a bit each, eight at a time: a byte of every mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from polysci.loop_ir.expressions import Load
from polysci.loop_ir.functions import WHOLE, cast
from polysci.lower.direct import ctree as c
from polysci.lower.direct import openmp
from polysci.network.codegen.accumulators import Accumulator
from polysci.network.codegen.loops import MASK, LoopWriter
from polysci.program.stages import BIT

STRIP = 8  # results whose bits share a byte


@dataclass(slots=True)
class MaskLoopWriter(LoopWriter):
    """A stage that reads masks, or writes one, on its way to C."""

    def body(self, names: Sequence[str]) -> c.Body:
        """The loops over iterators, the last one by whole bytes."""
        *outer, last = names
        inside, start = {last: "(at + j)"}, {last: "at"}
        bits = [
            f"const {WHOLE} bits_{self.name_of(load)} = "
            f"{self.name_of(load)}[({access.text(start)}) / {STRIP}]"
            for load, access in self.accesses.items() if self.places[load.tensor].dtype == BIT
        ]  # fmt: skip
        (member,) = self.members
        kind = self.kind(member)
        step = [
            f"const {kind} value = {self.text(member.expr, kind, inside)}",
            f"y[{self.out.text(inside)}] = {self.convert(member, 'value')}",
        ]
        pragma, byte = openmp.SIMD, list[str]()
        if self.mask:
            pragma, bits = openmp.SIMD_SUM.format("acc"), [*bits, f"{WHOLE} acc = 0"]
            step.append("acc += (value > 0) << j")
            byte = [f"{MASK}[({self.out.text(start)}) / {STRIP}] = (uint8_t)acc"]
        strip: c.Body = [
            *map(c.Statement, bits),
            c.Line(pragma),
            c.loop("int j = 0", f"j < {STRIP}", "++j", c.Block([*map(c.Statement, step)])),
            *map(c.Statement, byte),
        ]
        extent = self.extents[last]
        if prod(self.extents[name] for name in outer) < 2 * self.threads:
            return self.nest(outer, self.share([], strip, [("at", extent, STRIP)]))
        return self.share(outer, [self.loop("at", extent, strip, step=STRIP)])

    def name_of(self, load: Load) -> str:
        """The pointer to what is read."""
        return self.buffers[self.places[load.tensor].buffer]

    def element(
        self, load: Load, kind: str, names: Mapping[str, str], gathered: Accumulator | None
    ) -> str:
        """A bit of a byte that was read before, or what any loop reads."""
        if self.places[load.tensor].dtype == BIT:
            return cast(f"(bits_{self.name_of(load)} >> j & 1)", WHOLE, kind)
        return LoopWriter.element(self, load, kind, names, gathered)
