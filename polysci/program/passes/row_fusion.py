"""Choose stages that run together, some rows at a time, so that what lies between stays in a cache.

A row fusion is legal where the rows of a tensor that each row of the next one reads are a window
that moves on with the rows. It is of use where the tensor is beyond the cache of a core, the
weights of all members are not, and the bytes that no longer move weigh more than what other loops
around the members may cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from polysci.cost.networks import StageCosts
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import rows_read
from polysci.program.passes.row import Fusion
from polysci.program.stages import (
    ROW_AXIS,
    LayerStage,
    LoopStage,
    RowFusion,
    Stage,
    channels_last,
)
from polysci.space.schedule import Schedule
from polysci.target.machine import Machine
from polysci.target.target import Target


class RefuseCode(Protocol):
    """Return why there is no code of a layer under a schedule as it stands; empty where there is.

    ``fused``: the code computes some rows at a time.
    """

    def __call__(
        self, layer: LayerStage, placed: PlacedProgram, schedule: Schedule, *, fused: bool
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """Schedules and predicted seconds by problem, the machine, and which code there is."""

    schedules: Mapping[str, Schedule]
    seconds: Mapping[str, float]
    target: Target
    machine: Machine
    refuse_code: RefuseCode


def fuse_rows(
    placed: PlacedProgram, setting: Setting, refused: Mapping[str, str] | None = None
) -> tuple[PlacedProgram, tuple[Fusion, ...]]:
    """The program with row fusions where they pay, and all that was considered.

    ``refused`` are reasons, by tensor, why it is not to lie inside a row fusion.
    """
    program = placed.program
    readers, makers, considered = program.readers(), program.makers(), list[Fusion]()
    chains: list[list[LayerStage | LoopStage]] = []
    inside: dict[int, list[LayerStage | LoopStage]] = {}
    for stage in program.stages:
        if not isinstance(stage, LayerStage) or len(makers[stage.output]) > 1:
            continue
        after = [
            other for other in readers.get(stage.output, [])
            if isinstance(other, LayerStage | LoopStage)
        ]  # fmt: skip
        if not after:
            continue
        chain = inside.get(id(stage), [stage])
        several = len(readers[stage.output]) > 1
        refusal = "several stages read it" if several else ""
        refusal = refusal or (
            "it reads the rows of another stage" if id(after[0]) in inside else ""
        )
        refusal = refusal or _refusal(placed, setting, chain, after[0])
        refusal = refusal or (refused or {}).get(stage.output, "")
        value = program.values[stage.output]
        considered += [
            Fusion(stage.name, other.name, value.name, 2 * value.bytes, refusal) for other in after
        ]
        if refusal:
            continue
        if len(chain) == 1:
            chains.append(chain)
        chain.append(after[0])
        inside[id(after[0])] = chain
    return _with(placed, chains), tuple(considered)


def _refusal(
    placed: PlacedProgram,
    setting: Setting,
    chain: list[LayerStage | LoopStage],
    second: LayerStage | LoopStage,
) -> str:
    """Return why the next stage does not join a chain; empty if it does."""
    first, program = chain[-1], placed.program
    assert isinstance(first, LayerStage)
    name = first.output
    value, place = program.values[name], placed.places[name]
    if name in program.outputs:
        return "it is an output"
    if len(value.shape) != 4 or value.shape[ROW_AXIS] == 1:
        return "it has no rows of an image"
    if isinstance(second, LayerStage) and second.x.tensor != name:
        return "the layer adds it, and multiplies another tensor"
    costs = StageCosts(setting.machine, setting.target)
    size = costs.row_fusion_room()
    if value.bytes <= size:
        return f"{value.bytes} bytes stay in the L2 cache"
    own = replace(value, order=channels_last(4)).strides
    if place.buffer != name or place.strides != own or first.y.step or first.stack:
        return "it is part of another tensor"
    result = program.values[second.output]
    if len(result.shape) != 4 or value.shape[0] != 1 or result.shape[ROW_AXIS] < 2:
        return "several images, or no rows"
    members = [*chain, second]
    held = sum(_weights(member) for member in members if isinstance(member, LayerStage))
    if held > size:
        return f"the weights of {held} bytes leave no room in the L2 cache"
    if rows_read(second, name, value.shape, result.shape) is None:
        return "its rows read no window of rows"
    layers = [member for member in members if isinstance(member, LayerStage)]
    if any(layer.weights not in program.constants for layer in layers):
        return "its weights are computed"
    won = costs.row_fusion_gain_s(value.bytes)
    risk = costs.row_fusion_risk_s(sum(setting.seconds[layer.problem.key] for layer in layers))
    if won < risk:
        return f"{won * 1e6:.0f} us of traffic are less than the {risk * 1e6:.0f} us at risk"
    if isinstance(second, LayerStage) and (second.y.step or second.stack or second.w):
        return "it writes part of a tensor"
    new = layers if len(chain) == 1 else layers[len(chain) :]
    refusals = (
        setting.refuse_code(layer, placed, setting.schedules[layer.problem.key], fused=True)
        for layer in new
    )
    return next(filter(None, refusals), "")


def _weights(layer: LayerStage) -> int:
    """Return the bytes of a layer's weights in f32."""
    return 4 * prod(layer.problem.w_shape)


def _with(placed: PlacedProgram, chains: list[list[LayerStage | LoopStage]]) -> PlacedProgram:
    """Return the program with each chain as one stage, where its last member stood."""
    last = {id(chain[-1]): chain for chain in chains}
    gone = {id(member) for chain in chains for member in chain[:-1]}
    stages: list[Stage] = []
    for stage in placed.program.stages:
        if id(stage) in gone:
            continue
        chain = last.get(id(stage))
        stages.append(RowFusion(tuple(chain)) if chain else stage)
    return replace(placed, program=replace(placed.program, stages=tuple(stages)))
