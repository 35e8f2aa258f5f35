"""The library's operators for ours: dimensions, formats to try, and how descriptors are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from polysci.errors import UnsupportedError
from polysci.ops import BackwardData, BackwardWeights, Matmul
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import Problem
from polysci.peers.onednn import declarations as api
from polysci.peers.onednn.library import Dnnl, Handle

Order = tuple[int, ...]
Formats = tuple[Order | None, Order | None, Order | None]  # of x, w, y; None: the library's choice
# The primitive descriptor: library, algorithm, memory descriptors by argument, attributes.
Create = Callable[[Dnnl, str, Mapping[int, Handle], Handle], Handle]

# Layouts of both images of a convolution, its input first; None: the library's choice.
_IMAGES: Final[Mapping[str, Sequence[tuple[str | None, str | None]]]] = MappingProxyType(
    {
        "nhwc": (("nhwc", "nhwc"), (None, None)),
        "nchw": (("nchw", "nchw"), ("nchw", None), (None, None), ("nhwc", "nhwc")),
    }
)


@dataclass(frozen=True, slots=True)
class DnnlOperand:
    """An operand as the library knows it: the number of the argument, and its dimensions.

    ``order`` has the axes as the problem stores them, from the outermost to the innermost;
    ``letters`` names them.
    """

    argument: int
    dims: tuple[int, ...]
    order: Order
    letters: str

    def name(self, order: Order | None) -> str:
        """A format, as ``nhwc``."""
        return "any" if order is None else "".join(self.letters[axis] for axis in order)


@dataclass(frozen=True, slots=True)
class DnnlOperator:
    """How the library computes a problem.

    ``operands`` are x, w and y; ``formats`` are those to try. ``scale_mask`` names the axes of w
    that scales belong to. ``packed``: w is constant, so that it is brought into a format ahead.
    ``activation`` is that of the problem.
    """

    operands: Mapping[str, DnnlOperand]
    formats: Sequence[Formats]
    create: Create
    scale_mask: int = 0
    algorithms: Sequence[str] = ("direct",)
    packed: bool = True
    activation: str = ""


@dataclass(frozen=True, slots=True)
class _Direction:
    """A direction of convolution: the function of its descriptor, and what that takes.

    ``arguments`` are those of x, w and y, ``formats`` those whose memory descriptors the function
    takes, 0 for a bias; ``kind`` comes before them, ``hints`` null pointers after the window.
    """

    function: str
    arguments: tuple[int, int, int]
    formats: tuple[int, ...]
    kind: tuple[int, ...] = ()
    hints: int = 1


_FORWARD: Final = _Direction(
    "convolution_forward", (api.SRC, api.WEIGHTS, api.DST), (api.SRC, api.WEIGHTS, 0, api.DST),
    kind=(api.FORWARD_INFERENCE,), hints=0,
)  # fmt: skip
_BACKWARD_DATA: Final = _Direction(
    "convolution_backward_data", (api.DIFF_DST, api.WEIGHTS, api.DIFF_SRC),
    (api.DIFF_SRC, api.WEIGHTS, api.DIFF_DST),
)  # fmt: skip
_BACKWARD_WEIGHTS: Final = _Direction(
    "convolution_backward_weights", (api.SRC, api.DIFF_DST, api.DIFF_WEIGHTS),
    (api.SRC, api.DIFF_WEIGHTS, 0, api.DIFF_DST),
)  # fmt: skip


def operator_of(problem: Problem) -> DnnlOperator:
    """Raises UnsupportedError for what the library lacks."""
    for kind, make in _OPERATORS.items():
        if isinstance(problem, kind):
            return replace(make(problem), activation=problem.activation)
    raise UnsupportedError(f"{problem}: oneDNN has no such operator")


def _convolve(conv: Convolution, direction: _Direction, *, packed: bool = True) -> DnnlOperator:
    """A direction of a convolution, of images and filters."""
    filters: tuple[int, ...] = (conv.K // conv.groups, conv.C // conv.groups, *conv.taps)
    filters = filters if conv.groups == 1 else (conv.groups, *filters)
    own = tuple(range(len(filters)))
    (source, _), (results, _) = (conv.arrays()[name] for name in "IO")
    images = _order(conv.layout, len(source))
    letters = conv.FAMILY.letters
    of_filters = f"{'g' if conv.groups > 1 else ''}oi{letters}"
    window = (
        *(list(conv.stride), [step - 1 for step in conv.dilation]),
        *(list(conv.pad), list(conv.pad_end)),
    )
    shapes: dict[int, tuple[tuple[int, ...], Order, str]] = {
        **dict.fromkeys((api.SRC, api.DIFF_SRC), (source, images, f"nc{letters}")),
        **dict.fromkeys((api.WEIGHTS, api.DIFF_WEIGHTS), (filters, own, of_filters)),
        **dict.fromkeys((api.DST, api.DIFF_DST), (results, images, f"nc{letters}")),
    }

    def create(dnnl: Dnnl, algorithm: str, of: Mapping[int, Handle], attributes: Handle) -> Handle:
        none = dnnl.ffi.NULL
        formats = [of[argument] if argument else none for argument in direction.formats]
        return dnnl.create(
            "primitive_desc", f"{direction.function}_primitive_desc_create", dnnl.engine,
            *direction.kind, api.ALGORITHMS[algorithm], *formats, *window,
            *([none] * direction.hints), attributes,
        )  # fmt: skip

    return DnnlOperator(
        operands={
            name: DnnlOperand(argument, *shapes[argument])
            for name, argument in zip("xwy", direction.arguments, strict=True)
        },
        formats=[
            _formats(direction, [_order(name, len(source)) if name else None for name in pair])
            for pair in _IMAGES[conv.layout]
        ],
        create=create,
        scale_mask=1 if conv.groups == 1 else 3,  # output channels: of groups and in them
        algorithms=tuple(api.ALGORITHMS),
        packed=packed,
    )


def _order(layout: str, axes: int) -> Order:
    """The axes of images, from the outermost to the innermost."""
    return (0, *range(2, axes), 1) if layout == "nhwc" else tuple(range(axes))


def _formats(direction: _Direction, images: Sequence[Order | None]) -> Formats:
    """Formats of x, w and y: of both images, filters as the library chooses."""
    of = dict.fromkeys((api.SRC, api.DIFF_SRC), images[0])
    of |= dict.fromkeys((api.DST, api.DIFF_DST), images[1])
    x, w, y = (of.get(argument) for argument in direction.arguments)
    return x, w, y


def _matmul(product: Matmul) -> DnnlOperator:
    """x may be the second factor, and w the first."""
    if product.alpha != 1:
        raise UnsupportedError(f"{product}: oneDNN is timed without alpha")
    swapped = product.w_is_a
    factors = (api.SRC, "M K"), (api.WEIGHTS, "K N")
    arguments = dict(zip("xw", factors[:: -1 if swapped else 1], strict=True))
    operands = {
        name: _matrix(product, name, argument, axes)
        for name, (argument, axes) in {**arguments, "y": (api.DST, "M N")}.items()
    }

    def create(dnnl: Dnnl, algorithm: str, of: Mapping[int, Handle], attributes: Handle) -> Handle:
        return dnnl.create(
            "primitive_desc", "matmul_primitive_desc_create", dnnl.engine, of[api.SRC],
            of[api.WEIGHTS], dnnl.ffi.NULL, of[api.DST], attributes,
        )  # fmt: skip

    x, w, y = (operands[name].order for name in "xwy")
    return DnnlOperator(
        operands=operands,
        formats=((x, None, y) if product.constant else (x, w, y), (None, None, None)),
        create=create,
        scale_mask=1 << (len(operands["w"].dims) - (2 if swapped else 1)),
        packed=bool(product.constant),
    )


def _matrix(product: Matmul, name: str, argument: int, axes: str) -> DnnlOperand:
    """A factor or the result; the library has its batch first, then ``axes``, in any order."""
    stored = product.axes[name].split()
    own = [*(["batch"] if "batch" in stored else []), *axes.split()]
    sizes = dict(zip(stored, getattr(product, f"{name}_shape"), strict=True))
    letters = "".join(axis[0].lower() for axis in own)
    order = tuple(own.index(axis) for axis in stored)
    return DnnlOperand(argument, tuple(sizes[axis] for axis in own), order, letters)


_OPERATORS: Mapping[type[Problem], Callable[..., DnnlOperator]] = MappingProxyType(
    {
        Convolution: lambda conv: _convolve(conv, _FORWARD),
        BackwardData: lambda gradient: _convolve(gradient.forward, _BACKWARD_DATA),
        BackwardWeights: lambda gradient: _convolve(
            gradient.forward, _BACKWARD_WEIGHTS, packed=False
        ),
        Matmul: _matmul,
    }
)
