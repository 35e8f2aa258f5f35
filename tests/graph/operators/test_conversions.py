"""Cast and CastLike between all element types."""

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.nodecases import Case, faults

REALS = ("float32", "float64")
WHOLES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
TYPES = (*REALS, *WHOLES, "bool")


def kind(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def values(dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.array([True, False])
    if dtype in REALS:
        return np.array([0, -0.0, 0.6, 1.5, 2.5, 17, 99.9], dtype)
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0, 1, 2, 100, limits.max // 3], dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", ["Cast", "CastLike"])
def test_numbers_of_one_type_as_those_of_another(op: str) -> None:
    cases = []
    for source, target in product(TYPES, TYPES):
        x, like = values(source), np.zeros(1, target)
        with np.errstate(all="ignore"):
            exact = x.astype(target)
        if op == "Cast":
            cases.append(Case(op, (x,), {"to": kind(target)}, exact=exact))
        else:
            cases.append(Case(op, (x, like), exact=exact))
    assert not faults(cases, 15)


def test_real_numbers_that_a_type_lacks() -> None:
    """Negative ones wrap as whole numbers do; what 32 or 64 bits lack saturates; a NaN is 0."""
    x = np.array([-1, -1.9, 300, -129, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
    low, high = -(2**31), 2**31 - 1
    wide = np.array([-1, -1, 300, -129, high, low, high, low, high, low, 0])
    long = [-1, -1, 300, -129, 3 * 10**9, -3 * 10**9, *[2**63 - 1, -(2**63)] * 2, 0]
    far = [*(value % 2**64 for value in long[:6]), *[2**64 - 1, 2**63] * 2, 0]
    exact = {
        "int32": wide.astype(np.int32),
        "int8": wide.astype(np.int8),
        "uint8": wide.astype(np.uint8),
        "int64": np.array(long, np.int64),
        "uint32": np.array(long, np.int64).astype(np.uint32),
        "uint64": np.array(far, np.uint64),
        "bool": np.ones(11, bool),
    }
    cases = [
        Case("Cast", (x.astype(source),), {"to": kind(target)}, exact=result)
        for source, (target, result) in product(REALS, exact.items())
    ]
    assert not faults(cases, 13)


def test_shapes_and_constants() -> None:
    shapes = ((), (0, 3), (2, 3, 4, 5))
    cases = [
        Case("Cast", (np.ones(shape, np.int64),), {"to": TensorProto.FLOAT}) for shape in shapes
    ]
    assert not faults(cases, 9)
