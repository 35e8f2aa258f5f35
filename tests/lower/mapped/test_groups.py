"""Tiles of work-groups in the interpreter: exact, without races, whatever order items run in."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import (
    Barrier,
    For,
    Invoke,
    LoopFunction,
    LoopStatement,
    Store,
    walk_statements,
)
from polysci.lower.mapped.plan import form_of, refusal
from polysci.lower.registry import algorithm_of
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.space.directives.copy import Copy
from polysci.space.schedule import Schedule, parse
from polysci.target.microkernels import find
from tests.support.device_cases import WARPS, WARPS_OF_WORDS, WORDS
from tests.support.interpreted_layers import InterpretedLayer, check

CASES = (
    ("mb1ic3ih7oc5oh7kh3ph1 act=gelu", "nhwc", "2x4", 8, 4, 2, Copy(2)),
    ("mb2ic6ih9oc20oh9kh3ph1", "nhwc", "4x4", 16, 16, 4, Copy(2, 4)),
    ("mb2ic8ih7oc16oh4kh3ph1sh2", "nchw", "4x4", 8, 8, 3, Copy()),
    ("mb1ic16ih6oc20oh6kh3ph1", "nhwc", "4x4", 16, 16, 8, Copy(2, 4)),
    ("mb1ic16ih7oc20oh4kh3ph1sh2", "nhwc", "8x4", 16, 16, 12, Copy()),
    ("mm:3:13x21x17 ta", "nhwc", "4x4", 8, 8, 4, Copy(2)),
    ("mm:13x21x17 tb alpha=2 beta=3", "nhwc", "4x8", 8, 16, 5, Copy(1, 1)),
    ("g2mb1ic8ih6oc40kh1", "nhwc", "2x8", 4, 16, 4, Copy(1, 4)),
    ("bwd_w mb2ic4ih6oc8oh6kh3ph1", "nhwc", "4x4", 8, 8, 4, Copy(2)),
    ("bwd_d mb2ic4ih6oc8oh6kh3ph1", "nchw", "3x4", 6, 8, 4, Copy(2)),
    ("conv3d mb1ic4id3ih4iw3oc8kd3kh3kw3pd1ph1pw1", "nhwc", "4x4", 8, 8, 4, Copy(2)),
    ("conv1d mb2ic5iw11oc6kw3pw1", "nchw", "4x4", 8, 8, 5, Copy(2)),
)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("text", "layout", "dtype", "run"),
    [pytest.param(*case, marks=[pytest.mark.exhaustive] * (not case[0].startswith("mm:")))
     for case in (*WARPS, *WARPS_OF_WORDS)],
)  # fmt: skip
def test_tiles_of_warps_are_exact(text: str, layout: str, dtype: str, run: str) -> None:
    check(InterpretedLayer.of(parse_problem(text, layout, dtype), parse(run)))


def layer_of(
    text: str, layout: str, kernel: str, rows: int, columns: int, depth: int, copy: Copy
) -> InterpretedLayer:
    problem = parse_problem(text, layout)
    _, roles, _ = model_of(problem)
    tile = find(f"fma_opencl4_f32_{kernel}")
    return InterpretedLayer.of(problem, form_of(roles, tile, rows, columns, depth, copy))


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_integers_are_exact(case: tuple[str, str, str, int, int, int, Copy]) -> None:
    check(layer_of(*case))


def is_barrier(statement: LoopStatement) -> bool:
    return isinstance(statement, Barrier)


def is_copy(statement: LoopStatement) -> bool:
    return isinstance(statement, Store) and statement.buffer == "rows"


@pytest.mark.parametrize("stages", [1, 2])
def test_a_copy_without_a_barrier_is_found(stages: int) -> None:
    layer = layer_of("mm:8x8x12", "nhwc", "4x4", 8, 8, 4, Copy(stages))
    check(layer)
    with pytest.raises(MemoryFaultError, match="before anything wrote it"):
        check(layer.change(lambda part: None if is_barrier(part) else part))


def test_one_barrier_is_too_few_for_one_stage() -> None:
    """The copy of a step overwrites what another item still reads."""
    layer, seen = layer_of("mm:8x8x12", "nhwc", "4x4", 8, 8, 4, Copy()), list[LoopStatement]()

    def drop_first(part: LoopStatement) -> LoopStatement | None:
        if is_barrier(part):
            seen.append(part)
        return None if is_barrier(part) and len(seen) == 1 else part

    with pytest.raises(MemoryFaultError, match="is used by two threads"):
        check(layer.change(drop_first))
    assert len(seen) == 2


def test_a_step_begins_with_a_barrier() -> None:
    """PoCL compiles no groups of two items whose steps begin with a loop of two turns."""
    layer = layer_of("mm:8x8x12", "nhwc", "4x4", 8, 8, 4, Copy())
    steps = [it for part in layer.module.parts if isinstance(part, LoopFunction)
             for it in walk_statements(part.body)
             if isinstance(it, For) and any(map(is_barrier, it.body.body))]  # fmt: skip
    assert steps and all(is_barrier(it.body.body[0]) for it in steps)


def test_an_index_off_by_one_is_found() -> None:
    layer = layer_of("mm:8x8x12 ta", "nhwc", "4x4", 8, 8, 4, Copy(2))
    check(layer)

    def move(part: LoopStatement) -> LoopStatement:
        return Store(part.buffer, part.at + 1, part.value) if is_copy(part) else part  # type: ignore[union-attr]

    with pytest.raises((MemoryFaultError, AssertionError)):
        check(layer.change(move))


def change_await(by: int) -> Callable[[LoopStatement], LoopStatement | None]:
    """Let waits for copies leave so many groups more on their way."""

    def change(part: LoopStatement) -> LoopStatement:
        if isinstance(part, Invoke) and part.function == "ps_await":
            (pending,) = part.operands
            assert isinstance(pending, int)
            return Invoke(part.function, (pending + by,))
        return part

    return change


def test_a_wait_that_is_too_weak_is_found() -> None:
    text, layout, dtype, run = WARPS[0]
    layer = InterpretedLayer.of(parse_problem(text, layout, dtype), parse(run))
    with pytest.raises(MemoryFaultError, match="before anything wrote it"):
        check(layer.change(change_await(1)))


def test_copies_that_run_beside_items_need_barriers() -> None:
    text, layout, dtype, run = WARPS[0]
    layer = InterpretedLayer.of(parse_problem(text, layout, dtype), parse(run))
    with pytest.raises(MemoryFaultError, match=r"used by two|before anything wrote it"):
        check(layer.change(lambda part: None if is_barrier(part) else part))


TEXT = "npq:16@by k:16@bx c:4 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_opencl4_f32_4x4"


def test_a_schedule_is_its_text() -> None:
    schedule = Schedule.parse(TEXT)
    schedule.check_parts()
    assert str(schedule) == TEXT and schedule.find(Copy) == Copy(2, 4)
    assert [loop.axis for loop in schedule.loops] == ["by", "bx", "", "ty", "tx"]


BROKEN: tuple[tuple[Callable[[str], str], str], ...] = (
    (lambda text: text.replace("npq:16", "pq:16"), "expected npq:16@by"),
    (lambda text: text.replace("c:4", "c:9"), "a step of 9 exceeds 8, all products"),
    (lambda text: text.replace("npq:16", "npq:18"), "18 rows are no multiple of 4, an item's"),
    (lambda text: text.replace("@bx", "@by"), "expected npq:16@by k:16@bx"),
    (lambda text: text.replace(":16@b", ":4@b"), "a group of 1 work-items; expected 2 to 256"),
    (lambda text: text.replace(":16@b", ":256@b"), "a group of 4096 work-items"),
    (lambda text: text.replace("npq:16@by k:16@bx", "npq:16@bx k:16@by"), "expected npq:16@by"),
    (lambda text: text.replace("fma_", "brgemm_"), "expected ROWS:N@by"),
)


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_what_does_not_fit_is_refused(change: Callable[[str], str], message: str) -> None:
    problem = parse_problem("mb1ic8ih6oc16kh3ph1")
    schedule = parse(change(TEXT))
    with pytest.raises(SpecError, match=message):
        algorithm_of(schedule).resolve(problem, schedule, 1)


TILE = "npq:32@by k:64@bx c:32 copy(A,B)x3|swizzle npq:16@ty k:32@tx > mma_cuda80_bf16_16x32"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("c:32", "c:24", "a step of 24 is no multiple of 16, the depth of matrices"),
     ("c:32", "c:48", r"x3\|swizzle: 48 and 64, the lengths of lines, are no powers of 2"),
     ("c:32", "c:80", "a step of 80 exceeds 64, all products"),
     ("|swizzle", "+4", r"copy\(A,B\)x3\+4: pads of mma are multiples of 8"),
     ("_bf16_", "_f16_", "mma_cuda80_f16_16x32 multiplies f16, not bf16"),
     ("npq:32", "npq:512", "a group of 2048 work-items; expected 2 to 256")],
)  # fmt: skip
def test_warps_refuse_what_does_not_fit(old: str, new: str, message: str) -> None:
    problem = parse_problem("mb1ic64ih6oc64kh3ph1", "nhwc", "bf16")
    algorithm_of(parse(TILE)).resolve(problem, parse(TILE), 1)
    with pytest.raises(SpecError, match=message):
        algorithm_of(parse(TILE)).resolve(problem, parse(TILE.replace(old, new)), 1)


@pytest.mark.parametrize("word", ["", "x2", "x4+8", "x3|swizzle", "|swizzle"])
def test_copies_are_their_text(word: str) -> None:
    copy = Copy.parse(f"copy(A,B){word}")
    assert copy and str(copy) == f"copy(A,B){word}"
    assert Copy.parse("copy(A,B)x5") is None and Copy.parse("copy(A,B)+4|swizzle") is None


def test_cpus_have_no_groups() -> None:
    problem = parse_problem("mb1ic8ih6oc16kh3ph1")
    for text, message in (
        ("p:2@by > brgemm_portable_f32_4x8", "expected ROWS:N@by"),
        ("p copy(A,B) > brgemm_portable_f32_4x8", "no loop is mapped to work-items"),
    ):
        schedule = parse(text)
        with pytest.raises(SpecError, match=message):
            algorithm_of(schedule).resolve(problem, schedule, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [("bwd_d mb1ic4ih7oc8oh4kh3ph1sh2", "it scatters into its result")],
)  # fmt: skip
def test_what_is_no_product_is_refused(text: str, why: str) -> None:
    assert re.search(why, refusal(model_of(parse_problem(text))[1]))


def test_sums_apart_from_each_other_are_refused() -> None:
    """What lies between them would stay without values."""
    problem = parse_problem("bwd_d conv1d mb1ic6iw2oc4ow1kw1sw3pw0")
    schedule = parse("nq:6@by c:16@bx k:2 copy(A,B)+4 nq:3@ty c:8@tx > fma_opencl4_f32_3x8")
    with pytest.raises(UnsupportedError, match="it scatters into its result"):
        algorithm_of(schedule).resolve(problem, schedule, 1)


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", ["bf16", "bf16:bf16:f32", "f16", "f16:f16:f32"])
def test_narrow_types_are_exact(dtype: str, layout: str) -> None:
    problem = parse_problem("mb1ic8ih6oc20oh6kh3ph1", layout, dtype)
    check(InterpretedLayer.of(problem, parse(TEXT.replace("_opencl4_", "_cuda4_"))))


def test_other_types_are_refused() -> None:
    whole, real = (parse_problem("mb1ic8ih6oc16kh3ph1", dtype=dtype) for dtype in ("int8", "f32"))
    words = TEXT.replace("f32_4x4", "i8_4x4")
    for problem, text, message in (
        (whole, TEXT, "fma_opencl4_f32_4x4 multiplies f32, not u8"),
        (real, words, "fma_opencl4_i8_4x4 multiplies i8, not f32"),
        (whole, words.replace("c:4", "c:6"), "a step of 6 is no multiple of 4, a word"),
    ):
        with pytest.raises(SpecError, match=message):
            algorithm_of(parse(text)).resolve(problem, parse(text), 1)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (at not in (1, 4)))
             for at, case in enumerate(WORDS)],
)  # fmt: skip
def test_words_of_8_bits_are_exact(case: tuple[str, str, str, str]) -> None:
    text, layout, dtype, words = case
    check(InterpretedLayer.of(parse_problem(text, layout, dtype), parse(words.format("opencl"))))
