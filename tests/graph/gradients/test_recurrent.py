"""Gradients of LSTM, GRU and RNN, compiled, beside central differences and beside PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from polysci.errors import UnsupportedError
from polysci.frontends.onnx.reference import run as run_reference
from polysci.graph.differentiate import differentiate
from polysci.graph.graph import Graph
from tests.graph.operators.test_recurrent import (
    NAMES,
    arrays_of,
    recurrent_model,
    reference,
)
from tests.support.networks import network_of, read

Array = np.ndarray
LATE = {"linear_before_reset": 1}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "lstm": ("LSTM", {}, {"bias": True, "first": True}),
    "lstm, one step": ("LSTM", {}, {"steps": 1, "batch": 1, "first": True}),
    "lstm, both ways": ("LSTM", {"direction": "bidirectional"}, {"bias": True, "first": True}),
    "lstm, batch first": (
        "LSTM", {"layout": 1, "direction": "bidirectional"}, {"bias": True, "first": True},
    ),
    "lstm, lengths": ("LSTM", {"direction": "bidirectional"}, {"lengths": [5, 2, 3]}),
    "lstm, order": ("LSTM", {"order": "ifgo", "direction": "reverse"}, {"bias": True}),
    "gru": ("GRU", LATE, {"bias": True, "first": True}),
    "gru, both ways": ("GRU", {**LATE, "direction": "bidirectional"}, {"lengths": [1, 5, 4]}),
    "gru, order": ("GRU", {**LATE, "order": "rzn", "layout": 1}, {"bias": True}),
    "gru, early": ("GRU", {}, {"bias": True, "first": True}),
    "gru, early, both ways": ("GRU", {"direction": "bidirectional"}, {"lengths": [1, 5, 4]}),
    "gru, early, order": ("GRU", {"order": "rzn", "layout": 1}, {"bias": True}),
    "lstm, peepholes": ("LSTM", {}, {"bias": True, "first": True, "peepholes": True}),
    "lstm, peepholes, both ways": (
        "LSTM", {"direction": "bidirectional"}, {"lengths": [5, 2, 3], "peepholes": True},
    ),
    "lstm, peepholes, order": ("LSTM", {"order": "ifgo", "layout": 1}, {"peepholes": True}),
    "rnn": ("RNN", {"direction": "reverse"}, {"bias": True, "first": True}),
    "rnn, clamped": ("RNN", {"activations": ["Relu"]}, {"bias": True, "first": True}),
}  # fmt: skip
ONNX_ORDER = {"LSTM": "iofg", "GRU": "zrn", "RNN": "n"}
STEP = 1e-5


def rows_in_order(op: str, order: str, array: Array, halves: int = 1) -> Array:
    """Rows of gates that lie in some order, as ONNX has them: axis 1 of W, R or B."""
    parts = [order.index(letter) for letter in ONNX_ORDER[op]]
    shape = (array.shape[0], halves, len(order), -1, *array.shape[2:])
    return array.reshape(shape)[:, :, parts].reshape(array.shape)


def exact_loss(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None], shares: Sequence[Array]
) -> float:
    words, known = dict(attributes), list(arrays)
    order = words.pop("order", ONNX_ORDER[op])
    for at in (1, 2, 3):
        if at < len(known) and known[at] is not None:
            known[at] = rows_in_order(op, order, known[at], 2 if at == 3 else 1)
    made = reference(op, words, known)
    return float(sum(np.sum(a * b) for a, b in zip(made, shares, strict=True)))


def gradient_graph(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None],
    shares: Sequence[Array], dtype: str,
) -> tuple[Graph, dict[str, Array], list[str]]:  # fmt: skip
    """The graph of the loss and its gradients by all inputs but lengths, and its inputs."""
    words = dict(attributes)
    order = words.pop("order", "")
    arrays = [v if v is None or v.dtype == np.int32 else v.astype(dtype) for v in arrays]
    built = recurrent_model(op, words, arrays, fixed=())
    for port in built.graph.output:
        port.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    parts = []
    for port, share in zip(list(built.graph.output), shares, strict=True):
        name = port.name
        built.graph.initializer.append(
            onnx.numpy_helper.from_array(share.astype(dtype), f"{name}.share")
        )
        built.graph.node.extend([
            onnx.helper.make_node("Mul", [name, f"{name}.share"], [f"{name}.part"]),
            onnx.helper.make_node("ReduceSum", [f"{name}.part"], [f"{name}.sum"], keepdims=0),
        ])  # fmt: skip
        parts.append(f"{name}.sum")
    built.graph.node.append(onnx.helper.make_node("Sum", parts, ["loss"]))
    del built.graph.output[:]
    elem = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    built.graph.output.append(onnx.helper.make_tensor_value_info("loss", elem, []))
    graph = read(built)
    if order:
        first = replace(graph.nodes[0], attributes={**graph.nodes[0].attributes, "order": order})
        graph = replace(graph, nodes=(first, *graph.nodes[1:]))
    known = {n: v for n, v in zip(NAMES, arrays, strict=False) if v is not None}
    wanted = [name for name in known if name != "lengths"]
    return differentiate(graph, "loss", wanted), known, wanted


def gradients_of(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None],
    shares: Sequence[Array], threads: int = 1, dtype: str = "float64",
) -> tuple[float, dict[str, Array]]:  # fmt: skip
    """The loss and its gradients from a compiled network."""
    graph, known, wanted = gradient_graph(op, attributes, arrays, shares, dtype)
    made = network_of(graph, threads)(known)
    return float(made["loss"]), {name: made[f"{name}.gradient"] for name in wanted}


def shares_of(op: str, attributes: Mapping[str, Any], arrays: Sequence[Any]) -> list[Array]:
    """Random numbers by which the outputs are weighted."""
    words = {word: value for word, value in attributes.items() if word != "order"}
    made, rng = reference(op, words, arrays), np.random.default_rng(9)
    return [rng.uniform(-1, 1, value.shape) for value in made]


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_central_differences_of_doubles(name: str) -> None:
    """Along a random direction of each input."""
    op, attributes, given = CASES[name]
    arrays = arrays_of(op, attributes, given)
    shares, rng = shares_of(op, attributes, arrays), np.random.default_rng(8)
    exact = [v if v is None or v.dtype == np.int32 else v.astype(np.float64) for v in arrays]
    loss, made = gradients_of(op, attributes, arrays, shares)
    assert loss == pytest.approx(exact_loss(op, attributes, exact, shares), rel=1e-12)
    for at, what in enumerate(NAMES[: len(arrays)]):
        if what not in made:
            continue
        direction = rng.normal(size=exact[at].shape)
        ends = [
            exact_loss(op, attributes,
                       [v + s * direction if n == at else v for n, v in enumerate(exact)], shares)
            for s in (-STEP, STEP)
        ]  # fmt: skip
        slope = (ends[1] - ends[0]) / (2 * STEP)
        assert np.sum(made[what] * direction) == pytest.approx(slope, rel=1e-6, abs=1e-7), what


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_the_reference_knows_backward_passes(name: str) -> None:
    """What ONNX's reference lacks: orders of gates, what is kept, and the way back."""
    op, attributes, given = CASES[name]
    arrays = arrays_of(op, attributes, given)
    shares = shares_of(op, attributes, arrays)
    graph, known, wanted = gradient_graph(op, attributes, arrays, shares, "float64")
    tensors = run_reference(graph, known)
    _, made = gradients_of(op, attributes, arrays, shares)
    for what in wanted:
        assert np.allclose(tensors[f"{what}.gradient"], made[what], rtol=1e-9, atol=1e-12), what


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["lstm, both ways", "gru, order", "gru, early", "rnn, clamped"])
def test_single_precision_by_layers(name: str, threads: int) -> None:
    """The products are layers then; beside the same in doubles."""
    op, attributes, given = CASES[name]
    arrays = arrays_of(op, attributes, {**given, "steps": 9, "batch": 4, "size": 24, "hidden": 32})
    shares = shares_of(op, attributes, arrays)
    _, exact = gradients_of(op, attributes, arrays, shares)
    _, made = gradients_of(op, attributes, arrays, shares, threads, "float32")
    for what, value in exact.items():
        assert np.abs(made[what] - value).max() < 2e-5 * np.abs(value).max(), what


@pytest.mark.exhaustive
def test_whole_numbers_are_exact() -> None:
    """A clamped RNN of small whole numbers loses nothing in single precision."""
    rng = np.random.default_rng(5)
    shapes = [(4, 3, 5), (1, 6, 5), (1, 6, 6), (1, 12)]
    arrays = [rng.integers(-1, 2, shape).astype(np.float32) for shape in shapes]
    attributes = {"activations": ["Relu"]}
    shares = [rng.integers(-2, 3, (4, 1, 3, 6)), rng.integers(-2, 3, (1, 3, 6))]
    _, exact = gradients_of("RNN", attributes, arrays, shares)
    _, made = gradients_of("RNN", attributes, arrays, shares, 2, "float32")
    for what, value in exact.items():
        assert np.array_equal(made[what], value), what
        assert np.abs(value).max() < 1 << 24 and value.any(), what


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "clip": ("LSTM", {"clip": 0.5}, {}, "lstm with clip"),
    "function": ("RNN", {"activations": ["Softsign"]}, {}, "activation softsign"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    op, attributes, given, told = REFUSED[name]
    arrays = arrays_of(op, attributes, given)
    with pytest.raises(UnsupportedError, match=told):
        gradients_of(op, attributes, arrays, shares_of(op, attributes, arrays))
