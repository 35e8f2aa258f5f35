"""Updates as C: elements of a tensor changed in order, what never meets shared by the threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polysci.loop_ir.expressions import Load
from polysci.network.codegen.loops import LoopWriter
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.program.stages import LoopStage, UpdateStage


@dataclass(slots=True)
class UpdateWriter(LoopWriter):
    """An update on its way to C."""

    def target(self, member: LoopStage | UpdateStage) -> Load:
        assert isinstance(member, UpdateStage)
        return Load(member.output, member.index)

    def reads(self) -> list[Load]:
        assert isinstance(self.stage, UpdateStage)
        return self.stage.reads

    def body(self, names: Sequence[str]) -> c.Body:
        """Loops in whose turns different elements change, and in order those that may meet.

        The last one of the former is the innermost: threads share it the same way in every turn of
        the loops around it, so that each element is one thread's.
        """
        apart = [name for name in names if self.out.terms.get(name)]
        ordered = sorted(set(names) - set(apart), key=lambda name: int(name[1:]))
        store: c.Body = [*map(c.Statement, self.stores({}))]
        if not apart:
            return self.alone(self.nest(ordered, store))
        *outer, last = apart
        if not outer:
            return self.nest(ordered, self.share([last], store, simd=True))
        inner = [c.Line(openmp.SIMD), *self.nest([last], store)]
        return self.share(outer, self.nest(ordered, inner))
