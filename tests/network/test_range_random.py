"""Random networks for ranges: each size computes what a network of that size alone does."""

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest

from polysci.network.compiled import compile_network
from polysci.network.sizes import compile_sizes
from polysci.program.passes.variation import VaryingSizeError
from tests.support.onnxmodels import model, node

CHANNELS, LEAST = 4, 13  # of the smallest size all that is made has elements


@dataclass
class Signals:
    """A network of signals [1, CHANNELS, length] on its way; ``lengths`` are by tensor.

    A length is what a function makes of the size: ``(size + more) // step``.
    """

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    lengths: dict[str, tuple[int, int]] = field(default_factory=lambda: {"x": (0, 1)})

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def number(self, *values: int) -> str:
        name = f"n{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def matrix(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        numbers = np.random.default_rng(len(self.weights) + self.seed).integers(-1, 2, shape)
        self.weights[name] = numbers.astype(np.float32)
        return name

    def add(self, op: str, words: str, length: tuple[int, int], **attributes: object) -> None:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(op, words, name, **attributes))
        self.lengths[name] = length

    def least(self, name: str) -> int:
        more, step = self.lengths[name]
        return (LEAST + more) // step

    def grow(self) -> None:
        """Add one operator to some tensor, mostly the last one."""
        names = [name for name in self.lengths if self.least(name) > 4]
        x = names[-1] if self.random.random() < 0.6 else self.random.choice(names)
        more, step = self.lengths[x]
        kind = self.random.choice(
            ["join", "before", "around", "cut", "late", "halves", "turn", "conv", "stride", "pool",
             "point", "relu", "sum", "pair", "square", "pad"]
        )  # fmt: skip
        if kind == "join":
            self.add(
                "Concat", f"{x} {self.matrix(1, CHANNELS, 2)}", (more + 2 * step, step), axis=2
            )
        elif kind == "before":
            self.add("Concat", f"{self.matrix(1, CHANNELS, 1)} {x}", (more + step, step), axis=2)
        elif kind == "around":
            ends = self.matrix(1, CHANNELS, 1), self.matrix(1, CHANNELS, 3)
            self.add("Concat", f"{ends[0]} {x} {ends[1]}", (more + 4 * step, step), axis=2)
        elif kind in ("cut", "late", "halves", "turn"):
            first, last, by = {"cut": (2, 9999, 1), "late": (1, -2, 1), "halves": (1, 9999, 2),
                               "turn": (-1, -9999, -1)}[kind]  # fmt: skip
            length = {"cut": (more - 2 * step, step), "late": (more - 3 * step, step),
                      "halves": (more, 2 * step), "turn": (more, step)}[kind]  # fmt: skip
            limits = [self.number(value) for value in (first, last, 2, by)]
            self.add("Slice", f"{x} {' '.join(limits)}", length)
        elif kind == "conv":
            self.add("Conv", f"{x} {self.matrix(CHANNELS, CHANNELS, 3)}", (more, step), pads=[1, 1])
        elif kind == "point":
            self.add("Conv", f"{x} {self.matrix(CHANNELS, CHANNELS, 1)}", (more, step))
        elif kind == "stride":
            length = (more + step, 2 * step)
            words = f"{x} {self.matrix(CHANNELS, CHANNELS, 3)}"
            self.add("Conv", words, length, pads=[1, 1], strides=[2])
        elif kind == "pool":
            attributes = {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}
            self.add("MaxPool", x, (more + step, 2 * step), **attributes)
        elif kind == "relu":
            self.add("Relu", x, (more, step))
        elif kind == "sum":
            others = [name for name, length in self.lengths.items() if length == (more, step)]
            self.add("Add", f"{x} {self.random.choice(others)}", (more, step))
        elif kind == "pair":
            others = [name for name, length in self.lengths.items() if length == (more, step)]
            self.add("Max", f"{x} {self.random.choice(others)}", (more, step))
        elif kind == "square":  # products along the axis
            self.nodes.append(node("Transpose", x, f"{x}.turned{len(self.nodes)}", perm=[0, 2, 1]))
            turned = self.nodes[-1].output[0]
            self.nodes.append(node("MatMul", f"{x} {turned}", f"{turned}.square"))
            self.nodes.append(node("Clip", f"{turned}.square low high", f"{turned}.small"))
            self.add("MatMul", f"{turned}.small {x}", (more, step))
        else:
            pads = self.number(0, 0, 1, 0, 0, 2)
            self.add("Pad", f"{x} {pads}", (more + 3 * step, step))

    def build(self) -> onnx.ModelProto:
        """Return the model; results are the last tensors and sums of others."""
        for _ in range(self.random.randint(3, 9)):
            self.grow()
        made = [name for name in self.lengths if name != "x"]
        outputs = made[-2:]
        for name in made[:-2:2]:
            self.nodes.append(node("ReduceMax", name, f"{name}.top", axes=[2], keepdims=0))
            outputs.append(f"{name}.top")
        self.weights |= {"low": np.float32(-2), "high": np.float32(2)}
        return model(self.nodes, {"x": [1, CHANNELS, "T"]}, dict.fromkeys(outputs), self.weights)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed: int) -> None:
    built, sizes = Signals(seed).build(), range(33, 49) if seed % 4 == 3 else range(LEAST, 17)
    try:
        network = compile_sizes(built, {"T": sizes}, "estimate", threads=1 + seed % 2, verify=False)
    except VaryingSizeError as error:
        pytest.skip(str(error))
    for size in (sizes[-1], *sizes[:: len(sizes) // 4], sizes[-2]):
        rng = np.random.default_rng(size)
        x = rng.integers(-2, 3, (1, CHANNELS, size)).astype(np.float32)
        alone = compile_network(built, "estimate", dims={"T": size}, verify=False)
        results, expected = network({"x": x}), alone({"x": x})
        for name, array in expected.items():
            assert np.array_equal(results[name], array), (size, name)
