"""The ways to convolve f32, bf16 and f16."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from polysci.peers.pytorch.graph import compile_graph
from polysci.peers.pytorch.operands import Operands, Path, Run, Step, chain

_TYPES: Final = MappingProxyType({"f32": "float32", "bf16": "bfloat16", "f16": "float16"})


def _pointwise(operands: Operands, w: Any) -> Step:
    """What inductor's freezing calls, on weights packed ahead."""
    torch, (stride, pad, dilation, groups) = operands.torch, operands.geometry
    pack = torch.ops.mkldnn._reorder_convolution_weight
    packed = pack(w, pad, stride, dilation, groups, list(operands.x.shape))
    call = torch.ops.mkldnn._convolution_pointwise.default
    fixed: tuple[Any, ...] = (packed, None, pad, stride, dilation, groups, "none", [], "")
    return lambda x: call(x, *fixed)


def _eager(operands: Operands, w: Any) -> Step:
    call, fixed = operands.torch.conv2d, (w, None, *operands.geometry)
    return lambda x: call(x, *fixed)


@dataclass(frozen=True, slots=True)
class _Way:
    """A call, whether it takes and leaves NHWC alone, and whether TorchScript compiles it."""

    name: str
    call: Callable[[Operands, Any], Step]
    before: bool = False
    after: bool = False
    script: bool = False


_NAME: Final = "mkldnn._convolution_pointwise"
_ANY: Final = (_Way("oneDNN Graph", _eager, script=True), _Way("eager conv2d", _eager))
_WAYS: Final[Mapping[str, Sequence[_Way]]] = MappingProxyType(
    {
        "nhwc": (_Way(f"{_NAME}, channels_last", _pointwise), *_ANY),
        "nchw": (
            _Way(f"{_NAME}, layouts changed before and after", _pointwise, True, True),
            _Way(f"{_NAME}, layout changed after", _pointwise, False, True),
            *_ANY,
        ),
    }
)


def paths(operands: Operands) -> Iterator[Path]:
    """Every call, in f32 as well: oneDNN may lack the instructions of a type of 16 bits."""
    own, _, result = operands.inputs.elements
    for element in dict.fromkeys((own, "f32")):
        note = "" if element == own else f", computed in {element}"
        note += "" if element == result else f", {result} made after"
        rounded = result if element == "f32" else element
        for way in _WAYS[operands.conv.layout]:
            make = partial(_run, operands, way, element)
            yield Path(f"{way.name}{note}{operands.note}", make, rounded)


def _run(operands: Operands, way: _Way, element: str) -> Run:
    own, _, result = operands.inputs.elements
    kinds = {name: getattr(operands.torch, kind) for name, kind in _TYPES.items()}
    steps: list[Step] = [operands.channels_last] if way.before else []
    steps += [lambda x: x.to(kinds[element])] if element != own else []
    steps += [way.call(operands, operands.w.to(kinds[element]))]
    steps += [lambda y: y.to(kinds[result])] if element != result else []
    steps += [operands.plain] if way.after else []
    if way.script:
        steps = [compile_graph(operands.torch, steps, operands.x)]
    return chain(operands.x, steps)
