"""Gradients of ReLUs that read bits: the same numbers as by comparing activations."""

import numpy as np
import pytest

from polysci import layers, training
from polysci.network import retune
from polysci.program.stages import LayerStage, LoopStage
from polysci.training.trainer import Trainer

RNG = np.random.default_rng(0)
X, CLASSES = RNG.normal(size=(4, 3, 12, 12)).astype(np.float32), RNG.integers(0, 10, 4)


def model() -> list[layers.Layer]:
    """ReLUs behind a normalisation, a layer, a sum, a strided layer, a product; of 20 channels."""

    def normalised(c: int, k: int) -> list[layers.Layer]:
        return [layers.Conv2d(c, k, 3, padding=1, bias=False), layers.BatchNorm2d(k)]

    block = layers.Residual([*normalised(24, 24), layers.ReLU(), *normalised(24, 24)], shortcut=[])
    return [
        *normalised(3, 24), layers.ReLU(), block, layers.ReLU(),
        layers.Conv2d(24, 20, 3, padding=1), layers.ReLU(),
        layers.Conv2d(20, 16, 3, stride=2, padding=1), layers.ReLU(),
        layers.Conv2d(16, 16, 3, stride=2, padding=1), layers.ReLU(),
        layers.Conv2d(16, 8, 1), layers.ReLU(), layers.AdaptiveAvgPool2d(1), layers.Flatten(),
        layers.Linear(8, 40), layers.ReLU(), layers.Linear(40, 10),
    ]  # fmt: skip


def both(
    monkeypatch: pytest.MonkeyPatch, model: list[layers.Layer], x: np.ndarray, threads: int
) -> tuple[Trainer, Trainer]:
    """Of the same first values, with masks and without, after some steps; they agree."""
    optimizer, trainers = training.SGD(lr=0.05, momentum=0.9), list[Trainer]()
    for name in ("masked", "compared"):
        trainers.append(training.compile_training(
            model, x.shape, "cross_entropy", optimizer, level="estimate", threads=threads,
            name=name,
        ))  # fmt: skip
        monkeypatch.setattr(retune, "mask_relus", lambda placed, _: (placed, ()))
    for _ in range(3):
        losses = [trainer.step(x, CLASSES) for trainer in trainers]
        assert losses[0] == losses[1]
    for name, value in trainers[1].parameters.items():
        assert np.array_equal(trainers[0].parameters[name], value), name
    return trainers[0], trainers[1]


def test_a_product_writes_bits_and_another_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = [layers.Linear(12, 24), layers.ReLU(), layers.Linear(24, 10)]
    masked, compared = both(monkeypatch, linear, X[:, 0, 0], 1)
    stages = masked.network.prepared.program.stages
    layers_ = [stage for stage in stages if isinstance(stage, LayerStage)]
    assert [layer.mask for layer in layers_ if layer.mask] == [
        layer.gate for layer in layers_ if layer.gate
    ]
    assert len(stages) == len(compared.network.prepared.program.stages) - 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
def test_masks_change_no_bit_of_what_is_learned(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    masked, compared = both(monkeypatch, model(), X, threads)
    stages = masked.network.prepared.program.stages
    layers_ = [stage for stage in stages if isinstance(stage, LayerStage)]
    loops = [stage for stage in stages if isinstance(stage, LoopStage)]
    assert sum(bool(layer.mask) for layer in layers_) >= 3
    assert sum(bool(layer.gate) for layer in layers_) >= 5
    assert sum(bool(loop.mask) for loop in loops) >= 3
    assert len(stages) < len(compared.network.prepared.program.stages)
    unmasked = [loop for loop in loops if "greater" in str(loop.expr)]
    assert len(unmasked) == 1  # 20 channels share bytes with the next pixel's
