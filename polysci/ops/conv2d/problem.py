"""Conv2d: a 2-D convolution with every extent, its layout and its element type fixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.numerics.activations import check_activation
from polysci.numerics.dtypes import precision_named
from polysci.ops.conv2d import grammar, reference, rules
from polysci.ops.conv2d.extents import Pair
from polysci.ops.problem import Kind, ProblemBase, Shape
from polysci.ops.words import Line, read
from polysci.text.suggestions import known_name, suggest

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYOUTS = ("nhwc", "nchw")
_AXES = {
    layout: MappingProxyType({"x": x, "w": "K C/groups R S", "bias": "K", "y": y})
    for layout, x, y in (("nhwc", "N H W C", "N P Q K"), ("nchw", "N C H W", "N K P Q"))
}


@dataclass(frozen=True, slots=True, init=False)
class Conv2d(ProblemBase):
    """``O[n,k,p,q] = sum over c,r,s of I[n, c, p*sh + r*dh - ph, q*sw + s*dw - pw] * W[k,c,r,s]``.

    N C H W: batch and input; K R S: output channels and filter; P Q: output. ``stride``, ``pad``
    (top, left) and ``dilation`` (1 = dense) are pairs (h, w). With ``groups``, output channel k
    reads the input channels of its own group only. Taps outside the image count as zero.
    """

    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: Pair
    pad: Pair
    dilation: Pair
    groups: int
    P: int
    Q: int
    layout: str
    dtype: str
    name: str
    multiplicity: int
    activation: str

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
        sizes = {"N": N, "C": C, "H": H, "W": W, "K": K, "R": R, "S": S}
        counts = sizes | {"groups": groups, "multiplicity": multiplicity}
        values = {field: rules.integer(field, value) for field, value in counts.items()}
        pairs = {"stride": stride, "pad": pad, "dilation": dilation}
        fixed = {field: rules.pair(field, value) for field, value in pairs.items()}
        flat = values | rules.flat(fixed)
        rules.check_values(flat)
        texts = _texts(layout=layout, dtype=dtype, name=name, activation=activation)
        stated = {o: rules.integer(o, v) for o, v in (("P", P), ("Q", Q)) if v is not None}
        outputs = dict(zip("PQ", rules.outputs(flat), strict=True)) | stated
        rules.check_output(flat | outputs, stated, precision_named(dtype).sum.bytes)
        for field, value in {**values, **fixed, **outputs, **texts}.items():
            object.__setattr__(self, field, value)

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = "") -> Self:
        """The convolution that benchdnn's words describe; ``parse(str(x)) == x`` but for layout.

        Raises SpecError, with a caret under the offending word, or UnsupportedError for 3-D words.
        """
        words = read(Line(rules.text("text", text), where), grammar.KEYS)
        try:
            return cls(**grammar.arguments(words), layout=layout, dtype=dtype)
        except rules.FieldError as error:
            raise grammar.locate_error(words, error) from None

    def __str__(self) -> str:
        return grammar.write(self)

    @property
    def key(self) -> str:
        """What identifies the computation: the words without name, the layout, the dtype."""
        return f"{grammar.write(self, named=False)} {self.layout} {self.dtype}"

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed; an output extent that was the computed one stays so."""
        values = {field: getattr(self, field) for field in "HWRS"}
        values |= rules.flat({f: getattr(self, f) for f in ("stride", "pad", "dilation")})
        for (size, taps, out, _), computed in zip(rules.AXES, rules.outputs(values), strict=True):
            moved = {size, taps, "stride", "pad", "dilation"} & changes.keys()
            if moved and getattr(self, out) == computed:
                changes.setdefault(out, None)
        return dataclasses.replace(self, **changes)

    @property
    def w_kind(self) -> Kind:
        """The filters are packed ahead."""
        return "constant"

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the full nest; taps that fall on padding are counted."""
        return 2 * self.N * self.K * self.P * self.Q * self.terms

    @property
    def terms(self) -> int:
        """Products summed into one output: C/groups * R * S."""
        return self.C // self.groups * self.R * self.S

    @property
    def x_shape(self) -> Shape:
        """Shape of the input tensor in its layout."""
        return self._ordered(self.N, self.C, self.H, self.W)

    @property
    def w_shape(self) -> Shape:
        """Shape of the weights, (K, C/groups, R, S) whatever the layout."""
        return (self.K, self.C // self.groups, self.R, self.S)

    @property
    def y_shape(self) -> Shape:
        """Shape of the output tensor in its layout."""
        return self._ordered(self.N, self.K, self.P, self.Q)

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of x, w, bias and y."""
        return _AXES[self.layout]

    @property
    def bias_axis(self) -> int:
        """The axis of y that counts output channels: the bias has (K,)."""
        return 3 if self.layout == "nhwc" else 1

    @property
    def batched(self) -> bool:
        """Axis 0 of x and y counts images; a call may have none."""
        return True

    @property
    def pad_end(self) -> Pair:
        """Padding at the bottom and right; negative where the output leaves input unused."""
        ends = []
        for size, taps, out, axis in rules.AXES:
            span = rules.span(getattr(self, taps), self.dilation[axis])
            read_to = (getattr(self, out) - 1) * self.stride[axis] + span
            ends.append(read_to - getattr(self, size) - self.pad[axis])
        return ends[0], ends[1]

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays I, W, O: logical shape, and strides in elements as they are stored."""
        shapes = {"I": (self.N, self.C, self.H, self.W), "O": (self.N, self.K, self.P, self.Q)}
        images = {name: (shape, _strides(shape, self.layout)) for name, shape in shapes.items()}
        return images | {"W": (self.w_shape, _strides(self.w_shape, "nchw"))}

    def nest(self) -> Any:
        """The textbook loop nest over I, W and O as a cgen tree; see ``ops.conv2d.nest``."""
        from polysci.ops.conv2d.nest import nest  # cgen costs 80 ms, and parsing needs none of it

        return nest(self)

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """The convolution by NumPy: image to columns, then a matrix product a group."""
        return reference.convolve(self, x, w)

    def _ordered(self, n: int, channels: int, height: int, width: int) -> Shape:
        if self.layout == "nhwc":
            return (n, height, width, channels)
        return (n, channels, height, width)


def _texts(*, layout: str, dtype: str, name: str, activation: str) -> dict[str, str]:
    """The text fields, checked."""
    texts = {"layout": layout, "dtype": dtype, "name": name, "activation": activation}
    texts = {field: rules.text(field, value) for field, value in texts.items()}
    texts["layout"] = known_name(texts["layout"], LAYOUTS)
    if texts["layout"] not in LAYOUTS:
        known = f"{', '.join(LAYOUTS)}{suggest(layout, LAYOUTS)}"
        raise SpecError(f"Conv2d: layout={layout!r} is none of {known}")
    texts["dtype"] = str(precision_named(texts["dtype"]))
    check_activation("Conv2d", texts["activation"], texts["dtype"])
    bad = next((c for c in texts["name"] if not c.isprintable()), None)
    if bad is not None:
        raise SpecError(f"Conv2d: name holds {bad!r}; a name is printable text")
    return texts


def _strides(shape: Shape, layout: str) -> Shape:
    """Strides in elements of a logical (n, c, h, w) shape stored contiguously in ``layout``."""
    _, c, h, w = shape
    if layout == "nhwc":
        return (h * w * c, 1, w * c, c)
    return (c * h * w, h * w, w, 1)
