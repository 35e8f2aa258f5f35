"""Stages that are repeated: slices of tensors around them, and what they carry over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polysci.graph.operators.builder import Builder
from polysci.loop_ir.expressions import Expr, Load, axis, combine
from polysci.polyhedral.affine import Affine
from polysci.program.control import STEP, CarriedTensor, StepView
from polysci.program.stages import LoopStage, RepeatStage, Stage


def moving(count: int, *, backwards: bool = False) -> Affine:
    """The number of the step, or that counted from the end."""
    return combine({STEP: -1}, count - 1) if backwards else combine({STEP: 1})


def slice_at(place: Affine, at: int, rank: int) -> tuple[Affine, ...]:
    """The index of a slice of a tensor of ``rank`` axes: all of it at one place of axis ``at``."""
    return (*(axis(n) for n in range(at)), place, *(axis(n) for n in range(at, rank - 1)))


@dataclass(slots=True)
class Steps:
    """A RepeatStage on its way: its stages are made between ``begin`` and ``end``."""

    build: Builder
    name: str
    count: int
    reads: list[StepView] = field(default_factory=list, kw_only=True)
    writes: list[StepView] = field(default_factory=list, kw_only=True)
    carried: list[CarriedTensor] = field(default_factory=list, kw_only=True)
    around: list[Stage] = field(default_factory=list, kw_only=True)

    def begin(self) -> None:
        """Stages from here on are those of a step."""
        self.around, self.build.stages = self.build.stages, []

    def end(self) -> None:
        """The stages since ``begin`` are repeated."""
        members, self.build.stages = self.build.stages, self.around
        self.repeat(members)

    def repeat(self, members: Sequence[Stage]) -> None:
        """A step consists of these stages."""
        self.build.stages.append(RepeatStage(
            self.name, self.count, tuple(members), tuple(self.reads), tuple(self.writes),
            tuple(self.carried),
        ))  # fmt: skip

    def read(self, outer: str, index: tuple[Affine, ...], shape: Sequence[int]) -> str:
        """A slice of a tensor as a step knows it."""
        inner = self.build.fresh(f"{outer}.slice", shape, self.build.dtype(outer))
        self.reads.append(StepView(inner, outer, index))
        return inner

    def write(self, outer: str, index: tuple[Affine, ...], shape: Sequence[int]) -> str:
        """A slice that a step has to make."""
        inner = self.build.fresh(f"{outer}.slice", shape, self.build.dtype(outer))
        self.writes.append(StepView(inner, outer, index))
        return inner

    def carry(self, base: str, first: Expr, shape: Sequence[int], dtype: str) -> CarriedTensor:
        """A tensor that is ``first`` before all steps; to be called before ``begin``."""
        build = self.build
        state = build.fresh(f"{base}.state", shape, dtype)
        build.stages.append(LoopStage(f"{self.name}: {base}", state, first))
        inner, following = (build.fresh(f"{base}.{word}", shape, dtype) for word in ("now", "next"))
        self.carried.append(CarriedTensor(inner, following, state))
        return self.carried[-1]

    def define(self, output: str, expr: Expr) -> str:
        """A tensor of a step, element by element."""
        self.build.stages.append(LoopStage(self.name, output, expr))
        return output


def whole(build: Builder, name: str) -> Load:
    """Every element of a tensor, in its place."""
    return Load(name, tuple(axis(at) for at in range(len(build.shape(name)))))
