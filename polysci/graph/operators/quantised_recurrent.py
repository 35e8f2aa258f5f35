"""LSTM with weights of 8 bits: x and what is carried over are rounded to 8 bits as they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from polysci.graph.graph import QUANTISED_LSTM, Node
from polysci.graph.operators.builder import Builder
from polysci.graph.operators.convolution import Matrix, matrix_product
from polysci.graph.operators.recurrent import Direction, recurrent
from polysci.graph.operators.steps import whole
from polysci.graph.operators.table import Operator
from polysci.graph.reference import recurrent as reference
from polysci.loop_ir.expressions import Expr, Load, Reduce, apply, axis, constant
from polysci.polyhedral.affine import Affine

STEPS = 255  # between the least and the largest number that 8 bits stand for


@dataclass(slots=True)
class QuantisedDirection(Direction):
    """One direction; ``scales`` are the inputs with those of W and of R."""

    scales: tuple[str, str]
    positions: dict[str, int] = field(default_factory=dict)  # of the node's inputs, by weights

    def weights(self, position: int, first: int, rows: int) -> str:
        name = Direction.weights(self, position, first, rows)
        self.positions[name] = position
        return name

    def product(
        self, x: Matrix, weights: str, shape: Sequence[int], base: str, bias: str = ""
    ) -> str:
        """``x @ weights' + bias``: a layer of whole numbers, scaled; x is in steps of its range."""
        build, rank = self.build, len(shape)
        step, zero = self._range(x.tensor)
        numbers = self._rounded(x.tensor, step, zero)
        sums = Matrix(build.fresh(f"{base}.sums", shape, "int32"), x.rows, rank - 1)
        matrix_product(
            build, self.node, replace(x, tensor=numbers), sums, weights, dtype="u8:s8:s32"
        )
        known = build.constant(weights)
        assert known is not None  # the front end takes no other ones
        columns = build.number(f"{weights}.columns", known.sum(axis=1, dtype=np.int32))
        shift = apply("mul", _number(zero), build.along(columns, rank - 1))
        product = apply("real", apply("sub", whole(build, sums.tensor), shift))
        scaled = apply("mul", product, apply("mul", _number(step), self._scale(weights, rank - 1)))
        value = apply("add", scaled, build.along(bias, rank - 1)) if bias else scaled
        return build.define(self.node, value, build.fresh(base, shape))

    def _range(self, x: str) -> tuple[str, str]:
        """A step, and the whole number that stands for 0: tensors of one element."""
        build, shape = self.build, self.build.shape(x)
        over = tuple((f"k{at}", size) for at, size in enumerate(shape))
        every = Load(x, tuple(Affine(((name, 1),)) for name, _ in over))
        ends = [
            build.define(self.node, apply(end, Reduce(end, over, every), 0.0),
                         build.fresh(f"{x}.{end}", (1,)))
            for end in ("min", "max")
        ]  # fmt: skip
        low, high = (_number(end) for end in ends)
        wide = apply("div", apply("sub", high, low), STEPS)
        size = apply("select", apply("greater", high, low), wide, 1.0)
        step = build.define(self.node, size, build.fresh(f"{x}.step", (1,)))
        place = apply("rint", apply("div", apply("neg", low), _number(step)))
        zero = build.fresh(f"{x}.zero", (1,), "int32")
        return step, build.define(self.node, _in_steps(place), zero)

    def _rounded(self, x: str, step: str, zero: str) -> str:
        build = self.build
        steps = apply("rint", apply("div", whole(build, x), _number(step)))
        value = _in_steps(apply("add", steps, apply("real", _number(zero))))
        return build.define(self.node, value, build.fresh(f"{x}.u8", build.shape(x), "uint8"))

    def _scale(self, weights: str, column: int) -> Expr:
        """That of a row of W or R: one for all rows, or its own."""
        name = self.scales[self.positions[weights] - 1]
        each = self.build.shape(name)[1] > 1
        return Load(name, (constant(self.number), axis(column) if each else constant(0)))


def _in_steps(value: Expr) -> Expr:
    return apply("whole", apply("min", apply("max", value, 0.0), STEPS))


def _number(name: str) -> Load:
    return Load(name, (constant(0),))


def quantised_lstm(build: Builder, node: Node) -> None:
    """The first eight inputs are those of an LSTM, W and R constant."""
    plain = replace(node, op="lstm", inputs=node.inputs[:8])
    w_scale, r_scale = node.inputs[8:]
    recurrent(build, plain, partial(QuantisedDirection, scales=(w_scale, r_scale)))


ROWS = (
    Operator(QUANTISED_LSTM, "", quantised_lstm, reference=reference.recurrent),
)  # fmt: skip
