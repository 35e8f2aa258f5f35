"""The 2-D convolution: problem, grammar, textbook nest and reference."""

from polysci.ops.conv2d.problem import Conv2d

__all__ = ["Conv2d"]
