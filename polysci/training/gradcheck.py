"""gradcheck: gradients beside central differences of the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from polysci.api import compile
from polysci.border.guard import guard
from polysci.errors import CheckError, UnsupportedError
from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.network.compiled import compile_network
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv_transpose2d import ConvTranspose2d
from polysci.ops.convolution_gradients import GRADIENTS
from polysci.ops.convolutions import Convolution
from polysci.ops.matmul import Matmul
from polysci.ops.problem import Problem
from polysci.runtime.backends import device_named
from polysci.training.model import TARGET, Source, model_of, with_loss

Gradient = tuple[Problem, str, str]  # a problem, and which of x, w and dy are its factors


def gradients_of_problem(problem: Problem) -> dict[str, Gradient]:
    """Return the problem and factors of the gradient of each operand, x and w.

    Raises UnsupportedError for integers, an activation, and other problems.
    """
    if precision_named(problem.dtype).integer or problem.activation:
        raise UnsupportedError(f"{problem}: gradients are of real sums without an activation")
    if isinstance(problem, Matmul):
        return _of_matmul(problem)
    if isinstance(problem, ConvTranspose2d):
        data, filters = problem.gradient("bwd_d"), problem.gradient("bwd_w")
        return {"x": (data, "dy", "w"), "w": (filters, "dy", "x")}
    if not isinstance(problem, Convolution):
        raise UnsupportedError(f"{problem}: expected a convolution, ConvTranspose2d or Matmul")
    of_input, of_filters = (gradient(problem) for gradient in GRADIENTS[type(problem)])
    return {"x": (of_input, "dy", "w"), "w": (of_filters, "x", "dy")}


def _of_matmul(product: Matmul) -> dict[str, Gradient]:
    """Return ``dA = dO B'`` and ``dB = A' dO``, stored as A and B are."""
    turned = product.transposed

    def factors(a: bool, b: bool, o: bool) -> str:
        return "a" * a + "b" * b + "o" * o

    m, k, n, flat = product.M, product.K, product.N, product.with_(constant="", beta=1.0)
    of_a = flat.with_(
        M=m, K=n, N=k, transposed=factors("o" in turned, "b" not in turned, "a" in turned)
    )
    of_b = flat.with_(
        M=k, K=m, N=n, transposed=factors("a" not in turned, "o" in turned, "b" in turned)
    )
    a, b = ("w", "x") if product.w_is_a else ("x", "w")
    return {a: _with_factors(of_a, "dy", b), b: _with_factors(of_b, a, "dy")}


def _with_factors(product: Matmul, a: str, b: str) -> Gradient:
    return (product, b, a) if product.w_is_a else (product, a, b)


STEP = 1e-6  # of a parameter, times its norm along the direction
DIRECTIONS = 3  # of each parameter


@guard
def gradcheck(
    model: Source | Problem, shape: Sequence[int] = (), loss: str = "cross_entropy", *,
    seed: int = 0, tolerance: float = 1e-5, device: str | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the largest relative difference along random directions, by parameter.

    Of a model at its first values, for a random batch of ``shape``. Or of x and w of a problem (a
    convolution, ConvTranspose2d or Matmul), whose gradients are those of its gradient problems; it
    has no ``shape`` and ``loss``. The gradients are those of the reference in float64, or with a
    ``device`` (``host``, ``opencl:0``) those that code for it computes in f32. Raises CheckError
    for a difference above ``tolerance``, UnsupportedError for a problem without gradients, else
    what ``compile_training`` raises; a model needs the extra ``onnx``.
    """
    if isinstance(model, Problem):
        return _check_problem(model, np.random.default_rng(seed), tolerance, device)
    trained, random = model_of(model, shape, seed=seed), np.random.default_rng(seed)
    graph = with_loss(trained, loss)
    values = _values(graph, {**trained.learning.parameters, **trained.learning.state}, random)
    names, value = [*trained.learning.parameters], graph.outputs[0].name
    whole = differentiate(graph, value, names)
    results = reference.run(whole, values) if device is None else _run_graph(whole, values, device)

    def loss_at(name: str, array: Array) -> float:
        return float(reference.run(graph, values | {name: array})[value].sum())

    return _check({
        name: _difference(results[f"{name}.gradient"], values[name], partial(loss_at, name), random)
        for name in names
    }, tolerance)  # fmt: skip


def _check_problem(
    problem: Problem, random: np.random.Generator, tolerance: float, device: str | None
) -> dict[str, float]:
    """Check the gradients of the sum of products of y and random numbers."""
    gradients = gradients_of_problem(problem)
    shapes = {"x": problem.x_shape, "w": problem.w_shape, "dy": problem.y_shape}
    arrays = {name: _normal(random, shape) for name, shape in shapes.items()}

    def loss_at(name: str, array: Array) -> float:
        moved = arrays | {name: array}
        return float(np.sum(problem.reference(moved["x"], moved["w"]) * arrays["dy"]))

    worst = dict[str, float]()
    for name, (gradient, first, second) in gradients.items():
        factors = arrays[first], arrays[second]
        run = gradient.reference if device is None else partial(_run_problem, gradient, device)
        result = run(*factors)
        worst[name] = _difference(result, arrays[name], partial(loss_at, name), random)
    return _check(worst, tolerance)


def _normal(random: np.random.Generator, shape: Sequence[int]) -> Array:
    """Return normal numbers that f32 has, in float64."""
    return random.normal(size=shape).astype(np.float32).astype(np.float64)


def _run_problem(problem: Problem, device: str, x: Array, w: Array) -> Array:
    """Return what code for a device computes in f32."""
    primitive = compile(problem, "estimate", target=device_named(device))
    x, w = x.astype(np.float32), w.astype(np.float32)
    weights = w if problem.w_kind == "activation" else primitive.pack_weights(w)
    return primitive(x, weights).astype(np.float64)


def _run_graph(graph: Graph, values: Mapping[str, Array], device: str) -> dict[str, Array]:
    """Return what code for a device computes in f32."""
    network = compile_network(simplify(graph), "estimate", device=device)
    arrays = {port.name: values[port.name].astype(port.dtype) for port in network.inputs}
    return {name: array.astype(np.float64) for name, array in network(arrays).items()}


def _difference(
    gradient: Array, at: Array, loss_at: Callable[[Array], float], random: np.random.Generator
) -> float:
    """Return the largest distance from central differences, over the gradient's norm."""
    norm, apart = float(np.linalg.norm(gradient)), [0.0]
    for _ in range(DIRECTIONS if at.size else 0):
        direction = random.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        low, high = (loss_at(at + side * STEP * direction) for side in (-1, 1))
        slope = (high - low) / (2 * STEP)
        apart.append(abs(float(np.sum(gradient * direction)) - slope) / max(norm, 1e-3))
    return max(apart)


def _check(worst: dict[str, float], tolerance: float) -> dict[str, float]:
    """Return the differences. Raises CheckError for one above the tolerance."""
    if wrong := {name: apart for name, apart in worst.items() if not apart <= tolerance}:
        name = max(wrong, key=lambda key: wrong[key])
        raise CheckError(
            f"gradient of {name}: {wrong[name]:.2g} of its norm from central differences; "
            f"{len(wrong)} of {len(worst)} parameters are wrong"
        )
    return worst


def _values(graph: Graph, first: dict[str, Array], random: np.random.Generator) -> dict[str, Array]:
    """Return inputs in float64: normal x and target, or a class for each row."""
    values: dict[str, Array] = {
        name: value.astype(np.float64) if value.dtype.kind == "f" else value
        for name, value in first.items()
    }
    for tensor in graph.inputs:
        if tensor.name == TARGET and tensor.dtype == "int64":
            values[TARGET] = random.integers(0, 2, tensor.shape)
        elif tensor.name not in values:
            values[tensor.name] = _normal(random, tensor.shape)
    return values
