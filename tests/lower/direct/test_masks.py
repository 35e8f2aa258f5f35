"""A bit a result: what a gate closes, which results a mask says are above 0, no byte beside."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.lower.algorithm import EmitOptions
from polysci.lower.direct.extras import Extras
from polysci.measure.guard_pages import Guarded
from polysci.measure.integer_reference import Arrays
from polysci.numerics import arrays as aligned
from polysci.numerics.dtypes import values
from polysci.ops import parse_problem
from polysci.polyhedral.schedule import Schedule
from polysci.runtime.backend import CPU
from polysci.runtime.binary_interface import bind
from polysci.target.host import detect

# Problem, dtype, loops and kernel: whole tiles and tails of rows and columns, blocks of the
# reduction, rows of two image rows, results of 16 bits, residue classes.
CASES = {
    "one vector": ("mb2ic5ih7oc24kh3ph1", "f32", "n* k:8 p q:4", "brgemm_{}_f32_4x8"),
    "tails": ("mb1ic9ih9oc40kh3ph1", "f32", "k:16* c:4 p q:5", "brgemm_{}_f32_6x16"),
    "rows of an image": ("mb2ic16ih7oc16kh1", "f32", "n* k:8 p:2 q:2 c:8", "brgemm_{}_f32_4x8"),
    "product": ("mm:37x19x56", "f32", "i:3* j:16 k:5", "brgemm_{}_f32_3x16"),
    "narrow results": ("mb1ic5ih6oc24kh3ph1", "bf16", "k:8* p q:4", "brgemm_{}_f32_4x8"),
    "residue classes": ("bwd_d mb2ic24ih9oc5kh3ph1sh2", "f32", "n* residues(2,2) c:8 h w:3",
                        "brgemm_{}_f32_3x8"),
    "point": ("bwd_d mb2ic16ih8oc8kh1sh2", "f32", "n* residues(2,2) c:8 h w:4",
              "brgemm_{}_f32_4x8"),
}  # fmt: skip

RELU = np.array([0, np.inf], np.float32)


def masked(text: str, dtype: str, loops: str, kernel: str, isa: str, threads: int) -> list[str]:
    """What is wrong with results and bits, each operand beside a guard page."""
    problem = parse_problem(text, "" if text.startswith("mm") else "nhwc", dtype)
    schedule = Schedule.parse(f"{loops} > {kernel.format(isa)}")
    source = CPU.emit(problem, schedule, threads, EmitOptions(extras=Extras(masked=True)))
    library = CPU.load(CPU.build(source.file), source.declarations)
    functions = bind(library, source.symbol)
    data = Arrays.of(problem, 1)
    kinds = {name: getattr(source.precision, name).c_type for name in "xwy"}
    cast = library.ffi.cast
    count = data.fused.size
    faults = list[str]()
    packed = aligned.empty((functions.packed_size,), dtype=np.dtype(np.uint8))
    work = aligned.empty((functions.workspace_size + 1,), dtype=np.dtype(np.uint8))

    def address(array: np.ndarray, kind: str) -> object:
        return cast(f"{kind} *", array.ctypes.data)

    functions.pack(address(data.inputs["w"], kinds["w"]), cast("void *", packed.ctypes.data))
    bits = np.random.default_rng(2).integers(0, 256, count // 8, np.uint8)
    for side in ("start", "end"):
        for gated, clamped in ((True, False), (False, True), (True, True)):
            y = Guarded(data.fused.nbytes, side)  # type: ignore[arg-type]
            gate, mask = (Guarded(count // 8, side, 1) for _ in range(2))  # type: ignore[arg-type]
            gate.raw[:], mask.raw[:], y.raw[:] = bits, 0xA5, 0xFF
            gate.freeze()
            status = functions.run(
                address(data.inputs["x"], kinds["x"]), cast("void *", packed.ctypes.data),
                address(y.raw, kinds["y"]), address(data.inputs["bias"], "float"),
                address(data.inputs["residual"], kinds["y"]),
                cast("float *", aligned.copy(RELU).ctypes.data) if clamped else library.ffi.NULL,
                address(gate.raw, "uint8_t") if gated else library.ffi.NULL,
                address(mask.raw, "uint8_t") if clamped else library.ffi.NULL,
                cast("void *", work.ctypes.data),
            )  # fmt: skip
            reals = {
                name: values(array, getattr(source.precision, name, source.precision.y))
                for name, array in data.inputs.items()
                if name in ("x", "w", "residual")
            }
            want = problem.reference(
                reals["x"].astype(np.float64), reals["w"].astype(np.float64),
                data.inputs["bias"].astype(np.float64), reals["residual"].astype(np.float64),
            )  # fmt: skip
            if gated:
                kept = np.unpackbits(bits, bitorder="little").reshape(want.shape)
                want = np.where(kept, want, 0)
            if clamped:
                want = np.maximum(want, 0)
                got = np.unpackbits(mask.raw, bitorder="little").reshape(want.shape)
                faults += ["bits of the mask"] * (not np.array_equal(got, want > 0))
            else:
                faults += ["a mask nobody asked for"] * bool((mask.raw != 0xA5).any())
            stored = values(y.raw.view(data.fused.dtype), source.precision.y).reshape(want.shape)
            faults += ["results"] * (not np.array_equal(stored, want)) + ["status"] * bool(status)
            faults += [place for it in (y, gate, mask) if (place := it.first_trespass())]
    return faults


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_exact_and_stay_inside_their_bytes(name: str, isa: str) -> None:
    if detect().refusal(isa):
        pytest.skip(f"this CPU lacks {isa}")
    text, dtype, loops, kernel = CASES[name]
    if isa == "portable":  # which has no tiles of 16 columns
        loops, kernel = loops.replace(":16", ":8"), kernel.replace("x16", "x8")
    threads = 1 + ("*" in loops)
    assert masked(text, dtype, loops, kernel, isa, threads) == []


@pytest.mark.parametrize(
    ("text", "layout", "schedule"),
    [
        ("mb1ic4ih6oc12kh3ph1", "nhwc", "k:8 p q:4 > brgemm_avx2_f32_4x8"),
        ("mb1ic4ih6oc16kh3ph1", "nchw", "k:8 p q:4 > brgemm_avx2_f32_4x8"),
        ("mb1ic4ih6oc16kh3ph1", "nhwc", "k:4 p q:4 > brgemm_portable_f32_4x4"),
        ("mm:24x96x16", "", "private(C) k:32* i:4 j:8 > brgemm_portable_f32_4x8"),
        ("mb1ic4ih6oc16kh3ph1", "nhwc", "winograd(2) k:8 > brgemm_portable_f32_4x8"),
    ],
)
def test_tiles_that_share_bytes_are_refused(text: str, layout: str, schedule: str) -> None:
    problem = parse_problem(text, layout)
    with pytest.raises(UnsupportedError, match="mask"):
        CPU.emit(problem, Schedule.parse(schedule), 1, EmitOptions(extras=Extras(masked=True)))
