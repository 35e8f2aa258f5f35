"""Sliding windows: padding and extents of convolutions and pools, as ONNX gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polysci.graph.graph import Node
from polysci.loop_ir.expressions import Guard, combine
from polysci.numerics.affine import Affine


@dataclass(frozen=True, slots=True)
class Span:
    """A window along one axis: ``x[y * stride + tap * dilation - before]``."""

    size: int  # of x
    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int  # extent of y

    def at(self, y: str, tap: str) -> Affine:
        """The place in x of a tap of an output."""
        return combine({y: self.stride, tap: self.dilation}, -self.before)

    def guard(self, y: str, tap: str) -> Guard | None:
        """Return the guard that keeps it inside x, if one must."""
        last = (self.out - 1) * self.stride + (self.taps - 1) * self.dilation - self.before
        if self.before == 0 and last < self.size:
            return None
        return Guard(self.at(y, tap), self.size)


def spans(node: Node, x: Sequence[int], taps: Sequence[int], y: Sequence[int]) -> tuple[Span, ...]:
    """The windows along the axes behind the first two; ``x`` and ``y`` are whole shapes."""
    axes = len(taps)
    strides = node.attributes.get("strides") or [1] * axes
    dilations = node.attributes.get("dilations") or [1] * axes
    pads = node.attributes.get("pads") or [0] * 2 * axes
    return tuple(
        Span(x[2 + at], taps[at], strides[at], dilations[at], pads[at], pads[axes + at], y[2 + at])
        for at in range(axes)
    )
