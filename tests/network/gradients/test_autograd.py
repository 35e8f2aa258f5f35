"""Gradients of random convolutions and products beside torch.autograd, both in double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.network.frontends.onnx import reference
from polysci.network.gradients.differentiate import differentiate
from tests.support.networks import read
from tests.support.onnxmodels import model, node

torch = pytest.importorskip("torch")
functional = torch.nn.functional


@st.composite
def convolutions(draw: Any) -> tuple[str, list[tuple[int, ...]], dict[str, Any]]:
    """An operator, the shapes of x, weights and bias, and attributes."""
    op = draw(st.sampled_from(["Conv", "ConvTranspose"]))
    axes, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    small = st.integers(1, 3)
    taps, strides, dilations = (draw(st.tuples(*[small] * axes)) for _ in range(3))
    pads = tuple(draw(st.integers(0, (t - 1) * d)) for t, d in zip(taps, dilations, strict=True))
    reach = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
    sizes = tuple(draw(st.integers(size, size + 6)) for size in reach)
    channels, filters = groups * draw(small), groups * draw(small)
    words = {"group": groups, "strides": strides, "dilations": dilations, "pads": pads * 2}
    pair = (filters, channels // groups) if op == "Conv" else (channels, filters // groups)
    batch = draw(st.integers(0, 3))
    shapes = [(batch, channels, *sizes), (*pair, *taps), (filters,)]
    if op == "ConvTranspose":
        extra = tuple(draw(st.integers(0, s - 1)) for s in strides)  # as the reference has it
        words["output_padding"] = extra
    return op, shapes, words


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_convolutions(case: tuple[str, list[tuple[int, ...]], dict[str, Any]]) -> None:
    op, shapes, words = case
    rng = np.random.default_rng(0)
    values = dict(zip("xwb", (rng.normal(size=shape) for shape in shapes), strict=True))
    tensors = [torch.tensor(value, requires_grad=True) for value in values.values()]
    axes = len(words["strides"])
    names = {"stride": words["strides"], "padding": words["pads"][:axes],
             "dilation": words["dilations"], "groups": words["group"]}  # fmt: skip
    if op == "ConvTranspose":
        names["output_padding"] = words["output_padding"]
    kind = "conv" if op == "Conv" else "conv_transpose"
    made = getattr(functional, f"{kind}{axes}d")(*tensors, **names)
    if not made[:1].numel() and len(made):
        return
    (made**2).sum().backward()
    proto = model(
        [node(op, "x w b", "y", **{name: v if name == "group" else list(v)
                                   for name, v in words.items()}),
         node("Mul", "y y", "square"), node("ReduceSum", "square", "loss", keepdims=0)],
        dict(zip("xwb", shapes, strict=True)), {"loss": []},
    )  # fmt: skip
    whole = reference.run(differentiate(read(proto), "loss", ["x", "w", "b"]), values)
    for name, tensor in zip("xwb", tensors, strict=True):
        expected = tensor.grad.numpy()
        np.testing.assert_allclose(whole[f"{name}.gradient"], expected, rtol=1e-9, atol=1e-9)
