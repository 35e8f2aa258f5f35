"""Conv3d: a 3-D convolution with every extent, its layout and its element type fixed.

Text: ``conv3d`` and benchdnn's words, ``conv3d ic16id8oc24kd3pd1``: without w and h it is a cube.
The first word may be left out where others speak of depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv2d.extents import Triple
from polysci.ops.conv2d.rules import ConvolutionFamily


@dataclass(frozen=True, slots=True, init=False)
class Conv3d(Convolution):
    """``O[n,k,z,p,q] = sum over c,t,r,s of I[n, c, z*sd+t*dd-pd, p*sh+r*dh-ph, q*sw+s*dw-pw] * W``.

    N C D H W: batch and input; K T R S: output channels and filter; Z P Q: output. ``stride``,
    ``pad`` (front, top, left) and ``dilation`` (1 = dense) are triples (d, h, w). The layout nhwc
    has channels last (N D H W C), nchw first (N C D H W); W is K C/groups T R S. Groups and taps
    outside the image are those of Conv2d.
    """

    FAMILY: ClassVar[ConvolutionFamily] = ConvolutionFamily(
        "Conv3d", (("D", "T", "Z", 0), ("H", "R", "P", 1), ("W", "S", "Q", 2))
    )
    WORD: ClassVar[str] = "conv3d"

    D: int
    H: int
    W: int
    T: int
    R: int
    S: int
    Z: int
    P: int
    Q: int

    def __init__(
        self,
        N: int,
        C: int,
        D: int,
        H: int,
        W: int,
        K: int,
        T: int,
        R: int,
        S: int,
        stride: int | Triple = 1,
        pad: int | Triple = 0,
        dilation: int | Triple = 1,
        groups: int = 1,
        Z: int | None = None,
        P: int | None = None,
        Q: int | None = None,
        layout: str = "nhwc",
        dtype: str = "f32",
        name: str = "",
        multiplicity: int = 1,
        activation: str = "",
    ) -> None:
        """Ints may be any integers, triples one int for all axes; None computes Z, P or Q.

        A given Z, P or Q decides the padding behind the image, which may crop the input. N may
        be 0. ``dtype`` names a row of PRECISIONS, ``activation`` one of ACTIVATIONS. Raises
        TypeError for a value that is no integer, SpecError or UnsupportedError for a broken rule.
        """
        self._fill({field: value for field, value in locals().items() if field != "self"})
