"""torch_op: a comprehension as an operator of PyTorch, with gradients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.frontends.notation.elaborate import Elaborated, elaborate, is_real, tensor_types
from polysci.frontends.notation.parser import parse
from polysci.frontends.notation.ranges import (
    bind_sizes,
    check_sizes,
    infer,
    infer_shapes,
    name_for_isl,
)
from polysci.frontends.notation.syntax import Declaration
from polysci.network.options import check_device
from polysci.notation.compiled import TensorFunction, compile_elaborated
from polysci.notation.gradients import gradients_of
from polysci.numerics.affine import Affine
from polysci.torch import settings
from polysci.torch.devices import ON_HOST, TensorDevice, find_device, place_of
from polysci.torch.kernels import MOST, Calls
from polysci.torch.library import register
from polysci.tune import check_options

# Element type of the notation -> that of tensors.
_TYPES: Final = {
    "bf16": torch.bfloat16,
    **{name: getattr(torch, name) for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )},
}  # fmt: skip
_OPTIONS: Final = (
    *("dtype", "algorithm", "isa", "fuse", "time_limit", "flags", "flush_denormals", "optimize"),
    *("update", "reproducible", "device"),
)
_calls = Calls()


@dataclass(frozen=True, slots=True)
class TorchOperator:
    """A comprehension as a function of tensors: ``f(A, B)``, or by names ``f(A=a, B=b)``.

    A call returns the output, or a dict of all of them by their names: new, contiguous tensors.
    Scalars may be numbers. ``plan`` is the text with its options, as the operator has it, of which
    ``device`` is one.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    plan: str
    scalars: Mapping[str, torch.dtype]
    reals: Mapping[str, torch.dtype]
    device: TensorDevice = ON_HOST

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(names) for names in (self.inputs, self.outputs))
        return f"TorchOperator({self.name}({inputs}) -> ({outputs}))"

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Run it. Raises TypeError, ValueError or SpecError for tensors that do not fit."""
        values = self.order(tensors, named)
        results = _OPERATOR([_tensor(self, *pair) for pair in values.items()], self.plan)
        return results[0] if len(results) == 1 else dict(zip(self.outputs, results, strict=True))

    def order(self, tensors: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by the names of the inputs, in their order."""
        if len(tensors) > len(self.inputs):
            names = ", ".join(self.inputs)
            what = f"expected {len(self.inputs)} tensors ({names}), got {len(tensors)}"
            raise TypeError(f"{self.name}: {what}")
        values = dict(zip(self.inputs, tensors, strict=False))
        for name in named:
            if name not in self.inputs or name in values:
                why = "given twice" if name in values else f"no input: {', '.join(self.inputs)}"
                raise TypeError(f"{self.name}: {name}: {why}")
        values.update(named)
        for name in self.inputs:
            if name not in values:
                raise TypeError(f"{self.name}: {name} is missing")
        return {name: values[name] for name in self.inputs}


@guard
def torch_op(
    text: str, name: str = "", *, sizes: Mapping[str, int] | None = None,
    level: str = "estimate", threads: int = 1, check: bool = False, **options: Any,
) -> TorchOperator:  # fmt: skip
    """Make an operator of PyTorch of the comprehension ``name`` of a text, by default its last.

    Tensors are on the CPU, or on the ``device`` if that is ``cuda``, and have the element types
    that the text declares (bf16 is ``torch.bfloat16``). Contiguous ones are read where they lie,
    others are copied; results are written into new tensors. Each size is compiled once, when it is
    first called, and the last 2048 stay; so are gradients, by ``notation.grad``, of any order.
    ``torch.compile`` traces it whole. Under autocast real tensors are cast to the declared types.
    There are no tangents (``jvp``). ``sizes`` are of shape variables that are fixed, and of scalars
    that are no arguments then. The other arguments are those of ``polysci.notation.compile``.
    Raises SpecError for a text that is none or sizes that do not fit, TypeError for other options.
    """
    check_type("torch_op: text", text, str)
    check_options(level, threads, None, None, None, None)
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"torch_op: {option}: expected one of {', '.join(_OPTIONS)}")
    check_type("device", options.get("device"), str, type(None))
    check_device(options.get("device"), threads)
    device = find_device(options.get("device"))
    options = {
        "level": level, "threads": threads, "check": bool(check), **options, "device": device.name,
    }  # fmt: skip
    try:
        plan = json.dumps([text, name, dict(sizes or {}), options, []])
    except (TypeError, ValueError):
        raise TypeError("torch_op: sizes, options: expected numbers, texts and lists") from None
    whole = elaborate(parse(text), name)
    check_sizes(whole, sizes or {})
    comprehension = whole.comprehension
    if len({*comprehension.outputs}) < len(comprehension.outputs):
        raise SpecError(f"torch_op: {comprehension.name}: expected each output once")
    inputs = tuple(tensor.name for tensor in _arguments(whole, sizes or {}))
    scalars = {
        tensor.name: _TYPES[tensor.dtype] for tensor in comprehension.inputs if not tensor.extents
    }
    reals = {t.name: _TYPES[t.dtype] for t in comprehension.inputs if is_real(t.dtype)}
    outputs = comprehension.outputs
    return TorchOperator(comprehension.name, inputs, outputs, plan, scalars, reals, device)


def _arguments(whole: Elaborated, sizes: Mapping[str, int]) -> list[Declaration]:
    return [tensor for tensor in whole.comprehension.inputs if tensor.name not in sizes]


def _holds(kind: torch.dtype, number: float) -> bool:
    """Return whether an element type has a number, or rounds to it."""
    if kind.is_floating_point:
        return True
    low, high = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    return low <= number <= high and number == int(number)


def _tensor(operator: TorchOperator, name: str, value: Any) -> Any:
    """Return the tensor of an argument. Raises TypeError for what is none on the device."""
    if name in operator.scalars and isinstance(value, int | float):
        kind = operator.scalars[name]
        if not _holds(kind, value):
            raise TypeError(f"{operator.name}: {name}: expected a number of {kind}, got {value!r}")
        return torch.tensor(value, dtype=kind, device=operator.device.place)
    if not isinstance(value, Tensor):
        raise TypeError(f"{operator.name}: {name}: expected a tensor, got {type(value).__name__}")
    place = operator.device.place
    if not operator.device.is_here(value) or value.layout is not torch.strided:
        where = "the CPU" if place.type == "cpu" else place
        what = f"expected a dense tensor on {where}, got one of {value.layout} on {value.device}"
        raise TypeError(f"{operator.name}: {name}: {what}")
    cast = torch.is_autocast_enabled(place.type)
    if name in operator.reals and cast and value.is_floating_point():
        return value.to(operator.reals[name])
    return value


@dataclass(frozen=True, slots=True)
class _Signature:
    """Names and element types of what a plan takes and gives, whatever the sizes are.

    ``declared`` are the arguments of the text itself; others are gradients, which are cast.
    """

    whole: Elaborated
    sizes: Mapping[str, int]
    declared: tuple[Declaration, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    are_gradients: bool
    place: torch.device

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raise TypeError for elements of another type."""
        for tensor, x in zip(self.declared, tensors, strict=False):
            if x.dtype != _TYPES[tensor.dtype]:
                what = f"expected {_TYPES[tensor.dtype]}, got {x.dtype}"
                raise TypeError(f"{self.whole.comprehension.name}: {tensor.name}: {what}")

    def bind(self, shapes: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Return sizes, which may be symbols. Raises SpecError for shapes that do not fit."""
        comprehension = self.whole.comprehension
        scalars = {tensor.name: () for tensor in comprehension.inputs if not tensor.extents}
        bound = dict(zip((tensor.name for tensor in self.declared), shapes, strict=False))
        return {**self.sizes, **bind_sizes(comprehension, {**scalars, **bound})}

    def shapes(self, tensors: Sequence[Tensor]) -> list[Sequence[Any]]:
        """Return the shapes of the results. Raises SpecError for shapes that do not fit."""
        if self.are_gradients:
            of = dict(zip(self.inputs, tensors, strict=True))
            return [of[name.removeprefix("d_")].shape for name in self.outputs]
        sizes = self.bind([x.shape for x in tensors])
        known = {name: size for name, size in sizes.items() if type(size) is int}
        symbols = {name_for_isl(name): size for name, size in sizes.items() if name not in known}
        forms = [infer(self.whole, known).linear_shape(name) for name in self.outputs]
        if symbols and None not in forms:
            return [[_evaluate(extent, symbols) for extent in form or ()] for form in forms]
        inference = infer_shapes(self.whole, {name: int(size) for name, size in sizes.items()})
        return [inference.shape(name) for name in self.outputs]


def _evaluate(form: Affine, symbols: Mapping[str, Any]) -> Any:
    return sum((step * symbols[name] for name, step in form.terms), form.const)


@lru_cache(maxsize=MOST)
def _signature(plan: str) -> _Signature:
    text, name, sizes, options, wanted = json.loads(plan)
    whole = elaborate(parse(text), name)
    declared, types = tuple(_arguments(whole, sizes)), tensor_types(whole.comprehension)
    inputs = {tensor.name: tensor.dtype for tensor in declared}
    outputs = {name: types[name] for name in whole.comprehension.outputs}
    for names in wanted:
        seeds = {f"d_{n}": _seed_type(dtype) for n, dtype in outputs.items() if is_real(dtype)}
        outputs = {f"d_{n}": inputs[n] for n in names}
        inputs = {**inputs, **seeds}
    place = place_of(options["device"])
    return _Signature(whole, sizes, declared, inputs, outputs, bool(wanted), place)


def _seed_type(dtype: str) -> str:
    """Return the element type in which ``notation.grad`` takes the gradient of an output."""
    return "float64" if dtype == "float64" else "float32"


def _program(
    plan: str, shapes: Sequence[Sequence[int]]
) -> tuple[Elaborated, Mapping[str, int], tuple[Declaration, ...]]:
    """Return the text of a plan, or of its gradients, with sizes and inputs for some shapes.

    Raises SpecError for shapes that do not fit, UnsupportedError where there is no gradient.
    """
    signature, wanted = _signature(plan), json.loads(plan)[-1]
    whole, sizes, inputs = signature.whole, signature.bind(shapes), signature.declared
    for names in wanted:
        whole = elaborate(parse(str(gradients_of(whole, names, sizes))))
        inputs, sizes = whole.comprehension.inputs, {}
    return whole, sizes, inputs


@dataclass(frozen=True, slots=True)
class _Call:
    """A compiled program on tensors; ``reads``: the arguments as the network has them, by place.

    ``kinds``: the element types of the results; outputs behind these count subscripts outside
    their axes.
    """

    function: TensorFunction
    reads: tuple[tuple[int, torch.dtype], ...]
    writes: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    kinds: tuple[torch.dtype, ...]
    device: TensorDevice
    run: Callable[[Sequence[int]], None]

    @staticmethod
    def of(plan: str, shapes: Sequence[Sequence[int]], threads: int) -> _Call:
        whole, sizes, inputs = _program(plan, shapes)
        function = compile_elaborated(whole, sizes, {**json.loads(plan)[3], "threads": threads})
        names = [tensor.name for tensor in inputs]
        ports = function.network.inputs, function.network.outputs
        reads = tuple((names.index(port.name), _TYPES[port.dtype]) for port in ports[0])
        writes = tuple((port.shape, _TYPES[port.dtype]) for port in ports[1])
        kinds = tuple(_TYPES[dtype] for dtype in _signature(plan).outputs.values())
        device = TensorDevice.of(json.loads(plan)[3]["device"])
        run = device.bind(function.network.runner)
        return _Call(function, reads, writes, kinds, device, run)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        place, align = self.device.place, self.device.align
        read = [align(tensors[at].to(kind).resolve_neg().contiguous()) for at, kind in self.reads]
        results = [torch.empty(shape, dtype=kind, device=place) for shape, kind in self.writes]
        self.run([x.data_ptr() for x in (*read, *results)])
        count = len(self.kinds)
        for name, outside in zip(self.function.outputs[count:], results[count:], strict=True):
            self.function.check(name, int(outside))
        return [x.to(kind) for x, kind in zip(results, self.kinds, strict=False)]


def _run(tensors: Sequence[Tensor], plan: str) -> list[Tensor]:
    """Compute a plan."""
    _signature(plan).check(tensors)
    shapes = tuple(tuple(x.shape) for x in tensors)
    threads = 1 if settings.is_child() else json.loads(plan)[3]["threads"]
    key = plan, shapes, threads
    call = _calls.get(key) or _calls.add(key, lambda: _Call.of(plan, shapes, threads))
    results: list[Tensor] = call(tensors)
    return results


def _fake(tensors: Sequence[Tensor], plan: str) -> list[Tensor]:
    """Return tensors of the results' shapes and types."""
    signature = _signature(plan)
    signature.check(tensors)
    rows = zip(signature.shapes(tensors), signature.outputs.values(), strict=True)
    place = signature.place
    return [torch.empty(shape, dtype=_TYPES[dtype], device=place) for shape, dtype in rows]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.plan = inputs
    ctx.save_for_backward(*tensors)


def _pull_back(ctx: Any, slopes: Sequence[Tensor | None]) -> tuple[Any, None]:
    """Return the gradients of all inputs that want one, by the operator itself."""
    tensors, signature = ctx.saved_tensors, _signature(ctx.plan)
    needs = zip(signature.inputs.items(), ctx.needs_input_grad[0], strict=True)
    names = [name for (name, dtype), needed in needs if needed and is_real(dtype)]
    rows = zip(signature.outputs.values(), signature.shapes(tensors), slopes, strict=True)
    seeds = [
        torch.zeros(shape, device=signature.place) if slope is None else slope
        for dtype, shape, slope in rows if is_real(dtype)
    ]  # fmt: skip
    *first, wanted = json.loads(ctx.plan)
    results = _OPERATOR([*tensors, *seeds], json.dumps([*first, [*wanted, names]]))
    gradients = dict(zip(names, results, strict=True))
    return [gradients.get(name) for name in signature.inputs], None


_OPERATOR: Final[Callable[..., Any]] = register(
    "comprehension(Tensor[] inputs, str plan) -> Tensor[]",
    _run, _fake, _save, _pull_back, narrowed=0, places=("CPU", "CUDA"),
)  # fmt: skip
