"""Training: what a step computes and changes, what is kept, errors."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest

from polysci import layers
from polysci.errors import CheckError, SpecError, UnsupportedError
from polysci.training import SGD, Adam, Trainer, compile_training, gradcheck
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals

MLP = [layers.Linear(6, 8), layers.Tanh(), layers.Linear(8, 3)]
X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
CLASSES = np.array([0, 2, 1, 1, 0])


def _trainer(source: object = MLP, shape: tuple[int, ...] = (5, 6), **options: object) -> Trainer:
    words = {"level": "estimate", "isa": "portable", "flags": QUICK, **options}
    return compile_training(source, shape, **words)  # type: ignore[arg-type]


def test_a_step_is_that_of_the_formula() -> None:
    trainer = _trainer(optimizer=SGD(lr=0.5, momentum=0.5))
    before = {name: value.copy() for name, value in trainer.parameters.items()}
    gradients = trainer.gradients(X, CLASSES)
    loss = trainer.step(X, CLASSES)
    assert loss == pytest.approx(_loss(before, X, CLASSES), rel=1e-5)
    for name, value in trainer.parameters.items():
        np.testing.assert_allclose(
            value, before[name] - 0.5 * gradients[name], rtol=1e-5, atol=1e-7
        )
        np.testing.assert_allclose(
            trainer.state[f"{name}.momentum_buffer"], gradients[name], rtol=1e-5, atol=1e-7
        )  # fmt: skip
    assert trainer.state["step"] == 1


def _loss(parameters: dict[str, np.ndarray], x: np.ndarray, classes: np.ndarray) -> float:
    values = {name: value.astype(np.float64) for name, value in parameters.items()}
    hidden = np.tanh(x @ values["0.weight"].T + values["0.bias"])
    scores = hidden @ values["2.weight"].T + values["2.bias"]
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return float(-np.log(shares[np.arange(len(x)), classes]).mean())


@pytest.mark.exhaustive
@pytest.mark.parametrize("optimizer", [SGD(lr=0.3, momentum=0.9, nesterov=True), Adam(lr=0.03)])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_loss_falls(optimizer: SGD, threads: int) -> None:
    trainer = _trainer(optimizer=optimizer, threads=threads)
    first = trainer.evaluate(X, CLASSES)
    losses = [trainer.step(X, CLASSES) for _ in range(60)]
    assert losses[0] == pytest.approx(first, rel=1e-6)
    assert losses[-1] < 0.1 * first
    assert (trainer.predict(X).argmax(axis=1) == CLASSES).all()
    assert trainer.evaluate(X, CLASSES) < losses[-1] * 1.01


@pytest.mark.exhaustive
def test_the_learning_rate_is_that_of_the_next_step() -> None:
    trainer = _trainer(optimizer=SGD(lr=0.5))
    trainer.lr = 0.0
    before = trainer.parameters["0.weight"].copy()
    trainer.step(X, CLASSES)
    assert np.array_equal(trainer.parameters["0.weight"], before)
    trainer.lr = 1.0
    trainer.step(X, CLASSES)
    assert not np.array_equal(trainer.parameters["0.weight"], before)


@pytest.mark.exhaustive
def test_gradients_are_limited_together() -> None:
    free, limited = (_trainer(optimizer=SGD(lr=1.0), clip_norm=norm) for norm in (None, 0.01))
    gradients = free.gradients(X, CLASSES)
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
    before = limited.parameters["2.weight"].copy()
    limited.step(X, CLASSES)
    expected = before - gradients["2.weight"] * (0.01 / norm)
    np.testing.assert_allclose(limited.parameters["2.weight"], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.exhaustive
def test_what_is_saved_goes_on_alike(tmp_path: Path) -> None:
    trainer = _trainer(optimizer=Adam(lr=0.02))
    for _ in range(3):
        trainer.step(X, CLASSES)
    trainer.save(tmp_path / "model.npz")
    losses = [trainer.step(X, CLASSES) for _ in range(3)]
    other = _trainer(optimizer=Adam(lr=0.02), seed=9)
    other.load(tmp_path / "model.npz")
    assert [other.step(X, CLASSES) for _ in range(3)] == losses
    with pytest.raises(SpecError, match=r"only in one of file and model: 0\.bias\.exp_avg"):
        _trainer(optimizer=SGD()).load(tmp_path / "model.npz")


@pytest.mark.exhaustive
def test_initializers_of_onnx_are_parameters() -> None:
    weights = {"w": reals(6, 3), "b": reals(3, seed=1)}
    proto = model(
        [node("Gemm", "x w b", "h"), node("Relu", "h", "y")], {"x": ["n", 6]}, {"y": ["n", 3]},
        weights,
    )  # fmt: skip
    trainer = _trainer(proto, loss="mse", optimizer=SGD(lr=0.1))
    assert trainer.parameters.keys() == {"w", "b"}
    target = np.zeros((5, 3), np.float32)
    exact = np.maximum(X @ weights["w"] + weights["b"], 0)
    assert trainer.step(X, target) == pytest.approx(float((exact**2).mean()), rel=1e-5)
    slope = 2 * exact / exact.size
    np.testing.assert_allclose(
        trainer.parameters["b"], weights["b"] - 0.1 * slope.sum(axis=0), rtol=1e-5, atol=1e-6
    )


CNN = [
    layers.Conv2d(1, 4, 3, padding=1), layers.BatchNorm2d(4), layers.ReLU(), layers.MaxPool2d(2),
    layers.Residual([layers.Conv2d(4, 4, 3, padding=1, groups=2), layers.GELU()]),
    layers.Conv2d(4, 6, 3, stride=2), layers.AdaptiveAvgPool2d(1), layers.Flatten(),
    layers.Linear(6, 3),
]  # fmt: skip


@pytest.mark.exhaustive
def test_a_convolutional_network_learns() -> None:
    trainer = _trainer(CNN, (5, 1, 10, 10), optimizer=SGD(lr=0.2, momentum=0.9))
    x = np.random.default_rng(1).normal(size=(5, 1, 10, 10)).astype(np.float32)
    losses = [trainer.step(x, CLASSES) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
    assert trainer.state["1.running_mean"].any()


def _normalising(training_mode: int) -> tuple[onnx.ModelProto, list[object]]:
    """A model of a file, and the same as layers; with their first values."""
    start = {"w": reals(4, 1, 3, 3), "b": reals(4, seed=1), "scale": reals(4, seed=2),
             "shift": reals(4, seed=3), "mean": np.zeros(4, np.float32),
             "variance": np.ones(4, np.float32), "v": reals(3, 4, seed=4)}  # fmt: skip
    words = {"training_mode": 1} if training_mode else {}
    extra = " m2 v2" if training_mode else ""
    nodes = [node("Conv", "x w b", "c"), node("BatchNormalization", "c scale shift mean variance",
             f"n{extra}", momentum=0.9, **words), node("Relu", "n", "r"),
             node("GlobalAveragePool", "r", "p"), node("Flatten", "p", "f"),
             node("Gemm", "f v", "y", transB=1)]  # fmt: skip
    proto = model(nodes, {"x": [5, 1, 8, 8]}, {"y": None}, start)
    own = [layers.Conv2d(1, 4, 3), layers.BatchNorm2d(4), layers.ReLU(),
           layers.AdaptiveAvgPool2d(1), layers.Flatten(),
           layers.Linear(4, 3, bias=False)]  # fmt: skip
    return proto, own


@pytest.mark.exhaustive
@pytest.mark.parametrize("training_mode", [0, 1])
def test_batch_statistics_of_onnx_models(training_mode: int) -> None:
    proto, own = _normalising(training_mode)
    words = {"optimizer": SGD(lr=0.2), "shape": (5, 1, 8, 8)}
    choice = {} if training_mode else {"batch_statistics": True}
    trainer, layered = _trainer(proto, **words, **choice), _trainer(own, **words)
    names = ("w", "b", "scale", "shift", "v")
    pairs = dict(zip(names, layered.parameters, strict=True))
    for name, other in pairs.items():
        layered.parameters[other][...] = trainer.parameters[name]
    x = np.random.default_rng(1).normal(size=(5, 1, 8, 8)).astype(np.float32) + 0.5
    losses = [[learner.step(x, CLASSES) for _ in range(10)] for learner in (trainer, layered)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for name, other in pairs.items():
        np.testing.assert_allclose(
            trainer.parameters[name], layered.parameters[other], rtol=1e-4, atol=1e-6
        )
    running = [layered.state[f"1.running_{word}"] for word in ("mean", "var")]
    count, momentum = 5 * 36, 0.9**10  # layers keep unbiased variances, as PyTorch does
    np.testing.assert_allclose(trainer.state["mean.n"], running[0], rtol=1e-5, atol=1e-6)
    biased = momentum + (running[1] - momentum) * (count - 1) / count
    np.testing.assert_allclose(trainer.state["variance.n"], biased, rtol=1e-5)
    assert trainer.predict(x).shape == (5, 3)


@pytest.mark.exhaustive
def test_frozen_statistics_of_onnx_models() -> None:
    trainer = _trainer(_normalising(0)[0], (5, 1, 8, 8))
    assert not any("mean" in name for name in (*trainer.state, *trainer.parameters))


@pytest.mark.exhaustive
def test_reproducible_steps() -> None:
    """Threads 1 and 2 give the same bits."""
    model = [layers.Conv2d(1, 8, 3), layers.BatchNorm2d(8), layers.ReLU(), layers.MaxPool2d(2),
             layers.Flatten(), layers.Linear(8 * 81, 64), layers.GELU(),
             layers.Linear(64, 3)]  # fmt: skip
    x = np.random.default_rng(1).normal(size=(5, 1, 20, 20)).astype(np.float32)
    bits = []
    for threads in (1, 2):
        trainer = _trainer(
            model, (5, 1, 20, 20), threads=threads, reproducible=True, optimizer=Adam(lr=0.01)
        )
        losses = [trainer.step(x, CLASSES) for _ in range(4)]
        bits.append([np.array(losses), *trainer.parameters.values(), *trainer.state.values()])
    for first, second in zip(*bits, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.exhaustive
def test_bf16_learns_as_f32_does() -> None:
    """Parameters and updates are f32: the losses stay within 2 % of the first one."""
    x = np.random.default_rng(1).normal(size=(5, 1, 10, 10)).astype(np.float32)
    losses = []
    for dtype in ("f32", "bf16"):
        trainer = _trainer(CNN, (5, 1, 10, 10), optimizer=SGD(lr=0.05), dtype=dtype)
        losses.append(np.array([trainer.step(x, CLASSES) for _ in range(30)]))
        assert {value.dtype.name for value in trainer.parameters.values()} == {"float32"}
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert np.abs(losses[0] - losses[1]).max() < 0.02 * losses[0][0]


@pytest.mark.exhaustive
def test_gradcheck() -> None:
    worst = gradcheck(CNN, (2, 1, 7, 8))
    assert worst.keys() == {
        *(f"{at}.{word}" for at in ("0", "1", "4.0", "5", "8") for word in ("weight", "bias"))
    }
    with pytest.raises(CheckError, match=r"gradient of .* from central differences"):
        gradcheck(MLP, (2, 6), tolerance=1e-30)


def test_bad_input() -> None:
    with pytest.raises(SpecError, match="loss 'hinge': expected one of cross_entropy, mse"):
        _trainer(loss="hinge")
    with pytest.raises(TypeError, match="layer 0: expected a layer"):
        _trainer([3])
    with pytest.raises(UnsupportedError, match=r"1 x trilu .*no gradient"):
        _trainer(model([node("MatMul", "x w", "h"), node("Trilu", "h", "y")], {"x": [5, 6]},
                       {"y": [5, 6]}, {"w": reals(6, 6)}), loss="mse")  # fmt: skip
    with pytest.raises(SpecError, match="model: expected at least one layer"):
        _trainer([])
    bare = model([node("Relu", "x", "y")], {"x": [5, 6]}, {"y": [5, 6]})
    for kind, source in (("layers", [layers.ReLU(), layers.Flatten()]), ("initializers", bare)):
        for call in (_trainer, gradcheck):
            with pytest.raises(SpecError, match=f"none of its {kind} has parameters to learn"):
                call(source, (5, 6), loss="mse")
    two = model([node("Relu", "x", "y"), node("Neg", "x", "z")], {"x": [2]}, {"y": [2], "z": [2]})
    with pytest.raises(SpecError, match="1 inputs and 2 outputs"):
        _trainer(two)
    trainer = _trainer()
    with pytest.raises(ValueError, match=r"x: expected shape \(5, 6\), got \(4, 6\)"):
        trainer.step(X[:4], CLASSES)
    with pytest.raises(TypeError, match="target: expected dtype int64, got float32"):
        trainer.step(X, CLASSES.astype(np.float32))


@pytest.mark.exhaustive
def test_wrong_classes() -> None:
    trainer = _trainer()
    for wrong in (3, -1, 1 << 40):
        with pytest.raises(ValueError, match=rf"classes 0 to 2, or -100 .*; got {wrong}"):
            trainer.step(X, np.array([0, 1, 2, wrong, -100]))
        with pytest.raises(ValueError, match=f"got {wrong}"):
            trainer.evaluate(X, np.full(5, wrong))


def test_a_batch_whose_rows_do_not_count_changes_nothing() -> None:
    trainer = _trainer(optimizer=SGD(lr=0.5))
    before = {name: value.copy() for name, value in trainer.parameters.items()}
    assert np.isnan(trainer.step(X, np.full(5, -100)))  # PyTorch's mean over nothing
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ({"shape": (-1, 6)}, SpecError, r"shape\[0\]=-1: expected a whole number"),
        ({"shape": (0, 6)}, SpecError, r"shape \[0, 6\]: a mean over nothing"),
        ({"shape": (5, 6.0)}, TypeError, r"shape\[1\]: expected a whole number, got 6\.0"),
        ({"shape": (1 << 59, 6)}, SpecError, r"has 2\^60 elements or more"),
        ({"optimizer": "sgd"}, TypeError, "optimizer: expected SGD.*, got 'sgd'"),
        ({"optimizer": SGD}, TypeError, "optimizer: expected SGD"),
        ({"clip_norm": "a"}, TypeError, "clip_norm: expected a number, got 'a'"),
        ({"seed": -1}, SpecError, "seed=-1"),
        ({"seed": "a"}, TypeError, "seed: expected a whole number, got 'a'"),
        ({"foo": 1}, TypeError, "unexpected argument 'foo'"),
    ],
)
def test_bad_arguments(words: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        _trainer(**words)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: SGD(lr="a"), TypeError, "SGD: lr: expected a number, got 'a'"),
        (lambda: SGD(lr=float("nan")), SpecError, "SGD: lr=nan"),
        (lambda: SGD(momentum=0.1, nesterov="yes"), TypeError, "SGD: nesterov: expected bool"),
        (lambda: Adam(betas=0.9), TypeError, "Adam: betas: expected tuple or list"),
        (lambda: Adam(betas=("a", 0.9)), TypeError, r"betas\[0\]: expected a number"),
        (lambda: Adam(betas=(0.9, 1.0)), SpecError, "expected two from 0 to below 1"),
        (lambda: Adam(eps=-1), SpecError, "Adam: eps=-1"),
    ],
)
def test_bad_optimizers(make: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_a_learning_rate_that_is_none() -> None:
    trainer = _trainer()
    trainer.lr = "a"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="lr: expected a number"):
        trainer.step(X, CLASSES)
    trainer.lr = float("nan")
    with pytest.raises(SpecError, match="lr=nan"):
        trainer.step(X, CLASSES)


def test_files_that_hold_no_state(tmp_path: Path) -> None:
    trainer = _trainer()
    trainer.save(tmp_path / "model.npz")
    whole = (tmp_path / "model.npz").read_bytes()
    for name, content in {"text": b"foo", "empty": b"", "short": whole[: len(whole) // 2]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SpecError, match=f"{name}: no archive of Trainer.save"):
            trainer.load(tmp_path / name)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(SpecError, match="no archive"):
        trainer.load(tmp_path / "array.npy")
    with pytest.raises(FileNotFoundError, match=r"none/model\.npz"):
        trainer.save(tmp_path / "none/model.npz")


def test_a_full_disk_leaves_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, path = _trainer(), tmp_path / "model.npz"
    trainer.save(path)
    before = path.read_bytes()

    def fail(file: BinaryIO, **_arrays: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="No space left") as refused:
        trainer.save(path)
    assert str(refused.value).endswith(f"'{path}'")
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


def test_the_repr_is_one_short_line() -> None:
    text = repr(_trainer())
    assert text == "Trainer('model', 4 parameters of 83 elements, loss='cross_entropy', lr=0.001)"


def test_a_model_of_other_shapes() -> None:
    proto = model([node("Relu", "x", "y")], {"x": [2, 3]}, {"y": [2, 3]})
    assert isinstance(proto, onnx.ModelProto)
    with pytest.raises(SpecError, match=r"shape \[5, 6\]: the model takes \[2, 3\]"):
        _trainer(proto, loss="mse")
