"""Text of a tensor notation -> its syntax tree, with errors that point into the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from types import MappingProxyType
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, v_args
from lark.exceptions import VisitError

from polysci.errors import PolysciError, SpecError
from polysci.network.frontends.notation.syntax import (
    BINARY,
    REDUCTIONS,
    TYPES,
    UNARY,
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Declaration,
    Element,
    IndexRange,
    Invocation,
    Literal,
    Operation,
    Term,
    Variable,
    rewrite_statement,
)
from polysci.ops.words import Line
from polysci.text.suggestions import suggest

RULE: Final = "As in: def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"

_TYPES_RULE: Final = f"Types are {', '.join(TYPES)}."


def _grammar() -> str:
    levels: dict[int, list[str]] = {}
    for sign, (_, level) in BINARY.items():
        levels.setdefault(level, []).append(f'"{sign}"')
    rules = [
        f"?level{level}: level{level + 1}\n"
        f"    | level{level} OPERATOR{level} level{level + 1} -> binary\n"
        f"OPERATOR{level}: {' | '.join(signs)}"
        for level, signs in levels.items()
    ]
    top = max(levels) + 1
    return rf"""
start: definition+
definition: "def" NAME "(" [parameter ("," parameter)*] ")" "->" "(" NAME ("," NAME)* ")" body
body: "{{" (statement ";"?)* "}}"
parameter: NAME [extents] NAME
extents: "(" [extent ("," extent)*] ")"
?extent: NAME | NUMBER
?statement: target (REDUCTION | EQUALS) term ["where" bound ("," bound)*] -> assignment
    | NAME ("," NAME)+ EQUALS NAME "(" [NAME ("," NAME)*] ")" -> invocation
target: NAME ["(" [NAME ("," NAME)*] ")"]
?bound: NAME "in" term ":" term -> index_range
    | NAME EQUALS term -> definition_of_name
    | "exists" term -> exists
?term: level1 | level1 "?" term ":" term -> ternary
{chr(10).join(rules)}
?level{top}: primary | SIGN level{top} -> unary
SIGN: "-" | "!"
?primary: NUMBER -> number | NAME -> variable | NAME "." NUMBER -> axis_extent
    | NAME "(" [term ("," term)*] ")" -> element | "(" term ")"
REDUCTION.3: /({
        "|".join(
            sign[:-1].replace("+", chr(92) + "+").replace("*", chr(92) + "*") for sign in REDUCTIONS
        )
    })=(?!=)!?/
EQUALS.2: /=(?!=)/
NUMBER.2: /(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?f?(?![A-Za-z0-9_.])/
NAME: /[0-9]*[A-Za-z_][A-Za-z0-9_]*/
%ignore /\s+/
%ignore /#[^\n]*/
"""


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_grammar(), parser="lalr", propagate_positions=True, maybe_placeholders=False)


def error_at(
    text: str, at: int, what: str, rule: str = "", kind: type[PolysciError] = SpecError
) -> PolysciError:
    """An exception of ``kind``: line and column, what is wrong, the line, a caret, the rule."""
    number, start = text.count("\n", 0, at) + 1, text.rfind("\n", 0, at) + 1
    line = text[start:].split("\n", 1)[0]
    return Line(line, f"line {number}").error(at - start, what, rule, kind)


@dataclass(frozen=True, slots=True)
class _Let:
    """``x = term`` behind ``where``."""

    name: str
    term: Term


@dataclass(frozen=True, slots=True)
class _Exists:
    """``exists term`` behind ``where``."""

    term: Term


def _call(function: str) -> Callable[..., Term]:
    return lambda *arguments: Operation(function, arguments)


def _scaled(function: str, before: float = 1.0, after: float = 1.0) -> Callable[..., Term]:
    def make(x: Term) -> Term:
        inner = x if before == 1 else Operation("mul", (x, Literal(before)))
        value = Operation(function, (inner,))
        return value if after == 1 else Operation("mul", (value, Literal(after)))

    return make


_UNARY_FUNCTIONS: Final = (
    *("exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "erf", "floor", "ceil", "rint", "abs", "sign", "square"),
    *("reciprocal", "relu", "sigmoid", "silu", "gelu", "gelu_tanh", "hard_swish", "softplus"),
    *("softsign", "mish", "isnan", "isinf"),
)
# Function of the text -> number of arguments, and the term that it stands for.
BUILTINS: Final[Mapping[str, tuple[int, Callable[..., Term]]]] = MappingProxyType(
    {
        **{name: (1, _call(name)) for name in _UNARY_FUNCTIONS},
        **{name: (2, _call(name)) for name in ("pow", "min", "max")},
        "fabs": (1, _call("abs")),
        "fmin": (2, _call("min")),
        "fmax": (2, _call("max")),
        "fmod": (2, _call("remainder")),
        "fdividef": (2, _call("div")),
        "rsqrt": (1, lambda x: Operation("reciprocal", (Operation("sqrt", (x,)),))),
        "exp2": (1, _scaled("exp", before=log(2))),
        "exp10": (1, _scaled("exp", before=log(10))),
        "log2": (1, _scaled("log", after=1 / log(2))),
        "log10": (1, _scaled("log", after=1 / log(10))),
        "fma": (3, lambda x, y, z: Operation("add", (Operation("mul", (x, y)), z))),
        "fdim": (2, lambda x, y: Operation("max", (Operation("sub", (x, y)), Literal(0.0)))),
        "select": (3, _call("select")),
    }
)  # fmt: skip


@v_args(inline=True)
class _Tree(Transformer[Token, Any]):
    """The tree of lark as ours."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def start(self, *definitions: Comprehension) -> tuple[Comprehension, ...]:
        return definitions

    def definition(self, name: Token, *rest: Any) -> Comprehension:
        inputs = tuple(part for part in rest if isinstance(part, Declaration))
        outputs = tuple(str(part) for part in rest if isinstance(part, Token))
        return Comprehension(
            str(name), inputs, outputs, tuple(rest[-1]), self.text, name.start_pos or 0
        )

    def body(self, *statements: Any) -> list[Any]:
        return [*statements]

    def parameter(self, kind: Token, *rest: Any) -> Declaration:
        extents, name = rest if len(rest) == 2 else ((), rest[0])
        if kind not in TYPES:
            raise self.error(kind, f"unknown type {kind}{suggest(kind, TYPES)}", _TYPES_RULE)
        return Declaration(str(name), TYPES[kind], extents, name.start_pos or 0)

    def extents(self, *names: Token) -> tuple[str | int, ...]:
        values: list[str | int] = []
        for name in names:
            if name.type == "NAME":
                values.append(str(name))
            elif name.isdigit() and int(name) > 0:
                values.append(int(name))
            else:
                raise self.error(name, "expected a shape variable or a positive whole number")
        return tuple(values)

    def target(self, name: Token, *index: Token) -> tuple[Token, tuple[str, ...]]:
        for at, iterator in enumerate(index):
            if iterator in index[:at]:
                raise self.error(iterator, f"{iterator} is repeated: each axis has its own")
        return name, tuple(map(str, index))

    def assignment(self, target: Any, sign: Token, value: Term, *bounds: Any) -> Assignment:
        name, index = target
        operator = sign.rstrip("!")
        statement = Assignment(
            str(name), index, operator, operator == "=" or sign.endswith("!"), value,
            tuple(bound for bound in bounds if isinstance(bound, IndexRange)),
            tuple(bound.term for bound in bounds if isinstance(bound, _Exists)),
            name.start_pos or 0,
        )  # fmt: skip
        for bound in reversed(bounds):
            if isinstance(bound, _Let):
                statement = _substitute(statement, bound)
        return statement

    def invocation(self, *parts: Token) -> Invocation:
        equals = next(at for at, part in enumerate(parts) if part.type == "EQUALS")
        targets, (function, *arguments) = parts[:equals], parts[equals + 1 :]
        return Invocation(
            tuple(map(str, targets)), str(function), tuple(map(str, arguments)),
            function.start_pos or 0,
        )  # fmt: skip

    def index_range(self, name: Token, low: Term, high: Term) -> IndexRange:
        return IndexRange(str(name), low, high)

    def definition_of_name(self, name: Token, _: Token, term: Term) -> _Let:
        return _Let(str(name), term)

    def exists(self, term: Term) -> _Exists:
        return _Exists(term)

    def ternary(self, condition: Term, body: Term, otherwise: Term) -> Operation:
        return Operation("select", (condition, body, otherwise), condition.at)

    def binary(self, left: Term, sign: Token, right: Term) -> Operation:
        return Operation(BINARY[sign][0], (left, right), sign.start_pos or 0)

    def unary(self, sign: Token, value: Term) -> Term:
        if sign == "-" and isinstance(value, Literal):
            return replace(value, value=-value.value)
        return Operation(UNARY[sign], (value,), sign.start_pos or 0)

    def number(self, digits: Token) -> Literal:
        text = digits.rstrip("f")
        value = int(text) if digits.isdigit() else float(text)
        if isinstance(value, int) and value >= 2**63:
            raise self.error(digits, "expected a whole number below 2**63")
        return Literal(value, digits.start_pos or 0)

    def variable(self, name: Token) -> Variable:
        return Variable(str(name), name.start_pos or 0)

    def axis_extent(self, name: Token, digits: Token) -> AxisExtent:
        if not digits.isdigit():
            raise self.error(digits, "expected the number of an axis, from 0 on")
        return AxisExtent(str(name), int(digits), name.start_pos or 0)

    def element(self, name: Token, *index: Term) -> Term:
        at = name.start_pos or 0
        if name in TYPES:
            if len(index) != 1:
                raise self.error(name, f"{name}: expected one value, got {len(index)}")
            return Conversion(TYPES[name], index[0], at)
        if name in BUILTINS:
            arity, make = BUILTINS[name]
            if len(index) != arity:
                raise self.error(name, f"{name}: expected {arity} values, got {len(index)}")
            return replace(make(*index), at=at)
        return Element(str(name), index, at)

    def error(self, token: Token, what: str, rule: str = "") -> PolysciError:
        return error_at(self.text, token.start_pos or 0, what, rule)


def _substitute(statement: Assignment, let: _Let) -> Assignment:
    """The statement with a term for a name."""
    return rewrite_statement(
        statement,
        lambda term: let.term if isinstance(term, Variable) and term.name == let.name else term,
    )


def parse(text: str) -> tuple[Comprehension, ...]:
    """The comprehensions of a text, in its order.

    The grammar is that of Tensor Comprehensions (Vasilache et al., 2018), and ``argmin=!`` and
    ``argmax=!``, whose result is a place. Raises SpecError with the line, the column and a caret,
    TypeError for what is no text.
    """
    Line(text)
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise error_at(text, *_fault(error, text), RULE) from None
    try:
        comprehensions: tuple[Comprehension, ...] = _Tree(text).transform(tree)
    except VisitError as error:
        raise error.orig_exc from None
    return comprehensions


def _fault(error: UnexpectedInput, text: str) -> tuple[int, str]:
    """Where and how a text leaves the grammar."""
    at = error.pos_in_stream or 0
    if isinstance(error, UnexpectedCharacters):
        return at, f"unexpected character {error.char!r}"
    token = getattr(error, "token", None)
    if token is None or token.type == "$END":
        return len(text.rstrip()), "unexpected end of the text"
    return at, f"unexpected {str(token)!r}"
