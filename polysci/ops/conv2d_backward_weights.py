"""Conv2dBackwardWeights: the gradient of a convolution's filters, from its input and dL/dy.

Text: ``bwd_w`` and the words of the convolution, as benchdnn's ``--dir=BWD_W`` has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d import Conv2d
from polysci.ops.nest.text import Reference, c_text
from polysci.ops.problem import Kind, ProblemBase, Shape
from polysci.ops.words import Line

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD: Final = "bwd_w"


@dataclass(frozen=True, slots=True)
class Conv2dBackwardWeights(ProblemBase):
    """``dW[k,c,r,s] = sum over n,p,q of dY[n,k,p,q] * X[n, c, p*sh+r*dh-ph, q*sw+s*dw-pw]``.

    ``forward`` is the convolution. A primitive's x is X and its w is dY, both in its layout; y is
    dW, K C/groups R S. Both x and w change from call to call. A bias has one value a filter.
    """

    forward: Conv2d

    def __post_init__(self) -> None:
        """Raises TypeError for no convolution, SpecError or UnsupportedError for a broken rule."""
        if not isinstance(self.forward, Conv2d):
            kind = type(self.forward).__name__
            raise TypeError(f"Conv2dBackwardWeights: forward must be a Conv2d, got {kind}")
        if not self.forward.N:
            raise SpecError("Conv2dBackwardWeights: N=0 must be positive")
        if precision_named(self.dtype).integer:
            raise UnsupportedError(
                f"Conv2dBackwardWeights: dtype={self.dtype!r}: gradients are computed from reals"
            )

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = "") -> Self:
        """The gradient that a text describes; ``parse(str(x)) == x`` but for layout and dtype.

        Raises SpecError, with a caret under the offending word, or UnsupportedError.
        """
        at = Line(text, where).after(WORD)
        return cls(Conv2d.parse(" " * at + text[at:], layout, dtype, where=where))

    def __str__(self) -> str:
        return f"{WORD} {self.forward}"

    @property
    def key(self) -> str:
        """What identifies the computation: the words without name, the layout, the dtype."""
        return f"{WORD} {self.forward.key}"

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
        """Of x and dY."""
        return self.forward.layout

    @property
    def dtype(self) -> str:
        """Of X, dY and dW, in this order where they differ."""
        return self.forward.dtype

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the full nest; products with padding are counted."""
        return self.forward.flops

    @property
    def terms(self) -> int:
        """Products summed into one element of dW."""
        return self.forward.N * self.forward.P * self.forward.Q

    @property
    def x_shape(self) -> Shape:
        """Of X."""
        return self.forward.x_shape

    @property
    def w_shape(self) -> Shape:
        """Of dY."""
        return self.forward.y_shape

    @property
    def y_shape(self) -> Shape:
        """Of dW."""
        return self.forward.w_shape

    @property
    def w_kind(self) -> Kind:
        """dY changes from call to call."""
        return "activation"

    @property
    def bias_axis(self) -> int:
        """The axis of filters."""
        return 0

    @property
    def batched(self) -> bool:
        """dW has no axis of images: a call has as many as the problem."""
        return False

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        axes = self.forward.axes
        return {"x": axes["x"], "w": axes["y"], "bias": "K", "y": axes["w"]}

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays I, W, O, of which W is written: shape, and strides in elements."""
        return self.forward.arrays()

    def nest(self) -> str:
        """The textbook loop nest in C: that of the convolution, accumulating into W."""
        from polysci.ops.conv2d.nest import guards, loops, subscripts

        extents = loops(self.forward)
        index = subscripts(self.forward)
        arrays = {
            name: Reference(name, tuple(map(str, shape)), index[name])
            for name, (shape, _) in self.arrays().items()
        }
        order = [name for name in ("g", "k", "c", "r", "s", "n", "p", "q") if name in extents]
        return c_text(
            [(name, str(extents[name])) for name in order],
            [arrays[name] for name in "WIO"],
            guards(self.forward),
        )

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """One matrix product a tap and group: filters by pixels times pixels by channels."""
        conv = self.forward
        padded, (sh, sw) = self._padded(x), conv.stride
        across = self._channels_last(w).reshape(-1, conv.groups, conv.K // conv.groups)
        sums = np.empty(self.y_shape, x.dtype)
        for r in range(conv.R):
            for s in range(conv.S):
                top, left = r * conv.dilation[0], s * conv.dilation[1]
                window = padded[
                    :, top : top + (conv.P - 1) * sh + 1 : sh,
                    left : left + (conv.Q - 1) * sw + 1 : sw,
                ]  # fmt: skip
                along = window.reshape(-1, conv.groups, conv.C // conv.groups)
                product = np.matmul(across.transpose(1, 2, 0), along.transpose(1, 0, 2))
                sums[:, :, r, s] = product.reshape(conv.K, -1)
        return sums

    def _padded(self, x: NDArray[Any]) -> NDArray[Any]:
        """X with its channels last and zeros around it, as far as taps reach."""
        (top, left), (bottom, right) = self.forward.pad, self.forward.pad_end
        sides = ((0, 0), (top, max(0, bottom)), (left, max(0, right)), (0, 0))
        return np.pad(self._channels_last(x), sides)

    def _channels_last(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if self.layout == "nhwc" else array.transpose(0, 2, 3, 1)
