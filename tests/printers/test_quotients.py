"""Quotients in C are those of loop IR, whatever the signs of what is divided."""

import numpy as np
import pytest

from polysci.loop_ir.index import Variable, ceil_divide, floor_divide
from polysci.printers.c_values import text
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.target.microkernels import header

DIVIDE = "void divide(int64_t *quotients);"


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("divide", [ceil_divide, floor_divide])
def test_quotients_are_rounded_alike(divide: object, parts: int) -> None:
    assert callable(divide)
    quotient = divide(Variable("x") - 20, parts)
    code = f"""\
#define PS_TARGET
{header("prelude")}
{DIVIDE[:-1]}
{{
    for (int64_t x = 0; x < 41; ++x)
        quotients[x] = {text(quotient)};
}}
"""
    library = load(cache.build(code, symbols=("divide",)), DIVIDE)
    quotients = np.zeros(41, np.int64)
    library.lib.divide(library.ffi.cast("int64_t *", quotients.ctypes.data))
    exact = np.arange(-20, 21) / parts
    rounded = np.ceil(exact) if divide is ceil_divide else np.floor(exact)
    assert quotients.tolist() == rounded.tolist()
