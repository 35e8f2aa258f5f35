"""Text of a tensor notation -> its syntax tree, with errors that point into the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from types import MappingProxyType
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, v_args
from lark.exceptions import VisitError

from polysci.errors import PolysciError, SpecError
from polysci.frontends.notation.syntax import (
    BINARY,
    REDUCTIONS,
    TYPES,
    UNARY,
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Declaration,
    IndexRange,
    Invocation,
    Literal,
    Operation,
    Symbol,
    TensorElement,
    Term,
    parts,
    rewrite_statement,
)
from polysci.numerics.scalar_functions import FUNCTIONS
from polysci.ops.words import Line
from polysci.text.names import suggest

RULE: Final = "As in: def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"

DEEPEST: Final = 100  # operations inside each other
MOST_TERMS: Final = 10_000  # of a statement

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
    """Return an exception: line and column, what is wrong, the line, a caret, the rule."""
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


def _scaling(function: str, before: float = 1.0, after: float = 1.0) -> Callable[..., Term]:
    def make(x: Term) -> Term:
        inner = x if before == 1 else Operation("mul", (x, Literal(before)))
        value = Operation(function, (inner,))
        return value if after == 1 else Operation("mul", (value, Literal(after)))

    return make


# Function of the text -> number of arguments, and the term that it stands for.
BUILTINS: Final[Mapping[str, tuple[int, Callable[..., Term]]]] = MappingProxyType(
    {
        **{row.name: (row.arguments, _call(row.name))
           for row in FUNCTIONS.values() if row.notation},
        "fabs": (1, _call("abs")),
        "fmin": (2, _call("min")),
        "fmax": (2, _call("max")),
        "fmod": (2, _call("remainder")),
        "fdividef": (2, _call("div")),
        "rsqrt": (1, lambda x: Operation("reciprocal", (Operation("sqrt", (x,)),))),
        "exp2": (1, _scaling("exp", before=log(2))),
        "exp10": (1, _scaling("exp", before=log(10))),
        "log2": (1, _scaling("log", after=1 / log(2))),
        "log10": (1, _scaling("log", after=1 / log(10))),
        "fma": (3, lambda x, y, z: Operation("add", (Operation("mul", (x, y)), z))),
        "fdim": (2, lambda x, y: Operation("max", (Operation("sub", (x, y)), Literal(0.0)))),
        "select": (3, _call("select")),
    }
)  # fmt: skip


def apply_builtin(text: str, name: str, values: Sequence[Term], at: int) -> Term:
    """Return the term that a function of ``BUILTINS`` stands for, at a place of a text."""
    arity, make = BUILTINS[name]
    if len(values) != arity:
        raise error_at(text, at, f"{name}: expected {arity} values, got {len(values)}")
    return replace(make(*values), at=at)


@v_args(inline=True)
class _Tree(Transformer[Token, Any]):
    """Turns lark's tree into the syntax tree."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.defined: list[str] = []  # comprehensions so far

    def start(self, *definitions: Comprehension) -> tuple[Comprehension, ...]:
        return definitions

    def definition(self, name: Token, *rest: Any) -> Comprehension:
        inputs = tuple(part for part in rest if isinstance(part, Declaration))
        outputs = tuple(str(part) for part in rest if isinstance(part, Token))
        if name in self.defined:
            raise self.error(name, f"{name} is defined twice")
        self.defined.append(str(name))
        tokens = [part for part in rest if isinstance(part, Token)]
        for at, token in enumerate(tokens):
            if token in tokens[:at]:
                raise self.error(token, f"{token} is repeated: an output has one place")
        return Comprehension(
            str(name), inputs, outputs, tuple(rest[-1]), self.text, name.start_pos or 0
        )

    def body(self, *statements: Any) -> list[Any]:
        return [*statements]

    def parameter(self, kind: Token, *rest: Any) -> Declaration:
        extents, name = rest if len(rest) == 2 else ((), rest[0])
        if kind not in TYPES:
            raise self.error(kind, f"unknown type {kind}{suggest(kind, TYPES)}", _TYPES_RULE)
        self.check_tensor(name)
        return Declaration(str(name), TYPES[kind], extents, name.start_pos or 0)

    def extents(self, *names: Token) -> tuple[str | int, ...]:
        values: list[str | int] = []
        for name in names:
            if name.type == "NAME":
                values.append(str(name))
            elif name.isdigit() and not _is_too_large(name) and int(name):
                values.append(int(name))
            else:
                what = "expected a shape variable or a whole number from 1 to below 2**63"
                raise self.error(name, what)
        return tuple(values)

    def check_tensor(self, name: Token) -> None:
        """Raise SpecError for a tensor called as what the notation has a meaning for."""
        kind = "a type" if name in TYPES else "a function" if name in BUILTINS else ""
        if kind:
            raise self.error(name, f"{name} is {kind}: a tensor has another name")

    def target(self, name: Token, *index: Token) -> tuple[Token, tuple[str, ...]]:
        self.check_tensor(name)
        for at, iterator in enumerate(index):
            if iterator in index[:at]:
                raise self.error(iterator, f"{iterator} is repeated: each axis has its own")
        return name, tuple(map(str, index))

    def assignment(self, target: Any, sign: Token, value: Term, *bounds: Any) -> Assignment:
        name, index = target
        operator = sign.rstrip("!")
        if operator in ("argmin=", "argmax=") and sign == operator:
            what = f"places are not combined with those before: {operator}!"
            raise self.error(sign, what)
        statement = Assignment(
            str(name), index, operator, operator == "=" or sign.endswith("!"), value,
            tuple(bound for bound in bounds if isinstance(bound, IndexRange)),
            tuple(bound.term for bound in bounds if isinstance(bound, _Exists)),
            name.start_pos or 0,
        )  # fmt: skip
        self.check_length(statement)
        for bound in reversed(bounds):
            if isinstance(bound, _Let):
                statement = _substitute(statement, bound)
                self.check_length(statement)
        return statement

    def check_length(self, statement: Assignment) -> None:
        """Raise SpecError for terms that are too long or deep to work with."""
        level, deep, count = [statement.value, *statement.exists], 0, 0
        while level and deep <= DEEPEST and count <= MOST_TERMS:
            count, deep = count + len(level), deep + 1
            level = [part for term in level for part in parts(term)]
        if level:
            what = f"more than {MOST_TERMS} terms, or {DEEPEST} inside each other"
            raise error_at(self.text, statement.at, what, "Make a tensor of a part of it.")

    def invocation(self, *tokens: Token) -> Invocation:
        equals = next(at for at, token in enumerate(tokens) if token.type == "EQUALS")
        targets, (function, *arguments) = tokens[:equals], tokens[equals + 1 :]
        for target in targets:
            self.check_tensor(target)
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
        if _is_too_large(digits):
            raise self.error(digits, "expected a whole number below 2**63")
        value = int(digits) if digits.isdigit() else float(digits.rstrip("f"))
        return Literal(value, digits.start_pos or 0)

    def variable(self, name: Token) -> Symbol:
        return Symbol(str(name), name.start_pos or 0)

    def axis_extent(self, name: Token, digits: Token) -> AxisExtent:
        if not digits.isdigit() or _is_too_large(digits):
            raise self.error(digits, "expected the number of an axis, from 0 on")
        return AxisExtent(str(name), int(digits), name.start_pos or 0)

    def element(self, name: Token, *index: Term) -> Term:
        at = name.start_pos or 0
        if name in TYPES:
            if len(index) != 1:
                raise self.error(name, f"{name}: expected one value, got {len(index)}")
            return Conversion(TYPES[name], index[0], at)
        called = name in self.defined and all(isinstance(term, Symbol) for term in index)
        if name in BUILTINS and not called:  # a call of a comprehension may stand alone
            return apply_builtin(self.text, name, index, at)
        return TensorElement(str(name), index, at)

    def error(self, token: Token, what: str, rule: str = "") -> PolysciError:
        return error_at(self.text, token.start_pos or 0, what, rule)


def _is_too_large(digits: str) -> bool:
    """Tell whether they are a whole number that int64 does not hold."""
    digits = digits.lstrip("0")
    return digits.isdigit() and (len(digits) > 19 or int(digits) >= 2**63)


def _substitute(statement: Assignment, let: _Let) -> Assignment:
    """Replace a name by its term."""
    return rewrite_statement(
        statement,
        lambda term: let.term if isinstance(term, Symbol) and term.name == let.name else term,
    )


def parse(text: str) -> tuple[Comprehension, ...]:
    """Return the comprehensions of a text, in its order.

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
    except (VisitError, RecursionError) as error:
        fault = error.orig_exc if isinstance(error, VisitError) else error
        if isinstance(fault, RecursionError):
            what = f"a statement has more than {DEEPEST} terms inside each other"
            fault = error_at(text, 0, what, "Make a tensor of a part of it.")
        raise fault from None
    return comprehensions


def _fault(error: UnexpectedInput, text: str) -> tuple[int, str]:
    """Return where and how a text leaves the grammar."""
    at = error.pos_in_stream or 0
    if isinstance(error, UnexpectedCharacters):
        return at, f"unexpected character {error.char!r}"
    token = getattr(error, "token", None)
    if token is None or token.type == "$END":
        return len(text.rstrip()), "unexpected end of the text"
    return at, f"unexpected {str(token)!r}"
