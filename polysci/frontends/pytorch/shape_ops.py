"""Calls that move, repeat, choose or leave out elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.frontends.pytorch.call import AtenCall, AtenRules, Operand

CHOOSE = "polysci::choose"  # an operator of polysci.torch: of two tensors the one that data says


def reshape(call: AtenCall, x: str, **_: Any) -> str:
    """Reshape and convert x to the shape and type of the result."""
    return call.reshape(call.cast(x))


def dropout(call: AtenCall, x: str, p: float, train: bool | None = False, **_: Any) -> Any:
    if train and p:
        call.refuse("dropout while a model learns; call eval() on the module first")
    return x if len(call.results) == 1 else (x, "")


def permute(call: AtenCall, x: str, dims: Sequence[int]) -> str:
    return call.graph.transpose(x, [call.axis(at) for at in dims])


def transpose(call: AtenCall, x: str, dim0: int = 0, dim1: int = 1) -> str:
    order = [*range(len(call.shape))]
    if order:
        first, second = call.axis(dim0), call.axis(dim1)
        order[first], order[second] = order[second], order[first]
    return call.graph.transpose(x, order) if len(order) > 1 else x


def expand(call: AtenCall, x: str, src: str = "", **_: Any) -> str:
    """Broadcast x, or what is copied to it, to the result's shape."""
    return call.graph.expand(call.cast(src or x), call.shape)


def repeat(call: AtenCall, x: str, repeats: Sequence[int]) -> str:
    shape = call.graph.shape(x)
    wide = call.graph.reshape(x, (*[1] * (len(repeats) - len(shape)), *shape))
    return call.add("tile", wide, call.whole(repeats))


def cat(call: AtenCall, tensors: Sequence[str], dim: int = 0) -> str:
    """Concatenate; lists without elements count for nothing, whatever the others' axes."""
    parts = [call.cast(x) for x in tensors if call.graph.shape(x) != (0,) or call.shape == (0,)]
    if len(parts) == 1:
        return call.add("identity", *parts)
    return call.add("concat", *parts, axis=call.axis(dim))


def stack(call: AtenCall, tensors: Sequence[str], dim: int = 0) -> str:
    at = call.axis(dim)
    shape = tuple(1 if axis == at else size for axis, size in enumerate(call.shape))
    parts = [call.graph.reshape(call.cast(x), shape) for x in tensors]
    return call.add("concat", *parts, axis=at)


def split(call: AtenCall, x: str, *_: Any, dim: int = 0, **__: Any) -> Sequence[str]:
    """Split along an axis; sizes are those of the results."""
    at = call.axis(dim)
    sizes = [tensor.shape[at] for tensor in call.results]
    return call.add_all("split", x, call.whole(sizes), axis=at)


def unbind(call: AtenCall, x: str, dim: int = 0) -> Sequence[str]:
    return [select(call, x, dim, at) for at in range(len(call.results))]


def cut(
    call: AtenCall, x: str, axis: int, first: int | None, last: int | None, step: int = 1
) -> str:
    """Return the elements along an axis that Python's slices name so."""
    shape = list(call.graph.shape(x))
    places = range(shape[axis])[first:last:step]
    if places == range(shape[axis]):
        return x
    shape[axis] = len(places)
    stop = places.stop if places.stop >= 0 else -(1 << 31)
    ends = [call.whole([number]) for number in (places.start, stop, axis, step)]
    return call.graph.add("slice", (x, *ends), shape, call.graph.dtype(x))


def slices(
    call: AtenCall, x: str, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> str:  # fmt: skip
    return cut(call, x, call.axis(dim), start, end, step)


def select(call: AtenCall, x: str, dim: int, index: int) -> str:
    axis = call.axis(dim, x)
    index %= call.graph.shape(x)[axis]
    return call.reshape(cut(call, x, axis, index, index + 1))


def slice_scatter(
    call: AtenCall, x: str, src: str, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> str:  # fmt: skip
    """Replace the elements in a range of an axis."""
    axis = call.axis(dim)
    places = range(call.shape[axis])[start:end:step]
    if places.step != 1:
        call.refuse(f"step {step}")
    if places == range(call.shape[axis]):
        return src
    parts = [cut(call, x, axis, 0, places.start), src, cut(call, x, axis, places.stop, None)]
    return call.add("concat", *(part for part in parts if call.graph.shape(part)[axis]), axis=axis)


def select_scatter(call: AtenCall, x: str, src: str, dim: int, index: int) -> str:
    axis = call.axis(dim)
    index %= call.shape[axis]
    shape = tuple(1 if at == axis else size for at, size in enumerate(call.shape))
    return slice_scatter(call, x, call.graph.reshape(src, shape), dim, index, index + 1)


def flip(call: AtenCall, x: str, dims: Sequence[int]) -> str:
    for dim in dims:
        x = cut(call, x, call.axis(dim), None, None, -1)
    return x


def roll(call: AtenCall, x: str, shifts: Sequence[int], dims: Sequence[int] = ()) -> str:
    """Roll: elements that leave an axis at its end enter at its beginning."""
    if not dims:
        call.refuse("no dims")
    for shift, dim in zip(shifts, dims, strict=True):
        axis = call.axis(dim)
        if middle := -shift % call.shape[axis]:
            parts = [cut(call, x, axis, middle, None), cut(call, x, axis, 0, middle)]
            x = call.add("concat", *parts, axis=axis)
    return x


def index(call: AtenCall, x: str, indices: Sequence[str | None]) -> str:
    """Gather elements by tensors of places, which broadcast, of neighbouring axes."""
    first, taken = _neighbours(call, indices)
    if len(taken) == 1:
        return call.add("gather", x, taken[0], axis=first)
    places, broad = _vectors(call, taken)
    shape = call.graph.shape(x)
    moved = _to_front(first, len(taken), len(shape))
    if first:
        x = call.graph.transpose(x, moved)
    rest = (shape[at] for at in moved[len(taken) :])
    y = call.add("gather_nd", x, places, shape=(*broad, *rest))
    back = np.argsort(_to_front(first, len(broad), len(call.shape)))
    return call.graph.transpose(y, [int(at) for at in back]) if first else y


def index_put(
    call: AtenCall, x: str, indices: Sequence[str | None], values: str, accumulate: bool = False
) -> str:
    """Replace elements at places, or add to them."""
    first, taken = _neighbours(call, indices)
    places, broad = _vectors(call, taken)
    wide = (*call.shape[:first], *broad, *call.shape[first + len(taken) :])
    values = call.graph.expand(call.cast(values), wide)
    reduction = "add" if accumulate else "none"
    return call.add("scatter_nd", x, places, values, reduction=reduction, axis=first)


def index_copy(call: AtenCall, x: str, dim: int, index: str, source: str) -> str:
    """Replace the slices along an axis at places."""
    axis = call.axis(dim)
    places = call.graph.reshape(call.cast(index, "int64"), (*call.graph.shape(index), 1))
    if not call.graph.shape(index):
        places = call.graph.reshape(places, (1, 1))
    return call.add("scatter_nd", x, places, call.cast(source), reduction="none", axis=axis)


def _neighbours(call: AtenCall, indices: Sequence[str | None]) -> tuple[int, list[str]]:
    """Return the first of the axes that have tensors of places, and these."""
    axes = [at for at, name in enumerate(indices) if name is not None]
    taken = [name for name in indices if name is not None]
    if any(call.graph.dtype(name) in ("bool", "uint8") for name in taken):
        call.refuse("a mask decides how many elements there are")
    if axes[-1] - axes[0] + 1 != len(axes):
        call.refuse("places of axes that are no neighbours")
    return axes[0], taken


def _vectors(call: AtenCall, places: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Join tensors of places to one of vectors; return it and the shape that they broadcast to."""
    broad = np.broadcast_shapes(*map(call.graph.shape, places))
    columns = [
        call.graph.reshape(call.graph.expand(call.cast(name, "int64"), broad), (*broad, 1))
        for name in places
    ]
    wide = (*broad, len(columns))
    return call.graph.add("concat", columns, wide, "int64", axis=-1), broad


def _to_front(first: int, count: int, rank: int) -> list[int]:
    """Return the order of axes in which ``count`` of them, from ``first`` on, lead."""
    return [*range(first, first + count), *range(first), *range(first + count, rank)]


def scatter(
    reduction: str, call: AtenCall, x: str, dim: int, index: str, src: str | None = None,
    value: Operand = 0, reduce: str = "",
) -> str:  # fmt: skip
    """Replace elements at places along an axis, by others or one number."""
    shape = call.graph.shape(index)
    if src is None:
        src = call.graph.expand(call.cast(value), shape)
    for axis, size in enumerate(shape):
        src = cut(call, src, axis, 0, size)
    reduction = {"multiply": "mul"}.get(reduce, reduce) or reduction
    axis = call.axis(dim)
    return call.add("scatter_elements", x, index, src, axis=axis, reduction=reduction)


def unfold(call: AtenCall, x: str, dimension: int, size: int, step: int) -> str:
    """Return windows along an axis, whose elements are the last axis."""
    axis, rank = call.axis(dimension, x), len(call.shape)
    shape = call.graph.shape(x)
    windows = np.arange(call.shape[axis])[:, None] * step + np.arange(size)
    wide = (*shape[:axis], *windows.shape, *shape[axis + 1 :])
    y = call.add("gather", x, call.graph.constant(windows), shape=wide, axis=axis)
    return call.graph.transpose(y, [*(at for at in range(rank) if at != axis + 1), axis + 1])


def gather(op: str, call: AtenCall, x: str, dim: int, index: str, **_: Any) -> str:
    """Gather elements along an axis."""
    return call.add(op, x, index, axis=call.axis(dim))


def choose(call: AtenCall, condition: str, then: str, otherwise: str) -> str:
    """Add a choice, of whose sides only the one that is taken is computed."""
    return call.add("if", condition, then, otherwise)


def embedding(call: AtenCall, weight: str, indices: str, **_: Any) -> str:
    return call.add("gather", weight, indices, axis=0)


def triangle(upper: int, call: AtenCall, x: str, diagonal: int = 0) -> str:
    return call.add("trilu", x, call.whole([diagonal]), upper=upper)


def pad(mode: str, call: AtenCall, x: str, **arguments: Any) -> str:
    """Pad by pairs of sizes, those of the last axis first; negative ones leave elements out."""
    sizes = arguments.get("pad") or arguments["padding"]
    rank = len(call.shape)
    around = [0] * (2 * rank)
    for at, pair in enumerate(zip(sizes[::2], sizes[1::2], strict=True)):
        before, after = (max(0, size) for size in pair)
        around[rank - 1 - at], around[2 * rank - 1 - at] = before, after
        x = cut(call, x, rank - 1 - at, max(0, -pair[0]), min(0, pair[1]) or None)
    value = call.cast(arguments.get("value") or 0) if mode == "constant" else None
    return call.add("pad", x, call.whole(around), value, mode=mode)


def full_like(default: float, call: AtenCall, fill_value: Operand | None = None, **_: Any) -> str:
    """Return a constant of one value everywhere."""
    if isinstance(fill_value, str):
        return call.graph.expand(call.cast(fill_value), call.shape)
    value = default if fill_value is None else fill_value
    return call.graph.constant(np.full(call.shape, value, call.dtype))


def top_k(
    call: AtenCall, x: str, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Sequence[str]:
    return call.add_all(
        "top_k", x, call.whole([k]), axis=call.axis(dim), largest=int(largest), sorted=int(sorted)
    )


def sort(
    call: AtenCall, x: str, dim: int = -1, descending: bool = False, **_: Any
) -> Sequence[str]:
    return top_k(call, x, call.shape[call.axis(dim)], dim, descending)


_RESHAPES = (
    *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "clone"),
    *("alias", "detach", "contiguous", "lift_fresh_copy", "_to_copy", "to", "view_as"),
)
RULES: AtenRules = MappingProxyType(
    {
        **dict.fromkeys(_RESHAPES, reshape),
        **dict.fromkeys(("dropout", "native_dropout"), dropout),
        "permute": permute,
        **dict.fromkeys(("transpose", "t"), transpose),
        **dict.fromkeys(("expand", "broadcast_to", "copy"), expand),
        "repeat": repeat,
        "cat": cat,
        "stack": stack,
        **dict.fromkeys(("split_with_sizes", "split", "chunk"), split),
        "unbind": unbind,
        "slice": slices,
        "select": select,
        "slice_scatter": slice_scatter,
        "select_scatter": select_scatter,
        "flip": flip,
        "roll": roll,
        "index": index,
        "index_put": index_put,
        "index_copy": index_copy,
        "scatter": partial(scatter, "none"),
        "scatter_add": partial(scatter, "add"),
        "unfold": unfold,
        CHOOSE: choose,
        "index_select": partial(gather, "gather"),
        "gather": partial(gather, "gather_elements"),
        "embedding": embedding,
        "tril": partial(triangle, 0),
        "triu": partial(triangle, 1),
        "constant_pad_nd": partial(pad, "constant"),
        **{f"reflection_pad{axes}d": partial(pad, "reflect") for axes in (1, 2, 3)},
        **{f"replication_pad{axes}d": partial(pad, "edge") for axes in (1, 2, 3)},
        **dict.fromkeys(("full_like", "zeros_like", "empty_like"), partial(full_like, 0)),
        "ones_like": partial(full_like, 1),
        "topk": top_k,
        "sort": sort,
    }
)
