"""einsum: sums of products of NumPy arrays, as numpy.einsum has them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from opt_einsum.parser import convert_interleaved_input, parse_einsum_input

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.network.compile.compiled import Network, compile_network
from polysci.network.frontends.notation.contractions import contract
from polysci.network.frontends.notation.graphs import OPSET
from polysci.network.ir.graph import Graph, Tensor
from polysci.network.ir.growing import GrowingGraph

Array = NDArray[Any]
KEPT: Final = 256  # plans
_TYPES: Final = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16")
_STORED: Final = {"float16": "float32"}  # types that are computed in another one


@guard
def einsum(*operands: Any, out: Array | None = None, level: str = "estimate", threads: int = 1,
           reproducible: bool = False, optimize: Any = True) -> Any:  # fmt: skip
    """``einsum("bhmd,bhnd->bhmn", q, k)``: what numpy.einsum computes.

    Traces, diagonals, broadcasting, ellipses, subscripts without a result and lists of numbers as
    subscripts are those of numpy.einsum; the result is always a new array, or ``out``. opt_einsum
    says in which order more than two operands are contracted; every product of two is searched at
    ``level``, as ``polysci.optimize`` does, the first time that it is asked for with these shapes
    and types; the last 256 plans are kept. With ``reproducible`` any number of threads gives the
    same bits. float16 is computed in float32; arrays without elements and other types than float
    and integer ones of up to 64 bits are NumPy's. ``optimize`` has no effect. Raises SpecError, a
    ValueError, for subscripts that do not fit.
    """
    check_type("reproducible", reproducible, bool)
    subscripts, arrays = _arguments(operands)
    dtype = np.result_type(*arrays) if arrays else np.dtype("O")
    computed = _STORED.get(dtype.name, dtype.name)
    if computed not in _TYPES or any(array.size == 0 for array in arrays):
        return np.einsum(subscripts, *arrays, out=out)
    shapes = tuple(array.shape for array in arrays)
    plan = _plan(subscripts, shapes, computed, level, threads, reproducible)
    named = {
        f"x{at}": np.ascontiguousarray(array, computed).reshape(array.shape)
        for at, array in enumerate(arrays)
    }
    result: Array = plan(named)["y"]
    if out is not None:
        out[...] = result
        return out
    return result.astype(dtype, copy=False)[()]


def _arguments(operands: tuple[Any, ...]) -> tuple[str, list[Array]]:
    """The subscripts as text, and the arrays. Raises ValueError where there are none."""
    if not operands:
        raise ValueError("einsum: expected subscripts and arrays")
    if isinstance(operands[0], str):
        return operands[0], [np.asarray(array) for array in operands[1:]]
    text, arrays = convert_interleaved_input(operands)
    return text, [np.asarray(array) for array in arrays]


@lru_cache(maxsize=KEPT)
def _plan(
    subscripts: str, shapes: tuple[tuple[int, ...], ...], dtype: str, level: str, threads: int,
    reproducible: bool,
) -> Network:  # fmt: skip
    """The network of subscripts that fit these shapes."""
    inputs = [Tensor(f"x{at}", shape, dtype) for at, shape in enumerate(shapes)]
    names = {tensor.name: tensor for tensor in inputs}
    graph = GrowingGraph(Graph("einsum", (), (), (), {}, names, OPSET))
    try:
        words, result, _ = parse_einsum_input((subscripts, *shapes), shapes=True)
        _check(words, result, shapes)
        made = contract(graph, [*names], f"{words}->{result}", output="y")
    except ValueError as error:  # also opt_einsum's
        raise SpecError(f"einsum: {subscripts!r} of shapes {list(shapes)}: {error}") from None
    return compile_network(graph.grown(inputs, [made]), level, threads, reproducible=reproducible)


def _check(words: str, result: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Raises ValueError for what opt_einsum lets pass."""
    terms = words.split(",")
    for at, (word, shape) in enumerate(zip(terms, shapes, strict=True)):
        if len(word) != len(shape):
            raise ValueError(f"{word!r} does not fit array {at}")
    if other := [label for label in words + result if not (label.isalpha() or label == ",")]:
        raise ValueError(f"{other[0]!r} is no letter")
