"""Shape variables and what calls promise, checked against the shapes of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from polysci.errors import SpecError
from polysci.frontends.notation.elaborate import Elaborated
from polysci.frontends.notation.ranges import Inference, infer
from polysci.frontends.notation.syntax import Comprehension

LARGEST: Final = 2**48  # elements of a tensor, more than any memory has


def bind_sizes(comprehension: Comprehension, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Shape variable -> the extent that the tensors have there.

    Raises SpecError for a tensor that is missing, has another number of axes, or another extent
    than the declaration or a tensor before it says.
    """
    sizes: dict[str, int] = {}
    for tensor in comprehension.inputs:
        if tensor.name not in shapes:
            raise SpecError(f"{comprehension.name}: {tensor.name} is missing: expected {tensor}")
        shape = shapes[tensor.name]
        if len(shape) != len(tensor.extents):
            raise SpecError(f"{tensor.name}: expected {tensor}, got shape {tuple(shape)}")
        for extent, size in zip(tensor.extents, shape, strict=True):
            known = sizes.setdefault(extent, size) if isinstance(extent, str) else extent
            if known != size:
                raise SpecError(f"{tensor.name}: {extent} is {known}, got shape {tuple(shape)}")
    return sizes


def check_sizes(whole: Elaborated, sizes: Mapping[str, int | Sequence[int]]) -> None:
    """Raises SpecError for a size of something that has none, and for one below 1."""
    comprehension = whole.comprehension
    scalars = [tensor.name for tensor in comprehension.inputs if not tensor.extents]
    for name, size in sizes.items():
        if name not in (*comprehension.shape_variables, *scalars):
            raise SpecError(f"{comprehension.name}: {name}={size}: no shape variable or scalar")
        if name not in scalars and min([size] if isinstance(size, int) else size) < 1:
            raise SpecError(f"{comprehension.name}: {name}={size}: expected a positive size")


def infer_shapes(whole: Elaborated, sizes: Mapping[str, int]) -> Inference:
    """The ranges of a comprehension whose sizes are known, and what its calls promise checked.

    Raises SpecError for a size that is missing or below 1, and as ``infer`` does.
    """
    comprehension = whole.comprehension
    for name in comprehension.shape_variables:
        if name not in sizes:
            raise SpecError(f"{comprehension.name}: the size of {name} is missing: {name}=64")
    check_sizes(whole, sizes)
    inference = infer(whole, sizes)
    for tensor in inference.axes:
        if prod(shape := inference.shape(tensor)) >= LARGEST:
            raise SpecError(f"{comprehension.name}: {tensor}: too many elements: shape {shape}")
    for promise in whole.contracts:
        shape = inference.shape(promise.tensor)
        for extent, actual in zip(promise.declaration.extents, shape, strict=True):
            expected = extent
            if isinstance(extent, str):
                axis = promise.sizes[extent]
                expected = inference.shape(axis.tensor)[axis.axis]
            if expected != actual:
                what = f"{promise.tensor}: {extent} is {expected}, but its shape is {shape}"
                raise whole.error(promise.at, what, f"It is called for {promise.declaration}.")
    return inference
