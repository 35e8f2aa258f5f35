"""Recurrent layers beside the definition of their nodes, beside PyTorch, and their errors."""

from typing import Any

import numpy as np
import pytest

from polysci import layers
from polysci.errors import SpecError
from polysci.frontends.layers import build_model
from polysci.graph.differentiate import pull_back
from tests.graph.operators.test_recurrent import reference
from tests.support.networks import network_of

T, N, C, K = 4, 3, 5, 6
X = np.random.default_rng(0).normal(size=(T, N, C)).astype(np.float32)
ROWS = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}  # of PyTorch's gates, in ONNX's order


def both(op: str, values: dict[str, np.ndarray], word: str) -> np.ndarray:
    """Parameters of both directions with gates in ONNX's order."""
    parts = [values[f"0.{word}_l0{end}"] for end in ("", "_reverse")]
    ordered = [part.reshape(len(ROWS[op]), K, *part.shape[1:])[ROWS[op]] for part in parts]
    return np.stack([part.reshape(-1, *part.shape[2:]) for part in ordered])


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", ROWS)
def test_both_directions_are_those_of_onnx(op: str) -> None:
    model = build_model([getattr(layers, op)(C, K, bidirectional=True)], (T, N, C))
    values = dict(model.parameters)
    names = [f"0.{word}_l0{end}" for end in ("", "_reverse")
             for word in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]  # fmt: skip
    assert [*values] == names
    bias = np.concatenate([both(op, values, "bias_ih"), both(op, values, "bias_hh")], 1)
    arrays = [X, both(op, values, "weight_ih"), both(op, values, "weight_hh"), bias]
    words: dict[str, Any] = {"direction": "bidirectional", "linear_before_reset": 1}
    exact = reference(op, words, arrays)[0].transpose(0, 2, 1, 3).reshape(T, N, 2 * K)
    made = network_of(model.graph)({"x": X, **values})
    (y,) = made.values()
    np.testing.assert_allclose(y, exact, atol=1e-6)


STACKS: dict[str, tuple[list[Any], str]] = {
    "lstm": ([layers.LSTM(C, K, 2, bidirectional=True)], "LSTM(5, 6, 2, bidirectional=True)"),
    "gru": ([layers.GRU(C, K, batch_first=True)], "GRU(5, 6, batch_first=True)"),
    "rnn": ([layers.RNN(C, K, nonlinearity="relu", bias=False)],
            "RNN(5, 6, nonlinearity='relu', bias=False)"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", STACKS)
def test_results_and_gradients_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    stack, text = STACKS[name]
    model = build_model(stack, (T, N, C))
    y = model.graph.outputs[0]
    dy = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    made = network_of(pull_back(model.graph, y.name, ["x", *model.parameters]))(
        {"x": X, f"{y.name}.gradient": dy, **model.parameters}
    )
    peer = eval(text, {word: getattr(torch.nn, word) for word in ("LSTM", "GRU", "RNN")})
    known = {key[2:]: torch.from_numpy(value.copy()) for key, value in model.parameters.items()}
    peer.load_state_dict(known)
    x = torch.from_numpy(X.copy()).requires_grad_()
    result = peer(x)[0]
    result.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(made[y.name], result.detach().numpy(), atol=1e-6)
    exact = {f"0.{key}": value.grad for key, value in peer.named_parameters()} | {"x": x.grad}
    for key, value in exact.items():
        np.testing.assert_allclose(made[f"{key}.gradient"], value.numpy(), atol=3e-6, err_msg=key)


@pytest.mark.exhaustive
def test_the_last_step_alone() -> None:
    """Of the other direction that is the first one."""
    every = build_model([layers.GRU(C, K, bidirectional=True)], (T, N, C))
    last = build_model([layers.GRU(C, K, bidirectional=True, last=True)], (T, N, C))
    values = {"x": X, **every.parameters}
    (steps,) = network_of(every.graph)(values).values()
    (ends,) = network_of(last.graph)(values).values()
    assert ends.shape == (N, 2 * K)
    assert np.array_equal(ends, np.concatenate([steps[-1, :, :K], steps[0, :, K:]], 1))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: layers.LSTM(C, 0), "hidden_size=0: expected a whole number of at least 1"),
        (lambda: layers.RNN(C, K, nonlinearity="sin"), "nonlinearity 'sin': expected tanh or relu"),
        (lambda: layers.GRU(C + 1, K), "input_size=6, but x has 5"),
    ],
)
def test_refused(make: Any, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        build_model([make()], (T, N, C))
