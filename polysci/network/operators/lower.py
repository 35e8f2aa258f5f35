"""A simplified graph -> a program: every node as stages, or all nodes that cannot be named."""

from __future__ import annotations

from polysci.errors import SpecError, UnsupportedError
from polysci.network.ir.graph import Graph
from polysci.network.ir.stages import LoopStage, Program
from polysci.network.operators import FOLDED, OPERATORS
from polysci.network.operators.builder import NUMBERS, Builder, Refusal

SUPPORTED = (*OPERATORS, *FOLDED)


def lower(graph: Graph) -> Program:
    """The stages of a graph, one operator after the other.

    Raises UnsupportedError, which names every node that cannot be computed and why.
    """
    build, faults = Builder(graph), list[str]()
    for node in graph.nodes:
        operator = OPERATORS.get(node.op)
        try:
            if operator is None:
                raise Refusal("no such operator here")
            operator(build, node)
        except (Refusal, UnsupportedError, SpecError) as error:
            faults.append(f"{str(node)!r:.200}: {error}")
    faults += [
        f"{tensor.name!r:.200}: elements of {tensor.dtype}"
        for tensor in (*graph.inputs, *graph.outputs)
        if tensor.dtype not in NUMBERS
    ]
    if faults:
        told = "; ".join(faults)
        raise UnsupportedError(f"{graph.name or 'model'}: {len(faults)} unsupported nodes: {told}")
    names = tuple(tensor.name for tensor in graph.inputs)
    titles = tuple(tensor.name for tensor in graph.outputs)
    outputs = _made(build, titles)
    stages = tuple(build.stages)
    program = Program(graph.name, names, outputs, titles, stages, build.values, build.constants)
    return program.with_stages(stages)


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
