"""A language model of characters: ``python examples/language_model.py [STEPS] [DIR]``.

It learns text that ships with Python, is compiled for prompts and for single characters on one
cache of keys and values, and writes text. With DIR the C library goes there, and a program that
writes text by it: ``make -C DIR && cc -I DIR DIR/write.c DIR/libwriter.a -lm``.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import polysci
from polysci import training

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
WIDTH, HEADS, LAYERS = 64, 4, 2
CAPACITY = 128  # characters of a line that it learns from, and of what it writes
BATCH, RATE = 8, 3e-3
LENGTHS = (1, 8, 32)  # tokens at a time
Weights = Mapping[str, np.ndarray]


class Writer:
    """An ONNX graph that grows by nodes of one result."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights = [numpy_helper.from_array(value, name) for name, value in weights.items()]

    def add(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, *numbers: int) -> str:
        return self.known(np.array(numbers))

    def known(self, value: np.ndarray) -> str:
        return self.add("Constant", value=numpy_helper.from_array(value))

    def model(self, inputs: list[onnx.ValueInfoProto], outputs: Mapping[str, list[Any]]) -> bytes:
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in outputs.items()]  # fmt: skip
        graph = helper.make_graph(self.nodes, "writer", inputs, made, self.weights)
        opset = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        return bytes(model.SerializeToString())


def first_weights() -> dict[str, np.ndarray]:
    """Random ones, and norms that do nothing."""
    random, count = np.random.default_rng(0), len(CHARACTERS)
    shapes = {"embed": (count, WIDTH), "places": (CAPACITY, WIDTH), "scores": (WIDTH, count)}
    for layer in range(LAYERS):
        shapes |= {f"{layer}.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value", "mix")}
        shapes |= {f"{layer}.up": (WIDTH, 4 * WIDTH), f"{layer}.down": (4 * WIDTH, WIDTH)}
    weights = {
        name: (random.standard_normal(shape) / np.sqrt(shape[0] if name != "embed" else 50))
        for name, shape in shapes.items()
    }
    weights["places"] = random.standard_normal((CAPACITY, WIDTH)) / 50
    for name in ("last", *(f"{layer}.{place}" for layer in range(LAYERS) for place in ("a", "b"))):
        weights |= {f"{name}.gain": np.ones(WIDTH), f"{name}.shift": np.zeros(WIDTH)}
    return {name: value.astype(np.float32) for name, value in weights.items()}


def body(graph: Writer, x: str, attend: Callable[..., str]) -> str:
    """The layers between embeddings and scores; ``attend`` mixes rows of queries, keys, values."""

    def norm(x: str, name: str) -> str:
        return graph.add("LayerNormalization", x, f"{name}.gain", f"{name}.shift")

    for layer in range(LAYERS):
        y = norm(x, f"{layer}.a")
        parts = [graph.add("MatMul", y, f"{layer}.{name}") for name in ("query", "key", "value")]
        mixed = graph.add("MatMul", attend(layer, *parts), f"{layer}.mix")
        x = graph.add("Add", x, mixed)
        y = graph.add("Relu", graph.add("MatMul", norm(x, f"{layer}.b"), f"{layer}.up"))
        x = graph.add("Add", x, graph.add("MatMul", y, f"{layer}.down"))
    return graph.add("MatMul", norm(x, "last"), "scores")


def mix(graph: Writer, query: str, key: str, value: str, mask: str) -> str:
    """Attention of heads: products of queries and keys choose among values."""
    scale = graph.known(np.array((WIDTH // HEADS) ** -0.5, np.float32))
    scores = graph.add("Mul", graph.add("MatMul", query, key), scale)
    shares = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
    return graph.add("MatMul", shares, value)


def learning(weights: Weights) -> bytes:
    """Lines of characters -> scores of the character behind each."""
    graph, size = Writer(weights), WIDTH // HEADS
    split, join = graph.constant(0, 0, HEADS, size), graph.constant(0, 0, WIDTH)
    ahead = np.triu(np.full((CAPACITY, CAPACITY), -1e9, np.float32), 1)
    mask = graph.known(ahead)

    def attend(_: int, query: str, key: str, value: str) -> str:
        order: dict[str, Any] = {"perm": [0, 2, 1, 3]}
        q, k, v = (graph.add("Reshape", part, split) for part in (query, key, value))
        q, v = graph.add("Transpose", q, **order), graph.add("Transpose", v, **order)
        mixed = mix(graph, q, graph.add("Transpose", k, perm=[0, 2, 3, 1]), v, mask)
        return graph.add("Reshape", graph.add("Transpose", mixed, **order), join)

    x = graph.add("Add", graph.add("Gather", "embed", "text"), "places")
    graph.add("Transpose", body(graph, x, attend), output="y", perm=[0, 2, 1])
    text = helper.make_tensor_value_info("text", TensorProto.INT64, [BATCH, CAPACITY])
    return graph.model([text], {"y": [BATCH, len(CHARACTERS), CAPACITY]})


def writing(weights: Weights) -> bytes:
    """Tokens, their positions and caches of keys and values -> scores, and the caches then."""
    graph, size = Writer(weights), WIDTH // HEADS
    split, join = graph.constant(-1, HEADS, size), graph.constant(-1, WIDTH)
    rows = graph.add("Unsqueeze", "positions", graph.constant(1))
    columns = graph.known(np.arange(CAPACITY))
    ahead = graph.add("Cast", graph.add("Greater", columns, rows), to=TensorProto.FLOAT)
    mask = graph.add("Mul", ahead, graph.known(np.array(-1e9, np.float32)))

    def attend(layer: int, query: str, key: str, value: str) -> str:
        q, k, v = (graph.add("Reshape", part, split) for part in (query, key, value))
        k = graph.add("ScatterND", f"past.{layer}.key", rows, k, output=f"now.{layer}.key")
        v = graph.add("ScatterND", f"past.{layer}.value", rows, v, output=f"now.{layer}.value")
        q, v = (graph.add("Transpose", part, perm=[1, 0, 2]) for part in (q, v))
        mixed = mix(graph, q, graph.add("Transpose", k, perm=[1, 2, 0]), v, mask)
        return graph.add("Reshape", graph.add("Transpose", mixed, perm=[1, 0, 2]), join)

    places = graph.add("Gather", "places", "positions")
    x = graph.add("Add", graph.add("Gather", "embed", "tokens"), places)
    graph.add("Identity", body(graph, x, attend), output="y")
    whole, cache = TensorProto.INT64, [CAPACITY, HEADS, size]
    names = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    inputs = [helper.make_tensor_value_info(name, whole, ["T"]) for name in ("tokens", "positions")]
    inputs += [helper.make_tensor_value_info(f"past.{name}", TensorProto.FLOAT, cache)
               for name in names]  # fmt: skip
    outputs: dict[str, list[Any]] = {"y": ["T", len(CHARACTERS)]}
    outputs |= {f"now.{name}": cache for name in names}
    return graph.model(inputs, outputs)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random lines of the text, and the characters behind theirs, for ever."""
    text = "\n".join(topics[name] for name in sorted(topics))
    codes = np.array([max(0, CHARACTERS.find(letter)) for letter in text])
    random = np.random.default_rng(1)
    while True:
        starts = random.integers(0, len(codes) - CAPACITY - 1, BATCH)
        lines = np.array([codes[start : start + CAPACITY + 1] for start in starts])
        yield lines[:, :-1].copy(), lines[:, 1:].copy()


def learn(steps: int) -> training.Trainer:
    """Train from random weights on; the rate falls in the last half."""
    model = learning(first_weights())
    trainer = training.compile_training(
        model, (BATCH, CAPACITY), optimizer=training.Adam(lr=RATE), clip_norm=1.0, level="estimate"
    )
    losses = list[float]()
    for at, (text, behind) in zip(range(steps), batches(), strict=False):
        trainer.lr = RATE * min(1.0, 2 * (steps - at) / steps)
        losses.append(trainer.step(text, behind))
        if at % 200 == 0:
            print(f"step {at}: loss {np.mean(losses[-50:]):.3f}")
    print(f"loss {losses[0]:.3f}, after {steps} steps {np.mean(losses[-20:]):.3f}")
    return trainer


def main(steps: str = "1500", out: str = "") -> None:
    """Train, compile, compare, write."""
    if not steps.isdecimal() or not int(steps):
        sys.exit("usage: language_model.py [STEPS] [DIR]")
    trainer = learn(int(steps))
    model, state = writing(trainer.parameters), {"past.*": "now.*"}
    net = polysci.compile_sizes(
        model, {"T": LENGTHS}, "estimate", name="writer", state=state, positions="positions"
    )
    writer = net.generation()
    line, _ = next(batches())
    scores = trainer.predict(line)[0, :, -1]  # of all characters of a line at once
    apart = np.abs(writer.prefill(line[0]) - scores).max() / np.abs(scores).max()
    print(f"largest difference between learning and writing: {apart:.1e}")
    assert apart < 1e-3
    writer.reset()
    prompt = "The "
    tokens = [CHARACTERS.index(letter) for letter in prompt]
    made = writer.generate(tokens, CAPACITY - len(prompt), temperature=0.7, seed=2)
    print(prompt + "".join(CHARACTERS[token] for token in made))
    if out:
        export(model, Path(out))


def export(model: bytes, out: Path) -> None:
    """Write the C library, and the program that writes text by it."""
    from polysci.cli import main as command

    out.mkdir(parents=True, exist_ok=True)
    path = out.with_suffix(".onnx")
    path.write_bytes(model)
    words = ["--level", "estimate", "--dim", f"T={','.join(map(str, LENGTHS))}", "--name", "writer"]
    words += ["--state", "past.*=now.*", "--positions", "positions", "-o", str(out), "--force"]
    if command(["compile", str(path), *words]):
        sys.exit("the library was not written")
    shutil.copy(Path(__file__).with_name("write.c"), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
