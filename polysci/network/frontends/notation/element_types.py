"""The element types of values and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polysci.network.frontends.notation.syntax import (
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
from polysci.network.ir.functions import FUNCTIONS, PREDICATES, kind_of_type

_REALS = ("float16", "bf16", "float32", "float64")
# By how wide the numbers are that types are computed with; narrower whole numbers are as int32.
_WIDTHS = ("int32", "int64", "uint64", "float32", "float64")
_ALIKE = {"float16": "float32", "bf16": "float32", "uint32": "int64"}
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


def type_of(term: Term, types: Mapping[str, str]) -> str:
    """The element type of a value; that of a number next to other values is theirs.

    Values narrower than 32 bits are computed with as int32, or as float32; iterators and extents
    are int64. Functions of real numbers make real numbers of whole ones.
    """
    match term:
        case Literal(value):
            return "float32" if isinstance(value, float) else "int32"
        case Variable() | AxisExtent():
            return "int64"
        case Element(tensor):
            return types[tensor]
        case Conversion(dtype):
            return dtype
        case Operation(function) if function in PREDICATES:
            return "bool"
        case Operation(function, arguments):
            values = arguments[1:] if function == "select" else arguments
            return argument_type(function, values, types)


def argument_type(function: str, arguments: Iterable[Term], types: Mapping[str, str]) -> str:
    """The type in which a function takes its arguments."""
    real = any(isinstance(part, Literal) and isinstance(part.value, float) for part in arguments)
    known = [type_of(part, types) for part in arguments if not isinstance(part, Literal)]
    if function == "select" and len({*known}) == 1 and not real:
        return known[0]
    dtype = promote(known)
    if real and not is_real(dtype):
        return "float32"
    lacks = function not in FUNCTIONS[kind_of_type(dtype)]
    return "float32" if lacks and not is_real(dtype) else dtype


def result_type(statement: Assignment, types: Mapping[str, str]) -> str:
    """The element type of the tensor that a statement makes; an older one keeps its own."""
    if statement.tensor in types:
        return types[statement.tensor]
    dtype = type_of(statement.value, types)
    if statement.operator.rstrip("=") in _PLACES:
        return "int32"
    return promote([dtype]) if statement.operator in ("+=", "*=") else dtype


def tensor_types(comprehension: Comprehension) -> dict[str, str]:
    """The element type of every tensor, by its name."""
    types = {declaration.name: declaration.dtype for declaration in comprehension.inputs}
    for statement in comprehension.assignments:
        types[statement.tensor] = result_type(statement, types)
    return types
