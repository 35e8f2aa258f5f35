"""The common parts of both gradients of a convolution: its words, its fields, its taps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import UnsupportedError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d.convolution import Convolution
from polysci.ops.problem import ProblemBase, Shape
from polysci.ops.textbook import Reference, textbook
from polysci.ops.words import Line
from polysci.polyhedral.affine import Affine

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ConvolutionGradient(ProblemBase):
    """A gradient of the convolution ``forward``; its text is a word and those of the convolution.

    The words are those of benchdnn's ``--dir=BWD_D`` and ``--dir=BWD_W``.
    """

    forward: Convolution
    FORWARD: ClassVar[type[Convolution]] = Convolution
    WORD: ClassVar[str]
    INTEGERS: ClassVar[bool] = False  # whether factors may be of 8 bits

    def __post_init__(self) -> None:
        """Raises TypeError for no convolution, UnsupportedError for integers."""
        name, kind = type(self).__name__, self.FORWARD.__name__
        if not isinstance(self.forward, self.FORWARD):
            raise TypeError(f"{name}: forward must be a {kind}, got {type(self.forward).__name__}")
        if self.forward.activation:
            raise UnsupportedError(
                f"{name}: activation={self.forward.activation!r}: gradients are of sums without one"
            )
        if precision_named(self.dtype).integer and not self.INTEGERS:
            raise UnsupportedError(
                f"{name}: dtype={self.dtype!r}: computed as a gradient of {kind}, which takes real "
                "types only"
            )

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = "") -> Self:
        """The gradient that a text describes; ``parse(str(x)) == x`` but for layout and dtype.

        Raises SpecError, with a caret under the offending word, or UnsupportedError.
        """
        forward = Line(text, where).behind(cls.WORD)
        return cls(cls.FORWARD.parse(forward, layout, dtype, where=where))

    def __str__(self) -> str:
        return f"{self.WORD} {self.forward}"

    @property
    def key(self) -> str:
        """The identity of the computation: the words without name, the layout, the dtype."""
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
        """The layout of images."""
        return self.forward.layout

    @property
    def dtype(self) -> str:
        """The element types of x, w and y, in this order where they differ."""
        return self.forward.dtype

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the full nest; products with padding are counted."""
        return self.forward.flops

    @property
    def multiplied_flops(self) -> int:
        """Those of the convolution: its products with padding are none of a gradient."""
        return self.forward.multiplied_flops

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays I, W, O, of which one is written: shape, and strides in elements."""
        return self.forward.arrays()

    def _nest(self, names: str, order: Sequence[str], index: Mapping[str, tuple[Affine, ...]],
              extents: Mapping[str, int], guarded: str) -> LoopFunction:  # fmt: skip
        """Return the loops of ``order`` that have extents around the sum into ``names[0]``."""
        arrays = self.arrays()
        references = [Reference(name, arrays[name][0], index[name]) for name in names]
        loops = {name: extents[name] for name in order if name in extents}
        return textbook("nest", loops, references, guarded)

    def _pad(self, x: NDArray[Any]) -> NDArray[Any]:
        """Images of X with their channels last and zeros around them, as far as taps reach."""
        ends = (max(0, end) for end in self.forward.pad_end)
        sides = zip(self.forward.pad, ends, strict=True)
        return np.pad(self._channels_last(x), ((0, 0), *sides, (0, 0)))

    def _windows(self, padded: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Views of what all outputs read of padded images under each tap."""
        conv = self.forward
        for tap in product(*map(range, conv.taps)):
            rows = zip(tap, conv.dilation, conv.pixels, conv.stride, strict=True)
            spans = (
                slice(at * apart, at * apart + (out - 1) * step + 1, step)
                for at, apart, out, step in rows
            )
            yield padded[:, *spans]

    def _channels_last(self, array: NDArray[Any]) -> NDArray[Any]:
        return array if self.layout == "nhwc" else np.moveaxis(array, 1, -1)


def axes_of_gradient(axes: Mapping[str, str], y: str) -> Mapping[str, str]:
    """Names of the axes where the gradient of ``y``, x or w, is computed from the other and dY."""
    if y == "w":
        return {"x": axes["x"], "w": axes["y"], "bias": "K", "y": axes["w"]}
    return {"x": axes["y"], "w": axes["w"], "bias": "C", "y": axes["x"]}
