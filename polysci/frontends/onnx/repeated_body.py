"""The body of a Loop or Scan, and the nodes of its iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from polysci.frontends.onnx.model_file import Body
from polysci.frontends.onnx.reader import ExpansionError, Reader
from polysci.graph.graph import Node

MOST_TRIPS: Final = 1000  # of a body that is written out


@dataclass(frozen=True, slots=True)
class RepeatedBody:
    """A Loop or Scan. ``trips`` is how many there are at most, None if nothing bounds that.

    ``trips_of`` and ``going`` name data that decides about that (empty: none does); ``most`` is the
    name under which ``trips`` was told, so that a run checks it; ``begins``: the
    formal inputs of the body before those of states and slices. Slices and results that are stacked
    have an axis, and whether they run backwards.
    """

    title: str
    body: Body
    formals: Sequence[str]
    begins: int
    trips: int | None
    trips_of: str
    going: str
    states: Sequence[str]
    slices: Sequence[tuple[str, int, bool]]
    stacked: Sequence[tuple[int, bool]]
    outputs: Sequence[str]
    most: str = ""


def inline_iteration(
    reader: Reader, loop: RepeatedBody, states: Sequence[str], iteration: int
) -> list[str]:
    """Add the nodes of one iteration; return the names of its results."""
    place, length = f"{loop.title}/{iteration}", loop.trips or 0
    inputs = [*states, *(
        slice_at(reader, name, at, length - 1 - iteration if back else iteration, place)
        for name, at, back in loop.slices
    )]  # fmt: skip
    if loop.begins:
        number = reader.constant(f"{place}/iteration", np.array(iteration, np.int64))
        inputs = [number, reader.constant(f"{place}/condition", np.array(True)), *inputs]
    results = [reader.fresh(f"{place}/{name}") for name in loop.body.results]
    reader.inline(loop.body, dict(zip(loop.formals, inputs, strict=True)), results, place)
    return results


def scalar(reader: Reader, name: str) -> str:
    """Return a tensor of one element without axes."""
    if not reader.table.shape(name):
        return name
    scalar = reader.fresh(f"{name}/scalar")
    shape = reader.constant(f"{name}/shape", np.zeros(0, np.int64))
    reader.emit("Reshape", [name, shape], [scalar])
    return scalar


def add_scalar(reader: Reader, op: str, inputs: Sequence[str], dtype: str = "int64") -> str:
    """Add an operation of scalars."""
    name = reader.fresh(f"{inputs[-1]}/{op}")
    reader.append(Node(op, tuple(inputs), (name,), name=name), {name: (dtype, ())})
    return name


def check_alike(reader: Reader, before: str, after: str) -> None:
    """Raise for a state that changes its type."""
    old, new = reader.table.tensor(before), reader.table.tensor(after)
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise ExpansionError(
            f"a state of {old.dtype}{list(old.shape)} becomes {new.dtype}{list(new.shape)}"
        )


def slice_at(reader: Reader, name: str, axis: int, at: int, place: str) -> str:
    """Return the part of a tensor at one place of an axis, without that axis."""
    part = reader.fresh(f"{place}/{name}")
    index = reader.constant(f"{part}/index", np.array(at, np.int64))
    reader.emit("Gather", [name, index], [part], axis=axis)
    return part


def stack(reader: Reader, parts: list[str], output: str, axis: int) -> None:
    """Join tensors of one shape along a new axis."""
    if not parts or any(name not in reader.table.types for name in parts):
        raise ExpansionError("the shape of what it stacks is not known")
    wide = []
    for name in parts:
        shape = list(reader.table.shape(name))
        shape.insert(axis + (len(shape) + 1) * (axis < 0), 1)
        wide.append(reshape(reader, name, shape))
    reader.emit("Concat", wide, [output], axis=axis)


def reshape(reader: Reader, name: str, shape: list[int]) -> str:
    """Reshape a tensor."""
    target = reader.fresh(f"{name}/reshaped")
    sizes = reader.constant(f"{target}/shape", np.array(shape, np.int64))
    reader.emit("Reshape", [name, sizes], [target], allowzero=1)
    return target
