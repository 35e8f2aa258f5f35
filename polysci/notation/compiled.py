"""compile: a comprehension to a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.network.compile.compiled import Network, compile_network
from polysci.network.frontends.notation.elaborate import Elaborated, elaborate
from polysci.network.frontends.notation.element_types import tensor_types
from polysci.network.frontends.notation.graphs import graph_of_comprehension
from polysci.network.frontends.notation.index_checks import OUTSIDE, with_index_checks
from polysci.network.frontends.notation.parser import parse
from polysci.network.frontends.notation.syntax import Declaration
from polysci.numerics.dtypes import from_bf16, to_bf16

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorFunction:
    """A compiled comprehension: ``f(A, B)``, or by names ``f(A=a, B=b)``.

    A call returns the output, or a dict of all of them by their names. bf16 arrays are uint16.
    ``network`` is what computes it, with its report, C and so on.
    """

    whole: Elaborated
    inputs: tuple[Declaration, ...]
    network: Network
    types: Mapping[str, str]

    def __repr__(self) -> str:
        return f"TensorFunction({self.whole.comprehension.name}, {self.network!r})"

    @guard
    def __call__(self, *arrays: Array, **named: Array) -> Any:
        """Run it. Raises TypeError or ValueError for arrays that do not fit.

        ValueError as well for a computed subscript outside its axis, where these are checked.
        """
        names = [tensor.name for tensor in self.inputs]
        if len(arrays) > len(names):
            raise TypeError(f"expected {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
        values = dict(zip(names, arrays, strict=False))
        if twice := [name for name in values if name in named]:
            raise TypeError(f"{twice[0]}: given twice")
        values |= named
        for tensor in self.inputs:
            if tensor.dtype == "bf16" and isinstance(values.get(tensor.name), np.ndarray):
                values[tensor.name] = from_bf16(values[tensor.name])
        results = self.network(values)
        comprehension = self.whole.comprehension
        outputs = dict(zip(comprehension.outputs, results.values(), strict=False))
        for name, count in list(outputs.items()):
            if name.startswith(OUTSIDE):
                self.check(name, int(outputs.pop(name)))
            elif self.types[name] == "bf16":
                outputs[name] = to_bf16(count)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def check(self, name: str, count: int) -> None:
        """Raises ValueError where a computed subscript left its axis."""
        if count:
            statement = next(s for s in self.whole.statements if s.tensor == name)
            what = f"{count} computed subscripts lie outside their axis"
            raise self.whole.error(statement.at, what, str(statement.value))


@guard
def compile(
    text: str, sizes: Mapping[str, int] | None = None, *, name: str = "", level: str = "measure",
    threads: int = 1, check: bool = False, **options: Any,
) -> TensorFunction:  # fmt: skip
    """The comprehension ``name`` of a text, by default its last, for given sizes.

    ``sizes`` has a value for every shape variable, and may have one for scalars, which are no
    arguments then: a stride may be one. ``check`` counts computed subscripts outside their axes,
    for which calls raise ValueError; otherwise the caller promises that there are none: negative
    ones count from the axis' end, others are moved to its nearest end. The other arguments are
    those of ``polysci.compile_network``. Raises SpecError, with a caret, for a text that is none or
    sizes that do not fit, and what ``compile_network`` raises.
    """
    bound = dict(sizes or {})
    for variable, size in bound.items():
        if type(size) is not int:
            raise SpecError(f"sizes: {variable}={size!r:.80}: expected a whole number")
    whole = elaborate(parse(text), name)
    if check:
        whole = with_index_checks(whole, bound)
    graph, _ = graph_of_comprehension(whole, bound)
    inputs = tuple(tensor for tensor in whole.comprehension.inputs if tensor.name not in bound)
    network = compile_network(graph, level, threads, name=whole.comprehension.name, **options)
    return TensorFunction(whole, inputs, network, tensor_types(whole.comprehension))
