"""Gradients and steps beside torch.autograd and torch.optim, from the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polysci import layers
from polysci.training import SGD, Adam, compile_training
from tests.support.flags import QUICK

torch = pytest.importorskip("torch")
nn = torch.nn

# A name; our layers and PyTorch's; a shape.
MODELS: dict[str, tuple[list[Any], Callable[[], list[Any]], tuple[int, ...]]] = {
    "mlp": (
        [layers.Linear(7, 9), layers.SiLU(), layers.Linear(9, 4)],
        lambda: [nn.Linear(7, 9), nn.SiLU(), nn.Linear(9, 4)],
        (5, 7),
    ),
    "norms": (
        [layers.Linear(6, 8), layers.LayerNorm(8), layers.GELU("tanh"), layers.BatchNorm1d(8),
         layers.RMSNorm(8), layers.Linear(8, 4, bias=False)],
        lambda: [nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU("tanh"), nn.BatchNorm1d(8),
                 nn.RMSNorm(8), nn.Linear(8, 4, bias=False)],
        (5, 6),
    ),
    "convolutions": (
        [layers.Conv2d(2, 6, 3, stride=2, padding=1), layers.BatchNorm2d(6), layers.ReLU(),
         layers.Conv2d(6, 6, 3, padding=1, groups=6), layers.GELU(), layers.GroupNorm(3, 6),
         layers.Conv2d(6, 4, (3, 2), dilation=(1, 2), groups=2), layers.MaxPool2d(2, 1),
         layers.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
         layers.AvgPool2d(2), layers.Flatten(), layers.Linear(3 * 4 * 4, 4)],
        lambda: [nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
                 nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.GELU(), nn.GroupNorm(3, 6),
                 nn.Conv2d(6, 4, (3, 2), dilation=(1, 2), groups=2), nn.MaxPool2d(2, 1),
                 nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
                 nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 4)],
        (3, 2, 13, 13),
    ),
}  # fmt: skip
OPTIMIZERS = {
    "sgd": (SGD(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
            lambda values: torch.optim.SGD(values, lr=0.05, momentum=0.9, weight_decay=0.01,
                                           nesterov=True)),
    "adam": (Adam(lr=0.01), lambda values: torch.optim.Adam(values, lr=0.01)),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ten_steps(name: str, kind: str) -> None:
    ours, theirs, shape = MODELS[name]
    optimizer, of_torch = OPTIMIZERS[kind]
    trainer = compile_training(
        ours, shape, optimizer=optimizer, level="estimate", isa="portable", flags=QUICK
    )
    model = nn.Sequential(*theirs())
    state = {key: torch.tensor(value) for key, value in trainer.parameters.items()}
    model.load_state_dict({**model.state_dict(), **state})
    other = of_torch(model.parameters())
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=shape).astype(np.float32), rng.integers(0, 4, shape[0])
    for _ in range(10):
        other.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.tensor(x)), torch.tensor(target))
        loss.backward()
        gradients = trainer.gradients(x, target)
        for key, value in model.named_parameters():
            scale = float(value.grad.abs().max()) + 1e-3
            np.testing.assert_allclose(
                gradients[key], value.grad.numpy(), rtol=0, atol=5e-4 * scale, err_msg=key
            )
        other.step()
        assert trainer.step(x, target) == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
        for key, value in model.named_parameters():  # rounding must not grow from step to step
            trainer.parameters[key][...] = value.detach().numpy()
    for key, value in model.state_dict().items():
        if "running" in key:
            np.testing.assert_allclose(trainer.state[key], value.numpy(), rtol=1e-3, atol=1e-5)
