"""Packed weights are determined by the weights alone: packing writes every byte of its memory."""

import numpy as np
import pytest

from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops import parse_problem
from polysci.ops.problem import Problem
from polysci.printers.interface import STRUCT
from polysci.runtime.build.library import load
from polysci.space.schedule import Schedule, parse
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.judge import build

# Ragged panels, words that end inside a run, all kinds of groups, offsets after panels that end
# inside a line, products in batches.
PROBLEMS = [
    "mb1ic5ih6iw7oc17kh3kw3ph1pw1",
    "mb1ic3ih9oc20kh5sh2ph2",
    "g8mb1ic32ih6oc32kh3ph1",
    "g5mb1ic10ih6oc15kh3ph1",
    "g20mb1ic20ih7oc20kh3ph1",
    "mm:3:4x9x35 b=constant",
    "mm:5x7x9 tb b=constant",
    "mm:2:5x13x3 a=constant",
]
ISAS = [isa.name for isa in detect().allowed]


def packed(problem: Problem, schedule: Schedule, filling: int) -> bytes:
    """All bytes that a call reads of packed weights, in memory that held something else before."""
    source = emit(problem, schedule, 1, EmitOptions("packed"))
    types = STRUCT * source.precision.scaled
    library = load(build([source]), types + source.declarations)
    arrays = Arrays.of(problem, 0)
    room = np.full(source.packed + 128, filling, np.uint8)
    start = -room.ctypes.data % 64
    w, to = (
        library.ffi.cast(kind, at)
        for kind, at in (
            ("void *", arrays.inputs["w"].ctypes.data), ("void *", room.ctypes.data + start),
        )
    )  # fmt: skip
    zero = [] if arrays.x_zero is None else [arrays.x_zero]
    library.lib.packed_pack_weights(w, to, *zero)
    behind = room[start + source.packed :]
    assert (behind == filling).all(), "packing wrote behind its memory"
    return room[start : start + source.packed].tobytes()


def unwritten(problem: Problem, schedule: Schedule) -> str:
    """Which bytes packing left as they were."""
    first, second = (np.frombuffer(packed(problem, schedule, it), np.uint8) for it in (0, 255))
    places = np.flatnonzero(first != second)
    return f"{places.size} of {first.size} from {places[0]} on" if places.size else ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_random_schedules(dtype: str, isa: str) -> None:
    seed = list(PRECISIONS).index(dtype) + ISAS.index(isa)
    for index in range(2):
        problem = parse_problem(PROBLEMS[(2 * seed + index) % len(PROBLEMS)], dtype=dtype)
        context = samples.fixed_context(problem, 1, detect(isa))
        for plan in samples.members(context, 2, seed):
            assert unwritten(problem, plan) == "", f"{problem} {dtype} {plan}"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("mb1ic5ih11oc7kh3ph1", "winograd(2) > brgemm_portable_f32_4x8"),
        ("mb1ic5ih11oc7kh3ph1", "t:4 winograd(4) k:8 > brgemm_portable_f32_3x8"),
        ("mm:5x7x30 b=constant", "i:2 j:8 bilinear(2,2,2) k:3 j:4 > brgemm_portable_f32_2x4"),
        ("bwd_d mb2ic5ih9oc6kh3sh2ph1", "n residues(2,2) h w:4 > brgemm_portable_f32_4x8"),
        ("bwd_d mb2ic5ih9oc3kh2sh2ph1", "residues(2,2) n h w:4 > brgemm_portable_f32_4x8"),
    ],
)
def test_other_algorithms(words: str, schedule: str) -> None:
    assert unwritten(parse_problem(words), parse(schedule)) == ""
