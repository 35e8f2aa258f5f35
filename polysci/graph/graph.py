"""A network as data: tensors of fixed shapes, and operations on them in an order that runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from math import prod
from types import MappingProxyType
from typing import Any

from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import array_type
from polysci.program.stages import NO_SIZES, DataSizes, DynamicDim

# What lies between the two runs once for each step of a loop. LOOP_BEGIN (most steps, whether it
# begins, states, tensors to slice) -> (number of the step, states, slices); LOOP_END (that number,
# whether it goes on, states, parts) -> (states, stacked parts, number of steps).
LOOP_BEGIN, LOOP_END = "loop_begin", "loop_end"
AFFINE = "affine"  # (x, scale, shift): x * scale + shift, a number a channel, which is axis 1

# An LSTM whose W and R are of 8 bits, with their scales as two more inputs: one for each direction,
# or for each of its rows. Both factors of a product are rounded to 8 bits, as ONNX Runtime does.
QUANTISED_LSTM = "quantized_lstm"
NARROW_MATMUL = "narrow_matmul"
# (x, dy) of a Conv, with its attributes: the gradient of its weights. Of a ConvTranspose (dy, x).
CONV_WEIGHTS_GRADIENT = "conv_weights_gradient"
# The gradient of x of a pool with its attributes: of (dy, x), or of dy alone.
MAX_POOL_GRADIENT, AVERAGE_POOL_GRADIENT = "max_pool_gradient", "average_pool_gradient"
# (seed and step, int64[2]) -> bools, false with probability ``ratio``; ``key`` tells masks apart.
DROPOUT_MASK = "dropout_mask"
# Any tensors -> the elements that the expression ``expr`` defines; it calls the first tensor "0".
ELEMENTS = "elements"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A name, a shape and an element type: NumPy's name of it, or ``bf16``."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * array_type(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation, by its name in the table of operators; an input left out is an empty name."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    name: str = ""

    def input(self, index: int) -> str:
        """The name of an input; empty where there is none."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def __str__(self) -> str:
        return f"{self.op} {self.name or ', '.join(self.outputs)}"


@dataclass(frozen=True, slots=True)
class QuantisedConstant:
    """Whole numbers that stand for real ones, ``(numbers - zero) * scale``.

    Scales and zeros are one, one for each position along ``axis``, or, if ``block`` is not 0, one
    for each block of so many along it, with as many axes as the numbers.
    """

    numbers: Array
    scale: Array
    zero: Array
    axis: int = 0
    block: int = 0

    @property
    def transposed(self) -> QuantisedConstant:
        """The transpose of a matrix."""
        scale, zero = (part.T if part.ndim == 2 else part for part in (self.scale, self.zero))
        return QuantisedConstant(self.numbers.T, scale, zero, 1 - self.axis % 2, self.block)


class ConstantValues:
    """Tensors by name, of which some are constants."""

    __slots__ = ()
    constants: Mapping[str, Array]

    def constant_value(self, name: str) -> Array | None:
        """The value of a tensor that is known ahead."""
        return self.constants.get(name)


@dataclass(frozen=True, slots=True)
class Graph(ConstantValues):
    """``nodes`` come in an order that runs; ``constants`` are all inputs that no node makes.

    ``tensors`` knows every name that occurs: inputs, constants and what nodes make.
    ``dynamic_dims`` are outputs of which data decides the length, whose counts are outputs as well,
    behind the model's. ``in_place``: the input whose memory an output takes, by the output's name.
    ``state``: inputs that are no caller's, by name: what a run leaves of them the next one reads,
    and the first one these values. ``counter`` is that which counts tokens so far, if one does.
    ``dequantised`` says of constants which whole numbers they stand for, by name. ``data_sizes``:
    sizes that are checked behind a run, which an output behind the model's holds.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    tensors: Mapping[str, Tensor]
    dynamic_dims: Mapping[str, DynamicDim] = field(default_factory=lambda: MappingProxyType({}))
    in_place: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    state: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))
    counter: str = ""
    dequantised: Mapping[str, QuantisedConstant] = field(
        default_factory=lambda: MappingProxyType({})
    )
    data_sizes: DataSizes = NO_SIZES

    @property
    def model_outputs(self) -> tuple[Tensor, ...]:
        """The outputs without counts and sizes, and without what replaces state."""
        others = {mark.count for mark in self.dynamic_dims.values()} | {self.data_sizes.output}
        others |= {output for output, name in self.in_place.items() if name in self.state}
        return tuple(tensor for tensor in self.outputs if tensor.name not in others)

    def part_name(self, node: Node, part: str) -> str:
        """Return a name for a part of a node that no tensor has."""
        name = f"{node.outputs[0]}.{part}"
        numbered = (f"{name}.{at}" for at in count(1))
        return next(
            candidate for candidate in chain([name], numbered) if candidate not in self.tensors
        )

    def makers(self) -> dict[str, Node]:
        """Tensor -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def readers(self) -> dict[str, list[Node]]:
        """Tensor -> the nodes that read it, in order."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    readers.setdefault(name, []).append(node)
        return readers

    def small_sources(self, names: Iterable[str]) -> tuple[str, ...]:
        """The inputs on which tensors depend; none where one of them is more than a list."""
        seen = ancestors(names, self.makers())
        inputs = [tensor for tensor in self.inputs if tensor.name in seen]
        small = all(len(tensor.shape) < 2 for tensor in inputs)
        return tuple(tensor.name for tensor in inputs) if small else ()

    def lines(self) -> Iterator[str]:
        """One line a node, for people."""
        for node in self.nodes:
            results = ", ".join(str(self.tensors[name]) for name in node.outputs if name)
            yield f"{node.op}({', '.join(node.inputs)}) -> {results}"


def rebuild(
    graph: Graph, nodes: Iterable[Node], constants: Mapping[str, Array] | None = None
) -> Graph:
    """The graph of other nodes, without those and the constants that no output needs.

    New constants come with ``constants``; what new nodes make had a name and a shape before.
    """
    known = {**graph.constants, **(constants or {})}
    needed, kept = {tensor.name for tensor in graph.outputs}, list[Node]()
    for node in reversed(list(nodes)):
        if needed & set(node.outputs):
            needed.update(name for name in node.inputs if name)
            kept.append(node)
    kept.reverse()
    produced = {name for node in kept for name in node.outputs if name}
    tensors = {name: graph.tensors[name] for name in produced if name in graph.tensors}
    tensors |= {tensor.name: tensor for tensor in graph.inputs}
    used = {name: value for name, value in known.items() if name in needed}
    tensors |= {name: Tensor(name, v.shape, v.dtype.name) for name, v in used.items()}
    return replace(graph, nodes=tuple(kept), constants=used, tensors=tensors)


def end_of_loop(nodes: Sequence[Node], begin: int) -> int:
    """Return the place of the node that ends the steps that another one begins."""
    number = nodes[begin].outputs[0]
    return next(
        at for at in range(begin, len(nodes))
        if nodes[at].op == LOOP_END and nodes[at].inputs[0] == number
    )  # fmt: skip


def ancestors(names: Iterable[str], makers: Mapping[str, Node]) -> set[str]:
    """Tensors, and all those that they are computed from."""
    seen, queue = set[str](), list(names)
    while queue:
        name = queue.pop()
        if name and name not in seen:
            seen.add(name)
            queue += makers[name].inputs if name in makers else ()
    return seen
