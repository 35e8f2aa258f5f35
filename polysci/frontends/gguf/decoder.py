"""A GGUF file of a decoder -> a graph that reads tokens, and keeps keys and values as state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Final

import numpy as np

from polysci.border.arguments import check_whole
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.gguf.architectures import Decoder
from polysci.frontends.gguf.file import open_gguf
from polysci.frontends.gguf.weights import DecoderWeights
from polysci.graph.builder import GraphBuilder
from polysci.graph.formulas import derive
from polysci.graph.graph import NARROW_MATMUL, Graph, Tensor
from polysci.graph.state import KeptState, keep_state
from polysci.numerics.arrays import Array
from polysci.text.names import suggest

TOKENS, CONTEXT, POSITIONS, LOGITS = "tokens", "context", "positions", "logits"
LEAST_READ: Final = 512  # rows of keys and values that a run reads, however few there are
MOST_CONTEXT: Final = 2048  # tokens that the state has room for, where nobody says how many


def read_decoder(
    path: str | PathLike[str], dims: Mapping[str, int] | None, values: Mapping[str, Any] | None
) -> Graph:
    """Return the graph of a file for a number of tokens at a time.

    ``dims`` may have ``tokens`` (1), and ``context``, how many tokens the state has room for: the
    length that the model was trained for, 2048 at most. Results are the logits behind the last
    token. Raises SpecError for other names, UnsupportedError for what is computed otherwise.
    """
    if values:
        raise SpecError(f"value {next(iter(values))!r:.80}: a decoder has no inputs but tokens")
    sizes = dict(dims or {})
    if wrong := [name for name in sizes if name not in (TOKENS, CONTEXT)]:
        raise SpecError(
            f"dim {wrong[0]!r:.80}: a decoder has {TOKENS} and {CONTEXT}"
            f"{suggest(wrong[0], (TOKENS, CONTEXT))}"
        )
    for name, size in sizes.items():
        check_whole(f"dims: {name}", size, 1, 1 << 31)
    file = open_gguf(path)
    model = Decoder.of(file)
    context = sizes.get(CONTEXT, min(model.context_length, MOST_CONTEXT))
    tokens = sizes.get(TOKENS, 1)
    if tokens > context or context > model.context_length:
        raise SpecError(
            f"dims: {tokens} tokens at a time of {context}: expected no more tokens than context, "
            f"and at most {model.context_length}, the context_length of the file"
        )
    if 0 < model.window < context:
        raise UnsupportedError(
            f"{file.path!r:.200}: a sliding window of {model.window} tokens: bind context to as "
            f"many at most, as in --dim {CONTEXT}={model.window}"
        )
    return _DecoderGraph(DecoderWeights(file), model, tokens, context).build()


@dataclass(slots=True)
class _DecoderGraph:
    """The graph of a decoder on its way, for ``tokens`` at a time and ``context`` in all."""

    weights: DecoderWeights
    model: Decoder
    tokens: int
    context: int
    graph: GraphBuilder = field(init=False)
    rows: dict[str, str] = field(default_factory=dict)  # state -> the tensor that replaces it
    angles: tuple[str, str] = ("", "")  # cosines and sines of the tokens, by row and pair
    seen: str = ""  # whether a token sees a key, by row and key
    last: str = ""  # the position of the last token

    def build(self) -> Graph:
        """Return the graph, which counts its tokens. Raises UnsupportedError for other tensors."""
        model, shape = self.model, (self.tokens,)
        inputs = [Tensor(TOKENS, shape, "int64"), Tensor(POSITIONS, shape, "int64")]
        for layer in range(model.layers):
            for part, size in (("keys", model.head_size), ("values", model.value_size)):
                inputs.append(Tensor(f"{part}.{layer}", (model.kv_heads, self.context, size)))
        known = {tensor.name: tensor for tensor in inputs}
        self.graph = GraphBuilder(Graph("decoder", (), (), (), {}, known))
        self._prepare_positions()
        x = self._embed()
        for layer in range(model.layers):
            x = self._layer(x, layer)
        self._score(self._norm(x, "output_norm", model.width))
        self.weights.check_all_read()
        graph = self.graph.to_graph(inputs, [*self.rows.values(), LOGITS])
        state = {name: np.zeros(known[name].shape, np.float32) for name in self.rows}
        past = {new: name for name, new in self.rows.items()}
        graph = replace(graph, in_place=past, state=state)
        return keep_state(graph, KeptState(positions=POSITIONS))

    def _prepare_positions(self) -> None:
        """Make the angles of the tokens' positions, and which keys they see."""
        model, graph, half = self.model, self.graph, self.model.rope_size // 2
        powers = model.rope_base ** (-np.arange(half) / half)
        if self.weights.has("rope_freqs.weight"):
            powers = powers / self.weights.vector("rope_freqs.weight", half)
        angles = np.arange(self.context)[:, None] / model.rope_factor * powers
        cos, sin = (
            graph.add("gather", (graph.constant(table), POSITIONS), (self.tokens, half))
            for table in (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        )
        self.angles = cos, sin
        keys = graph.constant(np.arange(self.context)[None])
        places = graph.reshape(POSITIONS, (self.tokens, 1))
        self.seen = graph.add("less_equal", (keys, places), (self.tokens, self.context), "bool")
        self.last = self._slice(POSITIONS, 0, self.tokens - 1, self.tokens)

    def _embed(self) -> str:
        """Add the rows of the table that tokens name, of which blocks are decoded behind that."""
        graph = self.graph
        table = self.weights.table(self.model.width)
        rows = {
            name: graph.add(
                "gather", (graph.constant(part), TOKENS), (self.tokens, *part.shape[1:]),
                part.dtype.name,
            )
            for name, part in table.items()
        }  # fmt: skip
        if "values" in rows:
            return rows["values"]
        parts = {
            name: graph.reshape(rows[name], (*graph.shape(rows[name]), 1))
            for name in ("scale", "zero") if name in rows
        }  # fmt: skip
        numbers = self._numbers(rows)
        formula = "(n - zero) * scale" if "zero" in rows else "n * scale"
        return graph.reshape(
            derive(graph, formula, n=numbers, **parts), (self.tokens, self.model.width)
        )

    def _numbers(self, rows: Mapping[str, str]) -> str:
        """Add the numbers of blocks as f32: (tokens, blocks of a row, numbers of a block)."""
        graph, packed = self.graph, rows.get("numbers") or rows["nibbles"]
        shape = graph.shape(packed)
        real = graph.add("cast", (packed,), shape, to="float32")
        if "numbers" in rows:
            return real
        high = derive(graph, "floor(p * part)", p=real, part=1 / 16)
        low = derive(graph, "p - h * 16", p=real, h=high)
        pair = [graph.reshape(part, (*shape, 1)) for part in (low, high)]
        pairs = graph.add("concat", pair, (*shape, 2), axis=len(shape))
        numbers = graph.reshape(pairs, (*shape[:-1], 2 * shape[-1]))
        if "zero" in rows:
            return numbers
        return derive(graph, "select(n > 7, n - 16, n)", n=numbers)

    def _layer(self, x: str, layer: int) -> str:
        """Add a layer; the last one makes only the last row of its result."""
        model, graph, name = self.model, self.graph, f"blk.{layer}"
        y = self._norm(x, f"{name}.attn_norm", model.width)
        keys = self._turn(self._heads(y, f"{name}.attn_k", model.kv_heads), self.angles)
        keys = self._append(f"keys.{layer}", keys)
        columns = model.kv_heads * model.value_size
        values = self._multiply(y, f"{name}.attn_v", columns)
        shape = (self.tokens, model.kv_heads, model.value_size)
        values = self._append(f"values.{layer}", graph.reshape(values, shape))
        seen, (cos, sin) = self.seen, self.angles
        if layer == model.layers - 1:
            x, y, seen, cos, sin = map(self._last, (x, y, seen, cos, sin))
        queries = self._turn(self._heads(y, f"{name}.attn_q", model.heads), (cos, sin))
        mixed = self._attend_known(queries, keys, values, seen)
        x = derive(graph, "x + y", x=x, y=self._multiply(mixed, f"{name}.attn_output", model.width))
        y = self._norm(x, f"{name}.ffn_norm", model.width)
        gate, up = (self._multiply(y, f"{name}.{part}") for part in ("ffn_gate", "ffn_up"))
        y = derive(graph, "gate * sigmoid(gate) * up", gate=gate, up=up)
        return derive(graph, "x + y", x=x, y=self._multiply(y, f"{name}.ffn_down", model.width))

    def _heads(self, y: str, name: str, heads: int) -> str:
        """Add queries or keys, (tokens, heads, size); their norm comes before they turn.

        Pairs that are neighbours in the file become one element of either half of a head.
        """
        model, graph = self.model, self.graph
        order = None
        if model.kind.interleaved:
            order = halves_of_pairs(heads, model.head_size, model.rope_size)
        made = self._multiply(y, name, heads * model.head_size, order)
        by_heads = graph.reshape(made, (graph.shape(made)[0], heads, model.head_size))
        if not model.kind.head_norms:
            return by_heads
        return self._norm(by_heads, f"{name}_norm", model.head_size)

    def _last(self, x: str) -> str:
        """Return the last row of a tensor."""
        return self._slice(x, 0, self.graph.shape(x)[0] - 1, self.graph.shape(x)[0])

    def _slice(self, x: str, axis: int, first: int, last: int) -> str:
        """Return elements along an axis."""
        graph, shape = self.graph, [*self.graph.shape(x)]
        if (first, last) == (0, shape[axis]):
            return x
        ends = [graph.constant(np.array([own])) for own in (first, last, axis)]
        shape[axis] = last - first
        return graph.add("slice", (x, *ends), shape, graph.dtype(x))

    def _turn(self, x: str, angles: tuple[str, str]) -> str:
        """Turn pairs of elements of each head, one of either half, by the angles of its row."""
        graph, (rows, heads, size) = self.graph, self.graph.shape(x)
        half = self.model.rope_size // 2
        cos, sin = (graph.reshape(own, (rows, 1, half)) for own in angles)
        a, b = (self._slice(x, 2, first, first + half) for first in (0, half))
        turned = [
            derive(graph, formula, a=a, b=b, cos=cos, sin=sin)
            for formula in ("a * cos - b * sin", "b * cos + a * sin")
        ]
        rest = [self._slice(x, 2, 2 * half, size)] if 2 * half < size else []
        return graph.add("concat", (*turned, *rest), (rows, heads, size), axis=2)

    def _append(self, name: str, rows: str) -> str:
        """Write rows (tokens, heads, size) to state, at their positions; return all of it."""
        graph = self.graph
        places = graph.reshape(POSITIONS, (self.tokens, 1))
        names = (name, places, graph.transpose(rows, (1, 0, 2)))
        self.rows[name] = graph.add("scatter_nd", names, graph.shape(name), axis=1)
        return self.rows[name]

    def _attend_known(self, queries: str, keys: str, values: str, seen: str) -> str:
        """Mix values of rows so far: a run reads the first 512 rows of state, or 1024, and so on.

        It reads twice as many as there are at most.
        """
        graph, (rows, heads, size) = self.graph, self.graph.shape(queries)
        model = self.model
        queries = derive(graph, "q * s", q=queries, s=model.attention_scale)
        count = heads // model.kv_heads * rows
        grouped = graph.reshape(graph.transpose(queries, (1, 0, 2)), (model.kv_heads, count, size))
        mixed, limit = self._attend(grouped, keys, values, seen), LEAST_READ
        while 2 * limit < self.context:
            limit *= 2
        while LEAST_READ <= limit < self.context:
            parts = [self._slice(x, 1, 0, limit) for x in (keys, values, seen)]
            few = self._attend(grouped, *parts)
            fits = derive(graph, "last < limit", last=self.last, limit=limit)
            mixed = graph.add("if", (fits, few, mixed), graph.shape(mixed))
            limit //= 2
        return mixed

    def _attend(self, queries: str, keys: str, values: str, seen: str) -> str:
        """Mix values by the products of queries and keys, of which groups of heads share both."""
        graph, model = self.graph, self.model
        (rows, length), (_, count, _) = graph.shape(seen), graph.shape(queries)
        heads = model.heads
        across = (model.kv_heads, count, length)
        scores = graph.add("matmul", (queries, graph.transpose(keys, (0, 2, 1))), across)
        apart = graph.reshape(scores, (heads, rows, length))
        hidden = derive(graph, "select(seen, s, least)", seen=seen, s=apart, least=-np.inf)
        shares = graph.add("softmax", (hidden,), graph.shape(hidden), axis=-1)
        shape = (model.kv_heads, count, model.value_size)
        mixed = graph.add("matmul", (graph.reshape(shares, across), values), shape)
        by_heads = graph.reshape(mixed, (heads, rows, model.value_size))
        return graph.reshape(graph.transpose(by_heads, (1, 0, 2)), (rows, heads * shape[-1]))

    def _score(self, y: str) -> None:
        """Add the logits; without weights of their own these are the table of tokens."""
        tied = not self.weights.has("output.weight")
        scores = self._multiply(y, "token_embd" if tied else "output")
        vocabulary = self.graph.shape(scores)[-1]
        flat = self.graph.constant(np.array([vocabulary]))
        self.graph.put("reshape", (scores, flat), Tensor(LOGITS, (vocabulary,)))

    def _multiply(
        self, x: str, name: str, columns: int | None = None, order: Array | None = None
    ) -> str:
        """Add ``x @ weights' + bias``, of which the file may have none; ``order`` is of columns."""
        graph, (rows, depth) = self.graph, self.graph.shape(x)
        weights, array = self.weights.matrix(f"{name}.weight", (columns, depth), order)
        inputs, shape = [x, graph.constant(array)], (rows, len(array))
        if self.weights.has(f"{name}.bias"):
            bias = self.weights.vector(f"{name}.bias", len(array))
            inputs.append(graph.constant(bias if order is None else bias[order]))
        if weights == "f32":
            y = graph.add("gemm", inputs, shape, transpose_b=1)
        else:
            y = graph.add(NARROW_MATMUL, inputs, shape, weights=weights)
        graph.nodes[-1] = replace(graph.nodes[-1], name=name)
        return y

    def _norm(self, x: str, name: str, size: int) -> str:
        """Normalise the last axis by the root of its mean square."""
        graph = self.graph
        gain = graph.constant(self.weights.vector(f"{name}.weight", size))
        return graph.add("rms_norm", (x, gain), graph.shape(x), axis=-1, epsilon=self.model.epsilon)


def halves_of_pairs(heads: int, size: int, turned: int) -> Array:
    """Return the order of columns that moves pairs of neighbours of each head to its halves.

    Of each head the first ``turned`` elements are such pairs. Products of queries and keys do not
    depend on the order of their elements.
    """
    places = np.arange(heads * size).reshape(heads, size)
    parts = (places[:, :turned:2], places[:, 1:turned:2], places[:, turned:])
    return np.concatenate(parts, 1).reshape(-1)
