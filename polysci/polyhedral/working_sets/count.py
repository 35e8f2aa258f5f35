"""Counting the points of an isl set: as boxes and lattices where it is some, else one by one."""

from __future__ import annotations

from math import prod

import islpy as isl

_SET = isl.dim_type.set


def points(part: isl.Set) -> int:
    """How many points a bounded set has.

    Raises isl.Error where it has neither the form of disjoint boxes nor few points.
    """
    part = part.coalesce()
    if part.is_empty():
        return 0
    if part.is_box():
        return _box(part)
    pieces: list[isl.BasicSet] = []
    part.make_disjoint().coalesce().foreach_basic_set(pieces.append)
    sets = [isl.Set.from_basic_set(piece) for piece in pieces]
    return sum(_box(piece) if piece.is_box() else _lattice(piece) for piece in sets)


def _bounds(part: isl.Set) -> list[tuple[int, int]]:
    axes = range(part.dim(_SET))
    return [(int(part.dim_min_val(a).to_python()), int(part.dim_max_val(a).to_python()))
            for a in axes]  # fmt: skip


def _box(part: isl.Set) -> int:
    return prod(high - low + 1 for low, high in _bounds(part))


def _lattice(part: isl.Set) -> int:
    """Points of a box of which every axis keeps one in so many; of another set, one by one."""
    bounds = _bounds(part)
    strides = [int(part.get_stride(axis).to_python()) for axis in range(part.dim(_SET))]
    if all(stride <= 1 for stride in strides):
        return int(part.count_val().to_python())
    names = [f"i{axis}" for axis in range(len(bounds))]
    conditions = [
        f"{low} <= {name} <= {high}" + (f" and ({name} - {low}) mod {stride} = 0")
        for name, (low, high), stride in zip(names, bounds, strides, strict=True)
    ]
    whole = isl.Set(f"{{ [{', '.join(names)}] : {' and '.join(conditions)} }}")
    if not whole.is_equal(part.reset_tuple_id()):
        return int(part.count_val().to_python())
    steps = zip(bounds, strides, strict=True)
    return prod((high - low) // stride + 1 for (low, high), stride in steps)
