"""What steps carry over: where a step may write it over what the step before left."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.loop_ir.expressions import loads, reductions
from polysci.program.control import CarriedTensor
from polysci.program.passes.relations import iterators, pointwise
from polysci.program.stages import LayerStage, LoopStage, Program, RepeatStage, Stage, ViewStage


def replaces_in_place(stage: RepeatStage, held: CarriedTensor, program: Program) -> bool:
    """Whether no element that a step reads of what is carried has been replaced by then."""
    makers = [at for at, part in enumerate(stage.members) if held.following in part.outputs]
    following, names = program.values[held.following], {held.inner}
    if len(makers) != 1 or following.order:
        return False
    (maker,) = makers
    for at, part in enumerate(stage.members):
        if isinstance(part, ViewStage):
            names |= {part.output} if part.source in names else set()
            continue
        reads = names & {*part.inputs}
        if reads and at > maker:
            return False
        own = reads == {held.inner} and reads_own_place(part, held.inner, following.shape)
        if reads and at == maker and not own:
            return False
    return isinstance(stage.members[maker], LoopStage | LayerStage)


def reads_own_place(part: Stage, name: str, shape: Sequence[int]) -> bool:
    """Whether a stage reads of a tensor no other elements than that which it defines."""
    if isinstance(part, LayerStage):
        others = part.x.tensor, part.weights, part.bias
        return part.residual == name and name not in others
    if not isinstance(part, LoopStage):
        return False
    domain = iterators(shape)
    reduced = [load for reduction in reductions(part.expr) for load in loads(reduction.body)]
    reads = [load for load in loads(part.expr) if load.tensor == name]
    return not any(load in reduced for load in reads) and all(
        pointwise(load, domain, tuple(shape)) for load in reads
    )
