"""The reference of expressions against the interpreter of the notation they come from."""

import numpy as np
import pytest

from polysci import notation
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.graphs import graph_of_comprehension
from polysci.frontends.notation.parser import parse
from polysci.frontends.onnx import reference

BODIES = (
    "float(I) A -> R(i) = A(i) > 0 ? sqrt(A(i)) : exp(A(i)) - 1",
    "float(I) A, int(J) P -> R(j) = A(P(j)) * float(P(j) / 2)",
    "float(I,J) A -> R(i) argmax=! A(i,j)",
    "float(I,J) A -> R(i) min=! pow(A(i,j), 3.0)",
    "float(I) A -> R(i) = i > 0 ? A(i-1) : 0.5 where i in 0:I",
    "float(I,J) A -> R(j,i) = A(i,j) + i / 2 + 1.5",
    "int(I) P -> R(i) = (P(i) % 3) * 2 - 7 + P(i) / 2",
    "float(I) A -> R(i) = gelu(A(i)) + relu(A(i)) + float(int(A(i) * 10))",
    "float(I,J) A -> R(i) *=! 1.0 + A(i,j) / 4",
)


@pytest.mark.parametrize("words", BODIES)
def test_as_the_interpreter_has_it(words: str) -> None:
    inputs, body = words.split(" -> ")
    text = f"def f({inputs}) -> (R) {{ {body} }}"
    whole, sizes, rng = elaborate(parse(text)), {"I": 6, "J": 5}, np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for tensor in whole.comprehension.inputs:
        shape = [sizes[str(extent)] for extent in tensor.extents]
        real = tensor.dtype == "float32"
        arrays[tensor.name] = (
            rng.normal(size=shape).astype(np.float32) if real
            else rng.integers(0, 6, shape, np.int32)
        )  # fmt: skip
    own = {
        name: size for name, size in sizes.items() if name in whole.comprehension.shape_variables
    }
    graph, _ = graph_of_comprehension(whole, own)
    results = reference.run_outputs(graph, arrays, ["R"])
    np.testing.assert_allclose(results["R"], notation.interpret(text, arrays)["R"], rtol=1e-14)
