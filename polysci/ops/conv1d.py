"""Conv1d: a 1-D convolution with every extent, its layout and its element type fixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.conv2d.rules import ConvolutionFamily


@dataclass(frozen=True, slots=True, init=False)
class Conv1d(Convolution):
    """``O[n,k,q] = sum over c,s of I[n, c, q*sw + s*dw - pw] * W[k,c,s]``.

    N C W: batch and input; K S: output channels and filter; Q: output. ``stride``, ``pad`` (left)
    and ``dilation`` (1 = dense) are tuples of one. The layout nhwc has channels last (N W C), nchw
    first (N C W), as PyTorch has them; W is K C/groups S. Text: ``conv1d ic16iw100oc32kw3pw1``.
    """

    FAMILY: ClassVar[ConvolutionFamily] = ConvolutionFamily("Conv1d", (("W", "S", "Q", 0),))
    WORD: ClassVar[str] = "conv1d"

    W: int
    S: int
    Q: int

    def __init__(
        self,
        N: int,
        C: int,
        W: int,
        K: int,
        S: int,
        stride: int | tuple[int, ...] = 1,
        pad: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        Q: int | None = None,
        layout: str = "nhwc",
        dtype: str = "f32",
        name: str = "",
        multiplicity: int = 1,
        activation: str = "",
    ) -> None:
        """The arguments and errors of Conv2d, along one axis."""
        self._fill({field: value for field, value in locals().items() if field != "self"})
