"""The table of passes: what each changes can be printed, and a new one is a file and a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polysci.errors import SpecError
from polysci.loop_ir.expressions import Apply, Expr, rewrite
from polysci.network.options import CompileOptions
from polysci.network.prepare import all_passes, find_steps, trace_passes
from polysci.program.passes import table
from polysci.program.passes.row import plain
from polysci.program.stages import LoopStage, Program
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node

PORTABLE = CompileOptions("estimate", isa="portable")


def drop_double_negations(program: Program) -> Program:
    """Return the program with x in place of -(-x)."""

    def change(expr: Expr) -> Expr:
        match expr:
            case Apply("neg", (Apply("neg", (inner,)),)):
                return inner
            case _:
                return expr

    return replace(program, stages=tuple(
        replace(stage, expr=rewrite(stage.expr, change)) if isinstance(stage, LoopStage) else stage
        for stage in program.stages
    ))  # fmt: skip


def test_every_pass_tells_whether_it_changed_anything() -> None:
    steps = trace_passes("mlp:4x8x8x3 act=relu", PORTABLE)
    assert [step.name for step in steps] == [row.name for row in all_passes()]
    counts = {step.name: (step.changed, step.count) for step in steps}
    assert counts["folded weights"] == (False, 4) and counts["stages"] == (True, 4)
    assert counts["fuse loops"] == (True, 2) and counts["joint loops"] == (False, 2)
    (fused,) = find_steps(steps, "fuse loops")
    removed = [line for line in fused.difference() if line.startswith("-")]
    assert len(removed) == 4 and sum(line.startswith("-Loop relu") for line in removed) == 2


def test_passes_of_graphs_are_there_again_where_they_change_something() -> None:
    constants = {
        name: np.full((1, 4, 1, 1), value, np.float32) for name, value in (("a", 2), ("b", 3))
    }
    weights = {"w": np.ones((4, 2, 1, 1), np.float32), **constants}
    nodes = [node("Conv", "x w", "c"), node("Mul", "c a", "m"), node("Mul", "m b", "y")]
    graph = read(model(nodes, {"x": [1, 2, 5, 5]}, {"y": [1, 4, 5, 5]}, weights))
    steps = [step for step in trace_passes(graph, PORTABLE) if step.changed]
    assert [(step.name, step.count) for step in steps[:4]] == [
        ("affine", 3), ("affine pairs", 2), ("folded weights", 1), ("stages", 1),
    ]  # fmt: skip


def test_a_new_pass_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    nodes = [node("Neg", "x", "a"), node("Neg", "a", "b"), node("Exp", "b", "y")]
    graph = read(model(nodes, {"x": [3, 4]}, {"y": [3, 4]}))
    row = plain("double negations", "-(-x) is x", drop_double_negations)
    names = [other.name for other in table.PROGRAM_PASSES]
    at = names.index("fuse loops") + 1
    rows = (*table.PROGRAM_PASSES[:at], row, *table.PROGRAM_PASSES[at:])
    before = network_of(graph)
    monkeypatch.setattr(table, "PROGRAM_PASSES", rows)
    (step,) = find_steps(trace_passes(graph, PORTABLE), "double negations")
    assert step.changed and step.count == 1
    network = network_of(graph)
    exprs = [
        [str(stage.expr) for stage in other.prepared.program.stages if isinstance(stage, LoopStage)]
        for other in (before, network)
    ]
    assert [expr.count("neg") for (expr,) in exprs] == [2, 0]
    np.testing.assert_allclose(network(x), np.exp(x), rtol=1e-5)


def test_a_pass_of_another_name_is_none() -> None:
    with pytest.raises(SpecError, match=r"pass 'fuse lops': expected one of .*mean 'fuse loops'"):
        find_steps((), "fuse lops")
