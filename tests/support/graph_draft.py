"""A random graph under way."""

from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

OPSET = 17
MOST = 1 << 14  # elements of a tensor
Shape = tuple[int, ...]


@dataclass(slots=True)
class Draft:
    """A model under way: every tensor that can be read has a shape.

    Nodes of a ``chain`` mostly read the latest one.
    """

    choices: Random
    random: np.random.Generator
    shapes: dict[str, Shape] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    count: int = 0
    chain: bool = False

    def pick(self, *ranks: int) -> str | None:
        """A tensor of one of these ranks, the latest ones first."""
        names = [n for n, s in self.shapes.items() if not ranks or len(s) in ranks][::-1]
        if names and self.chain and self.one(True, True, True, False):
            return names[0]
        return self.choices.choice(names) if names else None

    def one(self, *choices: Any) -> Any:
        return self.choices.choice(choices)

    def fresh(self) -> str:
        """A name that no tensor has."""
        self.count += 1
        return f"t{self.count}"

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        values = self.random.normal(size=shape) * scale
        self.weights[name] = values.astype(np.float32)
        return name

    def ints(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> bool:
        """Add a node whose results have a usable shape; else nothing changes."""
        made = [self.fresh() for _ in range(outputs)]
        proto = helper.make_node(op, inputs, made, **attributes)
        kinds = {n: helper.make_tensor_type_proto(1, self.shapes[n])
                 for n in inputs if n in self.shapes}  # fmt: skip
        known = {n: numpy_helper.from_array(self.weights[n]) for n in inputs if n in self.weights}
        kinds |= {n: helper.make_tensor_type_proto(t.data_type, t.dims) for n, t in known.items()}
        found = shape_inference.infer_node_outputs(
            defs.get_schema(op, OPSET), proto, kinds, known,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )  # fmt: skip
        shapes = [tuple(d.dim_value for d in found[n].tensor_type.shape.dim) for n in made]
        if any(min(shape, default=1) < 1 or prod(shape) > MOST for shape in shapes):
            return False
        self.nodes.append(proto)
        self.shapes |= zip(made, shapes, strict=True)
        return True
