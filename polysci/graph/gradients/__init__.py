"""Gradient rules, one function an operator: gradients of its outputs to those of its inputs."""

from __future__ import annotations

from types import MappingProxyType

from polysci.graph.backward import Rules
from polysci.graph.gradients import (
    convolution,
    elementwise,
    normalisation,
    pooling,
    products,
    recurrent,
    reductions,
    shape_ops,
    softmax,
)

GRADIENTS: Rules = MappingProxyType(
    {
        **convolution.GRADIENTS,
        **elementwise.GRADIENTS,
        **shape_ops.GRADIENTS,
        **normalisation.GRADIENTS,
        **pooling.GRADIENTS,
        **products.GRADIENTS,
        **recurrent.GRADIENTS,
        **reductions.GRADIENTS,
        **softmax.GRADIENTS,
    }
)
