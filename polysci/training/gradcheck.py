"""gradcheck: gradients beside central differences, both of the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.border.guard import guard
from polysci.errors import CheckError
from polysci.network.frontends.onnx import reference
from polysci.network.gradients.differentiate import differentiate
from polysci.network.ir.graph import Array, Graph
from polysci.training.model import Source, model_of
from polysci.training.step_graph import TARGET, with_loss

STEP = 1e-6  # of a parameter, times its norm along the direction
DIRECTIONS = 3  # of each parameter


@guard
def gradcheck(
    model: Source, shape: Sequence[int], loss: str = "cross_entropy", *, seed: int = 0,
    tolerance: float = 1e-5,
) -> dict[str, float]:  # fmt: skip
    """By parameter, the largest relative difference along random directions.

    Of a model at its first values, for a random batch. Raises CheckError for a difference above
    ``tolerance``, else what ``compile_training`` raises; needs the extra ``onnx``.
    """
    trained, random = model_of(model, shape, seed=seed), np.random.default_rng(seed)
    graph = with_loss(trained, loss)
    values = _values(graph, {**trained.learning.parameters, **trained.learning.state}, random)
    names, value = [*trained.learning.parameters], graph.outputs[0].name
    made = reference.run(differentiate(graph, value, names), values)
    worst: dict[str, float] = {}
    for name in names:
        gradient = made[f"{name}.gradient"]
        norm = float(np.linalg.norm(gradient))
        for _ in range(DIRECTIONS):
            direction = random.normal(size=gradient.shape)
            direction /= np.linalg.norm(direction)
            low, high = (
                reference.run(graph, values | {name: values[name] + side * STEP * direction})
                for side in (-1, 1)
            )
            slope = float(high[value].sum() - low[value].sum()) / (2 * STEP)
            apart = abs(float(np.sum(gradient * direction)) - slope) / max(norm, 1e-3)
            worst[name] = max(worst.get(name, 0.0), apart)
    if wrong := {name: apart for name, apart in worst.items() if not apart <= tolerance}:
        name = max(wrong, key=lambda key: wrong[key])
        raise CheckError(
            f"gradient of {name}: {wrong[name]:.2g} of its norm from central differences; "
            f"{len(wrong)} of {len(worst)} parameters are wrong"
        )
    return worst


def _values(graph: Graph, first: dict[str, Array], random: np.random.Generator) -> dict[str, Array]:
    """Inputs in float64: normal x and target, or a class for each row."""
    values: dict[str, Array] = {name: value.astype(np.float64) if value.dtype.kind == "f" else value
                                for name, value in first.items()}  # fmt: skip
    for tensor in graph.inputs:
        if tensor.name == TARGET and tensor.dtype == "int64":
            values[TARGET] = random.integers(0, 2, tensor.shape)
        elif tensor.name not in values:
            values[tensor.name] = random.normal(size=tensor.shape)
    return values
