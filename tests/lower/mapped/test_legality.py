"""Barriers of groups: isl proves that they order shared uses, and finds those that lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from polysci.errors import IllegalScheduleError, UnsupportedError
from polysci.loop_ir.index import Variable, compare
from polysci.loop_ir.nodes import Barrier, If, Invoke, LoopStatement, Store, block
from polysci.lower.mapped.legality import check_groups
from polysci.space.directives.copy import Copy
from tests.lower.mapped.test_groups import CASES, layer_of
from tests.support.interpreted_layers import SYMBOL, InterpretedLayer


def check(layer: InterpretedLayer) -> None:
    check_groups(layer.module.functions[SYMBOL].body)


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_barriers_order_all_uses(case: tuple[str, str, str, int, int, int, Copy]) -> None:
    check(layer_of(*case))


def without(numbers: Sequence[int]) -> Callable[[LoopStatement], LoopStatement | None]:
    """Leave out the barriers of these numbers."""
    seen = list[LoopStatement]()

    def change(part: LoopStatement) -> LoopStatement | None:
        if not isinstance(part, Barrier):
            return part
        seen.append(part)
        return None if len(seen) - 1 in numbers else part

    return change


@pytest.mark.parametrize(
    ("stages", "numbers"), [(2, [0]), (1, [0]), (1, [1]), (1, [0, 1])], ids=str
)
@pytest.mark.parametrize("text", ["mm:24x24x24", "mb1ic8ih6oc16kh3ph1"])
def test_a_barrier_that_lacks_is_found(text: str, stages: int, numbers: list[int]) -> None:
    layer = layer_of(text, "nhwc", "4x4", 16, 16, 4, Copy(stages))
    check(layer)
    with pytest.raises(IllegalScheduleError, match=r"(rows|columns): work-items \d+ and \d+ use"):
        check(layer.change(without(numbers)))


def test_a_barrier_that_some_items_miss_is_refused() -> None:
    layer = layer_of("mm:24x24x24", "nhwc", "4x4", 16, 16, 4, Copy())
    some = compare(Variable("at"), "<", 3)
    layer = layer.change(lambda part: If(some, block(part)) if isinstance(part, Barrier) else part)
    with pytest.raises(UnsupportedError, match="a barrier where not all work-items come: at < 3"):
        check(layer)


def test_items_that_write_the_same_elements_are_found() -> None:
    layer = layer_of("mm:24x24x24 ta", "nhwc", "4x4", 16, 16, 4, Copy(2))
    check(layer)

    def fold(part: LoopStatement) -> LoopStatement:
        wrong = isinstance(part, Store) and part.buffer == "rows"
        return Store("rows", part.at // 2, part.value) if wrong else part  # type: ignore[union-attr]

    with pytest.raises(IllegalScheduleError, match="rows: work-items"):
        check(layer.change(fold))


def test_a_routine_in_no_table_is_refused() -> None:
    layer = layer_of("mm:24x24x24", "nhwc", "4x4", 16, 16, 4, Copy(2))
    layer = layer.change(
        lambda part: Invoke("ps_other", part.operands) if isinstance(part, Invoke) else part
    )
    with pytest.raises(UnsupportedError, match="ps_other: what it reads and writes is not known"):
        check(layer)
