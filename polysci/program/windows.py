"""Where the axes of a problem lie in a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from polysci.program.stages import Window


def stretch(window: Window, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a problem's axes in a tensor; None where merged axes do not run on."""
    steps = []
    for axes in window.axes:
        real = [at for at in axes if shape[at] > 1]
        for outer, inner in pairwise(real):
            if strides[outer] != shape[inner] * strides[inner]:
                return None
        last = real[-1] if real else (axes[-1] if axes else None)
        steps.append(strides[last] * window.step.get(last, 1) if last is not None else 0)
    return tuple(steps)


def start_of(window: Window, strides: Sequence[int]) -> int:
    """Elements before the first one of a window."""
    return sum(first * strides[at] for at, first in window.start.items())
