"""Outputs that take the memory of inputs: parameters that a step of training replaces.

An output is written where its input lies once no stage reads that any more, each element behind its
own reads: then nothing is copied. Any other one is made elsewhere, and copied at the end.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from polysci.loop_ir.expressions import Load, axis
from polysci.program.passes.carried import reads_own_place
from polysci.program.stages import LoopStage, Program, Stage, ViewStage


def replace_in_place(program: Program) -> Program:
    """The program with a copy for every output that cannot be made in place.

    Those that can are made as early as that is right, while what they are made of is in the caches.
    """
    stages, values, in_place = list(program.stages), dict(program.values), dict[str, str]()
    names = list(program.outputs)
    for at, output in enumerate(program.outputs):
        state = program.in_place.get(output)
        if state is None:
            continue
        if not _at_once(stages, output, state, program.values[output].shape):
            for _ in range(1 + (output in _aliases(stages, state))):  # what is moved inside itself
                source, names[at] = names[at], _fresh(output, values)
                values[names[at]] = replace(values[output], name=names[at])
                whole = Load(source, tuple(axis(at) for at in range(len(values[output].shape))))
                stages.append(LoopStage(f"replace {state}", names[at], whole))
        in_place[names[at]] = state
    done = replace(program, outputs=tuple(names), values=values, in_place=in_place)
    return replace(done, stages=tuple(_early(stages, in_place)))


def _fresh(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += ".kept"
    return name


def _at_once(stages: Sequence[Stage], output: str, state: str, shape: tuple[int, ...]) -> bool:
    """Whether one loop makes the output, and reads the input last, in its own place."""
    makers = [at for at, stage in enumerate(stages) if output in stage.outputs]
    if len(makers) != 1 or not isinstance(stages[makers[0]], LoopStage):
        return False
    names, maker = _aliases(stages, state), stages[makers[0]]
    if any(names & {*stage.inputs} for stage in stages[makers[0] + 1 :]):
        return False
    return names & {*maker.inputs} <= {state} and reads_own_place(maker, state, shape)


def _aliases(stages: Sequence[Stage], name: str) -> set[str]:
    """A tensor and all views of it."""
    names = {name}
    for stage in stages:
        if isinstance(stage, ViewStage) and stage.source in names:
            names.add(stage.output)
    return names


def _early(stages: Sequence[Stage], in_place: dict[str, str]) -> list[Stage]:
    """Loops that replace an input right behind what they wait for."""
    order = list(stages)
    for stage in stages:
        if not isinstance(stage, LoopStage) or stage.output not in in_place:
            continue
        order.remove(stage)
        read = _aliases(order, in_place[stage.output])
        places = (
            at for at, other in enumerate(order)
            if {*stage.inputs} & {*other.outputs} or read & {*other.inputs}
        )  # fmt: skip
        order.insert(1 + max(places, default=-1), stage)
    return order
