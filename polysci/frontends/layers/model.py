"""A list of layers -> a graph whose parameters are inputs, with their first values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from polysci.border.arguments import check_real, check_type, check_whole
from polysci.errors import SpecError
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Tensor
from polysci.numerics.arrays import Array

Extents = int | Sequence[int]
MOST_ELEMENTS = 1 << 60  # of a tensor; so many f64 are 2^63 bytes
# Fields that may be smaller than 1, and real ones that have another limit than f32 has.
_LEAST = MappingProxyType(
    {"padding": 0, "output_padding": 0}
    | dict.fromkeys(("dim", "start_dim", "end_dim", "negative_slope", "alpha"), -MOST_ELEMENTS)
)
_BELOW = MappingProxyType({"p": 1.0})


@dataclass(frozen=True, slots=True)
class CheckedLayer:
    """A layer whose wrong fields raise TypeError or SpecError."""

    def __post_init__(self) -> None:
        """Raise TypeError for a value of another type, SpecError for one out of range."""
        for own in fields(self):
            kind, value = str(own.type).removesuffix(" | None"), getattr(self, own.name)
            if kind in _CHECKS and (value is not None or kind == own.type):
                name = type(self).__name__.removesuffix("Layer")
                _CHECKS[kind](f"{name}: {own.name}", value)


def check_number(what: str, value: object) -> None:
    """Raise TypeError for no real number, SpecError for one that the field cannot be."""
    name = what.split()[-1]
    check_real(what, value, _LEAST.get(name, 0), _BELOW.get(name, 2.0**128))


def check_elements(what: str, shape: Sequence[int]) -> None:
    """Raise SpecError for a shape that no memory holds."""
    if prod(shape) >= MOST_ELEMENTS:
        raise SpecError(f"{what}: {list(shape)} has 2^60 elements or more")


def _check_count(what: str, value: object) -> None:
    check_whole(what, value, _LEAST.get(what.split()[-1], 1), MOST_ELEMENTS)


def _check_extents(what: str, value: object) -> None:
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for part in parts:
        _check_count(what, part)


# By the text of a field's type.
_CHECKS: Mapping[str, Callable[[str, Any], None]] = MappingProxyType(
    {
        "int": _check_count,
        "Extents": _check_extents,
        "float": check_number,
        "bool": lambda what, value: check_type(what, value, bool),
        "Sequence[Layer]": lambda what, value: check_type(what, value, list, tuple),
    }
)


INPUT = "x"
Shape = tuple[int, ...]


@dataclass(slots=True)
class LayerGraph(GraphBuilder):
    """The graph of a model while its layers add to it.

    ``parameters`` are what training changes by gradients; ``state`` is what a step itself replaces,
    as running statistics, and ``replaced`` says by which tensor. ``training``: layers behave as
    while a model learns.
    """

    training: bool = False
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    parameters: dict[str, Array] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)

    def parameter(self, name: str, value: Array) -> str:
        """Add an input that gradients change, with its first value."""
        self.parameters[name] = np.ascontiguousarray(value, np.float32)
        self.tensors[name] = Tensor(name, value.shape)
        return name

    def uniform(self, name: str, shape: Shape, fan: int) -> str:
        """Add a parameter, at first uniform within ``1 / sqrt(fan)``: PyTorch's choice."""
        check_elements(name, shape)
        limit = 1 / np.sqrt(max(1, fan))
        return self.parameter(name, self.random.uniform(-limit, limit, shape))

    def keep(self, name: str, value: Array) -> str:
        """Add an input that a step replaces."""
        self.state[name] = value
        self.tensors[name] = Tensor(name, value.shape, value.dtype.name)
        return name


@runtime_checkable
class Layer(Protocol):
    """A layer of a list."""

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        """Add the layer; return its result. Names of parameters begin with ``name.``."""
        ...


@dataclass(frozen=True, slots=True)
class LayeredModel:
    """A graph of the inputs x, parameters and state, and the first values of both.

    Its output is the model's, behind it stand the tensors that replace state, by ``replaced``.
    """

    graph: Graph
    parameters: Mapping[str, Array]
    state: Mapping[str, Array]
    replaced: Mapping[str, str]

    def fix_values(self, values: Mapping[str, Array] | None = None) -> Graph:
        """Return the graph for inference: parameters and state are constants, by default the first.

        Raises SpecError where ``values`` lack one of them or give it another shape.
        """
        first = {**self.parameters, **self.state}
        chosen = first if values is None else {name: values.get(name) for name in first}
        constants = {}
        for name, array in chosen.items():
            if array is None or np.shape(array) != first[name].shape:
                shape = None if array is None else np.shape(array)
                raise SpecError(f"{name}: expected shape {first[name].shape}, got {shape}")
            constants[name] = np.ascontiguousarray(array, first[name].dtype)
        return replace(
            self.graph,
            inputs=tuple(tensor for tensor in self.graph.inputs if tensor.name not in first),
            outputs=self.graph.outputs[:1],
            constants={**self.graph.constants, **constants},
        )


def build_model(
    layers: Sequence[Layer], shape: Sequence[int], *, training: bool = False, seed: int = 0,
    name: str = "model",
) -> LayeredModel:  # fmt: skip
    """Build the layers one after the other on an input of ``shape``, f32, images first.

    Names of parameters are those of a ``torch.nn.Sequential``: ``0.weight``. Raises TypeError for
    what is no layer and for sizes that are no whole numbers, SpecError for shapes that do not fit.
    """
    check_whole("seed", seed, 0)
    for at, size in enumerate(shape):
        check_whole(f"shape[{at}]", size, 0)
    check_elements("shape", shape)
    x = Tensor(INPUT, tuple(int(size) for size in shape))
    empty = Graph(name, (x,), (), (), {}, {INPUT: x})
    graph = LayerGraph(empty, training=training, random=np.random.default_rng(seed))
    y = extend_all(graph, layers, INPUT)
    if y == INPUT:
        y = graph.add("identity", (y,), graph.shape(y))
    inputs = [x, *(graph.tensors[name] for name in (*graph.parameters, *graph.state))]
    return LayeredModel(
        graph.to_graph(inputs, [y, *graph.replaced.values()]), MappingProxyType(graph.parameters),
        MappingProxyType(graph.state), MappingProxyType(graph.replaced),
    )  # fmt: skip


def extend_all(graph: LayerGraph, layers: Sequence[Layer], x: str, prefix: str = "") -> str:
    """Add the layers one after the other."""
    for number, layer in enumerate(layers):
        if not isinstance(layer, Layer) or isinstance(layer, type):
            raise TypeError(f"layer {prefix}{number}: expected a layer, got {layer!r:.80}")
        try:
            x = layer.extend(graph, x, f"{prefix}{number}")
            check_elements("the result", graph.shape(x))
        except SpecError as error:
            if str(error).startswith("layer "):
                raise
            raise SpecError(f"layer {prefix}{number} {layer!r:.200}: {error}") from None
    return x


def check_axes(graph: LayerGraph, x: str, *ranks: int) -> Shape:
    """Return the shape of x. Raises SpecError where it has another number of axes."""
    shape = graph.shape(x)
    if len(shape) not in ranks:
        raise SpecError(f"expected {' or '.join(map(str, ranks))} axes, got {list(shape)}")
    return shape


def check_extent(name: str, expected: int, actual: int) -> None:
    """Raise SpecError where an extent of x is not what a layer was made for."""
    if expected != actual:
        raise SpecError(f"{name}={expected}, but x has {actual}")


def per_axis(value: int | Sequence[int], axes: int, name: str) -> tuple[int, ...]:
    """Return a number for each axis, from one for all or a list."""
    values = tuple(map(int, value)) if isinstance(value, Sequence) else (int(value),) * axes
    if len(values) != axes:
        raise SpecError(f"{name}={value!r:.80}: expected a whole number, or {axes} of them")
    return values
