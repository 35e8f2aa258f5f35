"""The library's operators for ours: dimensions, formats to try, and how descriptors are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from polysci.errors import UnsupportedError
from polysci.ops import Conv2d, Matmul
from polysci.ops.conv2d.rules import AXES, span
from polysci.ops.problem import Problem
from polysci.peers.onednn import declarations as api
from polysci.peers.onednn.library import Dnnl, Handle

Order = tuple[int, ...]
Formats = tuple[str | None, str | None]  # names of formats of x and y; None: the library's choice
# The primitive descriptor: library, algorithm, descriptors of src, weights and dst, attributes.
Create = Callable[[Dnnl, str, Mapping[int, Handle], Handle], Handle]

_CONVOLUTION_ORDERS: Final[Mapping[str, Order]] = MappingProxyType(
    {"nhwc": (0, 2, 3, 1), "nchw": (0, 1, 2, 3)}
)
_CONVOLUTION_FORMATS: Final[Mapping[str, tuple[Formats, ...]]] = MappingProxyType(
    {
        "nhwc": (("nhwc", "nhwc"), (None, None)),
        "nchw": (("nchw", "nchw"), ("nchw", None), (None, None), ("nhwc", "nhwc")),
    }
)
_ROWS: Final = "row by row"


@dataclass(frozen=True, slots=True)
class DnnlOperator:
    """How the library computes a problem.

    ``dims`` of x, w and y are in the library's order; ``orders`` has the axes of x and y by the
    name of a format, from the outermost to the innermost, ``layout`` is the problem's own. w is
    stored in the order of its dimensions. ``x_argument`` and ``w_argument`` say what x and w are to
    the library; ``scale_mask`` names the axes of w that scales belong to.
    """

    dims: Mapping[str, tuple[int, ...]]
    orders: Mapping[str, Order]
    layout: str
    formats: Sequence[Formats]
    create: Create
    scale_mask: int
    algorithms: Sequence[str] = ("direct",)
    packed: bool = True  # whether w is constant: its format is the library's choice
    x_argument: int = api.SRC
    w_argument: int = api.WEIGHTS


def operator_of(problem: Problem) -> DnnlOperator:
    """Raises UnsupportedError for what the library lacks."""
    for kind, make in _OPERATORS.items():
        if isinstance(problem, kind):
            return make(problem)
    raise UnsupportedError(f"{problem}: oneDNN has no such operator")


def _convolution(conv: Conv2d) -> DnnlOperator:
    filters = conv.K // conv.groups, conv.C // conv.groups, conv.R, conv.S
    after = [
        (getattr(conv, out) - 1) * conv.stride[axis]
        + span(getattr(conv, taps), conv.dilation[axis])
        - getattr(conv, size)
        - conv.pad[axis]
        for size, taps, out, axis in AXES
    ]
    window = list(conv.stride), [step - 1 for step in conv.dilation], list(conv.pad), after

    def create(dnnl: Dnnl, algorithm: str, of: Mapping[int, Handle], attributes: Handle) -> Handle:
        return dnnl.create(
            "primitive_desc", "convolution_forward_primitive_desc_create", dnnl.engine,
            api.FORWARD_INFERENCE, api.ALGORITHMS[algorithm], of[api.SRC], of[api.WEIGHTS],
            dnnl.ffi.NULL, of[api.DST], *window, attributes,
        )  # fmt: skip

    return DnnlOperator(
        dims={
            "x": (conv.N, conv.C, conv.H, conv.W),
            "w": filters if conv.groups == 1 else (conv.groups, *filters),
            "y": (conv.N, conv.K, conv.P, conv.Q),
        },
        orders=_CONVOLUTION_ORDERS,
        layout=conv.layout,
        formats=_CONVOLUTION_FORMATS[conv.layout],
        create=create,
        scale_mask=1 if conv.groups == 1 else 3,  # output channels: of groups and in them
        algorithms=tuple(api.ALGORITHMS),
    )


def _matmul(product: Matmul) -> DnnlOperator:
    """x is the second factor where the first one is constant."""
    swapped = product.constant == "a"

    def create(dnnl: Dnnl, algorithm: str, of: Mapping[int, Handle], attributes: Handle) -> Handle:
        return dnnl.create(
            "primitive_desc", "matmul_primitive_desc_create", dnnl.engine, of[api.SRC],
            of[api.WEIGHTS], dnnl.ffi.NULL, of[api.DST], attributes,
        )  # fmt: skip

    x_argument, w_argument = (api.SRC, api.WEIGHTS)[:: -1 if swapped else 1]
    axes = len(product.y_shape)
    return DnnlOperator(
        dims={"x": product.x_shape, "w": product.w_shape, "y": product.y_shape},
        orders={_ROWS: tuple(range(axes))},
        layout=_ROWS,
        formats=((_ROWS, _ROWS), (None, None)),
        create=create,
        scale_mask=1 << product.bias_axis,
        packed=bool(product.constant),
        x_argument=x_argument,
        w_argument=w_argument,
    )


_OPERATORS: Mapping[type[Problem], Callable[..., DnnlOperator]] = MappingProxyType(
    {Conv2d: _convolution, Matmul: _matmul}
)
