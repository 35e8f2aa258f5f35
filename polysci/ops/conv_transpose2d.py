"""ConvTranspose2d: PyTorch's transposed convolution, the gradient of a convolution's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.ops import convolution_rules as rules
from polysci.ops import convolution_words as grammar
from polysci.ops.convolution_gradients import (
    Conv2dBackwardData,
    Conv2dBackwardWeights,
    axes_of_gradient,
)
from polysci.ops.convolutions import Conv2d, Pair
from polysci.ops.words import Line, read


@dataclass(frozen=True, slots=True, init=False)
class ConvTranspose2d(Conv2dBackwardData):
    """``y[n,k,p,q] = sum of x[n,c,h,w] * W[c,k,r,s]`` over all c and those h, w, r, s that meet
    ``h*sh + r*dh - ph = p`` and ``w*sw + s*dw - pw = q``.

    N C H W: batch and x; K R S: channels of y and filter; w lies C K/groups R S. P Q: the extents
    of y, ``(H - 1) * stride - 2 * pad + dilation * (R - 1) + output_padding + 1`` and so Q. Text:
    ``deconv`` and benchdnn's words, ``deconv ic16ih8oc8oh16kh4sh2ph1``. ``forward`` is the
    convolution from y to x.
    """

    FAMILY: ClassVar[rules.ConvolutionFamily] = rules.ConvolutionFamily(
        "ConvTranspose2d", rules.AXES, transposed=True
    )
    WORD: ClassVar[str] = "deconv"
    INTEGERS: ClassVar[bool] = True

    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: Pair
    pad: Pair
    output_padding: Pair
    dilation: Pair
    groups: int
    P: int = field(init=False)
    Q: int = field(init=False)
    forward: Conv2d = field(init=False)

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
        output_padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        layout: str = "nhwc",
        dtype: str = "f32",
        name: str = "",
        multiplicity: int = 1,
    ) -> None:
        """Ints may be any integers, pairs one int for both axes. Raises TypeError or SpecError."""
        counts = {"N": N, "C": C, "H": H, "W": W, "K": K, "R": R, "S": S, "groups": groups}
        counts = {name: rules.integer(self.FAMILY, name, value) for name, value in counts.items()}
        pairs = {"stride": stride, "pad": pad, "output_padding": output_padding,
                 "dilation": dilation}  # fmt: skip
        spread = {name: rules.spread(self.FAMILY, name, value) for name, value in pairs.items()}
        rules.check_values(self.FAMILY, counts | rules.flat(spread))
        extents = {out: self._extent(counts, spread, at) for at, out in enumerate("PQ")}
        forward = Conv2d(
            counts["N"], counts["K"], extents["P"], extents["Q"], counts["C"], R, S, stride, pad,
            dilation, groups, H, W, layout, dtype, name, multiplicity,
        )  # fmt: skip
        for own, value in {**counts, **spread, **extents, "forward": forward}.items():
            object.__setattr__(self, own, value)
        self.__post_init__()

    def _extent(self, counts: dict[str, int], pairs: dict[str, tuple[int, ...]], at: int) -> int:
        """P or Q. Raises SpecError for padding that no such output has."""
        size, taps, *_ = self.FAMILY.axes[at]
        step, cut, more, apart = (values[at] for values in pairs.values())
        if more >= max(step, apart):
            raise SpecError(
                f"ConvTranspose2d: output_padding[{at}]={more} must be below stride {step} or "
                f"dilation {apart}"
            )
        extent = (counts[size] - 1) * step + rules.span(counts[taps], apart) - 2 * cut + more
        if extent < 1:
            raise SpecError(f"ConvTranspose2d: pad[{at}]={cut} leaves nothing of the output")
        return extent

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "nhwc", dtype: str = "f32", *, where: str = "") -> Self:
        """Return the deconvolution of benchdnn's words; ``parse(str(x)) == x`` but for layout.

        Raises SpecError, with a caret under the offending word, or UnsupportedError.
        """
        words = read(Line(Line(text, where).behind(cls.WORD), where), grammar.KEYS)
        own = grammar.arguments(words, cls.FAMILY) | {"layout": layout, "dtype": dtype}
        if activation := own.pop("activation"):
            raise UnsupportedError(f"ConvTranspose2d: activation={activation!r}: it has none")
        stated = own.pop("P"), own.pop("Q")
        try:
            least = cls(**own)
            sizes = zip(stated, (least.P, least.Q), strict=True)
            extra = tuple(out - small if out else 0 for out, small in sizes)
            if min(extra) < 0:
                what = f"oh{stated[0]} ow{stated[1]}: x and the padding make {least.P}x{least.Q}"
                raise words.line.error(words.at("oh", "ow"), what)
            return least.with_(output_padding=extra)
        except rules.FieldError as error:
            raise grammar.locate_error(words, error) from None
        except SpecError as error:
            if "\n" in str(error):
                raise
            raise words.line.error(words.at("ph", "oh", "kh"), str(error)) from None

    def __str__(self) -> str:
        return f"{self.WORD} {grammar.write(self)}"

    @property
    def key(self) -> str:
        """The identity of the computation: the words without name, the layout, the dtype."""
        return f"{self.WORD} {grammar.write(self, named=False)} {self.layout} {self.dtype}"

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        own = str.maketrans("HWCPQK", "PQKHWC")  # forward maps y to x
        axes = axes_of_gradient(self.forward.axes, "x")
        return {name: text.translate(own) for name, text in axes.items()}

    def gradient(self, word: str) -> Conv2d | Conv2dBackwardWeights:
        """Return the gradient of x (``bwd_d``), a convolution of dY, or that of the filters."""
        return (
            self.forward if word == Conv2dBackwardData.WORD else Conv2dBackwardWeights(self.forward)
        )

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        names = [own.name for own in fields(self) if own.init]
        names += ["layout", "dtype", "name", "multiplicity"]
        return type(self)(**{name: getattr(self, name) for name in names} | changes)
