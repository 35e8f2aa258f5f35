"""Results of a module's replacement beside eager and beside a run in f64."""

from __future__ import annotations

import copy
from typing import Any

import torch

FACTOR = 16  # of what eager itself is off by
SMALLEST = 2.0**-18  # of the largest number of a result


def leaves(value: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(value))


def compare(module: Any, other: Any, *inputs: Any, **words: Any) -> None:
    """As near to f64 as eager is, up to ``FACTOR``; integers are the same."""
    wide, wide_words = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, (inputs, words)
    )
    with torch.no_grad():
        made, eager = leaves(other(*inputs, **words)), leaves(module(*inputs, **words))
        exact = leaves(copy.deepcopy(module).double()(*wide, **wide_words))
    assert len(made) == len(eager)
    for own, theirs, wanted in zip(made, eager, exact, strict=True):
        assert own.dtype == theirs.dtype and own.shape == theirs.shape
        if not own.is_floating_point():
            assert torch.equal(own, wanted)
        elif own.numel():
            size = max(float(wanted.abs().max()), 2.0**-100)
            bound = max(SMALLEST, FACTOR * float((theirs - wanted).abs().max()) / size)
            assert float((own - wanted).abs().max()) / size <= bound
