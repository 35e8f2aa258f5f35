"""Threads that compute with isl at once: each waits while the operations of another are bounded."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import islpy as isl
import pytest

from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.ranges import infer, infer_shapes
from polysci.loop_ir.expressions import Load
from polysci.lower.lowering import lower_problem
from polysci.notation import parse
from polysci.numerics.affine import Affine
from polysci.ops.convolutions import Conv2d
from polysci.ops.model import model_of
from polysci.polyhedral import legality
from polysci.polyhedral.barriers import SharedUse, find_race
from polysci.polyhedral.contraction import contraction
from polysci.polyhedral.scop import bound_operations
from polysci.polyhedral.tile_schedule import Loop, TileSchedule
from polysci.program.passes.relations import is_within, iterators, pointwise, reads_once
from polysci.space import schedule

PROBLEM = Conv2d(N=1, C=4, H=5, W=5, K=8, R=3, S=3, pad=1)
SCHEDULE = schedule.parse("n k:8 p q:4 > brgemm_portable_f32_4x8")
SCOP, ROLES, _ = model_of(PROBLEM)
TILES = TileSchedule(ROLES.extents, (Loop("k", 4),))
PROGRAM = elaborate(parse("def f(float(I) B) -> (A) { A(i) = B(10 - i) + B(i) }"))
RANGES = infer_shapes(PROGRAM, {"I": 40})
LOAD = Load("x", (Affine((("i0", 1),), 1),))
USES = [SharedUse("tile", writes, "{ [t] -> [0, t] : 0 <= t < 8 }") for writes in (True, False)]


@pytest.mark.parametrize(
    "compute",
    [
        lambda: contraction(SCOP),
        lambda: legality.check(SCOP, ROLES, TILES),
        lambda: lower_problem(PROBLEM, SCHEDULE),
        lambda: SCOP.reads(),
        lambda: find_race(USES),
        lambda: pointwise(LOAD, iterators((17,)), (17,)),
        lambda: reads_once(LOAD, iterators((19,)), None),
        lambda: is_within(Affine((("a", 3),)), "99", (("a", "33"),), (), ()),
        lambda: infer(PROGRAM, {}),
        lambda: RANGES.shape("A"),
        lambda: RANGES.statements[0].bounds("i"),
        lambda: RANGES.statements[0].alone("i"),
    ],
)  # fmt: skip
def test_a_thread_waits_for_bounded_operations(compute: Callable[[], Any]) -> None:
    inside, leave = Event(), Event()

    def bounded() -> None:
        with bound_operations("the first", 1):
            inside.set()
            leave.wait(60)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(bounded)
        inside.wait(60)
        second = pool.submit(compute)
        waits = not wait([second], timeout=0.03).done
        leave.set()
        first.result()
        second.result()
    assert waits
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0
