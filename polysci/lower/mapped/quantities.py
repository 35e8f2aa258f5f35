"""Least counts of a plan: bytes of both factors that groups read, and compulsory ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod

import numpy as np

from polysci.lower.mapped.plan import MappedPlan
from polysci.numerics.affine import Affine
from polysci.polyhedral.contraction import Contraction, Operand


def compulsory(contraction: Contraction) -> int:
    """Return the bytes of elements that are read or written at all."""
    extents = contraction.extents
    return sum(
        operand.bytes
        * prod(
            len(np.unique(_inside(subscript, size, extents))) for subscript, size in _axes(operand)
        )
        for operand in (contraction.a, contraction.b, contraction.out)
    )


def fetched(plan: MappedPlan) -> int:
    """Return the bytes that all groups read for their copies: zeros of padding are not read.

    Every tile along the columns reads the rows of A, every tile along the rows the columns of B; of
    packed weights it reads whole tiles.
    """
    contraction, (along_rows, along_columns) = plan.contraction, plan.blocks
    rows = _pairs(contraction.a, contraction.extents) * (1 if plan.channels else along_columns)
    rows *= contraction.a.bytes
    if not contraction.packs_b:
        lines = plan.padded_deep * prod(dim.extent for dim in plan.around)
        return rows + plan.factor_bytes * plan.groups * lines * plan.columns
    return rows + plan.factor_bytes * _pairs(contraction.b, contraction.extents) * along_rows


def _pairs(operand: Operand, extents: Mapping[str, int]) -> int:
    """Return the iterations of an operand's dimensions whose element lies in the array."""
    return prod(len(_inside(subscript, size, extents)) for subscript, size in _axes(operand))


def _axes(operand: Operand) -> zip[tuple[Affine, int]]:
    return zip(operand.index, operand.shape, strict=True)


def _inside(subscript: Affine, size: int, extents: Mapping[str, int]) -> np.ndarray:
    """Return the values of a subscript over its dimensions that lie on the axis."""
    steps = (coef * np.arange(extents[dim]) for dim, coef in subscript.terms)
    values = reduce(np.add.outer, steps, np.array(subscript.const)).ravel()
    return values[(values >= 0) & (values < size)]
