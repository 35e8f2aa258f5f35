"""Products of a repeated stage whose weights no step changes: packed once, before all steps."""

from __future__ import annotations

from dataclasses import replace

from polysci.ops.matmul import Matmul
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import LayerStage, RepeatStage, Stage, members_of
from polysci.target.coefficients import prior_of


def with_weights_ahead(placed: PlacedProgram) -> PlacedProgram:
    """Return the program with such products as products by a constant factor.

    Those of few rows by weights whose columns are neighbours read them where they lie instead.
    """
    stages = tuple(
        replace(stage, members=tuple(_packed_once(placed, stage, part) for part in stage.members))
        if isinstance(stage, RepeatStage) else stage
        for stage in placed.program.stages
    )  # fmt: skip
    return replace(placed, program=replace(placed.program, stages=stages))


def _packed_once(placed: PlacedProgram, stage: RepeatStage, member: Stage) -> Stage:
    if not isinstance(member, LayerStage) or not isinstance(member.problem, Matmul):
        return member
    problem = member.problem
    few = "b" not in problem.transposed and prior_of("plain_rows") >= problem.M
    if few or not keeps_weights(placed, stage, member):
        return member
    return replace(member, problem=problem.with_(constant="b"))


def keeps_weights(placed: PlacedProgram, stage: Stage, layer: LayerStage) -> bool:
    """Return whether no step of a repeated stage writes the weights of a layer inside it."""
    inside = {placed.places[name].buffer for part in members_of(stage) for name in part.outputs}
    place = placed.places[layer.weights]
    return place.buffer not in inside and not place.step
