"""The values of element expressions: NumPy in float64 over all iterators at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import UnsupportedError
from polysci.loop_ir.expressions import (
    Apply,
    Computed,
    Expr,
    Guard,
    Index,
    Load,
    Lookup,
    Number,
    Position,
    Reduce,
    Where,
)
from polysci.numerics.affine import Affine
from polysci.numerics.scalar_functions import FUNCTIONS

Array = NDArray[Any]


# Reductions -> how two values combine, and the value of none.
_COMBINE: Final[Mapping[str, tuple[np.ufunc, float]]] = {
    "add": (np.add, 0), "mul": (np.multiply, 1), "max": (np.maximum, -np.inf),
    "min": (np.minimum, np.inf),
}  # fmt: skip


def evaluate(expr: Expr, shape: Sequence[int], known: Mapping[str, Array]) -> Array:
    """Return the tensor of a shape whose elements an expression defines.

    Real numbers are computed in float64, whole ones in int64 or uint64. Raises UnsupportedError for
    a function that has no value here.
    """
    grid = _Grid({f"i{at}": place for at, place in enumerate(_arange(shape))}, len(shape), known)
    return np.broadcast_to(grid.value(expr), shape)


def _arange(shape: Sequence[int]) -> Sequence[Array]:
    return np.ix_(*map(np.arange, shape)) if shape else ()


@dataclass(frozen=True, slots=True)
class _Grid:
    """Values of iterators, each along an axis of its own, and the tensors."""

    places: Mapping[str, Array]
    rank: int
    known: Mapping[str, Array]

    def value(self, expr: Expr) -> Array:
        """Return the values of an expression, in a shape that broadcasts to the grid's."""
        match expr:
            case Number(number):
                return np.asarray(number)
            case Position(at):
                return self.form(at)
            case Load(tensor, index):
                array = self.known[tensor]
                ends = zip(index, array.shape, strict=True)
                element = array[tuple(np.clip(self.place(at), 0, size - 1) for at, size in ends)]
                return _widen(np.asarray(element))
            case Where(guards, body, otherwise):
                return np.where(self.holds(guards), self.value(body), self.value(otherwise))
            case Apply(function, arguments):
                return self.apply(function, arguments)
            case Reduce():
                return self.reduce(expr)

    def form(self, at: Affine) -> Array:
        return np.asarray(at.const + sum(coef * self.places[name] for name, coef in at.terms))

    def place(self, index: Index) -> Array:
        match index:
            case Lookup(table, at):
                return np.asarray(np.asarray(table)[np.clip(self.form(at), 0, len(table) - 1)])
            case Computed(at, extent):
                place = self.value(at)
                return np.asarray(np.where(place < 0, place + extent, place))
            case Affine():
                return self.form(index)

    def holds(self, guards: Sequence[Guard]) -> Array:
        tests = [(self.form(g.at) >= 0) & (self.form(g.at) < g.extent) for g in guards]
        return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*tests)) if tests else True)

    def apply(self, function: str, arguments: Sequence[Expr]) -> Array:
        """A function; constants are of the kind of its other arguments, if it has any."""
        row = FUNCTIONS.get(function)
        if row is None or row.numpy is None:
            raise UnsupportedError(f"{function}: no function of the reference in NumPy")
        values = [self.value(argument) for argument in arguments]
        constants = [isinstance(argument, Number) for argument in arguments]
        pairs = [*zip(values, constants, strict=True)][function == "select" :]
        kinds = {value.dtype.kind for value, constant in pairs if not constant}
        unsigned = kinds <= {"i", "u"} and "u" in kinds  # in which C computes with both
        for at, constant in enumerate(constants):
            if constant and kinds:
                whole = kinds <= {"i", "u"} and float(values[at]).is_integer()
                values[at] = values[at].astype(np.int64 if whole else np.float64)
            if unsigned and values[at].dtype.kind == "i" and at >= (function == "select"):
                values[at] = values[at].astype(np.uint64)
        with np.errstate(all="ignore"):
            return _widen(np.asarray(row.numpy(*values)))

    def reduce(self, expr: Reduce) -> Array:
        extents = [extent for _, extent in expr.over]
        apart = (..., *[None] * len(extents))
        places = {name: place[apart] for name, place in self.places.items()}
        own = {name: place for (name, _), place in zip(expr.over, _arange(extents), strict=True)}
        inner = _Grid({**places, **own}, self.rank + len(extents), self.known)
        full = np.broadcast_shapes(*(place.shape for place in inner.places.values()))
        values = np.broadcast_to(inner.value(expr.body), full)
        function = expr.function.removeprefix("last_").removeprefix("arg")
        combine, neutral = _COMBINE[function]
        if expr.guards:
            values = np.where(inner.holds(expr.guards), values, neutral)
        if function == expr.function:
            axes = tuple(range(len(full) - len(extents), len(full)))
            return np.asarray(combine.reduce(values, axis=axes))
        flat = values.reshape(*full[: len(full) - len(extents)], -1)
        choose = np.argmax if function == "max" else np.argmin
        if expr.function.startswith("last_"):
            return np.asarray(flat.shape[-1] - 1 - choose(flat[..., ::-1], axis=-1))
        return np.asarray(choose(flat, axis=-1))


def _widen(array: Array) -> Array:
    """Return an array as float64, uint64 or int64."""
    whole = np.uint64 if array.dtype == np.uint64 else np.int64
    return array.astype(np.float64 if array.dtype.kind == "f" else whole)
