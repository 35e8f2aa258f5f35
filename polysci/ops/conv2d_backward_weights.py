"""Conv2dBackwardWeights: the gradient of a convolution's filters, from its input and dL/dy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polysci.errors import SpecError
from polysci.ops.conv2d_gradient import Conv2dGradient, axes_of_gradient
from polysci.ops.nest.text import Reference, c_text
from polysci.ops.problem import Kind, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Conv2dBackwardWeights(Conv2dGradient):
    """``dW[k,c,r,s] = sum over n,p,q of dY[n,k,p,q] * X[n, c, p*sh+r*dh-ph, q*sw+s*dw-pw]``.

    ``forward`` is the convolution. A primitive's x is X and its w is dY, both in its layout; y is
    dW, K C/groups R S. Both x and w change from call to call. A bias has one value a filter.
    """

    WORD: ClassVar[str] = "bwd_w"

    def __post_init__(self) -> None:
        """Raises TypeError for no convolution, SpecError or UnsupportedError for a broken rule."""
        Conv2dGradient.__post_init__(self)
        if not self.forward.N:
            raise SpecError("Conv2dBackwardWeights: N=0 must be positive")

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
        return axes_of_gradient(self.forward.axes, "w")

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
        across = self._channels_last(w).reshape(-1, conv.groups, conv.K // conv.groups)
        sums = np.empty(self.y_shape, x.dtype)
        for r, s, window in self._windows(self._pad(x)):
            along = window.reshape(-1, conv.groups, conv.C // conv.groups)
            product = np.matmul(across.transpose(1, 2, 0), along.transpose(1, 0, 2))
            sums[:, :, r, s] = product.reshape(conv.K, -1)
        return sums
