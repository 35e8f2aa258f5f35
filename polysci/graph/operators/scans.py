"""Sums and products of all elements up to each one of an axis."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.graph.graph import Node
from polysci.graph.operators.builder import Builder, attribute_axes
from polysci.graph.operators.table import Operator
from polysci.loop_ir.expressions import Expr, Guard, Index, Load, Reduce, apply, axis, combine
from polysci.polyhedral.affine import Affine
from polysci.program.stages import ViewStage

BLOCK = 32  # elements whose sums are made one by one; sums of blocks are added to them
_FUNCTIONS = {"cumsum": "add", "cumprod": "mul"}


@dataclass(slots=True)
class _Scan:
    """A scan of tensors along an axis; each block of BLOCK elements by itself, then of the blocks.

    So an error grows with the logarithm of the extent, and no step waits for the one before.
    """

    build: Builder
    node: Node
    function: str
    along: int

    def shape(self, x: str, *extents: int) -> tuple[int, ...]:
        """The shape of x with other extents for the axis."""
        shape = self.build.shape(x)
        return (*shape[: self.along], *extents, *shape[self.along + 1 :])

    def element(self, x: str, place: Affine, more: int = 0) -> Load:
        """An element of x, beside an axis that became ``more`` axes more."""
        rank = len(self.build.shape(x))
        index: list[Index] = [axis(at + more * (at > self.along)) for at in range(rank)]
        index[self.along] = place
        return Load(x, tuple(index))

    def mirror(self, x: str) -> str:
        """A copy of x, the last element first."""
        last = self.build.shape(x)[self.along] - 1
        place = combine({f"i{self.along}": -1}, last)
        made = self.build.fresh(f"{x}.mirror", self.build.shape(x), self.build.dtype(x))
        return self.build.define(self.node, self.element(x, place), made)

    def run(self, x: str, *, exclusive: bool) -> str:
        """A tensor of the results for x."""
        extent = self.build.shape(x)[self.along]
        if extent <= 2 * BLOCK:
            return self.define(x, "scan", self.build.shape(x), self.upto(x, extent, exclusive))
        blocks = -(-extent // BLOCK)
        place = combine({f"i{self.along}": BLOCK, "r": 1})
        guards = (Guard(place, extent),) if extent % BLOCK else ()
        total = Reduce(self.function, (("r", BLOCK),), self.element(x, place), guards)
        before = self.run(self.define(x, "blocks", self.shape(x, blocks), total), exclusive=True)
        inside = self.upto(x, BLOCK, exclusive, extent)
        start = self.element(before, axis(self.along), 1)
        parts = self.define(
            x, "parts", self.shape(x, blocks, BLOCK), apply(self.function, start, inside)
        )
        whole = self.build.fresh(f"{x}.joined", self.shape(x, blocks * BLOCK), self.build.dtype(x))
        self.build.stages.append(ViewStage(str(self.node), whole, parts))
        if not extent % BLOCK:
            return whole
        return self.define(x, "scan", self.build.shape(x), self.element(whole, axis(self.along)))

    def upto(self, x: str, size: int, exclusive: bool, extent: int = 0) -> Expr:
        """Of the elements of a block up to this one; ``extent`` where there are several blocks.

        They come last to first in the iterator r, so that it alone says where they end.
        """
        own = self.along + bool(extent)
        inner = combine({f"i{own}": 1, "r": 1}, 1 - size - exclusive)
        guards, place = [Guard(inner, size)], inner
        if extent:
            place = combine({f"i{self.along}": BLOCK, **dict(inner.terms)}, inner.const)
            guards += [Guard(place, extent)] * bool(extent % BLOCK)
        body = self.element(x, place, bool(extent))
        return Reduce(self.function, (("r", size),), body, tuple(guards))

    def define(self, x: str, part: str, shape: tuple[int, ...], expr: Expr) -> str:
        made = self.build.fresh(f"{x}.{part}", shape, self.build.dtype(x))
        return self.build.define(self.node, expr, made)


def scan(build: Builder, node: Node) -> None:
    """CumSum and CumProd."""
    x = node.inputs[0]
    build.check_function(_FUNCTIONS[node.op], x)
    known = build.known(node, 1, "axis")
    if known is None or known.size != 1:
        build.refuse("axis: expected one number")
    (along,) = attribute_axes([int(known.reshape(-1)[0])], len(build.shape(x)))
    steps = _Scan(build, node, _FUNCTIONS[node.op], along)
    reverse = bool(node.attributes.get("reverse", 0))
    made = steps.run(
        steps.mirror(x) if reverse else x, exclusive=bool(node.attributes.get("exclusive", 0))
    )
    last = combine({f"i{along}": -1}, build.shape(x)[along] - 1)
    build.define(node, steps.element(made, last if reverse else axis(along)))


ROWS = (
    Operator("cumsum", "CumSum", scan, dims="along"),
    Operator("cumprod", "CumProd", scan),
)  # fmt: skip
