"""The interpreter: NumPy in float64 over all values of the iterators at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.frontends.notation.elaborate import (
    Elaborated,
    argument_type,
    combination_type,
    elaborate,
    is_real,
    tensor_types,
)
from polysci.frontends.notation.parser import parse
from polysci.frontends.notation.ranges import StatementRanges, bind_sizes, infer_shapes
from polysci.frontends.notation.syntax import (
    AxisExtent,
    Conversion,
    Declaration,
    Literal,
    Operation,
    Symbol,
    TensorElement,
    Term,
)
from polysci.loop_ir.functions import kind_of_type
from polysci.numerics.dtypes import from_bf16, to_bf16
from polysci.numerics.scalar_functions import UNSIGNED, WHOLE, apply_numpy

Array = NDArray[Any]


_COMBINE: Final[Mapping[str, np.ufunc]] = {
    "+=": np.add, "*=": np.multiply, "min=": np.minimum, "max=": np.maximum,
}  # fmt: skip
# Element type of 16 bits -> the function that rounds to it; in which its numbers are combined.
_ROUNDING: Final[Mapping[str, str]] = {"float16": "half", "bf16": "brain"}
_COMPUTED: Final[Mapping[str, str]] = dict.fromkeys(_ROUNDING, "float32")


def interpret(
    text: str, arrays: Mapping[str, Any], name: str = "", sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Compute the outputs of comprehension ``name`` of a text, by default its last, by their names.

    Real numbers are computed in float64, whole ones in the types of the notation. Arrays of bf16
    are uint16 (``to_bf16``), or of another library's bfloat16; results of bf16 are uint16, those of
    half float16, other real ones float64. ``sizes`` gives scalars whose values decide ranges.
    Raises SpecError for a text or shapes that do not fit, TypeError for values that an input's type
    lacks, ValueError for a computed subscript outside its axis.
    """
    whole = elaborate(parse(text), name)
    return run(whole, arrays, sizes or {})


def run(whole: Elaborated, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Compute the outputs of an elaborated comprehension, as ``interpret`` does."""
    comprehension = whole.comprehension
    bound = bind_sizes(comprehension, {key: np.shape(value) for key, value in arrays.items()})
    inference, types = infer_shapes(whole, {**sizes, **bound}), tensor_types(comprehension)
    values = {tensor.name: _read(tensor, arrays[tensor.name]) for tensor in comprehension.inputs}
    for ranges in inference.statements:
        tensor = ranges.statement.tensor
        kind = "float64" if is_real(types[tensor]) else types[tensor]
        before = values.get(tensor, np.zeros(inference.shape(tensor), kind))
        values[tensor] = _IterationBox.of(ranges, values, types).assign(before)
    return {name: _store(values[name], types[name]) for name in comprehension.outputs}


def _read(tensor: Declaration, value: Any) -> Array:
    """Return the values of an input. Raises TypeError for values that its type lacks."""
    array, dtype = np.asarray(value), tensor.dtype
    if dtype == "bf16" and not isinstance(value, Real) and array.dtype.name != "bfloat16":
        if array.dtype != np.uint16:
            what = "uint16 (the bits of bf16; polysci.to_bf16 makes them of float32)"
            raise TypeError(f"{tensor.name}: expected dtype {what}, got {array.dtype}")
        return from_bf16(array).astype(np.float64)
    if dtype == "float16" and array.dtype == np.uint16:
        raise TypeError(f"{tensor.name}: expected dtype float16 or numbers, got uint16")
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"{tensor.name}: expected numbers, got dtype {array.dtype}")
    if is_real(dtype):
        return np.asarray(_convert(array.astype(np.float64), dtype))
    converted = array.astype(dtype) if array.dtype.kind in "biu" else _convert(array, dtype)
    if not np.array_equal(converted, array):
        raise TypeError(f"{tensor.name}: expected values of {dtype}, got {array.dtype} with others")
    return np.asarray(converted)


def _store(values: Array, dtype: str) -> Array:
    """Return an output as callers have it: real numbers in float64, but those of 16 bits."""
    if dtype == "bf16":
        return to_bf16(values)
    return values.astype(dtype) if dtype == "float16" else values


@dataclass(frozen=True, slots=True)
class _IterationBox:
    """The values of a statement's iterators: those of the target, then those summed over."""

    ranges: StatementRanges
    values: Mapping[str, Array]
    types: Mapping[str, str]
    places: Mapping[str, Array]
    extents: tuple[int, ...]

    @classmethod
    def of(
        cls, ranges: StatementRanges, values: Mapping[str, Array], types: Mapping[str, str]
    ) -> _IterationBox:
        names = (*ranges.statement.index, *ranges.reductions)
        bounds = [ranges.bounds(name) for name in names]
        grids = np.ix_(*(np.arange(*ends) for ends in bounds)) if names else ()
        extents = tuple(end - first for first, end in bounds)
        return cls(ranges, values, types, dict(zip(names, grids, strict=True)), extents)

    def assign(self, before: Array) -> Array:
        """Return the target's values after the statement."""
        statement, result = self.ranges.statement, before.copy()
        value = np.broadcast_to(self.evaluate(statement.value), self.extents)
        rank = len(statement.index)
        region = tuple(slice(*self.ranges.bounds(name)) for name in statement.index)
        summed = tuple(range(rank, len(self.extents)))
        if statement.operator in ("argmin=", "argmax="):
            flat = value.reshape(*value.shape[:rank], -1)
            result[region] = getattr(np, statement.operator[:-1])(flat, axis=-1)
            return result
        if statement.operator != "=":
            combine = _COMBINE[statement.operator]
            dtype = _COMPUTED.get(dtype := combination_type(statement, self.types), dtype)
            value = combine.reduce(_convert(value, dtype), axis=summed)
            if not statement.initialise:
                value = combine(_convert(result[region], dtype), value)
        result[region] = _convert(value, self.types[statement.tensor])
        return result

    def evaluate(self, term: Term, guarded: bool = False) -> Any:
        """Compute a term; its shape broadcasts to the grid's."""
        match term:
            case Literal(value):
                return np.float64(value) if isinstance(value, float) else np.int64(value)
            case Symbol(name):
                sizes = self.ranges.work.sizes
                return self.places[name] if name in self.places else np.int64(sizes[name])
            case AxisExtent(tensor, axis):
                return np.int64(self.values[tensor].shape[axis])
            case Conversion(dtype, value):
                return _convert(self.evaluate(value, guarded), dtype)
            case TensorElement(tensor, index):
                return self.element(term, self.values[tensor], index, guarded)
            case Operation("select", (condition, body, otherwise)):
                dtype = argument_type("select", (body, otherwise), self.types)
                sides = (_convert(self.evaluate(part, True), dtype) for part in (body, otherwise))
                return np.where(self.evaluate(condition, guarded), *sides)
            case Operation(function, arguments):
                dtype = argument_type(function, arguments, self.types)
                kind = np.float64 if is_real(dtype) else dtype
                values = [
                    np.asarray(self.evaluate(part, guarded)).astype(kind) for part in arguments
                ]
                with np.errstate(all="ignore"):
                    return apply_numpy(function, *values)

    def element(
        self, term: TensorElement, array: Array, index: Sequence[Term], guarded: bool
    ) -> Array:
        """Read elements; those that a condition leaves out at the nearest end of the axis."""
        places = []
        for axis, part in enumerate(index):
            place, size = np.asarray(self.evaluate(part, guarded)), array.shape[axis]
            place = _convert(place, "int64") if place.dtype.kind == "f" else place
            if not guarded and (place.min() < 0 or place.max() >= size):
                raise ValueError(
                    f"{term}: {part} takes values {place.min()} to {place.max()}, but axis {axis} "
                    f"has 0 to {size - 1}"
                )
            places.append(np.clip(place, 0, size - 1))
        return np.asarray(array[tuple(places)])


def _convert(value: Any, dtype: str) -> Any:
    """Convert values to a type; real ones stay in float64, rounded to 16 bits by such types."""
    if dtype in _ROUNDING:
        with np.errstate(over="ignore"):
            return apply_numpy(_ROUNDING[dtype], np.asarray(value, np.float64))
    if is_real(dtype):
        return np.asarray(value, np.float64)
    if dtype == "bool":
        return np.asarray(value) != 0
    if np.asarray(value).dtype.kind == "f":
        kind = {WHOLE: "to_whole", UNSIGNED: "to_unsigned"}.get(kind_of_type(dtype), "to_long")
        value = apply_numpy(kind, np.asarray(value))
    return np.asarray(value).astype(dtype)
