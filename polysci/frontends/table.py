"""The table of front ends: each kind of model, how to tell it, and how to read its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final

from polysci.frontends.gguf.decoder import read_decoder
from polysci.frontends.layers.model import LayeredModel
from polysci.frontends.layers.words import describes_model, read_layers, read_words, title_of_words
from polysci.frontends.onnx import importer
from polysci.frontends.pytorch.program import is_program, load_program, read_program, run_program
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import SUPPORTED

Sizes = Mapping[str, int] | None
Values = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A kind of models: ``accepts`` tells them, ``read`` returns the graph of one.

    ``read`` takes the model, sizes of free dimensions, values of inputs, and whether weights may
    lie in other files. ``title`` names files and symbols of the network. ``peers`` are the runtimes
    that take such models too. ``reference`` returns a function that computes all tensors by the
    model's own framework, where that is not ONNX's reference. ``read_bounded`` is ``read`` with the
    most of sizes that data decides, by name, of a kind of models that may have some.
    """

    name: str
    accepts: Callable[[object], bool]
    read: Callable[[Any, Sizes, Values, bool], Graph]
    title: Callable[[Any], str] = lambda model: Path(model).stem if is_path(model) else "network"
    peers: tuple[str, ...] = ("onnxruntime", "openvino")
    reference: Callable[[Any, Sizes, Values], Callable[..., Any]] | None = None
    read_bounded: Callable[[Any, Sizes, Values, bool, Sizes], Graph] | None = None


def is_path(model: object, ending: str = "") -> bool:
    """Tell whether a model is a path, of a file that ends so."""
    return isinstance(model, str | PathLike) and str(model).lower().endswith(ending)


def front_end_of(model: object) -> FrontEnd:
    """Return the front end of a model; ONNX's where no row accepts it."""
    return next((row for row in FRONT_ENDS if row.accepts(model)), FRONT_ENDS[-1])


def names_model(text: str) -> bool:
    """Tell whether a text of the command line is a model, and not a layer."""
    return any(row.accepts(text) for row in FRONT_ENDS)


def _read_onnx(
    model: Any, dims: Sizes, values: Values, external: bool, most: Sizes = None
) -> Graph:
    return importer.load(
        model, dims, values, external=external, most=most or {}, supported=SUPPORTED
    )


def _read_notation(model: Any, dims: Sizes, values: Values, external: bool) -> Graph:
    from polysci.frontends.notation.graphs import load_notation  # the parser costs 0.2 s

    return load_notation(model, dims or {})


FRONT_ENDS: Final = (
    FrontEnd("words", describes_model, read_words, title_of_words, ("torch.nn",)),
    FrontEnd("layers", lambda model: isinstance(model, LayeredModel), read_layers),
    FrontEnd(
        "pytorch", is_program, lambda model, dims, values, _: load_program(model, dims, values),
        reference=lambda *model: partial(run_program, read_program(*model)),
    ),
    FrontEnd(
        "gguf", lambda model: is_path(model, ".gguf"),
        lambda model, dims, values, _: read_decoder(model, dims, values), peers=(),
    ),
    FrontEnd("notation", lambda model: is_path(model, ".tc"), _read_notation),
    FrontEnd(
        "onnx", lambda model: is_path(model, ".onnx"), _read_onnx, read_bounded=_read_onnx
    ),
)  # fmt: skip
