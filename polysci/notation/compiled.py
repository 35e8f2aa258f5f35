"""compile: a comprehension to a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.frontends.notation.elaborate import Elaborated, elaborate, is_real, tensor_types
from polysci.frontends.notation.graphs import graph_of_comprehension
from polysci.frontends.notation.parser import parse
from polysci.frontends.notation.ranges import bind_sizes, check_sizes
from polysci.frontends.notation.statements import OUTSIDE, with_index_checks
from polysci.frontends.notation.syntax import Declaration
from polysci.network.compiled import Network, compile_network
from polysci.notation.gradients import gradients_of
from polysci.numerics.dtypes import to_bf16

Array = NDArray[Any]
KEPT: Final = 256  # functions of free sizes


@dataclass(frozen=True, slots=True)
class TensorFunction:
    """A compiled comprehension: ``f(A, B)``, or by names ``f(A=a, B=b)``.

    A call returns the output, or a dict of all of them by their names. bf16 arrays are uint16, and
    scalars may be numbers.
    ``network`` is what computes it, with its report, C and so on; ``options`` are compile's.
    """

    whole: Elaborated
    inputs: tuple[Declaration, ...]
    network: Network
    types: Mapping[str, str]
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    plain: bool  # arrays are as the network has them, in its order

    def __repr__(self) -> str:
        return f"TensorFunction({self.whole.comprehension.name}, {self.network!r})"

    @guard
    def __call__(self, *arrays: Array, **named: Array) -> Any:
        """Run it. Raises TypeError or ValueError for arrays that do not fit.

        ValueError as well for a computed subscript outside its axis, where these are checked.
        """
        if named or len(arrays) != len(self.names):
            values = _by_name(self.names, arrays, named)
        elif self.plain:
            listed = self.network.runner.run_in_order(arrays)
            return listed[0] if len(listed) == 1 else dict(zip(self.outputs, listed, strict=True))
        else:
            values = dict(zip(self.names, arrays, strict=True))
        for tensor in self.inputs:
            if not tensor.extents and isinstance(number := values.get(tensor.name), Real):
                values[tensor.name] = _scalar(tensor, number)
        results = self.network(values)
        outputs = dict(zip(self.outputs, results.values(), strict=False))
        for name in [name for name in outputs if name.startswith(OUTSIDE)]:
            self.check(name, int(outputs.pop(name)))
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def check(self, name: str, count: int) -> None:
        """Raise ValueError where a computed subscript left its axis."""
        if count:
            statement = next(s for s in self.whole.statements if s.tensor == name)
            what = f"{count} computed subscripts lie outside their axis"
            raise self.whole.error(statement.at, what, str(statement.value))

    @guard
    def grad(self, *inputs: str) -> TensorFunction:
        """Compile the gradients of ``inputs``, by default of all real ones.

        It takes what this one takes, and ``d_O`` for each real output O; it returns ``d_A`` for
        each input A. Compiled with the same options. Raises what ``polysci.notation.grad`` raises.
        """
        backward = gradients_of(self.whole, inputs, self.sizes)
        return compile_elaborated(elaborate(parse(str(backward))), {}, self.options)


@dataclass(frozen=True, slots=True)
class FreeTensorFunction:
    """A comprehension of free sizes, compiled for the extents of each call and kept.

    ``sizes`` are those that are fixed, and the values that others may have. The last ``KEPT``
    functions stay.
    """

    whole: Elaborated
    sizes: Mapping[str, int | Sequence[int]]
    options: Mapping[str, Any]
    wanted: tuple[str, ...] | None = None  # inputs, of a function of gradients
    functions: dict[tuple[int, ...], TensorFunction] = field(default_factory=dict)

    @guard
    def __call__(self, *arrays: Array, **named: Array) -> Any:
        """Run it. Raises TypeError or ValueError for arrays that do not fit."""
        comprehension, types = self.whole.comprehension, tensor_types(self.whole.comprehension)
        inputs = [tensor for tensor in comprehension.inputs if tensor.name not in self.sizes]
        names = [tensor.name for tensor in inputs]
        if self.wanted is not None:
            names += [f"d_{name}" for name in comprehension.outputs if is_real(types[name])]
        values = _by_name(names, arrays, named)
        shapes = {name: np.shape(value) for name, value in values.items()}
        return self.at(bind_sizes(replace(comprehension, inputs=tuple(inputs)), shapes))(**values)

    @guard
    def at(self, sizes: Mapping[str, int]) -> TensorFunction:
        """Return the function of these sizes. Raises SpecError for one that was not declared."""
        for name, value in sizes.items():
            known = self.sizes.get(name, value)
            if value not in (known if isinstance(known, Sequence) else (known,)):
                raise SpecError(f"{self.whole.comprehension.name}: {name}={value}: not in {known}")
        fixed = {name: size for name, size in self.sizes.items() if isinstance(size, int)}
        bound = {**fixed, **sizes}
        key = tuple(bound[name] for name in sorted(bound))
        if key not in self.functions:
            function = compile_elaborated(self.whole, bound, self.options)
            if self.wanted is not None:
                function = function.grad(*self.wanted)
            while len(self.functions) >= KEPT:
                del self.functions[next(iter(self.functions))]
            self.functions[key] = function
        return self.functions[key]

    @guard
    def grad(self, *inputs: str) -> FreeTensorFunction:
        """Compile the gradients, for free sizes too, as ``TensorFunction.grad`` does."""
        return replace(self, wanted=inputs, functions={})


def _by_name(
    names: Sequence[str], arrays: Sequence[Array], named: Mapping[str, Array]
) -> dict[str, Array]:
    """Return arguments by their names."""
    if len(arrays) > len(names):
        raise TypeError(f"expected {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
    values = dict(zip(names, arrays, strict=False))
    if twice := [name for name in values if name in named]:
        raise TypeError(f"{twice[0]}: given twice")
    return {**values, **named}


def _scalar(tensor: Declaration, number: Any) -> Array:
    """Return a number as an array without axes. Raises TypeError for a fraction as an integer."""
    if not is_real(tensor.dtype) and int(number) != number:
        raise TypeError(f"{tensor.name}: expected a whole number, got {number!r:.80}")
    if tensor.dtype == "bf16":
        return np.asarray(to_bf16(np.asarray(number, np.float32)))
    return np.asarray(number, tensor.dtype)


@guard
def compile(
    text: str, sizes: Mapping[str, int | Sequence[int]] | None = None, *, name: str = "",
    level: str = "measure", threads: int = 1, check: bool = False, **options: Any,
) -> TensorFunction | FreeTensorFunction:  # fmt: skip
    """Compile the comprehension ``name`` of a text, by default its last, to a function of arrays.

    ``sizes`` has a value for each shape variable that is fixed, and may have one for scalars, which
    are no arguments then: a stride may be one. A shape variable without a value is free: calls
    compile the function of the extents that they have, once. Of a list of values, which are all
    that calls may have, each is compiled now, with all of other lists; of a range when it is used.

    ``check`` counts computed subscripts outside their axes, for which calls raise ValueError;
    otherwise the caller promises that there are none: negative ones count from the axis' end,
    others are moved to its nearest end. The other arguments are those of
    ``polysci.compile_network``. Raises SpecError, with a caret, for a text that is none or sizes
    that do not fit, and what ``compile_network`` raises.
    """
    bound = dict(sizes or {})
    for variable, size in bound.items():
        values = size if isinstance(size, Sequence) and not isinstance(size, str) else [size]
        if not values or any(type(value) is not int for value in values):
            raise SpecError(f"sizes: {variable}={size!r:.80}: expected a whole number")
    whole = elaborate(parse(text), name)
    check_sizes(whole, bound)
    settings = {"level": level, "threads": threads, "check": check, **options}
    fixed = {variable: size for variable, size in bound.items() if isinstance(size, int)}
    if len(fixed) == len(bound) and {*whole.comprehension.shape_variables} <= {*fixed}:
        return compile_elaborated(whole, fixed, settings)
    function = FreeTensorFunction(whole, bound, settings)
    lists = {n: size for n, size in bound.items() if not isinstance(size, int | range)}
    if {*lists, *fixed} >= {*whole.comprehension.shape_variables}:
        for choice in product(*lists.values()):
            function.at(dict(zip(lists, choice, strict=True)))
    return function


def compile_elaborated(
    whole: Elaborated, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> TensorFunction:
    """Compile a comprehension for fixed sizes."""
    settings = dict(options)
    if settings.pop("check"):
        whole = with_index_checks(whole, sizes)
    graph, _ = graph_of_comprehension(whole, sizes)
    inputs = tuple(tensor for tensor in whole.comprehension.inputs if tensor.name not in sizes)
    network = compile_network(graph, name=whole.comprehension.name, **settings)
    types = tensor_types(whole.comprehension)
    names, outputs = tuple(tensor.name for tensor in inputs), whole.comprehension.outputs
    ports = [tuple(port.name for port in row) for row in (network.inputs, network.outputs)]
    counts = any(name.startswith(OUTSIDE) for name in outputs)
    plain = not counts and all(tensor.extents for tensor in inputs) and ports == [names, outputs]
    return TensorFunction(whole, inputs, network, types, sizes, options, names, outputs, plain)
