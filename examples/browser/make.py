"""A classifier of shapes in a page: ``python examples/browser/make.py [DIR]`` (web).

A small network learns six shapes from pictures that this program draws, and is written to DIR as
WebAssembly beside a page that runs it: ``python -m http.server --directory DIR`` serves it.
"""

import itertools
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polysci import training
from polysci.cli import main as polysci
from polysci.errors import PolysciError
from polysci.export.web_project import check_web
from polysci.target.isas import ISAS

SIZE = 32  # pixels along each side of a picture
STEPS, BATCH, RATE = 2000, 64, 3e-3
LEARNED = 24576  # pictures that it learns from, again and again
TESTED = 16 * BATCH  # pictures that it has not learned from
NEEDED = 0.95  # the part of these that it must get right
CHANNELS = (1, 16, 32, 32)  # of the pictures, and behind each convolution
Weights = Mapping[str, np.ndarray]


def ray(angles: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Points at some angles and distances from the centre, of shape (N, 2)."""
    return np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], axis=-1)


def even(count: int) -> np.ndarray:
    """The corners of a regular polygon."""
    return ray(turns(count), np.ones(count))


def turns(count: int) -> np.ndarray:
    """Angles that divide a turn into equal parts."""
    return np.arange(count) * (2 * np.pi / count)


def heart() -> np.ndarray:
    """The outline of a heart, seen from a point inside it."""
    t = -turns(32)
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([16 * np.sin(t) ** 3, y - 1], axis=-1) / 17


# The corners of each shape, from one to the next in the direction of growing angles. A straight
# line from the centre to any of their points stays inside.
SHAPES = {
    "circle": even(32),
    "triangle": even(3),
    "square": even(4),
    "cross": ray(
        turns(4).repeat(3) + np.tile([-0.322, 0.322, np.pi / 4], 4), np.tile([1.0, 1.0, 0.447], 4)
    ),
    "star": ray(turns(10), np.tile([1.0, 0.4], 5)),
    "heart": heart(),
}


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of shape (count, 1, SIZE, SIZE), f32 from 0 to 1, and the shape on each, int64.

    Position, size, angle and both shades differ, the ground has a slope of light, and pixels noise.
    """
    kinds = random.integers(0, len(SHAPES), count)
    radii = random.uniform(0.2, 0.44, count) * SIZE
    angles = random.uniform(0, 2 * np.pi, count)
    room = 1.1 * (SIZE / 2 - radii)
    centres = SIZE / 2 + random.uniform(-1, 1, (2, count)) * room
    dark, light = random.uniform(0, 0.35, count), random.uniform(0.6, 1, count)
    swap = random.random(count) < 0.5
    shade, ground = np.where(swap, (dark, light), (light, dark))
    slopes = random.uniform(-0.15, 0.15, (2, count, 1, 1))
    pictures = np.empty((count, SIZE, SIZE))
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    for kind, corners in enumerate(SHAPES.values()):
        of = np.flatnonzero(kinds == kind)
        x = columns - centres[0, of, None, None]
        y = rows - centres[1, of, None, None]
        turn, scale = angles[of, None, None], radii[of, None, None]
        across = (x * np.cos(turn) + y * np.sin(turn)) / scale
        down = (y * np.cos(turn) - x * np.sin(turn)) / scale
        pictures[of] = np.clip(depth(corners, across, down) * scale + 0.5, 0, 1)
    pictures *= (shade - ground)[:, None, None]
    pictures += ground[:, None, None]
    pictures += slopes[0] * (columns / SIZE - 0.5) + slopes[1] * (rows / SIZE - 0.5)
    pictures += random.normal(0, 0.04, pictures.shape)
    return np.clip(pictures, 0, 1).astype(np.float32)[:, None], kinds.astype(np.int64)


def depth(corners: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The distance of points from the edge that they are seen behind, negative outside."""
    angles = np.arctan2(corners[:, 1], corners[:, 0]) % (2 * np.pi)
    starts = corners[np.argsort(angles)]
    ends = np.roll(starts, -1, axis=0)
    seen = np.arctan2(y, x) % (2 * np.pi)
    edge = (np.searchsorted(np.sort(angles), seen, side="right") - 1) % len(corners)
    along = (ends - starts) / np.linalg.norm(ends - starts, axis=1, keepdims=True)
    away = along[:, 0] * starts[:, 1] - along[:, 1] * starts[:, 0]
    result: np.ndarray = along[edge, 0] * y - along[edge, 1] * x - away[edge]
    return result


def first_weights() -> dict[str, np.ndarray]:
    """Random ones, and biases of 0."""
    random = np.random.default_rng(0)
    pairs = enumerate(itertools.pairwise(CHANNELS))
    shapes = {f"conv{at}": (out, into, 3, 3) for at, (into, out) in pairs}
    last = CHANNELS[-1] * (SIZE // 2 ** len(shapes)) ** 2
    made = {}
    for name, shape in {**shapes, "scores": (len(SHAPES), last)}.items():
        scale = np.sqrt(2 / np.prod(shape[1:]))
        made[name] = (random.standard_normal(shape) * scale).astype(np.float32)
        made[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return made


def network(weights: Weights, count: int, *, learns: bool) -> onnx.ModelProto:
    """Pictures -> scores of the shapes where it learns, else their probabilities."""
    half, scale = (numpy_helper.from_array(np.array(number, np.float32)) for number in (0.5, 4))
    nodes, x = (
        [
            helper.make_node("Constant", [], ["half"], value=half),
            helper.make_node("Constant", [], ["scale"], value=scale),
            helper.make_node("Sub", ["picture", "half"], ["around"]),
            helper.make_node("Mul", ["around", "scale"], ["wide"]),
        ],
        "wide",
    )
    for at in range(len(CHANNELS) - 1):
        name = f"conv{at}"
        nodes += [
            helper.make_node("Conv", [x, name, f"{name}.bias"], [f"c{at}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{at}"], [f"r{at}"]),
            helper.make_node(
                "MaxPool", [f"r{at}"], [f"p{at}"], kernel_shape=[2, 2], strides=[2, 2]
            ),
        ]
        x = f"p{at}"
    nodes.append(helper.make_node("Flatten", [x], ["flat"]))
    result = "y" if learns else "unscaled"
    nodes.append(helper.make_node("Gemm", ["flat", "scores", "scores.bias"], [result], transB=1))
    if not learns:
        nodes.append(helper.make_node("Softmax", [result], ["y"], axis=1))
    real = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "shapes",
        [helper.make_tensor_value_info("picture", real, [count, 1, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", real, [count, len(SHAPES)])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def learn() -> tuple[dict[str, np.ndarray], float]:
    """The weights after STEPS batches, and the part of TESTED new pictures that they get right."""
    model = network(first_weights(), BATCH, learns=True)
    shape = (BATCH, 1, SIZE, SIZE)
    trainer = training.compile_training(
        model, shape, optimizer=training.Adam(lr=RATE), level="estimate"
    )
    random = np.random.default_rng(1)
    pictures, kinds = draw(random, LEARNED)
    for at in range(STEPS):
        trainer.lr = RATE * (1 - at / STEPS)
        rows = random.integers(0, LEARNED, BATCH)
        trainer.step(pictures[rows], kinds[rows])
    pictures, kinds = draw(np.random.default_rng(2), TESTED)
    scores = [trainer.predict(pictures[at : at + BATCH]) for at in range(0, TESTED, BATCH)]
    right = float((np.concatenate(scores).argmax(axis=1) == kinds).mean())
    return {name: value.copy() for name, value in trainer.parameters.items()}, right


def check(out: Path) -> None:
    """End with a message where the network could not be written."""
    try:
        check_web(out / "net", "shapes", [ISAS["wasm128"]], 1)
    except PolysciError as error:
        sys.exit(f"{error}")


def write(weights: Weights, out: Path) -> None:
    """The network as WebAssembly, the shapes, and the page."""
    out.mkdir(parents=True, exist_ok=True)
    model = out / "shapes.onnx"
    onnx.save(network(weights, 1, learns=False), model)
    status = polysci(
        ["compile", str(model), "--isa", "wasm128", "--level", "estimate", "-o", str(out / "net")]
    )
    if status:
        sys.exit(status)
    shapes = {name: corners.round(4).tolist() for name, corners in SHAPES.items()}
    text = f"export const SIZE = {SIZE};\nexport const SHAPES = {json.dumps(shapes)};\n"
    (out / "shapes.js").write_text(text, encoding="utf-8")
    for name in ("index.html", "page.js"):
        shutil.copy(Path(__file__).parent / name, out)


def main(out: str = "web") -> None:
    """Check, learn, test, write."""
    check(Path(out))
    start = time.perf_counter()
    weights, right = learn()
    seconds = time.perf_counter() - start
    print(f"{right:.1%} of {TESTED} new pictures are right, after {seconds:.1f} s of learning")
    assert right >= NEEDED
    write(weights, Path(out))
    print(f"written: {out}; see it by: python3 -m http.server --directory {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
