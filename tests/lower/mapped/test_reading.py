"""Tiles of groups whose items read both factors, in the interpreter: exact, within their arrays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.index import Index
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import Invoke, LoopStatement, Named, Store
from polysci.lower.mapped.plan import changes_b, form_of, kernel_family
from polysci.lower.registry import algorithm_of
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule, parse
from polysci.target.microkernels import find
from tests.support.interpreted_layers import InterpretedLayer, check

CASES = (  # layer, layout, register tile, rows, columns, depth, neighbours along the rows
    ("mb2ic6ih5oc20oh5kh3ph1", "nhwc", "4x4", 16, 16, 4, False),
    ("g8mb1ic8ih7oc8oh5kh3", "nhwc", "3x4", 6, 8, 3, False),
    ("g10mb2ic10ih7oc10oh4kh3ph1sh2", "nchw", "2x4", 8, 12, 1, True),
    ("mb2ic8ih7oc16oh4kh3ph1sh2", "nchw", "4x4", 8, 8, 3, True),
    ("mb1ic16ih6oc20oh6kh3ph1", "nhwc", "4x8", 16, 16, 8, False),
    ("mb1ic3ih7oc5oh7kh3ph1 act=gelu", "nhwc", "2x4", 8, 4, 3, False),
    ("mb1ic8ih9oc12oh5kh3dh1", "nhwc", "2x4", 8, 8, 8, True),
    ("mm:3:13x21x17 ta", "nhwc", "4x4", 8, 8, 4, False),
    ("mm:13x21x17 tb alpha=2 beta=3", "nhwc", "4x8", 8, 16, 5, True),
    ("g2mb1ic8ih6oc40kh1", "nhwc", "2x8", 4, 16, 4, False),
    ("g3mb1ic6ih5oc12oh5kh3ph1", "nhwc", "2x4", 6, 4, 2, False),
    ("bwd_w mb2ic4ih4oc8oh4kh3ph1", "nhwc", "4x4", 8, 8, 1, False),
    ("bwd_d mb2ic4ih5oc8oh5kh3ph1", "nchw", "3x4", 6, 8, 4, True),
    ("bwd_w g6mb2ic6ih4oc6oh4kh3ph1", "nhwc", "3x4", 6, 8, 1, False),
    ("bwd_d g6mb2ic6ih5oc6oh5kh3ph1", "nchw", "2x4", 6, 8, 1, True),
    ("g10mb2ic10ih7oc10oh4kh3ph1sh2", "nhwc", "2x4", 8, 4, 1, False),
    ("conv3d mb1ic4id3ih4iw3oc8kd3kh3kw3pd1ph1pw1", "nhwc", "4x4", 8, 8, 4, False),
    ("conv1d mb2ic5iw11oc6kw3pw1", "nchw", "4x4", 8, 8, 5, True),
)


def schedule_of(
    problem: Problem, isa: str, kernel: str, rows: int, columns: int, depth: int, *,
    along_rows: bool,
) -> Schedule:  # fmt: skip
    """The schedule of a register tile and of sizes."""
    _, roles, _ = model_of(problem)
    tile = find(f"{kernel_family(roles)}_{isa}_f32_{kernel}")
    form = form_of(roles, tile, rows, columns, depth, None, along_rows=along_rows)
    assert parse(str(form)) == form
    return form


def layer_of(
    text: str, layout: str, kernel: str, rows: int, columns: int, depth: int, along_rows: bool
) -> InterpretedLayer:
    problem = parse_problem(text, layout)
    sizes = kernel, rows, columns, depth
    return InterpretedLayer.of(
        problem, schedule_of(problem, "opencl4", *sizes, along_rows=along_rows)
    )


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_integers_are_exact(case: tuple[str, str, str, int, int, int, bool]) -> None:
    check(layer_of(*case))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bf16", "f16:f16:f32"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_narrow_types_are_exact(
    case: tuple[str, str, str, int, int, int, bool], dtype: str
) -> None:
    text, layout, kernel, rows, columns, depth, along_rows = case
    problem, sizes = parse_problem(text, layout, dtype), (kernel, rows, columns, depth)
    schedule = schedule_of(problem, "opencl4", *sizes, along_rows=along_rows)
    if changes_b(model_of(problem)[1]):
        with pytest.raises(UnsupportedError, match="items read f32 or packed B"):
            InterpretedLayer.of(problem, schedule)
    else:
        check(InterpretedLayer.of(problem, schedule))


def move_reads(part: LoopStatement) -> LoopStatement:
    """Every row lies one element behind where it should."""
    if isinstance(part, Store) and part.buffer == "x_at":
        assert isinstance(part.value, Index)
        return Store(part.buffer, part.at, part.value + 1)
    return part


def forget_padding(part: LoopStatement) -> LoopStatement:
    """Rows that left x are read all the same."""
    if isinstance(part, Invoke) and part.function == "ps_read_rows":
        named = [Named("x_at") if own == Named("now") else own for own in part.operands]
        return Invoke(part.function, tuple(named))
    return part


@pytest.mark.parametrize("fault", [move_reads, forget_padding])
def test_faults_in_places_are_found(
    fault: Callable[[LoopStatement], LoopStatement],
) -> None:
    layer = layer_of("mb1ic4ih4oc4oh4kh3ph1", "nhwc", "2x4", 8, 4, 4, False)
    check(layer)
    with pytest.raises((MemoryFaultError, AssertionError)):
        check(layer.change(fault))


@pytest.mark.parametrize(
    ("layer", "text", "message"),
    [("mb1ic8ih6oc16kh3ph1", "npq:16@by k:16@bx c:9 npq:4@ty k:4@tx > fma_opencl4_f32_4x4",
      "a step of 9 exceeds 8"),
     ("mb1ic8ih6oc16kh3ph1", "npq:16@by k:16@bx r npq:4@ty k:4@tx > fma_opencl4_f32_4x4",
      "expected npq:16@by k:16@bx c npq"),
     ("mb1ic8ih6oc16kh3ph1", "npq:16@bx k:16@by c npq:4@ty k:4@tx > fma_opencl4_f32_4x4",
      "expected npq:16@bx k:16@by c npq:4@tx"),
     ("g8mb1ic8ih6oc8kh3ph1", "npq:16@by g:8@bx s:3 npq:4@ty g:4@tx > depthwise_opencl4_f32_4x4",
      "steps along s leave x: expected 1"),
     ("g8mb1ic8ih6oc8kh3ph1", "npq:16@by g:8@bx s npq:4@ty g:4@tx > fma_opencl4_f32_4x4",
      "> depthwise_..."),
     ("g8mb1ic8ih6oc8kh3ph1",
      "npq:16@by g:8@bx s copy(A,B) npq:4@ty g:4@tx > depthwise_opencl4_f32_4x4",
      "only products share their factors")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(layer: str, text: str, message: str) -> None:
    problem, schedule = parse_problem(layer), parse(text)
    with pytest.raises(SpecError, match=message):
        algorithm_of(schedule).resolve(problem, schedule, 1)
