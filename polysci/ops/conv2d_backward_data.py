"""Conv2dBackwardData: the gradient of a convolution's input, from its filters and dL/dy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.ops.conv2d import Conv2d, rules
from polysci.ops.conv2d.extents import Pair
from polysci.ops.conv2d_gradient import Conv2dGradient, axes_of_gradient
from polysci.ops.nest.text import Reference, c_text
from polysci.ops.problem import Kind, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Conv2dBackwardData(Conv2dGradient):
    """``dX[n,c,h,w] = sum of dY[n,k,p,q] * W[k,c,r,s]`` over all k and those p, q, r, s that meet
    ``p*sh + r*dh - ph = h`` and ``q*sw + s*dw - pw = w``.

    ``forward`` is the convolution. A primitive's x is dY and its y is dX, both in its layout; w are
    the filters as the convolution takes them, K C/groups R S, packed ahead. Pixels of dX that no
    filter reads are zero. A bias has one value a channel of dX.
    """

    WORD: ClassVar[str] = "bwd_d"

    @classmethod
    @guard
    def transposed(
        cls,
        N: int,
        C: int,
        H: int,
        W: int,
        K: int,
        R: int,
        S: int,
        stride: int | Pair = 1,
        pad: int | Pair = 0,
        output_padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        **others: Any,
    ) -> Self:
        """The transposed convolution of PyTorch's ``ConvTranspose2d``: x has C channels, y K.

        y has ``(H - 1) * stride - 2 * pad + dilation * (R - 1) + output_padding + 1`` rows, and so
        its columns; w lies C K/groups R S. ``others`` are layout, dtype, name and multiplicity.
        Raises TypeError, or SpecError for a broken rule.
        """
        steps, cut, more, apart = (
            rules.spread(Conv2d.FAMILY, field, value)
            for field, value in (
                ("stride", stride), ("pad", pad), ("output_padding", output_padding),
                ("dilation", dilation),
            )
        )  # fmt: skip
        rows = []
        for size, taps, axis in ((H, R, 0), (W, S, 1)):
            if not 0 <= more[axis] < max(steps[axis], apart[axis]):
                raise SpecError(
                    f"ConvTranspose2d: output_padding[{axis}]={more[axis]} must not be negative, "
                    f"and below stride {steps[axis]} or dilation {apart[axis]}"
                )
            reach = (size - 1) * steps[axis] + rules.span(taps, apart[axis])
            rows.append(reach - 2 * cut[axis] + more[axis])
        return cls(Conv2d(
            N=N, C=K, H=rows[0], W=rows[1], K=C, R=R, S=S, stride=(steps[0], steps[1]),
            pad=(cut[0], cut[1]), dilation=(apart[0], apart[1]), groups=groups, P=H, Q=W, **others,
        ))  # fmt: skip

    @property
    def terms(self) -> int:
        """The most products that are summed into one element of dX."""
        conv = self.forward
        return conv.K // conv.groups * conv.R * conv.S

    @property
    def x_shape(self) -> Shape:
        """Of dY."""
        return self.forward.y_shape

    @property
    def w_shape(self) -> Shape:
        """Of the filters."""
        return self.forward.w_shape

    @property
    def y_shape(self) -> Shape:
        """Of dX."""
        return self.forward.x_shape

    @property
    def w_kind(self) -> Kind:
        """The filters are packed ahead."""
        return "constant"

    @property
    def bias_axis(self) -> int:
        """The axis of channels."""
        return self.forward.bias_axis

    @property
    def batched(self) -> bool:
        """Axis 0 of dY and dX counts images; a call may have none."""
        return True

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        return axes_of_gradient(self.forward.axes, "x")

    def nest(self) -> str:
        """The textbook loop nest in C: each pixel of dX gathers, or with strides, dY scatters.

        Without strides the taps are mirrored, so that both factors are read forwards as the
        convolution of dY with the filters reads them.
        """
        from polysci.ops.conv2d.nest import guards, loops, subscripts

        conv, extents, index = self.forward, loops(self.forward), subscripts(self.forward)
        order: str = "nkpqgcrs"
        conditions: list[str] | None = guards(conv)
        if conv.stride == (1, 1):
            down, across = (_mirror(conv, axis) for axis in (0, 1))
            index["I"] = (*index["I"][:2], "h", "w")
            index["O"] = (*index["O"][:2], down, across)
            index["W"] = (*index["W"][:2], f"{conv.R - 1} - r", f"{conv.S - 1} - s")
            extents |= {"h": conv.H, "w": conv.W}
            order, conditions = "ngchwkrs", None
        arrays = {
            name: Reference(name, tuple(map(str, shape)), index[name])
            for name, (shape, _) in self.arrays().items()
        }
        loops_ = [(name, str(extents[name])) for name in order if name in extents]
        return c_text(loops_, [arrays[name] for name in "IOW"], conditions)

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """One matrix product a tap and group: pixels by filters times filters by channels."""
        conv = self.forward
        sums = np.empty(self.y_shape, x.dtype)
        padded = self._pad(np.zeros_like(sums))
        across = self._channels_last(x).reshape(-1, conv.groups, conv.K // conv.groups)
        filters = w.reshape(conv.groups, conv.K // conv.groups, *w.shape[1:])
        for r, s, window in self._windows(padded):
            product = np.matmul(across.transpose(1, 0, 2), filters[..., r, s])
            window += product.transpose(1, 0, 2).reshape(window.shape)
        (top, left) = conv.pad
        self._channels_last(sums)[...] = padded[:, top : top + conv.H, left : left + conv.W]
        return sums


def _mirror(conv: Conv2d, axis: int) -> str:
    """The row or column of dY that the mirrored tap r or s of a pixel of dX reads."""
    pixel, tap, taps = (("h", "r", conv.R), ("w", "s", conv.S))[axis]
    apart = conv.dilation[axis]
    return f"{pixel} + {apart} * {tap} + {conv.pad[axis]} - {(taps - 1) * apart}"
