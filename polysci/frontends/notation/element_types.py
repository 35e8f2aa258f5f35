"""The element types of values and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Element,
    Literal,
    Operation,
    Term,
    Variable,
)
from polysci.loop_ir.functions import kind_of_type
from polysci.numerics.scalar_functions import is_predicate, template

_REALS = ("float16", "bf16", "float32", "float64")
# By how wide the numbers are that types are computed with; narrower whole numbers are as int32.
_WIDTHS = ("int32", "int64", "uint64", "float32", "float64")
_ALIKE = {"float16": "float32", "bf16": "float32", "uint32": "int64"}
_EXACT = {"float16": 2**11, "bf16": 2**8}  # up to which they have all whole numbers
_PLACES = ("argmin", "argmax")


def promote(types: Iterable[str]) -> str:
    """The type in which values of such types are computed with together."""
    wide = [_ALIKE.get(dtype, dtype) for dtype in types]
    return max(
        (dtype if dtype in _WIDTHS else "int32" for dtype in wide),
        key=_WIDTHS.index, default="int32",
    )  # fmt: skip


def is_real(dtype: str) -> bool:
    return dtype in _REALS


def _holds(dtype: str, value: float) -> bool:
    """Whether a whole number is a value of a type."""
    if dtype in _EXACT:
        return abs(value) <= _EXACT[dtype]
    if is_real(dtype) or dtype == "bool":
        return is_real(dtype) or value in (0, 1)
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def type_of(term: Term, types: Mapping[str, str]) -> str:
    """The element type of a value; that of a number next to other values is theirs.

    Values narrower than 32 bits are computed with as int32, or as float32; iterators and extents
    are int64. Functions of real numbers make real numbers of whole ones.
    """
    match term:
        case Literal(value):
            whole = "int32" if _holds("int32", value) else "int64"
            return "float32" if isinstance(value, float) else whole
        case Variable() | AxisExtent():
            return "int64"
        case Element(tensor):
            return types[tensor]
        case Conversion(dtype):
            return dtype
        case Operation(function) if is_predicate(function):
            return "bool"
        case Operation(function, arguments):
            values = arguments[1:] if function == "select" else arguments
            return argument_type(function, values, types)


def argument_type(function: str, arguments: Iterable[Term], types: Mapping[str, str]) -> str:
    """The type in which a function takes its arguments."""
    numbers = [part.value for part in arguments if isinstance(part, Literal)]
    real = any(isinstance(value, float) for value in numbers)
    long = {"int64" for value in numbers if not real and not _holds("int32", value)}
    parts = (part for part in arguments if not isinstance(part, Literal))
    known = [*long, *(type_of(part, types) for part in parts)]
    alike = function == "select" and len({*known}) == 1 and not real
    if alike and all(_holds(known[0], value) for value in numbers):
        return known[0]
    dtype = promote(known)
    if real and not is_real(dtype):
        return "float32"
    lacks = template(function, kind_of_type(dtype)) is None
    return "float32" if lacks and not is_real(dtype) else dtype


def result_type(statement: Assignment, types: Mapping[str, str]) -> str:
    """The element type of the tensor that a statement makes; an older one keeps its own."""
    if statement.tensor in types:
        return types[statement.tensor]
    dtype = type_of(statement.value, types)
    if statement.operator.rstrip("=") in _PLACES:
        return "int32"
    return promote([dtype]) if statement.operator in ("+=", "*=") else dtype


def combination_type(statement: Assignment, types: Mapping[str, str]) -> str:
    """In which values are combined: the target's element type, unless that holds fewer."""
    own, target = type_of(statement.value, types), types[statement.tensor]
    counts = target == "bool" and statement.operator in ("+=", "*=")
    same = statement.operator == "=" or (own == target and not counts)
    return target if same else promote((own, target))


def tensor_types(comprehension: Comprehension) -> dict[str, str]:
    """The element type of every tensor, by its name."""
    types = {declaration.name: declaration.dtype for declaration in comprehension.inputs}
    for statement in comprehension.assignments:
        types[statement.tensor] = result_type(statement, types)
    return types
