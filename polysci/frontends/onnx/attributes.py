"""Attributes of ONNX's nodes in the words of graphs, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from polysci.numerics.scalar_functions import FUNCTIONS

# Names of ONNX -> those of graphs.
_NAMES: Mapping[str, str] = MappingProxyType({"transA": "transpose_a", "transB": "transpose_b"})
_ONNX_NAMES: Mapping[str, str] = MappingProxyType({name: onnx for onnx, name in _NAMES.items()})
_DIRECTIONS: Mapping[str, str] = MappingProxyType({"LEFT": "left", "RIGHT": "right"})
_ONNX_DIRECTIONS: Mapping[str, str] = MappingProxyType({"left": "LEFT", "right": "RIGHT"})
# Functions of recurrent nodes by ONNX's name, in any case: that of graphs, and the values of their
# parameters in ONNX Runtime where a model has none.
_FUNCTIONS: Mapping[str, tuple[str, tuple[float, ...]]] = MappingProxyType(
    {
        **{
            row.onnx.lower(): (row.name, tuple(row.parameters.values()))
            for row in FUNCTIONS.values()
            if row.inputs == ("x",) and row.onnx
        },
        "affine": ("affine", (1.0, 0.0)),
        "thresholdedrelu": ("thresholded_relu", (1.0,)),
        "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    }
)


def graph_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node of ONNX, by their names in graphs.

    The result of a cast says its type.
    """
    words = {_NAMES.get(name, name): value for name, value in attributes.items() if name != "to"}
    if words.get("auto_pad") == "NOTSET":
        del words["auto_pad"]
    if isinstance(direction := words.get("direction"), str):
        words["direction"] = _DIRECTIONS.get(direction, direction)
    numbers = [words.pop(f"activation_{word}", ()) for word in ("alpha", "beta")]
    if isinstance(words.get("activations"), list):
        words["activations"] = _activations(words["activations"], numbers)
    return words


def onnx_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node of a graph, by their names in ONNX."""
    words = {_ONNX_NAMES.get(name, name): value for name, value in attributes.items()}
    if isinstance(direction := words.get("direction"), str):
        words["direction"] = _ONNX_DIRECTIONS.get(direction, direction)
    return words


def _activations(
    names: Sequence[str | bytes], numbers: Sequence[Sequence[float]]
) -> list[tuple[str, *tuple[float, ...]]]:
    """Return functions with their parameters; lists of these go to the functions that have any."""
    lists = [iter(values if isinstance(values, list) else ()) for values in numbers]
    rows = list[tuple[str, *tuple[float, ...]]]()
    for part in names:
        text = part.decode("utf-8", "replace") if isinstance(part, bytes) else part
        name, defaults = _FUNCTIONS.get(text.lower(), (text, ()))
        pairs = zip(lists, defaults, strict=False)
        rows.append((name, *(float(next(values, default)) for values, default in pairs)))
    return rows
