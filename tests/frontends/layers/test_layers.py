"""Lists of layers: names, shapes, first values, what they compute, and errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from polysci import layers
from polysci.errors import SpecError
from polysci.frontends.layers import build_model
from polysci.frontends.onnx import reference
from tests.support.networks import network_of

CNN = [
    layers.Conv2d(3, 8, 3, padding=1, stride=2),
    layers.BatchNorm2d(8),
    layers.ReLU(),
    layers.Residual(
        [layers.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), layers.SiLU()],
        shortcut=[layers.Conv2d(8, 8, 1)],
    ),
    layers.ConvTranspose2d(8, 4, 2, stride=2),
    layers.GroupNorm(2, 4),
    layers.AvgPool2d(2),
    layers.MaxPool2d(3, 1, 1),
    layers.Flatten(),
    layers.Linear(4 * 8 * 8, 10),
    layers.LayerNorm(10),
    layers.RMSNorm(10),
    layers.GELU(),
    layers.Dropout(0.3),
    layers.Softmax(-1),
]


def test_names_and_shapes_are_those_of_pytorch() -> None:
    model = build_model(CNN, (2, 3, 16, 16))
    shapes = {name: value.shape for name, value in model.parameters.items()}
    assert shapes == {
        "0.weight": (8, 3, 3, 3), "0.bias": (8,), "1.weight": (8,), "1.bias": (8,),
        "3.0.weight": (8, 4, 3, 3), "3.shortcut.0.weight": (8, 8, 1, 1), "3.shortcut.0.bias": (8,),
        "4.weight": (8, 4, 2, 2), "4.bias": (4,), "5.weight": (4,), "5.bias": (4,),
        "9.weight": (10, 256), "9.bias": (10,), "10.weight": (10,), "10.bias": (10,),
        "11.weight": (10,),
    }  # fmt: skip
    assert [*model.state] == ["1.running_mean", "1.running_var"]
    assert [tensor.name for tensor in model.graph.inputs] == ["x", *model.parameters, *model.state]
    assert model.graph.outputs[0].shape == (2, 10)


def test_first_values() -> None:
    parameters = build_model(CNN, (2, 3, 16, 16), seed=3).parameters
    again = build_model(CNN, (2, 3, 16, 16), seed=3).parameters
    other = build_model(CNN, (2, 3, 16, 16), seed=4).parameters
    assert all(np.array_equal(value, again[name]) for name, value in parameters.items())
    assert not np.array_equal(parameters["0.weight"], other["0.weight"])
    for name, fan in (("0.weight", 27), ("3.0.weight", 36), ("4.weight", 16), ("9.weight", 256)):
        most = np.abs(parameters[name]).max() * np.sqrt(fan)
        assert 0.9 < most <= 1.0 + 1e-6
    assert (parameters["1.weight"] == 1).all() and not parameters["1.bias"].any()


def test_a_model_computes_what_its_graph_says() -> None:
    model = build_model(CNN, (2, 3, 16, 16))
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    values = {"x": x, **model.parameters, **model.state}
    (name,) = (tensor.name for tensor in model.graph.outputs)
    exact = reference.run(model.graph, values)[name]
    made = network_of(model.graph)(values)[name]
    np.testing.assert_allclose(made, exact, rtol=1e-4, atol=1e-5)


def test_learning_replaces_running_statistics() -> None:
    model = build_model([layers.BatchNorm1d(3)], (4, 3), training=True)
    assert [*model.replaced] == ["0.running_mean", "0.running_var"]
    assert [tensor.shape for tensor in model.graph.outputs] == [(4, 3), (3,), (3,)]
    assert build_model([layers.BatchNorm1d(3)], (4, 3)).replaced == {}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ([layers.Linear(5, 2)], "layer 0 LinearLayer.*in_features=5, but x has 6"),
        ([layers.ReLU(), layers.Conv2d(6, 2, 3)], "layer 1 .*expected 4 axes, got"),
        ([layers.Residual([layers.Linear(6, 2)])], r"layer 0 .*shapes \[4, 2\] and \[4, 6\]"),
        ([layers.Residual([layers.Linear(5, 2)])], "layer 0.0 LinearLayer"),
        ([layers.BatchNorm1d(4)], "num_features=4, but x has 6"),
        ([layers.LayerNorm((2, 3))], r"normalized_shape=\[2, 3\] for x \[4, 6\]"),
        ([layers.Flatten(1, 0)], "axes 1 to 0"),
    ],
)
def test_errors_name_the_layer(model: list[layers.Linear], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build_model(model, (4, 6))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.Conv2d(3, 4, 9), "window is larger than x"),
        (layers.Conv2d(3, 4, 3, groups=2), "groups=2 divides not"),
        (layers.Conv2d(3, 4, (3, 3, 3)), "kernel_size=.*expected a whole number, or 2"),
        (layers.MaxPool2d(2, padding=2), "windows .* do not fit"),
        (layers.AdaptiveAvgPool2d(2), "output_size=2: 1 alone"),
        (layers.GroupNorm(2, 3), "num_groups=2 of 3"),
        (layers.ConvTranspose2d(3, 4, 1, padding=4), "padding leaves nothing"),
        (layers.ConvTranspose2d(3, 4, 3, output_padding=1), "output_padding=.* below stride"),
        (layers.Conv2d(3, 4, 3, padding=1 << 40), r"the result: .* has 2\^60 elements or more"),
        (layers.Flatten(4), "has no such axes"),
    ],
)
def test_errors_of_images(layer: layers.Conv2d, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build_model([layer], (1, 3, 8, 8))


def test_what_is_no_layer() -> None:
    with pytest.raises(TypeError, match="layer 1: expected a layer, got 'ReLU'"):
        build_model([layers.ReLU(), "ReLU"], (4, 6))  # type: ignore[list-item]
    with pytest.raises(TypeError, match="layer 0: expected a layer"):
        build_model([layers.Linear], (4, 6))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: layers.Dropout(1.5), SpecError, r"Dropout: p=1\.5: .* below 1"),
        (lambda: layers.Dropout("a"), TypeError, "Dropout: p: expected a number"),
        (lambda: layers.Linear(8, -1), SpecError, "Linear: out_features=-1: .* at least 1"),
        (lambda: layers.Linear(8, 2.5), TypeError, r"Linear: out_features: expected a whole"),
        (lambda: layers.Linear(8, (4, 4)), TypeError, r"out_features: .*, got \(4, 4\)"),
        (lambda: layers.Linear(8, 1 << 60), SpecError, r"below 2\^60"),
        (lambda: layers.Conv2d(3, 4, 3, stride=0), SpecError, "Conv2d: stride=0: .* at least 1"),
        (lambda: layers.Conv2d(3, 4, 3, stride=None), TypeError, "Conv2d: stride: .*, got None"),
        (lambda: layers.Conv2d(3, 4, (3, 0)), SpecError, "Conv2d: kernel_size=0"),
        (lambda: layers.Conv2d(3, 4, 3, padding=-1), SpecError, "padding=-1: .* at least 0"),
        (lambda: layers.Conv2d(3, 4, 3, padding="same"), TypeError, "padding: .*, got 'same'"),
        (lambda: layers.Conv2d(3, 4, 3, bias="no"), TypeError, "Conv2d: bias: expected bool"),
        (lambda: layers.MaxPool2d(0), SpecError, "MaxPool2d: kernel_size=0"),
        (lambda: layers.BatchNorm2d(4, eps=-1.0), SpecError, r"BatchNorm2d: eps=-1\.0"),
        (lambda: layers.GELU("erf"), SpecError, "GELU: approximate='erf'"),
        (lambda: layers.LeakyReLU("a"), TypeError, "LeakyReLU: negative_slope: expected a number"),
        (lambda: layers.ELU(float("inf")), SpecError, "ELU: alpha=inf"),
        (lambda: layers.Residual(3), TypeError, "Residual: layers: expected list or tuple"),
        (lambda: layers.Softmax(dim=1.0), TypeError, "Softmax: dim: expected a whole number"),
    ],
)
def test_wrong_fields(make: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_negative_axes_and_numbers_of_numpy() -> None:
    layers.Flatten(-2), layers.LeakyReLU(-0.5), layers.MaxPool2d(2, stride=None)
    model = [layers.Conv2d(np.int64(3), 4, np.int32(3), padding=(np.int8(1), 0)), layers.Flatten()]
    assert build_model(model, (1, np.int64(3), 8, 8)).graph.outputs[0].shape == (1, 4 * 8 * 6)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("layer", "shape", "result"),
    [
        (layers.LayerNorm(8), (0, 3, 8), (0, 3, 8)),
        (layers.RMSNorm(8), (0, 8), (0, 8)),
        (layers.GroupNorm(2, 8), (0, 8, 3), (0, 8, 3)),
        (layers.LSTM(8, 4, num_layers=2, last=True), (5, 0, 8), (0, 4)),
        (layers.GRU(8, 4, bidirectional=True), (5, 0, 8), (5, 0, 8)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, layers.Layer) else None,
)
def test_no_images_give_an_empty_result(
    layer: layers.Layer, shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    model = build_model([layer], shape)
    inputs = {it.name: np.zeros(it.shape, it.dtype) for it in model.graph.inputs}
    (y,) = network_of(model.graph)(inputs).values()
    assert y.shape == result and y.dtype == np.float32
