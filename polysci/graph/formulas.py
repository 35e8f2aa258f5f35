"""Formulas whose operations become nodes: ``derive(graph, "dy * (1 - square(y))", dy=, y=)``.

Names stand for tensors or numbers. Beside scalar functions, by the names of their table, formulas
may call the graph's operators: ``clip(x, 0, 6)``.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial

import numpy as np

from polysci.graph.builder import GraphBuilder
from polysci.numerics.formulas import evaluate, parse
from polysci.numerics.scalar_functions import is_predicate

Part = str | float  # a tensor, or a number


def derive(graph: GraphBuilder, formula: str | ast.expr, **names: Part) -> str:
    """The tensor that a formula of tensors and numbers gives; shapes broadcast."""
    part = parse(formula) if isinstance(formula, str) else formula
    tensor = evaluate(part, dict(names), partial(_apply, graph))
    assert isinstance(tensor, str), f"{ast.unparse(part)}: no tensor in it"
    return tensor


def _apply(graph: GraphBuilder, function: str, parts: Sequence[Part]) -> str:
    """A node; numbers are of the element type of the tensors beside them."""
    if function in ("square", "cube"):
        (x,) = parts
        squared = _apply(graph, "mul", (x, x))
        return squared if function == "square" else _apply(graph, "mul", (squared, x))
    values = parts[1:] if function == "select" else parts
    dtypes = [graph.dtype(part) for part in values if isinstance(part, str)]
    truths = function == "select" and dtypes == ["bool"] * len(values)
    own = "bool" if truths else next((dtype for dtype in dtypes if dtype != "bool"), "float32")
    inputs = [part if isinstance(part, str) else graph.number(part, own) for part in parts]
    shape = np.broadcast_shapes(*(graph.shape(name) for name in inputs))
    return graph.add(function, inputs, shape, "bool" if is_predicate(function) else own)
