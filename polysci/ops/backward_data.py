"""The gradient of a convolution's input, from its filters and dL/dy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polysci.loop_ir.nodes import LoopFunction
from polysci.ops.conv1d import Conv1d
from polysci.ops.conv2d import Conv2d
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv2d.nest import iterators, loops, subscripts
from polysci.ops.conv3d import Conv3d
from polysci.ops.convolution_gradient import ConvolutionGradient, axes_of_gradient
from polysci.ops.problem import Kind, Shape
from polysci.ops.textbook import iterator
from polysci.polyhedral.affine import Affine

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BackwardData(ConvolutionGradient):
    """``dX[n,c,h,w] = sum of dY[n,k,p,q] * W[k,c,r,s]`` over all k and those p, q, r, s that meet
    ``p*sh + r*dh - ph = h`` and ``q*sw + s*dw - pw = w``; so over one or three axes.

    ``forward`` is the convolution. A primitive's x is dY and its y is dX, both in its layout; w are
    the filters as the convolution takes them, packed ahead. Pixels of dX that no
    filter reads are zero. A bias has one value a channel of dX.
    """

    WORD: ClassVar[str] = "bwd_d"

    @property
    def terms(self) -> int:
        """The most products that are summed into one element of dX."""
        conv = self.forward
        return conv.K // conv.groups * math.prod(conv.taps)

    @property
    def x_shape(self) -> Shape:
        """The shape of dY."""
        return self.forward.y_shape

    @property
    def w_shape(self) -> Shape:
        """The shape of the filters."""
        return self.forward.w_shape

    @property
    def y_shape(self) -> Shape:
        """The shape of dX."""
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

    @property
    def scatters(self) -> bool:
        """Whether strides set apart what neighbouring pixels of dY add to."""
        return any(step != 1 for step in self.forward.stride)

    def nest(self) -> LoopFunction:
        """Return the textbook loop nest: each pixel of dX gathers, or with strides, dY scatters.

        Without strides the taps are mirrored, so that both factors are read forwards as the
        convolution of dY with the filters reads them.
        """
        conv, extents, index = self.forward, loops(self.forward), subscripts(self.forward)
        taps, outs = iterators(conv)
        if self.scatters:
            order = ("n", "k", *outs, "g", "c", *taps)
            return self._nest("IOW", order, index, extents, "I")
        pixels = {size.lower(): getattr(conv, size) for size, *_ in conv.FAMILY.axes}
        rows = zip(pixels, taps, conv.taps, conv.dilation, conv.pad, strict=True)
        places = [
            Affine(((pixel, 1), (tap, apart)), pad - (count - 1) * apart)
            for pixel, tap, count, apart, pad in rows
        ]
        mirrored = [
            Affine(((tap, -1),), count - 1) for tap, count in zip(taps, conv.taps, strict=True)
        ]
        index = {"I": (*index["I"][:2], *map(iterator, pixels)),
                 "O": (*index["O"][:2], *places), "W": (*index["W"][:2], *mirrored)}  # fmt: skip
        order = ("n", "g", "c", *pixels, "k", *taps)
        return self._nest("IOW", order, index, extents | pixels, "O")

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """One matrix product a tap and group: pixels by filters times filters by channels."""
        conv = self.forward
        sums = np.empty(self.y_shape, x.dtype)
        padded = self._pad(np.zeros_like(sums))
        across = self._channels_last(x).reshape(-1, conv.groups, conv.K // conv.groups)
        filters = w.reshape(conv.groups, conv.K // conv.groups, conv.C // conv.groups, -1)
        for tap, window in enumerate(self._windows(padded)):
            product = np.matmul(across.transpose(1, 0, 2), filters[..., tap])
            window += product.transpose(1, 0, 2).reshape(window.shape)
        result = self._channels_last(sums)
        sides = zip(conv.pad, result.shape[1:-1], strict=True)
        result[...] = padded[:, *(slice(before, before + size) for before, size in sides)]
        return sums


class Conv1dBackwardData(BackwardData):
    """The gradient of the input of a Conv1d."""

    __slots__ = ()
    FORWARD: ClassVar[type[Convolution]] = Conv1d


class Conv2dBackwardData(BackwardData):
    """The gradient of the input of a Conv2d."""

    __slots__ = ()
    FORWARD: ClassVar[type[Convolution]] = Conv2d


class Conv3dBackwardData(BackwardData):
    """The gradient of the input of a Conv3d."""

    __slots__ = ()
    FORWARD: ClassVar[type[Convolution]] = Conv3d
