"""Products of f32 rows by constant weights: of bf16, or of 4 and 8 bits in blocks with a scale."""

from __future__ import annotations

from math import prod

import numpy as np

from polysci.graph.graph import NARROW_MATMUL, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import Matrix
from polysci.graph.operators.table import Evaluation, Operator
from polysci.numerics.arrays import Array
from polysci.numerics.blocks import decode_blocks, round_blocks
from polysci.numerics.dtypes import BLOCK_TYPES, from_bf16
from polysci.ops.matmul import Matmul
from polysci.program.stages import LayerStage


def narrow_matmul(build: Builder, node: Node) -> None:
    """``x @ weights' + bias``, where x may be rounded to 8 bits by blocks.

    The second input holds the bytes of the blocks of each column of y, or the bits of bf16;
    ``weights`` is their type.
    """
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    weights = str(node.attributes["weights"])
    *rows, k = build.shape(x)
    n = build.shape(y)[-1]
    problem = Matmul(
        prod(rows), k, n, transposed="b", constant="b", dtype=f"f32:{weights}:f32"
    )  # fmt: skip
    left, right = (Matrix(name, tuple(range(len(rows))), len(rows)).stored for name in (x, y))
    build.stages.append(LayerStage(str(node), problem, left, right, w, node.input(2)))


def _reference(of: Evaluation) -> list[Array]:
    x, w, *bias = of.inputs
    weights = str(of.node.attributes["weights"])
    if weights == "bf16":
        values = from_bf16(w.astype(np.uint16))
    else:
        row = BLOCK_TYPES[weights]
        values = decode_blocks(np.ascontiguousarray(w).view(row.numpy))
        x = round_blocks(x, row.block).astype(x.dtype) if row.rounds_x else x
    y = x @ values.T.astype(x.dtype)
    return [y + bias[0] if bias else y]


ROWS = (Operator(NARROW_MATMUL, "", narrow_matmul, reference=_reference),)
