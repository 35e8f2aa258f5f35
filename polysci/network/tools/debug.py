"""Every tensor of a run beside the reference, and the first that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError
from polysci.network.compile.compiled import Network
from polysci.network.frontends.onnx import reference
from polysci.network.runtime.runner import order_inputs
from polysci.numerics.dtypes import from_bf16
from polysci.peers.networks.contest import largest_error

Array = NDArray[Any]
BOUNDS = MappingProxyType({"f32": 1e-4, "bf16": 3e-2})


@dataclass(frozen=True, slots=True)
class CheckedTensor:
    """One tensor: the stage that made it, its largest error and what it is measured by.

    ``error`` is the largest difference over the largest number of the reference, or 1 if that is
    smaller.
    """

    tensor: str
    stage: str
    error: float
    largest: float


def bound_of(network: Network) -> float:
    """The largest error of a tensor that is right; results of 8 bits may round the other way."""
    program = network.prepared.program
    narrow = any(value.dtype in ("bf16", "int8", "uint8") for value in program.values.values())
    return BOUNDS["bf16" if narrow else "f32"]


def first_wrong(rows: Sequence[CheckedTensor], bound: float) -> CheckedTensor | None:
    """The first tensor beyond the bound, or with a NaN where there shall be none."""
    return next((tensor for tensor in rows if not tensor.error <= bound), None)


def tensors(network: Network, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All tensors of a run that have memory, by name, as f32 or what they hold.

    The network must have been compiled with its tensors apart.
    """
    code, runner = network.code, network.runner
    memory = getattr(runner.library.lib, f"{code.name}_memory", None)
    if memory is None:
        raise SpecError(f"{code.name}: its tensors share memory")
    ffi, context = runner.library.ffi, runner.context()
    arrays = order_inputs(runner.inputs, inputs)
    results = [np.empty(port.shape, port.dtype) for port in runner.outputs]
    runner.run_in(context, arrays, results)
    size = max(1, code.arena.size)
    block = np.frombuffer(ffi.buffer(memory(context), size), np.uint8).copy()
    program, arrays_by_name = code.placed.program, dict[str, Array]()
    for name, place in code.placed.places.items():
        if place.buffer in code.arena.offsets and name in program.values:
            kind = np.dtype("uint16" if place.dtype == "bf16" else place.dtype)
            first = code.arena.offsets[place.buffer] + place.first * kind.itemsize
            flat = np.frombuffer(block, kind, offset=first % kind.itemsize)
            steps = tuple(step * kind.itemsize for step in place.strides)
            shape = program.values[name].shape
            view = np.lib.stride_tricks.as_strided(flat[first // kind.itemsize :], shape, steps)
            arrays_by_name[name] = from_bf16(view) if place.dtype == "bf16" else view.copy()
    for name, array in zip(program.outputs, results, strict=True):
        arrays_by_name[name] = array
    return arrays_by_name


def compare_tensors(network: Network, inputs: Mapping[str, Array]) -> list[CheckedTensor]:
    """Tensors that the reference has as well, in the order in which they are made."""
    wanted = reference.run(network.prepared.graph, inputs)
    made, rows = tensors(network, inputs), list[CheckedTensor]()
    program = network.code.placed.program
    titles = dict(zip(program.outputs, program.titles, strict=True))
    results = [(stage, output) for stage in program.stages for output in stage.outputs]
    for stage, output in results:
        name = titles.get(output, output)
        if name not in wanted or output not in made or not wanted[name].size:
            continue
        expected, actual = wanted[name].astype(np.float64), made[output].astype(np.float64)
        finite = np.abs(expected[np.isfinite(expected)])
        largest = float(finite.max()) if finite.size else 0.0
        rows.append(CheckedTensor(name, stage.name, largest_error([actual], [expected]), largest))
    return rows
