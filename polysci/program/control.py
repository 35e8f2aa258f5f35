"""Parts of control flow: choices, branches, and what steps that are repeated share."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.numerics.affine import Affine

STEP = "step"  # the iterator of a RepeatStage
SIZE = "size"  # with a number behind it: the size of a run that has this place among all of them
IF, ELSE, END, BREAK = "if", "else", "end", "break"


@dataclass(frozen=True, slots=True)
class StepView:
    """A slice that moves with the step: ``inner[i..] = outer[index(i.., step)]``."""

    inner: str
    outer: str
    index: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class CarriedTensor:
    """A tensor that a step leaves to the next one: ``inner`` is read, ``following`` is made.

    Both lie in ``state``, which holds the first value before all steps and the last one after.
    """

    inner: str
    following: str
    state: str


@dataclass(frozen=True, slots=True)
class ChoiceStage:
    """Tensors that are those of ``then`` where ``condition`` holds, else those of ``otherwise``.

    The pass ``branches`` puts other stages in its place.
    """

    name: str
    condition: str
    outputs: tuple[str, ...]
    then: tuple[str, ...]
    otherwise: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.condition, *self.then, *self.otherwise)))


@dataclass(frozen=True, slots=True)
class BranchStage:
    """A mark where stages that run only sometimes begin or end: IF, ELSE, END or BREAK.

    From IF to ELSE are those that run where the only element of ``condition`` is true, from ELSE to
    END those that run else; both may write the same tensors. Where it is false at BREAK, the steps
    of the RepeatStage around it end. Passes that know nothing of branches
    take all of them for stages that run one after the other.
    """

    name: str
    condition: str
    part: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.condition,)
