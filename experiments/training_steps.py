"""How fast is a step of training beside PyTorch's, eager and compiled?

Forward pass, loss (cross entropy), backward pass and update of a model, the same for all: each
library in a process of its own, in turns, its optimizer fused where it has such. ``backend`` is
``torch.compile(backend="polysci")``. Ratios are of the fastest of PyTorch's own: above 1, polysci
is faster.

  python experiments/training_steps.py mlp lstm --threads 1 --threads 2
  python experiments/training_steps.py resnet18 --rounds 3 --optimizer adam

Needs PyTorch.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import script

from polysci import layers, training
from polysci.errors import CheckError, SpecError
from polysci.frontends.layers.model import build_model
from polysci.peers.networks.torch_modules import as_module
from polysci.text.tables import fit
from polysci.tune import LEVELS

Parts = list[layers.Layer]
Model = tuple[list[layers.Layer], tuple[int, ...], int]  # layers, shape of x, classes
WAYS = ("polysci", "backend", "eager", "compiled")
ROUNDS = 7


def mlp() -> Model:
    """784-512-512-10, ReLU, batch 128."""
    extents = (784, 512, 512)
    hidden = [part for a, b in pairwise(extents) for part in (layers.Linear(a, b), layers.ReLU())]
    return [*hidden, layers.Linear(512, 10)], (128, 784), 10


def lstm() -> Model:
    """256 columns, 32 steps, batch 32, and the last step's classes."""
    return [layers.LSTM(256, 256, last=True), layers.Linear(256, 10)], (32, 32, 256), 10


Blocks = tuple[tuple[int, int, int], ...]  # columns of 3x3 layers, blocks, stride of the first


def resnet(batch: int, stages: Blocks, block: Callable[[int, int, int], Parts], wide: int) -> Model:
    """Of 224 x 224; a ``block`` of so many channels, columns and stride has ``wide`` times them."""
    parts, c = [*conv(3, 64, 7, 2), layers.ReLU(), layers.MaxPool2d(3, 2, 1)], 64
    for k, count, stride in stages:
        for step in (stride, *[1] * (count - 1)):
            shortcut = conv(c, wide * k, 1, step) if (c, step) != (wide * k, 1) else []
            parts += [layers.Residual(block(c, k, step), shortcut), layers.ReLU()]
            c = wide * k
    parts += [layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(c, 1000)]
    return parts, (batch, 3, 224, 224), 1000


def conv(c: int, k: int, size: int, stride: int) -> Parts:
    """A convolution and its batch normalisation."""
    own = layers.Conv2d(c, k, size, stride=stride, padding=size // 2, bias=False)
    return [own, layers.BatchNorm2d(k)]


def resnet18() -> Model:
    """Batch 8."""

    def block(c: int, k: int, stride: int) -> Parts:
        return [*conv(c, k, 3, stride), layers.ReLU(), *conv(k, k, 3, 1)]

    return resnet(8, ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2)), block, 1)


def resnet50() -> Model:
    """Batch 8; its 3x3 layers have the strides."""

    def block(c: int, k: int, stride: int) -> Parts:
        return [
            *conv(c, k, 1, 1), layers.ReLU(), *conv(k, k, 3, stride), layers.ReLU(),
            *conv(k, 4 * k, 1, 1),
        ]  # fmt: skip

    return resnet(8, ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)), block, 4)


MODELS: Mapping[str, Callable[[], Model]] = {
    "mlp": mlp, "lstm": lstm, "resnet18": resnet18, "resnet50": resnet50,
}  # fmt: skip
OPTIMIZERS: Mapping[str, tuple[str, dict[str, float]]] = {
    "sgd": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 1e-4}),
}


def example(shape: tuple[int, ...], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch."""
    rng, batch = np.random.default_rng(0), shape[1] if len(shape) == 3 else shape[0]
    x = rng.standard_normal(shape, np.float32)
    return x, rng.integers(0, classes, batch)


def ours(arguments: Namespace, name: str, threads: int) -> Callable[[], float]:
    """A step of polysci's."""
    parts, shape, classes = MODELS[name]()
    kind, words = OPTIMIZERS[arguments.optimizer]
    trainer = training.compile_training(
        parts, shape, optimizer=getattr(training, kind)(**words), level=arguments.level,
        threads=threads,
    )  # fmt: skip
    x, target = example(shape, classes)
    return lambda: trainer.step(x, target)


def theirs(arguments: Namespace, name: str, threads: int, way: str) -> Callable[[], float]:
    """A step of PyTorch's: eager, or compiled by inductor or by polysci."""
    import torch

    from polysci.torch.dynamo import compile_graph

    torch.set_num_threads(threads)
    parts, shape, classes = MODELS[name]()
    module = as_module(torch, parts, build_model(parts, shape, training=True))
    kind, words = OPTIMIZERS[arguments.optimizer]
    optimizer = getattr(torch.optim, kind)(module.parameters(), **words, fused=True)
    x, target = map(torch.from_numpy, example(shape, classes))

    def loss_of(x: Any, target: Any) -> Any:
        return torch.nn.functional.cross_entropy(module(x), target)

    forward: Any = torch.compile(loss_of) if way == "compiled" else loss_of
    if way == "backend":
        options = {"level": arguments.level}
        forward = torch.compile(loss_of, backend=compile_graph, options=options)

    def step() -> float:
        optimizer.zero_grad()
        loss = forward(x, target)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def first_step(
    arguments: Namespace, name: str, threads: int, way: str
) -> tuple[Callable[[], float], float]:
    """A step of one of WAYS, and the loss of the first one."""
    if way == "polysci":
        step = ours(arguments, name, threads)
    else:
        step = theirs(arguments, name, threads, way)
    return step, step()


def compare(arguments: Namespace, name: str, threads: int) -> script.Row:
    """A row of the table: a model at a number of threads."""
    ways = {way: (arguments, name, threads, way) for way in WAYS}
    losses, seconds = script.in_turns(ways, first_step, arguments.rounds)
    for error in losses.values():
        if isinstance(error, Exception):
            raise CheckError(f"{name}: {error}")
    if max(losses.values()) - min(losses.values()) > 1e-3 * max(losses.values()):
        raise CheckError(f"{name}: the first losses differ: {losses}")
    times = {f"{way} ms": value * 1e3 for way, value in seconds.items()}
    best = min(times[f"{way} ms"] for way in WAYS[2:])
    return {
        "model": name, "threads": threads, **{key: f"{value:.2f}" for key, value in times.items()},
        **{f"{way} ratio": f"{best / times[f'{way} ms']:.2f}" for way in WAYS[:2]},
    }  # fmt: skip


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("models", nargs="*", metavar="MODEL", help=f"({', '.join(MODELS)})")
    words.add_argument("--threads", type=int, action="append", metavar="N", help="(1 and 2)")
    words.add_argument("--optimizer", choices=[*OPTIMIZERS], default="sgd", help="(sgd)")
    words.add_argument("--level", choices=[*LEVELS], default="measure", help="(measure)")
    words.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    return words


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    names = arguments.models or [*MODELS][: 1 if arguments.quick else None]
    if other := [name for name in names if name not in MODELS]:
        raise SpecError(f"model {other[0]!r}: expected one of {', '.join(MODELS)}")
    runs = [(name, threads) for name in names for threads in arguments.threads or (1, 2)]
    tasks = (compare(arguments, *run) for run in runs)
    rows, complete = script.kept(tasks, "steps", len(runs))
    if rows:
        cells = [[str(value) for value in row.values()] for row in rows]
        print(fit([[*rows[0]], *cells], None, left=("model",)))
        path = script.stem(arguments, f"training-steps-{arguments.optimizer}")
        script.write_csv(path.with_suffix(".csv"), rows)
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
