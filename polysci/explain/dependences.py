"""A loop nest's dependences by distance, and the reuse of each operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polysci.errors import UnsupportedError
from polysci.polyhedral.contraction import Contraction, Operand, columns_of
from polysci.polyhedral.footprint import Count, extent_of, footprint
from polysci.polyhedral.scop import KINDS, Scop, bound_operations


@dataclass(frozen=True, slots=True)
class Dependence:
    """All dependences of one kind: the range of their distances along every loop that carries any.

    ``reduction`` says that a reduction causes all of them, so that they may be reordered; ``fault``
    is isl's error where it could not compute them.
    """

    kind: str
    distances: tuple[tuple[str, int, int], ...]
    reduction: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Reuse:
    """How often an operand's elements are used, and along which loops.

    ``whole`` lists the loops that do not index it: every iteration uses the same elements again;
    ``window`` the pairs of loops on one axis, whose tiles overlap; ``contiguous`` the loops with
    stride 1 in memory: for B, which is packed ahead, the columns.
    """

    operand: str
    array: str
    dtype: str
    shape: tuple[int, ...]
    bytes: float
    times: float
    whole: tuple[str, ...]
    window: tuple[str, ...]
    contiguous: tuple[str, ...]


def dependences(scop: Scop) -> tuple[Dependence, ...]:
    """The dependences of every kind, in the order flow, anti, output, input."""
    return tuple(_dependence(scop, kind) for kind in KINDS)


def _dependence(scop: Scop, kind: str) -> Dependence:
    try:
        with bound_operations(f"distances of {kind} dependences"):
            relation = scop.dependences(kind)
            own = relation.is_subset(scop.reduction_dependences())
            return Dependence(
                kind, tuple(_distances(scop, relation)), kind != "input" and bool(own)
            )
    except UnsupportedError as error:
        return Dependence(kind, (), fault=str(error))


def _distances(scop: Scop, relation: Any) -> Iterator[tuple[str, int, int]]:
    """Range of the distance along each loop that carries a dependence.

    Only nests of one statement have distances.
    """
    sets: list[Any] = []
    if len(scop.statements) == 1 and not relation.is_empty():
        relation.deltas().foreach_set(sets.append)
    for distance in sets:
        for at, name in enumerate(scop.statements[0].iterators):
            low, high = (
                int(str(value)) for value in (distance.dim_min_val(at), distance.dim_max_val(at))
            )
            if low or high:
                yield name, low, high


def reuses(roles: Contraction, strides: Mapping[str, Sequence[int]]) -> tuple[Reuse, ...]:
    """The reuse of A, B and C over the whole nest, padding counted as work."""
    operands = (("A", roles.x), ("B", roles.w), ("C", roles.out))
    rows = tuple(d.name for d in roles.by_role("m") if d.extent > 1)
    panels = rows if roles.swapped else (columns_of(roles).name,)
    return tuple(
        _reuse(
            letter, operand, roles,
            panels if letter == "B" else _along(operand, strides, roles),
        )
        for letter, operand in operands
    )  # fmt: skip


def _along(
    operand: Operand, strides: Mapping[str, Sequence[int]], roles: Contraction
) -> tuple[str, ...]:
    offset = operand.offset(strides[operand.array])
    return tuple(d.name for d in roles.dims if d.extent > 1 and offset.coef(d.name) == 1)


def _reuse(letter: str, operand: Operand, roles: Contraction, contiguous: tuple[str, ...]) -> Reuse:
    tile = {d.name: np.full(1, float(d.extent)) for d in roles.dims}
    elements = float(footprint(operand, tile)[0])
    unindexed = tuple(d.name for d in roles.dims if d.extent > 1 and not operand.uses(d.name))
    return Reuse(
        letter,
        str(operand),
        operand.dtype,
        operand.shape,
        elements * operand.bytes,
        prod(d.extent for d in roles.dims) / elements,
        unindexed,
        tuple(_windows(operand, tile)),
        contiguous,
    )


def _windows(operand: Operand, tile: Mapping[str, Count]) -> Iterator[str]:
    """Loops on one axis that reach fewer positions together than they have iterations."""
    for axis, index in enumerate(operand.index):
        names = [name for name, _ in index.terms if tile[name][0] > 1]
        points = prod(float(tile[name][0]) for name in names)
        if len(names) > 1 and extent_of(operand, axis, tile)[0] < points:
            yield "+".join(names)
