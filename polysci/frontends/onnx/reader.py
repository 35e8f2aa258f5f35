"""Walks the nodes of a model once: every tensor gets a type, and a value where it can be known."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.errors import SpecError
from polysci.frontends.onnx.attributes import graph_attributes
from polysci.frontends.onnx.model_file import DOMAINS, Body, rename_nodes
from polysci.frontends.onnx.tensors import TensorTable, Types, fold, infer, infer_own
from polysci.graph.graph import Node, QuantisedConstant, Tensor, ancestors
from polysci.graph.operators import OPERATORS, operator_of_onnx
from polysci.graph.operators.table import Operator
from polysci.graph.refusals import Refusal
from polysci.numerics.arrays import Array
from polysci.program.stages import DynamicDim

MOST_EXPANDED = 20_000
MOST_DEPTH = 50  # of branches, loops and functions inside each other
NO_OPERATOR = "polysci has no such operator"
DEPENDS = "the shape of its output depends on data"
_UNKNOWN = Operator("")


class ExpansionError(Refusal):
    """Reason why a node has no expansion."""


# Adds nodes in place of one. Raises ExpansionError where it cannot.
Expansion = Callable[["Reader", Any], None]
# Tensors by name: the type of their elements, and their shape.
Results = Mapping[str, tuple[str, Sequence[int]]]
# The expansion of a node; ``last``: of one that polysci has no operator for.
ExpansionOf = Callable[["Reader", Any, bool], Expansion | None]
# Axes of a node's results of which data decides the length, by name; of results of these shapes.
DynamicDimsOf = Callable[["Reader", Node, Mapping[str, Sequence[int]]], dict[str, DynamicDim]]


@dataclass(frozen=True, slots=True)
class DataSize:
    """A size that data decides, of a tensor ``name``: ``count`` names it, and ``most`` is allowed.

    It is checked where one of ``tensors`` is needed.
    """

    name: str
    most: int
    count: str
    tensors: tuple[str, ...]


@dataclass(slots=True)
class Reader:
    """The nodes read so far; ``supported`` are operators that can be compiled, None: all.

    ``follows`` is the version of ONNX's operators of the nodes that are added now.
    """

    table: TensorTable
    supported: Container[str] | None
    expansion_of: ExpansionOf
    functions: Mapping[tuple[str, str, str], Any]
    dynamic_dims_of: DynamicDimsOf
    follows: int
    most: Mapping[str, int] = field(default_factory=dict)  # of sizes that data decides
    sizes: list[DataSize] = field(default_factory=list)  # which a run has to check
    limits: dict[str, tuple[str, int]] = field(default_factory=dict)  # by count: it or the most
    highest: dict[str, int] = field(default_factory=dict)  # of whole numbers that have a maker
    bounded: set[str] = field(default_factory=set)  # names of ``most`` that are of use
    nodes: list[Node] = field(default_factory=list)
    sequences: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> its tensors
    dynamic_dims: dict[str, DynamicDim] = field(default_factory=dict)  # of which data decides
    made: set[str] = field(default_factory=set)  # names that have a maker, or are an input
    taken: set[str] = field(default_factory=set)  # names that occur in the model
    refusals: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # by id of Node
    dequantised: dict[str, QuantisedConstant] = field(default_factory=dict)
    expanded: int = 0  # nodes that took the place of others
    depth: int = 0

    def add(self, proto: Any) -> None:
        """Add a node: left out if its results can be known now, or others take its place."""
        self.expanded += self.depth > 0
        if self.expanded > MOST_EXPANDED:
            raise SpecError(
                f"{self.table.where}: more than {MOST_EXPANDED} nodes in branches, loops and "
                "functions"
            )
        node = self.node(proto)
        self._claim(node)
        try:
            if not self._expand(proto, node, last=False):
                self._add_plain(proto, node)
        except ExpansionError as error:
            self._refuse(node, str(error), error.needs)

    def node(self, proto: Any) -> Node:
        """Return the node with its attributes in the words of graphs, without subgraphs."""
        onnx, attributes = self.table.onnx, dict[str, Any]()
        for attribute in proto.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif isinstance(value, onnx.TensorProto):
                value = self.table.array(value)
            if not isinstance(value, onnx.GraphProto):
                attributes[attribute.name] = value
        return Node(
            operator_of_onnx(operator_name(proto)), tuple(proto.input), tuple(proto.output),
            MappingProxyType(graph_attributes(attributes)), proto.name,
        )  # fmt: skip

    def _claim(self, node: Node) -> None:
        """Raise for a node that reads what nothing makes, or makes what another does."""
        names = [name for name in node.outputs if name]
        if lost := [name for name in node.inputs if name and name not in self.made]:
            raise self.table.fault(node, f" reads {lost[0]!r:.200}, which nothing before it makes")
        if twice := [name for name in names if name in self.made or names.count(name) > 1]:
            raise self.table.fault(node, f" makes {twice[0]!r:.200} a second time")
        self.made.update(names)

    def _expand(self, proto: Any, node: Node, *, last: bool) -> bool:
        """Tell whether other nodes took the place of this one."""
        expansion = self.expansion_of(self, proto, last)
        if expansion is None:
            return False
        if self.depth == MOST_DEPTH:
            what = f"more than {MOST_DEPTH} branches, loops and functions inside each other"
            raise self.table.fault(node, f": {what}")
        self.made.difference_update(node.outputs)  # the others make them
        self.depth += 1
        try:
            expansion(self, proto)
        finally:
            self.depth -= 1
            self.made.update(name for name in node.outputs if name)
        return True

    def _add_plain(self, proto: Any, node: Node) -> None:
        if any(name and name not in self.table.types for name in node.inputs):
            self.nodes.append(node)  # what depends on a refused node has no type either
            return
        if not self.table.onnx.defs.has(operator_name(proto)):
            self._add_own(node)
            return
        if (values := fold(self.table, proto, node)) is not None:
            for name, value in zip(node.outputs, values, strict=False):
                if name:
                    self.table.learn(name, value)
            if node.op == "dequantize":
                self._note_numbers(node)
            elif node.op == "transpose" and node.inputs[0] in self.dequantised:
                self._note_transpose(node)
            elif node.op == "cast":
                self._note_cast(node)
            return
        if self._expand(proto, node, last=True):
            return
        dynamic = any(name in self.dynamic_dims for name in node.inputs)
        kinds = self._infer_dynamic(proto, node) if dynamic else infer(self.table, proto, node)
        self.table.types |= kinds
        self.nodes.append(node)
        if any(name and name not in kinds for name in node.outputs):
            row = OPERATORS.get(node.op, _UNKNOWN)
            self.refusals[id(node)] = (row.unsized or DEPENDS, self._shape_inputs(node, row))

    def _add_own(self, node: Node) -> None:
        """Add a node of an operator that ONNX lacks; its row says the shapes of its results."""
        kinds = infer_own(self.table, node)
        if any(name and name not in kinds for name in node.outputs):
            raise ExpansionError(NO_OPERATOR)
        self.table.types |= kinds
        self.nodes.append(node)

    def _note_numbers(self, node: Node) -> None:
        """Note the numbers of which a DequantizeLinear makes a constant."""
        numbers, scale, *zero = (self.table.values[name] for name in node.inputs if name)
        self.dequantised[node.outputs[0]] = QuantisedConstant(
            numbers, scale, zero[0] if zero else np.zeros(1, numbers.dtype),
            node.attributes.get("axis", 1), node.attributes.get("block_size", 0),
        )  # fmt: skip

    def _note_cast(self, node: Node) -> None:
        """Note the numbers of 4 or 8 bits of which a Cast makes a constant of f32."""
        numbers, values = (self.table.values[name] for name in (node.inputs[0], node.outputs[0]))
        if numbers.dtype.name in ("int4", "uint4", "int8", "uint8") and values.dtype == np.float32:
            unit = np.ones(1, np.float32), np.zeros(1, np.int8)
            self.dequantised[node.outputs[0]] = QuantisedConstant(numbers, *unit)

    def _note_transpose(self, node: Node) -> None:
        """Note the numbers of a matrix that is transposed."""
        known = self.dequantised[node.inputs[0]]
        if known.numbers.ndim == 2 and node.attributes.get("perm", [1, 0]) == [1, 0]:
            self.dequantised[node.outputs[0]] = known.transposed

    def _infer_dynamic(self, proto: Any, node: Node) -> Types:
        """Infer types of results, some of whose axes are as long as data decides."""
        try:
            kinds = infer(self.table, proto, node)
        except SpecError as error:
            raise ExpansionError(f"data decides the length of its inputs: {error}") from None
        if node.outputs[0] in kinds:
            shapes = {name: self.table.tensor_of(name, kind).shape for name, kind in kinds.items()}
            self.dynamic_dims |= self.dynamic_dims_of(self, node, shapes)
        return kinds

    def _shape_inputs(self, node: Node, row: Operator) -> tuple[str, ...]:
        """Return inputs that may say a shape, without those whose value is known."""
        names, known = node.inputs[row.shape_inputs or slice(None)], self.table.values
        tensors = {name: self.table.tensor(name) for name in names if name}
        return tuple(
            name for name, tensor in tensors.items()
            if name not in known and len(tensor.shape) < 2
            and (row.shape_inputs is not None or _counts(tensor))
        )  # fmt: skip

    def needs_of(self, name: str) -> tuple[str, ...]:
        """Return the tensors whose value would say the shape of one that has none."""
        makers = {output: node for node in self.nodes for output in node.outputs}
        nodes = [makers[source] for source in ancestors([name], makers) if source in makers]
        refusals = [self.refusals.get(id(node), ("", ())) for node in nodes]
        return tuple(dict.fromkeys(need for _, needs in refusals for need in needs))

    def _refuse(self, node: Node, reason: str, needs: Sequence[str]) -> None:
        self.nodes.append(node)
        self.refusals[id(node)] = (reason, tuple(needs))

    # What expansions build with

    def append(self, node: Node, results: Results) -> None:
        """Add a node whose results are of known types and shapes."""
        self.declare(results)
        self.nodes.append(node)

    def declare(self, results: Results) -> None:
        """Declare tensors that a node will make, by name."""
        helper = self.table.onnx.helper
        for name, (dtype, shape) in results.items():
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self.table.types[name] = helper.make_tensor_type_proto(kind, list(shape))
            self.made.add(name)

    def snapshot(self) -> Any:
        """Return what is known now, for ``restore``."""
        known = (
            self.table.types,
            self.table.values,
            self.sequences,
            self.dynamic_dims,
            self.refusals,
            self.limits,
        )
        copies = [*[dict(part) for part in known], [*self.sizes]]
        return len(self.nodes), self.expanded, {*self.made}, {*self.taken}, copies

    def restore(self, before: Any) -> None:
        """Forget all since a snapshot."""
        count, self.expanded, self.made, self.taken, known = before
        del self.nodes[count:]
        self.table.types, self.table.values, *others = known
        self.sequences, self.dynamic_dims, self.refusals, self.limits, self.sizes = others

    def inline(
        self, body: Body, names: Mapping[str, str], outputs: Sequence[str], title: str
    ) -> None:
        """Add a body's nodes; ``names`` of its inputs and ``outputs`` are those outside."""
        inner, copies, computed = dict(names), list[tuple[str, str]](), body.made
        for result, output in zip(body.results, outputs, strict=False):
            if output and result in computed and result not in inner:
                inner[result] = output
            elif output:
                copies.append((result, output))
        for name in body.names:
            if name not in inner:
                inner[name] = self.fresh(f"{title}/{name}")
        for tensor in body.initializers:
            self.learn(inner[tensor.name], self.table.array(tensor))
        for node in rename_nodes(body.nodes, inner):
            node.name = f"{title}/{node.name or node.op_type}"
            self.add(node)
        for source, target in copies:
            self.emit("Identity", [inner.get(source, source)], [target])

    def fresh(self, base: str) -> str:
        """Return a name that occurs nowhere."""
        numbered = (f"{base}.{number}" for number in count(1))
        name = next(name for name in chain([base], numbered) if name not in self.taken)
        self.taken.add(name)
        return name

    def learn(self, name: str, value: Array) -> None:
        """Add a constant."""
        self.made.add(name)
        self.table.learn(name, value)

    def constant(self, base: str, value: Array) -> str:
        """Add a constant under a name of its own."""
        name = self.fresh(base)
        self.learn(name, value)
        return name

    def value(self, name: str, what: str) -> Array:
        """Return a constant. Raises ExpansionError that says ``what`` is not constant."""
        if name not in self.table.values:
            raise ExpansionError(f"{what} not constant", name)
        return self.table.values[name]

    def emit(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], title: str | None = None,
        **attributes: Any,
    ) -> None:  # fmt: skip
        """Add a node of ONNX's operators, by default under the name of its first output."""
        name = outputs[0] if title is None else title
        with self.following(self.table.opset):
            self.add(self.table.onnx.helper.make_node(op, inputs, outputs, name, **attributes))

    @contextmanager
    def following(self, opset: int) -> Iterator[None]:
        """Add nodes of another version of ONNX's operators inside a ``with`` block."""
        before, self.follows = self.follows, opset
        try:
            yield
        finally:
            self.follows = before


@dataclass(frozen=True, slots=True)
class Call:
    """A node that others replace: its attributes, and names for what lies between."""

    reader: Reader
    proto: Any

    @property
    def title(self) -> str:
        return str(self.proto.name or self.proto.output[0])

    def input(self, at: int) -> str:
        """Return the name of an input; empty where it is left out."""
        return str(self.proto.input[at]) if at < len(self.proto.input) else ""

    def output(self, at: int) -> str:
        return str(self.proto.output[at]) if at < len(self.proto.output) else ""

    def inputs(self, *places: int) -> list[str]:
        """Return the names of some inputs, without those that are left out."""
        return [name for at in places if (name := self.input(at))]

    def attribute(self, name: str, default: Any) -> Any:
        helper = self.reader.table.onnx.helper
        for attribute in self.proto.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def others(self, *names: str) -> dict[str, Any]:
        """Return the other attributes."""
        return {
            attribute.name: self.attribute(attribute.name, None)
            for attribute in self.proto.attribute
            if attribute.name not in names
        }

    def refuse(self, *attributes: str) -> None:
        """Raise where one of the attributes is not 0."""
        for name in attributes:
            if value := self.attribute(name, 0):
                raise ExpansionError(f"{name} {value}")

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.reader.table.types:
            needs = self.reader.needs_of(name)
            raise ExpansionError(f"the shape of its input {name!r:.200} is not known", *needs)
        return self.reader.table.shape(name)

    def number(self, value: float, like: str) -> str:
        """Return a constant of the type of another tensor."""
        self.shape(like)
        dtype = self.reader.table.tensor(like).dtype
        return self.reader.constant(f"{self.title}/number", np.array(value, dtype))

    def constant(self, base: str, value: Array) -> str:
        """Return a constant of this node."""
        return self.reader.constant(f"{self.title}/{base}", value)

    def integers(self, base: str, values: int | Sequence[int]) -> str:
        """Return a constant of int64."""
        return self.constant(base, np.array(values, np.int64))

    def make(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = output or self.reader.fresh(f"{self.title}/{op}")
        self.reader.emit(op, inputs, [name], **attributes)
        return name


def expansion_by(expand: Callable[[Call], None] | None) -> Expansion | None:
    """Return a function of calls as an expansion."""
    return None if expand is None else lambda reader, proto: expand(Call(reader, proto))


def operator_name(proto: Any) -> str:
    """Return the type of a node; with its domain where that is not ONNX's."""
    return proto.op_type if proto.domain in DOMAINS else f"{proto.domain}.{proto.op_type}"


def _counts(tensor: Tensor) -> bool:
    return "int" in tensor.dtype or tensor.dtype == "bool"
