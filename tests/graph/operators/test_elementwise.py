"""Operators that treat every element alike, for ranks, broadcasts, empty tensors and types."""

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper

from polysci.errors import UnsupportedError
from polysci.graph.operators.elementwise import ROWS
from polysci.graph.passes.table import simplify
from polysci.network.prepare import prepare
from tests.support.networks import read
from tests.support.nodecases import Case, faults, model_of

pytestmark = pytest.mark.sampled

REALS = ("float32", "float64")
WHOLES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
SHAPES = ((), (7,), (2, 3), (2, 0, 3), (2, 3, 4, 5))
PAIRS = (((), ()), ((5,), (3, 1)), ((2, 3, 4), (1,)), ((2, 1, 4), (3, 1)), ((0, 3), (3,)),
         ((1, 3, 4, 5), (3, 1, 5)))  # fmt: skip
SPECIAL = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, 100, -100, np.inf, -np.inf, np.nan])


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Reals around 0; whole numbers of all sizes, the ends of their range among them."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in REALS:
        return random.normal(scale=3, size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    low = -9 if limits.min else 0
    values = random.integers(low, 10, shape).astype(dtype)
    wide = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    ends = random.choice(np.array([limits.min, limits.max, 0, 1], dtype), shape)
    wide = np.where(random.random(shape) < 0.5, wide, ends)
    return np.where(random.random(shape) < 0.5, values, wide)


# Operator -> attributes to try.
REAL_UNARY = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Erf", "Sqrt", "Exp", "Log", "Neg", "Abs",
                     "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Softplus", "Softsign",
                     "Mish", "IsNaN", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh",
                     "Cosh", "Asinh", "Acosh", "Atanh", "HardSwish"), ({},)),
    "LeakyRelu": ({}, {"alpha": -0.5}), "HardSigmoid": ({}, {"alpha": 0.5, "beta": 0.1}),
    "Elu": ({}, {"alpha": 0.3}), "Celu": ({}, {"alpha": 2.0}),
    "Selu": ({}, {"alpha": 2.0, "gamma": 0.5}),
    "Swish": ({}, {"alpha": 0.7}), "Gelu": ({}, {"approximate": "tanh"}),
}  # fmt: skip
WHOLE_UNARY = ("Abs", "Neg", "Sign", "BitwiseNot")
LIMITED = ("Softsign", "Swish", "Mish", "HardSwish", "Gelu")  # whose reference makes NaN of limits


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", REALS)
def test_functions_of_a_real_tensor(dtype: str) -> None:
    cases = [
        Case(op, (numbers(shape, dtype),), words)
        for op, (words, *_) in REAL_UNARY.items() for shape in SHAPES[:: 1 if op == "Exp" else 2]
        if dtype == "float32" or op != "Celu"
    ]  # fmt: skip
    cases += [
        Case(op, (np.array(SPECIAL[: 10 if op in LIMITED else None], dtype),), words)
        for op, every in REAL_UNARY.items() for words in every
        if dtype == "float32" or op != "Celu"
    ]  # fmt: skip
    assert not faults(cases, 24)


def test_functions_of_a_tensor_of_whole_numbers() -> None:
    cases = [
        Case(op, (numbers((3, 5), dtype),)) for op in WHOLE_UNARY for dtype in WHOLES
        if op != "Neg" or not dtype.startswith("u")
    ]  # fmt: skip
    cases += [Case("Not", (numbers(shape, "bool"),)) for shape in SHAPES]
    cases += [Case("Relu", (numbers((9,), dtype),)) for dtype in ("int8", "int32", "int64")]
    assert not faults(cases, 18)


ARITHMETIC = ("Add", "Sub", "Mul", "Div")
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint64"])
def test_functions_of_two_tensors_that_broadcast(dtype: str) -> None:
    cases = [
        Case(op, (numbers(a, dtype, 1), numbers(b, dtype, 2)))
        for op in (*ARITHMETIC, *COMPARISONS, "Min", "Max") for a, b in PAIRS[:: 1 + (op != "Less")]
        if op != "Div" or dtype in REALS
    ]  # fmt: skip
    cases += [Case(op, (numbers((4, 5), dtype), numbers((1,), dtype, 3)), {}, (1,))
              for op in (*COMPARISONS, "Max")]  # fmt: skip
    if dtype in REALS:
        left, right = (np.array(x, dtype) for x in zip(*product(SPECIAL, SPECIAL), strict=True))
        cases += [Case(op, (left, right)) for op in (*COMPARISONS, "Min", "Max", "Pow")]
        cases += [Case("Mod", (left, right), {"fmod": 1})]
    assert not faults(cases, 18)


@pytest.mark.exhaustive
def test_logic_and_bits() -> None:
    cases = [Case(op, (numbers(a, "bool", 1), numbers(b, "bool", 2)))
             for op in ("And", "Or", "Xor", "Equal") for a, b in PAIRS]  # fmt: skip
    cases += [Case(op, (numbers((3, 5), dtype, 1), numbers((5,), dtype, 2)))
              for op in (*BITWISE, *ARITHMETIC[:3], *COMPARISONS[:2], "Min", "Max")
              for dtype in WHOLES]  # fmt: skip
    for dtype in ("uint8", "uint16", "uint32", "uint64"):
        by = np.arange(70).astype(dtype)
        x = numbers(by.shape, dtype)
        cases += [Case("BitShift", (x, by), {"direction": to}) for to in ("LEFT", "RIGHT")]
    assert not faults(cases, 26)


def quotients(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every two of some whole numbers, the ends of the range and 0 among them."""
    limits = np.iinfo(dtype)
    some = [
        limits.min,
        limits.min + 1,
        limits.max,
        0,
        1,
        2,
        3,
        7,
        *([-1, -2, -7] if limits.min else []),
    ]
    left, right = (np.array(x, dtype) for x in zip(*product(some, some), strict=True))
    return left, right


@pytest.mark.parametrize("op", ["Div", "Mod", "fmod"])
def test_division_of_whole_numbers_rounds_and_wraps_and_survives_0(op: str) -> None:
    """0 for what has no quotient or rest; the smallest number by -1 is itself."""
    cases = []
    for dtype in WHOLES:
        x, y = quotients(dtype)
        with np.errstate(all="ignore"):
            exact = {"Mod": np.mod, "fmod": np.fmod}.get(op, truncating)(x, y)
        words = {"Div": {}, "Mod": {}, "fmod": {"fmod": 1}}[op]
        cases.append(Case("Mod" if op == "fmod" else op, (x, y), words, exact=exact))
    assert not faults(cases, 14)


def truncating(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Python's whole numbers, rounded towards zero and wrapped."""
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    exact = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0 for a, b in pairs]
    return np.array([number % 2 ** (8 * x.itemsize) for number in exact], np.uint64).astype(x.dtype)


def test_powers_of_all_mixtures_of_types() -> None:
    cases = []
    for left, right in product(
        ("float32", "float64", "int32", "int64"), (*REALS, "int32", "int64", "uint64")
    ):
        x = np.array([0.5, 1, 2, 3, 5, 7] if left in REALS else [0, 1, 2, -3, 5, 7], left)
        y = np.array([2, 0, 3, 3, 1, 4], right)
        cases.append(Case("Pow", (x, y)))
    for dtype, exponent in product(("float32", "float64", "int32"), (2, 3, 0.5, -1, 1.5, 0)):
        x = numbers((3, 4), dtype) % 50
        kind = dtype if dtype in REALS or exponent % 1 else "int64"
        if dtype != "int32" or exponent in (2, 3, 0):
            cases.append(Case("Pow", (x, np.array(exponent, kind)), {}, (1,)))
    assert not faults(cases, 15)


def test_negative_powers_of_whole_numbers() -> None:
    x, y = np.array([0, 1, -1, -1, 2, -7], np.int32), np.array([-1, -2, -2, -3, -1, -2], np.int32)
    exact = np.array([0, 1, 1, -1, 0, 0], np.int32)
    assert not faults([Case("Pow", (x, y), exact=exact)], 15)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Min", "Max"])
def test_functions_of_many_tensors(op: str) -> None:
    shapes = ((2, 3), (3,), (), (2, 1))
    cases = [Case(op, tuple(numbers(shapes[at % 4], dtype, at) for at in range(count)))
             for dtype in REALS for count in (1, 2, 3, 40)]  # fmt: skip
    cases += [Case(op, (numbers((0, 3), "float32"), numbers((3,), "float32")))]
    assert not faults(cases, 13)


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int8", "uint8", "int32", "int64", "uint64"]
)
def test_clip(dtype: str) -> None:
    x, low, high = numbers((3, 4), dtype), np.array(2, dtype), np.array(5, dtype)
    cases = [Case("Clip", (x, *ends), {}, fixed) for ends in ((low, high), (low,), (None, high))
             for fixed in ((), (1, 2))]  # fmt: skip
    assert not faults(cases, 13)


def test_in_bf16_with_threads() -> None:
    cases = [Case(op, (numbers((2, 3, 4, 5), "float32", 1), numbers((3, 4, 1), "float32", 2)))
             for op in ("Add", "Max", "Less", "Equal")]  # fmt: skip
    cases += [Case(op, (numbers((2, 3, 4, 5), "float32"),)) for op in ("Softplus", "Elu", "IsNaN")]
    assert not faults(cases, 17, dtype="bf16", threads=2)


@pytest.mark.parametrize("op", ["Exp", "Add", "Less", "Clip", "Mod", "Pow"])
def test_types_without_the_function_are_refused(op: str) -> None:
    x = np.zeros(3, helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    case = Case(op, (x, x) if op in ("Add", "Less", "Mod", "Pow") else (x,))
    with pytest.raises(UnsupportedError, match="elements of bfloat16"):
        prepare(simplify(read(model_of([case], 18))))


def test_every_operator_is_tried() -> None:
    tried = {*REAL_UNARY, *WHOLE_UNARY, *ARITHMETIC, *COMPARISONS, *BITWISE}
    tried |= {
        "Not",
        "And",
        "Or",
        "Xor",
        "Min",
        "Max",
        "Sum",
        "Mean",
        "Pow",
        "Mod",
        "BitShift",
        "Clip",
    }
    elsewhere = {"Identity", "Dropout", "Cast", "CastLike"}  # and in test_choices.py
    elsewhere |= {"If", "Where", "PRelu", "ThresholdedRelu", "Shrink", "IsInf"}
    assert tried | elsewhere == {row.onnx for row in ROWS if row.onnx}
