"""Convolution: what those over two and over three axes have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.activations import check_activation
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d import grammar, reference, rules
from polysci.ops.conv2d.nest import nest
from polysci.ops.problem import Kind, ProblemBase, Shape, row_strides
from polysci.ops.words import Line, read
from polysci.polyhedral.affine import Affine, count_inside
from polysci.text.suggestions import known_name, suggest

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYOUTS = ("nhwc", "nchw")  # channels last, channels first


@dataclass(frozen=True, slots=True, init=False)
class Convolution(ProblemBase):
    """Images of N and C, filters of K, an output, over the axes of ``FAMILY``.

    ``stride``, ``pad`` (before) and ``dilation`` (1 = dense) have a value for each axis. Taps
    outside the image count as zero.
    """

    FAMILY: ClassVar[rules.ConvolutionFamily]
    WORD: ClassVar[str] = ""
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
    def w_kind(self) -> Kind:
        """The filters are packed ahead."""
        return "constant"

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
        return self._ordered(self._images["I"])

    @property
    def w_shape(self) -> Shape:
        """Shape of the weights, K, C/groups and the taps, whatever the layout."""
        return (self.K, self.C // self.groups, *self.taps)

    @property
    def y_shape(self) -> Shape:
        """Shape of the output tensor in its layout."""
        return self._ordered(self._images["O"])

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of x, w, bias and y."""
        return _name_axes(self.FAMILY, self.layout)

    @property
    def bias_axis(self) -> int:
        """The axis of y that counts output channels: the bias has (K,)."""
        return len(self.FAMILY.axes) + 1 if self.layout == "nhwc" else 1

    @property
    def batched(self) -> bool:
        """Axis 0 of x and y counts images; a call may have none."""
        return True

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
        """Return the textbook loop nest over I, W and O; see ``ops.conv2d.nest``."""
        return nest(self)

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """The convolution by NumPy: image to columns, then a matrix product a group."""
        return reference.convolve(self, x, w)

    def _ordered(self, shape: Shape) -> Shape:
        n, channels, *sizes = shape
        return (n, *sizes, channels) if self.layout == "nhwc" else shape

    def _strides(self, shape: Shape) -> Shape:
        """Strides in elements of a logical (n, c, ...) shape stored in the layout."""
        steps = row_strides(self._ordered(shape))
        return (steps[0], steps[-1], *steps[1:-1]) if self.layout == "nhwc" else steps


@cache
def _name_axes(family: rules.ConvolutionFamily, layout: str) -> Mapping[str, str]:
    rows = [(size, taps, out) for size, taps, out, _ in family.axes]
    sizes, taps, outs = map(" ".join, zip(*rows, strict=True))
    last = layout == "nhwc"
    x, y = (f"N {sizes} C", f"N {outs} K") if last else (f"N C {sizes}", f"N K {outs}")
    return MappingProxyType({"x": x, "w": f"K C/groups {taps}", "bias": "K", "y": y})


def _check_texts(family: rules.ConvolutionFamily, texts: Mapping[str, object]) -> dict[str, str]:
    """The text fields, in their canonical form."""
    checked = {field: rules.text(family, field, value) for field, value in texts.items()}
    layout = checked["layout"]
    checked["layout"] = known_name(layout, LAYOUTS)
    if checked["layout"] not in LAYOUTS:
        known = f"{', '.join(LAYOUTS)}{suggest(layout, LAYOUTS)}"
        raise SpecError(f"{family.name}: layout={layout!r} is none of {known}")
    checked["dtype"] = str(precision_named(checked["dtype"]))
    check_activation(family.name, checked["activation"], checked["dtype"])
    bad = next((c for c in checked["name"] if not c.isprintable()), None)
    if bad is not None:
        raise SpecError(f"{family.name}: name holds {bad!r}; a name is printable text")
    return checked
