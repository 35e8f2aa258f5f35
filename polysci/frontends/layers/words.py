"""Models in one line of text: ``mlp:16x1024x4096x1024 act=relu``, and recurrent layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from polysci.errors import SpecError
from polysci.frontends.layers.dense import LinearLayer
from polysci.frontends.layers.model import Layer, LayeredModel, build_model
from polysci.frontends.layers.plain import GELU, FunctionLayer, SiLU
from polysci.frontends.layers.recurrent_words import CELLS, RecurrentWords
from polysci.ops.words import LIMIT, Line, activation_at

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
    return build_model(layers, shape, seed=seed, name=text.split(":")[0].strip())


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
    if not words.backward:
        return None
    return build_model([words.layer], words.shape, name=words.cell.removesuffix(":"))


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
    name, end = activation_at(line, match.end())
    if text[end:].strip():
        raise line.error(end, f"unknown word {text[end : end + 12].strip()!r}", RULE)
    rows, *features = extents
    activation = [_activation(name)] if name else []
    layers = [layer for sizes in pairwise(features) for layer in (LinearLayer(*sizes), *activation)]
    return layers, (rows, features[0])
