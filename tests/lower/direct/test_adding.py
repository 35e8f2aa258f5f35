"""Sums added to what y holds: exact, whatever the schedule, and no byte beside y is touched."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.lower.algorithm import EmitOptions
from polysci.measure.integer_reference import Arrays
from polysci.measure.operands import Guarded
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import values
from polysci.ops import parse_problem
from polysci.printers.c_values import c_type
from polysci.runtime.backend import bind
from polysci.runtime.backends import BACKENDS
from polysci.runtime.source import emit
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.microkernels import find

CASES = {
    "one call": ("mm:37x19x56 ta", "f32", "i:4* j:8 > brgemm_{}_f32_4x8"),
    "blocks of the reduction": ("mm:37x19x59 ta", "f32", "j:8* k:5 i:3 > brgemm_{}_f32_3x8"),
    "packed factors": ("mm:24x40x16 tb", "f32", "pack(A) k:16 j:8 pack(B) i:4 > brgemm_{}_f32_4x8"),
    "factors as they lie": ("mm:3x19x40", "f32", "plain(B) j:8 > brgemm_{}_f32_3x8"),
    "private copies": ("mm:24x96x16 ta", "f32", "private(C) k:32* i:4 j:8 > brgemm_{}_f32_4x8"),
    "words of groups": (
        "g10mb1ic40ih4oc40kh3ph1", "bf16:bf16:f32", "p g:8 > grouped4_avx512bf16_bf16_4x32",
    ),
    "narrow factors": ("mm:24x20x16 ta", "bf16:bf16:f32", "k:8 i:4 j:8 > brgemm_{}_f32_4x8"),
}  # fmt: skip


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_sums_are_added_exactly(name: str, isa: str) -> None:
    text, dtype, loops = CASES[name]
    problem, schedule = parse_problem(text, "", dtype), Schedule.parse(loops.format(isa))
    if detect().refusal(own := find(schedule.kernel).isa):
        pytest.skip(f"this CPU lacks {own}")
    source = emit(problem, schedule, 1 + ("*" in loops), EmitOptions(adds=True))
    library = BACKENDS["host"].load(BACKENDS["host"].build(source.file), source.declarations)
    functions, data, cast = bind(library, source.symbol), Arrays.of(problem, 1), library.ffi.cast
    work = aligned.empty((functions.workspace_size + 1,), dtype=np.dtype(np.uint8))
    x, w = (data.inputs[operand] for operand in "xw")
    kinds = {operand: f"{c_type(getattr(source.precision, operand).stored)} *" for operand in "xy"}
    first = data.inputs["residual"]
    exact = problem.reference(
        *(values(it, source.precision.x).astype(np.float64) for it in (x, w)), None,
        first.astype(np.float64),
    )  # fmt: skip
    for side in ("start", "end"):
        y = Guarded(first.nbytes, side)  # type: ignore[arg-type]
        y.raw[:] = first.reshape(-1).view(np.uint8)
        place = cast(kinds["y"], y.raw.ctypes.data)
        status = functions.run(
            cast(kinds["x"], x.ctypes.data), cast("void *", w.ctypes.data), place,
            library.ffi.NULL, place, library.ffi.NULL, cast("void *", work.ctypes.data),
        )  # fmt: skip
        assert status == 0 and not y.first_trespass()
        assert np.array_equal(y.raw.view(first.dtype).reshape(exact.shape), exact)


@pytest.mark.parametrize("text", ["mm:8x8x8 ta alpha=2", "mm:8x8x8 ta beta=0.5"])
def test_other_sums_than_y_holds_are_refused(text: str) -> None:
    problem, schedule = parse_problem(text, ""), Schedule.parse("i:4 j:8 > brgemm_portable_f32_4x8")
    with pytest.raises(UnsupportedError, match="y holds no sums to add to"):
        emit(problem, schedule, 1, EmitOptions(adds=True))
