"""Updates as loop IR: elements changed in order, what never meets shared by the threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polysci.loop_ir.expressions import Load
from polysci.lower.stages.accumulators import Statements
from polysci.lower.stages.loops import LoopLowering
from polysci.program.stages import LoopStage, UpdateStage


@dataclass(slots=True)
class UpdateLowering(LoopLowering):
    """An update on its way to loop IR."""

    def target(self, member: LoopStage | UpdateStage) -> Load:
        assert isinstance(member, UpdateStage)
        return Load(member.output, member.index)

    def reads(self) -> list[Load]:
        assert isinstance(self.stage, UpdateStage)
        return self.stage.reads

    def body(self, names: Sequence[str]) -> Statements:
        """Loops in whose turns different elements change, and in order those that may meet.

        The last one of the former is the innermost: threads share it the same way in every turn of
        the loops around it, so that each element is one thread's.
        """
        apart = [name for name in names if self.out.terms.get(name)]
        ordered = sorted(set(names) - set(apart), key=lambda name: int(name[1:]))
        store = self.stores({})
        if not apart:
            return self.alone(self.nest(ordered, store))
        *outer, last = apart
        if not outer:
            return self.nest(ordered, self.share([last], store, simd=True))
        inner = self.nest([last], store, simd=True)
        return self.share(outer, self.nest(ordered, inner))
