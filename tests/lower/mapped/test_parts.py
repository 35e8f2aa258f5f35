"""Gradients of strided inputs by groups: each residue class has the tiles, its steps fit it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.lower.algorithm import EmitOptions
from polysci.lower.residues import Residues
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from tests.support.interpreted_layers import SYMBOL, InterpretedLayer, check

COPIED = "residues(2,2) nhw:16@by c:16@bx k:8 copy(A,B)x2+4 nhw:2@ty c:4@tx > fma_opencl4_f32_2x4"
CASES = (
    ("bwd_d mb1ic4ih7oc8oh4kh3ph1sh2", "nhwc", COPIED),
    ("bwd_d mb1ic4ih8oc8oh4kh1sh2", "nchw",
     "residues(2,2) nhw:8@bx c:4@by k:4 nhw:2@tx c:4@ty > fma_opencl4_f32_2x4"),
    ("bwd_d g6mb2ic6ih7oc6oh4kh3ph1sh2", "nhwc",
     "residues(2,2) nhw:8@by g:8@bx s nhw:2@ty g:4@tx > depthwise_opencl4_f32_2x4"),
    ("bwd_d g2mb1ic8ih7oc8oh4kh3ph1sh2", "nhwc",
     "residues(2,2) nhw:8@by c:8@bx rsk:16 copy(A,B)x2+4 nhw:2@ty c:4@tx > fma_opencl4_f32_2x4"),
    ("bwd_d mb1ic5ih11iw7oc4kh3kw3sh1sw3ph0pw1", "nchw",
     "residues(1,3) nhw:8@by c:8@bx k:4 nhw:2@ty c:4@tx > fma_opencl4_f32_2x4"),
)  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_integers_are_exact(case: tuple[str, str, str]) -> None:
    text, layout, schedule = case
    check(InterpretedLayer.of(parse_problem(text, layout), parse(schedule)))


def test_results_may_be_stored_otherwise() -> None:
    """Pixels of a class are as far apart as the strides of the whole result say."""
    text, layout, words = CASES[0]
    problem, schedule = parse_problem(text, layout), parse(words)
    n, h, w, c = problem.y_shape
    array = model_of(problem)[1].out.array
    source = emit(problem, schedule, 1, EmitOptions(SYMBOL, {array: (c * h * w, h * w, w, 1)}))
    layer = InterpretedLayer.of(problem, schedule)
    arrays = layer.arrays()
    result = replace(layer, source=source, module=source.module).run(arrays)
    expected = np.asarray(arrays.plain).transpose(0, 3, 1, 2)
    assert np.array_equal(result.reshape(n, c, h, w), expected)


def test_steps_fit_each_class() -> None:
    """Of a filter of 3 x 3, a class has 1 or 2 taps along an axis: its steps fuse what it has."""
    problem = parse_problem(CASES[3][0])
    plan = Residues().resolve(problem, parse(CASES[3][2]), 1)
    steps = [schedule.loops[2] for schedule in plan.schedules]
    assert [*map(str, steps)] == ["rsk:16", "sk:8", "rk:8", "k:4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [(("nhw:16@by", "nhw:17@by"), "17 rows are no multiple of 2"),
     (("nhw:16@by", "nhw:16"), "expected nhw:16@by"),
     (("residues(2,2) ", "n residues(2,2) "), "expected "),
     (("residues(2,2)", "residues(2,3)"), "expected residues(2,2), the strides")],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change: tuple[str, str], message: str) -> None:
    problem = parse_problem(CASES[0][0])
    with pytest.raises(SpecError, match=re.escape(message)):
        Residues().resolve(problem, parse(COPIED.replace(*change)), 1)
