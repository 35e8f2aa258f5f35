"""Reverse-mode differentiation of a graph: its backward pass as nodes behind its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.graph.builder import FLOATS, Backward
from polysci.graph.graph import Graph, Node, Tensor
from polysci.graph.operators import OPERATORS
from polysci.graph.refusals import NodeRefusal, RefusedNodesError

NO_GRADIENT = "polysci has no gradient of this operator"


def differentiate(graph: Graph, loss: str, wrt: Sequence[str]) -> Graph:
    """The graph with two kinds of outputs: ``loss``, then ``NAME.gradient`` for each of ``wrt``.

    A tensor on which the loss does not depend has a gradient of zeros. Raises as
    ``add_gradients`` does.
    """
    return _with_gradients(Backward(graph, wanted=dependents(graph, wrt)), graph.inputs, loss, wrt)


def pull_back(graph: Graph, y: str, wrt: Sequence[str]) -> Graph:
    """Differentiate a tensor of any shape, whose gradient is one more input: ``Y.gradient``."""
    back = Backward(graph, wanted=dependents(graph, wrt))
    dy = Tensor(f"{y}.gradient", back.shape(y), back.dtype(y))
    if dy.name in back.tensors:
        raise SpecError(f"{dy.name!r:.200}: a tensor of the model has this name")
    back.tensors[dy.name] = dy
    return _with_gradients(back, (*graph.inputs, dy), y, wrt, dy.name)


def _with_gradients(
    back: Backward, inputs: Sequence[Tensor], y: str, wrt: Sequence[str], dy: str = ""
) -> Graph:
    gradients = add_gradients(back, y, wrt, dy)
    outputs = [y]
    for name in wrt:
        gradient = gradients.get(name) or back.constant(
            np.zeros(back.shape(name), back.dtype(name))
        )
        outputs.append(_publish(back, gradient, f"{name}.gradient"))
    return back.to_graph(inputs, outputs)


def dependents(graph: Graph, sources: Sequence[str]) -> frozenset[str]:
    """Real tensors that depend on some, these included."""
    reached = set(sources)
    for node in graph.nodes:
        if reached & {*node.inputs}:
            reached |= {
                name for name in node.outputs if name and graph.tensors[name].dtype in FLOATS
            }
    return frozenset(reached)


def add_gradients(back: Backward, loss: str, wrt: Sequence[str], dy: str = "") -> Mapping[str, str]:
    """Nodes for the gradients of ``loss`` by each of ``wrt``; the names of those that exist.

    ``loss`` has one element; or ``dy`` is its gradient. Raises SpecError for names that the graph
    lacks, or that hold no real numbers; RefusedNodesError with every node whose operator has no
    rule.
    """
    for name in (loss, *wrt):
        if name not in back.tensors or back.dtype(name) not in FLOATS:
            raise SpecError(f"{name!r:.200}: the graph has no such tensor of real numbers")
    if not dy and int(np.prod(back.shape(loss))) != 1:
        raise SpecError(f"loss {loss!r:.200}: expected one element, got {back.shape(loss)}")
    parts = {loss: [dy or back.constant(np.ones(back.shape(loss), back.dtype(loss)))]}
    refusals, gradients = list[NodeRefusal](), dict[str, str]()
    for node in reversed(back.graph.nodes):
        dys = [back.sum(parts.pop(name, [])) for name in node.outputs]
        gradients |= {name: dy for name, dy in zip(node.outputs, dys, strict=True) if dy}
        if not any(dys) or not any(back.wants(name) for name in node.inputs):
            continue
        row = OPERATORS.get(node.op)
        try:
            if row is None or row.gradient is None:
                raise UnsupportedError(NO_GRADIENT)
            dxs = row.gradient(back, node, dys)
        except UnsupportedError as error:
            refusals.append(NodeRefusal(node.op, str(node), str(error)))
            continue
        for name, dx in zip(node.inputs, dxs, strict=True):
            if dx and back.wants(name):
                parts.setdefault(name, []).append(dx)
    if refusals:
        raise RefusedNodesError(back.graph.name or "model", refusals)
    gradients |= {name: back.sum(some) for name, some in parts.items()}
    return {name: gradients[name] for name in wrt if name in gradients}


def _publish(back: Backward, name: str, title: str) -> str:
    """Give a tensor another name."""
    if title in back.tensors:
        raise SpecError(f"{title!r:.200}: a tensor of the model has this name")
    back.tensors[title] = replace(back.tensors[name], name=title)
    back.nodes.append(Node("identity", (name,), (title,)))
    return title
