"""The table of scalar functions: NumPy, C, derivative, and the names of each in ONNX and PyTorch.

A row is all that a new function needs. ``x`` stands for the only argument of a function, ``a`` and
``b`` for the arguments of one of two, ``y`` for its value, other names for its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.arrays import Doubles
from polysci.numerics.dtypes import from_bf16, precision_named, to_bf16
from polysci.text.names import suggest

Array = NDArray[Any]
# The kinds of numbers that code computes with.
REAL, EXACT, WHOLE, LONG, UNSIGNED = "float32", "float64", "int32", "int64", "uint64"
# Kind -> the letter in names of C functions and in the table.
LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {REAL: "f", EXACT: "d", WHOLE: "w", LONG: "l", UNSIGNED: "u"}
)
ALL, REALS, INTEGERS = "fdwlu", "fd", "wlu"
OWN: Final = "ps_@_"  # a template: the C function of the row's name; @ is the letter of the kind
_ULP = 2.0**-23
_NEAR = 1.2e-7  # of functions that multiply by x


@dataclass(frozen=True, slots=True)
class SumEnd:
    """Bounds of a function that may end a sum.

    ``slope`` is the largest absolute value of its derivative. ``error`` bounds that of the C
    function in ``microkernels/functions*.h``, relative to ``max(|x|, 1)``; the header says how it
    was found.
    """

    slope: float
    error: float

    def bound(self, x: Doubles, error: Doubles) -> Doubles:
        """Return how far a result may be where the sum is ``x`` within ``error``."""
        bound: Doubles = self.slope * error + self.error * np.maximum(abs(x) + error, 1.0)
        return bound


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function of numbers.

    ``c`` has a template for each set of letters of kinds. ``numpy`` takes arrays of float64, int64
    or uint64. ``derivatives`` are by each argument; ``choice`` is, for a function that gives one of
    its arguments, what ``select`` gives the same by: the first of equal ones; ``by_value`` says
    that the condition may be asked of y. A function with a name in ``onnx``, which has its domain
    where that is not ONNX's own (``example.Erfc``), is an operator of graphs, under its own name;
    ``torch`` is its name in ATen; all of them take ``parameters`` with these defaults. ``notation``
    functions are called by name in tensor notations. ``result`` is the kind of the value, where
    that is not the kind of the arguments. ``end``: the function may end a sum.
    """

    name: str
    c: Mapping[str, str]
    numpy: Callable[..., Array] | None = None
    arguments: int = 1
    derivatives: tuple[str, ...] = ()
    choice: tuple[str, str, str] | None = None
    by_value: bool = False
    onnx: str = ""
    torch: str = ""
    parameters: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    notation: bool = False
    result: str = ""
    end: SumEnd | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names, in formulas, of the arguments that are no parameters."""
        count = self.arguments - len(self.parameters)
        return ("x",) if count == 1 else tuple("abc"[:count])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arguments in formulas."""
        return (*self.inputs, *self.parameters)

    def template(self, kind: str) -> str | None:
        """Return the C text for a kind of number; None where it has none."""
        letter = LETTERS[kind]
        text = next((text for kinds, text in self.c.items() if letter in kinds), None)
        if text == OWN:
            places = ", ".join(f"{{{at}}}" for at in range(self.arguments))
            text = f"{OWN}{self.name}({places})"
        return None if text is None else text.replace("@", letter)


def _divide(left: Array, right: Array) -> Array:
    """Divide; quotients of integers are rounded towards zero, as in C."""
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    quotient = np.abs(left) // np.maximum(1, np.abs(right))
    return np.asarray(np.sign(left) * np.sign(right) * quotient)


def _power(left: Array, right: Array) -> Array:
    """Raise to a power; results of integers are rounded towards zero."""
    if left.dtype.kind == "f":
        return np.asarray(np.power(left, right))
    power = np.power(left, np.abs(right))
    return np.asarray(np.where(right < 0, _divide(np.ones_like(power), power), power))


def _erf(x: Any) -> Any:
    from scipy.special import erf  # costs 100 ms, and parsing needs none of it

    return erf(x)


def _sigmoid(x: Any) -> Any:
    from scipy.special import expit

    return expit(x)


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, 0.0)


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _truncate(dtype: type[np.signedinteger[Any]], x: Array) -> Array:
    """Round real numbers towards zero, to the nearest that there are; a NaN is 0."""
    info = np.iinfo(dtype)
    inside = np.clip(np.nan_to_num(np.trunc(x)), float(info.min), float(info.max))
    with np.errstate(invalid="ignore"):  # 2**63, which the largest int64 is as a float64
        integer = inside.astype(np.int64)
    return np.asarray(np.where(inside >= info.max, info.max, integer))


def _to_unsigned(x: Array) -> Array:
    """Round real numbers towards zero, at most to the largest; negative ones wrap."""
    half = np.where(x >= 2.0**63, 2.0**63, 0.0)
    integer = _truncate(np.int64, x - half).astype(np.uint64) + half.astype(np.uint64)
    return np.asarray(np.where(x >= 2.0**64, np.iinfo(np.uint64).max, integer))


def _libm(name: str, numpy: Callable[..., Any], derivative: str, torch: str = "-",
          onnx: str = "-", **fields: Any) -> ScalarFunction:  # fmt: skip
    """Return the row of a function that ``math.h`` has in double."""
    torch = name if torch == "-" else torch
    onnx = name.capitalize() if onnx == "-" else onnx
    return ScalarFunction(
        name, {"f": OWN, "d": f"{name}({{0}})"}, numpy, derivatives=(derivative,),
        onnx=onnx, torch=torch, notation=True, **fields,
    )  # fmt: skip


def _real(name: str, numpy: Callable[..., Any] | None, **fields: Any) -> ScalarFunction:
    """Return the row of a function of real numbers that ``microkernels/functions*.h`` has."""
    return ScalarFunction(name, {REALS: OWN}, numpy, **fields)


def _infix(name: str, symbol: str, numpy: Callable[..., Any], **fields: Any) -> ScalarFunction:
    """Return the row of an operator of C, of integers by a function that defines overflow."""
    c = {REALS: f"({{0}} {symbol} {{1}})", INTEGERS: OWN}
    return ScalarFunction(name, c, numpy, 2, **fields)


def _predicate(
    name: str, c: Mapping[str, str], numpy: Callable[..., Any], arguments: int = 2,
    onnx: str = "", **fields: Any,
) -> ScalarFunction:  # fmt: skip
    return ScalarFunction(
        name, c, numpy, arguments, onnx=onnx, result=WHOLE, **fields,
    )  # fmt: skip


def _comparison(
    name: str, symbol: str, numpy: Callable[..., Any], onnx: str = ""
) -> ScalarFunction:
    return _predicate(name, {ALL: f"({{0}} {symbol} {{1}})"}, numpy, onnx=onnx)


def _selection(name: str, symbol: str, numpy: Callable[..., Any]) -> ScalarFunction:
    """Return the row of a comparison that tells a NaN apart: it is above all other numbers."""
    return _predicate(name, {REALS: OWN, INTEGERS: f"({{0}} {symbol} {{1}})"}, numpy)


def _bits(name: str, c: str, numpy: Callable[..., Any], arguments: int = 2) -> ScalarFunction:
    word = name.removeprefix("bit_").capitalize()
    return ScalarFunction(name, {INTEGERS: c}, numpy, arguments, onnx=f"Bitwise{word}")


def _conversion(name: str, kind: str, numpy: Callable[..., Any]) -> ScalarFunction:
    """Return the row of a cast; one from real numbers by ``to_`` rounds towards zero."""
    return ScalarFunction(name, {REALS: OWN} if name.startswith("to_") else {}, numpy, result=kind)


_ALPHA = MappingProxyType({"alpha": 1.0})
# sqrt(1/2), 1 / sqrt(2 pi); sqrt(2 / pi), and 3 times 0.044715.
_GELU = "0.5 + 0.5 * erf(x * 0.7071067811865476) + x * exp(-0.5 * square(x)) * 0.3989422804014327"
_GELU_TANH = (
    "0.5 * (1 + (t := tanh(0.7978845608028654 * x * (1 + 0.044715 * (s := square(x))))))"
    " + 0.5 * x * (1 - square(t)) * (0.7978845608028654 * (1 + 0.134145 * s))"
)
# Those that may end a sum come first, in the order in which they are listed to users.
_ROWS: Final = (
    ScalarFunction("relu", {REALS: OWN, INTEGERS: "ps_@_max({0}, 0)"}, lambda x: np.maximum(x, 0),
                   choice=("x > 0", "x", "0"), by_value=True, onnx="Relu", torch="relu",
                   notation=True, end=SumEnd(1.0, 0.0)),
    _real("gelu", lambda x: x / 2 * (1 + _erf(x / np.sqrt(2.0))), derivatives=(_GELU,),
          notation=True, end=SumEnd(1.13, _NEAR)),
    _real("gelu_tanh", _gelu_tanh, derivatives=(_GELU_TANH,), notation=True,
          end=SumEnd(1.13, _NEAR)),
    _real("sigmoid", _sigmoid, derivatives=("y * (1 - y)",), onnx="Sigmoid", torch="sigmoid",
          notation=True, end=SumEnd(0.25, 2.5 * _ULP)),
    _libm("tanh", np.tanh, "1 - square(y)", end=SumEnd(1.0, 1.4 * _ULP)),
    _real("silu", lambda x: x * _sigmoid(x), derivatives=("(s := sigmoid(x)) + x * s * (1 - s)",),
          notation=True, end=SumEnd(1.1, _NEAR)),
    _real("hard_swish", lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
          derivatives=("select(x <= -3, 0, select(x < 3, x / 3 + 0.5, 1))",),
          onnx="HardSwish", torch="hardswish", notation=True, end=SumEnd(1.5, 2 * _ULP)),
    _real("softplus", _softplus, derivatives=("sigmoid(x)",), onnx="Softplus", notation=True,
          end=SumEnd(1.0, 3 * _ULP)),
    _real("mish", lambda x: x * np.tanh(_softplus(x)),
          derivatives=("(t := tanh(softplus(x))) + x * sigmoid(x) * (1 - square(t))",),
          onnx="Mish", torch="mish", notation=True, end=SumEnd(1.1, 2 * _ULP)),
    # Arithmetic
    _infix("add", "+", np.add, derivatives=("1", "1"), onnx="Add"),
    _infix("sub", "-", np.subtract, derivatives=("1", "-1"), onnx="Sub"),
    _infix("mul", "*", np.multiply, derivatives=("b", "a"), onnx="Mul"),
    _infix("div", "/", _divide, derivatives=("1 / b", "-y / b"), onnx="Div"),
    ScalarFunction("neg", {REALS: "(-{0})", INTEGERS: OWN}, np.negative, derivatives=("-1",),
                   onnx="Neg", torch="neg"),
    ScalarFunction("pow", {"f": OWN, "d": "pow({0}, {1})", INTEGERS: OWN}, _power, 2,
                   # 0 where 0 is a power of 0, as PyTorch has it
                   ("select(b == 0, 0, b * pow(a, b - 1))",
                    "select((a == 0) and (b >= 0), 0, y * log(a))"), notation=True),
    ScalarFunction("min", {ALL: OWN}, np.minimum, 2, choice=("a <= b", "a", "b"), notation=True),
    ScalarFunction("max", {ALL: OWN}, np.maximum, 2, choice=("a >= b", "a", "b"), notation=True),
    ScalarFunction("remainder", {"f": "fmodf({0}, {1})", "d": "fmod({0}, {1})", INTEGERS: OWN},
                   np.fmod, 2, ("1", "(y - a) / b")),
    ScalarFunction("mod", {ALL: OWN}, np.mod, 2),
    ScalarFunction("abs", {"f": OWN, "d": "fabs({0})", INTEGERS: OWN}, np.abs,
                   derivatives=("sign(x)",), onnx="Abs", torch="abs", notation=True),
    ScalarFunction("sign", {ALL: OWN}, np.sign, derivatives=("0",), onnx="Sign", torch="sign",
                   notation=True),
    ScalarFunction("square", {ALL: OWN}, np.square, derivatives=("2 * x",), notation=True),
    ScalarFunction("cube", {ALL: OWN}, lambda x: x**3, derivatives=("3 * square(x)",)),
    _real("reciprocal", np.reciprocal, derivatives=("-square(y)",), onnx="Reciprocal",
          torch="reciprocal", notation=True),
    ScalarFunction("philox", {"u": OWN}, arguments=3),
    # Functions of math.h
    _libm("exp", np.exp, "y"),
    _libm("log", np.log, "1 / x"),
    _libm("sqrt", np.sqrt, "0.5 / y"),
    _libm("sin", np.sin, "cos(x)"),
    _libm("cos", np.cos, "-sin(x)"),
    _libm("tan", np.tan, "1 + square(y)"),
    _libm("asin", np.arcsin, "1 / sqrt(1 - square(x))"),
    _libm("acos", np.arccos, "-1 / sqrt(1 - square(x))"),
    _libm("atan", np.arctan, "1 / (1 + square(x))"),
    _libm("sinh", np.sinh, "cosh(x)"),
    _libm("cosh", np.cosh, "sinh(x)"),
    _libm("asinh", np.arcsinh, "1 / sqrt(square(x) + 1)"),
    _libm("acosh", np.arccosh, "1 / sqrt(square(x) - 1)"),
    _libm("atanh", np.arctanh, "1 / (1 - square(x))"),
    _libm("erf", _erf, "1.1283791670955126 * exp(-square(x))"),  # 2 / sqrt(pi)
    _libm("floor", np.floor, "0"),
    _libm("ceil", np.ceil, "0"),
    _libm("rint", np.rint, "0", onnx="Round", torch=""),
    # Activations that end no sum
    _real("softsign", lambda x: x / (1 + np.abs(x)), derivatives=("1 / square(1 + abs(x))",),
          onnx="Softsign", notation=True),
    _real("leaky", lambda x, alpha: np.where(x < 0, alpha * x, x), arguments=2,
          derivatives=("select(x > 0, 1, alpha)",), onnx="LeakyRelu",
          parameters=MappingProxyType({"alpha": 0.01})),
    _real("elu", lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x), arguments=2,
          derivatives=("select(x > 0, 1, y + alpha)",), onnx="Elu", parameters=_ALPHA),
    _real("celu", lambda x, alpha: np.where(x < 0, alpha * np.expm1(x / alpha), x), arguments=2,
          derivatives=("select(x > 0, 1, y / alpha + 1)",), onnx="Celu", parameters=_ALPHA),
    _real("swish", lambda x, alpha: x * _sigmoid(alpha * x), arguments=2,
          derivatives=("(s := sigmoid(alpha * x)) + alpha * y * (1 - s)",), onnx="Swish",
          torch="silu", parameters=_ALPHA),
    _real("hard_sigmoid", lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), arguments=3,
          derivatives=("select((y > 0) and (y < 1), alpha, 0)",), onnx="HardSigmoid",
          parameters=MappingProxyType({"alpha": 0.2, "beta": 0.5})),
    # Comparisons and truths
    _comparison("equal", "==", np.equal, "Equal"),
    _comparison("not_equal", "!=", np.not_equal),
    _comparison("less", "<", np.less, "Less"),
    _comparison("less_equal", "<=", np.less_equal, "LessOrEqual"),
    _comparison("greater", ">", np.greater, "Greater"),
    _comparison("greater_equal", ">=", np.greater_equal, "GreaterOrEqual"),
    _selection("above", ">", np.greater),
    _selection("below", "<", np.less),
    _selection("not_below", ">=", np.greater_equal),
    _selection("not_above", "<=", np.less_equal),
    _predicate("and", {INTEGERS: "(({0} != 0) & ({1} != 0))"}, np.logical_and, onnx="And"),
    _predicate("or", {INTEGERS: "(({0} != 0) | ({1} != 0))"}, np.logical_or, onnx="Or"),
    _predicate("xor", {INTEGERS: "(({0} != 0) ^ ({1} != 0))"}, np.logical_xor, onnx="Xor"),
    _predicate("not", {INTEGERS: "({0} == 0)"}, np.logical_not, 1, onnx="Not"),
    _predicate("isnan", {REALS: OWN}, np.isnan, 1, "IsNaN", torch="isnan", notation=True),
    _predicate("isinf", {REALS: OWN}, np.isinf, 1, notation=True),
    ScalarFunction("select", {ALL: "({0} ? {1} : {2})"}, np.where, 3, choice=("a", "b", "c"),
                   onnx="Where"),
    # Bits
    _bits("bit_and", "({0} & {1})", np.bitwise_and),
    _bits("bit_or", "({0} | {1})", np.bitwise_or),
    _bits("bit_xor", "({0} ^ {1})", np.bitwise_xor),
    _bits("bit_not", "(~{0})", np.invert, 1),
    ScalarFunction("shift_left", {INTEGERS: OWN}, arguments=2),
    ScalarFunction("shift_right", {INTEGERS: OWN}, arguments=2),
    ScalarFunction("place", {INTEGERS: OWN}, arguments=2),
    # Conversions; half and brain round to 16 bits
    ScalarFunction("half", {"f": OWN}, lambda x: x.astype(np.float16).astype(float)),
    ScalarFunction("brain", {"f": OWN},
                   lambda x: from_bf16(to_bf16(x.astype(np.float32))).astype(float)),
    _conversion("real", REAL, lambda x: x.astype(float)),
    _conversion("exact", EXACT, lambda x: x.astype(float)),
    _conversion("whole", WHOLE, lambda x: x.astype(np.int32)),
    _conversion("long", LONG, lambda x: x.astype(np.int64)),
    _conversion("unsigned", UNSIGNED, lambda x: x.astype(np.uint64)),
    _conversion("to_whole", WHOLE, partial(_truncate, np.int32)),
    _conversion("to_long", LONG, partial(_truncate, np.int64)),
    _conversion("to_unsigned", UNSIGNED, _to_unsigned),
)  # fmt: skip
FUNCTIONS: Final[dict[str, ScalarFunction]] = {row.name: row for row in _ROWS}
# The functions that may end a sum, by name.
ACTIVATIONS: Final[Mapping[str, SumEnd]] = MappingProxyType(
    {row.name: row.end for row in _ROWS if row.end}
)
# Kind -> the function that makes a number of that kind of any other.
CONVERSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {REAL: "real", EXACT: "exact", WHOLE: "whole", LONG: "long", UNSIGNED: "unsigned"}
)


def is_predicate(name: str) -> bool:
    """Return whether the results of a function are 0 or 1, whatever it compares."""
    row = FUNCTIONS.get(name)
    return row is not None and row.result == WHOLE and name not in ("whole", "to_whole")


@cache
def template(name: str, kind: str) -> str | None:
    """Return the C text of a function for a kind of number; None where it has none."""
    row = FUNCTIONS.get(name)
    return None if row is None else row.template(kind)


def apply_numpy(name: str, *arguments: Array) -> Array:
    """Return the values of a function of arrays of float64, int64 or uint64."""
    numpy = FUNCTIONS[name].numpy
    assert numpy is not None, f"{name}: no function of NumPy"
    return np.asarray(numpy(*arguments))


def check_activation(problem: str, name: str, dtype: str) -> None:
    """Raise SpecError for an unknown function, UnsupportedError beside integers."""
    if name and name not in ACTIVATIONS:
        known = f"{', '.join(ACTIVATIONS)}{suggest(name, ACTIVATIONS)}"
        raise SpecError(f"{problem}: activation={name!r} is none of {known}")
    if name and precision_named(dtype).integer:
        raise UnsupportedError(
            f"{problem}: activation={name!r} beside dtype={dtype!r}: activations end sums of reals"
        )
