"""What both gradients of a convolution have in common: its words, its fields, its taps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d import Conv2d
from polysci.ops.problem import ProblemBase, Shape
from polysci.ops.words import Line

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Conv2dGradient(ProblemBase):
    """A gradient of the convolution ``forward``; its text is a word and those of the convolution.

    The words are those of benchdnn's ``--dir=BWD_D`` and ``--dir=BWD_W``.
    """

    forward: Conv2d
    WORD: ClassVar[str]

    def __post_init__(self) -> None:
        """Raises TypeError for no convolution, UnsupportedError for integers."""
        name = type(self).__name__
        if not isinstance(self.forward, Conv2d):
            kind = type(self.forward).__name__
            raise TypeError(f"{name}: forward must be a Conv2d, got {kind}")
        if self.forward.activation:
            raise UnsupportedError(
                f"{name}: activation={self.forward.activation!r}: gradients are of sums without one"
            )
        if precision_named(self.dtype).integer:
            raise UnsupportedError(
                f"{name}: dtype={self.dtype!r}: gradients are computed from reals"
            )

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = "") -> Self:
        """The gradient that a text describes; ``parse(str(x)) == x`` but for layout and dtype.

        Raises SpecError, with a caret under the offending word, or UnsupportedError.
        """
        at = Line(text, where).after(cls.WORD)
        return cls(Conv2d.parse(" " * at + text[at:], layout, dtype, where=where))

    def __str__(self) -> str:
        return f"{self.WORD} {self.forward}"

    @property
    def key(self) -> str:
        """What identifies the computation: the words without name, the layout, the dtype."""
        return f"{self.WORD} {self.forward.key}"

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields of the convolution changed."""
        return type(self)(self.forward.with_(**changes))

    @property
    def name(self) -> str:
        """That of the convolution."""
        return self.forward.name

    @property
    def multiplicity(self) -> int:
        """That of the convolution."""
        return self.forward.multiplicity

    @property
    def layout(self) -> str:
        """Of images."""
        return self.forward.layout

    @property
    def dtype(self) -> str:
        """Of x, w and y, in this order where they differ."""
        return self.forward.dtype

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the full nest; products with padding are counted."""
        return self.forward.flops

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays I, W, O, of which one is written: shape, and strides in elements."""
        return self.forward.arrays()

    def _pad(self, x: NDArray[Any]) -> NDArray[Any]:
        """Images of X with their channels last and zeros around them, as far as taps reach."""
        (top, left), (bottom, right) = self.forward.pad, self.forward.pad_end
        sides = ((0, 0), (top, max(0, bottom)), (left, max(0, right)), (0, 0))
        return np.pad(self._channels_last(x), sides)

    def _windows(self, padded: NDArray[Any]) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Each tap, and a view of what all outputs read of padded images under it."""
        conv, (sh, sw) = self.forward, self.forward.stride
        for r in range(conv.R):
            for s in range(conv.S):
                top, left = r * conv.dilation[0], s * conv.dilation[1]
                yield r, s, padded[
                    :, top : top + (conv.P - 1) * sh + 1 : sh,
                    left : left + (conv.Q - 1) * sw + 1 : sw,
                ]  # fmt: skip

    def _channels_last(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if self.layout == "nhwc" else array.transpose(0, 2, 3, 1)


def axes_of_gradient(axes: Mapping[str, str], y: str) -> Mapping[str, str]:
    """Names of the axes where the gradient of ``y``, x or w, is computed from the other and dY."""
    if y == "w":
        return {"x": axes["x"], "w": axes["y"], "bias": "K", "y": axes["w"]}
    return {"x": axes["y"], "w": axes["w"], "bias": "C", "y": axes["x"]}
