"""Models in one line of text: ``mlp:16x1024x4096 act=relu``, ``lstm:T50xN16xC256xK256``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from polysci.errors import SpecError
from polysci.frontends.layers.feedforward import GELU, FunctionLayer, LinearLayer, SiLU
from polysci.frontends.layers.model import Layer, LayeredModel, build_model
from polysci.frontends.layers.recurrent import GRU, LSTM, RNN
from polysci.graph.differentiate import pull_back
from polysci.graph.graph import Graph
from polysci.ops.words import LIMIT, Line, read_activation

RECURRENT_RULE: Final = (
    "As in: lstm:T50xN16xC256xK256 dirs=2 layers=1 bwd, the steps, the batch, the columns of x and "
    "those of a direction's y."
)
CELLS: Mapping[str, Callable[..., Layer]] = MappingProxyType(
    {"lstm:": LSTM, "gru:": GRU, "rnn:": RNN}
)
_RECURRENT_EXTENTS = re.compile(r"T([0-9]+)xN([0-9]+)xC([0-9]+)xK([0-9]+)(?=\s|\Z)")
_OPTION = re.compile(r"\s+(?:(dirs)=([12])|(layers)=([1-9][0-9]{0,2})|(bwd))(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class RecurrentWords:
    """A recurrent layer of ``polysci.layers`` and the shape of its x: (steps, batch, columns).

    ``cell`` is ``lstm:``, ``gru:`` or ``rnn:``; ``backward`` asks for the gradients as well.
    """

    cell: str
    steps: int
    batch: int
    columns: int
    hidden: int
    directions: int = 1
    layers: int = 1
    backward: bool = False

    def __str__(self) -> str:
        dirs = f" dirs={self.directions}" if self.directions > 1 else ""
        layers = f" layers={self.layers}" if self.layers > 1 else ""
        extents = f"T{self.steps}xN{self.batch}xC{self.columns}xK{self.hidden}"
        return f"{self.cell}{extents}{dirs}{layers}{' bwd' * self.backward}"

    @classmethod
    def parse(cls, text: str) -> RecurrentWords:
        """Invert ``str``. Raises SpecError, with a caret under the offending part."""
        line = Line(text)
        cell = next((word for word in CELLS if text.lstrip().startswith(word)), "lstm:")
        at = line.after(cell, RECURRENT_RULE)
        match = _RECURRENT_EXTENTS.match(text, at)
        extents = [int(digits) for digits in match.groups()] if match else []
        if match is None or not all(0 < extent < LIMIT for extent in extents):
            raise line.error(
                at, "expected T, N, C and K with extents from 1 to 2^63 - 1", RECURRENT_RULE
            )
        at, options = match.end(), dict[str, int]()
        while text[at:].strip():
            option = _OPTION.match(text, at)
            name = option and (option[1] or option[3] or option[5])
            if option is None or name in options:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                what = "unknown word" if option is None else "repeated word"
                shown = text[start : start + 12].strip()
                raise line.error(start, f"{what} {shown!r}", RECURRENT_RULE)
            options[str(name)] = int(option[2] or option[4] or 1)
            at = option.end()
        steps, batch, columns, hidden = extents
        dirs, layers = options.get("dirs", 1), options.get("layers", 1)
        return cls(cell, steps, batch, columns, hidden, dirs, layers, "bwd" in options)

    @property
    def layer(self) -> Layer:
        """Return the layer, or as many of them as ``layers`` says."""
        cell = CELLS[self.cell]
        return cell(self.columns, self.hidden, self.layers, bidirectional=self.directions > 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of x."""
        return (self.steps, self.batch, self.columns)

    def build(self, seed: int = 0) -> LayeredModel:
        """Build the forward pass."""
        return build_model([self.layer], self.shape, seed=seed, name=self.cell[:-1])


WORD: Final = "mlp:"
RULE: Final = "As in: mlp:16x1024x4096x1024 act=relu, the rows and then the features of each layer."
_EXTENTS = re.compile(r"[0-9]+(?:x[0-9]+)*")
# The layers of rows of ACTIVATIONS that are no operator by their name.
_LAYERS: Mapping[str, Callable[[], Layer]] = MappingProxyType(
    {"gelu": GELU, "gelu_tanh": lambda: GELU("tanh"), "silu": SiLU}
)


def _activation(name: str) -> Layer:
    """Return the layer of a row of ACTIVATIONS."""
    return _LAYERS[name]() if name in _LAYERS else FunctionLayer(name)


def describes_model(model: object) -> bool:
    """Tell whether it is the text of a model."""
    return isinstance(model, str) and model.lstrip().startswith((WORD, *CELLS))


def model_of(text: str, seed: int = 0) -> LayeredModel:
    """Build the model of ``layers_of``."""
    layers, shape = layers_of(text)
    return build_model(layers, shape, seed=seed, name=title_of_words(text))


def with_rows(text: str, dims: Mapping[str, int]) -> str:
    """Return the text with other rows, where ``dims`` has them. Raises SpecError."""
    if not dims:
        return text
    if not text.lstrip().startswith(WORD) or {*dims} != {"rows"}:
        name = next(name for name in dims if name != "rows" or not text.lstrip().startswith(WORD))
        raise SpecError(f"{name}={dims[name]}: words of layers have one free size: rows of {WORD}")
    layers_of(text)  # which says what is wrong with it
    return _EXTENTS.sub(lambda m: f"{dims['rows']}x{m.group().split('x', 1)[1]}", text, count=1)


def backward_of(text: str) -> LayeredModel | None:
    """Build the model whose gradients ``bwd`` asks for; None for words of a forward pass."""
    if not text.lstrip().startswith(tuple(CELLS)):
        return None
    words = RecurrentWords.parse(text)
    return words.build() if words.backward else None


def read_words(text: str, dims: Mapping[str, int] | None, values: Any, external: bool) -> Graph:
    """Return the graph of words, whose first parameters are constants; ``dims`` may have rows.

    Parameters of words with ``bwd`` are inputs; so is the gradient of y, and outputs are y and all
    other gradients.
    """
    if model := backward_of(text):
        names = [tensor.name for tensor in model.graph.inputs]
        return pull_back(model.graph, model.graph.outputs[0].name, names)
    return read_layers(model_of(with_rows(text, dims or {})), None, values, external)


def read_layers(model: LayeredModel, dims: Any, values: Any, external: bool) -> Graph:
    """Return the graph of layers, whose first parameters are constants."""
    if dims or values:
        raise SpecError("dims, values: a model of layers has every extent fixed")
    return model.fix_values()


def title_of_words(text: str) -> str:
    """Return the kind of layers."""
    return text.split(":")[0].strip()


def layers_of(text: str) -> tuple[list[Layer], tuple[int, ...]]:
    """Return linear layers with a bias, each of which ends in the activation, if ``act`` names one.

    Or the recurrent layers of ``RecurrentWords``, forward. Behind them the shape of x. Raises
    SpecError, with a caret under the offending part.
    """
    line = Line(text)
    if text.lstrip().startswith(tuple(CELLS)):
        words = RecurrentWords.parse(text)
        if words.backward:
            raise line.error(text.rindex("bwd"), "expected words of a forward pass")
        return [words.layer], words.shape
    at = line.after(WORD, RULE)
    match = _EXTENTS.match(text, at)
    extents = [int(digits) for digits in match.group().split("x")] if match else []
    if match is None or len(extents) < 3:
        raise line.error(at, "expected rows and two or more numbers of features", RULE)
    if not all(0 < extent < LIMIT for extent in extents):
        raise line.error(at, "expected extents from 1 to 2^63 - 1", RULE)
    name, end = read_activation(line, match.end())
    if text[end:].strip():
        raise line.error(end, f"unknown word {text[end : end + 12].strip()!r}", RULE)
    rows, *features = extents
    activation = [_activation(name)] if name else []
    layers = [layer for sizes in pairwise(features) for layer in (LinearLayer(*sizes), *activation)]
    return layers, (rows, features[0])
