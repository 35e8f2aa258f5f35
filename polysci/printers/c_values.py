"""Values, conditions and heads of functions of loop IR as C text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from polysci.loop_ir.index import (
    Bits,
    Comparison,
    Either,
    Every,
    Extreme,
    Flag,
    Index,
    Linear,
    Mapped,
    Modulo,
    Negation,
    Product,
    Quotient,
    Select,
    Subscripts,
    Supported,
    TableEntry,
    Variable,
    Within,
)
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Alternative,
    Arithmetic,
    Before,
    Buffer,
    Compute,
    Constant,
    Convert,
    Element,
    Fields,
    LoopFunction,
    Mask,
    Member,
    Named,
    RoutineResult,
    ScalarParameter,
    Subscript,
    Value,
)
from polysci.numerics.scalar_functions import (
    EXACT,
    FUNCTIONS,
    LONG,
    REAL,
    UNSIGNED,
    WHOLE,
    template,
)

# The C types of elements and numbers; others have their own names in C.
_TYPES: Final = {
    **{"float16": "uint16_t", "bf16": "uint16_t", "float32": "float", "float64": "double"},
    **dict.fromkeys(("bool", "bit"), "uint8_t"),  # eight bits share one
    **{f"{s}int{bits}": f"{s}int{bits}_t" for s in ("", "u") for bits in (8, 16, 32, 64)},
    **{"byte": "char", "opaque": "void", "size": "size_t", "": "void"},
}
_ROUNDED: Final = {"floor": "ps_floor_div", "ceil": "ps_ceil_div"}
FIRST_LINE: Final = 4  # parameters of a long list that stand beside the function's name
_EXTREMES: Final = {"min": "ps_least", "max": "ps_most"}
_LIMITS: Final = {  # C has no other way to write the first two
    **{-(2**31): "INT32_MIN", -(2**63): "INT64_MIN", 2**31 - 1: "INT32_MAX"},
    **{2**63 - 1: "INT64_MAX", 2**64 - 1: "UINT64_MAX"},
}


def c_type(dtype: str) -> str:
    """Return the C type that holds an element or a number; of narrow floats their bits."""
    return _TYPES.get(dtype, dtype)


def text(value: Value) -> str:
    """Return a value as C text, without parentheses around it."""
    printed: str = _PRINTERS[type(value)](value)
    return printed


def operand(value: Value) -> str:
    """Return C text of a value that an operator before or behind it does not tear apart."""
    if type(value) not in _OPEN:
        return text(value)
    if isinstance(value, Linear) and not value.terms and value.constant >= 0:
        return str(value.constant)
    return f"({text(value)})"


def texts(values: Iterable[Value]) -> str:
    """Return operands as a call lists them."""
    return ", ".join(map(text, values))


def place(buffer: str | Member | Address | Element) -> str:
    """Return the buffer whose elements are read or written, as C text."""
    return buffer if isinstance(buffer, str) else operand(buffer)


def element(buffer: str | Member | Address, at: Index) -> str:
    """Return an element of a buffer as C text."""
    places = at.places if isinstance(at, Subscripts) else (at,)
    return place(buffer) + "".join(f"[{text(part)}]" for part in places)


def head(function: LoopFunction) -> str:
    """Return the head of a definition; entry points of many parameters take two lines."""
    parts = [parameter(part) for part in function.parameters]
    first = len(parts) if "static" in function.attributes else FIRST_LINE
    parameters = ",\n        ".join(
        ", ".join(line) for line in (parts[:first], parts[first:]) if line
    )
    return " ".join(
        [*function.attributes, c_type(function.result), f"{function.name}({parameters or 'void'})"]
    )


def parameter(part: Buffer | ScalarParameter) -> str:
    """Return a parameter as a function's head lists it."""
    if isinstance(part, ScalarParameter):
        return definition(part.kind, part.name)
    if part.shape:
        axes = "".join(f"[{extent}]" for extent in part.shape)
        return f"{'const ' * part.const}{definition(part.dtype, part.name)}{axes}"
    return pointer(part)


def definition(kind: str, name: str) -> str:
    """Return a name behind its type."""
    return f"{c_type(kind)} {name}"


def pointer(buffer: Buffer) -> str:
    """Return a buffer behind its type."""
    const, restrict = "const " * buffer.const, "restrict " * buffer.restrict
    return f"{const}{c_type(buffer.dtype)} *{restrict}{buffer.name}"


def call(function: str, own: str, kinds: Sequence[str], texts: Sequence[str]) -> str:
    """Return a function of C texts of ``kinds``; one without a row for its arguments is a cast."""
    text = template(function, kinds[-1])
    if text is not None:
        return text.format(*texts)
    assert FUNCTIONS[function].result, f"{function} of {kinds[-1]}"
    return cast(texts[0], kinds[0], own)


def cast(text: str, own: str, kind: str) -> str:
    """Return C text of a number of one kind as one of another kind."""
    return text if own == kind else f"(({c_type(kind)})({text}))"


def number(value: float, kind: str) -> str:
    """Return a constant as C text; not finite ones need math.h."""
    if kind in (WHOLE, LONG, UNSIGNED):
        return _LIMITS.get(int(value), f"{int(value)}")
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    rounded, suffix = float(value) if kind == EXACT else _single(value), "f" * (kind == REAL)
    text = f"{rounded:.1f}" if rounded.is_integer() and abs(rounded) < 1e6 else rounded.hex()
    return f"{text}{suffix}"


def _single(value: float) -> float:
    """Return a number rounded to f32, as C would."""
    return float(np.float32(value))


def _linear(value: Linear) -> str:
    terms = list[str]()
    for term, factor in value.terms:
        sign = "" if factor == 1 else "-" if factor == -1 else f"{factor} * "
        terms.append(sign + operand(term))
    if value.constant or not terms:
        terms.append(str(value.constant))
    return " + ".join(terms).replace("+ -", "- ")


def _left_operand(value: Index) -> str:
    """The left side of a product, quotient or remainder."""
    return text(value) if isinstance(value, Product | Modulo) or _plain(value) else operand(value)


def _plain(value: Index) -> bool:
    return isinstance(value, Quotient) and value.rounding == "down"


def _quotient(value: Quotient) -> str:
    if value.rounding == "down":
        return f"{_left_operand(value.left)} / {operand(value.right)}"
    return f"{_ROUNDED[value.rounding]}({text(value.left)}, {text(value.right)})"


def _choice(value: Select | Alternative) -> str:
    return f"{_condition_text(value.condition)} ? {text(value.then)} : {text(value.otherwise)}"


def _condition_text(value: Value) -> str:
    return operand(value) if isinstance(value, Select | Alternative) else text(value)


def _comparison(value: Comparison) -> str:
    sides = [operand(side) if isinstance(side, Bits | Select) else text(side)
             for side in (value.left, value.right)]  # fmt: skip
    return f" {value.operator} ".join(sides)


def _all(value: Every) -> str:
    return " && ".join(operand(part) if isinstance(part, Either) else text(part)
                       for part in value.parts)  # fmt: skip


def _any(value: Either) -> str:
    return " || ".join(operand(part) if isinstance(part, Every) else text(part)
                       for part in value.parts)  # fmt: skip


def _address(value: Address) -> str:
    base = text(value.buffer)
    if value.dtype:
        inner = f"({base})" if " " in base else base
        base = f"({'const ' * value.const}{c_type(value.dtype)} *){inner}"
    at = text(value.at)
    return base if at == "0" else f"{base} + {at}"


def _arithmetic(value: Arithmetic) -> str:
    """A sum or product; sums stay in the order in which they are written."""
    left, right = operand(value.left), operand(value.right)
    first = isinstance(value.left, Arithmetic) and value.left.operator == "*"
    if value.operator != "*" and first:
        left = text(value.left)
    if value.operator != "*" and isinstance(value.right, Arithmetic | Linear | Product):
        product = isinstance(value.right, Product) or getattr(value.right, "operator", "") == "*"
        right = text(value.right) if product else right
    return f"{left} {value.operator} {right}"


def _member(value: Member) -> str:
    return f"{place(value.record)}{'->' if value.pointed else '.'}{value.field}"


def _fields(value: Fields) -> str:
    items = [f".{name} = {text(part)}" if name else text(part) for name, part in value.members]
    kind = f"const {c_type(value.dtype)}[]" if value.array else c_type(value.dtype)
    kind = f"({kind})" if value.dtype else ""
    return f"{kind}{{{', '.join(items)}}}"


def _compute(value: Compute) -> str:
    kinds = value.kinds or (value.kind,) * len(value.arguments)
    return call(value.function, value.kind, kinds, [operand(part) for part in value.arguments])


_OPEN: Final = frozenset((
    Linear, Product, Quotient, Modulo, Bits, Select, Comparison, Every, Either, Address,
    Alternative, Arithmetic,
))  # fmt: skip
_PRINTERS: Final[dict[type, Any]] = {
    int: str,
    Variable: lambda value: value.name,
    Linear: _linear,
    Product: lambda value: f"{_left_operand(value.left)} * {operand(value.right)}",
    Quotient: _quotient,
    Modulo: lambda value: f"{_left_operand(value.left)} % {operand(value.right)}",
    Extreme: lambda value: f"{_EXTREMES[value.function]}({text(value.left)}, {text(value.right)})",
    Bits: lambda value: f"{operand(value.left)} {value.operator} {operand(value.right)}",
    Select: _choice,
    Mapped: lambda value: f"{value.function}({texts(value.arguments)})",
    TableEntry: lambda value: value.buffer + "".join(f"[{text(at)}]" for at in value.places),
    Comparison: _comparison,
    Within: lambda value: f"(uint64_t)({text(value.at)}) < {value.extent}",
    Flag: lambda value: value.name,
    Supported: lambda value: "PS_CPU_OK()",
    Every: _all,
    Either: _any,
    Negation: lambda value: f"!{operand(value.part)}",
    Named: lambda value: value.name,
    Constant: lambda value: number(value.value, value.kind),
    Element: lambda value: element(value.buffer, value.at),
    Arithmetic: _arithmetic,
    Member: _member,
    Address: _address,
    Before: lambda value: (
        f"(uintptr_t){text(value.buffer)} - (uintptr_t)({text(value.count)} * {value.size})"
    ),
    Convert: lambda value: f"(({c_type(value.kind)})({text(value.value)}))",
    Compute: _compute,
    Alternative: _choice,
    Subscript: lambda value: call(
        "place", value.kind, (value.kind,) * 2, [text(value.value), str(value.extent)]
    ),
    RoutineResult: lambda value: f"{value.routine}({texts(value.arguments)})",
    Fields: _fields,
    AddressOf: lambda value: f"&{value.name}",
    Mask: lambda value: f"{value.value:#x}u" if value.bits == 32 else f"UINT64_C({value.value:#x})",
}
