"""Columns that up to half of an AVX-512 vector holds: exact, and no byte beside y is touched."""

import numpy as np
import pytest

from polysci.measure.integer_reference import Arrays
from polysci.measure.operands import Guarded
from polysci.numerics import arrays as aligned
from polysci.ops import parse_problem
from polysci.printers.headers import headers
from polysci.runtime.backend import bind
from polysci.runtime.backends import BACKENDS
from polysci.runtime.source import emit
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.microkernels import HeaderSet

HALF = "#define ps_run ps_half_run"
CASES = {
    "half a vector": ("mm:30x7x8 b=constant", "i:28 > brgemm_avx512_f32_28x16"),
    "one column": ("mm:30x7x1 b=constant", "i:28 > brgemm_avx512_f32_28x16"),
    "one more": ("mm:15x7x25 b=constant", "i:14 > brgemm_avx512_f32_14x32"),
    "behind a whole one": ("mm:15x7x24 b=constant", "i:14 > brgemm_avx512_f32_14x32"),
    "padding": ("mb1ic5ih6oc24kh3ph1", "p q:6 > brgemm_avx512_f32_6x32"),
    "with prefetches": ("mm:16x64x40 b=constant", "j:16 i:8 ahead(B) > brgemm_avx512_f32_8x16"),
}


def test_half_vectors_are_of_avx512_alone() -> None:
    assert HALF in headers(HeaderSet("avx512")) and HALF in headers(HeaderSet("avx512vnni"))
    assert HALF not in headers(HeaderSet("avx2")) + headers(HeaderSet("avx512bf16", "bf16", "bf16"))


@pytest.mark.parametrize("name", CASES)
def test_products_of_few_columns_are_exact(name: str) -> None:
    if detect().refusal("avx512"):
        pytest.skip("this CPU lacks avx512")
    text, schedule = CASES[name]
    problem = parse_problem(text, "nhwc" if "kh" in text else "")
    source = emit(problem, Schedule.parse(schedule), 1)
    library = BACKENDS["host"].load(BACKENDS["host"].build(source.file), source.declarations)
    functions, data, cast = bind(library, source.symbol), Arrays.of(problem, 1), library.ffi.cast
    work, packed = (
        aligned.empty((size + 1,), dtype=np.dtype(np.uint8))
        for size in (functions.workspace_size, functions.packed_size)
    )
    x, w = (data.inputs[operand] for operand in "xw")
    functions.pack(cast("float *", w.ctypes.data), cast("void *", packed.ctypes.data))
    exact = problem.reference(x.astype(np.float64), w.astype(np.float64))
    for side in ("start", "end"):
        y = Guarded(4 * exact.size, side)  # type: ignore[arg-type]
        status = functions.run(
            cast("float *", x.ctypes.data), cast("void *", packed.ctypes.data),
            cast("float *", y.raw.ctypes.data), library.ffi.NULL, library.ffi.NULL,
            library.ffi.NULL, cast("void *", work.ctypes.data),
        )  # fmt: skip
        assert status == 0 and not y.first_trespass()
        assert np.array_equal(y.raw.view(np.float32).reshape(exact.shape), exact)
