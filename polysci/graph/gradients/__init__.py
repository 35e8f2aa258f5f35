"""Gradient rules, one function an operator: gradients of its outputs to those of its inputs."""

from __future__ import annotations

from types import MappingProxyType

from polysci.graph.gradients import (
    convolution,
    elementwise,
    moving,
    normalisation,
    pooling,
    products,
    recurrent,
    reductions,
    softmax,
)
from polysci.graph.gradients.backward import Rules

GRADIENTS: Rules = MappingProxyType(
    {
        **convolution.GRADIENTS,
        **elementwise.GRADIENTS,
        **moving.GRADIENTS,
        **normalisation.GRADIENTS,
        **pooling.GRADIENTS,
        **products.GRADIENTS,
        **recurrent.GRADIENTS,
        **reductions.GRADIENTS,
        **softmax.GRADIENTS,
    }
)
