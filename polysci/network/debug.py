"""Comparison of every tensor of a run with the reference, to find the first that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError
from polysci.frontends.onnx import reference
from polysci.graph.graph import Graph
from polysci.graph.operators.quantised import nudges
from polysci.network.compiled import Network, PlannedNetwork
from polysci.network.runner import order_inputs
from polysci.numerics.differences import compare_outputs, largest_error
from polysci.numerics.dtypes import array_type, from_bf16
from polysci.program.control import ELSE, IF, BranchStage
from polysci.program.stages import Stage

Array = NDArray[Any]
BOUNDS = MappingProxyType({"f32": 1e-4, "bf16": 3e-2})
FACTOR = 16  # of the error of NumPy's sums, which are pairwise; its square for transforms
STEPS = 4  # times what results move by where numbers half way are rounded the other way
LEAST = 2.0**-18  # 32 units in the last place of f32: functions, sums of few terms


@dataclass(frozen=True, slots=True)
class CheckedTensor:
    """One tensor: the stage that made it, its largest error and what it is measured by.

    ``error`` is the largest difference over the largest number of the reference, or 1 if that is
    smaller; ``bound`` is the largest error of a tensor that is right. ``non_finite`` elements are
    NaN or infinite, as in the reference.
    """

    tensor: str
    stage: str
    error: float
    largest: float
    bound: float
    non_finite: int = 0

    @property
    def wrong(self) -> bool:
        """True if it is beyond the bound, or has a NaN where there shall be none."""
        return not self.error <= self.bound


def bound_of(network: PlannedNetwork, rounding: float | None = None) -> float:
    """Return the largest error of a tensor that is right.

    ``rounding`` is what the reference, computed in f32, is off by; networks of narrower types have
    a bound for all tensors.
    """
    summary = network.summary
    if summary.narrow or rounding is None:
        return BOUNDS["bf16" if summary.narrow else "f32"]
    return max(LEAST, (FACTOR if summary.direct else FACTOR**2) * rounding)


def first_wrong(rows: Sequence[CheckedTensor]) -> CheckedTensor | None:
    """Return the first tensor that is wrong."""
    return next((tensor for tensor in rows if tensor.wrong), None)


def tensors(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return all tensors of a run that have memory, by name, as f32 or what they hold.

    The network must have been compiled with its tensors apart.
    """
    code, runner = network.code, network.runner.sequence()
    context = runner.context()
    arrays = order_inputs(runner.inputs, inputs)
    results = [np.empty(port.shape, array_type(port.dtype)) for port in runner.outputs]
    runner.run_in(context, arrays, results)
    block = runner.network.tensors(context, max(1, code.arena.size))
    runner.release(context)
    if block is None:
        raise SpecError(f"{code.name}: its tensors share memory")
    program, arrays_by_name = code.placed.program, dict[str, Array]()
    for name, place in code.placed.places.items():
        if place.buffer in code.arena.offsets and name in program.values:
            kind = array_type(place.dtype)
            first = code.arena.offsets[place.buffer] + place.first * kind.itemsize
            flat = np.frombuffer(block, kind, offset=first % kind.itemsize)
            steps = tuple(step * kind.itemsize for step in place.strides)
            shape = program.values[name].shape
            view = np.lib.stride_tricks.as_strided(flat[first // kind.itemsize :], shape, steps)
            arrays_by_name[name] = from_bf16(view) if place.dtype == "bf16" else view.copy()
    for name, port, array in zip(program.results.values(), runner.outputs, results, strict=True):
        arrays_by_name[name] = from_bf16(array) if port.dtype == "bf16" else array
    return arrays_by_name


# The tensors of a run on inputs, by name, computed in a floating point type.
Reference = Callable[[Mapping[str, Array], str], Mapping[str, Array]]


def compare_tensors(
    network: Network, inputs: Mapping[str, Array], *, strict: bool = False,
    run: Reference | None = None,
) -> list[CheckedTensor]:  # fmt: skip
    """Compare tensors that the reference has as well, in the order in which they are made.

    ``run`` is the reference, by default ONNX's. The bound is that of the network. ``strict``: of an
    f32 network it is what the reference, computed in f32, is off by: FACTOR times its error, and
    LEAST at least.
    """
    graph, bound = network.prepared.graph, bound_of(network)
    arguments, inputs = inputs, {**graph.state, **inputs}
    run = run or partial(reference.run, graph)
    references = run(inputs, "float64")
    rounded: Mapping[str, Array] = {}
    if strict and not network.summary.narrow:
        rounded = run(inputs, "float32")
    moved = spreads(graph, inputs)
    arrays, rows = tensors(network, arguments), list[CheckedTensor]()
    program = network.code.placed.program
    titles = dict(zip(program.outputs, program.titles, strict=True))
    values = {**arrays, **inputs, **program.constants}
    stages = taken_stages(program.stages, values)
    makers = [(stage, output) for stage in stages for output in stage.outputs]
    for maker, output in makers:
        name = titles.get(output, output)
        if name not in references or output not in arrays or not references[name].size:
            continue
        expected, actual = references[name].astype(np.float64), arrays[output].astype(np.float64)
        finite = np.abs(expected[np.isfinite(expected)])
        largest = float(finite.max()) if finite.size else 0.0
        if name in rounded:
            bound = bound_of(network, largest_error([rounded[name]], [expected]))
        difference = compare_outputs([actual], [expected])
        spread = moved.get(name, 0.0)
        step = 1 / max(1.0, largest) if spread and arrays[output].dtype.itemsize == 1 else 0.0
        rows.append(CheckedTensor(
            name, maker.name, difference.error, largest, bound + max(STEPS * spread, step),
            difference.alike,
        ))  # fmt: skip
    return rows


def spreads(
    graph: Graph, inputs: Mapping[str, Array], names: Collection[str] | None = None
) -> dict[str, float]:
    """Return how far tensors move where roundings to 8 bits go the other way; by name, if they do.

    Of ``names``, or of all tensors.
    """
    keep = partial(reference.run, graph, inputs)
    if names is not None:
        keep = partial(reference.run_outputs, graph, inputs, names)
    moved, plain = dict[str, float](), dict[str, Array]()
    for nudge in nudges(graph):
        plain = plain or keep()
        for name, array in keep(nudge=nudge).items():
            if array.shape == plain[name].shape and array.dtype.kind in "biuf":
                error = largest_error([array], [plain[name]])
                moved[name] = max(moved.get(name, 0.0), error)
    return {name: error for name, error in moved.items() if error}


def taken_stages(stages: Sequence[Stage], known: Mapping[str, Array]) -> list[Stage]:
    """Return the stages that ran: those of branches whose conditions, in ``known``, led there."""
    taken, ways = list[Stage](), list[bool]()
    for stage in stages:
        if not isinstance(stage, BranchStage):
            taken += [stage] * all(ways)
        elif stage.part == IF:
            ways.append(bool(known[stage.condition].any()))
        else:
            ways.pop()
            ways += [not known[stage.condition].any()] * (stage.part == ELSE)
    return taken
