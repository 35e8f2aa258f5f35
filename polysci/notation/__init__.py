"""A tensor notation: statements over elements of tensors, whose ranges are inferred."""

from polysci.network.frontends.notation.parser import BUILTINS, parse
from polysci.network.frontends.notation.syntax import Comprehension
from polysci.notation.compiled import FreeTensorFunction, TensorFunction, compile
from polysci.notation.gradients import grad
from polysci.notation.interpreter import interpret

__all__ = [
    "BUILTINS",
    "Comprehension",
    "FreeTensorFunction",
    "TensorFunction",
    "compile",
    "grad",
    "interpret",
    "parse",
]
