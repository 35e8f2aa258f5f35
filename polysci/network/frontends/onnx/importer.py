"""From an ONNX model to a Graph: free dimensions bound, shapes inferred, what is known computed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from math import prod
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.network.frontends.onnx.model_file import (
    DOMAINS,
    IN_MEMORY,
    ModelSource,
    is_implemented,
    onnx_module,
    read,
)
from polysci.network.ir.graph import Array, Graph, Node, Tensor

if TYPE_CHECKING:
    import onnx

MOST_BYTES = 1 << 36  # of one tensor
MOST_DIMS = 16
MOST_FOLDED = 1 << 30  # bytes that are computed ahead at once


def load(
    model: ModelSource,
    dims: Mapping[str, int] | None = None,
    *,
    external: bool = False,
    supported: Container[str] | None = None,
) -> Graph:
    """The graph of an ONNX model; ``dims`` binds its free dimensions, by name or as ``INPUT.AXIS``.

    Raises SpecError for a file that is no model, a dimension that is free or of no use, shapes that
    contradict each other; UnsupportedError with every node whose type is not in ``supported``.
    """
    where = str(model) if isinstance(model, str | PathLike) else IN_MEMORY
    return graph_of(read(model, external=external), dims, supported=supported, where=where)


def graph_of(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    supported: Container[str] | None = None,
    where: str = "model",
) -> Graph:
    """The same for a model in memory that ``model_file.checked`` accepts."""
    reader = _Reader(onnx_module(), model, where)
    reader.begin(dict(dims or {}))
    for node in model.graph.node:
        reader.add(node)
    return reader.finish(supported)


@dataclass(slots=True)
class _Reader:
    """Walks the nodes once: every tensor gets a type, and a value where it can be known."""

    onnx: Any
    model: onnx.ModelProto
    where: str
    types: dict[str, Any] = field(default_factory=dict)  # TypeProto by name
    known: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    strange: set[int] = field(default_factory=set)  # the id of nodes of no type that ONNX defines

    @property
    def opset(self) -> int:
        return max(
            int(entry.version) for entry in self.model.opset_import if entry.domain in DOMAINS
        )

    def begin(self, dims: dict[str, int]) -> None:
        """Types of the inputs and the weights."""
        for tensor in self.model.graph.initializer:
            self.learn(tensor.name, self.array(tensor))
        unused = dict(dims)
        for name, size in dims.items():
            if not isinstance(size, int) or not 0 < size < 1 << 31:
                raise SpecError(f"{self.where}: dimension {name}={size}: expected 1 to 2^31 - 1")
        for tensor in self.model.graph.input:
            if tensor.name not in self.known:
                self.types[tensor.name] = self.bound(tensor, dims, unused)
        if unused:
            raise SpecError(
                f"{self.where}: dimension {next(iter(unused))!r:.200}: no input has a free one "
                "of that name"
            )

    def bound(self, proto: Any, dims: dict[str, int], unused: dict[str, int]) -> Any:
        """The type of an input, free dimensions replaced."""
        kind = self.onnx.TypeProto()
        kind.CopyFrom(proto.type)
        if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            raise UnsupportedError(
                f"{self.where}: input {proto.name!r:.200} is no tensor of known rank"
            )
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                continue
            names = (dim.dim_param, f"{proto.name}.{axis}")
            name = next((name for name in names if name in dims), None)
            if name is None:
                name = dim.dim_param or names[1]
                raise SpecError(
                    f"{self.where}: input {proto.name!r:.200}: dimension {axis} ({name!r:.200}) is "
                    f"free; bind it, as in --dim {name}=1"
                )
            unused.pop(name, None)
            dim.dim_value = dims[name]
        return kind

    def learn(self, name: str, value: Array) -> None:
        """Note a tensor's value, and with it its type."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        self.types[name] = self.onnx.helper.make_tensor_type_proto(kind, value.shape)
        self.known[name] = value

    def array(self, tensor: Any) -> Array:
        """The value of a tensor of the file."""
        try:
            if any(size < 0 for size in tensor.dims) or prod(tensor.dims) > MOST_BYTES:
                raise ValueError(f"shape {list(tensor.dims)}")
            array: Array = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # onnx has many, for many kinds of damage
            raise SpecError(f"{self.where}: tensor {tensor.name!r:.200}: {error}") from None
        return array

    def add(self, proto: Any) -> None:
        """One node: left out if its results can be known now."""
        node = self.node(proto)
        types = [self.types.get(name) for name in node.inputs if name]
        if not self.onnx.defs.has(proto.op_type):
            self.strange.add(id(node))
        if id(node) in self.strange or None in types:
            self.nodes.append(node)  # what depends on a strange node is strange
            return
        if (values := self.values(proto, node)) is not None:
            for name, value in zip(node.outputs, values, strict=False):
                if name:
                    self.learn(name, value)
            return
        for name, kind in self.infer(proto, node).items():
            self.types[name] = kind
        self.nodes.append(node)

    def node(self, proto: Any) -> Node:
        """The node with its attributes as Python's and NumPy's values."""
        attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            value = self.onnx.helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif isinstance(value, self.onnx.TensorProto):
                value = self.array(value)
            elif isinstance(value, self.onnx.GraphProto):
                raise UnsupportedError(
                    f"{self.where}: {proto.op_type} {proto.name!r:.200}: a subgraph"
                )
            attributes[attribute.name] = value
        return Node(
            proto.op_type, tuple(proto.input), tuple(proto.output), MappingProxyType(attributes),
            proto.name,
        )  # fmt: skip

    def values(self, proto: Any, node: Node) -> list[Array] | None:
        """The results of a node that depend on nothing but weights and shapes, else None."""
        if node.op == "Shape":
            return [self.shape_of(node)]
        if any(name not in self.known for name in node.inputs if name):
            return None
        if node.op == "ConstantOfShape":
            return [self.repeat(node)]
        if sum(self.known[name].nbytes for name in node.inputs if name) > MOST_FOLDED:
            return None
        return self.compute(proto, node)

    def shape_of(self, node: Node) -> Array:
        shape = self.tensor(node.inputs[0]).shape
        start, end = (node.attributes.get(name) for name in ("start", "end"))
        return np.array(shape[start:end], np.int64)

    def repeat(self, node: Node) -> Array:
        """One value in every place, held once."""
        value = node.attributes.get("value", np.zeros(1, np.float32))
        shape = tuple(int(size) for size in self.known[node.inputs[0]])
        self.check(node.outputs[0], shape, value.dtype)
        if (size := prod(shape) * value.dtype.itemsize) > MOST_FOLDED:
            raise SpecError(
                f"{self.where}: {str(node)!r:.200}: shape {list(shape)} takes {size} bytes; "
                f"expected at most {MOST_FOLDED}"
            )
        return np.broadcast_to(value.reshape(()), shape)

    def compute(self, proto: Any, node: Node) -> list[Array] | None:
        """By ONNX's reference, on the values that are known; None where a shape depends on them."""
        helper = self.onnx.helper
        from onnx.reference import ReferenceEvaluator

        kinds = self.infer(proto, node)
        if any(name and name not in kinds for name in node.outputs):
            return None
        made = [self.tensor_of(name, kind) for name, kind in kinds.items()]
        if (size := sum(tensor.bytes for tensor in made)) > MOST_FOLDED:
            largest = max(made, key=lambda tensor: tensor.bytes).name
            raise SpecError(
                f"{self.where}: {str(node)!r:.200}: tensor {largest!r:.200}: {size} bytes to "
                f"compute ahead; expected at most {MOST_FOLDED}"
            )
        inputs = [helper.make_value_info(name, self.types[name]) for name in {*node.inputs} - {""}]
        outputs = [
            helper.make_value_info(name, kinds[name]) for name in node.outputs if name in kinds
        ]
        graph = helper.make_graph([proto], "one", inputs, outputs)
        opset = helper.make_opsetid("", is_implemented(node.op, self.opset))
        model = helper.make_model(graph, opset_imports=[opset])
        try:
            feeds = {name: self.known[name] for name in node.inputs if name}
            results = ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:  # whatever NumPy and the reference raise
            raise SpecError(f"{self.where}: {str(node)!r:.200}: {error}") from None
        values = iter(results)
        return [np.asarray(next(values)) if name in kinds else np.zeros(0) for name in node.outputs]

    def infer(self, proto: Any, node: Node) -> dict[str, Any]:
        """Types of a node's results, of fixed shapes."""
        inference = self.onnx.shape_inference
        names = {name for name in node.inputs if name}
        data = {
            name: self.onnx.numpy_helper.from_array(np.asarray(self.known[name], order="C"), name)
            for name in names
            if name in self.known and self.known[name].size <= 1024
        }
        try:
            kinds: dict[str, Any] = inference.infer_node_outputs(
                self.onnx.defs.get_schema(node.op, self.opset), proto,
                {name: self.types[name] for name in names}, data,
                opset_imports=list(self.model.opset_import),
            )  # fmt: skip
        except Exception as error:  # InferenceError, SchemaError and more
            raise SpecError(f"{self.where}: {str(node)!r:.200}: {error}") from None
        kinds = {name: kind for name, kind in kinds.items() if self.is_fixed(kind)}
        for name, kind in kinds.items():
            self.tensor_of(name, kind)
        return kinds

    @staticmethod
    def is_fixed(kind: Any) -> bool:
        """Whether a type says one shape."""
        shape = kind.tensor_type.shape
        sized = all(dim.HasField("dim_value") for dim in shape.dim)
        return bool(kind.tensor_type.HasField("shape") and sized)

    def tensor_of(self, name: str, kind: Any) -> Tensor:
        """A type of one shape as a Tensor."""
        shape = tuple(int(dim.dim_value) for dim in kind.tensor_type.shape.dim)
        dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        self.check(name, shape, dtype)
        return Tensor(name, shape, np.dtype(dtype).name)

    def check(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Raise for a shape that no memory holds."""
        bad = len(shape) > MOST_DIMS or any(size < 0 for size in shape)
        if bad or prod(shape) * np.dtype(dtype).itemsize > MOST_BYTES:
            raise SpecError(f"{self.where}: tensor {name!r:.200} has shape {list(shape)}")

    def tensor(self, name: str) -> Tensor:
        """What is known of a name."""
        return self.tensor_of(name, self.types[name])

    def finish(self, supported: Container[str] | None) -> Graph:
        """The graph without what no output needs."""
        outputs = [tensor.name for tensor in self.model.graph.output]
        needed, kept = set(outputs), list[Node]()
        for node in reversed(self.nodes):
            if needed & {name for name in node.outputs if name}:
                needed.update(name for name in node.inputs if name)
                kept.append(node)
        kept.reverse()
        alien = [n for n in kept if id(n) in self.strange or (supported and n.op not in supported)]
        if alien:
            told = ", ".join(str(node) for node in alien)
            raise UnsupportedError(f"{self.where}: {len(alien)} unsupported nodes: {told}")
        for node in kept:
            for name in node.outputs:
                if name in needed and name not in self.types:
                    told = f"{str(node)!r:.200}: the shape of {name!r:.200} depends on data"
                    raise UnsupportedError(f"{self.where}: {told}")
        made = [name for node in kept for name in node.outputs if name in self.types]
        sources = [
            tensor.name for tensor in self.model.graph.input if tensor.name not in self.known
        ]
        names = dict.fromkeys([*sources, *needed, *made])
        return Graph(
            self.model.graph.name,
            tuple(self.tensor(name) for name in sources),
            tuple(self.tensor(name) for name in outputs),
            tuple(kept),
            {name: self.known[name] for name in names if name in self.known},
            {name: self.tensor(name) for name in names},
            self.opset,
        )
