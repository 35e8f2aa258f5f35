"""The ways to compute convolutions, their gradients and products, of floats and 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import UnsupportedError
from polysci.ops import BackwardData, BackwardWeights, Matmul
from polysci.ops.convolution_rules import span
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import Problem
from polysci.peers.pytorch.operands import (
    Operands,
    Path,
    Run,
    Step,
    Way,
    activate,
    attribute_of,
    chain,
    compose,
)

_EAGER: Final = "eager convolution_backward"
_PACKED: Final = "mkldnn._convolution_transpose_pointwise"
_TYPES: Final = MappingProxyType({"f32": "float32", "bf16": "bfloat16", "f16": "float16"})
ENGINES: Final = ("onednn", "fbgemm")  # of the eager call; "x86" picks one of them
_HALF: Final = 128  # from s8 to u8
_RUNS: Final = 3  # TorchScript watches the first call and compiles in the second


def gradients_of_input(operands: Operands) -> Sequence[Way]:
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


def gradients_of_filters(operands: Operands) -> Sequence[Way]:
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


def ways_to_multiply(operands: Operands) -> Sequence[Way]:
    """Return the eager call for two changing matrices; a constant factor is packed."""
    product = _product(operands)
    eager = [Way("eager matmul", _multiply)]
    if not product.constant:
        return eager
    transposed = "eager matmul, constant factor transposed ahead"
    eager += [Way(transposed, lambda operands, w: _multiply(operands, w.mT.contiguous().mT))]
    if product.constant == "a" or product.batch is not None or _is_by_columns(product):
        return eager
    return (
        Way("mkldnn._linear_pointwise", _multiply_packed, fused=True),
        Way("mkl._mkl_linear", _mkl),
        Way("oneDNN Graph", _linear, script=True),
        Way("torch.compile, autotuned and frozen", _compile, once=True, fused=True),
        *eager,
    )


def _multiply(operands: Operands, w: Any) -> Step:
    """``A @ B``, or the product of the transposed where the result is stored column by column."""
    product, call = _product(operands), operands.torch.matmul
    constant_first = product.constant == "a"
    w = _logical(product, "w", w)
    if _is_by_columns(product):
        w, constant_first = w.mT, not constant_first

    def step(x: Any) -> Any:
        x = _logical(product, "x", x)
        x = x.mT if _is_by_columns(product) else x
        return call(w, x) if constant_first else call(x, w)

    return step


def _linear(operands: Operands, w: Any) -> Step:
    call, weights = operands.torch.nn.functional.linear, _weights(operands, w)
    return lambda x: call(_logical(_product(operands), "x", x), weights)


def _multiply_packed(operands: Operands, w: Any) -> Step:
    """Return what inductor's freezing calls, on a factor packed ahead."""
    torch, product = operands.torch, _product(operands)
    packed = torch.ops.mkldnn._reorder_linear_weight(_weights(operands, w), product.M)
    call, attribute = torch.ops.mkldnn._linear_pointwise.default, attribute_of(operands)
    return lambda x: call(_logical(product, "x", x), packed, None, *attribute)


def _mkl(operands: Operands, w: Any) -> Step:
    """MKL's product of f32 on a factor packed ahead for so many rows."""
    torch, product = operands.torch, _product(operands)
    if w.dtype != torch.float32:
        raise RuntimeError("MKL packs f32 alone")
    weights = _weights(operands, w)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weights, product.M)
    call = torch.ops.mkl._mkl_linear.default
    return lambda x: call(_logical(product, "x", x), packed, weights, None, product.M)


def _compile(operands: Operands, w: Any) -> Step:
    """Raises RuntimeError for what inductor cannot compile."""
    torch, run = operands.torch, compose([_linear(operands, w), *activate(operands)])
    torch._dynamo.reset()  # it compiles a function only some times
    module = type("Compiled", (torch.nn.Module,), {"forward": lambda self, x: run(x)})()
    return compile_frozen(torch, module.eval(), operands.x)  # type: ignore[no-any-return]


def _product(operands: Operands) -> Matmul:
    if isinstance(operands.problem, Matmul):
        return operands.problem
    raise UnsupportedError(f"{operands.problem}: expected a product of matrices")


def _weights(operands: Operands, w: Any) -> Any:
    """B in the order of PyTorch's linear layers, N x K."""
    return _logical(_product(operands), "w", w).mT.contiguous()


def _logical(product: Matmul, name: str, tensor: Any) -> Any:
    """A factor as M x K or K x N, however it is stored."""
    first = product.axes[name].split()[-2:][0]
    second = (name == "w") != (product.constant == "a")
    return tensor if first == ("K" if second else "M") else tensor.mT


def _is_by_columns(product: Matmul) -> bool:
    """Return whether the result is stored column by column."""
    return product.axes["y"].split()[-1] == "M"


def _pointwise(operands: Operands, w: Any) -> Step:
    """Return what inductor's freezing calls, on weights packed ahead."""
    torch, (stride, pad, dilation, groups) = operands.torch, operands.geometry
    pack = torch.ops.mkldnn._reorder_convolution_weight
    packed = pack(w, pad, stride, dilation, groups, list(operands.x.shape))
    call = torch.ops.mkldnn._convolution_pointwise.default
    fixed: tuple[Any, ...] = (packed, None, pad, stride, dilation, groups, *attribute_of(operands))
    return lambda x: call(x, *fixed)


def _eager(operands: Operands, w: Any) -> Step:
    call = operands.torch.conv2d if w.ndim == 4 else operands.torch.conv3d
    fixed = (w, None, *operands.geometry)
    return lambda x: call(x, *fixed)


_NAME: Final = "mkldnn._convolution_pointwise"
_ANY: Final = (Way("oneDNN Graph", _eager, script=True), Way("eager conv2d", _eager))
_CONVOLUTIONS: Final[Mapping[str, Sequence[Way]]] = MappingProxyType(
    {
        "nhwc": (Way(f"{_NAME}, channels_last", _pointwise, fused=True), *_ANY),
        "nchw": (
            Way(f"{_NAME}, layouts changed before and after", _pointwise, True, True, fused=True),
            Way(f"{_NAME}, layout changed after", _pointwise, False, True, fused=True),
            *_ANY,
        ),
    }
)


_OPERATORS: Final[Mapping[type[Problem], Callable[[Operands], Sequence[Way]]]] = MappingProxyType(
    {
        Convolution: lambda operands: _CONVOLUTIONS[operands.conv.layout],
        BackwardData: gradients_of_input,
        BackwardWeights: gradients_of_filters,
        Matmul: ways_to_multiply,
    }
)


def _compile_graph(torch: Any, steps: Sequence[Step], x: Any) -> Step:
    """One function for all steps, the convolution among them by oneDNN Graph.

    It keeps the compiled primitive and the packed weights, where other calls look primitives up in
    caches each time: about 7 us a call in place of 22. Raises RuntimeError where oneDNN Graph
    leaves the convolution to others.
    """
    torch.jit.enable_onednn_fusion(True)
    try:
        script = torch.jit.trace(compose(steps), x, check_trace=False)
        for _ in range(_RUNS):
            script(x)
        graph = str(torch.jit.last_executed_optimized_graph())
    finally:
        torch.jit.enable_onednn_fusion(False)
    if "oneDNNFusionGroup" not in graph:
        raise RuntimeError("oneDNN Graph does not take this convolution")
    return script  # type: ignore[no-any-return]


def _script_call(torch: Any, expression: str, packed: Any) -> Step:
    """The function of ``x`` that an expression of it and of ``self.packed`` is.

    Handing an object with packed weights from Python to PyTorch takes 9 us a call.
    """
    owner = type("Packed", (torch.nn.Module,), {})()  # TorchScript compiles a class only once
    owner.packed = packed
    script = torch.jit.script(owner)
    script.define(f"def forward(self, x):\n    return {expression}\n")
    return script.forward  # type: ignore[no-any-return]


def compile_frozen(torch: Any, module: Any, x: Any) -> Any:
    """The module compiled by inductor, its constants frozen, products tuned by trial."""
    from torch._inductor import config

    compiled = torch.compile(module, mode="max-autotune-no-cudagraphs", dynamic=False)
    with config.patch(freezing=True):
        compiled(x)
    return compiled


def float_paths(operands: Operands) -> Iterator[Path]:
    """Every call; constant w in f32 as well: oneDNN may lack instructions of a type of 16 bits."""
    own, _, result = operands.inputs.elements
    constant = operands.problem.w_kind == "constant"
    ways = next(row for kind, row in _OPERATORS.items() if isinstance(operands.problem, kind))
    for element in dict.fromkeys((own, "f32") if constant else (own,)):
        note = "" if element == own else f", computed in {element}"
        note += "" if element == result else f", {result} made after"
        rounded = result if element == "f32" else element
        for way in ways(operands):
            make = partial(_run, operands, way, element)
            yield Path(f"{way.name}{note}{operands.note}", make, rounded, once=way.once)


def _run(operands: Operands, way: Way, element: str) -> Run:
    own, _, result = operands.inputs.elements
    kinds = {name: getattr(operands.torch, kind) for name, kind in _TYPES.items()}
    steps: list[Step] = [operands.channels_last] if way.before else []
    steps += [lambda x: x.to(kinds[element])] if element != own else []
    steps += [way.call(operands, operands.w.to(kinds[element]))]
    steps += [] if way.fused else activate(operands)
    steps += [lambda y: y.to(kinds[result])] if element != result else []
    steps += [operands.plain] if way.after else []
    if way.script:
        steps = [_compile_graph(operands.torch, steps, operands.x)]
    if operands.x.ndim == 5 and operands.conv.layout == "nhwc" and not way.after:
        steps += [operands.channels_last]  # of three axes, not all calls leave it so
    return chain(operands.x, steps)


def integer_paths(operands: Operands) -> Iterator[Path]:
    """Yield what quantised inductor graphs call, and the eager call, which writes u8 alone.

    PyTorch reads u8 alone: s8 is offset to it ahead of all calls. Raises UnsupportedError for what
    is no convolution. The first packs weights for no
    zero point of x, and packs them again in each call if there is one; the eager call does not.
    """
    x, _, y = operands.inputs.elements
    note = ", x offset to u8 ahead" if x == "s8" else ""
    note += ", layouts changed within and after" if operands.conv.layout == "nchw" else ""
    note += operands.note
    sums = ", sums as f32" if y == "s32" else ""
    yield Path(
        f"onednn.qconv2d_pointwise{sums}{note}", partial(_pointwise_of_integers, operands), y
    )
    if y == "s32":
        return
    above = _HALF if y == "s8" else 0
    note += ", y left offset to u8" if above else ""
    for engine in ENGINES:
        make = partial(_eager_of_integers, operands, engine, above)
        yield Path(f"eager quantized.conv2d by {engine}{note}", make, y, above)


@dataclass(frozen=True, slots=True)
class _Unsigned:
    """x in u8, its zero point, and what else the calls take: the scale of x and of y is 1."""

    x: Any
    zero: int
    scale: Any
    w_zeros: Any


def _make_unsigned(operands: Operands) -> _Unsigned:
    torch, x, zero = operands.torch, operands.x, 0
    if operands.inputs.elements[0] == "s8":
        x, zero = x.view(torch.uint8).bitwise_xor(_HALF), _HALF
    scale = torch.from_numpy(np.array(operands.inputs.scale, np.float32))
    return _Unsigned(x, zero, scale, torch.zeros(len(scale), dtype=torch.int64))


def _pointwise_of_integers(operands: Operands) -> Run:
    torch, geometry = operands.torch, operands.geometry
    results = {"u8": torch.uint8, "s8": torch.int8, "s32": torch.float32}
    result = results[operands.inputs.elements[2]]
    own = _make_unsigned(operands)
    pack, call = torch.ops.onednn.qconv_prepack, torch.ops.onednn.qconv2d_pointwise.default
    packed = pack(operands.w, own.scale, 1.0, own.zero, *geometry, list(own.x.shape))
    fixed = (1.0, own.zero, packed, own.scale, own.w_zeros, None, *geometry)
    output: tuple[Any, ...] = (1.0, 0, result, "none", [], "")
    return chain(own.x, _last(operands, lambda x: call(x, *fixed, *output)))


def _eager_of_integers(operands: Operands, engine: str, above: int) -> Run:
    torch, geometry = operands.torch, operands.geometry
    if engine not in torch.backends.quantized.supported_engines:
        raise RuntimeError(f"this PyTorch has no engine {engine}")
    own = _make_unsigned(operands)
    scales = own.scale.double()
    w = torch._make_per_channel_quantized_tensor(operands.w, scales, own.w_zeros, 0)
    torch.backends.quantized.engine = engine
    packed = torch.ops.quantized.conv2d_prepack(w, None, *geometry)
    call = _script_call(torch, f"torch.ops.quantized.conv2d(x, self.packed, 1.0, {above})", packed)
    x = torch._make_per_tensor_quantized_tensor(own.x, 1.0, own.zero)
    return chain(x, _last(operands, call))


def _last(operands: Operands, step: Step) -> Sequence[Step]:
    """The calls change x to channels_last themselves and leave y there."""
    return [step, operands.plain] if operands.conv.layout == "nchw" else [step]
