"""A new scalar function and a new operator, each by one row: run as a process of its own.

``python -m tests.support.one_row function|operator`` adds the row before anything reads the tables,
and then takes it through ONNX, PyTorch, the reference, generated C and gradients.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from scipy.special import erfc

from polysci.numerics import scalar_functions
from polysci.numerics.formulas import parse

Array = NDArray[np.float32]
SHAPE = (3, 5)


def add_function() -> None:
    """``erfc(x)``, which ONNX lacks: a row of the table of scalar functions."""
    scalar_functions.FUNCTIONS["erfc"] = scalar_functions.ScalarFunction(
        "erfc", {"f": "(1.0f - ps_f_erf({0}))", "d": "(1.0 - erf({0}))"}, erfc,
        derivatives=("-1.1283791670955126 * exp(-square(x))",), onnx="example.Erfc",
        torch="erfc", notation=True,
    )  # fmt: skip


def add_operator() -> None:
    """``sqrt(a^2 + b^2)`` of tensors that broadcast: a function and a row of operators."""
    from polysci.graph.builder import Backward
    from polysci.graph.formulas import derive
    from polysci.graph.graph import Node
    from polysci.graph.operators import OPERATORS
    from polysci.graph.operators.builder import Builder
    from polysci.graph.operators.table import Operator, broadcast
    from polysci.loop_ir.expressions import apply

    def hypotenuse(build: Builder, node: Node) -> None:
        build.check_floats(node, *node.inputs)
        squares = [apply("square", build.load(name, node.outputs[0])) for name in node.inputs]
        build.define(node, apply("sqrt", apply("add", *squares)))

    def gradient(back: Backward, node: Node, dys: Sequence[str]) -> Sequence[str]:
        return [
            back.unbroadcast(
                derive(back, parse("dy * x / y"), dy=dys[0], x=name, y=node.outputs[0]),
                back.shape(name),
            )
            for name in node.inputs
        ]

    OPERATORS["hypot"] = Operator(
        "hypot", "example.Hypot", hypotenuse, broadcast, gradient,
        lambda of: [np.hypot(*of.inputs)], "alike", torch=("hypot",),
    )  # fmt: skip


def check(op: str, inputs: dict[str, Array], exact: Callable[..., Array]) -> None:
    """Compare reference, C and gradients of ``example.op`` in ONNX, and C of PyTorch's call."""
    import torch

    from polysci.frontends.onnx import reference
    from polysci.frontends.pytorch.program import load_program
    from polysci.graph.differentiate import pull_back
    from tests.support.networks import network_of, read

    info, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    infos = [info(name, kind, x.shape) for name, x in inputs.items()]
    node = helper.make_node(op, [*inputs], ["y"], domain="example")
    outputs = [info("y", kind, SHAPE)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("example", 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, outputs), opset_imports=opsets)
    assert isinstance(model, onnx.ModelProto)
    graph, wanted = read(model), exact(*inputs.values())
    np.testing.assert_allclose(reference.run(graph, inputs)["y"], wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(_only(network_of(graph)(inputs)), wanted, rtol=1e-5, atol=1e-6)

    backward = pull_back(graph, "y", [*inputs])
    feeds = {**inputs, "y.gradient": np.ones(SHAPE, np.float32)}
    results = network_of(backward)(feeds)
    tensors = [torch.from_numpy(x).requires_grad_() for x in inputs.values()]
    made = getattr(torch, op.lower())(*tensors)
    made.sum().backward()
    assert isinstance(results, dict)
    for name, tensor in zip(inputs, tensors, strict=True):
        np.testing.assert_allclose(results[f"{name}.gradient"], tensor.grad, rtol=1e-4, atol=1e-5)

    class Function(torch.nn.Module):
        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return getattr(torch, op.lower())(*values)

    program = torch.export.export(Function(), tuple(map(torch.from_numpy, inputs.values())))
    graph = load_program(program)
    feeds = dict(zip([tensor.name for tensor in graph.inputs], inputs.values(), strict=True))
    np.testing.assert_allclose(_only(network_of(graph)(feeds)), wanted, rtol=1e-5, atol=1e-6)


def _only(results: Any) -> Any:
    """The only result of a network, also where it comes by its name."""
    return next(iter(results.values())) if isinstance(results, dict) else results


def check_notation(x: Array) -> None:
    """Compare the interpreter, C and the gradient of the function in a tensor notation."""
    from polysci import notation

    text = "def f(float(I) X) -> (Y) { Y(i) = erfc(X(i)) }"
    function = notation.compile(text, {"I": len(x)}, level="estimate")
    np.testing.assert_allclose(notation.interpret(text, {"X": x})["Y"], erfc(x), rtol=1e-6)
    np.testing.assert_allclose(_only(function(x)), erfc(x), rtol=1e-5, atol=1e-6)
    slope = notation.interpret(
        notation.grad(text, sizes={"I": len(x)}), {"X": x, "d_Y": np.ones_like(x)}
    )["d_X"]
    np.testing.assert_allclose(slope, -2 / np.sqrt(np.pi) * np.exp(-(x**2)), rtol=1e-6)


def main(kind: str) -> None:
    random = np.random.default_rng(0)
    x, row = (random.normal(size=shape).astype(np.float32) for shape in (SHAPE, SHAPE[1:]))
    if kind == "function":
        add_function()
        check("Erfc", {"x": x}, erfc)
        check_notation(row)
    else:
        add_operator()
        check("Hypot", {"x": x, "row": row}, np.hypot)


if __name__ == "__main__":
    main(sys.argv[1])
