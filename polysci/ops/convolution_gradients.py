"""The gradients of a convolution's input and filters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import UnsupportedError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import precision_named
from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d, Convolution
from polysci.ops.problem import Kind, Problem, Shape
from polysci.ops.textbook import Reference, iterator, textbook
from polysci.ops.words import Line

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _forwarded(name: str, doc: str = "") -> property:
    """Return a property that is the one of the convolution, as dataclasses with slots take it."""
    return property(lambda gradient: getattr(gradient.forward, name), doc=doc)


@dataclass(frozen=True, slots=True)
class ConvolutionGradient(Problem):
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
        """Return a copy with some fields of the convolution changed."""
        return type(self)(self.forward.with_(**changes))

    name = _forwarded("name")
    multiplicity = _forwarded("multiplicity")
    layout = _forwarded("layout", "The layout of images.")
    dtype = _forwarded("dtype", "The element types of x, w and y.")
    flops = _forwarded("flops", "Products with padding are counted.")
    multiplied_flops = _forwarded("multiplied_flops")  # without padding

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


def axes_of_gradient(axes: Mapping[str, str], y: str) -> Mapping[str, str]:
    """Names of the axes where the gradient of ``y``, x or w, is computed from the other and dY."""
    if y == "w":
        return {"x": axes["x"], "w": axes["y"], "bias": "K", "y": axes["w"]}
    return {"x": axes["y"], "w": axes["w"], "bias": "C", "y": axes["x"]}


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

    x_shape = _forwarded("y_shape", "The shape of dY.")
    w_shape = _forwarded("w_shape", "The shape of the filters.")
    y_shape = _forwarded("x_shape", "The shape of dX.")
    bias_axis = _forwarded("bias_axis", "The axis of channels.")
    w_kind: ClassVar[Kind] = "constant"
    batched: ClassVar[bool] = True  # axis 0 of dY and dX counts images; a call may have none

    @property
    def axes(self) -> Mapping[str, str]:
        """Return names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        return axes_of_gradient(self.forward.axes, "x")

    @property
    def scatters(self) -> bool:
        """Tell whether strides set apart what neighbouring pixels of dY add to."""
        return any(step != 1 for step in self.forward.stride)

    def nest(self) -> LoopFunction:
        """Return the textbook loop nest: each pixel of dX gathers, or with strides, dY scatters.

        Without strides the taps are mirrored, so that both factors are read forwards as the
        convolution of dY with the filters reads them.
        """
        conv, extents, index = self.forward, self.forward.loops(), self.forward.subscripts()
        taps, outs = conv.iterators()
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
        """Return dX by one matrix product a tap and group: pixels by filters by channels.

        Each tap adds to the pixels of a padded image that it reads in the convolution.
        """
        conv = self.forward
        sums = np.empty(self.y_shape, x.dtype)
        result = conv.channels_last(sums)
        ends = (max(0, end) for end in conv.pad_end)
        sides = [(0, 0), *zip(conv.pad, ends, strict=True), (0, 0)]
        padded = np.pad(np.zeros_like(result), sides)
        across = conv.channels_last(x).reshape(-1, conv.groups, conv.K // conv.groups)
        filters = w.reshape(conv.groups, conv.K // conv.groups, conv.C // conv.groups, -1)
        for at, tap in enumerate(product(*map(range, conv.taps))):
            rows = zip(tap, conv.dilation, conv.pixels, conv.stride, strict=True)
            window = padded[:, *(
                slice(place * apart, place * apart + (out - 1) * step + 1, step)
                for place, apart, out, step in rows
            )]  # fmt: skip
            pixels = np.matmul(across.transpose(1, 0, 2), filters[..., at])
            window += pixels.transpose(1, 0, 2).reshape(window.shape)
        spans = zip(sides, result.shape, strict=True)
        result[...] = padded[tuple(slice(first, first + size) for (first, _), size in spans)]
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

    x_shape = _forwarded("x_shape", "The shape of X.")
    w_shape = _forwarded("y_shape", "The shape of dY.")
    y_shape = _forwarded("w_shape", "The shape of dW.")
    w_kind: ClassVar[Kind] = "activation"
    bias_axis: ClassVar[int] = 0
    batched: ClassVar[bool] = False  # dW has no axis of images: a call has as many as the problem

    @property
    def axes(self) -> Mapping[str, str]:
        """Return names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        return axes_of_gradient(self.forward.axes, "w")

    def nest(self) -> LoopFunction:
        """Return the textbook loop nest: that of the convolution, accumulating into W."""
        conv = self.forward
        taps, outs = conv.iterators()
        order = ("g", "k", "c", *taps, "n", *outs)
        return self._nest("WIO", order, conv.subscripts(), conv.loops(), "I")


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


# The problems of both gradients of each convolution: of its input, and of its filters.
GRADIENTS: Mapping[type[Convolution], tuple[type[BackwardData], type[BackwardWeights]]] = {
    Conv1d: (Conv1dBackwardData, Conv1dBackwardWeights),
    Conv2d: (Conv2dBackwardData, Conv2dBackwardWeights),
    Conv3d: (Conv3dBackwardData, Conv3dBackwardWeights),
}
