"""Choose the stages that all threads share, and those of one thread: waiting takes time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import prod
from typing import Final

import numpy as np

from polysci.cost.networks import LayerGroup, StageCosts, StageWork
from polysci.loop_ir.expressions import Apply, Expr, reductions, walk
from polysci.program.control import BranchStage, StepView
from polysci.program.stages import (
    ConcatStage,
    JointLoops,
    LayerStage,
    LoopStage,
    Program,
    RepeatStage,
    RowFusion,
    Stage,
    ViewStage,
    members_of,
)

WAITS: Final = 2  # barriers that the code of a step has for each of its layers


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """The positions of stages that not all threads share: the first one computes those ``alone``.

    ``beside`` are neighbours that run at the same time, each by one thread. ``split`` are stacks of
    products, each of which one thread computes. All threads share the other stages.
    """

    alone: frozenset[int] = frozenset()
    beside: tuple[range, ...] = ()
    split: frozenset[int] = frozenset()

    def serial(self, position: int) -> bool:
        """Return whether one thread computes a stage."""
        return position in self.alone or self.neighbours(position) is not None

    def one_thread(self, position: int) -> bool:
        """Return whether a layer there is called by one thread, others or not."""
        return position in self.split or self.serial(position)

    def neighbours(self, position: int) -> range | None:
        """The stages that run at the same time as this one."""
        return next((stages for stages in self.beside if position in stages), None)


SHARED: Final = ThreadShares()


def share_stages(program: Program, threads: int, costs: StageCosts) -> ThreadShares:
    """Return the shares that take least time by a rough model.

    Where waking the other threads takes longer than they save, the first computes everything.
    All threads take the same branch.
    """
    branches = {at for at, stage in enumerate(program.stages) if isinstance(stage, BranchStage)}
    split = {
        at for at, stage in enumerate(program.stages)
        if isinstance(stage, LayerStage) and costs.shares_evenly(len(stage.stack), threads)
    }  # fmt: skip
    works = [work_of(stage, program) for stage in program.stages]
    serial = [costs.serial(work) for work in works]
    shared = [
        costs.shared(work, threads, _barriers(stage, split=at in split))
        for at, (work, stage) in enumerate(zip(works, program.stages, strict=True))
    ]
    beside = list[range]()
    for stages in independent_loops(program):
        together = max(serial[at] for at in stages) * -(-len(stages) // threads)
        apart = sum(min(serial[at], shared[at]) for at in stages)
        if together < apart and threads <= 2 * len(stages):
            beside.append(stages)
            for at in stages:
                shared[at] = together / len(stages)
    inside = frozenset(at for stages in beside for at in stages)
    alone, saved, idle = frozenset[int](), 0.0, 0.0
    for _ in range(2):  # the second time as where one run follows another
        alone, saved, idle = first_alone(serial, shared, inside, idle, costs)
    if not costs.team_pays(saved):
        return ThreadShares(frozenset(range(len(serial))))
    alone -= branches
    return ThreadShares(alone, tuple(beside), frozenset(split - alone))


def first_alone(
    serial: Sequence[float],
    shared: Sequence[float],
    inside: frozenset[int],
    idle: float,
    costs: StageCosts,
) -> tuple[frozenset[int], float, float]:
    """The stages of the first thread, what the others save, and how long they are idle at the end.

    They were for ``idle`` before, and then sleep. Those ``inside`` run beside each other. All times
    are in microseconds.
    """
    alone, saved = set[int](), 0.0
    for at, (lone, together) in enumerate(zip(serial, shared, strict=True)):
        gain = lone - together - costs.wake(idle)
        if gain > 0 or at in inside:
            saved, idle = saved + gain, 0.0
        else:
            alone.add(at)
            idle += lone
    return frozenset(alone), saved, idle


def serial_problems(program: Program, shares: ThreadShares) -> frozenset[str]:
    """Keys of the problems that one thread computes wherever they stand."""
    keys: dict[bool, set[str]] = {True: set(), False: set()}
    for at, stage in enumerate(program.stages):
        layers = [part for part in members_of(stage) if isinstance(part, LayerStage)]
        keys[shares.one_thread(at)] |= {layer.problem.key for layer in layers}
    return frozenset(keys[True] - keys[False])


def independent_loops(program: Program) -> list[range]:
    """Loops over steps, one behind the other, of which none needs what another one makes."""
    runs, first = list[range](), 0
    for at, (stage, following) in enumerate(pairwise((*program.stages, None))):
        members = program.stages[first : at + 1]
        both = isinstance(stage, RepeatStage) and isinstance(following, RepeatStage)
        if not both or not _independent([*members, following]):
            if len(members) > 1:
                runs.append(range(first, at + 1))
            first = at + 1
    return runs


def _independent(stages: Sequence[Stage | None]) -> bool:
    loops = [stage for stage in stages if isinstance(stage, RepeatStage)]
    return all(
        not {*first.outputs} & {*second.inputs}
        and not {*second.outputs} & {*first.inputs}
        and not {held.state for held in first.carried} & {*second.outputs}
        and all(_apart(own, its) for own in first.writes for its in second.writes)
        for first, second in combinations(loops, 2)
    )


def _apart(first: StepView, second: StepView) -> bool:
    """Return whether slices have no element in common: they lie at other places of an axis."""
    return first.outer != second.outer or any(
        not a.terms and not b.terms and a.const != b.const
        for a, b in zip(first.index, second.index, strict=True)
    )


def _barriers(stage: Stage, *, split: bool) -> int:
    """Return how often all threads wait for each other in a stage that they share."""
    if isinstance(stage, RepeatStage):
        layers = [member for member in stage.members if isinstance(member, LayerStage)]
        return stage.count * WAITS * max(1, len(layers))
    if isinstance(stage, LayerStage) and not split:
        return WAITS * len(stage.stack) or 1
    return 1


def work_of(stage: Stage, program: Program) -> StageWork:
    """Return what a stage computes, for the cost model."""
    match stage:
        case LayerStage():
            return StageWork((_group([stage]),))
        case RepeatStage() | RowFusion():
            layers = [part for part in stage.members if isinstance(part, LayerStage)]
            others = [part for part in stage.members if not isinstance(part, LayerStage)]
            own = StageWork((_group(layers),) if layers else ())
            times = stage.count if isinstance(stage, RepeatStage) else 1
            return _sum([own, *(work_of(part, program) for part in others)], times)
        case JointLoops():
            return _sum([work_of(part, program) for part in stage.members])
        case LoopStage(output=output, expr=expr):
            return StageWork(functions=program.values[output].size * functions(expr))
        case ViewStage() | ConcatStage():
            return StageWork()
        case _:
            tensors = (*stage.outputs, *stage.inputs)
            return StageWork(scalars=sum(program.values[name].size for name in tensors))


def _sum(works: Sequence[StageWork], times: int = 1) -> StageWork:
    """Return the work of several, so many times."""
    layers = (group for work in works for group in work.layers)
    return StageWork(
        tuple(replace(group, times=group.times * times) for group in layers),
        times * sum(work.functions for work in works),
        times * sum(work.scalars for work in works),
    )


def _group(layers: Sequence[LayerStage]) -> LayerGroup:
    """Return layers that need their weights one after the other."""
    stacks = [max(1, len(layer.stack)) for layer in layers]
    item = np.dtype(np.float32).itemsize
    return LayerGroup(
        tuple(layer.problem.flops * size for layer, size in zip(layers, stacks, strict=True)),
        tuple(
            prod(layer.problem.w_shape) * item * size
            for layer, size in zip(layers, stacks, strict=True)
        ),
    )


def functions(expr: Expr) -> int:
    """Return how many functions an element takes, those of sums as often as they run."""
    inside = sum(
        prod(size for _, size in reduction.over) * (1 + _count_functions(reduction.body))
        for reduction in reductions(expr)
    )
    return 1 + _count_functions(expr) + inside


def _count_functions(expr: Expr) -> int:
    return sum(isinstance(part, Apply) for part in walk(expr))
