"""A simplified graph -> a program: every node as stages, or a list of what cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polysci.errors import SpecError, UnsupportedError
from polysci.graph.graph import Graph
from polysci.graph.operators import OPERATORS
from polysci.graph.operators.builder import STORED, Builder, Refusal
from polysci.graph.operators.input_ranges import input_ranges
from polysci.graph.refusals import NodeRefusal, RefusedNodesError
from polysci.program.stages import LoopStage, Program, Stage

SUPPORTED = OPERATORS.keys()


def lower(graph: Graph) -> Program:
    """The stages of a graph, one operator after the other.

    Raises RefusedNodesError, which groups the nodes that cannot be computed by their reasons.
    """
    build, refusals = Builder(graph), list[NodeRefusal]()
    for node in graph.nodes:
        row = OPERATORS.get(node.op)
        try:
            if row is None:
                raise Refusal("polysci has no such operator")
            if row.stages is None:
                raise Refusal("its inputs are not all constant", *node.inputs)
            row.stages(build, node)
        except (Refusal, UnsupportedError, SpecError) as error:
            needs = error.needs if isinstance(error, Refusal) else ()
            inputs = graph.small_sources(needs)
            refusals.append(NodeRefusal(node.op, str(node), str(error), inputs))
    refusals += [
        NodeRefusal("", tensor.name, f"elements of {tensor.dtype}")
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.dtype not in STORED
    ]
    if refusals:
        raise RefusedNodesError(graph.name or "model", refusals)
    names = tuple(tensor.name for tensor in graph.inputs)
    titles = tuple(tensor.name for tensor in graph.outputs)
    outputs = _made(build, titles)
    stages = _needed(build.stages, outputs)
    in_place = {
        name: graph.in_place[title]
        for name, title in zip(outputs, titles, strict=True)
        if title in graph.in_place
    }
    program = Program(
        graph.name, names, outputs, titles, stages, build.values, build.constants, graph.counted,
        in_place,
    )  # fmt: skip
    whole = program.with_stages(stages)
    return replace(whole, ranges=input_ranges(whole))


def _needed(stages: Sequence[Stage], outputs: Sequence[str]) -> tuple[Stage, ...]:
    """The stages without those whose results nothing reads."""
    names, kept = {*outputs}, list[Stage]()
    for stage in reversed(stages):
        if names & {*stage.outputs}:
            names |= {*stage.inputs}
            kept.append(stage)
    return tuple(reversed(kept))


def _made(build: Builder, titles: tuple[str, ...]) -> tuple[str, ...]:
    """The tensors of the outputs: copies of those that no stage makes, or that are asked twice."""
    made = {name for stage in build.stages for name in stage.outputs}
    names: list[str] = []
    for title in titles:
        name = title
        if title not in made or title in names:
            value = build.values[title]
            name = build.fresh(f"{title}.output", value.shape, value.dtype)
            build.stages.append(LoopStage(f"copy {title}", name, build.load(title, name)))
        names.append(name)
    return tuple(names)
