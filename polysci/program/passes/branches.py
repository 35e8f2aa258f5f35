"""Choices by data: stages that only one side needs run only where that side is taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polysci.loop_ir.expressions import Apply, Expr, Load, constant, reductions
from polysci.program.control import ELSE, END, IF, BranchStage, ChoiceStage
from polysci.program.stages import LoopStage, Program, RepeatStage, Stage, ViewStage
from polysci.target.coefficients import prior_of


def place_branches(program: Program) -> Program:
    """The program with branches, or selections of few elements, in place of its choices.

    Both sides of a choice are computed where they are no more than ``branch_elements`` of loops
    without sums; else each side runs only where it is taken, with all that nothing else needs.
    """
    program = replace(program, stages=tuple(
        replace(stage, members=place_branches(stage.as_program(program)).stages)
        if isinstance(stage, RepeatStage) else stage
        for stage in program.stages
    ))  # fmt: skip
    brancher = _Brancher(program, program.readers())
    return program.with_stages(tuple(brancher.expand(program.stages)))


@dataclass(frozen=True, slots=True)
class _Brancher:
    program: Program
    readers: Mapping[str, Sequence[Stage]]

    def expand(self, stages: Sequence[Stage]) -> list[Stage]:
        """Stages with others in place of choices, the last ones first: these hold others."""
        for at in reversed(range(len(stages))):
            stage = stages[at]
            if isinstance(stage, ChoiceStage):
                before, block = self.branch(stages[:at], stage)
                return [*self.expand(before), *block, *stages[at + 1 :]]
        return list(stages)

    def branch(
        self, before: Sequence[Stage], choice: ChoiceStage
    ) -> tuple[list[Stage], list[Stage]]:
        """The stages that stay before a choice, and those in its place."""
        sides = (choice.then, choice.otherwise)
        moved = [self.stages_for(before, choice, names) for names in sides]
        gone = {id(stage) for stages in moved for stage in stages}
        kept = [stage for stage in before if id(stage) not in gone]
        if self.few([*moved[0], *moved[1]]):
            return list(before), [
                LoopStage(choice.name, output, self.select(choice, then, otherwise))
                for output, then, otherwise in zip(choice.outputs, *sides, strict=True)
            ]
        block = list[Stage]()
        for part, stages, names in zip((IF, ELSE), moved, sides, strict=True):
            block += [BranchStage(choice.name, choice.condition, part), *self.expand(stages)]
            block += [
                LoopStage(choice.name, output, self.program.values[name].elements)
                for output, name in zip(choice.outputs, names, strict=True)
            ]
        return kept, [*block, BranchStage(choice.name, choice.condition, END)]

    def stages_for(
        self, before: Sequence[Stage], choice: ChoiceStage, names: Iterable[str]
    ) -> list[Stage]:
        """The stages whose results one side of a choice needs and nothing else."""
        other = choice.otherwise if names is choice.then else choice.then
        own = {*names} - {choice.condition, *other, *self.program.outputs}
        moved, kept = list[Stage](), {*self.program.outputs}
        for stage in reversed(before):
            inside = {id(part) for part in (*moved, stage)}
            if (
                stage.outputs
                and not kept & {*stage.outputs}
                and all(
                    (name in own or id(reader) != id(choice))
                    and (id(reader) in inside or id(reader) == id(choice))
                    for name in stage.outputs
                    for reader in self.readers.get(name, ())
                )
            ):
                moved.append(stage)
        return moved[::-1]

    def few(self, stages: Iterable[Stage]) -> bool:
        """Return whether stages are so few elements that both sides are computed."""
        sizes = 0
        for stage in stages:
            if isinstance(stage, ViewStage):
                continue
            if not isinstance(stage, LoopStage) or reductions(stage.expr):
                return False
            sizes += self.program.values[stage.output].size
        return sizes <= prior_of("branch_elements")

    def select(self, choice: ChoiceStage, then: str, otherwise: str) -> Expr:
        shape = self.program.values[choice.condition].shape
        condition = Load(choice.condition, tuple(constant(0) for _ in shape))
        values = self.program.values
        return Apply("select", (condition, values[then].elements, values[otherwise].elements))
