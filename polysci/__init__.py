"""Fast CPU primitives: polyhedral outer loops around hand-written microkernels."""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from polysci.version import __version__ as __version__

if TYPE_CHECKING:
    from polysci import errors, notation, training
    from polysci.api import compile, conv2d
    from polysci.frontends import layers
    from polysci.network.compiled import Network, compile_network
    from polysci.network.generation import Generation
    from polysci.network.options import CompileOptions
    from polysci.network.sizes import SizedNetwork, compile_sizes
    from polysci.notation.einsum import einsum
    from polysci.numerics.dtypes import PRECISIONS, from_bf16, to_bf16
    from polysci.numerics.quantization import Scales
    from polysci.ops import parse_problem
    from polysci.ops.conv_transpose2d import ConvTranspose2d
    from polysci.ops.convolution_gradients import (
        Conv1dBackwardData,
        Conv1dBackwardWeights,
        Conv2dBackwardData,
        Conv2dBackwardWeights,
        Conv3dBackwardData,
        Conv3dBackwardWeights,
    )
    from polysci.ops.convolutions import Conv1d, Conv2d, Conv3d
    from polysci.ops.matmul import Matmul
    from polysci.ops.nest import Nest
    from polysci.polyhedral import extract
    from polysci.runtime.primitive import Primitive
    from polysci.space.schedule import Schedule
    from polysci.target.host import detect
    from polysci.target.target import Target
    from polysci.tune import Result, SearchOptions, TunerOptions, optimize
    from polysci.tune.wisdom import Wisdom

__all__ = [
    "PRECISIONS",
    "CompileOptions",
    "Conv1d",
    "Conv1dBackwardData",
    "Conv1dBackwardWeights",
    "Conv2d",
    "Conv2dBackwardData",
    "Conv2dBackwardWeights",
    "Conv3d",
    "Conv3dBackwardData",
    "Conv3dBackwardWeights",
    "ConvTranspose2d",
    "Generation",
    "Matmul",
    "Nest",
    "Network",
    "Primitive",
    "Result",
    "Scales",
    "Schedule",
    "SearchOptions",
    "SizedNetwork",
    "Target",
    "TunerOptions",
    "Wisdom",
    "compile",
    "compile_network",
    "compile_sizes",
    "conv2d",
    "detect",
    "einsum",
    "errors",
    "extract",
    "from_bf16",
    "layers",
    "notation",
    "optimize",
    "parse_problem",
    "to_bf16",
    "training",
]

# Imported on first use (PEP 562): NumPy, islpy and cgen together take half a second.
_HOMES = MappingProxyType(
    {
        "PRECISIONS": "polysci.numerics.dtypes",
        "CompileOptions": "polysci.network.options",
        "Conv1d": "polysci.ops.convolutions",
        "Conv1dBackwardData": "polysci.ops.convolution_gradients",
        "Conv1dBackwardWeights": "polysci.ops.convolution_gradients",
        "Conv2d": "polysci.ops.convolutions",
        "Conv2dBackwardData": "polysci.ops.convolution_gradients",
        "Conv2dBackwardWeights": "polysci.ops.convolution_gradients",
        "Conv3d": "polysci.ops.convolutions",
        "Conv3dBackwardData": "polysci.ops.convolution_gradients",
        "Conv3dBackwardWeights": "polysci.ops.convolution_gradients",
        "ConvTranspose2d": "polysci.ops.conv_transpose2d",
        "Generation": "polysci.network.generation",
        "Matmul": "polysci.ops.matmul",
        "Nest": "polysci.ops.nest",
        "Network": "polysci.network.compiled",
        "Primitive": "polysci.runtime.primitive",
        "Result": "polysci.tune",
        "TunerOptions": "polysci.tune",
        "Scales": "polysci.numerics.quantization",
        "SearchOptions": "polysci.tune",
        "Schedule": "polysci.space.schedule",
        "SizedNetwork": "polysci.network.sizes",
        "Target": "polysci.target.target",
        "Wisdom": "polysci.tune.wisdom",
        "compile": "polysci.api",
        "compile_network": "polysci.network.compiled",
        "compile_sizes": "polysci.network.sizes",
        "conv2d": "polysci.api",
        "detect": "polysci.target.host",
        "einsum": "polysci.notation.einsum",
        "from_bf16": "polysci.numerics.dtypes",
        "optimize": "polysci.tune",
        "parse_problem": "polysci.ops",
        "to_bf16": "polysci.numerics.dtypes",
    }
)
_MODULES = MappingProxyType(
    {
        "errors": "polysci.errors",
        "extract": "polysci.polyhedral.extract",
        "layers": "polysci.frontends.layers",
        "notation": "polysci.notation",
        "training": "polysci.training",
    }
)

if not TYPE_CHECKING:  # a checker would take any attribute for granted

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name not in _HOMES:
            raise AttributeError(f"module 'polysci' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
