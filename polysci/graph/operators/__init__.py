"""ONNX's operators, one function a type: a node becomes stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from polysci.graph.graph import Node
from polysci.graph.operators import (
    convolution,
    deform_conv,
    dynamic_dims,
    einsum,
    elements,
    elementwise,
    fourier,
    gather,
    loops,
    losses,
    normalisation,
    pooling,
    pooling_gradients,
    products,
    quantised,
    quantised_products,
    quantised_recurrent,
    rearrange,
    recurrent,
    recurrent_gradient,
    reductions,
    resize,
    sampling,
    scans,
    scatter,
    select,
    selection,
    shape_ops,
    softmax,
    transposed,
    weights_gradient,
)
from polysci.graph.operators.builder import Builder

Operator = Callable[[Builder, Node], None]

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        **elementwise.OPERATORS,
        **select.OPERATORS,
        **shape_ops.OPERATORS,
        **normalisation.OPERATORS,
        **rearrange.OPERATORS,
        **gather.OPERATORS,
        **scatter.OPERATORS,
        **selection.OPERATORS,
        **dynamic_dims.OPERATORS,
        **loops.OPERATORS,
        **sampling.OPERATORS,
        **deform_conv.OPERATORS,
        **fourier.OPERATORS,
        **pooling.OPERATORS,
        **pooling_gradients.OPERATORS,
        **reductions.OPERATORS,
        **softmax.OPERATORS,
        **losses.OPERATORS,
        **scans.OPERATORS,
        **resize.OPERATORS,
        **products.OPERATORS,
        **einsum.OPERATORS,
        **elements.OPERATORS,
        **convolution.OPERATORS,
        **transposed.OPERATORS,
        **weights_gradient.OPERATORS,
        **quantised.OPERATORS,
        **quantised_products.OPERATORS,
        **recurrent.OPERATORS,
        **recurrent_gradient.OPERATORS,
        **quantised_recurrent.OPERATORS,
    }
)

# What the importer computes ahead or the simplifier replaces.
FOLDED = (
    "Constant", "ConstantOfShape", "Shape", "Flatten", "Squeeze", "Unsqueeze", "Range",
    "MelWeightMatrix",
)  # fmt: skip
