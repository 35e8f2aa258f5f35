"""Choose what the backward pass of a step computes again, by the memory and the time of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polysci.cost.networks import RunCost, StageCosts
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.graph.recompute import recomputable, recompute
from polysci.network.options import CompileOptions
from polysci.network.prepare import prepare_with
from polysci.program.passes.arena import arrange
from polysci.program.passes.thread_shares import work_of
from polysci.training.model import StepGraph

LEAST_SHARE: Final = 0.03  # of the arena, below which tensors are not worth a comparison


def spare_memory(step: StepGraph, options: CompileOptions) -> Graph:
    """Return the graph of a step that computes tensors again where that costs less than to keep.

    Those that are alike are computed again together, without the last ones where these gain
    nothing, since the backward pass reads them first.
    """
    groups = recomputable(step.graph, step.forward)
    if not groups:
        return step.graph
    best = _Choice(step.graph, (), _cost(step.graph, options))
    least = LEAST_SHARE * best.cost.memory
    for names in groups:
        if sum(step.graph.tensors[name].bytes for name in names) >= least:
            best = _extend(best, names, step, options)
    return best.graph


@dataclass(frozen=True, slots=True)
class _Choice:
    """A step that computes ``tensors`` again."""

    graph: Graph
    tensors: tuple[str, ...]
    cost: RunCost


def _extend(
    best: _Choice, names: tuple[str, ...], step: StepGraph, options: CompileOptions
) -> _Choice:
    """Return the best choice with the first of some tensors besides."""
    before = best.tensors
    for count in range(len(names), 0, -1):
        tensors = (*before, *names[:count])
        graph = recompute(step.graph, step.forward, tensors)
        choice = _Choice(graph, tensors, _cost(graph, options))
        if choice.cost.score(options.optimize) >= best.cost.score(options.optimize):
            break
        best = choice
    return best


def _cost(graph: Graph, options: CompileOptions) -> RunCost:
    """Return what a step takes, by its stages before they are fused by rows."""
    placed, plan = prepare_with(simplify(graph), options).placed, options.plan()
    costs = StageCosts(plan.rates, plan.target)
    times = (costs.serial(work_of(stage, placed.program)) for stage in placed.program.stages)
    return RunCost(arrange(placed).size, sum(times))
