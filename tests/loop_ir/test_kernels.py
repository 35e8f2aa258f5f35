"""Functions split into kernels: the interpreter launches them, work-items in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from polysci.errors import UnsupportedError
from polysci.loop_ir.index import Variable, as_index
from polysci.loop_ir.kernels import (
    CLOCK,
    ITEM,
    Launch,
    LaunchedFunction,
    LaunchLoop,
    Mark,
    Step,
    split,
)
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import (
    Address,
    Assign,
    Block,
    Buffer,
    Declare,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Named,
    Once,
    Point,
    Return,
    RoutineResult,
    ScalarParameter,
    Scope,
    Store,
    block,
    loop,
)
from tests.lower.test_layer_ir import CASES
from tests.support.interpreted_layers import SYMBOL, InterpretedLayer, check

ENTRIES = (SYMBOL, f"{SYMBOL}_pack_weights")
SHARED = [name for name, case in CASES.items() if case.threads > 1]


def launch_in_loops(module: LoopModule, entries: Sequence[str]) -> LoopModule:
    """Return a module whose entry points run the work-items of their launches as threads."""
    kernels, launched = split(module, entries)
    parts = [take_item(part) if isinstance(part, LoopFunction) and "__kernel" in part.attributes
             else part for part in kernels.parts]  # fmt: skip
    functions = {part.name: part for part in parts if isinstance(part, LoopFunction)}
    hosts = [
        replace(module.functions[one.name], body=block(
            *(step_of(step, functions) for step in one.steps), Return(one.result)
        ))
        for one in launched
    ]  # fmt: skip
    return replace(kernels, parts=(*hosts, *parts))


def take_item(kernel: LoopFunction) -> LoopFunction:
    """Return a kernel that takes the number of its work-item as its last argument."""
    body = [part for part in kernel.body.body if not (isinstance(part, Let) and part.name == ITEM)]
    parameters = (*kernel.parameters, ScalarParameter(ITEM))
    return replace(kernel, parameters=parameters, body=Block(tuple(body)))


def step_of(step: Step, functions: dict[str, LoopFunction]) -> LoopStatement:
    assert not isinstance(step, Mark)
    if isinstance(step, LaunchLoop):
        inner = [step_of(part, functions) for part in step.steps]
        ends = {"start": step.values.start, "step": step.values.step}
        return loop(step.variable, step.values.stop, *inner, **ends)
    operands = (*map(Named, step.arguments), Variable("turn"))
    call = Invoke(step.kernel, operands)
    return For("turn", as_index(0), as_index(step.items), block(call), kind=LoopKind.THREADS,
               wait=True)  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_launches_compute_what_threads_compute(name: str) -> None:
    case = replace(CASES[name], team=False)
    layer = case.layer
    check(replace(layer, module=launch_in_loops(layer.module, ENTRIES)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in CASES if name not in SHARED])
def test_code_of_one_thread_is_one_work_item(name: str) -> None:
    layer = CASES[name].layer
    module = launch_in_loops(layer.module, ENTRIES)
    check(replace(layer, module=module))
    _, launched = split(layer.module, ENTRIES)
    assert [step.items for one in launched for step in one.steps if isinstance(step, Launch)] == [
        1, 1,
    ]  # fmt: skip


def test_work_items_that_share_an_element_are_found() -> None:
    """Without the offset of its share each work-item writes all rows."""
    layer = replace(CASES["rows of threads"], team=False).layer

    def widen(statement: LoopStatement) -> LoopStatement:
        whole = isinstance(statement, For) and statement.variable == "task"
        return replace(statement, start=as_index(0)) if whole else statement

    with pytest.raises(MemoryFaultError):
        broken = InterpretedLayer.change(layer, widen)
        check(replace(broken, module=launch_in_loops(broken.module, ENTRIES)))


def function_of(*statements: LoopStatement) -> LoopModule:
    parameters = (Buffer("y", "float32"),)
    return LoopModule((LoopFunction("f", parameters, block(*statements), "", ()),))


def parallel(variable: str, end: int, *body: LoopStatement, step: int = 1) -> For:
    return replace(loop(variable, end, *body, step=step), kind=LoopKind.PARALLEL)


def test_nested_loops_are_one_range_and_serial_ones_repeat_launches() -> None:
    i, j, k = map(Variable, "ijk")
    store = Store("y", i * 6 + j + k, 1)
    module = function_of(
        loop("k", 5, parallel("i", 3, parallel("j", 6, store, step=2)), start=1), Store("y", i, 2)
    )
    kernels, (launched,) = split(module, ["f"])
    assert launched == LaunchedFunction(
        "f", ("y",),
        (LaunchLoop("k", range(1, 5), (Launch("f_k0", 9, ("y", "k")),)),
         Launch("f_k1", 1, ("y",))),
    )  # fmt: skip
    assert [step.kernel for step, _ in launched.launches(["memory"])] == ["f_k0"] * 4 + ["f_k1"]
    assert [values for _, values in launched.launches(["memory"])][1] == ["memory", 2]
    assert "let i: int64 = item / 3" in str(kernels) and "let j: int64 = 2 * (item % 3)" in str(
        kernels
    )


def test_items_of_a_group_share_a_turn() -> None:
    """Statements ahead of the loop over items are those of every item."""
    i, at = Variable("i"), Variable("at")
    lines = Declare(Buffer("lines", "ps_shared", as_index(8), Scope.LOCAL))
    items = For("at", as_index(0), as_index(8), block(Store("y", i + at, 1)), kind=LoopKind.ITEMS)
    module = function_of(parallel("i", 24, lines, items, step=8))
    kernels, (launched,) = split(module, ["f"])
    assert launched.steps == (Launch("f_k0", 3, ("y",), 8),)
    (kernel,) = kernels.functions.values()
    assert kernel.attributes == ("__kernel", "PS_GROUP(8)")
    assert str(kernel.body).splitlines() == [
        "let item: int64 = get_group_id(0)", "let i: int64 = 8 * item",
        "declare lines: ps_shared[8] @ local", "let at: int64 = get_local_id(0)", "y[i + at] = 1",
    ]  # fmt: skip


def test_an_argument_of_its_own_name_is_defined_once() -> None:
    place = Store("y", Variable("i") + 4 * Variable("step"), Named("step"))
    step = LoopFunction("each", (Buffer("y", "float32"), ScalarParameter("step")), block(
        For("i", as_index(0), as_index(4), block(place), kind=LoopKind.PARALLEL)
    ))  # fmt: skip
    body = block(loop("step", 3, Invoke("each", (Named("y"), Variable("step")))))
    run = LoopFunction("run", (Buffer("y", "float32"),), body)
    kernels, (launched,) = split(LoopModule((step, run)), ["run"])
    assert launched.steps == (LaunchLoop("step", range(3), (Launch("run_k0", 4, ("y", "step")),)),)
    kernel = kernels.functions["run_k0"]
    assert not [it for it in kernel.body.body if isinstance(it, Let) and it.name == "step"]


def test_calls_inside_of_calls_move_the_same_pointer() -> None:
    """A layer of several parts passes a part of its operand on, under the name of the operand."""
    place = parallel("i", 4, Store("part", Variable("i"), Variable("i")))
    part = LoopFunction("each", (Buffer("part", "float32"),), block(place))
    both = [Invoke("each", (Address("part", as_index(at)),)) for at in (4, 12)]
    layer = LoopFunction("layer", (Buffer("part", "float32"),), block(*both))
    call = block(Invoke("layer", (Address("y", as_index(100)),)))
    run = LoopFunction("run", (Buffer("y", "float32"),), call)
    kernels, (launched,) = split(LoopModule((part, layer, run)), ["run"])
    assert launched.steps == (Launch("run_k0", 4, ("y",)), Launch("run_k1", 4, ("y",)))
    for number, at in enumerate((4, 12)):
        first, second, *_ = kernels.functions[f"run_k{number}"].body.body
        assert first == Point(Buffer("part", "float32", restrict=False),
                              Address("y", as_index(100)))  # fmt: skip
        assert second == Assign("part", Address("part", as_index(at)))


def test_notes_of_the_time_are_marks_between_launches() -> None:
    i, clock = Variable("i"), RoutineResult(CLOCK, ())
    notes = [Store("times", as_index(place), clock) for place in range(3)]
    body = (
        *(notes[0], parallel("i", 3, Store("y", i, 1)), Once(block(notes[1]))),
        *(loop("k", 2, Store("y", i, 2)), notes[2]),
    )
    _, (launched,) = split(function_of(*body), ["f"])
    assert launched.steps == (
        *(Mark(0), Launch("f_k0", 3, ("y",)), Mark(1)),
        *(Launch("f_k1", 1, ("y",)), Mark(2)),
    )
    assert [values for _, values in launched.launches(["memory"])] == [
        *([], ["memory"], []), *(["memory"], []),
    ]  # fmt: skip


def test_what_no_device_can_launch_is_refused() -> None:
    i = Variable("i")
    store = Store("y", i, 1)
    inner = parallel("i", 3, If(i, block(parallel("j", 2, store))))
    with pytest.raises(UnsupportedError, match="inside of another"):
        split(function_of(inner), ["f"])
    unknown = replace(parallel("i", 3, store), end=Variable("n"))
    with pytest.raises(UnsupportedError, match="how much work"):
        split(function_of(unknown), ["f"])
    with pytest.raises(UnsupportedError, match="f: If around parallel loops"):
        split(function_of(If(Variable("n"), block(parallel("i", 3, store)))), ["f"])
