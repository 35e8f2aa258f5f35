"""Convolutions over one, two and three axes: fields and textbook nest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.affine import Affine, count_inside
from polysci.numerics.dtypes import precision_named
from polysci.numerics.scalar_functions import check_activation
from polysci.ops import convolution_rules as rules
from polysci.ops import convolution_words as grammar
from polysci.ops.convolution_rules import AXES, ConvolutionFamily
from polysci.ops.problem import Kind, Problem, Shape, check_text, row_strides
from polysci.ops.textbook import Reference, iterator, textbook
from polysci.ops.words import Line, read
from polysci.text.names import suggest

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYOUTS = ("nhwc", "nchw")  # channels last, channels first
Pair = tuple[int, int]
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True, init=False)
class Convolution(Problem):
    """Images of N and C, filters of K, an output, over the axes of ``FAMILY``.

    ``stride``, ``pad`` (before) and ``dilation`` (1 = dense) have a value for each axis. Taps
    outside the image count as zero.
    """

    FAMILY: ClassVar[ConvolutionFamily]
    WORD: ClassVar[str] = ""
    w_kind: ClassVar[Kind] = "constant"  # the filters are packed ahead
    batched: ClassVar[bool] = True  # axis 0 of x and y counts images; a call may have none
    N: int
    C: int
    K: int
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    layout: str
    dtype: str
    name: str
    multiplicity: int
    activation: str

    def _fill(self, arguments: Mapping[str, Any]) -> None:
        """Set all fields, from the arguments of the constructor, checked and completed.

        Raises TypeError for a value of another type, SpecError or UnsupportedError for a broken
        rule.
        """
        texts = {field: arguments[field] for field in ("layout", "dtype", "name", "activation")}
        texts = _check_texts(self.FAMILY, texts)
        tuples = {field: arguments[field] for field in ("stride", "pad", "dilation")}
        stated = {field: arguments[field] for field in self.FAMILY.outputs}
        counts = {
            field: value
            for field, value in arguments.items()
            if field not in texts | tuples | stated
        }
        item = precision_named(texts["dtype"]).sum.bytes
        fields = rules.complete(self.FAMILY, counts, tuples, stated, item)
        for field, value in {**fields, **texts}.items():
            object.__setattr__(self, field, value)

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = "") -> Self:
        """The convolution that benchdnn's words describe; ``parse(str(x)) == x`` but for layout.

        Raises SpecError, with a caret under the offending word, or UnsupportedError for words of
        another number of axes.
        """
        line = Line(text, where)
        worded = bool(cls.WORD) and line.text.lstrip().startswith(cls.WORD)
        words = read(Line(line.behind(cls.WORD), where) if worded else line, grammar.KEYS)
        try:
            arguments = grammar.arguments(words, cls.FAMILY)
            return cls(**arguments | {"layout": layout, "dtype": dtype})
        except rules.FieldError as error:
            raise grammar.locate_error(words, error) from None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.WORD, grammar.write(self))))

    @property
    def key(self) -> str:
        """The identity of the computation: the words without name, the layout, the dtype."""
        words = grammar.write(self, named=False)
        return " ".join(filter(None, (self.WORD, words, self.layout, self.dtype)))

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed; an output extent that was the computed one stays so."""
        axes = self.FAMILY.axes
        values = {field: getattr(self, field) for axis in axes for field in axis[:2]}
        values |= rules.flat({f: getattr(self, f) for f in ("stride", "pad", "dilation")})
        outputs = rules.outputs(self.FAMILY, values)
        for (size, taps, out, _), computed in zip(axes, outputs, strict=True):
            moved = {size, taps, "stride", "pad", "dilation"} & changes.keys()
            if moved and getattr(self, out) == computed:
                changes.setdefault(out, None)
        return replace(self, **changes)

    @property
    def taps(self) -> Shape:
        """Extents of the filter."""
        return tuple(getattr(self, taps) for _, taps, _, _ in self.FAMILY.axes)

    @property
    def pixels(self) -> Shape:
        """Extents of the output."""
        return tuple(getattr(self, out) for out in self.FAMILY.outputs)

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the full nest; taps that fall on padding are counted."""
        return 2 * self.N * self.K * math.prod(self.pixels) * self.terms

    @property
    def multiplied_flops(self) -> int:
        """Twice the multiply-adds whose tap falls on the image."""
        subscripts, extents = [], dict[str, int]()
        for size, taps, out, axis in self.FAMILY.axes:
            places = ((out, self.stride[axis]), (taps, self.dilation[axis]))
            subscripts.append((Affine(places, -self.pad[axis]), getattr(self, size)))
            extents |= {name: getattr(self, name) for name in (out, taps)}
        channels = self.C // self.groups
        return 2 * self.N * self.K * channels * count_inside(subscripts, extents)

    @property
    def terms(self) -> int:
        """Products summed into one output: those of the taps and of C/groups."""
        return self.C // self.groups * math.prod(self.taps)

    @property
    def x_shape(self) -> Shape:
        """Shape of the input tensor in its layout."""
        return self._order_axes(self._images["I"])

    @property
    def w_shape(self) -> Shape:
        """Shape of the weights, K, C/groups and the taps, whatever the layout."""
        return (self.K, self.C // self.groups, *self.taps)

    @property
    def y_shape(self) -> Shape:
        """Shape of the output tensor in its layout."""
        return self._order_axes(self._images["O"])

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of x, w, bias and y."""
        return _name_axes(self.FAMILY, self.layout)

    @property
    def bias_axis(self) -> int:
        """The axis of y that counts output channels: the bias has (K,)."""
        return len(self.FAMILY.axes) + 1 if self.layout == "nhwc" else 1

    @property
    def pad_end(self) -> tuple[int, ...]:
        """Padding behind the image on each axis; negative where the output leaves input unused."""
        ends = []
        for size, taps, out, axis in self.FAMILY.axes:
            span = rules.span(getattr(self, taps), self.dilation[axis])
            read_to = (getattr(self, out) - 1) * self.stride[axis] + span
            ends.append(read_to - getattr(self, size) - self.pad[axis])
        return tuple(ends)

    @property
    def _images(self) -> dict[str, Shape]:
        sizes = tuple(getattr(self, size) for size, *_ in self.FAMILY.axes)
        return {"I": (self.N, self.C, *sizes), "O": (self.N, self.K, *self.pixels)}

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays I, W, O: logical shape, and strides in elements as they are stored."""
        images = {name: (shape, self._strides(shape)) for name, shape in self._images.items()}
        return images | {"W": (self.w_shape, row_strides(self.w_shape))}

    def nest(self) -> LoopFunction:
        """Return ``conv2d(O, I, W)``: O, zeroed by the caller, accumulates.

        Logical arrays I[N][C][H][W], W[K][C/g][R][S] and O[N][K][P][Q]; loops n, g (only with
        groups), k, p, q, c, r, s; with depth D, T and Z go before H, R and P. Guards keep I in
        bounds where the padding makes them necessary.
        """
        index, arrays = self.subscripts(), self.arrays()
        references = [Reference(name, arrays[name][0], index[name]) for name in "OIW"]
        return textbook(self.FAMILY.name.lower(), self.loops(), references, "I")

    def loops(self) -> dict[str, int]:
        """Return the loops and their extents, outer first."""
        extents = {"n": self.N} | ({"g": self.groups} if self.groups > 1 else {})
        taps, outs = self.iterators()
        extents |= {"k": self.K // self.groups} | dict(zip(outs, self.pixels, strict=True))
        return extents | {"c": self.C // self.groups} | dict(zip(taps, self.taps, strict=True))

    def subscripts(self) -> dict[str, tuple[Affine, ...]]:
        """Return the subscripts of the logical arrays I, W and O in the statement."""
        k, c = (
            Affine((("g", count // self.groups), (own, 1))) if self.groups > 1 else iterator(own)
            for own, count in (("k", self.K), ("c", self.C))
        )
        taps, outs = self.iterators()
        places = zip(outs, self.stride, taps, self.dilation, self.pad, strict=True)
        read = [Affine(((out, step), (tap, apart)), -pad) for out, step, tap, apart, pad in places]
        n, inner = iterator("n"), iterator("c")
        return {
            "I": (n, c, *read),
            "W": (k, inner, *map(iterator, taps)),
            "O": (n, k, *map(iterator, outs)),
        }

    def iterators(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the loops over taps and over outputs."""
        _, taps, outs, _ = zip(*self.FAMILY.axes, strict=True)
        return tuple(map(str.lower, taps)), tuple(map(str.lower, outs))

    def channels_last(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a view of images in the layout with their channels last."""
        return array if self.layout == "nhwc" else np.moveaxis(array, 1, -1)

    def _order_axes(self, shape: Shape) -> Shape:
        n, channels, *sizes = shape
        return (n, *sizes, channels) if self.layout == "nhwc" else shape

    def _strides(self, shape: Shape) -> Shape:
        """Strides in elements of a logical (n, c, ...) shape stored in the layout."""
        steps = row_strides(self._order_axes(shape))
        return (steps[0], steps[-1], *steps[1:-1]) if self.layout == "nhwc" else steps


@cache
def _name_axes(family: ConvolutionFamily, layout: str) -> Mapping[str, str]:
    rows = [(size, taps, out) for size, taps, out, _ in family.axes]
    sizes, taps, outs = map(" ".join, zip(*rows, strict=True))
    last = layout == "nhwc"
    x, y = (f"N {sizes} C", f"N {outs} K") if last else (f"N C {sizes}", f"N K {outs}")
    return MappingProxyType({"x": x, "w": f"K C/groups {taps}", "bias": "K", "y": y})


def _check_texts(family: ConvolutionFamily, texts: Mapping[str, object]) -> dict[str, str]:
    """Return the text fields, in their canonical form."""
    checked = {field: rules.text(family, field, value) for field, value in texts.items()}
    layout = checked["layout"]
    checked["layout"] = layout.lower()
    if checked["layout"] not in LAYOUTS:
        known = f"{', '.join(LAYOUTS)}{suggest(layout, LAYOUTS)}"
        raise SpecError(f"{family.name}: layout={layout!r} is none of {known}")
    precision = precision_named(checked["dtype"])
    if precision.w.block > 1:
        raise UnsupportedError(
            f"{family.name}: dtype={str(precision)!r}: blocks of weights are those of products: "
            "linear:ROWSxINxOUT"
        )
    checked["dtype"] = str(precision)
    check_activation(family.name, checked["activation"], checked["dtype"])
    check_text(family.name, "name", checked["name"])
    return checked


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
