"""A tensor notation: statements over elements of tensors, whose ranges are inferred."""

from polysci.notation.interpreter import interpret
from polysci.notation.parser import parse
from polysci.notation.syntax import Comprehension

__all__ = ["Comprehension", "interpret", "parse"]
