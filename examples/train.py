"""Three models learn 500 steps: ``python examples/train.py [digits|mlp|lstm] [STEPS] [PLOT.png]``.

Where PyTorch is installed it trains the same model from the same first values on the same batches,
and the two curves of losses must agree: to TOLERANCE of the first loss at every step.
"""

import sys
from collections.abc import Iterator

import numpy as np

from polysci import layers, training

TOLERANCE = 0.01  # rounding grows from step to step
Batch = tuple[np.ndarray, np.ndarray]


def digits() -> tuple[list[layers.Layer], Iterator[Batch]]:
    """A small convolutional network on the handwritten digits that scikit-learn ships."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    model: list[layers.Layer] = [
        layers.Conv2d(1, 16, 3, padding=1), layers.ReLU(), layers.MaxPool2d(2),
        layers.Conv2d(16, 32, 3, padding=1), layers.ReLU(), layers.Flatten(),
        layers.Linear(32 * 4 * 4, 10),
    ]  # fmt: skip
    return model, batches(images, data.target.astype(np.int64), 64)


def mlp() -> tuple[list[layers.Layer], Iterator[Batch]]:
    """A multi-layer perceptron that tells which of ten random directions a point is nearest to."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4096, 64)).astype(np.float32)
    classes = (x @ rng.normal(size=(64, 10))).argmax(axis=1)
    model: list[layers.Layer] = [layers.Linear(64, 128), layers.ReLU(), layers.Linear(128, 10)]
    return model, batches(x, classes, 128)


def lstm() -> tuple[list[layers.Layer], Iterator[Batch]]:
    """An LSTM that tells which of two halves of a sequence has the larger sum."""
    x = np.random.default_rng(2).normal(size=(2048, 16, 4)).astype(np.float32)
    classes = (x[:, :8].sum(axis=(1, 2)) < x[:, 8:].sum(axis=(1, 2))).astype(np.int64)
    model: list[layers.Layer] = [
        layers.LSTM(4, 32, batch_first=True, last=True),
        layers.Linear(32, 2),
    ]
    return model, batches(x, classes, 64)


def batches(x: np.ndarray, target: np.ndarray, size: int) -> Iterator[Batch]:
    """Random ones, for ever."""
    rng = np.random.default_rng(3)
    while True:
        rows = rng.integers(0, len(x), size)
        yield x[rows], target[rows]


def torch_losses(
    name: str, first: dict[str, np.ndarray], data: list[Batch], rate: float
) -> list[float]:
    """PyTorch's losses; none where it is not installed."""
    try:
        import torch
        from torch import nn
    except ImportError:
        return []

    models = {
        "digits": [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                   nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)],
        "mlp": [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)],
        "lstm": [nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 2)],
    }  # fmt: skip
    model = nn.Sequential(*models[name])
    model.load_state_dict({key: torch.tensor(value) for key, value in first.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses = []
    for x, target in data:
        optimizer.zero_grad()
        y = torch.tensor(x)
        for layer in model:
            y = layer(y)
            y = y[0][:, -1] if isinstance(y, tuple) else y  # of an LSTM the last step alone
        loss = nn.functional.cross_entropy(y, torch.tensor(target))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plot(path: str, name: str, curves: dict[str, list[float]]) -> None:
    """Losses by step; needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    for label, losses in curves.items():
        if losses:
            pyplot.plot(losses, label=label, linewidth=0.8)
    pyplot.xlabel("step")
    pyplot.ylabel("cross entropy of a batch")
    pyplot.title(name)
    pyplot.legend()
    pyplot.savefig(path, dpi=150)


def main(name: str = "digits", steps: str = "500", picture: str = "") -> None:
    """Train, compare, plot."""
    models = {"digits": digits, "mlp": mlp, "lstm": lstm}
    if name not in models or not steps.isdecimal():
        sys.exit(f"usage: train.py {{{','.join(models)}}} STEPS [PICTURE.png]")
    model, source = models[name]()
    data = [next(source) for _ in range(int(steps))]
    rate = {"digits": 0.02, "mlp": 0.02, "lstm": 0.05}[name]
    trainer = training.compile_training(
        model, data[0][0].shape, optimizer=training.SGD(lr=rate, momentum=0.9), level="estimate"
    )
    first = {key: value.copy() for key, value in trainer.parameters.items()}
    losses = [trainer.step(x, target) for x, target in data]
    print(f"{name}: loss {losses[0]:.3f}, after {steps} steps {np.mean(losses[-10:]):.3f}")
    assert np.mean(losses[-10:]) < losses[0]
    others = torch_losses(name, first, data, rate)
    if others:
        apart = np.abs(np.subtract(losses, others)).max() / losses[0]
        print(f"largest difference from PyTorch's losses: {apart:.1e} of the first loss")
        assert apart < TOLERANCE
    if picture:
        plot(picture, name, {"polysci": losses, "PyTorch": others})


if __name__ == "__main__":
    main(*sys.argv[1:])
