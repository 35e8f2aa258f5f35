"""Sliding windows: padding and extents of convolutions and pools, as ONNX gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polysci.errors import UnsupportedError
from polysci.graph.graph import Node
from polysci.loop_ir.expressions import Guard, combine
from polysci.numerics.affine import Affine

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


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


def auto_pad_of(node: Node) -> str:
    """Return the ``auto_pad`` of a node. Raises UnsupportedError for one that ONNX lacks."""
    auto = str(node.attributes.get("auto_pad", "NOTSET"))
    if auto not in AUTO_PADS:
        raise UnsupportedError(f"auto_pad {auto}: expected one of {', '.join(AUTO_PADS)}")
    return auto


def spans(node: Node, x: Sequence[int], taps: Sequence[int], y: Sequence[int]) -> tuple[Span, ...]:
    """The windows along the axes behind the first two; ``x`` and ``y`` are whole shapes."""
    axes = len(taps)
    strides = node.attributes.get("strides") or [1] * axes
    dilations = node.attributes.get("dilations") or [1] * axes
    pads = node.attributes.get("pads") or [0] * 2 * axes
    auto = auto_pad_of(node)
    windows = []
    for at in range(axes):
        size, out = x[2 + at], y[2 + at]
        before, after = pads[at], pads[axes + at]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            reach = (taps[at] - 1) * dilations[at] + 1
            missing = max(0, (-(-size // strides[at]) - 1) * strides[at] + reach - size)
            half = missing // 2
            before = half if auto == "SAME_UPPER" else missing - half
            after = missing - before
        elif auto == "VALID":
            before = after = 0
        windows.append(Span(size, taps[at], strides[at], dilations[at], before, after, out))
    return tuple(windows)
