"""A network, data and a budget -> the type of the weights of each product, and what that loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

from polysci.border.arguments import describe
from polysci.errors import SpecError
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import NARROW_MATMUL, Graph
from polysci.graph.passes.rounded_weights import (
    INPUTS_ONLY,
    add_rounded,
    round_products,
)
from polysci.network.compiled import compile_network
from polysci.network.prepare import Model, graph_of
from polysci.numerics.arrays import Array
from polysci.quantize.losses import Say, check_budget, largest_loss, ratio
from polysci.quantize.samples import Sample, read_arrays, samples_of

TYPES: Final = ("int4a8", "int4", "int8a8", "int8", "bf16")  # the fastest first
PLAIN: Final = "f32"  # of a product that stays as it is


@dataclass(frozen=True, slots=True)
class ProductLoss:
    """A product, the type of its weights, and what it loses by itself in each that it may have.

    A loss is the root of the sum of squares of differences from the product as it is, over that of
    its results. Type ``f32`` is the product as it is, ``a8`` one whose weights are narrow already,
    beside inputs of 8 bits.
    """

    name: str
    weights: str
    losses: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The loss in its own type."""
        return self.losses.get(self.weights, 0.0)


@dataclass(frozen=True, slots=True)
class ChosenWeights:
    """A graph whose products have weights of types; ``loss`` is the largest of its outputs'."""

    graph: Graph
    products: tuple[ProductLoss, ...]
    loss: float
    samples: int


@dataclass(frozen=True, slots=True)
class _SampledGraph:
    """A graph with its samples, and how to run others made of it."""

    graph: Graph
    threads: int
    say: Say
    samples: Sequence[Sample]
    expected: Sequence[Mapping[str, Array]] = ()

    def run(self, graph: Graph) -> Iterator[Mapping[str, Array]]:
        """Yield the results of each sample, by output."""
        network = compile_network(graph, "estimate", threads=self.threads)
        names = [tensor.name for tensor in graph.outputs]
        for sample in self.samples:
            results = network(sample)
            yield results if isinstance(results, Mapping) else {names[0]: results}

    def loss(self, chosen: Mapping[str, str]) -> float:
        """Return the loss of the network with products, by their results, in types."""
        if not any(kind != PLAIN for kind in chosen.values()):
            return 0.0
        narrow = {name: kind for name, kind in chosen.items() if kind != PLAIN}
        return largest_loss(self.run(round_products(self.graph, narrow)), self.expected)

    def losses(self, kind: str) -> dict[str, float]:
        """Return what each product loses by itself in a type, for those that have it."""
        growing, sums = GraphBuilder(self.graph), dict[str, tuple[str, str]]()
        for node in self.graph.nodes:
            narrow = add_rounded(growing, node, kind)
            if narrow:
                y = node.outputs[0]
                off = growing.add("sub", (narrow, y), growing.shape(y), growing.dtype(y))
                sums[y] = _squares(growing, off), _squares(growing, y)
        if not sums:
            return {}
        graph = growing.to_graph(self.graph.inputs, [name for own in sums.values() for name in own])
        totals = dict.fromkeys((tensor.name for tensor in graph.outputs), 0.0)
        for results in self.run(replace(graph, in_place={})):
            for name in totals:
                totals[name] += float(results[name])
        return {y: ratio(totals[off], totals[size]) for y, (off, size) in sums.items()}


def _squares(graph: GraphBuilder, x: str) -> str:
    """Add the sum of the squares of a tensor."""
    squares = graph.add("mul", (x, x), graph.shape(x), graph.dtype(x))
    return graph.total(squares, range(len(graph.shape(x))))


def choose_weights(
    model: Model | Graph, data: str | PathLike[str] | Mapping[str, Array], max_loss: float, *,
    dims: Mapping[str, int] | None = None, values: Mapping[str, Any] | None = None,
    external: bool = False, threads: int = 1, say: Say = lambda text: None,
) -> ChosenWeights:  # fmt: skip
    """Choose the type of constant weights of each product of matrices, as far as a budget permits.

    ``data`` are arrays by input, or the path of an .npz file of them, as ``quantize_model`` takes
    them. Each product gets the first of ``int4a8, int4, int8a8, int8, bf16`` that it loses no more
    in by itself than a threshold, else it stays as it is; the threshold is the largest for which
    the measured loss of the network is at most ``max_loss``. A product whose weights are narrow
    already may get ``a8``. ``say`` hears of the progress. Compile ``graph`` of the result, by
    ``compile_network``. Raises SpecError for data that does not fit, for a budget that is none,
    and for networks with state, without such products, or with results as long as data decides.
    """
    if isinstance(max_loss, bool) or not isinstance(max_loss, int | float):
        raise TypeError(f"max_loss: expected a number, got {describe(max_loss)}")
    check_budget(max_loss)
    graph = model if isinstance(model, Graph) else graph_of(model, dims, values, external=external)
    calibration = _sample_graph(graph, data, threads, say)
    losses = _losses(calibration)
    chosen, loss = _choose(calibration, losses, max_loss)
    names = {node.outputs[0]: str(node) for node in graph.nodes}
    rows = tuple(ProductLoss(names[y], chosen[y], own) for y, own in losses.items())
    narrow = {y: kind for y, kind in chosen.items() if kind != PLAIN}
    return ChosenWeights(
        round_products(graph, narrow), rows, loss, len(calibration.samples)
    )  # fmt: skip


def _sample_graph(
    graph: Graph, data: str | PathLike[str] | Mapping[str, Array], threads: int, say: Say
) -> _SampledGraph:
    """Run the network as it is. Raises SpecError for one that cannot be calibrated."""
    for what, has in (("keeps state", graph.state), ("has results as long as data decides",
                                                     graph.dynamic_dims)):  # fmt: skip
        if has:
            raise SpecError(f"weights auto: the network {what}; expected one that runs on samples")
    arrays = data if isinstance(data, Mapping) else read_arrays(data)
    network = compile_network(graph, "estimate", threads=threads)
    calibration = _SampledGraph(graph, threads, say, samples_of(arrays, network.inputs))
    return replace(calibration, expected=[*calibration.run(graph)])


def _losses(calibration: _SampledGraph) -> dict[str, dict[str, float]]:
    """Return what products lose by themselves, by their result and type."""
    graph, by_product = calibration.graph, dict[str, dict[str, float]]()
    has_narrow = any(node.op == NARROW_MATMUL for node in graph.nodes)
    for kind in (*TYPES, *[INPUTS_ONLY] * has_narrow):
        calibration.say(f"running each product in {kind} by itself")
        for y, loss in calibration.losses(kind).items():
            by_product.setdefault(y, {})[kind] = loss
    if not by_product:
        raise SpecError(f"{graph.name}: no product of matrices with constant weights of f32")
    order = [node.outputs[0] for node in graph.nodes if node.outputs[0] in by_product]
    return {y: by_product[y] for y in order}


def _choose(
    calibration: _SampledGraph, losses: Mapping[str, Mapping[str, float]], budget: float
) -> tuple[dict[str, str], float]:
    """Return types for products and the loss of the network: those of the largest threshold."""

    def types_at(threshold: float) -> dict[str, str]:
        return {
            y: next((kind for kind, loss in own.items() if loss <= threshold), PLAIN)
            for y, own in losses.items()
        }

    steps = [-1.0, *sorted({loss for own in losses.values() for loss in own.values()})]
    least, most, best = 0, len(steps) - 1, (types_at(-1.0), 0.0)
    while least < most:
        middle = (least + most + 1) // 2
        chosen = types_at(steps[middle])
        loss = calibration.loss(chosen)
        count = sum(kind != PLAIN for kind in chosen.values())
        calibration.say(
            f"{count} of {len(chosen)} products narrow, each off by up to {steps[middle]:.3g}: "
            f"loss {loss:.3g}, {'within' if loss <= budget else 'beyond'} {budget:g}"
        )
        if loss <= budget:
            least, best = middle, (chosen, loss)
        else:
            most = middle - 1
    return best
