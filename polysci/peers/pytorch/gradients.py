"""The ways to compute gradients of a convolution: what autograd calls, and packed filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from polysci.ops.convolution_rules import span
from polysci.peers.pytorch.operands import Operands, Step, Way

_EAGER: Final = "eager convolution_backward"
_PACKED: Final = "mkldnn._convolution_transpose_pointwise"


def of_input(operands: Operands) -> Sequence[Way]:
    """Gradients of the input; the filters are packed ahead, or stored as autograd has them."""
    if operands.conv.layout == "nhwc":
        return (
            Way(f"{_PACKED}, channels_last", _transpose),
            Way(f"{_EAGER}, filters channels_last", _input_channels_last),
            Way(_EAGER, _input),
        )
    note = "layouts changed before and after"
    return (
        Way(f"{_PACKED}, {note}", _transpose, before=True, after=True),
        Way(f"{_PACKED}, layout changed after", _transpose, after=True),
        Way(f"{_EAGER}, {note}", _input_channels_last, before=True, after=True),
        Way(_EAGER, _input),
    )


def of_filters(operands: Operands) -> Sequence[Way]:
    """Gradients of the filters, brought to the order of the filters in the call."""
    eager = Way(_EAGER, _filters, after=True)
    if operands.conv.layout == "nhwc":
        return (eager,)
    last = Way(f"{_EAGER}, layouts changed before", _filters_channels_last, True, True)
    return (last, eager)


def _transpose(operands: Operands, w: Any) -> Step:
    """The transposed convolution on filters packed ahead."""
    torch, (stride, pad, dilation, groups) = operands.torch, operands.geometry
    conv = operands.conv
    left = [
        (getattr(conv, size) + 2 * pad[axis] - span(getattr(conv, taps), dilation[axis]))
        % stride[axis]
        for size, taps, _, axis in conv.FAMILY.axes
    ]
    window = (pad, left, stride, dilation, groups)
    pack = torch.ops.mkldnn._reorder_convolution_transpose_weight
    packed = pack(w, *window, list(operands.x.shape))
    call = torch.ops.mkldnn._convolution_transpose_pointwise.default
    return lambda dy: call(dy, packed, None, *window, "none", [], "")


def _input_channels_last(operands: Operands, w: Any) -> Step:
    return _input(operands, operands.channels_last(w))


def _input(operands: Operands, w: Any) -> Step:
    conv = operands.conv
    like = operands.torch.empty(conv.arrays()["I"][0], dtype=w.dtype)
    like = operands.channels_last(like) if conv.layout == "nhwc" else like
    call, window = _backward(operands)
    return lambda dy: call(dy, like, w, *window, [True, False, False])[0]


def _filters_channels_last(operands: Operands, w: Any) -> Step:
    return _filters(operands, w, operands.channels_last)


def _filters(operands: Operands, w: Any, form: Step = lambda dy: dy) -> Step:
    """``form`` is applied to dY in the call."""
    like = operands.torch.empty(operands.conv.w_shape, dtype=w.dtype)
    call, window = _backward(operands)
    return lambda x: call(form(w), x, like, *window, [False, True, False])[1]


def _backward(operands: Operands) -> tuple[Any, tuple[Any, ...]]:
    """Return what autograd calls, and its arguments between the filters and what is asked for."""
    stride, pad, dilation, groups = operands.geometry
    call = operands.torch.ops.aten.convolution_backward.default
    return call, (None, stride, pad, dilation, False, [0] * len(pad), groups)
