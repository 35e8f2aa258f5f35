"""A tensor notation: statements over elements of tensors, whose ranges are inferred."""

from typing import TYPE_CHECKING, Any

from polysci.frontends.notation.parser import BUILTINS, parse
from polysci.frontends.notation.syntax import Comprehension
from polysci.notation.compiled import FreeTensorFunction, TensorFunction, compile
from polysci.notation.gradients import grad
from polysci.notation.interpreter import interpret

if TYPE_CHECKING:
    from polysci.torch.comprehension import torch_op

__all__ = [
    "BUILTINS",
    "Comprehension",
    "FreeTensorFunction",
    "TensorFunction",
    "compile",
    "grad",
    "interpret",
    "parse",
    "torch_op",
]


def __getattr__(name: str) -> Any:
    """Return torch_op, which stands above this package, as it needs PyTorch."""
    if name != "torch_op":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from polysci.torch.comprehension import torch_op

    return torch_op
