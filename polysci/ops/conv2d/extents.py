"""The fields of a convolution that the words, the nest and the reference read."""

from __future__ import annotations

from typing import ClassVar, Protocol

from polysci.ops.conv2d.rules import ConvolutionFamily
from polysci.ops.problem import Shape

Pair = tuple[int, int]
Triple = tuple[int, int, int]


class ConvolutionFields(Protocol):
    """The fields of a convolution but for those of its axes."""

    FAMILY: ClassVar[ConvolutionFamily]

    @property
    def N(self) -> int: ...
    @property
    def C(self) -> int: ...
    @property
    def K(self) -> int: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def pad(self) -> tuple[int, ...]: ...
    @property
    def dilation(self) -> tuple[int, ...]: ...
    @property
    def groups(self) -> int: ...
    @property
    def layout(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def multiplicity(self) -> int: ...
    @property
    def activation(self) -> str: ...


class ConvolutionExtents(ConvolutionFields, Protocol):
    """The fields and the shapes that follow."""

    @property
    def y_shape(self) -> Shape: ...
    @property
    def taps(self) -> Shape: ...
    @property
    def pixels(self) -> Shape: ...

    def arrays(self) -> dict[str, tuple[Shape, Shape]]: ...
