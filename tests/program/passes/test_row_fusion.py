"""Stages that run together, some rows at a time: what is read, what is refused, and the results."""

import numpy as np
import pytest

from polysci.errors import UnsupportedError
from polysci.frontends.onnx import importer, reference
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.loop_ir.expressions import Guard, Load, Reduce
from polysci.lower.layer_calls import by_rows
from polysci.lower.stages import row_fusion as row_fusion_stages
from polysci.network import compiled, prepare
from polysci.numerics.affine import Affine
from polysci.program.passes import row_fusion
from polysci.program.passes.operands import RowWindow, rows_read
from polysci.program.stages import LoopStage, RowFusion
from polysci.space import schedule
from polysci.target.host import detect
from tests.support.flags import QUICK
from tests.support.onnxmodels import model, node, reals
from tests.support.rates import set_coefficients

SMALL = 5e-4  # of the L2 cache: every tensor of these tests is beyond it


def inverted_bottleneck(size: int, stride: int) -> Graph:
    """Pointwise, depthwise, pointwise with the input added again, then a pool."""
    nodes = [
        node("Conv", "x w1 b1", "e"),
        node("Clip", "e zero six", "e6"),
        node("Conv", "e6 w2", "d", group=24, pads=[1, 1, 1, 1], strides=[stride, stride]),
        node("Relu", "d", "r"),
        node("Conv", "r w3", "p"),
    ]
    out = "p"
    if stride == 1:
        nodes.append(node("Add", "p x", "s"))
        out = "s"
    nodes.append(node("MaxPool", out, "m", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    nodes.append(node("Conv", "m w4", "y"))
    weights = {
        "w1": reals(24, 8, 1, 1, seed=1), "b1": reals(24, seed=2),
        "w2": reals(24, 1, 3, 3, seed=3), "w3": reals(8, 24, 1, 1, seed=4),
        "w4": reals(4, 8, 1, 1, seed=5),
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    one = model(nodes, {"x": [1, 8, size, size]}, {"y": None}, weights)
    return simplify(importer.graph_of(one))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("size", "stride", "threads", "dtype", "ring"),
    [(21, 1, 1, "f32", 0), (22, 2, 2, "f32", 0), (21, 1, 2, "bf16", 1 << 16), (13, 2, 2, "f32", 0)],
)
def test_results(
    size: int, stride: int, threads: int, dtype: str, ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings that move after every call, threads that begin in the middle, both precisions."""
    monkeypatch.setattr(row_fusion_stages, "RING", ring)
    set_coefficients(monkeypatch, row_fusion_cache=SMALL, row_fusion_risk=0.0)
    monkeypatch.setattr(row_fusion, "_weights", lambda layer: 0)
    graph, target = inverted_bottleneck(size, stride), detect()
    options = prepare.PlanOptions("estimate", threads, dtype, "direct", target)
    net = compiled.build_network(
        prepare.prepare(graph, dtype, target=target), options, "bands", flags=QUICK
    )
    found = [stage for stage in net.code.placed.program.stages if isinstance(stage, RowFusion)]
    assert [len(stage.members) for stage in found] == [4], net.prepared.fusions
    x = reals(1, 8, size, size, seed=9)
    expected = reference.run(graph, {"x": x})["y"]
    error = np.abs(net(x) - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if dtype == "f32" else 3e-2)


@pytest.mark.exhaustive
def test_what_stays_in_the_cache_stays_apart() -> None:
    """The reason is kept for whoever asks."""
    graph, target = inverted_bottleneck(12, 1), detect()
    options = prepare.PlanOptions("estimate", 1, "f32", "direct", target)
    net = compiled.build_network(
        prepare.prepare(graph, target=target), options, "apart", flags=QUICK
    )
    assert not any(isinstance(stage, RowFusion) for stage in net.code.placed.program.stages)
    assert any("stay in the L2 cache" in one.refusal for one in net.prepared.fusions)


def loops(row: Affine, guards: tuple[Guard, ...] = ()) -> LoopStage:
    """A reduction over r of rows of t."""
    index = (Affine((("i0", 1),)), Affine((("i1", 1),)), row, Affine((("i3", 1),)))
    return LoopStage("pool", "y", Reduce("max", (("r", 3),), Load("t", index), guards))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Affine((("i2", 2), ("r", 1)), -1), RowWindow(2, -1, 1, 11)),
        (Affine((("i2", 1), ("r", -1)), 2), RowWindow(1, 0, 2, 11)),
        (Affine((("i2", 1), ("r", 4))), RowWindow(1, 0, 8, 11)),
        (Affine((("r", 1),)), None),
        (Affine((("i2", -1),), 10), None),
        (Affine((("i2", 1), ("i3", 1))), None),
    ],
)
def test_rows_read(row: Affine, expected: RowWindow | None) -> None:
    """A window that moves on with the rows, or nothing."""
    shape = (1, 4, 11, 11)
    assert rows_read(loops(row, (Guard(row, 11),)), "t", shape, (1, 4, 5, 5)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p:3 k:64 q:7 > brgemm_avx512_f32_7x64", "p:3 k:64 q:7 > brgemm_avx512_f32_7x64"),
        ("k:64* p q:7 > brgemm_avx512_f32_7x64", "p:2 k:64 p q:7 > brgemm_avx512_f32_7x64"),
        ("k:64 p:4 q:7 > brgemm_avx512_f32_7x64", "p:4 k:64 q:7 > brgemm_avx512_f32_7x64"),
        (
            "pack(A) k:64 p q:7 > brgemm_avx512_f32_7x64",
            "p:2 pack(A) k:64 p q:7 > brgemm_avx512_f32_7x64",
        ),
    ],
)
def test_by_rows(text: str, expected: str) -> None:
    """The loop over rows moves out, packing stays inside it."""
    assert str(by_rows(schedule.parse(text), "p")) == expected


def test_no_loop_over_rows() -> None:
    """A call that takes all rows, or Winograd's tiles, cannot run by rows."""
    for text in ("k:64 > brgemm_avx512_f32_7x64", "t:16 winograd(4) > brgemm_avx512_f32_16x32"):
        with pytest.raises(UnsupportedError, match="no loop over rows"):
            by_rows(schedule.parse(text), "p")
