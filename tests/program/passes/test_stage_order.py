"""The order of stages by memory: smaller arenas, the same results, what depends on what."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import ModelProto

from polysci.errors import SpecError
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from polysci.network.compiled import compile_network
from polysci.network.options import machine_for
from polysci.network.prepare import pass_context
from polysci.program.passes.arena import arena_bytes, order_for_memory
from polysci.program.passes.table import program_before
from polysci.target.host import detect
from tests.support.command import done
from tests.support.compiling import ISA, saved
from tests.support.networks import read
from tests.support.onnxmodels import model, node, reals
from tests.support.randomgraphs import models

BRANCHES = 6


def wide() -> ModelProto:
    """Branches that widen x, all of them first, then those that narrow it again; their sum."""
    nodes = [node("Conv", f"x w{at}", f"a{at}") for at in range(BRANCHES)]
    nodes += [node("Conv", f"a{at} v", f"b{at}") for at in range(BRANCHES)]
    nodes.append(node("Sum", " ".join(f"b{at}" for at in range(BRANCHES)), "y"))
    weights = {f"w{at}": reals(32, 4, 1, 1, seed=at) for at in range(BRANCHES)}
    return model(nodes, {"x": (1, 4, 16, 16)}, {"y": None}, {**weights, "v": reals(4, 32, 1, 1)})


@pytest.mark.exhaustive
def test_branches_one_after_the_other(tmp_path: Path) -> None:
    path = saved(wide(), tmp_path / "wide.onnx")
    x = reals(1, 4, 16, 16, seed=9)
    fast, small = (
        compile_network(path, "estimate", isa=ISA, optimize=aim) for aim in ("speed", "memory")
    )
    assert small.code.arena.size < 0.5 * fast.code.arena.size
    assert np.array_equal(fast(x), small(x))
    told = done("compile", str(path), "--level", "estimate", "--optimize", "memory")
    assert f"{small.code.arena.size >> 10} KiB shared" in told


def test_another_aim_is_refused(tmp_path: Path) -> None:
    path = saved(wide(), tmp_path / "wide.onnx")
    with pytest.raises(SpecError, match="optimize 'size': a network has speed or memory"):
        compile_network(path, "estimate", isa=ISA, optimize="size")


def test_updates_stay_between_what_reads_before_and_after(tmp_path: Path) -> None:
    """The aim changes no result where elements change in place, are viewed and joined."""
    nodes = [
        node("Relu", "x", "r"),
        node("ScatterElements", "r at some", "s", axis=1),
        node("Transpose", "s", "t", perm=[1, 0]),
        node("ScatterElements", "s at more", "u", axis=1),
        node("Concat", "s u", "j", axis=0),
        node("Softmax", "j", "m", axis=1),
        node("Transpose", "t", "back", perm=[1, 0]),
        node("Concat", "m back", "y", axis=0),
    ]
    weights = {
        "at": np.array([[0, 3], [2, 1]]), "some": reals(2, 2, seed=1), "more": reals(2, 2, seed=2),
    }  # fmt: skip
    path = saved(model(nodes, {"x": (2, 5)}, {"y": None}, weights), tmp_path / "m.onnx")
    x = reals(2, 5, seed=3)
    fast, small = (
        compile_network(path, "estimate", isa="portable", optimize=aim)(x)
        for aim in ("speed", "memory")
    )
    assert np.array_equal(fast, small)


@given(models())
@settings(max_examples=10, deadline=None)
def test_every_order_is_one_of_the_program(made: ModelProto) -> None:
    """No stage comes before what it reads; the arena never grows."""
    context = pass_context("f32", detect("portable"), machine_for(detect("portable")))
    program = program_before("stage order", lower(simplify(read(made))), context)
    ordered = order_for_memory(program)
    assert sorted(map(id, ordered.stages)) == sorted(map(id, program.stages))
    assert arena_bytes(ordered) <= arena_bytes(program)
    known = {*program.inputs, *program.constants}
    for stage in ordered.stages:
        assert {*stage.inputs} <= known
        known |= {*stage.outputs}
