"""torch_op: a comprehension as an operator of PyTorch, with gradients, for tensors on the CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor

from polysci.border.arguments import check_type
from polysci.border.guard import guard
from polysci.network.frontends.notation.elaborate import Elaborated, elaborate
from polysci.network.frontends.notation.element_types import is_real, tensor_types
from polysci.network.frontends.notation.parser import parse
from polysci.network.frontends.notation.sizes import bind_sizes, check_sizes, infer_shapes
from polysci.network.frontends.notation.syntax import Declaration
from polysci.notation.compiled import TensorFunction, compile_elaborated
from polysci.notation.gradients import gradients_of
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
    *("update", "reproducible"),
)
_calls = Calls()
_is_child = False  # of fork: threads of the parent are not there


def _mark_child() -> None:
    global _is_child
    _is_child = True


os.register_at_fork(after_in_child=_mark_child)


@dataclass(frozen=True, slots=True)
class TorchOperator:
    """A comprehension as a function of tensors: ``f(A, B)``, or by names ``f(A=a, B=b)``.

    A call returns the output, or a dict of all of them by their names: new, contiguous tensors.
    Scalars may be numbers. ``plan`` is the text with its options, as the operator has it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    plan: str
    scalars: Mapping[str, torch.dtype]
    reals: Mapping[str, torch.dtype]

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(names) for names in (self.inputs, self.outputs))
        return f"TorchOperator({self.name}({inputs}) -> ({outputs}))"

    def __call__(self, *tensors: Any, **named: Any) -> Any:
        """Run it. Raises TypeError, ValueError or SpecError for tensors that do not fit."""
        values = self.order(tensors, named)
        results = _OPERATOR([_tensor(self, *pair) for pair in values.items()], self.plan)
        return results[0] if len(results) == 1 else dict(zip(self.outputs, results, strict=True))

    def order(self, tensors: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the names of the inputs, in their order."""
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
    """The comprehension ``name`` of a text, by default its last, as an operator of PyTorch.

    Tensors are on the CPU and have the element types that the text declares (bf16 is
    ``torch.bfloat16``). Contiguous ones are read where they lie, others are copied; results are
    written into new tensors. Each size is compiled once, when it is first called, and the last
    2048 stay; so are gradients, by ``notation.grad``, of any order. ``torch.compile`` traces it
    whole. Under autocast real tensors are cast to the declared types. There are no tangents
    (``jvp``). ``sizes`` are of shape variables that are fixed, and of scalars that are no arguments
    then. The other arguments are those of ``polysci.notation.compile``. Raises SpecError for a text
    that is none or sizes that do not fit, TypeError for other options.
    """
    check_type("torch_op: text", text, str)
    check_options(level, threads, None, None, None, None)
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"torch_op: {option}: expected one of {', '.join(_OPTIONS)}")
    words = {"level": level, "threads": threads, "check": bool(check), **options}
    try:
        plan = json.dumps([text, name, dict(sizes or {}), words, []])
    except (TypeError, ValueError):
        raise TypeError("torch_op: sizes, options: expected numbers, texts and lists") from None
    whole = elaborate(parse(text), name)
    check_sizes(whole, sizes or {})
    comprehension = whole.comprehension
    inputs = tuple(tensor.name for tensor in _arguments(whole, sizes or {}))
    scalars = {
        tensor.name: _TYPES[tensor.dtype] for tensor in comprehension.inputs if not tensor.extents
    }
    reals = {t.name: _TYPES[t.dtype] for t in comprehension.inputs if is_real(t.dtype)}
    return TorchOperator(comprehension.name, inputs, comprehension.outputs, plan, scalars, reals)


def _arguments(whole: Elaborated, sizes: Mapping[str, int]) -> list[Declaration]:
    return [tensor for tensor in whole.comprehension.inputs if tensor.name not in sizes]


def _holds(kind: torch.dtype, number: float) -> bool:
    """Whether an element type has a number, or rounds to it."""
    if kind.is_floating_point:
        return True
    low, high = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    return low <= number <= high and number == int(number)


def _tensor(operator: TorchOperator, name: str, value: Any) -> Any:
    """The tensor of an argument. Raises TypeError for what is none on the CPU."""
    if name in operator.scalars and isinstance(value, int | float):
        kind = operator.scalars[name]
        if not _holds(kind, value):
            raise TypeError(f"{operator.name}: {name}: expected a number of {kind}, got {value!r}")
        return torch.tensor(value, dtype=kind)
    if not isinstance(value, Tensor):
        raise TypeError(f"{operator.name}: {name}: expected a tensor, got {type(value).__name__}")
    if value.device.type != "cpu" or value.layout is not torch.strided:
        what = f"expected a dense tensor on the CPU, got one of {value.layout} on {value.device}"
        raise TypeError(f"{operator.name}: {name}: {what}")
    if name in operator.reals and torch.is_autocast_enabled("cpu") and value.is_floating_point():
        return value.to(operator.reals[name])
    return value


@dataclass(frozen=True, slots=True)
class _Program:
    """What a plan computes for arguments of some shapes: the gradients of gradients, or a text."""

    whole: Elaborated
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    inputs: tuple[Declaration, ...]
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape and element type

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Raises TypeError for elements of another type."""
        for tensor, x in zip(self.inputs, tensors, strict=True):
            if x.dtype != _TYPES[tensor.dtype]:
                what = f"expected {_TYPES[tensor.dtype]}, got {x.dtype}"
                raise TypeError(f"{self.whole.comprehension.name}: {tensor.name}: {what}")


@lru_cache(maxsize=MOST)
def _program(plan: str, shapes: Sequence[Sequence[int]]) -> _Program:
    """Raises SpecError for shapes that do not fit, UnsupportedError where there is no gradient."""
    text, name, sizes, options, wanted = json.loads(plan)
    whole = elaborate(parse(text), name)
    arguments = tuple(_arguments(whole, sizes))
    comprehension = whole.comprehension
    bound = {tensor.name: shape for tensor, shape in zip(arguments, shapes, strict=False)}
    scalars = {tensor.name: () for tensor in comprehension.inputs if not tensor.extents}
    sizes = {**sizes, **bind_sizes(comprehension, {**scalars, **bound})}
    for names in wanted:
        whole = elaborate(parse(str(gradients_of(whole, names, sizes))))
        arguments, sizes = whole.comprehension.inputs, {}
    inference, types = infer_shapes(whole, sizes), tensor_types(whole.comprehension)
    outputs = tuple(
        (output, inference.shape(output), types[output]) for output in whole.comprehension.outputs
    )
    return _Program(whole, sizes, options, arguments, outputs)


def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(size) for size in x.shape) for x in tensors)


@dataclass(frozen=True, slots=True)
class _Call:
    """A compiled program on tensors; ``order``: of the arguments as the network has them."""

    function: TensorFunction
    order: tuple[int, ...]
    made: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    visible: int  # outputs; others count subscripts outside their axes

    @staticmethod
    def of(program: _Program, threads: int) -> _Call:
        options = {**program.options, "threads": threads}
        function = compile_elaborated(program.whole, program.sizes, options)
        names = [tensor.name for tensor in program.inputs]
        order = tuple(names.index(port.name) for port in function.network.inputs)
        made = tuple((port.shape, _TYPES[port.dtype]) for port in function.network.outputs)
        return _Call(function, order, made, len(program.outputs))

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        read = [tensors[at].resolve_neg().contiguous() for at in self.order]
        made = [torch.empty(shape, dtype=kind, device="cpu") for shape, kind in self.made]
        self.function.network.runner.run_at([x.data_ptr() for x in (*read, *made)])
        names = self.function.outputs[self.visible :]
        for name, count in zip(names, made[self.visible :], strict=True):
            self.function.check(name, int(count))
        return made[: self.visible]


def _run(tensors: Sequence[Tensor], plan: str) -> list[Tensor]:
    """The CPU's kernel."""
    shapes = _shapes(tensors)
    program = _program(plan, shapes)
    program.check(tensors)
    threads = 1 if _is_child else program.options["threads"]
    key = plan, shapes, threads
    call = _calls.get(key) or _calls.add(key, lambda: _Call.of(program, threads))
    results: list[Tensor] = call(tensors)
    return results


def _fake(tensors: Sequence[Tensor], plan: str) -> list[Tensor]:
    """Tensors of the results' shapes and types."""
    program = _program(plan, _shapes(tensors))
    program.check(tensors)
    return [torch.empty(shape, dtype=_TYPES[dtype], device=tensors[0].device if tensors else "cpu")
            for _, shape, dtype in program.outputs]  # fmt: skip


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, ctx.plan = inputs
    ctx.save_for_backward(*tensors)


def _pull_back(ctx: Any, slopes: Sequence[Tensor | None]) -> tuple[Any, None]:
    """The gradients of all inputs that want one, by the operator itself."""
    tensors = ctx.saved_tensors
    program = _program(ctx.plan, _shapes(tensors))
    wants = [
        needed and is_real(tensor.dtype)
        for tensor, needed in zip(program.inputs, ctx.needs_input_grad[0], strict=True)
    ]
    seeds = {
        name: torch.zeros(shape) if slope is None else slope
        for (name, shape, dtype), slope in zip(program.outputs, slopes, strict=True)
        if is_real(dtype)
    }
    kinds = {n: torch.float64 if d == "float64" else torch.float32 for n, _, d in program.outputs}
    *first, wanted = json.loads(ctx.plan)
    names = [t.name for t, want in zip(program.inputs, wants, strict=True) if want]
    plan = json.dumps([*first, [*wanted, names]])
    made = iter(_OPERATOR([*tensors, *(x.to(kinds[n]) for n, x in seeds.items())], plan))
    return [
        next(made).to(x.dtype) if want else None for x, want in zip(tensors, wants, strict=True)
    ], None


_OPERATOR: Final[Callable[..., Any]] = register(
    "comprehension(Tensor[] inputs, str plan) -> Tensor[]",
    _run, _fake, _save, _pull_back, narrowed=0,
)  # fmt: skip
