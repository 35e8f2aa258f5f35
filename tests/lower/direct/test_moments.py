"""Moments of results: as float64 has them, within the bound, and no float beside them."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.extras import PLANES, Extras, MomentRows
from polysci.measure.error_bound import gamma
from polysci.measure.guard_pages import Guarded
from polysci.measure.integer_reference import Arrays
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import values
from polysci.ops import parse_problem
from polysci.polyhedral.schedule import Schedule
from polysci.runtime.backend import CPU
from polysci.runtime.binary_interface import bind
from polysci.target.host import detect

# Problem, layout, dtype, schedule; rows of moments a thread.
CASES = {
    "one vector": ("mb2ic5ih7oc8kh3ph1", "nhwc", "f32", "n* k:8 p q:4 > brgemm_{}_f32_4x8", 1),
    "images": ("mb5ic5ih7oc8kh3ph1", "nhwc", "f32", "p:3* k:8 n p q:4 > brgemm_{}_f32_4x8", 3),
    "tails": ("mb1ic9ih9oc43kh3ph1", "nhwc", "f32", "k:16* c:4 p q:5 > brgemm_{}_f32_6x16", 1),
    "channels apart": ("mb2ic6ih7oc12kh3ph1", "nchw", "f32", "n* k:8 p q:4 > brgemm_{}_f32_4x8", 1),
    "rows of an image": ("mb2ic16ih7oc16kh1", "nhwc", "f32",
                         "n* k:8 p:2 q:2 c:8 > brgemm_{}_f32_4x8", 2),
    "a curve": ("mm:40x19x37", "", "f32", "hilbert(C) i:8* j:16* i:4 j:8 > brgemm_{}_f32_4x8", 2),
    "product": ("mm:37x19x21", "", "f32", "i:3* j:16 k:5 > brgemm_{}_f32_3x16", 1),
    "groups": ("g3mb2ic12ih6oc24kh3ph1", "nhwc", "f32", "n* g k:8 p q:4 > brgemm_{}_f32_4x8", 1),
    "narrow results": ("mb2ic5ih6oc20kh3ph1", "nhwc", "bf16",
                       "k:8* n p q:4 > brgemm_{}_f32_4x8", 1),
}  # fmt: skip
LARGE = 2**16  # a mean beside which deviations are small


def moments(name: str, isa: str, offset: int, side: str, clamp: bool) -> tuple[np.ndarray, ...]:
    """Results by channel in float64, as they were before rounding, and what the code says of them.

    Count, mean and sum of squares around it; all of them beside guard pages.
    """
    text, layout, dtype, schedule, rows = CASES[name]
    if isa == "portable":  # which has no tiles of 16 columns
        schedule = schedule.replace(":16", ":8").replace("x16", "x8")
    problem = parse_problem(text, layout, dtype)
    threads = 1 + ("*" in schedule)
    channels = problem.y_shape[problem.bias_axis]
    size = -(-int(np.prod(problem.y_shape)) // problem.y_shape[0]) * -(-problem.y_shape[0] // rows)
    extras = Extras(moments=MomentRows(threads * rows, channels, size))
    source = CPU.emit(
        problem, Schedule.parse(schedule.format(isa)), threads, EmitOptions(extras=extras)
    )
    library = CPU.load(CPU.build(source.file), source.declarations)
    functions, data, cast = bind(library, source.symbol), Arrays.of(problem, 1), library.ffi.cast
    kinds = {name: getattr(source.precision, name).c_type for name in "xwy"}
    packed = aligned.empty((functions.packed_size,), dtype=np.dtype(np.uint8))
    work = aligned.empty((functions.workspace_size + 1,), dtype=np.dtype(np.uint8))

    def address(array: np.ndarray, kind: str) -> object:
        return cast(f"{kind} *", array.ctypes.data)

    functions.pack(address(data.inputs["w"], kinds["w"]), cast("void *", packed.ctypes.data))
    y = Guarded(data.fused.nbytes, side)  # type: ignore[arg-type]
    made = Guarded(4 * threads * rows * PLANES * channels, side)  # type: ignore[arg-type]
    made.raw[:] = 0xFF
    bias, bounds = data.inputs["bias"] + np.float32(offset), np.array([offset, np.inf], np.float32)
    status = functions.run(
        address(data.inputs["x"], kinds["x"]), cast("void *", packed.ctypes.data),
        address(y.raw, kinds["y"]), address(bias, "float"),
        address(data.inputs["residual"], kinds["y"]),
        address(bounds, "float") if clamp else library.ffi.NULL, address(made.raw, "float"),
        cast("void *", work.ctypes.data),
    )  # fmt: skip
    assert status == 0 and y.first_trespass() is None and made.first_trespass() is None
    stored = {"x": source.precision.x, "w": source.precision.w, "residual": source.precision.y}
    x, w, residual = (values(data.inputs[it], kind).astype(float) for it, kind in stored.items())
    results = problem.reference(x, w, bias.astype(float), residual)
    results = np.maximum(results, offset) if clamp else results
    if dtype == "f32":
        assert np.array_equal(
            values(y.raw.view(data.fused.dtype), source.precision.y), results.ravel()
        )
    count, minus, sums, squares = (
        made.array.astype(float).reshape(-1, PLANES, channels).transpose(1, 0, 2)
    )
    total = count.sum(axis=0)
    mean = (sums - count * minus).sum(axis=0) / total
    apart = minus + mean
    squares = (squares - 2 * apart * sums + count * apart**2).sum(axis=0)
    by_channel = np.moveaxis(results, problem.bias_axis, -1).reshape(-1, channels)
    return by_channel, total, mean, squares


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_moments_are_within_the_bound_and_stay_inside_their_rows(name: str, isa: str) -> None:
    if detect().refusal(isa):
        pytest.skip(f"this CPU lacks {isa}")
    for side, offset, clamp in (("start", 0, False), ("end", LARGE, False), ("end", 0, True)):
        y, count, mean, squares = moments(name, isa, offset, side, clamp)
        assert (count == len(y)).all()
        wanted = y.mean(axis=0)
        exact = ((y - wanted) ** 2).sum(axis=0)
        # A difference from a number near the results is at most their range, and rounded once, its
        # square once more; a sum of some adds as many roundings as there are results at most.
        wide, joined = np.ptp(y, axis=0), gamma(len(y) + 2)
        assert (abs(mean - wanted) <= joined * wide).all()
        assert (abs(squares - exact) <= 4 * joined * len(y) * wide**2).all()
        assert (abs(squares - exact) <= 1e-5 * exact).all()  # the usual case


@pytest.mark.parametrize(
    ("text", "layout", "schedule"),
    [
        ("mm:24x96x16", "", "private(C) k:32* i:4 j:8 > brgemm_portable_f32_4x8"),
        ("mb2ic40ih2oc11kh1", "nchw", "swap(A,B) n c:20 k:4 > brgemm_portable_f32_4x8"),
        ("mb1ic4ih6oc16kh3ph1", "nhwc", "winograd(2) k:8 > brgemm_portable_f32_4x8"),
        (
            "bwd_d mb1ic8ih8oc4kh3ph1sh2",
            "nhwc",
            "residues(2,2) c:8 h w:4 > brgemm_portable_f32_4x8",
        ),
    ],
)
def test_other_code_is_refused(text: str, layout: str, schedule: str) -> None:
    problem = parse_problem(text, layout)
    extras = Extras(moments=MomentRows(1, 16, 10**6))
    with pytest.raises(UnsupportedError, match="moments"):
        CPU.emit(problem, Schedule.parse(schedule), 1, EmitOptions(extras=extras))
