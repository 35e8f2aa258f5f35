"""Training on devices: losses and gradients of C, tensors that stay there, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polysci import layers
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.onnx import reference
from polysci.graph.differentiate import differentiate
from polysci.ops import parse_problem
from polysci.runtime.backends.queued import QueuedLibrary
from polysci.training import SGD, Adam, Trainer, compile_training, gradcheck
from polysci.training.model import TARGET, with_loss
from tests.support.any_device import DEVICES, at_hand

RANDOM = np.random.default_rng(4)
MLP = [layers.Linear(6, 8), layers.Tanh(), layers.Linear(8, 3)]
CNN = [
    layers.Conv2d(3, 8, 3, padding=1), layers.BatchNorm2d(8), layers.ReLU(), layers.MaxPool2d(2),
    layers.Conv2d(8, 8, 3, stride=2, padding=1), layers.GELU(), layers.AdaptiveAvgPool2d(1),
    layers.Flatten(), layers.Linear(8, 3),
]  # fmt: skip
RECURRENT = [layers.LSTM(6, 4), layers.LayerNorm(4)]
CASES: dict[str, tuple[list[Any], tuple[int, ...], str, Any]] = {
    "mlp": (MLP, (5, 6), "cross_entropy", SGD(lr=0.3, momentum=0.9)),
    "adam": (MLP, (5, 6), "bce_with_logits", Adam(lr=0.03)),
    "cnn": (CNN, (2, 3, 8, 8), "cross_entropy", SGD(lr=0.1, momentum=0.9)),
    "recurrent": (RECURRENT, (3, 2, 6), "mse", Adam(lr=0.03)),
}
STEPS = 4


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with at_hand(request.param) as name:
        yield name


@pytest.fixture
def opencl() -> Iterator[str]:
    with at_hand("opencl:0") as name:
        yield name


def _trainer(case: str, device: str | None, **options: Any) -> Trainer:
    model, shape, loss, optimizer = CASES[case]
    words = {"level": "estimate", "seed": 1, "clip_norm": 1.0, **options}
    return compile_training(model, shape, loss, optimizer, device=device, **words)


def _batch(trainer: Trainer) -> tuple[np.ndarray, np.ndarray]:
    ports = {port.name: port for port in trainer.network.inputs}
    x, target = ports[trainer.model.x], ports[TARGET]
    classes = RANDOM.integers(0, 3, target.shape)
    values = classes if target.dtype == "int64" else RANDOM.random(target.shape, np.float32)
    return RANDOM.normal(size=x.shape).astype(np.float32), values


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["mlp", "cnn"])
def test_steps_in_bf16_are_those_of_c(case: str, device: str) -> None:
    here, there = (_trainer(case, name, dtype="bf16") for name in (None, device))
    batch = _batch(here)
    for _ in range(STEPS):
        assert there.step(*batch) == pytest.approx(here.step(*batch), rel=2.0**-8)
    assert {value.dtype.name for value in there.parameters.values()} == {"float32"}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "mlp"))
             for name in CASES],
)  # fmt: skip
def test_steps_are_those_of_c(case: str, device: str) -> None:
    here, there = (_trainer(case, name) for name in (None, device))
    batch = _batch(here)
    for _ in range(STEPS):
        assert there.step(*batch) == pytest.approx(here.step(*batch), rel=1e-5)
    assert there.evaluate(*batch) == pytest.approx(here.evaluate(*batch), rel=1e-5)
    for own, other in ((here.parameters, there.parameters), (here.state, there.state)):
        assert own.keys() == other.keys()
        for name, value in own.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "case", ["adam", pytest.param("cnn", marks=pytest.mark.exhaustive)]
)  # fmt: skip
def test_gradients_are_those_of_the_reference(case: str, device: str) -> None:
    trainer = _trainer(case, device)
    x, target = _batch(trainer)
    graph = with_loss(trainer.model, trainer.loss)
    whole = differentiate(graph, graph.outputs[0].name, [*trainer.parameters])
    values = {**trainer.parameters, **trainer.state, trainer.model.x: x, TARGET: target}
    expected = reference.run(
        whole, {name: v.astype(np.float64) if v.dtype.kind == "f" else v
                for name, v in values.items()},
    )  # fmt: skip
    sizes = {
        name: float(np.linalg.norm(expected[f"{name}.gradient"])) for name in trainer.parameters
    }
    for name, gradient in trainer.gradients(x, target).items():
        apart = np.linalg.norm(gradient - expected[f"{name}.gradient"])
        # A bias ahead of a batch norm has a gradient of 0, of which rounding errors remain.
        assert apart <= 1e-5 * max(sizes[name], 0.1 * max(sizes.values())), name


def test_tensors_stay_on_the_device_between_steps(
    opencl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step copies the batch, the learning rate and the loss, and no parameter."""
    trainer = _trainer("mlp", opencl)
    batch, moved = _batch(trainer), list[int]()
    trainer.step(*batch)
    library = trainer.network.runner.library
    assert isinstance(library, QueuedLibrary)
    queue = type(library.queue)
    write, copy_out = queue.write, queue.copy_out

    def note(function: Any, at: int) -> Any:
        def call(self: Any, *operands: Any) -> None:
            moved.append(operands[at].nbytes)
            function(self, *operands)

        return call

    monkeypatch.setattr(queue, "write", note(write, 1))
    monkeypatch.setattr(queue, "copy_out", note(copy_out, 1))
    places = dict(trainer.parameters.arguments)
    trainer.step(*batch)
    assert sorted(moved) == sorted([batch[0].nbytes, batch[1].nbytes, 4, 4])
    assert trainer.parameters.arguments == places


def test_what_a_device_holds_is_copied_out_and_written(device: str, tmp_path: Path) -> None:
    trainer = _trainer("mlp", device)
    batch = _batch(trainer)
    before = {name: value.copy() for name, value in trainer.parameters.items()}
    trainer.save(tmp_path / "first.npz")
    trainer.step(*batch)
    after = trainer.parameters["0.weight"]
    assert not np.array_equal(after, before["0.weight"]) and trainer.state["step"] == 1
    with pytest.raises(ValueError, match="read-only"):
        after[...] = 0
    trainer.load(tmp_path / "first.npz")
    assert trainer.state["step"] == 0
    assert all(np.array_equal(trainer.parameters[name], before[name]) for name in before)
    trainer.write({"0.weight": np.zeros_like(after)})
    assert not trainer.parameters["0.weight"].any()
    here = _trainer("mlp", None)
    here.write({"0.weight": np.zeros_like(after)})
    np.testing.assert_allclose(trainer.predict(batch[0]), here.predict(batch[0]), rtol=1e-5)
    with pytest.raises(SpecError, match=r"^'0.wait': no parameter or state.*0.weight"):
        trainer.write({"0.wait": after})
    with pytest.raises(SpecError, match=r"^0.weight: expected float32\[8, 6\], got float32\[6\]$"):
        trainer.write({"0.weight": after[0]})


def test_gradients_of_code_are_checked(opencl: str) -> None:
    for device in ("host", opencl):
        worst = gradcheck(MLP, (5, 6), device=device)
        assert 0 < max(worst.values()) < 1e-5
        layer = parse_problem("mb1ic3ih6oc8kh3ph1")
        assert max(gradcheck(layer, device=device).values()) < 1e-5


def test_a_step_is_not_exported(opencl: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"^device opencl:0: steps of training are exported"):
        _trainer("mlp", opencl).export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
