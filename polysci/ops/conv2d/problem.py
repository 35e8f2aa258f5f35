"""Conv2d: a 2-D convolution with every extent, its layout and its element type fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv2d.extents import Pair
from polysci.ops.conv2d.rules import AXES, ConvolutionFamily


@dataclass(frozen=True, slots=True, init=False)
class Conv2d(Convolution):
    """``O[n,k,p,q] = sum over c,r,s of I[n, c, p*sh + r*dh - ph, q*sw + s*dw - pw] * W[k,c,r,s]``.

    N C H W: batch and input; K R S: output channels and filter; P Q: output. ``stride``, ``pad``
    (top, left) and ``dilation`` (1 = dense) are pairs (h, w). With ``groups``, output channel k
    reads the input channels of its own group only. Taps outside the image count as zero.
    """

    FAMILY: ClassVar[ConvolutionFamily] = ConvolutionFamily("Conv2d", AXES)

    H: int
    W: int
    R: int
    S: int
    P: int
    Q: int

    def __init__(
        self,
        N: int,
        C: int,
        H: int,
        W: int,
        K: int,
        R: int,
        S: int,
        stride: int | Pair = 1,
        pad: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        P: int | None = None,
        Q: int | None = None,
        layout: str = "nhwc",
        dtype: str = "f32",
        name: str = "",
        multiplicity: int = 1,
        activation: str = "",
    ) -> None:
        """Ints may be any integers, pairs one int for both axes; None computes P or Q.

        A given P or Q decides the padding at the bottom or right, which may crop the input. N may
        be 0. ``dtype`` names a row of PRECISIONS, ``activation`` one of ACTIVATIONS. Raises
        TypeError for a value that is no integer, SpecError or UnsupportedError for a broken rule.
        """
        self._fill({field: value for field, value in locals().items() if field != "self"})
