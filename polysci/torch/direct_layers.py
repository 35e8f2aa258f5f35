"""Recurrent layers on f32 tensors, past PyTorch's dispatcher: that takes longer than small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor, is_grad_enabled
from torch._C._dynamo.guards import TensorGuards

from polysci.torch.images import strides_in
from polysci.torch.packed_weights import new_strided

_F32: Final = torch.float32
_address: Final = Tensor.data_ptr
_KINDS: Final = (Tensor, torch.nn.Parameter)


class DirectLayers:
    """Layers one after the other on operands of these types, shapes and strides.

    ``runs``: each layer's, on addresses of x, its first states, weights, y and last states;
    ``results``: the shapes of y and of the last states of all layers.
    """

    def __init__(
        self,
        runs: Sequence[Callable[[Sequence[int]], None]],
        operands: Sequence[Tensor],
        results: Sequence[tuple[int, ...]],
    ) -> None:
        self._runs = runs
        self._weights = (len(operands) - len(results)) // len(runs)  # of each layer
        self._step = 4 * prod(results[1]) // len(runs)  # bytes of a layer's states
        self._made = [(shape, strides_in("nchw", shape), _F32) for shape in results]
        self._learns = any(x.requires_grad for x in operands)
        self._fits = TensorGuards(
            *operands,
            dynamic_dims_sizes=[[*x.shape] for x in operands],
            dynamic_dims_strides=[[*x.stride()] for x in operands],
        ).check

    def fits(self, operands: Sequence[Tensor]) -> bool:
        """Whether these can be taken, and nobody wants gradients."""
        return bool(self._fits(*operands)) and not (self._learns and is_grad_enabled())

    def __call__(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """y and the last states."""
        results = [new_strided(*made) for made in self._made]
        if len(self._runs) == 1:
            self._runs[0]([*map(_address, operands), *map(_address, results)])
            return results
        each = [new_strided(*self._made[0]) for _ in self._runs[1:]]  # y of the layers before
        each.append(results[0])
        x, *places = map(_address, operands)
        lasts = [*map(_address, results[1:])]
        first, weights = places[: len(lasts)], places[len(lasts) :]
        for layer, (run, result) in enumerate(zip(self._runs, each, strict=True)):
            own = weights[layer * self._weights : (layer + 1) * self._weights]
            y, at = result.data_ptr(), layer * self._step
            run([x, *[h + at for h in first], *own, y, *[h + at for h in lasts]])
            x = y
        return results


def is_plain(operands: Sequence[Tensor]) -> bool:
    """Whether these are f32 tensors that lie as networks read them, and learn nothing here."""
    learns = is_grad_enabled()
    return all(
        type(x) in _KINDS and x.dtype is _F32 and x.is_cpu and x.layout is torch.strided
        and x.is_contiguous() and not x.is_neg() and not (learns and x.requires_grad)
        for x in operands
    )  # fmt: skip
