"""Tensors of callers with axes that vary: nothing lies behind their ends, so stages copy them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from math import prod

from polysci.loop_ir.expressions import Load, Number, Where, rewrite, walk
from polysci.numerics.affine import Affine
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import (
    ConcatStage,
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    Stage,
    UpdateStage,
    ViewStage,
    fresh_name,
)


def runs_on(program: Program, name: str) -> bool:
    """Return whether a caller's tensor lies as the beginning of one of the largest size."""
    axes, shape = program.varying.get(name, {}), program.values[name].shape
    return not axes or (len(axes) == 1 and prod(shape[: next(iter(axes))]) == 1)


def copied_arguments(program: Program) -> set[str]:
    """Return the arguments that do not lie as the beginning of larger ones, and need copies.

    Loops that move elements read inputs where they lie, as those that join them with others.
    """
    readers = program.readers()
    names = {name for name in program.varying if not runs_on(program, name)}
    return {
        name for name in names
        if name not in program.inputs or not all(map(_moves_elements, readers.get(name, [])))
    }  # fmt: skip


def _moves_elements(stage: Stage) -> bool:
    """Return whether a stage is a loop that computes nothing, not even where elements lie."""
    return isinstance(stage, LoopStage) and all(
        isinstance(part, Where | Number)
        or (isinstance(part, Load) and all(isinstance(at, Affine) for at in part.index))
        for part in walk(stage.expr)
    )


def copy_arguments(program: Program, names: Container[str]) -> Program:
    """Return the program with copies of these arguments, which stages use in their place.

    Callers' tensors have no elements behind the end of an axis, where layers write and read.
    """
    arguments = [name for name in (*program.inputs, *program.outputs) if name in names]
    values, varying = dict(program.values), dict(program.varying)
    whole = dict[str, str]()
    for name in dict.fromkeys(arguments):
        whole[name] = own = fresh_name(name, values, "whole")
        values[own] = replace(values[name], name=own)
        varying[own] = varying[name]
    copies = [(f"copy {name}", whole[name], name) for name in program.inputs if name in whole]
    results = [(f"copy {name}", name, whole[name]) for name in program.outputs if name in whole]
    stages: tuple[Stage, ...] = tuple(_rename(stage, whole) for stage in program.stages)
    ahead, behind = (
        tuple(LoopStage(title, made, values[read].elements) for title, made, read in its)
        for its in (copies, results)
    )
    return replace(program, values=values, varying=varying, stages=(*ahead, *stages, *behind))


def whole_tensors(program: Program) -> set[str]:
    """Return the copies that ``copy_arguments`` made, which no loop has in their place.

    And tensors of loops that read arguments where they lie, whose strides depend on sizes.
    """
    copies = set[str]()
    for stage in program.stages:
        reads = {*stage.inputs} & {*program.inputs}
        if isinstance(stage, LoopStage) and not all(runs_on(program, name) for name in reads):
            copies.add(stage.output)
        if isinstance(stage, LoopStage) and isinstance(stage.expr, Load):
            read = stage.expr.tensor
            if read in program.inputs and read in program.varying:
                copies.add(stage.output)
            if stage.output in program.outputs and read in program.varying:
                copies.add(read)
    return copies


def arguments_of_layers(placed: PlacedProgram) -> set[str]:
    """Return the arguments with axes that vary which layers read or write."""
    program, places = placed.program, placed.places
    own = {name for name in (*program.inputs, *program.outputs) if name in program.varying}
    return {
        places[name].buffer
        for layer in program.layers()
        for name in (*layer.inputs, *layer.outputs)
        if name in places and places[name].buffer in own
    }


def _rename(stage: Stage, names: Mapping[str, str]) -> Stage:
    """Return a stage with other names for some tensors."""

    def of(name: str) -> str:
        return names.get(name, name)

    match stage:
        case LoopStage():
            return replace(stage, output=of(stage.output), expr=rewrite(
                stage.expr,
                lambda part: replace(part, tensor=of(part.tensor)) if isinstance(part, Load)
                else part,
            ))  # fmt: skip
        case UpdateStage():
            written, expr = (
                rewrite(
                    part,
                    lambda it: replace(it, tensor=of(it.tensor)) if isinstance(it, Load) else it,
                )
                for part in (Load(stage.output, stage.index), stage.expr)
            )
            assert isinstance(written, Load)
            return replace(stage, output=written.tensor, index=written.index, expr=expr)
        case LayerStage():
            return replace(
                stage, x=replace(stage.x, tensor=of(stage.x.tensor)),
                y=replace(stage.y, tensor=of(stage.y.tensor)), weights=of(stage.weights),
                bias=of(stage.bias), residual=of(stage.residual),
            )  # fmt: skip
        case ViewStage():
            return replace(stage, output=of(stage.output), source=of(stage.source))
        case ConcatStage():
            return replace(stage, output=of(stage.output), parts=tuple(map(of, stage.parts)))
        case RepeatStage():
            reads, writes = (
                tuple(replace(view, outer=of(view.outer)) for view in views)
                for views in (stage.reads, stage.writes)
            )
            return replace(
                stage, reads=reads, writes=writes,
                members=tuple(_rename(member, names) for member in stage.members),
                carried=tuple(replace(it, state=of(it.state)) for it in stage.carried),
            )  # fmt: skip
        case _:
            return stage
