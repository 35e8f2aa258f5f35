"""einsum: sums of products of NumPy arrays, as numpy.einsum has them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from opt_einsum.parser import parse_einsum_input

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.frontends.notation.graphs import contract
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, Tensor
from polysci.network.compiled import Network, compile_network

Array = NDArray[Any]
KEPT: Final = 256  # plans
_TYPES: Final = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16")
_STORED: Final = {"float16": "float32"}  # types that are computed in another one
_LABELS: Final = ascii_uppercase + ascii_lowercase  # of the numbers of a list of subscripts
_ORDERS: Final = ("C", "F", "A", "K")
_CASTS: Final = ("no", "equiv", "safe", "same_kind", "unsafe")
_PATHS: Final = ("greedy", "optimal")


@guard
def einsum(*operands: Any, out: Array | None = None, dtype: DTypeLike | None = None,
           order: str = "K", casting: str = "safe", optimize: Any = True, level: str = "estimate",
           threads: int = 1, reproducible: bool = False,
           device: str | None = None) -> Any:  # fmt: skip
    """Compute what numpy.einsum computes: ``einsum("bhmd,bhnd->bhmn", q, k)``.

    Traces, diagonals, broadcasting, ellipses, subscripts without a result and lists of numbers as
    subscripts are those of numpy.einsum, as are ``out``, ``dtype``, ``order`` ("K" is "C" here) and
    ``casting``; the result is always a new array, or ``out``. opt_einsum says in which order more
    than two operands are contracted, whatever ``optimize`` asks for; every product of two is
    searched at ``level``, as ``polysci.optimize`` does, the first time that it is asked for with
    these shapes and types; the last 256 plans are kept. With ``reproducible`` any number of threads
    gives the same bits. ``device`` as ``polysci.compile_network`` takes it. float16 is computed in
    float32; arrays without elements and other types than float and integer ones of up to 64 bits
    are NumPy's. Raises SpecError, a ValueError, for subscripts that do not fit, TypeError for
    element types that ``casting`` does not allow.
    """
    check_type("reproducible", reproducible, bool)
    _check_options(out, order, casting, optimize)
    subscripts, arrays = _arguments(operands)
    common = _common_type(arrays, out, dtype, casting)
    computed = _STORED.get(common.name, common.name)
    if computed not in _TYPES or any(array.size == 0 for array in arrays):
        return _numpy(subscripts, arrays, out=out, dtype=dtype, order=order, casting=casting)
    shapes = tuple(array.shape for array in arrays)
    plan = _plan(subscripts, shapes, computed, level, threads, reproducible, device)
    named = {
        f"x{at}": np.ascontiguousarray(array, computed).reshape(array.shape)
        for at, array in enumerate(arrays)
    }
    result: Array = plan(named)["y"]
    if out is not None:
        _check_out(out, result.shape)
        np.copyto(out, result, casting="unsafe")
        return out
    if order == "A":
        order = "F" if all(array.flags.f_contiguous for array in arrays) else "C"
    result = result.astype(common, copy=False)
    return np.asfortranarray(result) if order == "F" and result.ndim else result[()]


def _check_options(out: Any, order: Any, casting: Any, optimize: Any) -> None:
    """Raise TypeError or SpecError for what numpy.einsum knows no meaning of."""
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError(f"einsum: out: expected an array, got {type(out).__name__}")
    if out is not None and not out.flags.writeable:
        raise SpecError("einsum: out: the array is read-only")
    for name, value, known in (("order", order, _ORDERS), ("casting", casting, _CASTS)):
        if value not in known:
            raise SpecError(f"einsum: {name}={value!r:.80}: expected one of {', '.join(known)}")
    path = optimize
    if isinstance(path, Sequence) and not isinstance(path, str) and path:
        path = path[0]
        if path == "einsum_path" or (path in _PATHS and len(optimize) == 2):
            return
    elif path is None or isinstance(path, bool | np.bool_) or path in _PATHS:
        return
    raise TypeError(
        f"einsum: optimize={optimize!r:.80}: expected True, False, {', '.join(_PATHS)}, or a list "
        "that numpy.einsum_path returns"
    )


def _arguments(operands: tuple[Any, ...]) -> tuple[str, list[Array]]:
    """Return the subscripts as text, and the arrays. Raises ValueError where there are none."""
    first, *rest = operands if operands else ("",)
    if isinstance(first, bytes):
        first = first.decode("latin-1")
    if not rest:
        raise SpecError("einsum: expected subscripts and arrays")
    if isinstance(first, str):
        return first, [np.asarray(array) for array in rest]
    pairs = len(operands) // 2
    text = ",".join(map(_text_of_labels, operands[1 : 2 * pairs : 2]))
    if len(operands) % 2:
        text += f"->{_text_of_labels(operands[-1])}"
    return text, [np.asarray(array) for array in operands[: 2 * pairs : 2]]


def _text_of_labels(labels: Any) -> str:
    """Return a list of subscripts as text."""
    numbers = [] if isinstance(labels, str | bytes) or np.ndim(labels) != 1 else [*labels]
    if not numbers and not isinstance(labels, list | tuple):
        raise TypeError(f"einsum: {labels!r:.80}: expected a list of numbers and ...")
    text = ""
    for number in numbers:
        if number is not Ellipsis and not isinstance(number, int | np.integer):
            raise TypeError(f"einsum: subscript {number!r:.80}: expected a whole number or ...")
        if number is not Ellipsis and not 0 <= number < len(_LABELS):
            raise SpecError(f"einsum: subscript {number}: expected 0 to {len(_LABELS) - 1}")
        text += "..." if number is Ellipsis else _LABELS[number]
    return text


def _common_type(
    arrays: Sequence[Array], out: Array | None, dtype: DTypeLike | None, casting: Any
) -> np.dtype[Any]:
    """Return the type of NumPy's sums. Raises TypeError where ``casting`` does not allow it."""
    types = [array.dtype for array in (*arrays, *([] if out is None else [out]))]
    try:
        common = np.result_type(*types) if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"einsum: {error}") from None
    for at, own in enumerate(types):
        source, target = (own, common) if at < len(arrays) else (common, own)
        if own != common and not np.can_cast(source, target, casting):
            what = f"operand {at}" if at < len(arrays) else "out"
            raise TypeError(f"einsum: {what}: {source} to {target} is no cast of casting={casting}")
    return common


def _numpy(subscripts: str, arrays: Sequence[Array], **options: Any) -> Any:
    """Return the result of numpy.einsum itself."""
    try:
        return np.einsum(subscripts, *arrays, **options)
    except (ValueError, TypeError) as error:
        kind = SpecError if isinstance(error, ValueError) else TypeError
        shapes = [array.shape for array in arrays]
        raise kind(f"einsum: {subscripts!r} of shapes {shapes}: {error}") from None


def _check_out(out: Array, shape: tuple[int, ...]) -> None:
    """Raise SpecError for an array that has no place for a result of this shape."""
    pairs = zip(out.shape, shape, strict=False)
    if out.ndim != len(shape) or any(size not in (own, 1) for own, size in pairs):
        raise SpecError(f"einsum: out: expected shape {shape}, got {out.shape}")


@lru_cache(maxsize=KEPT)
def _plan(
    subscripts: str, shapes: tuple[tuple[int, ...], ...], dtype: str, level: str, threads: int,
    reproducible: bool, device: str | None,
) -> Network:  # fmt: skip
    """Compile the network of subscripts that fit these shapes."""
    inputs = [Tensor(f"x{at}", shape, dtype) for at, shape in enumerate(shapes)]
    names = {tensor.name: tensor for tensor in inputs}
    graph = GraphBuilder(Graph("einsum", (), (), (), {}, names))
    try:
        count = subscripts.partition("->")[0].count(",") + 1
        if count != len(shapes):
            raise ValueError(f"subscripts of {count} arrays, but there are {len(shapes)}")
        terms, labels, _ = parse_einsum_input((subscripts, *shapes), shapes=True)
        _check(terms, labels, shapes)
        y = contract(graph, [*names], f"{terms}->{labels}", output="y")
    except ValueError as error:  # also opt_einsum's
        raise SpecError(f"einsum: {subscripts!r} of shapes {list(shapes)}: {error}") from None
    return compile_network(
        graph.to_graph(inputs, [y]), level, threads, reproducible=reproducible, device=device
    )


def _check(terms: str, result: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Raise ValueError for what opt_einsum lets pass."""
    for at, (term, shape) in enumerate(zip(terms.split(","), shapes, strict=True)):
        if len(term) != len(shape):
            raise ValueError(f"{term!r} does not fit array {at}")
        for label, size in zip(term, shape, strict=True):
            if size != (first := shape[term.index(label)]):
                raise ValueError(f"{label!r} of array {at} has the extents {first} and {size}")
    if other := [label for label in terms + result if not (label.isalpha() or label == ",")]:
        raise ValueError(f"{other[0]!r} is no letter")
