"""The derivatives of the functions of the notation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from types import MappingProxyType
from typing import Final

from polysci.frontends.notation.syntax import Literal, Operation, Term
from polysci.loop_ir.functions import PREDICATES


def apply(function: str, *arguments: Term | float) -> Operation:
    """A function of terms and numbers."""
    return Operation(function, tuple(
        Literal(part) if isinstance(part, int | float) else part for part in arguments
    ))  # fmt: skip


def derive(term: Operation) -> tuple[Term, ...]:
    """The derivatives of a function by its arguments, but of CHOICES; a truth has none."""
    if term.function in PREDICATES:
        return ()
    if term.function in _OF_ONE:
        return (_OF_ONE[term.function](term.arguments[0]),)
    left, right = term.arguments
    return _OF_TWO[term.function](left, right)


def _normal(x: Term) -> Term:
    """``exp(-x * x / 2) / sqrt(2 * pi)``."""
    return apply("mul", apply("exp", apply("mul", apply("square", x), -0.5)), 1 / sqrt(2 * pi))


def _sigmoid(x: Term) -> Term:
    return apply("mul", apply("sigmoid", x), apply("sub", 1.0, apply("sigmoid", x)))


def _tanh(x: Term) -> Term:
    return apply("sub", 1.0, apply("square", apply("tanh", x)))


def _root(x: Term, shift: float) -> Term:
    """``1 / sqrt(shift + x)``."""
    return apply("reciprocal", apply("sqrt", apply("add", shift, x)))


def _gelu_tanh(x: Term) -> Term:
    """With ``t = tanh(c * (x + 0.044715 * x**3))``: ``(1 + t + x * t') / 2``."""
    c, cubic = sqrt(2 / pi), 0.044715
    inner = apply("mul", x, apply("add", c, apply("mul", apply("square", x), c * cubic)))
    slope = apply("add", c, apply("mul", apply("square", x), 3 * c * cubic))
    bend = apply("mul", x, apply("mul", _tanh(inner), slope))
    return apply("mul", apply("add", apply("add", 1.0, apply("tanh", inner)), bend), 0.5)


def _mish(x: Term) -> Term:
    inner = apply("softplus", x)
    bend = apply("mul", x, apply("mul", _tanh(inner), apply("sigmoid", x)))
    return apply("add", apply("tanh", inner), bend)


def _hard_swish(x: Term) -> Term:
    inside = apply("div", apply("add", apply("mul", x, 2.0), 3.0), 6.0)
    above = apply("select", apply("greater", x, 3.0), 1.0, inside)
    return apply("select", apply("less", x, -3.0), 0.0, above)


def _pow(a: Term, b: Term) -> tuple[Term, Term]:
    """By the base 0 where the exponent is 0, by that 0 where the base is: as PyTorch has them."""
    by_base: Term = apply("mul", b, apply("pow", a, apply("sub", b, 1.0)))
    if not isinstance(b, Literal):
        by_base = apply("select", apply("equal", b, 0.0), 0.0, by_base)
    elif b.value == 0:
        by_base = Literal(0.0)
    none = apply("and", apply("equal", a, 0.0), apply("greater_equal", b, 0.0))
    by_exponent = apply("mul", apply("pow", a, b), apply("log", a))
    return by_base, apply("select", none, 0.0, by_exponent)


# Function that gives one of its arguments -> what ``select`` gives the same by: of equal ones the
# first.
CHOICES: Final[Mapping[str, Callable[..., tuple[Term, Term, Term]]]] = MappingProxyType(
    {
        "select": lambda condition, body, otherwise: (condition, body, otherwise),
        "min": lambda a, b: (apply("less_equal", a, b), a, b),
        "max": lambda a, b: (apply("greater_equal", a, b), a, b),
        "relu": lambda x: (apply("greater", x, 0.0), x, Literal(0.0)),
    }
)
# Function of one real number -> its derivative.
_OF_ONE: Final[Mapping[str, Callable[[Term], Term]]] = MappingProxyType(
    {
        "neg": lambda x: Literal(-1.0),
        "exp": lambda x: apply("exp", x),
        "log": lambda x: apply("reciprocal", x),
        "sqrt": lambda x: apply("div", 0.5, apply("sqrt", x)),
        "square": lambda x: apply("mul", x, 2.0),
        "reciprocal": lambda x: apply("neg", apply("square", apply("reciprocal", x))),
        "sin": lambda x: apply("cos", x),
        "cos": lambda x: apply("neg", apply("sin", x)),
        "tan": lambda x: apply("add", 1.0, apply("square", apply("tan", x))),
        "asin": lambda x: _root(apply("neg", apply("square", x)), 1.0),
        "acos": lambda x: apply("neg", _root(apply("neg", apply("square", x)), 1.0)),
        "atan": lambda x: apply("reciprocal", apply("add", 1.0, apply("square", x))),
        "sinh": lambda x: apply("cosh", x),
        "cosh": lambda x: apply("sinh", x),
        "tanh": _tanh,
        "asinh": lambda x: _root(apply("square", x), 1.0),
        "acosh": lambda x: _root(apply("square", x), -1.0),
        "atanh": lambda x: apply("reciprocal", apply("sub", 1.0, apply("square", x))),
        "erf": lambda x: apply("mul", apply("exp", apply("neg", apply("square", x))), 2 / sqrt(pi)),
        "abs": lambda x: apply("sign", x),
        "sigmoid": _sigmoid,
        "softplus": lambda x: apply("sigmoid", x),
        "softsign": lambda x: apply(
            "reciprocal", apply("square", apply("add", 1.0, apply("abs", x)))
        ),
        "silu": lambda x: apply("add", apply("sigmoid", x), apply("mul", x, _sigmoid(x))),
        "gelu": lambda x: apply(
            "add", apply("mul", x, _normal(x)),
            apply("add", 0.5, apply("mul", apply("erf", apply("mul", x, sqrt(0.5))), 0.5)),
        ),
        "gelu_tanh": _gelu_tanh,
        "mish": _mish,
        "hard_swish": _hard_swish,
        **{name: lambda x: Literal(0.0) for name in ("floor", "ceil", "rint", "sign")},
    }
)  # fmt: skip
# Function of two real numbers -> its derivatives by each.
_OF_TWO: Final[Mapping[str, Callable[[Term, Term], tuple[Term, Term]]]] = MappingProxyType(
    {
        "add": lambda a, b: (Literal(1.0), Literal(1.0)),
        "sub": lambda a, b: (Literal(1.0), Literal(-1.0)),
        "mul": lambda a, b: (b, a),
        "div": lambda a, b: (
            apply("reciprocal", b), apply("neg", apply("div", apply("div", a, b), b))
        ),
        "remainder": lambda a, b: (
            Literal(1.0), apply("div", apply("sub", apply("remainder", a, b), a), b)
        ),
        "pow": _pow,
    }
)  # fmt: skip
