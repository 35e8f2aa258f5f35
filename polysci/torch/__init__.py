"""polysci for PyTorch: operators with gradients, which torch.compile and autocast know.

Needs the extra: ``pip install 'polysci[torch]'``.
"""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "polysci.torch needs PyTorch: pip install 'polysci[torch]'", name="torch"
    ) from None

from polysci.torch.compiled_part import ModuleReport
from polysci.torch.convolution import conv1d, conv2d, conv3d, conv_transpose2d
from polysci.torch.optimized_module import OptimizedModule, optimize
from polysci.torch.products import einsum, linear, matmul
from polysci.torch.recurrent import gru, lstm
from polysci.torch.settings import options, set_threads

__all__ = [
    "ModuleReport",
    "OptimizedModule",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "einsum",
    "gru",
    "linear",
    "lstm",
    "matmul",
    "optimize",
    "options",
    "set_threads",
]
del _torch
