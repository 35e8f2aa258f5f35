"""Tensors that take the memory of what they replace: outputs that of inputs, and from step to step.

An output is written where its input lies once no stage reads that any more, each element behind its
own reads: then nothing is copied. Of one that holds most elements of its input, as a cache to which
rows are added, those that change are written alone. Any other one is made elsewhere, and copied at
the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polysci.loop_ir.expressions import Computed, Load, combine, loads, reductions
from polysci.program.control import END, IF, BranchStage, CarriedTensor
from polysci.program.passes.relations import iterators, pointwise
from polysci.program.stages import (
    ConcatStage,
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    Stage,
    UpdateStage,
    Value,
    ViewStage,
    fresh_name,
)


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
        if updated := _as_updates(replace(program, stages=tuple(stages)), output, state):
            stages = updated
        elif not _at_once(stages, output, state, program.values[output].shape):
            for _ in range(1 + (output in _aliases(stages, state))):  # what is moved inside itself
                source, names[at] = names[at], fresh_name(output, values, "kept")
                values[names[at]] = replace(values[output], name=names[at])
                stages.append(LoopStage(f"replace {state}", names[at], values[source].elements))
        in_place[names[at]] = state
    done = replace(program, outputs=tuple(names), values=values, in_place=in_place)
    return replace(done, stages=tuple(_early(stages, in_place)))


def _as_updates(program: Program, output: str, state: str) -> list[Stage] | None:
    """Return stages of which only updates of some elements are left of those that make the output.

    They stand behind all that reads the old elements. None where the output is not made so, and
    where something that reads old elements waits for new ones.
    """
    stages, values = program.stages, program.values
    makers = [at for at, stage in enumerate(stages) if output in stage.outputs]
    if not makers:
        return None
    names, kept = _aliases(stages, state), [stages[at] for at in makers[1:]]
    first, others = stages[makers[0]], [part for part in stages if output not in part.outputs]
    if not all(isinstance(stage, UpdateStage) for stage in kept):
        return None
    if isinstance(first, ConcatStage) and not kept:
        kept = _replaced_parts(first, stages, state, values)
    elif not (isinstance(first, LoopStage) and _is_copy(first, state, values[state].shape)):
        return None
    needed = {name for part in kept for name in part.inputs} - {output}
    waits = [
        at + 1 for at, part in enumerate(others)
        if needed & {*part.outputs} or (names & {*part.inputs} and _moves(part, program))
    ]  # fmt: skip
    place = max([makers[0], *waits])
    branches = any(isinstance(part, BranchStage) for part in others[makers[0] : place])
    early = any(output in part.inputs for part in others[:place])
    if not kept or branches or early or needed & names:
        return None
    return [*others[:place], *kept, *others[place:]]


def _is_copy(stage: LoopStage, state: str, shape: tuple[int, ...]) -> bool:
    """Return whether every element is that of a tensor in its own place."""
    read = stage.expr
    if not isinstance(read, Load) or read.tensor != state:
        return False
    return pointwise(read, iterators(shape), shape)


def _moves(stage: Stage, program: Program) -> bool:
    """Return whether a stage reads elements: views do where they are outputs."""
    return not isinstance(stage, ViewStage) or stage.output in program.outputs


def _replaced_parts(
    whole: ConcatStage, stages: Sequence[Stage], state: str, values: Mapping[str, Value]
) -> list[Stage]:
    """Return updates of the parts of a concatenation that do not lie in their input's place."""
    views = {stage.output: stage for stage in stages if isinstance(stage, ViewStage)}
    updates, first, rank = list[Stage](), 0, len(values[state].shape)
    for name in whole.parts:
        index = tuple(
            combine({f"i{at}": 1}, first if at == whole.axis else 0) for at in range(rank)
        )
        view = views.get(name)
        own = view is not None and (view.source, view.index) == (state, index)
        if not own:
            shape = values[name].shape
            updates.append(
                UpdateStage(whole.name, whole.output, shape, index, values[name].elements)
            )
        first += values[name].shape[whole.axis]
    return updates if len(updates) < len(whole.parts) else []


def rows_of_state(program: Program) -> int | None:
    """Return how many rows its shortest state has that data says the places in; None: no state."""
    held = {*program.kept.values()}
    extents = [
        index.extent
        for stage in program.stages if isinstance(stage, UpdateStage) and stage.output in held
        for index in stage.index if isinstance(index, Computed)
    ]  # fmt: skip
    return min(extents, default=None)


def _at_once(stages: Sequence[Stage], output: str, state: str, shape: tuple[int, ...]) -> bool:
    """Return whether one loop makes the output, and reads the input last, in its own place."""
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
    """Loops that replace an input right behind what they wait for, but in no branch."""
    order = list(stages)
    reads = {id(stage): frozenset(stage.inputs) for stage in stages}
    for stage in stages:
        if not isinstance(stage, LoopStage) or stage.output not in in_place:
            continue
        order.remove(stage)
        old = _aliases(order, in_place[stage.output])
        places = (
            at for at, other in enumerate(order)
            if reads[id(stage)] & {*other.outputs} or old & reads[id(other)]
        )  # fmt: skip
        order.insert(_behind_branches(order, 1 + max(places, default=-1)), stage)
    return order


def _behind_branches(stages: Sequence[Stage], place: int) -> int:
    """Return the first place from one on that is in no branch."""
    depth = 0
    for at, stage in enumerate(stages):
        if at >= place and not depth:
            return at
        if isinstance(stage, BranchStage):
            depth += {IF: 1, END: -1}.get(stage.part, 0)
    return len(stages)


def replaces_in_place(stage: RepeatStage, held: CarriedTensor, program: Program) -> bool:
    """Return whether no element that a step reads of what is carried has been replaced by then."""
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
    """Return whether a stage reads of a tensor no other elements than that which it defines."""
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
