"""Recurrent layers: whole sequences, in PyTorch's layouts and order of gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from polysci.errors import SpecError
from polysci.frontends.layers.model import CheckedLayer, LayerGraph, check_axes, check_extent


@dataclass(frozen=True, slots=True)
class _Recurrent(CheckedLayer):
    """A recurrent layer.

    x is (steps, batch, input_size), or with ``batch_first`` (batch, steps, input_size); y has
    ``hidden_size`` columns for each direction. ``last``: of y the last step alone, of the other
    direction the first one: (batch, columns). Parameters of layer n are ``weight_ih_ln`` (gates *
    hidden_size, columns of x), ``weight_hh_ln``, ``bias_ih_ln``, ``bias_hh_ln``, and with
    ``_reverse`` behind them those of the other direction. All begin uniform within
    ``1 / sqrt(hidden_size)``, and states with 0.
    """

    OP: ClassVar[str]
    ORDER: ClassVar[str]
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    batch_first: bool = False
    bidirectional: bool = False
    last: bool = False

    def extend(self, graph: LayerGraph, x: str, name: str) -> str:
        self.check_columns(graph, x)
        for number in range(self.num_layers):
            x, (last, *_) = self.add_layer(graph, x, f"{name}.", number)
        if not self.last:
            return x
        count, batch = 1 + self.bidirectional, graph.shape(x)[1 - self.batch_first]
        if count > 1 and not self.batch_first:
            last = graph.transpose(last, (1, 0, 2))
        return graph.reshape(last, (batch, count * self.hidden_size))

    def check_columns(self, graph: LayerGraph, x: str) -> None:
        """Raise SpecError for an x of other columns."""
        check_extent("input_size", self.input_size, check_axes(graph, x, 3)[2])

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return more attributes of the node."""
        return {}

    def add_layer(
        self, graph: LayerGraph, x: str, name: str, number: int, states: Sequence[str] = ()
    ) -> tuple[str, Sequence[str]]:
        """Add a layer; return y of all steps and last states: (directions, batch, hidden_size).

        With ``batch_first`` the batch comes first in these too, and in the first ``states``.
        """
        layer = f"_l{number}"
        outer, inner, columns = graph.shape(x)
        rows, hidden = len(self.ORDER) * self.hidden_size, self.hidden_size
        ends = ["", "_reverse"][: 1 + self.bidirectional]
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, columns),
            "weight_hh": (rows, hidden),
        }
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if self.bias else {}
        parts: dict[str, list[str]] = {word: [] for word in shapes}
        for end in ends:
            for word, shape in shapes.items():
                parts[word].append(graph.uniform(f"{name}{word}{layer}{end}", shape, hidden))
        inputs = [x, *(_join(graph, parts[word], 1) for word in ("weight_ih", "weight_hh"))]
        if self.bias:
            pairs = zip(parts["bias_ih"], parts["bias_hh"], strict=True)
            inputs.append(_join(graph, [part for pair in pairs for part in pair], 2))
        if states:
            inputs += [*[""] * (5 - len(inputs)), *states]
        count, batch = len(ends), outer if self.batch_first else inner
        wide = (outer, inner, count, hidden) if self.batch_first else (outer, count, inner, hidden)
        state = (batch, count, hidden) if self.batch_first else (count, batch, hidden)
        y, *lasts = graph.add_many(
            self.OP, inputs, [(wide, "float32"), *[(state, "float32")] * (1 + (self.OP == "lstm"))],
            hidden_size=hidden, layout=int(self.batch_first), order=self.ORDER,
            direction="bidirectional" if self.bidirectional else "forward", **self.attributes,
        )  # fmt: skip
        if count > 1 and not self.batch_first:
            y = graph.transpose(y, (0, 2, 1, 3))
        return graph.reshape(y, (outer, inner, count * hidden)), lasts


@dataclass(frozen=True, slots=True)
class LSTM(_Recurrent):
    """Gates i, f, g, o: ``c' = f * c + i * g``, ``h' = o * tanh(c')``."""

    OP: ClassVar[str] = "lstm"
    ORDER: ClassVar[str] = "ifgo"


@dataclass(frozen=True, slots=True)
class GRU(_Recurrent):
    """Gates r, z, n: ``n = tanh(W x + b + r * (R h + b'))``, ``h' = (1 - z) * n + z * h``."""

    OP: ClassVar[str] = "gru"
    ORDER: ClassVar[str] = "rzn"

    @property
    def attributes(self) -> Mapping[str, Any]:
        return {"linear_before_reset": 1}


@dataclass(frozen=True, slots=True)
class RNN(_Recurrent):
    """``h' = f(W x + b + R h + b')``; ``nonlinearity`` is tanh or relu."""

    OP: ClassVar[str] = "rnn"
    ORDER: ClassVar[str] = "n"
    nonlinearity: str = "tanh"

    @property
    def attributes(self) -> Mapping[str, Any]:
        if self.nonlinearity not in ("tanh", "relu"):
            raise SpecError(f"nonlinearity {self.nonlinearity!r:.40}: expected tanh or relu")
        return {"activations": [(self.nonlinearity,)] * (1 + self.bidirectional)}


def _join(graph: LayerGraph, parts: Sequence[str], together: int) -> str:
    """Join parameters of directions, ``together`` each, behind an axis of directions."""
    rows, *columns = graph.shape(parts[0])
    shape = (len(parts) // together, rows * together, *columns)
    if len(parts) > 1:
        whole = (rows * len(parts), *columns)
        return graph.reshape(graph.add("concat", parts, whole, axis=0), shape)
    return graph.reshape(parts[0], shape)
