"""Zeros behind the ends of axes that layers reduce over, and copies of callers' tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polysci.loop_ir.functions import kind_of_type
from polysci.loop_ir.index import Index, Variable, as_index, linear
from polysci.loop_ir.nodes import (
    Address,
    Buffer,
    Constant,
    For,
    LoopFunction,
    LoopStatement,
    Point,
    Store,
    block,
)
from polysci.lower.stages.loops import ATTRIBUTES, MEMORY, Pointer, sizes_of_run
from polysci.program.passes.arguments import runs_on
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.stages import Program


def clear_function(
    name: str, placed: PlacedProgram, pointers: Mapping[str, Pointer], tensor: str, axis: int,
    ends: Mapping[int, Index], derived: Mapping[str, Index],
) -> LoopFunction:  # fmt: skip
    """Return a function that writes zeros behind the end of an axis of a tensor.

    ``ends`` are those of all its axes that have one; of others only elements before them are
    written. ``derived`` are sizes that others make.
    """
    place, shape = placed.places[tensor], placed.program.values[tensor].shape
    at = linear(
        {f"i{number}": step for number, step in enumerate(place.strides)},
        {f"i{number}": Variable(f"i{number}") for number, size in enumerate(shape) if size > 1},
        place.first,
    )  # fmt: skip
    body: LoopStatement = Store("y", at, Constant(0, kind_of_type(place.dtype)))
    order = sorted(range(len(shape)), key=lambda number: place.strides[number])
    for number in order:
        if shape[number] == 1:
            continue
        start = ends[number] if number == axis else as_index(0)
        end = (
            as_index(shape[number]) if number == axis else ends.get(number, as_index(shape[number]))
        )
        body = For(f"i{number}", start, end, block(body))
    pointer = Point(
        Buffer("y", place.dtype, restrict=True), Address(pointers[place.buffer], dtype=place.dtype)
    )
    whole = block(*sizes_of_run([body], derived), pointer, body)
    return LoopFunction(name, (MEMORY,), whole, attributes=ATTRIBUTES)


def dense_strides(
    program: Program, names: Iterable[str], sizes: Mapping[str, Index]
) -> dict[str, tuple[Index, ...]]:
    """Return the strides of callers' tensors that depend on the sizes of a run, by name."""
    arguments = {*program.inputs, *program.outputs}
    dense = dict[str, tuple[Index, ...]]()
    for name in names:
        if name not in arguments or runs_on(program, name):
            continue
        strides, step = list[Index](), as_index(1)
        axes, shape = program.varying[name], program.values[name].shape
        for at in reversed(range(len(shape))):
            strides.insert(0, step)
            step = step * (sizes[axes[at]] if at in axes else shape[at])
        dense[name] = tuple(strides)
    return dense
