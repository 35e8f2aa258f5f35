"""Networks of 16 and 8 bits whose stages run together in groups, and their results."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polysci.network.compiled import CompileOptions, Network, compile_network
from polysci.program.stages import LayerStage, RowFusion
from polysci.runtime.backends import backend_named
from polysci.target.isas import DEVICE_ISAS
from polysci.target.target import Memory, Target
from tests.support.any_device import at_hand
from tests.support.cuda_emulation import NAME, ORDERS, EmulatedCuda, emulated
from tests.support.fusion_cases import CASES
from tests.support.onnxmodels import model, node, reals

PADDED = {"pads": [1, 1, 1, 1]}
PLACES = ("opencl", "cuda")


@dataclass
class Quantised:
    """Nodes between 8-bit tensors, and their weights."""

    kind: type[np.generic]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, operator: str, inputs: str, output: str, **words: object) -> str:
        """Add a node between numbers that may be real."""
        self.nodes.append(node(operator, inputs, output, **words))
        return output

    def rounded(self, x: str, scale: float, zero: int) -> str:
        """Return ``x`` rounded to 8 bits and back."""
        words = f"{x}_scale {x}_zero"
        self.weights |= {f"{x}_scale": np.float32(scale), f"{x}_zero": np.array(zero, self.kind)}
        self.add("QuantizeLinear", f"{x} {words}", f"{x}_q")
        return self.add("DequantizeLinear", f"{x}_q {words}", f"{x}_r")

    def weight(self, name: str, *shape: int) -> str:
        """Return a weight of signed 8-bit numbers."""
        values = np.random.default_rng(len(self.weights)).integers(-100, 100, shape)
        self.weights |= {f"{name}_q": values.astype(np.int8), f"{name}_scale": np.float32(0.01)}
        return self.add("DequantizeLinear", f"{name}_q {name}_scale", name)

    def model(self, *shape: int) -> onnx.ModelProto:
        """Return the model from x to y."""
        return model(self.nodes, {"x": shape}, {"y": None}, self.weights)


def products(kind: type[np.generic]) -> onnx.ModelProto:
    """Three products; the steps of the first one are no whole words."""
    made = Quantised(kind)
    x = made.rounded("x", 0.05, 3)
    made.add("MatMul", f"{x} {made.weight('w', 9, 24)}", "a")
    a = made.rounded(made.add("Relu", "a", "r"), 0.03, 0)
    b = made.rounded(made.add("MatMul", f"{a} {made.weight('v', 24, 12)}", "b"), 0.05, 3)
    made.add("MatMul", f"{b} {made.weight('u', 12, 8)}", "y")
    return made.model(71, 9)


def images(kind: type[np.generic], channels: int = 8) -> onnx.ModelProto:
    """Filters whose padding is a zero point, two readers of a tensor, a pool and f32 at the end."""
    made = Quantised(kind)
    x = made.rounded("x", 0.05, 3)
    made.add("Conv", f"{x} {made.weight('w', 24, channels, 1, 1)}", "a")
    a = made.rounded(made.add("Relu", "a", "r"), 0.03, 0)
    made.add("Conv", f"{a} {made.weight('v', channels, 24, 3, 3)}", "b", **PADDED)
    s = made.rounded(made.add("Add", f"{made.rounded('b', 0.1, 3)} {x}", "s"), 0.1, 3)
    made.add("Conv", f"{s} {made.weight('t', 16, channels, 3, 3)}", "c", strides=[2, 2], **PADDED)
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    made.add("MaxPool", made.rounded("c", 0.1, 3), "p", **pool)
    made.add("Conv", f"p {made.weight('o', 5, 16, 1, 1)}", "y")
    return made.model(2, channels, 12, 8)


def halves() -> onnx.ModelProto:
    """Products between ports of f16, with a residual that a group holds."""
    nodes = [node("MatMul", "x w", "a"), node("Abs", "a", "b"), node("MatMul", "b u", "c"),
             node("Add", "c b", "d"), node("MatMul", "d v", "y")]  # fmt: skip
    weights = {"w": reals(9, 24, seed=1), "u": reals(24, 24, seed=2), "v": reals(24, 12, seed=3)}
    ports = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)]
        for name, shape in (("x", (71, 9)), ("y", (71, 12)))
    )
    kept = [numpy_helper.from_array(w.astype(np.float16), name) for name, w in weights.items()]
    return helper.make_model(
        helper.make_graph(nodes, "halves", *ports, kept),
        opset_imports=[helper.make_opsetid("", 17)],
    )


def of_case(case: str) -> onnx.ModelProto:
    """Return a model of tests.support.fusion_cases."""
    nodes, shape, weights, _ = CASES[case]
    return model(nodes, {"x": shape}, {"y": None}, weights)


@contextmanager
def groups_of(place: str) -> Iterator[tuple[Target, EmulatedCuda | None]]:
    """A target whose groups have a memory; of CUDA the emulation, too."""
    if place == "cuda":
        with at_hand(NAME), emulated() as backend:
            (target,) = backend.targets()
            yield target, backend
        return
    with at_hand("opencl:0") as name:
        (target,) = backend_named(name).targets()
        memories = (*target.memories, Memory("local", 48 << 10, kind="local"))
        yield replace(target, isa=DEVICE_ISAS["opencl4"], memories=memories), None


def check_narrow(
    made: onnx.ModelProto, place: str, dtype: str, types: set[str]
) -> tuple[Network, RowFusion]:
    """Assert that a network of groups gives the bits of C; its layers together have ``types``.

    Return it, and its longest row fusion.
    """
    with groups_of(place) as (target, backend):
        network, host = (
            compile_network(made, CompileOptions("estimate", 2, dtype, target=where))
            for where in (target, None)
        )
        (port,) = network.inputs
        x = reals(*port.shape, seed=9).astype(port.dtype)
        expected = host({"x": x})["y"]
        for order in ORDERS if backend else ("",):
            if backend:
                backend.emulated.order = order
            assert np.array_equal(network({"x": x})["y"], expected), order
    stages = network.code.placed.program.stages
    longest = max(
        (it for it in stages if isinstance(it, RowFusion)), key=lambda its: len(its.members)
    )
    own = {it.problem.dtype for it in longest.members if isinstance(it, LayerStage)}
    assert own == types, network.prepared.fusions
    return network, longest
