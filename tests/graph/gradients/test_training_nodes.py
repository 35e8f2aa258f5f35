"""Losses, optimizers, dropout and running statistics: as C beside NumPy, and beside PyTorch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.frontends.layers import BatchNorm2d, Dropout, build_model
from polysci.frontends.onnx import reference
from polysci.graph.builder import GraphBuilder
from polysci.graph.differentiate import differentiate
from polysci.graph.graph import Graph, Tensor
from polysci.graph.losses import LOSSES, add_cross_entropy
from polysci.graph.operators.elementwise import philox
from polysci.graph.optimizers import SGD, Adam, Optimizer, limit_norm
from polysci.target.host import detect
from tests.support.networks import network_of

Arrays = dict[str, np.ndarray]


def growing(**inputs: np.ndarray) -> GraphBuilder:
    """A graph of inputs alone."""
    tensors = {name: Tensor(name, v.shape, v.dtype.name) for name, v in inputs.items()}
    return GraphBuilder(Graph("small", tuple(tensors.values()), (), (), {}, tensors))


def run(graph: Graph, values: Arrays, threads: int = 1) -> Arrays:
    results = network_of(graph, threads)(values)
    assert isinstance(results, dict)
    return dict(results)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


ROWS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "rows": {"reduction": "none"},
    "ignored": {"ignore_index": 2},
    "smooth": {"label_smoothing": 0.1},
    "smooth sum, ignored": {"label_smoothing": 0.3, "ignore_index": 1, "reduction": "sum"},
    "smooth rows": {"label_smoothing": 1.0, "reduction": "none"},
}


def entropy(words: dict[str, Any], shape: tuple[int, ...]) -> tuple[Graph, Arrays]:
    """The loss and its gradient."""
    x = normal(*shape) * 3
    labels = np.random.default_rng(1).integers(0, shape[1], (shape[0], *shape[2:]))
    graph = growing(x=x, t=labels)
    loss = add_cross_entropy(graph, "x", "t", **words)
    if words.get("reduction") == "none":
        loss = graph.total(loss, range(len(graph.shape(loss))))
    whole = graph.to_graph(graph.graph.inputs, [loss])
    return differentiate(whole, loss, ["x"]), {"x": x, "t": labels}


@pytest.mark.sampled
@pytest.mark.parametrize("words", ROWS.values(), ids=ROWS)
def test_cross_entropy(words: dict[str, Any]) -> None:
    for shape in ((1, 1), (2, 5, 3, 2)):
        graph, values = entropy(words, shape)
        exact, results = reference.run(graph, values), run(graph, values)
        for tensor in graph.outputs:
            wanted = exact[tensor.name]
            assert results[tensor.name] == pytest.approx(wanted, rel=3e-6, abs=1e-6, nan_ok=True)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("words", ROWS.values(), ids=ROWS)
def test_cross_entropy_beside_torch(words: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    for shape in ((1, 1), (6, 10), (2, 5, 3, 2)):
        graph, values = entropy(words, shape)
        x = torch.tensor(values["x"], dtype=torch.float64, requires_grad=True)
        told = {"ignore_index": -100, **words}
        loss = torch.nn.functional.cross_entropy(x, torch.tensor(values["t"]), **told).sum()
        loss.backward()
        results, (first, second) = run(graph, values), graph.outputs
        assert results[first.name] == pytest.approx(loss.item(), rel=3e-6, nan_ok=True)
        wanted = x.grad.numpy()
        assert results[second.name] == pytest.approx(wanted, rel=3e-6, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", ["mse", "bce_with_logits"])
def test_losses_of_elements(name: str) -> None:
    x, target = normal(3, 7) * 20, np.random.default_rng(1).random((3, 7), np.float32)
    graph = growing(x=x, t=target)
    loss = LOSSES[name](graph, "x", "t")
    whole = differentiate(graph.to_graph(graph.graph.inputs, [loss]), loss, ["x"])
    wide = x.astype(np.float64)
    values = {
        "mse": (np.square(wide - target), 2 * (wide - target)),
        "bce_with_logits": (
            np.logaddexp(wide, 0) - wide * target, 1 / (1 + np.exp(-wide)) - target,
        ),
    }  # fmt: skip
    results = run(whole, {"x": x, "t": target})
    assert results[loss] == pytest.approx(values[name][0].mean(), rel=1e-6)
    assert results["x.gradient"] == pytest.approx(values[name][1] / x.size, rel=1e-5, abs=1e-7)


OPTIMIZERS: dict[str, tuple[Optimizer, str]] = {
    "plain": (SGD(0.1), "SGD"),
    "decay": (SGD(0.1, weight_decay=0.01), "SGD"),
    "momentum": (SGD(0.1, 0.9), "SGD"),
    "dampening": (SGD(0.1, 0.9, 0.3, 0.01), "SGD"),
    "nesterov": (SGD(0.1, 0.9, weight_decay=0.1, nesterov=True), "SGD"),
    "adam": (Adam(0.01, weight_decay=0.1), "Adam"),
    "adamw": (Adam(0.01, (0.8, 0.99), 1e-6, 0.1, decoupled=True), "AdamW"),
}


def steps(optimizer: Optimizer, gradients: Sequence[np.ndarray], p: np.ndarray) -> np.ndarray:
    """The parameter after as many steps as there are gradients, by compiled ones."""
    states = {name: np.zeros_like(p) for name in optimizer.states}
    lr = np.array(optimizer.lr, np.float32)
    graph = growing(p=p, g=p, lr=lr, step=np.array(1), **states)
    factors = {**optimizer.factors(graph, "step"), "lr": "lr"}
    made = optimizer.update(graph, "p", "g", [*states], factors)
    network = network_of(graph.to_graph(graph.graph.inputs, made), 2)
    for number, gradient in enumerate(gradients, 1):
        values = {"p": p, "g": gradient, "lr": lr, "step": np.array(number), **states}
        results = network(values)
        assert isinstance(results, dict)
        p, *kept = (results[name].copy() for name in made)
        states = dict(zip(optimizer.states, kept, strict=True))
    return p


def descend(p: np.ndarray, gradients: Sequence[np.ndarray], o: SGD) -> np.ndarray:
    """PyTorch's documentation of SGD, in float64."""
    p, kept = p.astype(np.float64), np.zeros_like(p, np.float64)
    for number, raw in enumerate(gradients):
        gradient = raw + o.weight_decay * p
        kept = o.momentum * kept + (1 - o.dampening if number else 1) * gradient
        move = gradient + o.momentum * kept if o.nesterov else kept if o.momentum else gradient
        p = p - o.lr * move
    return p


def adapt(p: np.ndarray, gradients: Sequence[np.ndarray], o: Adam) -> np.ndarray:
    """PyTorch's documentation of Adam and AdamW, in float64."""
    p, m, v, (first, second) = p.astype(np.float64), 0.0, 0.0, o.betas
    for number, raw in enumerate(gradients, 1):
        gradient = raw if o.decoupled else raw + o.weight_decay * p
        p = p * (1 - o.lr * o.weight_decay) if o.decoupled else p
        m, v = first * m + (1 - first) * gradient, second * v + (1 - second) * gradient**2
        root = np.sqrt(v / (1 - second**number)) + o.eps
        p = p - o.lr * (m / (1 - first**number)) / root
    return p


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    (optimizer, _), p = OPTIMIZERS[name], normal(4, 9)
    gradients = [normal(4, 9, seed=seed) for seed in range(1, 6)]
    exact = descend(p, gradients, optimizer) if isinstance(optimizer, SGD) else None
    if isinstance(optimizer, Adam):
        exact = adapt(p, gradients, optimizer)
    result = steps(optimizer, gradients, p)
    assert result == pytest.approx(exact, rel=2e-6, abs=2e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_beside_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    (optimizer, title), p = OPTIMIZERS[name], normal(4, 9)
    gradients = [normal(4, 9, seed=seed) for seed in range(1, 6)]
    words = {n: getattr(optimizer, n) for n in optimizer.__dataclass_fields__ if n != "decoupled"}
    wanted = torch.nn.Parameter(torch.tensor(p, dtype=torch.float64))
    theirs = getattr(torch.optim, title)([wanted], **words)
    for gradient in gradients:
        wanted.grad = torch.tensor(gradient, dtype=torch.float64)
        theirs.step()
    exact = wanted.detach().numpy()
    assert steps(optimizer, gradients, p) == pytest.approx(exact, rel=2e-6, abs=2e-6)


@pytest.mark.parametrize("most", [0.5, 1e3])
def test_the_norm_of_gradients(most: float) -> None:
    values = {"a": normal(3, 4), "b": normal(7, seed=1), "c": normal(1, 5, seed=2)}
    graph = growing(**values)
    factor = limit_norm(graph, [*values], most)
    result = run(graph.to_graph(graph.graph.inputs, [factor]), values)[factor]
    norm = np.sqrt(sum(np.square(value.astype(np.float64)).sum() for value in values.values()))
    assert result == pytest.approx(min(1, most / (norm + 1e-6)), rel=1e-6)


def test_random_bits_are_those_of_the_paper() -> None:
    """The vectors that come with Random123."""
    rows = ((0, 0, 0, 0xFF1DAE59), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x2C3F628B),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0xDD7CE038))  # fmt: skip
    for low, high, key, word in rows:
        assert int(philox(np.array([low]), high, key)[0]) == word


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["portable", "native"])
def test_dropout(isa: str) -> None:
    """Bit for bit as NumPy, for any threads; other masks in every layer and step."""
    made = build_model([Dropout(0.25), Dropout(0.5)], [3, 50, 7], training=True, seed=4)
    x, counter = np.ones((3, 50, 7), np.float32), made.state["dropout.counter"]
    y = made.graph.outputs[0].name
    networks = [
        network_of(made.graph, threads, isa=detect().isa.name if isa == "native" else isa)
        for threads in (1, 2)
    ]
    before = None
    for _ in range(3):
        values = {"x": x, "dropout.counter": counter}
        exact = reference.run(made.graph, values, "float32")
        for network in networks:
            result = network(values)
            assert isinstance(result, dict)
            assert np.array_equal(result[y], exact[y])
        assert {*np.unique(exact[y])} == {0, np.float32(1 / 0.75) * 2}
        assert abs((exact[y] != 0).mean() - 0.375) < 0.05
        assert before is None or (before != exact[y]).any()
        before, counter = exact[y], exact[made.replaced["dropout.counter"]]


def test_running_statistics() -> None:
    """PyTorch's: the running variance is that of a sample."""
    made = build_model([BatchNorm2d(3, momentum=0.3)], [2, 3, 4, 5], training=True)
    x = normal(2, 3, 4, 5) * 2 + 1
    values = {"x": x, **made.parameters, **made.state}
    results, wide = run(made.graph, values, 2), x.astype(np.float64)
    mean, variance = wide.mean((0, 2, 3)), wide.var((0, 2, 3), ddof=1)
    title = made.replaced["0.running_mean"], made.replaced["0.running_var"]
    assert results[title[0]] == pytest.approx(0.3 * mean, rel=1e-6)
    assert results[title[1]] == pytest.approx(0.7 + 0.3 * variance, rel=1e-6)


def test_bad_input() -> None:
    graph = growing(x=normal(3, 4), t=np.zeros(4, np.int64))
    with pytest.raises(SpecError, match=r"target: expected shape \[3\], got \[4\]"):
        add_cross_entropy(graph, "x", "t")
    with pytest.raises(SpecError, match="reduction 'most': expected none, sum or mean"):
        LOSSES["mse"](graph, "x", "x", reduction="most")  # type: ignore[call-arg]
    with pytest.raises(SpecError, match="SGD: lr=-1: expected a number of at least 0"):
        SGD(-1)
    with pytest.raises(SpecError, match="nesterov needs momentum and no dampening"):
        SGD(0.1, nesterov=True)
    with pytest.raises(SpecError, match=r"betas=.*expected two from 0 to below 1"):
        Adam(betas=(0.9, 1.0))
    with pytest.raises(SpecError, match="clip_norm=0: expected a positive number"):
        limit_norm(graph, ["x"], 0)
    with pytest.raises(SpecError, match="more than one value a channel"):
        build_model([BatchNorm2d(3)], [1, 3, 1, 1], training=True)
