"""A language model of one layer of attention as a graph, and the same in NumPy and float64."""

from dataclasses import dataclass, field, replace

import numpy as np

from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Tensor

VOCABULARY, WIDTH, CAPACITY = 11, 8, 24
HIDDEN = -1e9  # added to scores of rows that do not count


@dataclass
class TokenModel:
    """Tables of tokens and places, and one layer of attention over a cache of ``CAPACITY`` rows."""

    weights: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(5)
        shapes = {
            "tokens": (VOCABULARY, WIDTH), "places": (CAPACITY, WIDTH),
            **dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH)),
            "scores": (WIDTH, VOCABULARY),
        }  # fmt: skip
        self.weights = {
            name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
        }

    def graph(self, length: int) -> Graph:
        """Tokens and their positions -> scores of the next ones; keys and values are state."""
        names = [Tensor("token_ids", (1, length), "int64"), Tensor("positions", (length,), "int64")]
        caches = [Tensor(name, (CAPACITY, WIDTH)) for name in ("keys", "values")]
        inputs = (*names, *caches)
        build = GraphBuilder(Graph("lm", (), (), (), {}, {its.name: its for its in inputs}))
        w = {name: build.constant(value) for name, value in self.weights.items()}
        rows = (length, WIDTH)
        flat = build.reshape("token_ids", (length,))
        tokens = build.add("gather", (w["tokens"], flat), rows)
        x = build.add("add", (tokens, build.add("gather", (w["places"], "positions"), rows)), rows)
        query, key, value = (
            build.add("matmul", (x, w[it]), rows) for it in ("query", "key", "value")
        )
        at = build.reshape("positions", (length, 1))
        new = [
            build.add("scatter_nd", (cache, at, made), (CAPACITY, WIDTH))
            for cache, made in (("keys", key), ("values", value))
        ]
        across = (length, CAPACITY)
        match = build.add("matmul", (query, build.transpose(new[0], (1, 0))), across)
        steps = build.constant(np.arange(CAPACITY).reshape(1, CAPACITY))
        ahead = build.add("greater", (steps, at), across, "bool")
        masked = build.add("select", (ahead, build.number(HIDDEN), match), across)
        share = build.add("softmax", (masked,), across, axis=-1)
        mixed = build.add("add", (x, build.add("matmul", (share, new[1]), rows)), rows)
        scores = build.add("matmul", (mixed, w["scores"]), (length, VOCABULARY))
        graph = build.to_graph(inputs, (*new, scores))
        zeros = np.zeros((CAPACITY, WIDTH), np.float32)
        return replace(
            graph, in_place=dict(zip(new, ("keys", "values"), strict=True)),
            state={"keys": zeros, "values": zeros},
        )  # fmt: skip

    def scores(self, tokens: list[int]) -> np.ndarray:
        """The scores behind the last token, in float64."""
        w = {name: value.astype(np.float64) for name, value in self.weights.items()}
        x = w["tokens"][tokens] + w["places"][: len(tokens)]
        match = (x[-1] @ w["query"]) @ (x @ w["key"]).T
        share = np.exp(match - match.max())
        mixed = x[-1] + share / share.sum() @ (x @ w["value"])
        return np.asarray(mixed @ w["scores"])

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The tokens that it chooses behind a prompt."""
        tokens = [*prompt]
        for _ in range(count):
            tokens.append(int(self.scores(tokens).argmax()))
        return tokens[len(prompt) :]
