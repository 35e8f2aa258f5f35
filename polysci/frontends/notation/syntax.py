"""The syntax tree of a tensor notation, and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

# Operator of the text -> (function of loop_ir.functions, how tightly it binds).
BINARY: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "||": ("or", 1), "&&": ("and", 2), "==": ("equal", 3), "!=": ("not_equal", 3),
        "<": ("less", 4), "<=": ("less_equal", 4), ">": ("greater", 4), ">=": ("greater_equal", 4),
        "+": ("add", 5), "-": ("sub", 5), "*": ("mul", 6), "/": ("div", 6), "%": ("remainder", 6),
    }
)  # fmt: skip
UNARY: Final[Mapping[str, str]] = MappingProxyType({"-": "neg", "!": "not"})
# How a statement combines the values of one element -> function of a Reduce.
REDUCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "+=": "add", "*=": "mul", "min=": "min", "max=": "max",
        "argmin=": "argmin", "argmax=": "argmax",
    }
)  # fmt: skip
# Type in the text -> NumPy's name of the element type.
TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "bool", "byte": "uint8", "u8": "uint8", "s8": "int8", "int": "int32",
        "long": "int64", "size_t": "uint64", "half": "float16", "float": "float32",
        "double": "float64", "bfloat16": "bf16", "bf16": "bf16",
        **{name: name for name in ("float16", "float32", "float64")},
        **{name: name for name in ("int8", "int16", "int32", "int64")},
        **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Literal:
    """A number; one with a point or an exponent is real, and infinite beyond all doubles."""

    value: int | float
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return repr(self.value).replace("inf", "1e999")


@dataclass(frozen=True, slots=True)
class Symbol:
    """An iterator, a shape variable or a scalar."""

    name: str
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class AxisExtent:
    """``A.0``: the extent of an axis."""

    tensor: str
    axis: int
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.tensor}.{self.axis}"


@dataclass(frozen=True, slots=True)
class TensorElement:
    """``A(i, j + k)``: an element of a tensor; without subscripts a scalar."""

    tensor: str
    index: tuple[Term, ...]
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.tensor}({', '.join(map(str, self.index))})"


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of ``loop_ir.functions`` of values; ``select`` is ``a ? b : c``."""

    function: str
    arguments: tuple[Term, ...]
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        for sign, (function, _) in BINARY.items():
            if function == self.function:
                left, right = self.arguments
                return f"({left} {sign} {right})"
        for sign, function in UNARY.items():
            if function == self.function:
                return f"({sign}{self.arguments[0]})"
        if self.function == "select":
            condition, body, otherwise = self.arguments
            return f"({condition} ? {body} : {otherwise})"
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Conversion:
    """``float(x)``: a value as one of another element type."""

    dtype: str
    value: Term
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


Term = Literal | Symbol | AxisExtent | TensorElement | Operation | Conversion


@dataclass(frozen=True, slots=True)
class IndexRange:
    """``i in low:high``: from low on, below high."""

    name: str
    low: Term
    high: Term

    def __str__(self) -> str:
        return f"{self.name} in {self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """``tensor(index) = value``, or values of one element combined, as ``operator`` says.

    ``initialise``: without what the element was before. ``exists``: elements that are not read but
    bound the ranges.
    """

    tensor: str
    index: tuple[str, ...]
    operator: str
    initialise: bool
    value: Term
    ranges: tuple[IndexRange, ...] = ()
    exists: tuple[Term, ...] = ()
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        sign = self.operator + "!" * (self.initialise and self.operator != "=")
        bounds = [*map(str, self.ranges), *(f"exists {term}" for term in self.exists)]
        where = f" where {', '.join(bounds)}" if bounds else ""
        return f"{self.tensor}({', '.join(self.index)}) {sign} {self.value}{where}"


@dataclass(frozen=True, slots=True)
class Invocation:
    """``a, b = f(x, y)``: tensors by another comprehension."""

    targets: tuple[str, ...]
    function: str
    arguments: tuple[str, ...]
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} = {self.function}({', '.join(self.arguments)})"


@dataclass(frozen=True, slots=True)
class Declaration:
    """``float(N, 4) A``: an input; extents are shape variables or numbers."""

    name: str
    dtype: str
    extents: tuple[str | int, ...]
    at: int = field(default=0, compare=False)

    def __str__(self) -> str:
        extents = f"({', '.join(map(str, self.extents))})" if self.extents else ""
        return f"{self.dtype}{extents} {self.name}"


@dataclass(frozen=True, slots=True)
class Comprehension:
    """One ``def``; ``text`` is the whole that it stands in, for messages."""

    name: str
    inputs: tuple[Declaration, ...]
    outputs: tuple[str, ...]
    statements: tuple[Assignment | Invocation, ...]
    text: str = field(default="", compare=False, repr=False)
    at: int = field(default=0, compare=False)

    @property
    def shape_variables(self) -> tuple[str, ...]:
        """Return the shape variables in the order in which they come first."""
        names = [name for tensor in self.inputs for name in tensor.extents if isinstance(name, str)]
        return tuple(dict.fromkeys(names))

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """Return the statements; calls of other comprehensions have been replaced by theirs."""
        return tuple(step for step in self.statements if isinstance(step, Assignment))

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        body = "".join(f"    {statement}\n" for statement in self.statements)
        return f"def {self.name}({inputs}) -> ({', '.join(self.outputs)}) {{\n{body}}}"


def parts(term: Term) -> tuple[Term, ...]:
    """Return the terms directly inside a term."""
    match term:
        case TensorElement(_, index):
            return index
        case Operation(_, arguments):
            return arguments
        case Conversion(_, value):
            return (value,)
        case _:
            return ()


def walk_terms(term: Term) -> Iterator[Term]:
    """Yield a term and all inside it, each before its parts, from left to right."""
    yield term
    for part in parts(term):
        yield from walk_terms(part)


def rewrite_terms(term: Term, change: Callable[[Term], Term]) -> Term:
    """Apply ``change`` to every term inside, the innermost first."""
    match term:
        case TensorElement(_, index):
            term = replace(term, index=tuple(rewrite_terms(part, change) for part in index))
        case Operation(_, arguments):
            term = replace(term, arguments=tuple(rewrite_terms(part, change) for part in arguments))
        case Conversion(_, value):
            term = replace(term, value=rewrite_terms(value, change))
    return change(term)


def rewrite_statement(statement: Assignment, change: Callable[[Term], Term]) -> Assignment:
    """Apply ``change`` to all terms of a statement."""
    return replace(
        statement,
        value=rewrite_terms(statement.value, change),
        ranges=tuple(
            replace(bound, low=rewrite_terms(bound.low, change),
                    high=rewrite_terms(bound.high, change))
            for bound in statement.ranges
        ),
        exists=tuple(rewrite_terms(term, change) for term in statement.exists),
    )  # fmt: skip


def names_in(*terms: Term) -> tuple[str, ...]:
    """Return the variables of terms, in the order in which they come first."""
    parts = (part for term in terms for part in walk_terms(term))
    return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, Symbol)))
