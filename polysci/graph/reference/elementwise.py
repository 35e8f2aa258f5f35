"""Operators that treat every element alike, and choices between tensors."""

from __future__ import annotations

import numpy as np

from polysci.graph.reference.evaluation import Evaluation
from polysci.loop_ir.element_values import evaluate
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import from_bf16, to_bf16
from polysci.numerics.scalar_functions import ScalarFunction, apply_numpy


def by_function(of: Evaluation, function: ScalarFunction) -> list[Array]:
    """The values of a scalar function, of real numbers in the type of the first."""
    values = of.inputs
    numbers = [
        float(of.node.attributes.get(name, value)) for name, value in function.parameters.items()
    ]
    made = apply_numpy(function.name, *values, *map(np.asarray, numbers))
    return [made if made.dtype.kind != "f" else made.astype(values[0].dtype)]


def gelu(of: Evaluation) -> list[Array]:
    """Gelu by erf, or by tanh."""
    (x,) = of.inputs
    tanh = of.node.attributes.get("approximate", "none") == "tanh"
    return [apply_numpy("gelu_tanh" if tanh else "gelu", x).astype(x.dtype)]


def affine(of: Evaluation) -> list[Array]:
    x, scale, shift = of.inputs
    along = (-1, *[1] * (x.ndim - 2))
    return [x * scale.reshape(along) + shift.reshape(along)]


def elements(of: Evaluation) -> list[Array]:
    """The tensor whose elements an expression defines; it calls inputs by their numbers."""
    (tensor,) = of.results
    inputs = {str(at): of.known[name] for at, name in enumerate(of.node.inputs)}
    value = evaluate(of.node.attributes["expr"], tensor.shape, inputs)
    return [value if value.dtype.kind == tensor.dtype[0] == "f" else value.astype(tensor.dtype)]


def cast(of: Evaluation) -> list[Array] | None:
    """Numbers as those of the result's type, where no attribute says it."""
    if "to" in of.node.attributes or not of.results:
        return None
    (x,), dtype = of.inputs, of.results[0].dtype
    return [from_bf16(to_bf16(x)) if dtype == "bf16" else x.astype(dtype)]


def choose(of: Evaluation) -> list[Array] | None:
    """If: the results of one of its branches."""
    condition, *names = of.node.inputs
    half = len(names) // 2
    chosen = names[:half] if of.known[condition].any() else names[half:]
    return [of.known[name] for name in chosen]
