"""The gradient of a convolution's filters, from its input and dL/dy."""

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

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BackwardWeights(ConvolutionGradient):
    """``dW[k,c,r,s] = sum over n,p,q of dY[n,k,p,q] * X[n, c, p*sh+r*dh-ph, q*sw+s*dw-pw]``.

    ``forward`` is the convolution. A primitive's x is X and its w is dY, both in its layout; y is
    dW, as the filters. Both x and w change from call to call. A bias has one value a filter. Sums
    over no images are zeros.
    """

    WORD: ClassVar[str] = "bwd_w"

    @property
    def terms(self) -> int:
        """Products summed into one element of dW."""
        return self.forward.N * math.prod(self.forward.pixels)

    @property
    def x_shape(self) -> Shape:
        """The shape of X."""
        return self.forward.x_shape

    @property
    def w_shape(self) -> Shape:
        """The shape of dY."""
        return self.forward.y_shape

    @property
    def y_shape(self) -> Shape:
        """The shape of dW."""
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
        return axes_of_gradient(self.forward.axes, "w")

    def nest(self) -> LoopFunction:
        """Return the textbook loop nest: that of the convolution, accumulating into W."""
        conv = self.forward
        taps, outs = iterators(conv)
        order = ("g", "k", "c", *taps, "n", *outs)
        return self._nest("WIO", order, subscripts(conv), loops(conv), "I")

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """One matrix product a tap and group: filters by pixels times pixels by channels."""
        conv = self.forward
        across = self._channels_last(w).reshape(-1, conv.groups, conv.K // conv.groups)
        sums = np.empty((conv.K, conv.C // conv.groups, math.prod(conv.taps)), x.dtype)
        for tap, window in enumerate(self._windows(self._pad(x))):
            along = window.reshape(-1, conv.groups, conv.C // conv.groups)
            product = np.matmul(across.transpose(1, 2, 0), along.transpose(1, 0, 2))
            sums[..., tap] = product.reshape(conv.K, -1)
        return sums.reshape(self.y_shape)


class Conv1dBackwardWeights(BackwardWeights):
    """The gradient of the filters of a Conv1d."""

    __slots__ = ()
    FORWARD: ClassVar[type[Convolution]] = Conv1d


class Conv2dBackwardWeights(BackwardWeights):
    """The gradient of the filters of a Conv2d."""

    __slots__ = ()
    FORWARD: ClassVar[type[Convolution]] = Conv2d


class Conv3dBackwardWeights(BackwardWeights):
    """The gradient of the filters of a Conv3d."""

    __slots__ = ()
    FORWARD: ClassVar[type[Convolution]] = Conv3d
