"""Gradients of random convolutions, and of equal values, beside torch.autograd in double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
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


# Operator and attributes -> what PyTorch computes, of small whole numbers x and y.
KINKS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "maximum": ("Max x y", {}, torch.maximum),
    "minimum": ("Min x y", {}, torch.minimum),
    "maximum of itself": ("Max x x", {}, lambda x, y: torch.maximum(x, x)),
    "clamp": ("Clip x low high", {}, lambda x, y: torch.clamp(x, -1, 1)),
    "relu": ("Relu x", {}, lambda x, y: torch.relu(x)),
    "abs": ("Abs x", {}, lambda x, y: x.abs()),
    "leaky relu": ("LeakyRelu x", {"alpha": 0.5}, lambda x, y: functional.leaky_relu(x, 0.5)),
    "prelu": ("PRelu x slope", {}, lambda x, y: functional.prelu(x, torch.tensor([0.5]).double())),
    "elu": ("Elu x", {}, lambda x, y: functional.elu(x)),
    "threshold": ("ThresholdedRelu x", {}, lambda x, y: functional.threshold(x, 1, 0)),
    "max_pool2d": ("MaxPool x", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
                   lambda x, y: functional.max_pool2d(x, 3, 2, 1)),
    "adaptive_max_pool2d": ("GlobalMaxPool x", {},
                            lambda x, y: functional.adaptive_max_pool2d(x, 1)),
    "amax": ("ReduceMax x", {"axes": [1, 3]}, lambda x, y: x.amax((1, 3), keepdim=True)),
    "amin": ("ReduceMin x", {"axes": [-1]}, lambda x, y: x.amin(-1, keepdim=True)),
    "norm 1": ("ReduceL1 x", {"axes": [3]}, lambda x, y: x.norm(1, 3, keepdim=True)),
    "norm 2": ("ReduceL2 x", {"axes": [3]}, lambda x, y: x.norm(2, 3, keepdim=True)),
    "power": ("Pow x y", {}, torch.pow),
    "quotient": ("Div x y", {}, torch.div),
    "sqrt": ("Sqrt x", {}, lambda x, y: x.sqrt()),
    "log": ("Log x", {}, lambda x, y: x.log()),
    "reciprocal": ("Reciprocal x", {}, lambda x, y: x.reciprocal()),
}  # fmt: skip
SHAPE = (2, 3, 6, 6)


@pytest.mark.parametrize("name", KINKS)
def test_kinks_ties_and_poles(name: str) -> None:
    (op, *operands), words, function = KINKS[name][0].split(), *KINKS[name][1:]
    rng = np.random.default_rng(1)
    values = {name: rng.integers(-2, 3, SHAPE) * 1.0 for name in "xy"}
    values["x"][0, :, :4] = 0
    tensors = [torch.tensor(value, requires_grad=True) for value in values.values()]
    function(*tensors).sum().backward()
    consts = {"low": -1.0, "high": 1.0, "slope": 0.5}
    proto = model(
        [node(op, " ".join(operands), "z", **words), node("ReduceSum", "z", "loss", keepdims=0)],
        dict.fromkeys("xy", SHAPE), {"loss": []},
        {name: np.array(consts[name], np.float32) for name in operands if name in consts},
    )  # fmt: skip
    wanted = [name for name in "xy" if name in operands]
    whole = reference.run(differentiate(read(proto), "loss", wanted), values)
    for name, tensor in zip("xy", tensors, strict=True):
        if name in wanted:
            expected = tensor.grad.numpy()
            np.testing.assert_allclose(whole[f"{name}.gradient"], expected, rtol=1e-12)
