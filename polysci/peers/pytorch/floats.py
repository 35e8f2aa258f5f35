"""The ways to compute with f32, bf16 and f16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from polysci.ops import BackwardData, BackwardWeights, Matmul
from polysci.ops.convolutions import Convolution
from polysci.ops.problem import Problem
from polysci.peers.pytorch import gradients, products
from polysci.peers.pytorch.graph import compile_graph
from polysci.peers.pytorch.operands import (
    Operands,
    Path,
    Run,
    Step,
    Way,
    activate,
    attribute_of,
    chain,
)

_TYPES: Final = MappingProxyType({"f32": "float32", "bf16": "bfloat16", "f16": "float16"})


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


def _convolve(operands: Operands) -> Sequence[Way]:
    return _CONVOLUTIONS[operands.conv.layout]


_OPERATORS: Final[Mapping[type[Problem], Callable[[Operands], Sequence[Way]]]] = MappingProxyType(
    {
        Convolution: _convolve,
        BackwardData: gradients.of_input,
        BackwardWeights: gradients.of_filters,
        Matmul: products.ways,
    }
)


def paths(operands: Operands) -> Iterator[Path]:
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
        steps = [compile_graph(operands.torch, steps, operands.x)]
    if operands.x.ndim == 5 and operands.conv.layout == "nhwc" and not way.after:
        steps += [operands.channels_last]  # of three axes, not all calls leave it so
    return chain(operands.x, steps)
